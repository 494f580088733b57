//! The daemon dies by SIGKILL, and another takes over. The daemon is a process: this test's own
//! program, started again with the name of a directory. `tests/kills` has requests in flight then.

use super::raw::{self, Guest, Vmm};
use super::server::{Server, Shape};
use crate::common::dir;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// Says to the test that it is the daemon.
const DIRECTORY: &str = "SEEKWAY_TEST_RESTART";

const BYTES: u64 = 1 << 20;
const SIZE: u16 = 64;

/// Not a test: the daemon of the test below.
#[test]
fn daemon_of_a_restart() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let shape = Shape { bytes: BYTES, queues: 1, read_only: false };
    let _server = Server::at(Path::new(&directory), shape);
    // The directory's pipe of the standard input ends when the test does.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

pub struct Daemon(Child);

impl Daemon {
    /// Start one and wait until it listens.
    pub fn with_stderr(directory: &Path, stderr: Stdio) -> Daemon {
        let _ = std::fs::remove_file(directory.join("disk.vhost"));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "vhost::restart::daemon_of_a_restart", "--nocapture"])
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

#[test]
fn a_killed_daemon_leaves_the_write_cache_off() {
    let directory = dir();
    let guest = Guest::new(SIZE);
    // Of what is in flight: its shape and its file, which the first daemon makes.
    let mut record = None;
    for round in 0..2 {
        let daemon = Daemon::with_stderr(directory.path(), Stdio::inherit());
        let vmm = Vmm::introduce(&directory.path().join("disk.vhost"), raw::FEATURES, &guest);
        let (shape, file) = record.get_or_insert_with(|| vmm.get_inflight(1, SIZE));
        vmm.set_inflight(shape, file).unwrap();
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
