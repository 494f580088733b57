//! `migrate` itself, on threads of the test's that read from a disk, while a real-time
//! thread on each of two CPUs takes it for 11 of each 22 ms, in turns: to the agent's
//! heartbeat, whose priority is lower, that is a host that takes vCPUs away. BPF is not asked:
//! it knows these threads from a host.
//!
//! Needs root, two CPUs and a disk that takes O_DIRECT; skips with a message elsewhere.

mod common;
#[path = "migrate/nobody_moved.rs"]
mod nobody_moved;

use common::{Killed, PROGRAM, until};
use std::alloc::{Layout, alloc};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time for which a CPU is taken, in each 22 ms.
const SLICE: Duration = Duration::from_millis(11);
/// Time after which the real-time threads stop by themselves, even if the test fails.
const TAKEN_AT_MOST: Duration = Duration::from_secs(700);
/// Of each read. A longer one beside others' I/O can outlast a slice, and such a task is not moved.
const READ_BYTES: usize = 64 << 10;
/// A reader that is ready and has no CPU does not wait for I/O. Beside other load it is ready most
/// of its time, and below the default threshold (half of a window) for as long as that lasts. There
/// the agent is over any budget, too, and moves may save nothing.
const POLICY: &str = "vmigrater:except=rest,threshold=0.01,budget=1";
const FILE_BYTES: usize = 16 << 20;

/// CPUs are there once for all tests.
static CPUS: Mutex<()> = Mutex::new(());

fn mask(tid: i32) -> Vec<usize> {
    // SAFETY: all zeroes is a valid set, which is as long as it is said to be.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let got = libc::sched_getaffinity(tid, size_of_val(&set), &raw mut set);
        assert_eq!(got, 0, "{tid} is there");
        (0..1024).filter(|n| libc::CPU_ISSET(*n, &set)).collect()
    }
}

fn taskset(tid: i32, cpus: &[usize]) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|cpu| libc::CPU_SET(*cpu, &mut set));
        assert_eq!(libc::sched_setaffinity(tid, size_of_val(&set), &raw const set), 0);
    }
}

fn own_tid() -> i32 {
    // SAFETY: gettid takes nothing.
    unsafe { libc::gettid() }
}

