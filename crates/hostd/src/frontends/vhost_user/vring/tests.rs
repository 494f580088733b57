//! Virtqueues against a driver in the same memory: order, notification,
//! restarts, and drivers that cheat.

use super::*;
use crate::frontends::vhost_user::dirty_log::DirtyLog;
use crate::frontends::vhost_user::inflight::Inflight;
use crate::frontends::vhost_user::memory::memory_file;
use crate::frontends::vhost_user::request::STATUS_IOERR;
use std::fs::File;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const SIZE: u16 = 8;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Header, data and status of the request at head h are at this + 0x1000 h.
const REQUESTS: u64 = 0x1_0000;
const BYTES: usize = 0x2_0000;

/// A driver: chain h is descriptors h and h + 1, so heads are even.
struct Driver {
    memory: Arc<GuestMemory>,
    available: u16,
    used: u16,
}

impl Driver {
    fn new() -> Driver {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), BYTES)]).unwrap();
        Driver { memory: Arc::new(memory.into()), available: 0, used: 0 }
    }

    fn store16(&self, at: u64, value: u16) {
        self.memory.write_obj(value.to_le(), GuestAddress(at)).unwrap();
    }

    fn load16(&self, at: u64) -> u16 {
        u16::from_le(self.memory.read_obj(GuestAddress(at)).unwrap())
    }

    fn parts_in(memory: &GuestMemoryMmap) -> Parts {
        let at = |address| memory.get_host_address(GuestAddress(address)).unwrap();
        Parts { descriptors: at(0), available: at(AVAILABLE), used: at(USED) }
    }

    fn vring(&self, event_idx: bool, record: Option<Record>) -> Vring {
        let setup = Setup {
            parts: Driver::parts_in(&self.memory),
            size: SIZE,
            event_idx,
            base: 0,
            memory: self.memory.clone(),
            record,
            serial: *b"a disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            logging: None,
        };
        // SAFETY: the parts are in that memory.
        unsafe { Vring::new(setup) }
    }

    /// Make a request of this type (flush: no data) available.
    fn offer(&mut self, head: u16, kind: u32) {
        let request = REQUESTS + 0x1000 * u64::from(head);
        let put = |index: u16, address: u64, len: u32, flags: u16, next: u16| {
            let at = GuestAddress(16 * u64::from(index));
            let raw = [address.to_le_bytes().to_vec(), len.to_le_bytes().to_vec()];
            let rest = [flags.to_le_bytes(), next.to_le_bytes()].concat();
            self.memory.write_slice(&[raw.concat(), rest].concat(), at).unwrap();
        };
        put(head, request, 16, 1, head + 1);
        put(head + 1, request + 0x100, 21, 2, 0);
        self.memory.write_obj(kind.to_le(), GuestAddress(request)).unwrap();
        self.memory.write_obj(0xffu8, GuestAddress(request + 0x114)).unwrap();
        self.offer_head(head);
    }

    fn offer_head(&mut self, head: u16) {
        self.store16(AVAILABLE + 4 + 2 * u64::from(self.available % SIZE), head);
        self.available = self.available.wrapping_add(1);
        self.store16(AVAILABLE + 2, self.available);
    }

    fn status(&self, head: u16) -> u8 {
        let at = REQUESTS + 0x1000 * u64::from(head) + 0x114;
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }

    /// Heads and lengths in the used ring since the last look.
    fn used(&mut self) -> Vec<(u32, u32)> {
        let index = self.load16(USED + 2);
        let mut all = Vec::new();
        while self.used != index {
            let at = USED + 4 + 8 * u64::from(self.used % SIZE);
            let load = |at| u32::from_le(self.memory.read_obj(GuestAddress(at)).unwrap());
            all.push((load(at), load(at + 4)));
            self.used = self.used.wrapping_add(1);
        }
        all
    }
}

const READ: u32 = 0;
const FLUSH: u32 = 4;
const IDENTIFY: u32 = 8;
const UNKNOWN: u32 = 77;

/// Take all that is there: how many.
fn take_all(
    vring: &mut Vring,
    mut submit: impl FnMut(u16, &Request, &[iovec]) -> Taken,
) -> Result<usize, Broken> {
    let mut taken = 0;
    while vring.take(&mut submit)?.is_some() {
        taken += 1;
    }
    Ok(taken)
}

/// Take what is there and hand nothing back: the heads.
fn take(vring: &mut Vring) -> Result<Vec<u16>, Broken> {
    let mut heads = Vec::new();
    take_all(vring, |head, _, _| {
        heads.push(head);
        Taken::Submitted
    })?;
    Ok(heads)
}

