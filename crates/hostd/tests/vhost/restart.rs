//! The daemon dies by SIGKILL with requests in flight, another takes over, and
//! each request is done once. The daemon is a process: this test's own program,
//! started again with the name of a directory.

use crate::common::{dir, pattern};
use crate::raw::{self, Guest, Vmm};
use crate::server::{Server, Shape};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// Says to the test that it is the daemon.
const DIRECTORY: &str = "SEEKWAY_TEST_RESTART";

const BYTES: u64 = 1 << 20;
const SIZE: u16 = 64;
/// Chains of three descriptors.
const CHAINS: u16 = SIZE / 3;

/// The shape of the record of what is in flight, and its file.
type Record = (Vec<u8>, File);

/// Not a test: the daemon of the test below.
#[test]
fn daemon_of_a_restart() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let shape = Shape { bytes: BYTES, queues: 1, read_only: false };
    let server = Server::at(Path::new(&directory), shape);
    // The directory's pipe of the standard input ends when the test does.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop();
}

pub struct Daemon(Child);

impl Daemon {
    /// Start one and wait until it listens.
    fn start(directory: &Path) -> Daemon {
        Daemon::with_stderr(directory, Stdio::inherit())
    }

    pub fn with_stderr(directory: &Path, stderr: Stdio) -> Daemon {
        let _ = std::fs::remove_file(directory.join("disk.vhost"));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "restart::daemon_of_a_restart", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let end = std::time::Instant::now() + crate::common::PATIENCE;
        while std::os::unix::net::UnixStream::connect(directory.join("disk.vhost")).is_err() {
            assert!(std::time::Instant::now() < end, "the daemon does not listen");
            std::thread::yield_now();
        }
        Daemon(child)
    }

    /// The next line on its piped standard error that begins so. Others can be before it: the
    /// connection that [`Daemon::with_stderr`] tries the socket with may be served after the VMM's,
    /// and is then refused as a second one.
    pub fn line(&mut self, begins: &'static str) -> String {
        let stderr = BufReader::new(self.0.stderr.take().expect("it is piped"));
        let (sender, found) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = stderr.lines().map_while(Result::ok);
            lines.find(|line| line.starts_with(begins)).map(|line| sender.send(line))
        });
        found.recv_timeout(crate::common::PATIENCE).expect("such a line in the log")
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A daemon, and a VMM with the record of what is in flight, which the first daemon makes.
fn begin(directory: &Path, guest: &Guest, record: &mut Option<Record>) -> (Daemon, Vmm) {
    let daemon = Daemon::start(directory);
    let vmm = Vmm::connect(&directory.join("disk.vhost"));
    vmm.negotiate(raw::FEATURES);
    vmm.set_memory(guest).unwrap();
    let (shape, file) = record.get_or_insert_with(|| vmm.get_inflight(1, SIZE));
    vmm.set_inflight(shape, file).unwrap();
    (daemon, vmm)
}

#[test]
fn a_killed_daemon_leaves_the_write_cache_off() {
    let directory = dir();
    let guest = Guest::new(SIZE);
    let mut record = None;
    for round in 0..2 {
        let (daemon, vmm) = begin(directory.path(), &guest, &mut record);
        // The index of the rings has come round: it does not tell that the guest ran.
        vmm.start(&guest, 0, 0).unwrap();
        if round == 0 {
            assert_eq!(vmm.write_cache(), 1);
            vmm.set_write_cache(0).unwrap();
        }
        assert_eq!(vmm.write_cache(), 0, "round {round}");
        daemon.kill();
    }
}

#[test]
fn a_killed_daemon_leaves_nothing_undone() {
    let directory = dir();
    let mut guest = Guest::new(SIZE);
    let mut record = None;
    let mut expected = vec![0; BYTES as usize];
    let mut left = 0;
    for round in 0..12u64 {
        let (daemon, vmm) = begin(directory.path(), &guest, &mut record);
        // QEMU says where the used ring is; what was in flight makes up the rest.
        vmm.start(&guest, 0, guest.used).unwrap();
        guest.kick.write(1).unwrap();
        assert_eq!(guest.wait_used(left).len(), left, "round {round}: what the last one left");
        for chain in 0..CHAINS {
            let sector = u64::from(chain) * 7 + round;
            let data: [u8; 512] = pattern(round * 100 + u64::from(chain), 512).try_into().unwrap();
            guest.write(3 * chain, sector, &data);
            let at = sector as usize * 512;
            expected[at..at + 512].copy_from_slice(&data);
        }
        guest.kick.write(1).unwrap();
        // Let some of them through, then kill.
        let done = guest.wait_used(round as usize % usize::from(CHAINS)).len();
        daemon.kill();
        left = usize::from(CHAINS) - done;
        left -= guest.used().len();
    }
    let (daemon, vmm) = begin(directory.path(), &guest, &mut record);
    vmm.start(&guest, 0, guest.used).unwrap();
    assert_eq!(guest.wait_used(left).len(), left);
    assert_eq!(vmm.stop(0).unwrap(), u32::from(guest.available));
    assert_eq!((0..CHAINS).map(|c| guest.status(3 * c)).max(), Some(0));
    assert!(std::fs::read(directory.path().join("disk.img")).unwrap() == expected);
    daemon.kill();
}
