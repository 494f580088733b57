//! Requests of a VMM when its guest migrates or is reset: the log of written memory, RESET_DEVICE.

use super::raw::{self, Guest, Vmm};
use super::restart::Daemon;
use super::server::Server;
use crate::common::{dir, pattern};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

const READ: u32 = 0;
/// One bit for each page of the guest's memory.
const LOG_BYTES: u64 = raw::MEMORY_BYTES / 4096 / 8;

fn set_log(vmm: &Vmm, log: &File) -> std::io::Result<()> {
    let body = [LOG_BYTES, 0].map(u64::to_le_bytes).concat();
    vmm.send(raw::SET_LOG_BASE, 1, &body, &[log.as_raw_fd()])?;
    vmm.receive().map(|(answer, _)| assert_eq!(answer, body, "it is answered by itself"))
}

/// The pages that are logged; the log is cleared.
fn logged(log: &File) -> Vec<u64> {
    let mut bits = [0; LOG_BYTES as usize];
    log.read_exact_at(&mut bits, 0).unwrap();
    log.write_all_at(&[0; LOG_BYTES as usize], 0).unwrap();
    (0..8 * LOG_BYTES).filter(|page| bits[*page as usize / 8] >> (page % 8) & 1 == 1).collect()
}

fn log_file(bytes: u64) -> File {
    let flags = libc::MFD_CLOEXEC;
    // SAFETY: the name is a C string, and the descriptor is new.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"log".as_ptr(), flags)) };
    file.set_len(bytes).unwrap();
    file
}

/// Start to log as QEMU does, with the queue running.
fn begin(vmm: &Vmm, log: &File) {
    set_log(vmm, log).unwrap();
    vmm.set(raw::SET_FEATURES, &(raw::FEATURES | raw::LOG_ALL).to_le_bytes(), &[]).unwrap();
    let at = [raw::USER, raw::USER + raw::AVAILABLE, raw::USER + raw::USED];
    vmm.set_logged_addresses(0, at, Some(raw::USED)).unwrap();
}

fn read(guest: &mut Guest, head: u16) {
    guest.request(head, READ, 0);
    guest.carry_out(1);
    assert_eq!(guest.status(head), 0);
}

#[test]
fn a_running_queue_logs_what_it_writes_until_it_is_told_not_to() {
    let server = Server::start(1 << 20, 1);
    let mut guest = Guest::new(16);
    let vmm = Vmm::serve(&server.socket, &guest);
    read(&mut guest, 0);
    let log = log_file(LOG_BYTES);
    begin(&vmm, &log);
    assert!(logged(&log).is_empty());
    read(&mut guest, 3);
    let base = vmm.stop(0).unwrap();
    let request = Guest::data(3) / 4096;
    assert_eq!(logged(&log), [raw::USED / 4096, request]);

    vmm.set(raw::SET_FEATURES, &raw::FEATURES.to_le_bytes(), &[]).unwrap();
    vmm.start(&guest, 0, base as u16).unwrap();
    read(&mut guest, 6);
    vmm.stop(0).unwrap();
    assert!(logged(&log).is_empty());
}

/// A queue that is to be logged, and has no log yet.
fn without_log() -> (Server, Guest, Vmm) {
    let server = Server::start(1 << 20, 1);
    let guest = Guest::new(16);
    let vmm = serve_without_log(&server.socket, &guest);
    (server, guest, vmm)
}

fn serve_without_log(socket: &Path, guest: &Guest) -> Vmm {
    let vmm = Vmm::introduce(socket, raw::FEATURES | raw::LOG_ALL, guest);
    vmm.start(guest, 0, 0).unwrap();
    vmm
}

/// The daemon is another process, whose standard error is read.
#[test]
fn a_log_that_never_comes_is_missed_in_the_daemons_own_log() {
    let directory = dir();
    let mut daemon = Daemon::with_stderr(directory.path(), Stdio::piped());
    let _vmm = serve_without_log(&directory.path().join("disk.vhost"), &Guest::new(16));
    let line = daemon.line("seekway: disk: its queues do not start");
    assert!(line.contains("VHOST_USER_SET_LOG_BASE"), "{line}");
    daemon.kill();
}

#[test]
fn queues_that_are_to_be_logged_wait_for_their_log() {
    let (_server, mut guest, vmm) = without_log();
    guest.request(2, READ, 0);
    guest.kick.write(1).unwrap();
    let log = log_file(LOG_BYTES);
    set_log(&vmm, &log).unwrap();
    guest.wait_used(1);
    vmm.stop(0).unwrap();
    // The used ring is not logged before the VMM says where it is.
    assert_eq!(logged(&log), [Guest::data(2) / 4096]);
}

#[test]
fn queues_that_wait_for_a_log_begin_when_the_migration_is_called_off() {
    let (_server, mut guest, vmm) = without_log();
    vmm.set(raw::SET_FEATURES, &raw::FEATURES.to_le_bytes(), &[]).unwrap();
    read(&mut guest, 0);
}

#[test]
fn a_log_that_is_too_short_ends_the_connection_and_one_that_is_taken_away_harms_nobody() {
    let server = Server::start(1 << 20, 1);
    let mut guest = Guest::new(16);
    let vmm = Vmm::serve(&server.socket, &guest);
    assert!(set_log(&vmm, &log_file(LOG_BYTES - 1)).is_err());
    drop(vmm);
    let vmm = Vmm::serve(&server.socket, &guest);
    let log = log_file(LOG_BYTES);
    begin(&vmm, &log);
    log.set_len(0).unwrap();
    read(&mut guest, 0);
}

#[test]
fn a_device_that_is_reset_begins_anew() {
    let server = Server::start(1 << 20, 1);
    let mut guest = Guest::new(16);
    let vmm = Vmm::serve(&server.socket, &guest);
    guest.write(0, 1, &pattern(1, 512).try_into().unwrap());
    guest.carry_out(1);
    vmm.set_write_cache(0).unwrap();
    vmm.set(raw::RESET_DEVICE, &[], &[]).unwrap();
    assert_eq!(vmm.write_cache(), 1, "as it was before the guest set it");
    // The queue is not served: nothing is known of it any more.
    let mut guest = Guest::new(8);
    vmm.set(raw::SET_FEATURES, &raw::FEATURES.to_le_bytes(), &[]).unwrap();
    vmm.set_memory(&guest).unwrap();
    vmm.start(&guest, 0, 0).unwrap();
    guest.request(0, READ, 1);
    guest.carry_out(1);
    assert_eq!(guest.get(Guest::data(0), 512), pattern(1, 512));
}

#[test]
fn a_ring_that_has_gone_round_is_no_new_guests() {
    let server = Server::start(1 << 20, 1);
    let guest = Guest::new(16);
    let vmm = Vmm::serve(&server.socket, &guest);
    assert_eq!(vmm.write_cache(), 1, "it begins");
    drop(vmm);
    // After 65,536 requests the indices are 0 again; the last entry's length is not.
    guest.put(raw::USED + 4 + 8 * 15 + 4, &1u32.to_le_bytes());
    let vmm = Vmm::serve(&server.socket, &guest);
    assert_eq!(vmm.write_cache(), 0, "what the guest has set is not known");
}
