//! A QEMU guest: its process, its consoles, and the channel over which it runs
//! commands.

mod command_line;
mod migration;

use crate::error::{At, LiveError, Result};
use crate::image::GuestImage;
use crate::process::{Process, tail};
use crate::qmp::Qmp;
use crate::stream::Stream;
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A boot takes five seconds on an idle machine, and minutes beside much other work.
const BOOT: Duration = Duration::from_secs(600);
/// How much longer than the guest's own time-out the host waits for an answer.
const GRACE: Duration = Duration::from_secs(120);
/// The guest's init sends no more output than this.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Starts of one guest at most.
const STARTS_MAX: u32 = 3;

/// What runs the guest's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Accelerator {
    /// Emulation, each vCPU in a thread of its own; works everywhere.
    #[default]
    Tcg,
    /// Emulation of all vCPUs in one thread. For guests that load BPF programs while they work:
    /// a program changes the kernel's code, and with several threads QEMU 7.2 may run the old
    /// code, so that the guest dies (`Oops: int3`).
    TcgOneThread,
    /// The processor's own virtualisation.
    Kvm,
}

/// A virtio-blk disk of a guest, served by another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostDisk {
    /// The vhost-user socket; its server has to listen when the guest starts.
    pub socket: PathBuf,
    /// Virtqueues, 1 to the number of vCPUs.
    pub queues: u16,
    /// Connect again, once a second, when the server goes away. The guest waits.
    pub reconnect: bool,
}

/// A guest to be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestSpec {
    /// For messages, and QEMU's `-name`.
    pub name: String,
    /// Memory in MiB. 90 of them hold the tools.
    pub memory_mb: u32,
    /// Number of vCPUs: QEMU's `-smp`.
    pub cpus: u32,
    /// Disks in the order of `/dev/vda`, `/dev/vdb`, …
    pub disks: Vec<VhostDisk>,
    /// What runs the guest's instructions: emulation or KVM.
    pub accelerator: Accelerator,
    /// A reboot boots again; else it ends QEMU, and so does a panic.
    pub reboots: bool,
    /// Further arguments for QEMU.
    pub extra: Vec<String>,
}

impl GuestSpec {
    /// Two vCPUs, 384 MiB, no disks.
    pub fn new(name: impl Into<String>) -> GuestSpec {
        GuestSpec {
            name: name.into(),
            memory_mb: 384,
            cpus: 2,
            disks: Vec::new(),
            accelerator: Accelerator::Tcg,
            reboots: false,
            extra: Vec::new(),
        }
    }

    /// One disk more, with a queue for each vCPU.
    pub fn disk(mut self, socket: impl Into<PathBuf>) -> GuestSpec {
        let queues = u16::try_from(self.cpus).unwrap_or(u16::MAX);
        self.disks.push(VhostDisk { socket: socket.into(), queues, reconnect: false });
        self
    }
}

/// What a command in a guest came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// Its exit status; 137 when it was killed after its time.
    pub status: i32,
    /// Standard output and error, at most 1 MiB.
    pub text: String,
}

/// A running guest. Dropping it kills it.
#[derive(Debug)]
pub struct Guest {
    name: String,
    process: Process,
    sockets: Sockets,
    channels: Option<Channels>,
    next_id: u64,
    /// To start it again with.
    image: GuestImage,
    spec: GuestSpec,
    starts: u32,
    /// Sockets and logs; removed last.
    dir: TempDir,
}

/// Where QEMU connects to when it starts.
#[derive(Debug)]
struct Sockets {
    control: UnixListener,
    events: UnixListener,
    qmp: UnixListener,
}

#[derive(Debug)]
struct Channels {
    control: Stream,
    events: Stream,
    qmp: Qmp,
}

