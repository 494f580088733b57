//! A virtqueue, a guest that does as it likes with its memory, and a reactor that carries requests
//! out in any order. No chain is handed out while it is in flight, nothing is written outside of
//! the used ring, statuses and serial numbers, and a restart hands out again exactly the chains
//! that were in flight.

use super::guest::{self, END};
use super::input::Input;
use crate::Target;
use seekway_hostd::frontends::vhost_user::GuestMemory;
use seekway_hostd::frontends::vhost_user::inflight::Inflight;
use seekway_hostd::frontends::vhost_user::request::{Ask, Request, Table, parse};
use seekway_hostd::frontends::vhost_user::ring::Parts;
use seekway_hostd::frontends::vhost_user::vring::{Broken, Setup, Taken, Vring};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

pub const TARGET: Target =
    Target { name: "vring", run, heap_bytes_max: 1 << 20, test_runs: 45_000, words: &[] };

const SIZE: u16 = 8;
const AVAILABLE: u64 = 0x80;
const USED: u64 = 0xa0;
const USED_END: u64 = USED + 6 + 8 * SIZE as u64;
/// Headers of ordinary requests: 16 bytes for each head, then data and statuses.
const HEADERS: u64 = 0x100;
const DATA: u64 = 0x300;
const SERIAL: [u8; 20] = *b"serial number of it.";

