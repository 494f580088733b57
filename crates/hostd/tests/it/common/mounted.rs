//! Loop devices, file systems on them, and the commands that make both. Each command has a
//! deadline; what was attached or mounted goes when its value is dropped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longer than any of these commands takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// The output of a command; the error says what failed, and what it said.
pub fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let said = |what: &str| format!("{program} {}: {what}", args.join(" "));
    let child = Command::new(program)
        .args(args)
        // mkfs.xfs makes file systems below 300 MB for its own tests only: they set these.
        .envs(["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"].map(|name| (name, "1")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| said(&e.to_string()))?;
    // A thread waits: a command that a dead disk keeps inside of the kernel cannot be killed.
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output: Output = receiver
        .recv_timeout(DEADLINE)
        .map_err(|_| said(&format!("does not end within {} s", DEADLINE.as_secs())))?
        .map_err(|e| said(&e.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(said(&format!("{}: {}", output.status, text.trim())))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// A loop device. Detached when dropped; where something is mounted on it, it goes with that.
pub struct Loop(pub String);

impl Loop {
    pub fn new(file: &Path, options: &[&str]) -> Result<Loop, String> {
        let args = [&["--find", "--show"], options, &[text(file)]].concat();
        Ok(Loop(run("losetup", &args)?))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(e) = run("losetup", &["--detach", &self.0]) {
            eprintln!("{} stays: {e}", self.0);
        }
    }
}

/// Something mounted in a folder. Unmounted when dropped.
pub struct Mount(pub PathBuf);

impl Mount {
    /// Mount what `args` say, at a folder that is made.
    pub fn new(args: &[&str], folder: PathBuf) -> Result<Mount, String> {
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        run("mount", &[args, &[text(&folder)]].concat())?;
        Ok(Mount(folder))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: the kernel closes the files of a ring a moment after the ring, or its daemon, has
        // gone. The loop device below goes with the mount.
        if let Err(e) = run("umount", &["--lazy", text(&self.0)]) {
            eprintln!("{} stays: {e}", self.0.display());
        }
    }
}
