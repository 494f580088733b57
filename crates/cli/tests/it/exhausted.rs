//! `seekway serve` without descriptors, without memory, with a full disk below its journal, and with
//! a standard error that nobody reads.
//! Whoever is served goes on being served, whoever is not hears why, and all is well again
//! when there is room. What fails is not chosen: each attempt has room for one thing more than
//! the one before, until all of it succeeds.

use crate::common::{Folder, Tmpfs, command, json, seekway};
use crate::daemon::{PATIENCE, Served};
use crate::nbd::Client as Nbd;
use crate::process::{descriptors, limit, limit_new_descriptors, status_kib, threads, wait_until};
use seekway_client::{Client, Load, Span, Wait, write_image};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Reads of one look at whether a disk is served.
const LOAD: Load = Load { block_bytes: 4096, depth: 4, sequential: false, write: false };
const SPAN: Span = Span { warm_up: Duration::ZERO, counted: Duration::from_millis(1) };
/// Also what a client of NBD reads at once.
const IMAGE_BYTES: u64 = 8 << 20;
/// Most memory that a VMM of the disk `db` may hand over.
const GUEST_BYTES_MAX: usize = 64 << 20;
/// No attempt takes more descriptors than that.
const DESCRIPTORS_MAX: usize = 64;

/// A daemon with two disks, and who is served by it before anything is short.
struct World {
    folder: Folder,
    served: Served,
    vmm: Client,
    nbd: Nbd,
    control: UnixStream,
    /// Descriptors and threads when nobody else is there.
    quiet: (Vec<u64>, Vec<String>),
}

impl World {
    /// Everybody is at the disk `web`; `db` is for those who come later.
    fn start(more: &[&str]) -> World {
        let folder = Folder::new();
        let log = File::create(folder.path("log")).expect("a log");
        World::told_to(folder, more, log.into())
    }

    /// As `start`, with this standard error.
    fn told_to(folder: Folder, more: &[&str], log: Stdio) -> World {
        for name in ["web.img", "db.img"] {
            write_image(&folder.path(name), IMAGE_BYTES).expect("an image");
        }
        let (web, db) = (folder.arg("web.img"), folder.arg("db.img"));
        let (web, listen) = (format!("web={web}"), folder.arg("run"));
        let db = format!("db={db},guest_memory={}", GUEST_BYTES_MAX);
        let args = ["serve", "--disk", &web, "--disk", &db, "--listen", &listen];
        let mut command = command(&[&args, more].concat());
        command.stderr(log);
        let served = Served::run(command, folder.arg("run/control.sock"));
        let run = folder.path("run");
        let vmm = Client::connect(&run.join("web.vhost"), 1 << 20).expect("a VMM");
        let nbd = Nbd::connect(&run.join("web.nbd")).expect("a client");
        let control = UnixStream::connect(run.join("control.sock")).expect("a client");
        control.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let quiet = Default::default();
        let mut world = World { folder, served, vmm, nbd, control, quiet };
        world.check();
        let pid = world.pid();
        world.quiet = (descriptors(pid), threads(pid));
        world
    }