#[test]
fn chains_are_used_in_any_order_and_shown_together() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    for head in [0, 4, 2] {
        driver.offer(head, FLUSH);
    }
    assert!(vring.has_work());
    assert_eq!(take(&mut vring).unwrap(), [0, 4, 2]);
    assert!(!vring.has_work());
    vring.done(2, STATUS_OK);
    vring.done(0, STATUS_IOERR);
    assert_eq!(driver.used(), []);
    assert!(vring.publish());
    assert_eq!(driver.used(), [(2, 21), (0, 21)]);
    assert_eq!([0, 2, 4].map(|h| driver.status(h)), [STATUS_IOERR, STATUS_OK, 0xff]);
    assert!(!vring.publish());
    // The heads are free again, and the rings turn over.
    for _ in 0..20 {
        driver.offer(0, FLUSH);
        assert_eq!(take(&mut vring).unwrap(), [0]);
        vring.done(0, STATUS_OK);
        vring.publish();
        assert_eq!(driver.used(), [(0, 21)]);
    }
    assert_eq!(vring.base(), 23);
}

#[test]
fn chains_are_taken_one_at_a_time_with_what_they_cost() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer(0, FLUSH);
    driver.offer(2, UNKNOWN);
    let mut next = || vring.take(|_, _, _| Taken::Submitted);
    assert_eq!(next(), Ok(Some(2)));
    assert_eq!(driver.load16(USED), 1, "no kicks while there may be more");
    assert_eq!((next(), next()), (Ok(Some(2)), Ok(None)));
    assert_eq!(driver.load16(USED), 0);
    // Whoever comes after a port that ends in the middle finds the kicks allowed.
    driver.offer(4, FLUSH);
    assert_eq!(vring.take(|_, _, _| Taken::Submitted), Ok(Some(2)));
    vring.leave();
    assert_eq!(driver.load16(USED), 0);
}

#[test]
fn what_needs_no_disk_is_answered_at_once() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer(0, IDENTIFY);
    driver.offer(2, UNKNOWN);
    driver.offer(4, FLUSH);
    let taken = take_all(&mut vring, |_, _, _| Taken::Refused(STATUS_IOERR)).unwrap();
    assert!(taken == 3 && vring.publish());
    assert_eq!(driver.used(), [(0, 21), (2, 21), (4, 21)]);
    assert_eq!([0, 2, 4].map(|h| driver.status(h)), [0, 2, 1]);
    let mut serial = [0; 20];
    driver.memory.read_slice(&mut serial, GuestAddress(REQUESTS + 0x100)).unwrap();
    assert_eq!(&serial[..8], b"a disk\0\0");
}

#[test]
fn kicks_are_asked_for_only_when_the_ring_is_empty() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer(0, FLUSH);
    // A chain that comes while the ring is looked at is taken without a kick.
    let (memory, mut heads) = (driver.memory.clone(), Vec::new());
    let taken = take_all(&mut vring, |head, _, _| {
        assert_eq!(driver.load16(USED), 1, "no kicks while the ring is looked at");
        if heads.is_empty() {
            driver.offer(2, FLUSH);
        }
        heads.push(head);
        Taken::Submitted
    });
    assert_eq!(taken, Ok(2));
    assert_eq!((heads, driver.load16(USED)), (vec![0, 2], 0));
    drop(memory);

    // With event indices: kick when the index passes this.
    let mut driver = Driver::new();
    let mut vring = driver.vring(true, None);
    let event = USED + 4 + 8 * u64::from(SIZE);
    driver.store16(event, 0x5555);
    take(&mut vring).unwrap();
    assert_eq!(driver.load16(event), 0);
    driver.offer(0, FLUSH);
    driver.offer(2, FLUSH);
    take(&mut vring).unwrap();
    assert_eq!(driver.load16(event), 2);
}

#[test]
fn the_guest_is_called_when_it_wants_to_be() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    let one = |driver: &mut Driver, vring: &mut Vring| {
        driver.offer(0, FLUSH);
        take(vring).unwrap();
        vring.done(0, STATUS_OK);
        vring.publish()
    };
    assert!(one(&mut driver, &mut vring));
    driver.store16(AVAILABLE, 1);
    assert!(!one(&mut driver, &mut vring));

    let mut driver = Driver::new();
    let mut vring = driver.vring(true, None);
    let event = AVAILABLE + 4 + 2 * u64::from(SIZE);
    // Call at the first, not at the next two, at the one after.
    driver.store16(event, 0);
    assert!(one(&mut driver, &mut vring));
    driver.store16(event, 3);
    assert!(!one(&mut driver, &mut vring));
    assert!(!one(&mut driver, &mut vring));
    assert!(one(&mut driver, &mut vring));
    assert!(!one(&mut driver, &mut vring));
}