/// All its threads: SIGSTOP takes a while to reach each.
fn is_stopped(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path().join("stat")).all(|stat| {
        let stat = fs::read_to_string(stat).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}

/// Take a CPU for every other slice.
fn take(cpu: usize, first: Instant, ending: &AtomicBool) -> io::Result<()> {
    taskset(0, &[cpu]);
    let urgent = libc::sched_param { sched_priority: 50 };
    // SAFETY: the struct is read only.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const urgent) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut at = first;
    while !ending.load(SeqCst) && first.elapsed() < TAKEN_AT_MOST {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        while at.elapsed() < SLICE {
            std::hint::spin_loop();
        }
        at += 2 * SLICE;
    }
    Ok(())
}

/// A thread that reads, and starts processes in between on request.
struct Reader {
    tid: i32,
    starts: Sender<()>,
    started: Receiver<i32>,
    thread: Option<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
    children: Arc<Mutex<Vec<Killed>>>,
}

impl Reader {
    fn new(path: &PathBuf) -> Reader {
        let mut how = File::options();
        let file = how.read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let (starts, to_start) = channel();
        let (tell, started) = channel();
        let ending = Arc::new(AtomicBool::new(false));
        let children: Arc<Mutex<Vec<Killed>>> = Arc::default();
        let (ends, family) = (ending.clone(), children.clone());
        let thread = std::thread::spawn(move || {
            tell.send(own_tid()).unwrap();
            // SAFETY: the layout is not empty; the buffer lives as long as the program.
            let buffer = unsafe { alloc(Layout::from_size_align(READ_BYTES, 4096).unwrap()) };
            for n in (0..FILE_BYTES / READ_BYTES).cycle() {
                let at = (n * READ_BYTES) as libc::off_t;
                // SAFETY: the buffer is as long as it is said to be.
                let got = unsafe { libc::pread(file.as_raw_fd(), buffer.cast(), READ_BYTES, at) };
                assert_eq!(got, READ_BYTES as isize, "{}", io::Error::last_os_error());
                if to_start.try_recv().is_ok() {
                    let child = Killed(Command::new("sleep").arg("3600").spawn().unwrap());
                    tell.send(child.pid()).unwrap();
                    family.lock().unwrap().push(child);
                }
                if ends.load(SeqCst) {
                    return;
                }
            }
        });
        let tid = started.recv().unwrap();
        Reader { tid, starts, started, thread: Some(thread), ending, children }
    }

    /// Starts a process; returns its mask at the start.
    fn fork(&self) -> (i32, Vec<usize>) {
        self.starts.send(()).unwrap();
        let child = self.started.recv().unwrap();
        (child, mask(child))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
        self.children.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Two CPUs that are taken in turns, a reader, and a folder for files.
struct Scene {
    reader: Reader,
    data: PathBuf,
    all: Vec<usize>,
    ending: Arc<AtomicBool>,
    takers: Vec<JoinHandle<io::Result<()>>>,
    dir: TempDir,
    _cpus: MutexGuard<'static, ()>,
}

impl Scene {
    /// `None` where it cannot be played.
    fn new() -> Option<Scene> {
        let cpus = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
        let all = mask(0);
        // SAFETY: geteuid takes nothing.
        if unsafe { libc::geteuid() } != 0 || all.len() < 2 {
            seekway_testing::skip("root and a second CPU");
            return None;
        }
        // Before other load, with the threads and programs that this one starts.
        // SAFETY: setpriority takes plain numbers; 0 names the calling thread.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }, 0);
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let data = dir.path().join("data");
        fs::write(&data, vec![1; FILE_BYTES]).unwrap();
        let mut how = File::options();
        if let Err(e) = how.read(true).custom_flags(libc::O_DIRECT).open(&data) {
            seekway_testing::skip(format_args!("O_DIRECT for {}: {e}", data.display()));
            return None;
        }
        let (ending, first) = (Arc::new(AtomicBool::new(false)), Instant::now() + SLICE);
        let taker = |n: u32| {
            let (cpu, first, ending) = (all[n as usize], first + n * SLICE, ending.clone());
            std::thread::spawn(move || take(cpu, first, &ending))
        };
        let takers = (0..2).map(taker).collect();
        let reader = Reader::new(&data);
        taskset(reader.tid, &all[..2]);
        Some(Scene { reader, data, all: all[..2].to_vec(), ending, takers, dir, _cpus: cpus })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `migrate` for this process only.
    fn command(&self, policy: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["migrate", "--verbose", "--no-bpf"]);
        command.args(["--policy", policy]);
        command.args(["--pid", &std::process::id().to_string()]);
        command.arg("--state").arg(self.path("state")).arg("--status").arg(self.path("status"));
        command.stdout(File::create(self.path("out")).unwrap());
        command.stderr(File::create(self.path("err")).unwrap());
        command
    }

    fn migrate(&self) -> Killed {
        Killed(self.command(POLICY).spawn().unwrap())
    }

    fn is_confined(&self) -> bool {
        mask(self.reader.tid) != self.all
    }

    /// Checks that it was moved to and fro.
    fn is_moved(&self) {
        for cpu in &self.all {
            until("the reader is moved", || mask(self.reader.tid) == [*cpu]);
        }
    }

    fn status(&self) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["status", "--format", "json", "--status"]).arg(self.path("status"));
        command.output().unwrap()
    }

    fn status_json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.status().stdout).unwrap_or_default()
    }

    /// The status of one thread; null if there is none.
    fn task(&self, tid: i32) -> serde_json::Value {
        let status = self.status_json();
        let mut tasks = status["tasks"].as_array().into_iter().flatten();
        tasks.find(|task| task["tid"] == tid).cloned().unwrap_or_default()
    }

    fn restore(&self) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["restore", "migrate", "--state"]).arg(self.path("state"));
        command.output().unwrap()
    }

    /// An agent that was killed while the reader was confined.
    fn killed(&self) {
        let mut agent = self.migrate();
        self.is_moved();
        until("the reader is confined", || {
            agent.signal(libc::SIGSTOP);
            until("the agent stands still", || is_stopped(agent.pid()));
            let confined = self.is_confined();
            if !confined {
                agent.signal(libc::SIGCONT);
            }
            confined
        });
        agent.signal(libc::SIGKILL);
        agent.ended();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        for taker in self.takers.drain(..) {
            let _ = taker.join();
        }
    }
}