    fn pid(&self) -> u32 {
        self.served.child.id()
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path("run").join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path("log")).expect("the log")
    }

    /// Those who were there before are served.
    #[track_caller]
    fn check(&mut self) {
        // Some requests at least, and all that it makes are answered with the right data.
        self.vmm.run(LOAD, SPAN, Wait::Event, || ()).expect("the VMM is served");
        let data = self.nbd.read(4096, 8192).expect("the connection holds").expect("data");
        assert_eq!(data, fs::read(self.folder.path("web.img")).expect("the image")[4096..12288]);
        let status = self.ask("{\"command\":\"status\"}");
        assert!(status["result"]["devices"].is_array(), "{status}");
    }

    /// Asks on the connection to the control socket that is there.
    #[track_caller]
    fn ask(&mut self, line: &str) -> Value {
        self.control.write_all(format!("{line}\n").as_bytes()).expect("the connection holds");
        let mut answer = String::new();
        BufReader::new(&self.control).read_line(&mut answer).expect("an answer");
        assert!(!answer.is_empty(), "{line}: the daemon hangs up: {}", self.log());
        json(&answer)
    }

    /// Lets `attempt` run until it succeeds, each time with one more of what is short, which
    /// `allow` sets. In between, all is as it was before. Returns the errors.
    fn walk(
        &mut self,
        attempts_max: usize,
        allow: impl Fn(u32, Option<usize>),
        attempt: impl Fn(&Path) -> Result<(), String> + Clone + Send + 'static,
    ) -> Vec<String> {
        let pid = self.pid();
        let mut errors = Vec::new();
        for n in 1..=attempts_max {
            allow(pid, Some(n));
            let run = self.folder.path("run");
            let (told, result) = channel();
            let attempt = attempt.clone();
            std::thread::spawn(move || told.send(attempt(&run)));
            let result = match result.recv_timeout(PATIENCE) {
                Ok(result) => result,
                Err(RecvTimeoutError::Timeout) => panic!("attempt {n} hangs: {}", self.log()),
                Err(RecvTimeoutError::Disconnected) => panic!("attempt {n}: {}", self.log()),
            };
            self.check();
            allow(pid, None);
            self.wait_until_quiet();
            match result {
                Ok(()) => return errors,
                Err(error) => errors.push(error),
            }
        }
        panic!("attempt {attempts_max} does not succeed: {errors:?}\n{}", self.log());
    }

    /// All that others took is let go of.
    #[track_caller]
    fn wait_until_quiet(&self) {
        let pid = self.pid();
        let text = format!("as before: {:?}, {}", self.quiet, self.log());
        wait_until(&text, || (descriptors(pid), threads(pid)) == self.quiet);
    }

    fn end(mut self) {
        self.check();
        let World { served, vmm, nbd, control, .. } = self;
        drop((vmm, nbd, control));
        assert_eq!(served.end(), Some(0));
    }
}

fn as_vmm(run: &Path) -> Result<(), String> {
    let mut vmm = Client::connect(&run.join("db.vhost"), 1 << 20)?;
    vmm.run(LOAD, SPAN, Wait::Event, || ()).map(drop)
}

fn as_nbd(run: &Path) -> Result<(), String> {
    let text = |e: std::io::Error| e.to_string();
    let mut nbd = Nbd::connect(&run.join("db.nbd")).map_err(text)?;
    nbd.read(0, IMAGE_BYTES as u32)
        .map_err(text)?
        .map(drop)
        .map_err(|e| format!("error {e} of NBD"))
}

/// The kernel sends SIGXFSZ with the error.
#[test]
fn a_file_may_grow_no_further() {
    let mut world = World::start(&[]);
    let pid = world.pid();
    limit(pid, libc::RLIMIT_FSIZE, Some(IMAGE_BYTES / 2));
    let mut write = crate::nbd::request(crate::nbd::WRITE, 0, IMAGE_BYTES - 4096, 4096);
    write.extend([7; 4096]);
    world.nbd.send(&write);
    assert_ne!(world.nbd.reply().0, 0, "it cannot be written");
    limit(pid, libc::RLIMIT_FSIZE, None);
    world.check();
    world.nbd.send(&write);
    assert_eq!(world.nbd.reply().0, 0);
    // No name of a thread either.
    let answer = world.ask("{\"command\":\"attach\",\"name\":\"\\u0000\",\"path\":\"/x\"}");
    assert!(answer["error"].as_str().is_some_and(|e| e.contains("disk's name")), "{answer}");
    world.check();
}

/// Memory that the daemon alone touches would be charged to it.
#[test]
fn a_vmm_hands_over_no_more_memory_than_its_disk_allows() {
    let mut world = World::start(&[]);
    let with_memory = |bytes| {
        let mut vmm = Client::connect(&world.socket("db.vhost"), bytes)?;
        vmm.run(LOAD, SPAN, Wait::Event, || ()).map(drop)
    };
    with_memory(2 * GUEST_BYTES_MAX).expect_err("it is more");
    wait_until("it is said", || world.log().contains("guest_memory="));
    with_memory(GUEST_BYTES_MAX / 2).expect("it is less");
    world.check();
    world.wait_until_quiet();
    world.end();
}

