//! A guest with a virtio-blk disk, and its VMM (`vmm`): a driver that does what it may (VIRTIO 1.2, 2.7 and
//! 5.2), checks what it reads, and looks at its queues only when it is called.

mod vmm;

use super::disk::{Disk, Notes, Write};
use super::migration::Migration;
use super::random::Random;
use crate::frontends::vhost_user::Session;
use crate::frontends::vhost_user::memory_file;
use seekway_testing::disk::{SECTOR_BYTES, sectors_of};
use std::fs::File;
use std::ops::Range;
use vhost::vhost_user::message::VhostUserVirtioFeatures;
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{FileOffset, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

/// Descriptors of a request: header, three pieces of data, status.
const CHAIN: u16 = 5;
const PIECES_MAX: u64 = 3;
/// Sectors of a piece at most.
const PIECE_SECTORS: u64 = 8;
/// Of a request's own memory: where each piece of data has its room, and the next.
const DATA: u64 = 0x1000;
const PIECE_ROOM: u64 = 0x1800;
const REQUEST_ROOM: u64 = 0x6000;
/// Sectors of a long request, 1 to 3 MiB, and the room for the data of one.
const LONG_SECTORS: Range<u64> = 2 << 10..6 << 10;
const LONG_ROOM: u64 = 4 << 20;
/// Of a queue's memory.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const REQUESTS: u64 = 0x3000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A request of the guest.
#[derive(Clone, Debug)]
struct Request {
    id: u64,
    kind: u32,
    sectors: Range<usize>,
    pieces: Vec<(u64, u32)>,
    begun: u64,
    /// Set if the write cache was off at the request: the number of times that it had been set by
    /// then.
    through: Option<u32>,
}

struct Queue {
    /// Where it is in the guest's memory.
    at: u64,
    size: u16,
    kick: EventFd,
    call: EventFd,
    available: u16,
    used: u16,
    requests: Vec<Option<Request>>,
}

/// The guest and its VMM.
pub struct Guest {
    memory: MmapRegion,
    file: File,
    queues: Vec<Queue>,
    /// Where the data of a long request has its room, if the guest has such requests.
    long_room: Option<u64>,
    features: u64,
    event_idx: bool,
    indirect: bool,
    /// The VMM keeps it for the next daemon.
    inflight: Option<File>,
    write_cache: bool,
    /// Number of times that it was set.
    cache_set: u32,
    session: Option<Session>,
    /// On its way to another VMM.
    migration: Option<Migration>,
    /// The guest has come from another daemon and not been served here.
    has_moved: bool,
    /// Some of what its VMM has shown was taken away, and the guest has ended.
    is_cut: bool,
}

fn eventfd() -> EventFd {
    EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).expect("an eventfd")
}

fn map(file: &File, bytes: u64) -> MmapRegion {
    let file = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
    MmapRegion::from_file(file, bytes as usize).expect("memory")
}

const fn bit(feature: u32) -> u64 {
    1 << feature
}

impl Guest {
    /// A guest that has just begun, not connected.
    pub fn new(random: &mut Random, is_long: bool) -> Guest {
        let sizes: Vec<u16> =
            (0..1 + random.index(3)).map(|_| random.one_of(&[8, 16, 32])).collect();
        let room = |size: u16| REQUESTS + u64::from(size / CHAIN) * REQUEST_ROOM;
        let mut bytes = 0;
        let queues = sizes.into_iter().map(|size| {
            let at = bytes;
            bytes += room(size);
            let requests = vec![None; usize::from(size / CHAIN)];
            Queue { at, size, kick: eventfd(), call: eventfd(), available: 0, used: 0, requests }
        });
        let queues: Vec<Queue> = queues.collect();
        let long_room = is_long.then_some(bytes);
        bytes += if is_long { LONG_ROOM } else { 0 };
        let file = memory_file(bytes);
        let memory = map(&file, bytes);
        let (event_idx, indirect) = (random.once_in(2), random.once_in(2));
        let mut features = bit(VIRTIO_F_VERSION_1)
            | bit(blk::VIRTIO_BLK_F_DISCARD)
            | bit(blk::VIRTIO_BLK_F_WRITE_ZEROES)
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let flushes = !random.once_in(8);
        if flushes {
            features |= bit(blk::VIRTIO_BLK_F_FLUSH) | bit(blk::VIRTIO_BLK_F_CONFIG_WCE);
        }
        for (is_on, feature) in
            [(event_idx, VIRTIO_RING_F_EVENT_IDX), (indirect, VIRTIO_RING_F_INDIRECT_DESC)]
        {
            features |= if is_on { bit(feature) } else { 0 };
        }
        Guest {
            memory,
            file,
            queues,
            long_room,
            features,
            event_idx,
            indirect,
            inflight: None,
            write_cache: flushes,
            cache_set: 0,
            session: None,
            migration: None,
            has_moved: false,
            is_cut: false,
        }
    }