#[test]
fn a_reader_is_moved_and_given_back_at_the_end() {
    let Some(s) = Scene::new() else { return };
    // This thread is one of those that may be moved.
    let vcpus = mask(0).len();
    let mut agent = s.migrate();
    s.is_moved();
    // The status is written at intervals: recent changes come with the next.
    until("the status says so", || {
        s.status_json()["inert"] == false && s.task(s.reader.tid)["moves"].as_u64() >= Some(1)
    });
    let status = s.status_json();
    assert_eq!(status["vcpus"].as_array().unwrap().len(), vcpus);
    agent.ended_in_order();
    assert_eq!(mask(s.reader.tid), s.all);
    assert!(!s.path("state").exists() && !s.path("status").exists());
    assert!(s.text("out").contains("affinities put back"), "{}", s.text("out"));
    assert_eq!(s.text("err"), "");
}

#[test]
fn who_is_pinned_by_its_owner_stays_where_it_is() {
    let Some(s) = Scene::new() else { return };
    let pinned = Reader::new(&s.data);
    taskset(pinned.tid, &s.all[..1]);
    let mut agent = s.migrate();
    s.is_moved();
    until("the pinned one is seen", || s.task(pinned.tid)["moves"] == 0);
    s.is_moved();
    assert_eq!(mask(pinned.tid), s.all[..1]);
    agent.ended_in_order();
    assert_eq!(mask(pinned.tid), s.all[..1]);
    assert_eq!(mask(s.reader.tid), s.all);
}

#[test]
fn what_taskset_says_meanwhile_is_kept() {
    let Some(s) = Scene::new() else { return };
    let mut agent = s.migrate();
    s.is_moved();
    // The kernel has no way to change a mask only if nobody else has: the agent may have
    // been just about to. Then it is said once more.
    until("the agent takes it for the owner's", || {
        taskset(s.reader.tid, &s.all[1..]);
        let task = s.task(s.reader.tid);
        task["allowed"] == *s.all[1].to_string() && task["confined"] == false
    });
    agent.ended_in_order();
    assert_eq!(mask(s.reader.tid), s.all[1..]);
}

#[test]
fn what_a_moved_task_starts_is_free() {
    let Some(s) = Scene::new() else { return };
    let mut agent = s.migrate();
    s.is_moved();
    let mut confined = 0;
    while confined < 5 {
        let (child, born) = s.reader.fork();
        confined += usize::from(born != s.all);
        until("the child is free", || mask(child) == s.all);
    }
    agent.ended_in_order();
    for child in s.reader.children.lock().unwrap().iter() {
        assert_eq!(mask(child.pid()), s.all);
    }
}