impl Guest {
    /// Start QEMU and return at once: several guests boot side by side.
    pub fn start(image: &GuestImage, spec: &GuestSpec) -> Result<Guest> {
        let dir = tempfile::Builder::new().prefix("seekway-guest-").tempdir();
        let dir = dir.at("create a directory in", &std::env::temp_dir())?;
        let listen = |name: &str| {
            let path = dir.path().join(name);
            UnixListener::bind(&path).at("listen on", &path)
        };
        let sockets =
            Sockets { control: listen("control")?, events: listen("events")?, qmp: listen("qmp")? };
        let mut command = command_line::qemu(image, spec, dir.path());
        let process = Process::start(&mut command, &dir.path().join("qemu.log"));
        let process = process.map_err(|e| match e {
            LiveError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                LiveError::Missing { program: command_line::QEMU, package: "qemu-system-x86" }
            }
            other => other,
        })?;
        let (name, image, spec) = (spec.name.clone(), image.clone(), spec.clone());
        let (channels, next_id, starts) = (None, 0, 1);
        Ok(Guest { name, process, sockets, channels, next_id, image, spec, starts, dir })
    }

    /// Wait until the guest takes commands, after [`Guest::start`] or
    /// [`Guest::reset`]. A guest whose kernel dies of QEMU's emulation while it
    /// boots for the first time is started again.
    pub fn wait_ready(&mut self) -> Result<()> {
        let has_booted = self.channels.is_some();
        loop {
            match self.wait_boot() {
                Err(LiveError::Gone { console, .. })
                    if !has_booted && self.starts < STARTS_MAX && died_of_patching(&console) =>
                {
                    let starts = self.starts + 1;
                    *self = Guest::start(&self.image, &self.spec)?;
                    self.starts = starts;
                }
                result => return result,
            }
        }
    }

    fn wait_boot(&mut self) -> Result<()> {
        let deadline = Instant::now() + BOOT;
        self.connect(deadline)?;
        // What an earlier life of the guest had still to say is passed over.
        while !self.control_line("boot", deadline, BOOT)?.starts_with("ready") {}
        Ok(())
    }

    /// Take the connections that QEMU makes when it starts.
    fn connect(&mut self, deadline: Instant) -> Result<()> {
        if self.channels.is_none() {
            let control = self.accept(deadline, |s| &s.control)?;
            let events = self.accept(deadline, |s| &s.events)?;
            let qmp = self.accept(deadline, |s| &s.qmp)?;
            let qmp = Qmp::new(qmp).map_err(|e| self.lost(e, "answer on QMP", BOOT))?;
            self.channels = Some(Channels { control, events, qmp });
        }
        Ok(())
    }

    /// Start guests together and wait for all.
    pub fn boot_all(image: &GuestImage, specs: &[GuestSpec]) -> Result<Vec<Guest>> {
        let started: Result<Vec<Guest>> = specs.iter().map(|s| Guest::start(image, s)).collect();
        let mut guests = started?;
        guests.iter_mut().try_for_each(Guest::wait_ready)?;
        Ok(guests)
    }

    /// Run a shell command in the guest, at most for `timeout` (whole seconds).
    /// What it leaves running in the background goes on.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<Output> {
        let id = self.next_id;
        self.next_id += 1;
        let seconds = timeout.as_secs().max(1);
        let line = format!("{id} {seconds} {}\n", base64(command.as_bytes()));
        let timeout = timeout + GRACE;
        let deadline = Instant::now() + timeout;
        let sent = self.channels()?.control.send(&line);
        sent.map_err(|e| self.lost(e, command, timeout))?;
        let answer = self.control_line(command, deadline, timeout)?;
        let Some((status, len)) = parse_done(&answer, id) else {
            let why = format!("answered '{answer}' to `{command}`");
            return Err(LiveError::Protocol { guest: self.name.clone(), why });
        };
        let output = self.channels()?.control.bytes(len, deadline);
        let output = output.map_err(|e| self.lost(e, command, timeout))?;
        Ok(Output { status, text: String::from_utf8_lossy(&output).into_owned() })
    }

    /// Run a command that has to succeed; what it printed.
    pub fn check(&mut self, command: &str, timeout: Duration) -> Result<String> {
        let output = self.run(command, timeout)?;
        if output.status == 0 {
            return Ok(output.text);
        }
        Err(LiveError::InGuest {
            guest: self.name.clone(),
            command: command.into(),
            status: output.status,
            output: output.text,
        })
    }

    /// The next line that something in the guest writes to `/dev/events`.
    pub fn event(&mut self, timeout: Duration) -> Result<String> {
        let line = self.channels()?.events.line(Instant::now() + timeout);
        line.map_err(|e| self.lost(e, "event", timeout))
    }

    /// Reset the machine, as its reset button would. It needs
    /// [`GuestSpec::reboots`], and [`Guest::wait_ready`] afterwards.
    pub fn reset(&mut self) -> Result<()> {
        self.qmp("system_reset", json!({})).map(drop)
    }

    /// A command for QEMU itself, and what it returns.
    pub fn qmp(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let result = self.channels()?.qmp.execute(command, arguments);
        result.map_err(|e| self.lost(e, command, GRACE))
    }

    /// SIGKILL to QEMU, and reap it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Process id of QEMU on the host.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The end of the guest's console.
    pub fn console(&self) -> String {
        tail(&self.dir.path().join(command_line::CONSOLE))
    }

    /// Where QEMU's sockets and logs are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn channels(&mut self) -> Result<&mut Channels> {
        let guest = &self.name;
        self.channels.as_mut().ok_or_else(|| LiveError::Protocol {
            guest: guest.clone(),
            why: "is used before it is ready".into(),
        })
    }

    fn control_line(&mut self, what: &str, deadline: Instant, after: Duration) -> Result<String> {
        let line = self.channels()?.control.line(deadline);
        line.map_err(|e| self.lost(e, what, after))
    }

    fn accept(
        &mut self,
        deadline: Instant,
        which: impl Fn(&Sockets) -> &UnixListener,
    ) -> Result<Stream> {
        loop {
            match Stream::accept(which(&self.sockets)) {
                Ok(Some(stream)) => return Ok(stream),
                Ok(None) if self.process.ended().is_some() => return Err(self.gone()),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(None) => return Err(self.lost(io::ErrorKind::TimedOut.into(), "QEMU", BOOT)),
                Err(e) => return Err(e).at("accept in", self.dir.path()),
            }
        }
    }

    /// What an error on a socket means for the guest.
    fn lost(&mut self, error: io::Error, what: &str, after: Duration) -> LiveError {
        // The socket closes a moment before QEMU can be reaped.
        if error.kind() != io::ErrorKind::TimedOut
            && self.process.wait(Duration::from_secs(2)).is_some()
        {
            return self.gone();
        }
        let guest = self.name.clone();
        if error.kind() == io::ErrorKind::TimedOut {
            let console = self.console();
            return LiveError::Timeout { guest, what: what.into(), after, console };
        }
        LiveError::Protocol { guest, why: format!("{what}: {error}") }
    }

    fn gone(&mut self) -> LiveError {
        let status = self.process.ended().map_or_else(|| "?".into(), |s| s.to_string());
        LiveError::Gone {
            guest: self.name.clone(),
            status,
            stderr: self.process.said(),
            console: self.console(),
        }
    }
}

