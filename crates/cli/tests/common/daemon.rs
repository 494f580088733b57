//! A daemon that a test runs, as a user would.
#![allow(dead_code)] // each test file uses its part

pub use super::common::PATIENCE;
use super::common::{Folder, Ran, command, json, seekway};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An ordinary user, for a test that root runs.
const NOBODY: u32 = 65534;

/// Let `command` run as an ordinary user whose folder this is.
pub fn as_user(mut command: Command, folder: &Folder) -> Command {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::chown(folder.path("."), Some(NOBODY), Some(NOBODY)).expect("root may");
        command.uid(NOBODY).gid(NOBODY);
    }
    command.env("XDG_RUNTIME_DIR", folder.path("."));
    command
}

/// A daemon of ours; ends with the test.
pub struct Served {
    pub child: Child,
    pub control: String,
}

impl Served {
    /// Start it with two small images and wait until it says that it is ready.
    pub fn start(folder: &Folder, more: &[&str]) -> Served {
        let (web, db) = (image(folder, "web.img"), image(folder, "db.img"));
        let (web, db) = (format!("web={web}"), format!("db={db},weight=4"));
        let listen = folder.arg("run");
        let disks = ["serve", "--disk", &web, "--disk", &db, "--listen", &listen];
        Served::with(&[&disks, more].concat(), folder.arg("run/control.sock"))
    }

    pub fn with(args: &[&str], control: String) -> Served {
        Served::run(command(args), control)
    }

    /// Run the command that starts it, and wait until it says that it is ready.
    pub fn run(mut command: Command, control: String) -> Served {
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut served = Served { child, control };
        if !out.lines().map_while(Result::ok).any(|line| line == "ready") {
            panic!("it ended with {:?} before it was ready", served.wait());
        }
        served
    }

    pub fn ctl(&self, args: &[&str]) -> Ran {
        seekway(&[&["ctl", "--socket", &self.control], args].concat())
    }

    pub fn status(&self) -> Value {
        json(&self.ctl(&["status", "--format", "json"]).ok())
    }

    /// The names of all disks.
    pub fn disks(&self) -> Vec<String> {
        let status = self.status();
        let disks = status["devices"].as_array().expect("a list").iter();
        let disks = disks.flat_map(|d| d["disks"].as_array().expect("a list").iter());
        disks.map(|d| d["name"].as_str().expect("a name").to_string()).collect()
    }

    pub fn signal(&self, signal: i32) {
        seekway_testing::signal(&self.child, signal);
    }

    /// End it in good order: its exit status.
    pub fn end(mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    pub fn wait(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("ours") {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image of 16 MiB, sparse.
pub fn image(folder: &Folder, name: &str) -> String {
    let file = std::fs::File::create(folder.path(name)).expect("room");
    file.set_len(16 << 20).expect("room");
    folder.arg(name)
}
