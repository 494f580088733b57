//! A VMM that turns what it shares with the daemon against it, and one whose
//! last daemon was killed at a bad moment.

use super::driver::Driver;
use super::raw::{self, AVAILABLE, Guest, USED, Vmm};
use super::server::{Server, Shape};
use crate::common::PATIENCE;
use seekway_hostd::reactor::Message;
use seekway_stack::stack::limit::DiskLimits;
use std::os::fd::AsRawFd;
use std::time::Instant;
use vmm_sys_util::eventfd::EventFd;

const MIB: u64 = 1 << 20;
const EVENT_IDX: u64 = 1 << 29;

/// A call eventfd whose counter is full blocks whoever writes to it.
#[test]
fn a_full_call_eventfd_stops_nobody() {
    let server = Server::start(MIB, 1);
    let other = server.also("other", Shape { bytes: MIB, queues: 1, read_only: false });
    let mut guest = Guest::new(64);
    guest.call = EventFd::new(libc::EFD_CLOEXEC).unwrap();
    let _vmm = Vmm::serve(&server.socket, &guest);
    raw::wait(&guest.call);
    guest.call.write(u64::MAX - 1).unwrap();
    let mut driver = Driver::connect(&other, 1, 128);
    for sector in 0..20 {
        guest.request(0, 0, sector);
        guest.kick.write(1).unwrap();
        let end = Instant::now() + PATIENCE;
        while guest.used().is_empty() {
            assert!(Instant::now() < end, "request {sector} is not used");
            std::thread::yield_now();
        }
        assert_eq!(driver.read(0, 512 * sector, 512).0, 0);
        // And the reactor listens to its control thread.
        assert_eq!(server.rig.status().disks.len(), 2);
    }
    // It was called all the same, as far as the counter goes.
    assert_eq!(guest.call.read().unwrap(), u64::MAX);
}

/// A VMM that cuts its guest's memory short would end the daemon by SIGBUS.
#[test]
fn memory_that_is_cut_short_ends_one_connection() {
    let server = Server::start(MIB, 1);
    let other = server.also("other", Shape { bytes: MIB, queues: 1, read_only: false });
    let mut driver = Driver::connect(&other, 1, 128);
    assert_eq!(driver.write(0, 0, &[7; 4096]), 0);
    // Nothing is left, or the descriptors, or all but the used ring and the requests.
    for left_bytes in [0, 0x1000, USED] {
        let mut guest = Guest::new(64);
        let vmm = Vmm::serve(&server.socket, &guest);
        guest.request(0, 0, 0);
        guest.cut_memory(left_bytes);
        guest.kick.write(1).unwrap();
        raw::wait(&guest.err);
        assert!(vmm.is_refused(), "{left_bytes} bytes are left");
        server.wait_idle();
        assert_eq!(driver.read(0, 0, 4096), (0, vec![7; 4096]));
    }
    // With its memory back the guest goes on.
    let mut guest = Guest::new(64);
    let _vmm = Vmm::serve(&server.socket, &guest);
    guest.request(0, 0, 0);
    assert_eq!((guest.carry_out(1).len(), guest.status(0)), (1, 0));
}

/// There are zeroes where the data was, which must not reach the disk.
#[test]
fn data_that_was_taken_away_is_not_written() {
    const HEADER: u64 = 0xa000;
    const DATA: u64 = 0x2_0007;
    let server = Server::start(MIB, 1);
    let mut guest = Guest::new(64);
    let vmm = Vmm::serve(&server.socket, &guest);
    guest.write(0, 0, &[7; 512]);
    assert_eq!((guest.carry_out(1).len(), guest.status(0)), (1, 0));
    guest.put(HEADER, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    guest.descriptor(0, HEADER, 16, 1, 1);
    guest.descriptor(1, DATA, 512, 1, 2);
    guest.descriptor(2, HEADER + 0x20, 1, 2, 0);
    guest.offer(0);
    guest.cut_memory(DATA & !0xfff);
    // Where the image is direct the daemon copies the data, and hangs up; else the kernel does.
    guest.carry_out(1);
    drop(vmm);
    server.wait_idle();
    assert!(server.image()[..512] == [7; 512]);
}

/// A VMM that makes long requests available as fast as it can would take memory without bound.
#[test]
fn requests_stay_in_the_ring_where_a_disk_has_enough() {
    const PIECES: u16 = 1000;
    const REQUESTS: u16 = 512;
    let server = Server::start(MIB, 1);
    let other = server.also("other", Shape { bytes: MIB, queues: 1, read_only: false });
    let slow = DiskLimits::parse("iops=1").unwrap();
    let disk = server.rig.status().disks.iter().find(|d| d.name == "disk").unwrap().id;
    let set = |limits| server.rig.handle.ask(|r| Message::SetLimits(disk, limits, r)).unwrap();
    set(slow).unwrap();
    let mut guest = Guest::new(REQUESTS);
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES | raw::INDIRECT, &guest);
    (0..REQUESTS).for_each(|head| guest.long_read(head, PIECES));
    vmm.start(&guest, 0, 0).unwrap();
    // As many as have 2^18 pieces; what is done makes room for others.
    let most = (1u32 << 18).div_ceil(u32::from(PIECES));
    let end = Instant::now() + PATIENCE;
    loop {
        let status = server.rig.status();
        let outstanding = status.disks.iter().find(|d| d.id == disk).unwrap().outstanding;
        assert!(outstanding <= most, "{outstanding} of at most {most}");
        if outstanding == most {
            break;
        }
        assert!(Instant::now() < end, "{outstanding} of {most}");
        std::thread::yield_now();
    }
    let mut driver = Driver::connect(&other, 1, 128);
    assert_eq!(driver.read(0, 0, 4096).0, 0);
    set(DiskLimits::default()).unwrap();
    assert_eq!(guest.wait_used(REQUESTS.into()).len(), usize::from(REQUESTS));
    assert_eq!(guest.status(0), 0);
}

