//! Servers: ours and the peers, started one at a time and ended by their id.

use crate::load::Sample;
use seekway_client::{Client, Load, Result, Span, Wait, listening, qemu_file, wait_until_unlocked};
use seekway_hostd::control::{self, Request};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server of ours without its cache: the device and the path to it are measured.
pub const NO_CACHE: [&str; 2] = ["--cache", "off"];

/// Time within which a server has to listen.
const START_WITHIN: Duration = Duration::from_secs(10);

/// A program that serves an image: ours, or one to compare it with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Program {
    /// `seekway serve` under a policy.
    Seekway {
        /// Value of `--policy`, such as `noop`.
        policy: String,
        /// More arguments, such as `--poll 0`.
        args: &'static [&'static str],
    },
    /// Our program as it was before a change.
    Before {
        /// Path of the earlier program, from `--before`.
        path: PathBuf,
        /// Value of `--policy`, the same as for the new program.
        policy: String,
    },
    /// `qemu-storage-daemon`, which serves by vhost-user-blk and by NBD.
    StorageDaemon,
    /// nbdkit with its file plugin.
    Nbdkit,
}

impl Program {
    /// For the column of a table.
    pub fn name(&self) -> String {
        match self {
            Program::Seekway { policy, args } => [&[policy.as_str()], *args].concat().join(" "),
            Program::Before { .. } => "before".to_owned(),
            Program::StorageDaemon => "qemu-storage-daemon".to_owned(),
            Program::Nbdkit => "nbdkit".to_owned(),
        }
    }

    /// The package of Debian that has it.
    fn package(&self) -> Option<&'static str> {
        match self {
            Program::Seekway { .. } | Program::Before { .. } => None,
            Program::StorageDaemon => Some("qemu-system-common"),
            Program::Nbdkit => Some("nbdkit"),
        }
    }
}

/// The protocol to serve by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// vhost-user-blk; the load comes from `seekway_client`.
    Vhost,
    /// NBD; the load comes from fio.
    Nbd,
}

impl Protocol {
    /// For a row's name, and the suffix of our sockets.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Vhost => "vhost",
            Protocol::Nbd => "nbd",
        }
    }
}

/// A running server, ended when dropped.
pub struct Server {
    child: Child,
    dir: tempfile::TempDir,
    socket: PathBuf,
    what: String,
}

impl Server {
    /// Start a server of one image, and wait until it listens. `seekway` is our
    /// own program.
    pub fn start(
        program: &Program,
        protocol: Protocol,
        image: &Path,
        seekway: &Path,
    ) -> Result<Server> {
        let dir = tempfile::Builder::new()
            .prefix("seekway-bench-host.")
            .tempdir()
            .map_err(|error| format!("a directory for sockets: {error}"))?;
        wait_until_unlocked(image)?;
        let disk = format!("x={}", image.display());
        let socket = dir.path().join(format!("x.{}", protocol.name()));
        let command = match program {
            Program::Seekway { policy, .. } | Program::Before { policy, .. } => {
                let mut command = Command::new(match program {
                    Program::Before { path, .. } => path,
                    _ => seekway,
                });
                command.args(["serve", "--disk", &disk, "--policy", policy, "--listen"]);
                command.arg(dir.path());
                // Earlier programs have no cache by default.
                if let Program::Seekway { args, .. } = program {
                    command.args(NO_CACHE).args(*args);
                }
                command
            }
            Program::StorageDaemon => storage_daemon(protocol, image, &socket),
            Program::Nbdkit => nbdkit(image, &socket),
        };
        Server::spawn(command, dir, socket, program)
    }

    /// Start our own server with many disks, named `d0` and so on, and `more` arguments.
    pub fn start_many(seekway: &Path, images: &[PathBuf], more: &[&str]) -> Result<Server> {
        let dir =
            tempfile::tempdir().map_err(|error| format!("a directory for sockets: {error}"))?;
        let mut command = Command::new(seekway);
        command.args(["serve", "--policy", "noop", "--listen"]);
        command.arg(dir.path()).args(more);
        for (n, image) in images.iter().enumerate() {
            wait_until_unlocked(image)?;
            command.arg("--disk");
            command.arg(format!("d{n}={}", image.display()));
        }
        let socket = dir.path().join(format!("d{}.nbd", images.len() - 1));
        let program = Program::Seekway { policy: "noop".to_owned(), args: &[] };
        Server::spawn(command, dir, socket, &program)
    }