fn run(input: &[u8]) {
    let mut input = Input(input);
    let with = input.u8();
    let mut world = World::new(with & 1 != 0, with & 2 != 0);
    for _ in 0..256 {
        if input.is_over() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}

/// A chain that was handed out and not shown as used yet.
struct Held {
    status: Option<u64>,
    writable_len: u32,
    is_done: bool,
}

struct World {
    memory: GuestMemoryMmap,
    event_idx: bool,
    record: Option<File>,
    vring: Option<Vring>,
    available: u16,
    /// The used index when all that is done has been published.
    used: u16,
    /// Since the last restart.
    held: BTreeMap<u16, Held>,
    /// The used entries that are not published.
    batch: Vec<(u16, u32)>,
    /// All that the record says is in flight, the oldest first.
    order: Vec<u16>,
    /// Requests that have to come first after a restart.
    left: VecDeque<u16>,
    is_broken: bool,
    /// The guest has written to the used ring, or the VMM to the record.
    is_forged: bool,
}

impl World {
    fn new(event_idx: bool, with_record: bool) -> World {
        let record = with_record.then(|| Inflight::create(1, SIZE).expect("a record"));
        let memory = guest::memory();
        let mut world = World {
            memory,
            event_idx,
            record,
            vring: None,
            available: 0,
            used: 0,
            held: BTreeMap::new(),
            batch: Vec::new(),
            order: Vec::new(),
            left: VecDeque::new(),
            is_broken: false,
            is_forged: false,
        };
        world.vring = Some(world.start(0));
        world
    }

    fn parts(&self) -> Parts {
        let at = |address| self.memory.get_host_address(GuestAddress(address)).expect("memory");
        Parts { descriptors: at(0), available: at(AVAILABLE), used: at(USED) }
    }

    fn start(&self, base: u16) -> Vring {
        let record = self.record.as_ref().map(|file| {
            let file = file.try_clone().expect("a descriptor");
            let inflight =
                Inflight::map(file, 0, Inflight::bytes(1, SIZE), 1, SIZE, &Arc::default())
                    .expect("mapped");
            inflight.queue(0, SIZE)
        });
        // A record of which the VMM changed the version is refused: the queue does not start.
        let record = record.and_then(|record| record.ok().flatten());
        let setup = Setup {
            parts: self.parts(),
            size: SIZE,
            event_idx: self.event_idx,
            base,
            memory: Arc::new(GuestMemory::from(self.memory.clone())),
            record,
            serial: SERIAL,
            logging: None,
        };
        // SAFETY: the parts are in that memory and aligned.
        unsafe { Vring::new(setup) }
    }

    fn vring(&mut self) -> &mut Vring {
        self.vring.as_mut().expect("a virtqueue")
    }

    fn load(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.memory.read_obj(GuestAddress(at)).expect("memory"))
    }

    /// The guest writes these bytes, as far as they lie before [`END`].
    fn store(&mut self, at: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min((END - at) as usize)];
        self.note_write(at..at + bytes.len() as u64);
        self.memory.write_slice(bytes, GuestAddress(at)).expect("it fits");
    }

    /// Something that is not the used ring's keeper writes here.
    fn note_write(&mut self, range: Range<u64>) {
        self.is_forged |= range.start < USED_END && USED < range.end;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.u8();
        let before = guest::snapshot(&self.memory);
        match op % 17 {
            0 | 1 => {
                let at = 16 * u64::from(input.u8() % SIZE as u8);
                return guest::put_descriptor(&self.memory, at, input);
            }
            2 | 3 => return self.offer(u16::from(input.u8() % 9)),
            4 => return self.store(AVAILABLE + 2, &input.take::<2>()),
            5 => {
                let at = u64::from(input.u16()) % END;
                return self.store(at, &input.take::<4>());
            }
            6..=8 => return self.take(input, &before),
            9 | 10 => return self.done(input, &before),
            11 => self.publish(),
            12 => {
                let (parts, memory) = (self.parts(), GuestMemory::from(self.memory.clone()));
                // SAFETY: the parts are in that memory and aligned.
                unsafe { self.vring().relocate(parts, Arc::new(memory)) };
            }
            13 => self.restart(),
            14 => {
                let has_work = self.load(AVAILABLE + 2) != self.vring().base();
                assert_eq!(self.vring().has_work(), has_work);
                self.vring().leave();
                assert_eq!(self.vring().check_memory(), Ok(()));
            }
            15 => {
                let (at, bytes) = (u64::from(input.u8() % 250), input.take::<3>());
                if let Some(file) = &self.record {
                    self.is_forged = true;
                    file.write_all_at(&bytes, at).expect("the record is written");
                }
            }
            _ => return self.request(input),
        }
        self.check_writes(&before, &[]);
    }

    /// The guest makes a chain available.
    fn offer(&mut self, head: u16) {
        let slot = u64::from(self.available % SIZE);
        self.store(AVAILABLE + 4 + 2 * slot, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        let index = self.available.to_le_bytes();
        self.store(AVAILABLE + 2, &index);
    }

    /// The guest makes an ordinary request: header, data, status.
    fn request(&mut self, input: &mut Input<'_>) {
        let [head, kind, sector] = input.take();
        let head = u64::from(head % SIZE as u8);
        let kind = [0, 1, 4, 8, 11, 13, 99, 0][usize::from(kind % 8)];
        let (header, data) = (HEADERS + 16 * head, DATA + 0x20 * head);
        let mut bytes = [0; 16];
        (bytes[0], bytes[8]) = (kind, sector);
        self.store(header, &bytes);
        let is_in = kind == 0 || kind == 8;
        let chain =
            [(header, 16, 1), (data, 512, 1 | (u8::from(is_in) << 1)), (0x700 + head, 1, 2)];
        for (i, (address, len, flags)) in chain.into_iter().enumerate() {
            let at = (head + i as u64) % u64::from(SIZE);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&u64::to_le_bytes(address));
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(len));
            (bytes[12], bytes[14]) = (flags, ((at + 1) % u64::from(SIZE)) as u8);
            self.store(16 * at, &bytes);
        }
        self.offer(head as u16);
    }

    fn parse(&self, head: u16) -> Option<(Request, Vec<(u64, u64)>)> {
        let base = self.memory.get_host_address(GuestAddress(0)).expect("memory");
        // SAFETY: 128 bytes, in the first region.
        let table = unsafe { Table::new(base, SIZE) };
        let mut pieces = Vec::new();
        let request = parse(&self.memory, table, head, &mut pieces).ok()?;
        Some((request, guest::addresses(&self.memory, &pieces)))
    }

    fn take(&mut self, input: &mut Input<'_>, before: &[u8]) {
        let answer = input.u8();
        if self.is_broken {
            return;
        }
        let parsed: Vec<_> = (0..SIZE).map(|head| self.parse(head)).collect();
        let base = self.vring().base();
        let mut handed = None;
        let taken = self.vring.as_mut().expect("a virtqueue").take(|head, request, pieces| {
            assert!(handed.is_none(), "two chains at once");
            handed = Some((head, *request, pieces.to_vec()));
            if answer & 1 == 0 { Taken::Submitted } else { Taken::Refused(answer) }
        });
        let has_moved = self.vring().base() != base;
        let head = match (taken, &handed) {
            (Err(Broken::Twice(head)), None) => {
                assert!(self.held.contains_key(&head));
                self.is_broken = true;
                return self.check_writes(before, &[]);
            }
            (Err(_), None) => {
                self.is_broken = true;
                return self.check_writes(before, &[]);
            }
            (Ok(None), None) => {
                assert!(!has_moved && self.load(AVAILABLE + 2) == base);
                assert!(self.left.is_empty() || self.is_forged);
                return self.check_writes(before, &[]);
            }
            (Ok(Some(_)), Some((head, ..))) => *head,
            // Answered at once: it is the used ring's newest entry.
            (Ok(Some(_)), None) => self.load(USED + 4 + 8 * u64::from(self.used % SIZE)),
            (result, handed) => panic!("{result:?} and {handed:?}"),
        };
        assert!(head < SIZE && !self.held.contains_key(&head), "head {head} is handed out twice");
        match self.left.pop_front() {
            Some(left) => assert!(self.is_forged || (left == head && !has_moved)),
            None => assert!(self.is_forged || has_moved),
        }
        if has_moved {
            self.order.push(head);
        }
        let (request, pieces) = parsed[usize::from(head)].clone().expect("a chain that was taken");
        let status = request.status.map(|at| guest::address(&self.memory, at, 1));
        let is_done = match &handed {
            Some((_, handed, places)) => {
                assert_eq!(*handed, request);
                assert_eq!(guest::addresses(&self.memory, places), pieces);
                answer & 1 != 0
            }
            None => {
                assert!(matches!(request.ask, Ask::Refuse(_) | Ask::Identify));
                true
            }
        };
        self.held.insert(head, Held { status, writable_len: request.writable_len, is_done });
        let mut written: Vec<(u64, u64)> = Vec::new();
        if is_done {
            self.push_used(head);
            written.extend(status.map(|at| (at, 1)));
            if request.ask == Ask::Identify {
                written.extend(pieces);
            }
        }
        self.check_writes(before, &written);
    }

    /// The used ring has one more entry, of a chain whose status was written.
    fn push_used(&mut self, head: u16) {
        let held = &self.held[&head];
        let (status, len) = (held.status, held.writable_len);
        if let Some(at) = status {
            self.note_write(at..at + 1);
        }
        self.batch.push((head, len));
        self.used = self.used.wrapping_add(1);
    }

    fn done(&mut self, input: &mut Input<'_>, before: &[u8]) {
        let [which, status] = input.take();
        let open: Vec<u16> =
            self.held.iter().filter(|(_, held)| !held.is_done).map(|(&head, _)| head).collect();
        if open.is_empty() {
            return;
        }
        let head = open[usize::from(which) % open.len()];
        self.vring().done(head, status);
        self.held.get_mut(&head).expect("held").is_done = true;
        self.push_used(head);
        let at = self.held[&head].status;
        self.check_writes(before, &at.map(|at| (at, 1)).into_iter().collect::<Vec<_>>());
        if let Some(at) = at.filter(|at| !(USED..USED_END).contains(at)) {
            assert_eq!(self.memory.read_obj::<u8>(GuestAddress(at)).expect("memory"), status);
        }
    }

    fn publish(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let wants_call = self.vring().publish();
        assert!(!(wants_call && batch.is_empty()));
        if batch.is_empty() {
            return;
        }
        assert_eq!(self.load(USED + 2), self.used);
        for (i, (head, len)) in batch.iter().rev().enumerate() {
            let slot = u64::from(self.used.wrapping_sub(1 + i as u16) % SIZE);
            let mut entry = [0; 8];
            self.memory.read_slice(&mut entry, GuestAddress(USED + 4 + 8 * slot)).expect("memory");
            let mut wanted = [0; 8];
            wanted[..2].copy_from_slice(&head.to_le_bytes());
            wanted[4..].copy_from_slice(&len.to_le_bytes());
            assert!(self.is_forged || entry == wanted, "used entry {entry:?} and not {wanted:?}");
            assert!(self.held.remove(head).is_some_and(|held| held.is_done));
            self.order.retain(|held| held != head);
        }
    }

    /// The daemon ends in the middle of everything, and another begins.
    fn restart(&mut self) {
        let base = self.vring().base();
        self.vring = None;
        self.held.clear();
        self.batch.clear();
        self.used = self.load(USED + 2);
        self.is_broken = false;
        if self.record.is_none() {
            self.order.clear();
        }
        self.left = self.order.iter().copied().collect();
        self.vring = Some(self.start(base));
        // The available ring goes on behind the taken entries.
        let taken = self.used.wrapping_add(self.order.len() as u16);
        assert!(self.is_forged || self.record.is_none() || self.vring().base() == taken);
    }

    /// Nothing was written but the used ring and `allowed` (address, length).
    fn check_writes(&self, before: &[u8], allowed: &[(u64, u64)]) {
        let after = guest::snapshot(&self.memory);
        for (at, (old, new)) in (0..).zip(before.iter().zip(&after)) {
            let is_allowed = || allowed.iter().any(|&(from, len)| (from..from + len).contains(&at));
            assert!(
                old == new || (USED..USED_END).contains(&at) || is_allowed(),
                "byte {at:#x} was written"
            );
        }
    }

    /// Ends all requests in flight.
    fn end(&mut self) {
        while self.held.values().any(|held| !held.is_done) {
            let before = guest::snapshot(&self.memory);
            self.done(&mut Input(&[]), &before);
        }
        self.publish();
        assert!(self.held.is_empty());
    }
}
