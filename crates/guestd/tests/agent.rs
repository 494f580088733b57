//! Tests of the program itself, on a process of the test's: how it ends, and its behaviour with
//! broken files and pipes.

mod common;

use common::{Killed, PROGRAM, until};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// One test at a time: an agent that ends takes its tags from all threads that carry them, also
/// from those of another test.
static TAGS: Mutex<()> = Mutex::new(());

/// A process to be tagged, and a folder for files.
struct Scene {
    sleeper: Killed,
    dir: TempDir,
    _tags: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Scene {
        let tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
        let sleeper = Killed(Command::new("sleep").arg("3600").spawn().unwrap());
        Scene { sleeper, dir: tempfile::tempdir().unwrap(), _tags: tags }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `tag` for the sleeper only, with its words in the files `out` and `err`.
    fn tag(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["tag", "--no-connector", "--verbose"]);
        command.args(["--pid", &self.sleeper.pid().to_string()]);
        command.stdout(File::create(self.path("out")).unwrap());
        command.stderr(File::create(self.path("err")).unwrap());
        command
    }

    /// As `tag`, with the usual path of the state.
    fn tag_here(&self) -> Command {
        let mut command = self.tag();
        command.arg("--state").arg(self.path("state"));
        command
    }

    fn is_tagged(&self) -> bool {
        const WHO_PROCESS: libc::c_int = 1;
        // SAFETY: ioprio_get takes no pointers.
        let got = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, self.sleeper.pid()) };
        assert!(got >= 0, "the sleeper is there");
        got >> 13 != 0
    }
}

#[test]
fn a_status_that_cannot_be_written_is_one_warning() {
    let mut s = Scene::new();
    let mut tag = s.tag_here();
    let mut agent = Killed(tag.arg("--status").arg(s.path("missing/status")).spawn().unwrap());
    until("a tag", || s.is_tagged());
    s.sleeper.0.kill().unwrap();
    s.sleeper.0.wait().unwrap();
    until("a second event", || s.text("out").contains("has ended"));
    agent.ended_in_order();
    assert_eq!(s.text("err").matches("missing/status").count(), 1, "{}", s.text("err"));
}

#[test]
fn the_status_tells_wrong_usage_from_what_may_pass() {
    let s = Scene::new();
    let code = |command: &mut Command| command.status().unwrap().code();
    assert_eq!(code(s.tag().arg("--state").arg(s.path("missing/state"))), Some(1));
    for same in ["state", "state.lock", "state.partial", "../state"] {
        let beside = s.path("sub");
        fs::create_dir_all(&beside).unwrap();
        let status = if same.starts_with("..") { beside.join(same) } else { s.path(same) };
        assert_eq!(code(s.tag_here().arg("--status").arg(status)), Some(2), "{same}");
        assert!(s.text("err").contains("--status"), "{}", s.text("err"));
    }
    fs::write(s.path("state"), "{}").unwrap();
    assert_eq!(code(&mut s.tag_here()), Some(2));
    assert!(!s.is_tagged());
}

/// A pipe's writing end, with the pipe full, and its reading end.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let at = writer.as_raw_fd();
    let set = |flags: libc::c_int| {
        // SAFETY: fcntl takes no pointers here, and the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(at, libc::F_SETFL, flags) }, 0);
    };
    set(libc::O_NONBLOCK);
    while writer.write(&[b'x'; 4096]).is_ok() {}
    set(0);
    (reader, writer)
}

#[test]
fn nobody_has_to_read_what_it_says() {
    let s = Scene::new();
    let (_reader, writer) = full_pipe();
    let mut tag = s.tag_here();
    // Warnings too: the status cannot be written.
    tag.arg("--status").arg(s.path("missing/status"));
    tag.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut agent = Killed(tag.spawn().unwrap());
    until("a tag", || s.is_tagged());
    agent.ended_in_order();
    assert!(!s.is_tagged());
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let s = Scene::new();
    let closed = || io::pipe().unwrap().1;
    let mut command = Command::new(PROGRAM);
    command.arg("restore").arg("--state").arg(s.path("state"));
    let code = command.stdout(closed()).stderr(closed()).status().unwrap().code();
    assert_eq!(code, Some(0));
    fs::write(s.path("state"), "{}").unwrap();
    let code = command.stdout(closed()).stderr(closed()).status().unwrap().code();
    assert_eq!(code, Some(2));
}

#[test]
fn once_leaves_tags_unless_it_is_ended_before() {
    let s = Scene::new();
    let mut once = s.tag_here();
    let mut agent = Killed(once.args(["--once", "--interval", "60s"]).spawn().unwrap());
    until("a tag", || s.is_tagged());
    agent.signal(libc::SIGINT);
    assert!(agent.ended().success());
    assert!(!s.is_tagged());
    assert!(s.tag_here().arg("--once").status().unwrap().success());
    assert!(s.is_tagged());
    let mut restore = Command::new(PROGRAM);
    restore.arg("restore").arg("--state").arg(s.path("state"));
    assert!(restore.stdout(File::create(s.path("out")).unwrap()).status().unwrap().success());
    assert!(!s.is_tagged());
}

#[test]
fn restore_and_the_next_start_put_back_what_a_killed_agent_has_left() {
    let s = Scene::new();
    let killed = || {
        let mut agent = Killed(s.tag_here().spawn().unwrap());
        until("a tag", || s.is_tagged());
        agent.signal(libc::SIGKILL);
        agent.ended();
        assert!(s.is_tagged() && s.path("state").exists());
    };
    killed();
    let mut restore = Command::new(PROGRAM);
    assert!(
        restore
            .args(["restore", "tag", "--state"])
            .arg(s.path("state"))
            .status()
            .unwrap()
            .success()
    );
    assert!(!s.is_tagged() && !s.path("state").exists());
    killed();
    // The next agent has nothing to tag: it only restores.
    let mut other = Command::new(PROGRAM);
    other.args(["tag", "--no-connector", "--match", "nobody's name", "--state"]);
    let mut agent = Killed(other.arg(s.path("state")).spawn().unwrap());
    until("no tag", || !s.is_tagged());
    agent.ended_in_order();
}