#[test]
fn without_descriptors() {
    let mut world = World::start(&[]);
    let pid = world.pid();
    // Not even a connection can be taken: it waits, and is served when it can be.
    limit_new_descriptors(pid, 0);
    let early = UnixStream::connect(world.socket("db.nbd")).expect("it listens");
    wait_until("it is said", || world.log().contains("cannot accept"));
    world.check();
    let log = world.log();
    for part in ["db", "os error 24", "LimitNOFILE="] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    limit(pid, libc::RLIMIT_NOFILE, None);
    let mut early = Nbd::negotiate(early).expect("a client");
    assert!(early.read(0, 4096).expect("the connection holds").is_ok());
    drop(early);
    world.wait_until_quiet();

    let allow = |pid: u32, more: Option<usize>| match more {
        Some(more) => limit_new_descriptors(pid, more),
        None => limit(pid, libc::RLIMIT_NOFILE, None),
    };
    let lines = |world: &World| world.log().lines().count();
    for attempt in [as_vmm as fn(&Path) -> Result<(), String>, as_nbd] {
        let before = lines(&world);
        let errors = world.walk(DESCRIPTORS_MAX, allow, attempt);
        assert!(!errors.is_empty());
        // Each failure has its line, and no more than a few.
        let said = lines(&world) - before;
        let log = world.log();
        assert!((errors.len()..=3 * errors.len()).contains(&said), "{errors:?}: {log}");
    }
    assert_eq!(world.log().matches("cannot accept").count(), 1, "said once: {}", world.log());
    world.end();
}

#[test]
fn without_memory() {
    let mut world = World::start(&[]);
    let pid = world.pid();
    // The whole address space counts, not what is touched. There always is some for what takes a
    // few bytes: a program in Rust ends where there is none.
    let allow = |pid: u32, more: Option<usize>| {
        let used_kib = status_kib(pid, "VmSize");
        let bytes = more.map(|more| (used_kib + (2 + more as u64) * 1024) << 10);
        limit(pid, libc::RLIMIT_AS, bytes);
    };
    let as_large_vmm = |run: &Path| {
        let mut vmm = Client::connect(&run.join("db.vhost"), 8 << 20)?;
        vmm.run(LOAD, SPAN, Wait::Event, || ()).map(drop)
    };
    let errors = world.walk(32, allow, as_large_vmm);
    assert!(!errors.is_empty());
    let log = world.log();
    for part in ["db: ", "guest memory at", "os error 12", "MemoryMax="] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    // A client of NBD waits until there is memory for its buffers.
    allow(pid, Some(1));
    let run = world.folder.path("run");
    let client = std::thread::spawn(move || as_nbd(&run));
    world.check();
    allow(pid, None);
    assert_eq!(client.join().expect("no panic"), Ok(()), "{}", world.log());
    world.wait_until_quiet();
    assert!(!world.log().contains("panicked"), "{}", world.log());
    assert_eq!(pid, world.pid());
    world.end();
}

/// A disk on another device has a reactor of its own, with threads, a ring and a journal. There is
/// memory for the stack of the reactor's thread, and not for that of the journal's.
#[test]
fn a_device_for_which_there_is_no_memory() {
    attach_with_little_memory("off", 3 << 10, "the journal's thread");
}

#[test]
fn a_cache_for_which_there_is_no_memory() {
    attach_with_little_memory("8GiB", 200 << 10, "its tables take up to");
}

