//! The state file: the threads that the agent has changed, so that this agent, its next start or
//! `seekway-guest restore` can put them back.
//!
//! The file is whole at all times (written beside its path and renamed), and is written before the
//! change that it records.

use crate::kernel;
use seekway_core::ioprio::{self, CLASS_NONE};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest state that is read: 100,000 threads and more.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The record of one thread whose priority was changed, or is about to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub pid: i32,
    pub tid: i32,
    /// When the thread started, in ticks after boot.
    pub start: u64,
    /// The I/O priority that it had.
    pub original: u16,
    /// The priority that the agent gave it.
    pub set: u16,
}

/// All that has to be put back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Numbers of threads mean nothing after another boot.
    pub boot: String,
    /// Priorities carry tags as hints. False in files of earlier versions on old kernels.
    pub hints: bool,
    /// Every priority that was given since the start: threads that have
    /// inherited one are found by it.
    pub given: Vec<u16>,
    pub threads: Vec<Record>,
    /// Changes of an earlier agent that could not be put back.
    #[serde(default)]
    pub left: Vec<Record>,
}

impl State {
    /// All threads that have to be put back.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.threads.iter().chain(&self.left)
    }

    /// The state of an agent that has changed nothing; `boot` is the boot's id.
    pub fn new(boot: String) -> State {
        let (given, threads, left) = Default::default();
        State { boot, hints: true, given, threads, left }
    }
}

/// Content of a state file.
pub trait Stored: Sized {
    /// As it is written.
    fn to_bytes(&self) -> Vec<u8>;

    /// As it was written.
    ///
    /// # Errors
    /// Says why this is none.
    fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, String>;
}

impl Stored for State {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and a string")
    }

    fn from_bytes(bytes: &[u8]) -> std::result::Result<State, String> {
        let state: State = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        // The agent changes no others.
        if state.records().any(|r| ioprio::class(r.original) != CLASS_NONE) {
            return Err("a thread had a priority of its own".into());
        }
        if !state.hints {
            let why = "an earlier version wrote it on a kernel without hints; that version's \
                       `restore` puts its changes back";
            return Err(why.into());
        }
        Ok(state)
    }
}

/// Something is wrong with the file of the state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read, written or locked.
    #[error("{what} {path}: {source}", path = .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// The file was not written by this program.
    #[error("{path} is no state of seekway-guest ({why}): look at it, and remove it", path = .path.display())]
    Broken { path: PathBuf, why: String },
    /// Another agent holds its lock.
    #[error("another seekway-guest is at work (it holds {path}): end it first, or give --state", path = .path.display())]
    Locked {
        /// The file that is locked.
        path: PathBuf,
    },
}

/// A link is an error, and a FIFO without another end does not wait for one.
const NO_TRICKS: libc::c_int = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Result of operations on a state file.
pub type Result<T> = std::result::Result<T, StateError>;

/// The state file, locked while this lives.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    _lock: File,
}

impl StateFile {
    /// Lock the file at `path`, which need not be there.
    ///
    /// # Errors
    /// [`StateError::Locked`] when another agent is at work.
    pub fn lock(path: &Path) -> Result<StateFile> {
        let beside = with_suffix(path, ".lock");
        let mut how = File::options();
        how.create(true).append(true).mode(0o600).custom_flags(NO_TRICKS);
        let file = how.open(&beside).map_err(|source| io_error("open", &beside, source))?;
        match file.try_lock() {
            Ok(()) => Ok(StateFile { path: path.into(), _lock: file }),
            Err(TryLockError::WouldBlock) => Err(StateError::Locked { path: beside }),
            Err(TryLockError::Error(e)) => Err(io_error("lock", &beside, e)),
        }
    }

