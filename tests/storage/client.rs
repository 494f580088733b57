//! A vhost-user-blk client with the order of messages of Cloud Hypervisor
//! (`virtio-devices/src/vhost_user/vu_common_ctrl.rs`, `setup_vhost_user` and
//! `reinitialize_vhost_user`): all ring sizes, the inflight record, then each queue's
//! addresses, base (the driver's available index), call and kick, and at last all are enabled.
//! It keeps the inflight record, and connects again.
//!
//! The driver looks at a used ring only when it is called, and rings only when the device asks
//! for it: a lost call or a lost kick is a hang.

use crate::raw::{self, Guest, USER, Vmm};
use seekway_testing::disk::{Model, SECTOR_BYTES, sectors_of};
use seekway_workload::rng::Rng;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// Without any call for this long, the guest hangs.
const HANG: Duration = Duration::from_secs(600);

const EVENT_INDEX: u64 = 1 << 29;
/// MQ, DISCARD, WRITE_ZEROES.
const BLOCK_FEATURES: u64 = 1 << 12 | 1 << 13 | 1 << 14;

/// Entries of a queue: four descriptors for each slot.
const SIZE: u16 = 64;
/// Requests that a queue has in flight at most.
pub const SLOTS: usize = 16;
const SECTORS_MAX: u64 = 8;
/// Rings of queue q, from q times this.
const RING_BYTES: u64 = 0x2000;
const AVAILABLE: u64 = 0x800;
const USED: u64 = 0x1000;
/// Headers of all slots, 0x100 bytes each: header, status at 0x20, a range at 0x40.
const HEADERS: u64 = 0x1_0000;
/// Data of all slots, 0x1000 bytes each.
const DATA: u64 = 0x2_0000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

/// Observer of the client. It is told before or after the fact is true for the device: of a
/// submission before the device can see it, of an answer after it is taken.
pub trait Watch {
    fn submitted(&mut self, request: &Request);
    fn answered(&mut self, request: &Request);
    /// The device has failed it.
    fn failed(&mut self, _: &Request) {}
}

impl Watch for () {
    fn submitted(&mut self, _: &Request) {}
    fn answered(&mut self, _: &Request) {}
}

#[derive(Clone, Debug)]
pub struct Request {
    /// Each once, above 0.
    pub number: u64,
    pub kind: Kind,
    pub sectors: Range<usize>,
    since: u64,
}

struct Queue {
    kick: EventFd,
    call: EventFd,
    available: u16,
    used: u16,
    slots: Vec<Option<Request>>,
}

pub struct Client {
    guest: Guest,
    queues: Vec<Queue>,
    event_index: bool,
    depth: usize,
    inflight: Option<(Vec<u8>, File)>,
    vmm: Option<Vmm>,
    rng: Rng,
    number: u64,
    /// Counts requests and answers.
    time: u64,
    pub model: Model,
    /// Requests that were answered.
    pub answers: u64,
    /// Failures are results of [`Client::one`] and reported to the observer, and are no errors.
    pub may_fail: bool,
    last_status: u8,
}

