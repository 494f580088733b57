//! Applications of a guest. Each is a pure state machine that says, for each of its threads, which
//! system call comes next.

use crate::guest::layout::LaidFiles;
use seekway_core::units::{Instant, Nanos};
use std::sync::Arc;

/// A file of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSpec {
    /// Its size, or the size that it will grow to, in bytes.
    pub bytes: u64,
    /// Bytes that exist, with their blocks, when the application starts; writing allocates the
    /// rest.
    pub present: u64,
}

impl FileSpec {
    /// A file that exists.
    pub fn full(bytes: u64) -> Self {
        FileSpec { bytes, present: bytes }
    }
    /// A file that does not exist yet.
    pub fn absent(bytes: u64) -> Self {
        FileSpec { bytes, present: 0 }
    }
}

/// An open file: the unit of read-ahead (`struct file` of Linux).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandleSpec {
    /// Index into [`AppSpec::files`]; of no account for files brought along, see
    /// [`App::laid_files`].
    pub file: u32,
    /// O_DIRECT: past the page cache.
    pub direct: bool,
    /// O_SYNC: each write is followed by an fsync.
    pub sync: bool,
    /// Which process of the application opened it (for tags), from zero.
    pub process: u16,
}

impl HandleSpec {
    /// By this process, through the page cache.
    pub fn of(file: u32, process: u32) -> Self {
        HandleSpec { file, process: process as u16, ..HandleSpec::default() }
    }
}

/// The next system call of a thread. Offsets and lengths in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Reads `len` bytes of a file, as pread(2).
    Read {
        /// Which handle: an index into [`AppSpec::handles`].
        handle: u32,
        /// Where in the file.
        offset: u64,
        len: u32,
    },
    /// Writes `len` bytes of a file, as pwrite(2).
    Write {
        /// Which handle: an index into [`AppSpec::handles`].
        handle: u32,
        /// Where in the file.
        offset: u64,
        len: u32,
    },
    /// Waits until the file's data and inode are written, as fsync(2).
    Fsync {
        /// Which handle: an index into [`AppSpec::handles`].
        handle: u32,
    },
    /// open: the handle leads to this file from now on, with read-ahead as of
    /// a file just opened.
    Open {
        /// Which handle: an index into [`AppSpec::handles`].
        handle: u32,
        /// Index into [`AppSpec::files`], or among the files brought along.
        file: u32,
    },
    /// unlink: the file's blocks are free, and what was not written never is.
    /// Nobody may have a call under way on it. The application must not read
    /// it before it has written it anew.
    Delete {
        /// Which file: an index into [`AppSpec::files`].
        file: u32,
    },
    /// Think, off the CPU.
    Sleep(Nanos),
    /// Compute, on a vCPU.
    Compute(Nanos),
    /// Wait until another thread of this application is done with all its work,
    /// or wakes this one.
    Park,
    /// Wake all threads of this application that are parked.
    Wake,
    /// This thread has no more work.
    Done,
}

impl Op {
    /// Reads or writes `len` bytes of the handle's file.
    pub fn transfer(write: bool, handle: u32, offset: u64, len: u32) -> Op {
        if write { Op::Write { handle, offset, len } } else { Op::Read { handle, offset, len } }
    }
}

/// Resources of an application, fixed for its lifetime.
#[derive(Clone, Default, Debug)]
pub struct AppSpec {
    /// As it shows in the tables.
    pub name: String,
    /// Number of threads.
    pub threads: u32,
    /// Its files, in the order in which they lie on the image.
    pub files: Vec<FileSpec>,
    pub handles: Vec<HandleSpec>,
}

/// An application inside a guest.
pub trait App: Send {
    fn spec(&self) -> &AppSpec;
    /// Files that it brings along with their places, instead of [`AppSpec::files`].
    /// Asked for once, before the first call of [`App::next`]. A handle must
    /// then be opened before anything else is done with it.
    fn laid_files(&mut self) -> Option<Arc<LaidFiles>> {
        None
    }
    /// Next operation of `thread`. Called once for each system call, when the one before has
    /// returned. After [`Op::Done`] it is not called again.
    fn next(&mut self, now: Instant, thread: u32) -> Op;
}