/// Attaches a disk on another device, each time with `step_kib` more memory. Steps are large: for
/// what takes a few bytes there has to be memory, or the process ends.
fn attach_with_little_memory(cache: &str, step_kib: u64, part: &str) {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        return seekway_testing::skip("the right to write to /dev/shm");
    };
    let image = other.path().join("more.img");
    write_image(&image, 1 << 20).expect("an image");
    let folder = Folder::new();
    let images = other.path().display().to_string();
    let journals = folder.arg("journals");
    let args = ["--journal", &journals, "--cache", cache, "--images", &images];
    let mut world = World::start(&args);
    let pid = world.pid();
    let path = image.display();
    let attach = format!("{{\"command\":\"attach\",\"name\":\"more\",\"path\":\"{path}\"}}");
    let mut errors = Vec::new();
    loop {
        let used_kib = status_kib(pid, "VmSize");
        let more_kib = step_kib * (1 + errors.len() as u64);
        limit(pid, libc::RLIMIT_AS, Some((used_kib + more_kib) << 10));
        let answer = world.ask(&attach);
        world.check();
        limit(pid, libc::RLIMIT_AS, None);
        match answer["error"].as_str() {
            Some(error) => errors.push(error.to_string()),
            None => break,
        }
        assert!(errors.len() < 1024, "{errors:?}");
    }
    assert!(!errors.is_empty());
    let short = |error: &str| ["os error 11", "os error 12"].iter().any(|e| error.contains(e));
    assert!(errors.iter().all(|error| short(error)), "{errors:?}");
    assert!(errors.iter().any(|error| error.contains(part)), "{errors:?}");
    assert!(!world.log().contains("panicked"), "{}", world.log());
    let mut nbd = Nbd::connect(&world.socket("more.nbd")).expect("a client");
    assert_eq!(nbd.read(0, 512).expect("a reply").expect("data").len(), 512);
    drop(nbd);
    world.end();
}

#[test]
fn a_journal_whose_disk_is_full() {
    let folder = Folder::new();
    let Some(_mounted) = Tmpfs::mount(folder.path("journals"), 256 << 10) else { return };
    let journals = folder.arg("journals");
    let mut world = World::start(&["--journal", &journals]);
    let ends = |world: &World| world.log().matches("the journal of device").count();
    while ends(&world) == 0 {
        world.check();
    }
    for part in ["ends here", "os error 28", "its guests are served on"] {
        assert!(world.log().contains(part), "no {part:?} in {}", world.log());
    }
    world.check();
    assert_eq!(ends(&world), 1, "said once: {}", world.log());
    world.end();
    // What was written replays.
    let cut = fs::read_dir(&journals).expect("the folder").flatten().next().expect("a journal");
    let ran = seekway(&["replay", &cut.path().display().to_string()]);
    // The disk may have been full just at a line's end.
    let is_cut = !fs::read(cut.path()).expect("the journal").ends_with(b"\n");
    assert_eq!(ran.ok().contains("the last line is cut off"), is_cut);
    // With room there is a journal again.
    fs::remove_file(cut.path()).expect("ours");
    let world = World::start(&["--journal", &journals]);
    let again = fs::read_dir(&journals).expect("the folder").flatten().next().expect("a journal");
    world.end();
    let ran = seekway(&["replay", &again.path().display().to_string()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

/// A pipe without room.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    // SAFETY: it takes no argument.
    let capacity = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    writer.write_all(&vec![b'.'; capacity as usize]).expect("room");
    (reader, writer)
}

#[test]
fn a_standard_error_that_nobody_reads_stops_nobody() {
    /// More than are said of one disk's clients in a minute.
    const LINES: usize = 40;
    const SAID: usize = 20;
    let (mut reader, writer) = full_pipe();
    let mut world = World::told_to(Folder::new(), &[], writer.into());
    // The thread that accepts connections has something to say: these are too many.
    let connect = |_| UnixStream::connect(world.socket("db.nbd")).expect("it listens");
    let idle: Vec<UnixStream> = (0..40).map(connect).collect();
    for mut client in &idle {
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // A greeting, or the end: it has been accepted.
        let _ = client.read(&mut [0; 18]).expect("one or the other");
    }
    let socket = world.socket("web.nbd");
    world.check();
    world.served.ctl(&["status"]).ok();
    drop(idle);
    // So has the thread of each of these, which break the protocol.
    for _ in 0..LINES {
        let mut wrong = UnixStream::connect(&socket).expect("it listens");
        wrong.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        wrong.read_exact(&mut [0; 18]).expect("a greeting");
        wrong.write_all(&[0xff; 4]).expect("it listens");
        let _ = wrong.read_to_end(&mut Vec::new()).expect("it hangs up");
    }
    world.check();
    world.served.ctl(&["status"]).ok();
    // What it has kept comes out before it ends.
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text).expect("text")
    });
    world.end();
    let text = read.join().expect("it reads to the end");
    let told = text.lines().filter(|line| line.contains("NBD negotiation")).count();
    assert!((SAID..=LINES).contains(&told), "{text}");
    assert!(text.contains("no more are accepted"), "{text}");
}