    /// Loads an earlier agent's changes; `None` when it ended in order.
    ///
    /// # Errors
    /// The file cannot be read, or was not written by this program for this user: a writer of the
    /// file can change root's threads.
    pub fn load<T: Stored>(&self) -> Result<Option<T>> {
        let broken = |why: String| StateError::Broken { path: self.path.clone(), why };
        let file = match File::options().read(true).custom_flags(NO_TRICKS).open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                return Err(broken("it is a symbolic link".into()));
            }
            Err(e) => return Err(io_error("open", &self.path, e)),
        };
        let about = file.metadata().map_err(|e| io_error("look at", &self.path, e))?;
        if !about.is_file() {
            return Err(broken("it is no regular file".into()));
        }
        if about.uid() != kernel::user() {
            return Err(broken(format!("it belongs to user {}", about.uid())));
        }
        let mut bytes = Vec::new();
        let read = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(|e| io_error("read", &self.path, e))?;
        T::from_bytes(&bytes).map(Some).map_err(broken)
    }

    /// Writes the remaining changes, or removes the file if there are none.
    ///
    /// # Errors
    /// It cannot be written or removed.
    pub fn keep(&self, left: Option<&impl Stored>) -> Result<()> {
        left.map_or_else(|| self.remove(), |left| self.save(left))
    }

    /// Put `state` there.
    ///
    /// # Errors
    /// It cannot be written: nothing may be changed then.
    pub fn save(&self, state: &impl Stored) -> Result<()> {
        let written = write_whole(&self.path, &state.to_bytes());
        written.map_err(|e| io_error("write", &self.path, e))
    }

    /// The file that was saved, to change parts of it.
    ///
    /// # Errors
    /// When the file was removed.
    pub fn reopen(&self) -> Result<File> {
        let file = File::options().write(true).custom_flags(NO_TRICKS).open(&self.path);
        file.map_err(|e| io_error("open", &self.path, e))
    }

    /// All has been put back.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &self.path, e)),
            _ => Ok(()),
        }
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> StateError {
    StateError::Io { what, path: path.into(), source }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Tells whether a file that is written whole at `status` would overwrite one that a state at
/// `state` needs.
pub fn share_a_file(status: &Path, state: &Path) -> bool {
    // Folders by their true names; the files need not be there.
    let place = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        let dir = path.parent()?;
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.into());
        Some(dir.join(path.file_name()?))
    };
    let (Some(status), Some(state)) = (place(status), place(state)) else { return true };
    let of_state = [with_suffix(&state, ".lock"), with_suffix(&state, ".partial"), state];
    of_state.contains(&with_suffix(&status, ".partial")) || of_state.contains(&status)
}

/// Write a file that readers see whole, old or new. Only the caller may write
/// there.
///
/// # Errors
/// Those of the file system.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = with_suffix(path, ".partial");
    // A dead agent's file, or another program's: never written to.
    match fs::remove_file(&partial) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut how = File::options();
    how.create_new(true).write(true).mode(0o600).open(&partial)?.write_all(bytes)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> State {
        let record = Record { pid: 5, tid: 6, start: 7, original: 0, set: 0x4044 };
        State { given: vec![0x4044], threads: vec![record], ..State::new("x".into()) }
    }

    #[test]
    fn a_state_comes_back_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::lock(&dir.path().join("state")).unwrap();
        assert_eq!(file.load::<State>().unwrap(), None);
        file.save(&some()).unwrap();
        assert_eq!(file.load().unwrap(), Some(some()));
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.load::<State>().unwrap(), None);
    }

    #[test]
    fn two_agents_do_not_share_a_state() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let first = StateFile::lock(&path).unwrap();
        let second = StateFile::lock(&path).unwrap_err().to_string();
        assert!(second.contains("another seekway-guest is at work"), "{second}");
        drop(first);
        StateFile::lock(&path).unwrap();
    }

    #[test]
    fn what_is_no_state_is_said_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let file = StateFile::lock(&path).unwrap();
        let whole = serde_json::to_vec(&some()).unwrap();
        let levels = serde_json::to_vec(&State { hints: false, ..some() }).unwrap();
        for bytes in [&b""[..], b"{}", b"\xff", &whole[..whole.len() - 1], &levels] {
            fs::write(&path, bytes).unwrap();
            let error = file.load::<State>().unwrap_err().to_string();
            assert!(error.contains("is no state of seekway-guest"), "{error}");
        }
    }

    #[test]
    fn what_others_have_planted_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let file = StateFile::lock(&path).unwrap();
        let refused = |why: &str| {
            let error = file.load::<State>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            fs::remove_file(&path).unwrap();
        };
        let fifo = |path: &Path| {
            let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: the name ends with a zero.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        };
        fifo(&path);
        refused("no regular file");
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, serde_json::to_vec(&some()).unwrap()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        refused("a symbolic link");
        if crate::kernel::is_root() {
            fs::copy(&elsewhere, &path).unwrap();
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            refused("belongs to user 65534");
        } else {
            seekway_testing::skip("root, to give files away");
        }
        let record = Record { original: 1 << 13, ..some().threads[0] };
        file.save(&State { threads: vec![record], ..some() }).unwrap();
        refused("a priority of its own");
        // The temporary file's path leads to another file.
        fs::hard_link(&elsewhere, with_suffix(&path, ".partial")).unwrap();
        file.save(&State { given: Vec::new(), ..some() }).unwrap();
        let kept: State = serde_json::from_slice(&fs::read(&elsewhere).unwrap()).unwrap();
        assert_eq!(kept, some());
        let other = dir.path().join("other");
        fifo(&with_suffix(&other, ".lock"));
        assert!(StateFile::lock(&other).is_err());
    }
}