/// The last daemon has published a request and was killed before it called the
/// guest, which waits and kicks no more.
#[test]
fn a_call_that_a_killed_daemon_owes_is_made() {
    let server = Server::start(MIB, 1);
    for features in [raw::FEATURES, raw::FEATURES | EVENT_IDX] {
        let mut guest = Guest::new(64);
        guest.request(0, 0, 0);
        // Used, published, and the guest asked for a call (used_event is 0).
        guest.put(USED + 4, &[0, 0, 0, 0, 1, 2, 0, 0]);
        guest.put(USED + 2, &1u16.to_le_bytes());
        assert_eq!(guest.get16(AVAILABLE + 4 + 2 * 64), 0);
        let vmm = Vmm::introduce(&server.socket, features, &guest);
        // The call eventfd comes before the kick's, as Cloud Hypervisor has it.
        vmm.start(&guest, 0, 1).unwrap();
        raw::wait(&guest.call);
        // And after it, as QEMU has it.
        let call = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).unwrap();
        vmm.vring_fd(raw::SET_VRING_CALL, 0, call.as_raw_fd()).unwrap();
        raw::wait(&call);
        drop(vmm);
        server.wait_idle();
    }
}

/// Write a sector: the status that the guest sees.
fn write(guest: &mut Guest) -> u8 {
    guest.write(0, 1, &[1; 512]);
    assert_eq!(guest.carry_out(1).len(), 1);
    guest.status(0)
}

/// A queue that nobody has used begins before another can show that the guest has run.
#[test]
fn a_write_cache_that_is_unknown_is_off_on_the_next_connection_too() {
    let server = Server::start(MIB, 1);
    let mut guest = Guest::new(64);
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    vmm.start(&guest, 0, 0).unwrap();
    write(&mut guest);
    drop(vmm);
    server.wait_idle();
    // The guest comes from elsewhere: its VMM has a new record.
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    let (record, file) = vmm.get_inflight(1, 64);
    vmm.set_inflight(&record, &file).unwrap();
    vmm.start(&guest, 0, guest.used).unwrap();
    assert_eq!(vmm.write_cache(), 0);
    drop(vmm);
    server.wait_idle();
    let unused = Guest::new(64);
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &unused);
    vmm.set_inflight(&record, &file).unwrap();
    vmm.start(&unused, 0, 0).unwrap();
    assert_eq!(vmm.write_cache(), 0);
}

/// On this image every durable write fails and others do not: it tells which
/// ones are.
#[test]
fn a_write_cache_that_was_switched_off_stays_off() {
    let shape = Shape { bytes: MIB, queues: 1, read_only: false };
    let server = Server::through_page_cache(shape, "eio:op=flush,count=1");
    let (durable, not) = (1, 0);
    let mut guest = Guest::new(64);
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    let (record, file) = vmm.get_inflight(1, 64);
    vmm.set_inflight(&record, &file).unwrap();
    vmm.start(&guest, 0, 0).unwrap();
    guest.request(0, 4, 0);
    assert_eq!((guest.carry_out(1).len(), guest.status(0)), (1, 1), "the flush fails");
    assert_eq!((vmm.write_cache(), write(&mut guest)), (1, not));
    vmm.set_write_cache(0).unwrap();
    assert_eq!((vmm.write_cache(), write(&mut guest)), (0, durable));
    drop(vmm);

    // Another daemon, as far as the VMM can tell: it brings its record.
    server.wait_idle();
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    vmm.set_inflight(&record, &file).unwrap();
    vmm.start(&guest, 0, guest.used).unwrap();
    assert_eq!((vmm.write_cache(), write(&mut guest)), (0, durable));
    vmm.set_write_cache(1).unwrap();
    assert_eq!(write(&mut guest), not);
    drop(vmm);
    server.wait_idle();
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    vmm.set_inflight(&record, &file).unwrap();
    vmm.start(&guest, 0, guest.used).unwrap();
    assert_eq!((vmm.write_cache(), write(&mut guest)), (1, not));
    drop(vmm);

    // Without one, or with a new one, nobody knows what the guest wants.
    for with_record in [false, true] {
        server.wait_idle();
        let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
        if with_record {
            let (record, file) = vmm.get_inflight(1, 64);
            vmm.set_inflight(&record, &file).unwrap();
        }
        vmm.start(&guest, 0, guest.used).unwrap();
        assert_eq!((vmm.write_cache(), write(&mut guest)), (0, durable), "{with_record}");
        // Until it says so.
        vmm.set_write_cache(1).unwrap();
        assert_eq!((vmm.write_cache(), write(&mut guest)), (1, not), "{with_record}");
    }

    // A guest that begins has a write cache, as the configuration says.
    server.wait_idle();
    let mut guest = Guest::new(64);
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    vmm.start(&guest, 0, 0).unwrap();
    assert_eq!((vmm.write_cache(), write(&mut guest)), (1, not));
}