impl Client {
    /// A guest whose disk has `sectors` sectors, not yet connected.
    pub fn new(seed: u64, queues: usize, event_index: bool, sectors: usize) -> Client {
        let mut rng = Rng::new(seed);
        let event = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).unwrap();
        let slots = vec![None; SLOTS];
        let queue =
            |_| Queue { kick: event(), call: event(), available: 0, used: 0, slots: slots.clone() };
        Client {
            guest: Guest::new(SIZE),
            queues: (0..queues).map(queue).collect(),
            event_index,
            depth: 1 + rng.below(SLOTS as u64) as usize,
            inflight: None,
            vmm: None,
            rng,
            number: 0,
            time: 0,
            model: Model::new(sectors),
            answers: 0,
            may_fail: false,
            last_status: 0,
        }
    }

    /// Set everything up. Ends after `steps` messages if that is fewer; says whether all are
    /// done.
    pub fn connect(&mut self, socket: &Path, steps: u64) -> io::Result<bool> {
        // The old connection ends first, as Cloud Hypervisor's has.
        self.vmm = None;
        let vmm = Vmm::connect(socket);
        let event_index = if self.event_index { EVENT_INDEX } else { 0 };
        vmm.negotiate(raw::FEATURES | BLOCK_FEATURES | event_index);
        vmm.set_memory(&self.guest)?;
        let vmm = self.vmm.insert(vmm);
        let mut left = steps;
        let mut next = || {
            let goes_on = left > 0;
            left = left.saturating_sub(1);
            goes_on
        };
        for queue in 0..self.queues.len() as u32 {
            vmm.vring(raw::SET_VRING_NUM, queue, SIZE.into())?;
        }
        if self.inflight.is_none() {
            self.inflight = Some(vmm.get_inflight(self.queues.len() as u16, SIZE));
        }
        let (shape, file) = self.inflight.as_ref().expect("just asked for");
        vmm.set_inflight(shape, file)?;
        for (n, queue) in self.queues.iter().enumerate() {
            if !next() {
                return Ok(false);
            }
            let rings = USER + RING_BYTES * n as u64;
            vmm.set_addresses(n as u32, [rings, rings + AVAILABLE, rings + USED])?;
            vmm.vring(raw::SET_VRING_BASE, n as u32, queue.available.into())?;
            vmm.vring_fd(raw::SET_VRING_CALL, n as u64, queue.call.as_raw_fd())?;
            vmm.vring_fd(raw::SET_VRING_KICK, n as u64, queue.kick.as_raw_fd())?;
        }
        for n in 0..self.queues.len() as u32 {
            if !next() {
                return Ok(false);
            }
            vmm.vring(raw::SET_VRING_ENABLE, n, 1)?;
        }
        Ok(true)
    }

    /// Switch the disk's write cache.
    pub fn set_write_cache(&self, on: bool) {
        let vmm = self.vmm.as_ref().expect("connected");
        vmm.set_write_cache(on.into()).unwrap();
    }

    /// A closed loop until `count` more requests are answered; then all slots are full again.
    pub fn load(&mut self, count: u64, watch: &mut impl Watch) -> Result<(), String> {
        let until = self.answers + count;
        self.submit(watch);
        while self.answers < until {
            self.reap(watch)?;
            self.submit(watch);
        }
        Ok(())
    }

    /// The requests that are not answered yet.
    pub fn in_flight(&self) -> impl Iterator<Item = &Request> {
        self.queues.iter().flat_map(|q| &q.slots).flatten()
    }

    /// Until nothing is in flight.
    pub fn drain(&mut self, watch: &mut impl Watch) -> Result<(), String> {
        while self.in_flight().next().is_some() {
            self.reap(watch)?;
        }
        Ok(())
    }

    /// Sends one request with nothing else in flight, and returns its status.
    pub fn one(&mut self, kind: Kind, sectors: Range<usize>) -> u8 {
        let may_fail = std::mem::replace(&mut self.may_fail, true);
        self.put(0, 0, kind, sectors, &mut ());
        self.publish(0, 1);
        self.drain(&mut ()).unwrap();
        self.may_fail = may_fail;
        self.last_status
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Is this the whole disk, with nothing in flight?
    pub fn check(&self, image: &[u8]) -> Result<(), String> {
        assert_eq!(image.len(), self.model.len() * SECTOR_BYTES);
        self.model.check(0, image, u64::MAX)
    }

    /// Read all of the disk and check it; nothing is in flight.
    pub fn read_all(&mut self) -> Result<(), String> {
        for first in (0..self.model.len()).step_by(SECTORS_MAX as usize) {
            let queue = self.rng.below(self.queues.len() as u64) as usize;
            let sectors = first..(first + SECTORS_MAX as usize).min(self.model.len());
            self.put(queue, 0, Kind::Read, sectors, &mut ());
            self.publish(queue, 1);
            self.drain(&mut ())?;
        }
        Ok(())
    }

    /// Fill each queue up to the depth of this client.
    pub fn submit(&mut self, watch: &mut impl Watch) {
        for n in 0..self.queues.len() {
            let free: Vec<usize> =
                (0..self.depth).filter(|&s| self.queues[n].slots[s].is_none()).collect();
            for &slot in &free {
                let (kind, sectors) = self.choose();
                self.put(n, slot, kind, sectors, watch);
            }
            self.publish(n, free.len() as u16);
        }
    }

    fn choose(&mut self) -> (Kind, Range<usize>) {
        let kind = match self.rng.below(100) {
            0..45 => Kind::Write,
            45..78 => Kind::Read,
            78..88 => Kind::Flush,
            88..94 => Kind::Discard,
            _ => Kind::WriteZeroes,
        };
        let sectors = self.model.len() as u64;
        let count = 1 + self.rng.below(SECTORS_MAX);
        // Half of all requests hit the same few sectors.
        let room = if self.rng.percent(50) { sectors.min(64) } else { sectors };
        let first = self.rng.below(room - count + 1) as usize;
        (kind, first..first + count as usize)
    }

    /// Build a request in a slot, and put its head into the available ring.
    fn put(
        &mut self,
        queue: usize,
        slot: usize,
        kind: Kind,
        sectors: Range<usize>,
        watch: &mut impl Watch,
    ) {
        self.number += 1;
        let (number, since) = (self.number, self.tick());
        let request = Request { number, kind, sectors: sectors.clone(), since };
        watch.submitted(&request);
        let place = (queue * SLOTS + slot) as u64;
        let (header, data) = (HEADERS + 0x100 * place, DATA + 0x1000 * place);
        let (code, buffer) = match kind {
            Kind::Read => (0u32, Some((data, sectors.len() * SECTOR_BYTES, 2))),
            Kind::Write => (1, Some((data, sectors.len() * SECTOR_BYTES, 0))),
            Kind::Flush => (4, None),
            Kind::Discard => (11, Some((header + 0x40, 16, 0))),
            Kind::WriteZeroes => (13, Some((header + 0x40, 16, 0))),
        };
        let sector = if kind.has_range() || kind == Kind::Flush { 0 } else { sectors.start as u64 };
        let guest = &self.guest;
        guest.put(header, &[&code.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        guest.put(header + 0x20, &[0xff]);
        match kind {
            Kind::Write => {
                guest.put(data, &sectors_of(number, sectors.clone()));
                self.model.begin(sectors, number, number, since);
            }
            Kind::Discard | Kind::WriteZeroes => {
                let unmap = u32::from(kind == Kind::WriteZeroes && self.rng.percent(50));
                let start = (sectors.start as u64).to_le_bytes();
                let count = (sectors.len() as u32).to_le_bytes();
                guest.put(header + 0x40, &[&start[..], &count, &unmap.to_le_bytes()].concat());
                self.model.begin(sectors, number, 0, since);
            }
            Kind::Read | Kind::Flush => {}
        }
        self.chain(queue, slot, header, buffer);
        self.queues[queue].slots[slot] = Some(request);
    }

    /// The descriptors of a slot, and its head in the available ring.
    fn chain(&mut self, queue: usize, slot: usize, header: u64, data: Option<(u64, usize, u16)>) {
        let (rings, head) = (RING_BYTES * queue as u64, 4 * slot as u16);
        let guest = &self.guest;
        let put = |index: u16, address: u64, len: u32, flags: u16| {
            let words = [&address.to_le_bytes()[..], &len.to_le_bytes()].concat();
            let shorts = [flags.to_le_bytes(), (index + 1).to_le_bytes()].concat();
            guest.put(rings + 16 * u64::from(index), &[words, shorts].concat());
        };
        put(head, header, 16, 1);
        let mut last = head + 1;
        if let Some((address, len, writable)) = data {
            put(last, address, len as u32, 1 | writable);
            last += 1;
        }
        put(last, header + 0x20, 1, 2);
        let queue = &mut self.queues[queue];
        let entry = rings + AVAILABLE + 4 + 2 * u64::from(queue.available % SIZE);
        guest.put(entry, &head.to_le_bytes());
        queue.available = queue.available.wrapping_add(1);
    }

    /// Show the device the last `count` heads of a queue; ring if it asks for that.
    fn publish(&mut self, queue: usize, count: u16) {
        if count == 0 {
            return;
        }
        let (rings, queue) = (RING_BYTES * queue as u64, &self.queues[queue]);
        fence(Ordering::SeqCst);
        self.guest.put16(rings + AVAILABLE + 2, queue.available);
        fence(Ordering::SeqCst);
        let ring = if self.event_index {
            let event = self.guest.get16(rings + USED + 4 + 8 * u64::from(SIZE));
            queue.available.wrapping_sub(event).wrapping_sub(1) < count
        } else {
            self.guest.get16(rings + USED) & 1 == 0
        };
        if ring {
            queue.kick.write(1).unwrap();
        }
    }

    /// Waits for a call, and takes the used entries of the queues that were called for.
    fn reap(&mut self, watch: &mut impl Watch) -> Result<(), String> {
        let entry =
            |q: &Queue| libc::pollfd { fd: q.call.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polled: Vec<libc::pollfd> = self.queues.iter().map(entry).collect();
        let count = polled.len() as libc::nfds_t;
        // SAFETY: as many entries as are said to be there.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), count, HANG.as_millis() as i32) };
        if ready <= 0 {
            return Err(self.hang());
        }
        for (n, poll) in polled.iter().enumerate().filter(|(_, poll)| poll.revents != 0) {
            assert_eq!(poll.revents, libc::POLLIN, "queue {n}");
            self.queues[n].call.read().unwrap();
            self.take(n, watch)?;
        }
        Ok(())
    }

    /// As Linux's driver does when it is called: take, ask for the next call, look again.
    fn take(&mut self, queue: usize, watch: &mut impl Watch) -> Result<(), String> {
        let rings = RING_BYTES * queue as u64;
        loop {
            let index = self.guest.get16(rings + USED + 2);
            fence(Ordering::SeqCst);
            while self.queues[queue].used != index {
                let used = self.queues[queue].used;
                let entry = self.guest.get(rings + USED + 4 + 8 * u64::from(used % SIZE), 8);
                let head = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
                self.queues[queue].used = used.wrapping_add(1);
                self.answer(queue, head, watch)?;
            }
            if self.event_index {
                self.guest.put16(rings + AVAILABLE + 4 + 2 * u64::from(SIZE), index);
            }
            fence(Ordering::SeqCst);
            if self.guest.get16(rings + USED + 2) == index {
                return Ok(());
            }
        }
    }

    fn answer(&mut self, queue: usize, head: u32, watch: &mut impl Watch) -> Result<(), String> {
        let slot = head as usize / 4;
        let slots = &mut self.queues[queue].slots;
        let request = slots.get_mut(slot).filter(|_| head.is_multiple_of(4)).and_then(Option::take);
        let request =
            request.ok_or_else(|| format!("queue {queue}: head {head} is answered twice"))?;
        let place = (queue * SLOTS + slot) as u64;
        let status = self.guest.get(HEADERS + 0x100 * place + 0x20, 1)[0];
        self.last_status = status;
        if status != 0 && !self.may_fail {
            return Err(format!("queue {queue}: {request:?} has status {status}"));
        }
        self.answers += 1;
        if status != 0 {
            watch.failed(&request);
            if !matches!(request.kind, Kind::Read | Kind::Flush) {
                // Some of it may be there.
                let now = self.tick();
                self.model.end(request.sectors, request.number, now, false, false);
            }
            return Ok(());
        }
        watch.answered(&request);
        match request.kind {
            Kind::Read => {
                let len = request.sectors.len() * SECTOR_BYTES;
                let bytes = self.guest.get(DATA + 0x1000 * place, len);
                let checked = self.model.check(request.sectors.start, &bytes, request.since);
                checked.map_err(|e| format!("queue {queue}: {request:?}: {e}"))?;
            }
            Kind::Flush => {}
            Kind::Write | Kind::Discard | Kind::WriteZeroes => {
                let now = self.tick();
                self.model.end(request.sectors.clone(), request.number, now, true, false);
                let in_flight = self.queues.iter().flat_map(|q| &q.slots).flatten();
                let oldest = in_flight.map(|r| r.since).min().unwrap_or(u64::MAX);
                self.model.forget(request.sectors, oldest);
            }
        }
        Ok(())
    }

    fn hang(&self) -> String {
        let mut text = format!("no queue is called for within {} s:", HANG.as_secs());
        for (n, queue) in self.queues.iter().enumerate() {
            let rings = RING_BYTES * n as u64;
            let used = self.guest.get16(rings + USED + 2);
            let in_flight = queue.slots.iter().flatten().count();
            text += &format!(
                " queue {n}: available {}, used {used}, of which the driver saw {}, {in_flight} in flight;",
                queue.available, queue.used
            );
        }
        text
    }
}

impl Kind {
    /// Is the range in the request's data?
    fn has_range(self) -> bool {
        matches!(self, Kind::Discard | Kind::WriteZeroes)
    }
}
