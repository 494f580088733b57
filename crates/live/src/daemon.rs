//! A `seekway serve` process of one's own.

use crate::error::{At, LiveError, Result};
use crate::process::Process;
use seekway_hostd::control::{Client, HostReport, Request};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long it may take to open its images and answer.
const START: Duration = Duration::from_secs(300);
/// How long it may take to end.
const STOP: Duration = Duration::from_secs(300);

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    args: Vec<String>,
    dir: PathBuf,
    process: Process,
}

impl Daemon {
    /// Run `PROGRAM serve --listen DIR/sockets ARGS…` and wait until it answers.
    /// What it prints goes to `DIR/serve.log`.
    pub fn start(program: &Path, dir: &Path, args: &[String]) -> Result<Daemon> {
        let process = Self::spawn(program, dir, args)?;
        let (program, dir) = (program.to_path_buf(), dir.to_path_buf());
        let mut daemon = Daemon { program, args: args.to_vec(), dir, process };
        daemon.wait_answers()?;
        Ok(daemon)
    }

    fn spawn(program: &Path, dir: &Path, args: &[String]) -> Result<Process> {
        let listen = dir.join("sockets");
        fs::create_dir_all(&listen).at("create", &listen)?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--listen").arg(&listen).args(args);
        // Its notes of lost writes are not this computer's.
        command.env("STATE_DIRECTORY", std::path::absolute(dir).at("find", dir)?);
        Process::start(&mut command, &dir.join("serve.log"))
    }

    fn wait_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        loop {
            if let Some(status) = self.process.ended() {
                let text = format!("ended ({status}):\n{}", self.process.said());
                return Err(LiveError::Daemon(text));
            }
            match self.status() {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() >= deadline => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// The vhost-user socket of a disk.
    pub fn socket(&self, disk: &str) -> PathBuf {
        self.dir.join("sockets").join(format!("{disk}.vhost"))
    }

    pub fn control(&self) -> PathBuf {
        self.dir.join("sockets/control.sock")
    }

    /// Ask over the control socket.
    pub fn ask(&self, request: &Request) -> Result<Value> {
        let failed = |e: seekway_hostd::control::ClientError| LiveError::Daemon(e.to_string());
        Client::connect(&self.control()).map_err(failed)?.ask(request).map_err(failed)
    }

    pub fn status(&self) -> Result<HostReport> {
        let value = self.ask(&Request::Status {})?;
        serde_json::from_value(value).map_err(|e| LiveError::Daemon(format!("status: {e}")))
    }

    /// Another policy for all devices.
    pub fn set_policy(&self, policy: &str) -> Result<()> {
        let request = Request::Policy { policy: policy.into(), device: None };
        self.ask(&request).map(drop)
    }

    /// Has it ended? Then what it said.
    pub fn ended(&mut self) -> Option<String> {
        self.process.ended().map(|status| format!("{status}: {}", self.process.said()))
    }

    /// Let all its threads run before others, as far as the kernel's fair scheduler does that
    /// (nice -20). A daemon that emulates a device is the device, and a device does not wait
    /// for a processor.
    ///
    /// # Errors
    /// This is not root, and has not CAP_SYS_NICE.
    pub fn prefer(&self) -> Result<()> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.pid()));
        for entry in fs::read_dir(&folder).at("list", &folder)? {
            let path = entry.at("list", &folder)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Ok(thread) = name.parse::<libc::id_t>() else { continue };
            // SAFETY: numbers only. Threads that start later inherit from these.
            let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, -20) };
            let error = io::Error::last_os_error();
            // A thread that has ended since it was listed needs no priority.
            if done != 0 && error.raw_os_error() != Some(libc::ESRCH) {
                return Err(error).at("raise the priority of", &path);
            }
        }
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The end of what it has printed.
    pub fn said(&self) -> String {
        self.process.said()
    }

    /// SIGKILL, as a crash would be, and reap it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Start it anew with the same arguments, killing it before if it still
    /// runs. It tries again for a while, as a supervisor would: a killed
    /// program's io_uring lets go of its files, and so of the images' locks, only
    /// a moment after the program has been reaped.
    pub fn restart(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        loop {
            self.process.kill();
            self.process = Self::spawn(&self.program, &self.dir, &self.args)?;
            match self.wait_answers() {
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                result => return result,
            }
        }
    }

    /// SIGTERM, and wait for its orderly end.
    pub fn stop(mut self) -> Result<()> {
        self.process.terminate();
        match self.process.wait(STOP) {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let text = format!("ended with {status} on SIGTERM:\n{}", self.process.said());
                Err(LiveError::Daemon(text))
            }
            None => {
                let text = format!("runs {} s after SIGTERM", STOP.as_secs());
                Err(LiveError::Daemon(text))
            }
        }
    }
}
