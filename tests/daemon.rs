//! A `seekway serve` process of a test's own, for tests that kill it.

use anyhow::{Context, Result, bail};
use seekway_hostd::control::{Client, HostReport, Request};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit for the daemon to open its images and answer, and to end.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of its log that an error shows.
const TAIL: usize = 4096;

/// A running daemon. Dropping it kills it, and so does the end of the thread that started it.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    args: Vec<String>,
    dir: PathBuf,
    child: Child,
}

impl Daemon {
    /// Runs `PROGRAM serve --listen DIR/sockets ARGS…` and waits until it answers. Its output goes
    /// to `DIR/serve.log`.
    pub fn start(program: &Path, dir: &Path, args: &[String]) -> Result<Daemon> {
        let child = spawn(program, dir, args)?;
        let (program, dir) = (program.to_path_buf(), dir.to_path_buf());
        let mut daemon = Daemon { program, args: args.to_vec(), dir, child };
        daemon.wait_answers()?;
        Ok(daemon)
    }

    fn wait_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.ended() {
                bail!("seekway ended ({status}):\n{}", self.said());
            }
            match self.status() {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() >= deadline => return Err(e),
                Err(_) => sleep(Duration::from_millis(10)),
            }
        }
    }

    /// The vhost-user socket of a disk.
    pub fn socket(&self, disk: &str) -> PathBuf {
        self.dir.join("sockets").join(format!("{disk}.vhost"))
    }

    #[allow(dead_code)] // One of the two programs that have this file needs it.
    pub fn control(&self) -> PathBuf {
        self.dir.join("sockets/control.sock")
    }

    pub fn status(&self) -> Result<HostReport> {
        let value = Client::connect(&self.control())?.ask(&Request::Status {})?;
        serde_json::from_value(value).context("status")
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The end of its output, without control characters.
    pub fn said(&self) -> String {
        let log = fs::read(self.dir.join("serve.log")).unwrap_or_default();
        let end = &log[log.len().saturating_sub(TAIL)..];
        String::from_utf8_lossy(end).chars().filter(|c| *c == '\n' || !c.is_control()).collect()
    }

    /// SIGKILL, as a crash would be, and reap it.
    pub fn kill(&mut self) {
        // It may have ended by itself; wait() tells in either case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it anew with the same arguments, killing it before if it still runs. Tries again for
    /// a while, as a supervisor would: a killed program's io_uring closes its files, and so unlocks
    /// the images, only a moment after the program has been reaped.
    pub fn restart(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.kill();
            self.child = spawn(&self.program, &self.dir, &self.args)?;
            match self.wait_answers() {
                Err(e) if e.to_string().contains("accept-lost-writes") => return Err(e),
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(100)),
                result => return result,
            }
        }
    }

    /// SIGTERM, and wait for its orderly end.
    pub fn stop(mut self) -> Result<()> {
        // SAFETY: kill() takes no pointers. The child is not reaped yet: the number is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("ended with {status} on SIGTERM:\n{}", self.said()),
                None if Instant::now() >= deadline => {
                    bail!("runs {} s after SIGTERM", PATIENCE.as_secs())
                }
                None => sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(program: &Path, dir: &Path, args: &[String]) -> Result<Child> {
    let listen = dir.join("sockets");
    fs::create_dir_all(&listen)?;
    let log = File::options().create(true).append(true).open(dir.join("serve.log"))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--listen").arg(&listen).args(args);
    // Its notes of lost writes are not this computer's.
    command.env("STATE_DIRECTORY", std::path::absolute(dir)?);
    command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and calls nothing but prctl and getppid,
    // which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the prctl.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    command.spawn().with_context(|| format!("cannot run {}", program.display()))
}
