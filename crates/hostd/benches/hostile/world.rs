//! The daemon that is attacked, and which processor each has.

use crate::common::PATIENCE;
use seekway_client::{Result, write_image};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Size of the image of each of the two disks, in bytes.
const IMAGE_BYTES: u64 = 256 << 20;

/// A processor by its number.
#[derive(Clone, Copy)]
pub struct Processor(usize);

impl Processor {
    /// Let this thread, and what it starts from now on, run on this processor only.
    pub fn pin(self) {
        // SAFETY: a plain set of bits, and calls that only read it.
        unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            libc::CPU_SET(self.0, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// Which processor the hostile load, the daemon and the reader run on.
pub struct Processors {
    pub attacker: Processor,
    daemon: Processor,
    reader: Processor,
    /// The reader goes before all others on its processor.
    is_first: bool,
}

impl Processors {
    /// The attacker apart from the others; the reader apart from the daemon if there are three.
    pub fn choose() -> Result<Processors> {
        // SAFETY: a plain set of bits that the call fills.
        let allowed: Vec<usize> = unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
            (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
        };
        let [attacker, daemon, ..] = allowed[..] else {
            return Err("two processors are needed: one for the load, one for the daemon".into());
        };
        let reader = allowed.get(2).copied().unwrap_or(daemon);
        let [attacker, daemon, reader] = [attacker, daemon, reader].map(Processor);
        reader.pin();
        // What others of its processor take, the daemon too, shall not count as the daemon's answer
        // being late. What this thread starts does not inherit it.
        let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
        let priority = libc::sched_param { sched_priority: 1 };
        // SAFETY: the call reads a plain struct.
        let is_first = unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } == 0;
        Ok(Processors { attacker, daemon, reader, is_first })
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (attacker, daemon, reader) = (self.attacker.0, self.daemon.0, self.reader.0);
        write!(f, "processors: hostile load {attacker}, daemon {daemon}, reader {reader}")?;
        if daemon == reader {
            write!(f, " (there are two: the reader shares the daemon's, alone too)")?;
        }
        match self.is_first {
            true => write!(f, "; the reader has real-time priority"),
            false => write!(
                f,
                "; the reader has no real-time priority (that needs root): it also waits for its processor"
            ),
        }
    }
}

/// A daemon with the disks `good` and `bad`; ends when dropped.
pub struct World {
    pub folder: tempfile::TempDir,
    pub metrics_port: u16,
    child: Child,
}

impl World {
    pub fn start(seekway: &Path, processors: &Processors) -> Result<World> {
        let text = |e: std::io::Error| e.to_string();
        let folder = tempfile::Builder::new().prefix("seekway-hostile.").tempdir_in("/dev/shm");
        let folder = folder.map_err(|e| format!("/dev/shm: {e}"))?;
        let path = |name: &str| folder.path().join(name);
        let mut command = Command::new(seekway);
        command.args(["serve", "--cache", "off", "--listen"]).arg(folder.path());
        for name in ["good", "bad"] {
            let image = path(&format!("{name}.img"));
            write_image(&image, IMAGE_BYTES)?;
            command.arg("--disk").arg(format!("{name}={}", image.display()));
        }
        let metrics_port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let metrics_port = metrics_port.map_err(text)?.port();
        command.args(["--metrics", &format!("127.0.0.1:{metrics_port}")]);
        let log = File::create(path("log")).map_err(text)?;
        command.stdout(Stdio::piped()).stderr(log);
        let daemon = processors.daemon;
        // SAFETY: the child makes one call that allocates nothing.
        unsafe {
            command.pre_exec(move || {
                daemon.pin();
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", seekway.display()))?;
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let is_ready = out.lines().map_while(|line| line.ok()).any(|line| line == "ready");
        let world = World { folder, metrics_port, child };
        match is_ready {
            true => Ok(world),
            false => Err(std::fs::read_to_string(path_of(&world, "log")).unwrap_or_default()),
        }
    }

    /// A socket of the daemon, such as `good.nbd`.
    pub fn socket(&self, name: &str) -> PathBuf {
        path_of(self, name)
    }

    /// The process id of the daemon.
    pub fn daemon(&self) -> u32 {
        self.child.id()
    }

    /// Does somebody who manages the daemon have an answer, once the load has ended?
    pub fn control_answers(&self) -> bool {
        let ask = || {
            let mut control = UnixStream::connect(self.socket("control.sock"))?;
            control.set_read_timeout(Some(PATIENCE))?;
            control.write_all(b"{\"command\":\"status\"}\n")?;
            let mut line = String::new();
            BufReader::new(control).read_line(&mut line)?;
            Ok::<_, std::io::Error>(line.starts_with("{\"result\""))
        };
        ask().unwrap_or(false)
    }
}

fn path_of(world: &World, name: &str) -> PathBuf {
    world.folder.path().join(name)
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