    pub fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    pub fn is_connected(&self) -> bool {
        self.session.is_some() && !self.is_cut
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Requests that have no answer, if there is a guest to hear one.
    pub fn outstanding(&self) -> usize {
        if self.is_cut {
            return 0;
        }
        self.queues.iter().flat_map(|q| &q.requests).flatten().count()
    }

    fn load(&self, at: u64) -> u16 {
        assert!(at + 2 <= self.memory.size() as u64);
        // SAFETY: inside the memory; aligned to 2.
        u16::from_le(unsafe { self.memory.as_ptr().add(at as usize).cast::<u16>().read_volatile() })
    }

    fn store(&self, at: u64, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= self.memory.size());
        // SAFETY: inside the memory, as was looked at; nobody has a reference into it.
        unsafe {
            let to = self.memory.as_ptr().add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        if let Some(migration) = &self.migration {
            migration.wrote(at as usize, bytes);
        }
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        assert!(at as usize + len <= self.memory.size());
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at as usize), len).to_vec() }
    }

    /// The guest asks for something, if it has room.
    pub fn submit(&mut self, disk: &mut Disk, notes: &mut Notes, random: &mut Random) {
        let index = random.index(self.queues.len());
        if self.is_cut {
            return;
        }
        let Some(slot) = self.queues[index].requests.iter().position(Option::is_none) else {
            return;
        };
        let begun = notes.tick();
        let id = notes.id();
        let kind = match random.below(20) {
            0..8 => blk::VIRTIO_BLK_T_IN,
            8..15 => blk::VIRTIO_BLK_T_OUT,
            15..18 if self.features & bit(blk::VIRTIO_BLK_F_FLUSH) != 0 => blk::VIRTIO_BLK_T_FLUSH,
            18 => blk::VIRTIO_BLK_T_DISCARD,
            _ => blk::VIRTIO_BLK_T_WRITE_ZEROES,
        };
        let room = self.queues[index].at + REQUESTS + slot as u64 * REQUEST_ROOM;
        let pieces: Vec<(u64, u32)> = (0..1 + random.below(PIECES_MAX))
            .map(|n| {
                let begin = room + DATA + n * PIECE_ROOM + random.one_of(&[0, 0, 512, 3]);
                (begin, (1 + random.below(PIECE_SECTORS)) as u32 * SECTOR_BYTES as u32)
            })
            .collect();
        let moves = matches!(kind, blk::VIRTIO_BLK_T_IN | blk::VIRTIO_BLK_T_OUT);
        let pieces = match self.long_room.filter(|&at| moves && !self.has_long(at)) {
            Some(at) if random.once_in(8) => long_pieces(at, random),
            _ => pieces,
        };
        let len = pieces.iter().map(|(_, len)| *len as usize).sum::<usize>() / SECTOR_BYTES;
        let start = disk.place(len, random);
        let sectors = if kind == blk::VIRTIO_BLK_T_FLUSH { 0..0 } else { start..start + len };
        let through = (!self.write_cache).then_some(self.cache_set);
        let request = Request { id, kind, sectors, pieces, begun, through };
        disk.begin(&request.write(), id, begun);
        self.lay_out(index, slot, room, &request);
        self.queues[index].requests[slot] = Some(request);
        self.offer(index, slot as u16 * CHAIN);
    }

    /// Is the room for a long request's data taken?
    fn has_long(&self, at: u64) -> bool {
        let requests = self.queues.iter().flat_map(|queue| &queue.requests).flatten();
        requests.into_iter().any(|request| request.pieces[0].0 >= at)
    }

    /// Write a request's chain and data.
    fn lay_out(&self, index: usize, slot: usize, room: u64, request: &Request) {
        let mut header = request.kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend((request.sectors.start as u64).to_le_bytes());
        self.put(room, &header);
        self.put(room + 0x300, &[0xff]);
        let mut chain = vec![(room, 16, 0)];
        match request.kind {
            blk::VIRTIO_BLK_T_FLUSH => {}
            blk::VIRTIO_BLK_T_DISCARD | blk::VIRTIO_BLK_T_WRITE_ZEROES => {
                let mut range = (request.sectors.start as u64).to_le_bytes().to_vec();
                range.extend((request.sectors.len() as u32).to_le_bytes());
                let unmaps =
                    request.kind == blk::VIRTIO_BLK_T_WRITE_ZEROES && request.id.is_multiple_of(2);
                range.extend(u32::from(unmaps).to_le_bytes());
                self.put(room + 0x200, &range);
                chain.push((room + 0x200, 16, 0));
            }
            kind => {
                let flags = if kind == blk::VIRTIO_BLK_T_IN { WRITE } else { 0 };
                let mut sector = request.sectors.start;
                for &(at, len) in &request.pieces {
                    let sectors = sector..sector + len as usize / SECTOR_BYTES;
                    sector = sectors.end;
                    match kind {
                        blk::VIRTIO_BLK_T_IN => self.put(at, &vec![0xff; len as usize]),
                        _ => self.put(at, &sectors_of(request.id, sectors)),
                    }
                    chain.push((at, len, flags));
                }
            }
        }
        chain.push((room + 0x300, 1, WRITE));
        let (head, last) = (slot as u16 * CHAIN, chain.len() - 1);
        let table = self.queues[index].at + 16 * u64::from(head);
        let (to, first) = if self.indirect { (room + 0x100, 0) } else { (table, head) };
        for (n, (at, len, flags)) in chain.into_iter().enumerate() {
            let next = if n < last { NEXT } else { 0 };
            self.descriptor(to + 16 * n as u64, at, len, flags | next, first + n as u16 + 1);
        }
        if self.indirect {
            self.descriptor(table, to, 16 * (last as u32 + 1), INDIRECT, 0);
        }
    }

    fn descriptor(&self, to: u64, at: u64, len: u32, flags: u16, next: u16) {
        self.put(to, &at.to_le_bytes());
        self.put(to + 8, &len.to_le_bytes());
        self.store(to + 12, flags);
        self.store(to + 14, next);
    }

    /// Make a chain available, and kick if the device wants that.
    fn offer(&mut self, index: usize, head: u16) {
        let Queue { at, size, available, .. } = self.queues[index];
        self.store(at + AVAILABLE + 4 + 2 * u64::from(available % size), head);
        let new = available.wrapping_add(1);
        self.store(at + AVAILABLE + 2, new);
        self.queues[index].available = new;
        let wanted = match self.event_idx {
            true => self.load(at + USED + 4 + 8 * u64::from(size)) == available,
            false => self.load(at + USED) & 1 == 0,
        };
        if wanted {
            self.queues[index].kick.write(1).expect("a kick");
        }
    }

    /// Look at the queues that are called. True if something was there.
    pub fn hear(&mut self, disk: &mut Disk, notes: &mut Notes) -> Result<bool, String> {
        let mut heard = false;
        let queues = if self.is_cut { 0 } else { self.queues.len() };
        for index in 0..queues {
            if self.queues[index].call.read().is_err() {
                continue;
            }
            heard = true;
            loop {
                self.take_used(index, disk, notes)?;
                let Queue { at, size, used, .. } = self.queues[index];
                if self.event_idx {
                    self.store(at + AVAILABLE + 4 + 2 * u64::from(size), used);
                }
                if self.load(at + USED + 2) == used {
                    break;
                }
            }
        }
        Ok(heard)
    }

    fn take_used(
        &mut self,
        index: usize,
        disk: &mut Disk,
        notes: &mut Notes,
    ) -> Result<(), String> {
        let Queue { at, size, .. } = self.queues[index];
        while self.queues[index].used != self.load(at + USED + 2) {
            let used = self.queues[index].used;
            self.queues[index].used = used.wrapping_add(1);
            let head = self.load(at + USED + 4 + 8 * u64::from(used % size));
            let slot = usize::from(head / CHAIN);
            let request = self.queues[index].requests.get_mut(slot).and_then(Option::take);
            let request = request.ok_or(format!(
                "queue {index}: descriptor {head} is used and was not available, or is used twice"
            ))?;
            let room = at + REQUESTS + slot as u64 * REQUEST_ROOM;
            let status = self.get(room + 0x300, 1)[0];
            self.ended(&request, status, disk, notes).map_err(|e| format!("{request:x?}: {e}"))?;
        }
        Ok(())
    }

    fn ended(
        &self,
        request: &Request,
        status: u8,
        disk: &mut Disk,
        notes: &mut Notes,
    ) -> Result<(), String> {
        let now = notes.tick();
        // Of a guest whose driver cannot flush every write is durable.
        let flushes = self.features & bit(blk::VIRTIO_BLK_F_FLUSH) != 0;
        let durable = !flushes || request.through == Some(self.cache_set);
        // One that was written back when it began may be written through when it is carried out.
        let syncs = request.kind != blk::VIRTIO_BLK_T_IN;
        let ok = match status {
            0 => true,
            1 if disk.may_fail(syncs) => false,
            other => return Err(format!("status {other}")),
        };
        disk.end(&request.write(), request.id, now, ok, durable);
        match request.kind {
            blk::VIRTIO_BLK_T_FLUSH if ok => disk.flushed(request.begun)?,
            blk::VIRTIO_BLK_T_FLUSH => disk.flush_failed(request.begun, now),
            blk::VIRTIO_BLK_T_IN if ok => {
                let data: Vec<u8> = request
                    .pieces
                    .iter()
                    .flat_map(|&(at, len)| self.get(at, len as usize))
                    .collect();
                disk.check(request.sectors.start, &data, request.begun)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Where the data of a long request lies: in one piece, or in two that are not neighbours.
fn long_pieces(at: u64, random: &mut Random) -> Vec<(u64, u32)> {
    let bytes = |sectors: u64| sectors as u32 * SECTOR_BYTES as u32;
    let all = LONG_SECTORS.start + random.below(LONG_SECTORS.end - LONG_SECTORS.start);
    let first = if random.once_in(2) { all } else { 1 + random.below(all - 1) };
    let begin = at + random.one_of(&[0, 512]);
    let second = begin + u64::from(bytes(first)) + 0x1000;
    let pieces = [(begin, bytes(first)), (second, bytes(all - first))];
    pieces.into_iter().filter(|&(_, len)| len > 0).collect()
}

impl Request {
    fn write(&self) -> Write {
        let sectors = self.sectors.clone();
        match self.kind {
            blk::VIRTIO_BLK_T_OUT => Write { sectors, stamp: self.id, certain: true },
            blk::VIRTIO_BLK_T_WRITE_ZEROES => Write { sectors, stamp: 0, certain: true },
            // Advice, which need not be taken.
            blk::VIRTIO_BLK_T_DISCARD => Write { sectors, stamp: 0, certain: false },
            _ => Write { sectors: 0..0, stamp: 0, certain: false },
        }
    }
}
