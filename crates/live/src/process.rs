//! Child processes that end with their owner.

use crate::error::{At, LiveError, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How much of a log is shown in an error.
const TAIL_BYTES: u64 = 4096;

/// A running program. Killed (SIGKILL) and reaped when dropped, and by the
/// kernel when the thread that started it ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Start it with standard output and error in the file `log`, appended.
    pub fn start(command: &mut Command, log: &Path) -> Result<Process> {
        let file = File::options().create(true).append(true).open(log).at("open", log)?;
        let again = file.try_clone().at("open", log)?;
        command.stdin(Stdio::null()).stdout(file).stderr(again);
        let parent = std::process::id();
        // SAFETY: the closure runs between fork and exec and calls nothing but
        // prctl and getppid, which are async-signal-safe.
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
        let program = PathBuf::from(command.get_program());
        let child = command.spawn().at("run", &program)?;
        Ok(Process { child, log: log.to_path_buf() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// SIGKILL, and reap it.
    pub fn kill(&mut self) {
        // It may have ended by itself; wait() tells in either case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ask it to end (SIGTERM).
    pub fn terminate(&self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // SAFETY: kill() takes no pointers. The child is not reaped while
            // it is borrowed, so that the number is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }

    /// Wait for its end. `None` when it still runs after `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The end of what it has printed.
    pub fn said(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a log, at most 4 KiB, without control characters.
pub(crate) fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let printable = |c: char| c == '\n' || !c.is_control();
    match read() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).chars().filter(|&c| printable(c)).collect(),
        Err(e) => format!("({}: {e})", path.display()),
    }
}

/// Run a program to its end and return what it printed on standard output.
/// `package` has it, should it be missing.
pub(crate) fn run(command: &mut Command, package: &'static str) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => LiveError::Missing { program: package, package },
        _ => LiveError::Command {
            command: format!("{command:?}"),
            status: e.to_string(),
            stderr: String::new(),
        },
    })?;
    if !output.status.success() {
        return Err(LiveError::Command {
            command: format!("{command:?}"),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_string(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