/// Did the kernel stop at a breakpoint that it had set itself, to change its own code? QEMU's
/// emulation with several threads may run the breakpoint when it has already gone (seen of
/// Debian's 6.12 with four vCPUs, once in some hundred boots, in `sched_clock_cpu`).
fn died_of_patching(console: &str) -> bool {
    console.contains("Oops: int3:")
}

/// `done ID STATUS BYTES`.
fn parse_done(line: &str, id: u64) -> Option<(i32, usize)> {
    let mut words = line.strip_prefix("done ")?.split(' ');
    let same = words.next()?.parse() == Ok(id);
    let status = words.next()?.parse().ok()?;
    let len = words.next()?.parse().ok()?;
    (same && words.next().is_none() && len <= OUTPUT_BYTES_MAX).then_some((status, len))
}

/// RFC 4648, section 4: a command becomes one line without spaces.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in examples {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn an_answer_to_another_command_is_none() {
        assert_eq!(parse_done("done 3 0 12", 3), Some((0, 12)));
        for bad in ["done 2 0 12", "done 3 0", "done 3 0 12 1", "done 3 0 -1", "ready 3 0 1", ""] {
            assert_eq!(parse_done(bad, 3), None, "{bad}");
        }
        assert_eq!(parse_done("done 3 0 1048577", 3), None);
    }
}
