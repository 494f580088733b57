//! A VMM that turns what it shares with the daemon against it, and one whose
//! last daemon was killed at a bad moment.

use crate::common::PATIENCE;
use crate::driver::Driver;
use crate::raw::{self, AVAILABLE, Guest, USED, Vmm};
use crate::server::{Server, Shape};
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
    let vmm = Vmm::serve(&server.socket, &guest);
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
        assert_eq!(server.rig().status().disks.len(), 2);
    }
    // It was called all the same, as far as the counter goes.
    assert_eq!(guest.call.read().unwrap(), u64::MAX);
    drop((driver, vmm));
    drop(other);
    server.stop();
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
        let vmm = Vmm::connect(&server.socket);
        vmm.negotiate(features);
        vmm.set_memory(&guest).unwrap();
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
    server.stop();
}