#[test]
fn restore_frees_what_a_killed_agent_has_moved_and_what_that_has_started() {
    let Some(s) = Scene::new() else { return };
    let mut agent = s.migrate();
    s.is_moved();
    let mut child = None;
    until("a child that nobody follows is confined", || {
        agent.signal(libc::SIGSTOP);
        let (pid, born) = s.reader.fork();
        if born != s.all {
            child = Some(pid);
            return true;
        }
        agent.signal(libc::SIGCONT);
        false
    });
    agent.signal(libc::SIGKILL);
    agent.ended();
    let restored = s.restore();
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(said.contains("affinities put back: 1 tasks and 1 that"), "{said}");
    assert_eq!((mask(child.unwrap()), mask(s.reader.tid)), (s.all.clone(), s.all.clone()));
    // Another agent goes on where the first was killed.
    let mut agent = s.migrate();
    s.is_moved();
    agent.ended_in_order();
    assert_eq!(mask(s.reader.tid), s.all);
}

#[test]
fn restore_and_the_next_start_put_back_and_know_another_thread_of_the_same_number() {
    let Some(s) = Scene::new() else { return };
    s.killed();
    assert!(s.is_confined());
    let confined = mask(s.reader.tid);
    let state = fs::read(s.path("state")).unwrap();
    let text = String::from_utf8(state.clone()).unwrap();
    let start = text.lines().nth(1).unwrap().split(' ').nth(1).unwrap().to_string();
    // One that started later.
    let later: u64 = start.parse::<u64>().unwrap() + 1;
    let of_another = text.replacen(&format!(" {start} "), &format!(" {later} "), 1);
    fs::write(s.path("state"), of_another).unwrap();
    assert!(s.restore().status.success());
    assert_eq!(mask(s.reader.tid), confined);
    fs::write(s.path("state"), &state).unwrap();
    assert!(s.restore().status.success());
    assert_eq!(mask(s.reader.tid), s.all);
    assert!(!s.path("state").exists());
    // The next start.
    taskset(s.reader.tid, &confined);
    fs::write(s.path("state"), &state).unwrap();
    let mut agent = Killed(s.command("vanilla").spawn().unwrap());
    until("it is put back", || mask(s.reader.tid) == s.all);
    agent.ended_in_order();
    // A file that is no state is not read.
    fs::write(s.path("state"), "seekway-guest migrate 1 x\n1 2 3\n").unwrap();
    assert_eq!(s.restore().status.code(), Some(2));
}

#[test]
fn a_moved_task_keeps_its_tag() {
    let Some(s) = Scene::new() else { return };
    let mut tag = Command::new(PROGRAM);
    tag.args(["tag", "--no-connector", "--pid", &std::process::id().to_string()]);
    tag.arg("--state").arg(s.path("tags"));
    let mut tags = Killed(tag.spawn().unwrap());
    let priority = || {
        const WHO_PROCESS: libc::c_int = 1;
        // SAFETY: ioprio_get takes no pointers.
        unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, s.reader.tid) }
    };
    until("a tag", || priority() >> 13 != 0);
    let tagged = priority();
    let mut agent = s.migrate();
    s.is_moved();
    assert_eq!(priority(), tagged);
    agent.ended_in_order();
    assert_eq!(priority(), tagged);
    tags.ended_in_order();
}

#[test]
#[ignore = "prints figures"]
fn costs_of_the_agent() {
    let watched = Duration::from_secs(12);
    let costs = |status: &serde_json::Value| {
        let lately = status["cpu_percent_lately"].as_f64().unwrap();
        println!("inert: {}, moves: {}: {lately} % of a vCPU", status["inert"], status["moves"]);
        for vcpu in status["vcpus"].as_array().unwrap() {
            let (wakeups, seconds) = (&vcpu["wakeups"], &status["running_s"]);
            println!("  vCPU {}: in {seconds} s {wakeups}", vcpu["vcpu"]);
        }
    };
    let Some(s) = Scene::new() else { return };
    let mut agent = s.migrate();
    s.is_moved();
    std::thread::sleep(watched);
    costs(&s.status_json());
    s.ending.store(true, SeqCst);
    std::thread::sleep(watched);
    costs(&s.status_json());
    agent.ended_in_order();
}