    fn spawn(
        mut command: Command,
        dir: tempfile::TempDir,
        socket: PathBuf,
        program: &Program,
    ) -> Result<Server> {
        let what = format!("{command:?}");
        let log =
            File::create(dir.path().join("log")).map_err(|error| format!("a log: {error}"))?;
        let same = log.try_clone().map_err(|error| format!("a log: {error}"))?;
        command.stdin(Stdio::null()).stdout(log).stderr(same);
        // SAFETY: one async-signal-safe call between fork and exec: the server
        // does not outlive us, however we end.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let child = command.spawn().map_err(|error| match program.package() {
            Some(package) if error.kind() == std::io::ErrorKind::NotFound => {
                format!("{} is missing: apt-get install {package}", program.name())
            }
            _ => format!("{what}: {error}"),
        })?;
        let mut server = Server { child, dir, socket, what };
        server.wait_until_listening()?;
        Ok(server)
    }

    /// Path of the socket that serves the image; of several images, the last one's.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where all its sockets are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn wait_until_listening(&mut self) -> Result<()> {
        let until = Instant::now() + START_WITHIN;
        while !listening(&self.socket)? {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.complaint(&format!("ended: {status}")));
            }
            if Instant::now() > until {
                return Err(self.complaint("does not listen"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Load it by this client.
    pub fn load(&self, client: &mut Client, load: Load, span: Span, wait: Wait) -> Result<Sample> {
        let mut before = Duration::ZERO;
        let at_start = || before = self.cpu().unwrap_or_default();
        let (latencies, wall) = client.run(load, span, wait, at_start)?;
        let cpu = self.cpu()?.saturating_sub(before);
        Ok(Sample::new(&load, &latencies, wall, cpu))
    }

    /// Status of our own server, by its control socket.
    pub fn status(&self) -> Result<Value> {
        let asked = control::Client::connect(&self.dir().join("control.sock"))
            .and_then(|mut client| client.ask(&Request::Status {}));
        asked.map_err(|error| self.complaint(&error.to_string()))
    }

    /// An error text with the server's own last words.
    pub fn complaint(&self, what: &str) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let mut last: Vec<&str> = log.lines().rev().take(5).collect();
        last.reverse();
        format!("{}: {what}\n{}", self.what, last.join("\n"))
    }

    /// CPU time of all its threads up to now, to the system's tick.
    pub fn cpu(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path)
            .map_err(|error| self.complaint(&format!("{path}: {error}")))?;
        // After the name, which may hold anything: the state is field 3 of proc(5).
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |n: usize| fields.get(n - 3).and_then(|field| field.parse::<u64>().ok());
        let (Some(user), Some(system)) = (ticks(14), ticks(15)) else {
            return Err(format!("{path}: no times in {text:?}"));
        };
        // SAFETY: asks for a constant.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        Ok(Duration::from_secs_f64((user + system) as f64 / per_second))
    }

    /// Memory that it holds, bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| format!("{path}: no VmRSS"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Our own child, not waited for yet: the id is still its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn storage_daemon(protocol: Protocol, image: &Path, socket: &Path) -> Command {
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(qemu_file("f", image));
    let address = format!("addr.type=unix,addr.path={}", socket.display());
    match protocol {
        Protocol::Vhost => {
            command.arg("--export");
            command.arg(format!("vhost-user-blk,id=e,node-name=f,{address},writable=on"));
        }
        Protocol::Nbd => {
            command.args(["--nbd-server", &address, "--export"]);
            command.arg("nbd,id=e,node-name=f,name=x,writable=on");
        }
    }
    command
}

/// Reads through the page cache; `cache=none` asks the kernel not to keep what was read, because
/// the others keep nothing.
fn nbdkit(image: &Path, socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(socket);
    command.arg("file").arg(image).arg("cache=none");
    command
}