#[test]
fn drivers_that_cheat_stop_their_queue() {
    let driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.store16(AVAILABLE + 2, SIZE + 1);
    let broken = BrokenRing::Index { index: SIZE + 1, seen: 0, size: SIZE };
    assert_eq!(take(&mut vring), Err(broken.into()));

    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer_head(SIZE);
    assert_eq!(take(&mut vring), Err(BrokenRing::Head(SIZE).into()));

    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer(2, FLUSH);
    driver.offer(0, FLUSH);
    driver.offer_head(2);
    assert_eq!(take(&mut vring), Err(Broken::Twice(2)));
    // What was taken before ends as it should.
    vring.done(0, STATUS_OK);
    vring.done(2, STATUS_OK);
    vring.publish();
    assert_eq!(driver.used(), [(0, 21), (2, 21)]);

    // A driver that fills the ring as fast as it is read does not keep the device busy.
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer(0, FLUSH);
    let refused = take_all(&mut vring, |_, _, _| {
        driver.offer_head(0);
        Taken::Refused(STATUS_IOERR)
    });
    assert_eq!(refused, Err(Broken::Twice(0)));
}

fn inflight() -> Inflight {
    let file = Inflight::create(1, SIZE).unwrap();
    Inflight::map(file, 0, Inflight::bytes(1, SIZE), 1, SIZE, &Arc::default()).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_restart_finishes_what_was_in_flight_once() {
    let mut driver = Driver::new();
    let inflight = inflight();
    let record = || inflight.queue(0, SIZE).unwrap();
    let mut vring = driver.vring(true, record());
    for head in [6, 0, 4] {
        driver.offer(head, FLUSH);
    }
    assert_eq!(take(&mut vring).unwrap(), [6, 0, 4]);
    vring.done(0, STATUS_OK);
    vring.publish();
    assert_eq!(driver.used(), [(0, 21)]);
    // One is done and never shown, one comes that nobody sees, and the daemon dies.
    vring.done(4, STATUS_OK);
    driver.offer(2, FLUSH);
    drop(vring);

    let mut vring = driver.vring(true, record());
    assert_eq!(take(&mut vring).unwrap(), [6, 4, 2]);
    for head in [2, 6, 4] {
        vring.done(head, STATUS_OK);
    }
    vring.publish();
    assert_eq!(driver.used(), [(2, 21), (6, 21), (4, 21)]);
    drop(vring);
    let mut vring = driver.vring(true, record());
    assert!(take(&mut vring).unwrap().is_empty());
    assert_eq!(vring.base(), 4);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_guest_that_reboots_starts_with_an_empty_record() {
    let mut driver = Driver::new();
    let inflight = inflight();
    let mut vring = driver.vring(true, inflight.queue(0, SIZE).unwrap());
    driver.offer(0, FLUSH);
    driver.offer(2, FLUSH);
    for head in take(&mut vring).unwrap() {
        vring.done(head, STATUS_OK);
    }
    vring.publish();
    drop(vring);
    // The rings are new; the record says that two were used.
    let mut driver = Driver::new();
    let mut vring = driver.vring(true, inflight.queue(0, SIZE).unwrap());
    assert_eq!(vring.base(), 0);
    driver.offer(4, FLUSH);
    assert_eq!(take(&mut vring).unwrap(), [4]);
}

#[test]
fn memory_is_kept_while_requests_use_it() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(false, None);
    driver.offer(0, FLUSH);
    driver.offer(2, FLUSH);
    take(&mut vring).unwrap();
    // Other memory with the same contents.
    let mut bytes = vec![0; BYTES];
    driver.memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    let old = std::mem::replace(&mut driver.memory, Driver::new().memory);
    driver.memory.write_slice(&bytes, GuestAddress(0)).unwrap();
    let weak = Arc::downgrade(&old);
    drop(old);
    // SAFETY: the parts are in that memory.
    unsafe { vring.relocate(Driver::parts_in(&driver.memory), driver.memory.clone()) };
    driver.offer(4, FLUSH);
    assert_eq!(take(&mut vring).unwrap(), [4]);
    vring.done(0, STATUS_OK);
    vring.done(4, STATUS_OK);
    assert!(weak.upgrade().is_some());
    vring.done(2, STATUS_OK);
    assert!(weak.upgrade().is_none());
    vring.publish();
    assert_eq!(driver.used(), [(0, 21), (4, 21), (2, 21)]);
    assert_eq!(driver.status(4), STATUS_OK);
}

/// Pages that a log names, which is cleared.
fn logged(file: &std::fs::File) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let mut bits = [0; 4];
    file.read_exact_at(&mut bits, 0).unwrap();
    file.write_all_at(&[0; 4], 0).unwrap();
    (0..32).filter(|page| u32::from_le_bytes(bits) >> page & 1 == 1).collect()
}

/// A log of 32 pages.
fn log() -> (File, Arc<DirtyLog>) {
    let file = memory_file(4);
    let log = DirtyLog::map(file.try_clone().unwrap(), 0, 4, &Arc::default()).unwrap();
    (file, Arc::new(log))
}

/// The data of a read may be new descriptors of its own chain.
#[test]
fn a_request_marks_no_more_than_it_may_write() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(true, None);
    let (file, log) = log();
    vring.set_logging(Some(Logging { log, used: None }));
    let page = |head: u64| (REQUESTS >> 12) + head;
    // 512 bytes of data and the status, and then the guest says that it is all of its memory.
    driver.offer(0, READ);
    let put = |at: u64, value: u32| driver.memory.write_obj(value, GuestAddress(at)).unwrap();
    put(16 + 8, 513);
    assert_eq!(take(&mut vring).unwrap(), [0]);
    put(16, 0);
    put(16 + 8, u32::MAX);
    vring.done(0, STATUS_OK);
    assert_eq!(logged(&file), [0, page(0)]);
    // One that is refused writes its status; the name of the disk is 20 bytes.
    driver.offer(2, UNKNOWN);
    driver.offer(4, IDENTIFY);
    let put = |at: u64, value: u32| driver.memory.write_obj(value, GuestAddress(at)).unwrap();
    for head in [2, 4] {
        put(16 * (head + 1) + 8, 0x5f00);
    }
    assert!(take(&mut vring).unwrap().is_empty());
    assert_eq!(logged(&file), [page(4), page(2 + 5), page(4 + 5)]);
}

/// Marking written memory takes its part of a turn's work.
#[test]
fn marking_costs_its_part_of_a_turn() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(true, None);
    let work = |vring: &mut Vring| vring.take(|_, _, _| Taken::Submitted).unwrap();
    driver.offer(0, READ);
    let put = |at: u64, value: u32| driver.memory.write_obj(value, GuestAddress(at)).unwrap();
    put(16, 0);
    put(16 + 8, BYTES as u32 - 511);
    assert_eq!(work(&mut vring), Some(2));
    vring.done(0, STATUS_OK);
    vring.publish();
    vring.set_logging(Some(Logging { log: log().1, used: None }));
    driver.offer_head(0);
    assert_eq!(work(&mut vring), Some(2 * 2 + (BYTES as u32 - 512) / WORD_BYTES as u32));
}

#[test]
fn what_the_device_writes_is_logged_while_that_is_wanted() {
    let mut driver = Driver::new();
    let mut vring = driver.vring(true, None);
    let (file, log) = log();
    let logging = Logging { log, used: Some(USED) };
    let request = |head: u64| (REQUESTS >> 12) + head;
    // Taken before the log is there, and done with it.
    driver.offer(0, FLUSH);
    assert_eq!(take(&mut vring).unwrap(), [0]);
    vring.set_logging(Some(logging.clone()));
    assert!(logged(&file).is_empty());
    driver.offer(2, IDENTIFY);
    assert!(take(&mut vring).unwrap().is_empty());
    assert_eq!(logged(&file), [USED >> 12, request(2)]);
    vring.done(0, STATUS_OK);
    assert_eq!(logged(&file), [request(0)]);
    vring.publish();
    assert_eq!(logged(&file), [USED >> 12]);
    vring.leave();
    assert_eq!(logged(&file), [USED >> 12]);

    vring.set_logging(Some(Logging { used: None, ..logging }));
    driver.offer(4, IDENTIFY);
    assert!(take(&mut vring).unwrap().is_empty());
    vring.publish();
    assert_eq!(logged(&file), [request(4)]);
    vring.set_logging(None);
    driver.offer(6, IDENTIFY);
    assert!(take(&mut vring).unwrap().is_empty());
    vring.publish();
    assert!(logged(&file).is_empty());
}
