//! A thread of an application: which system call it is in, and how far.

use seekway_core::request::Op;

/// A read or write under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub handle: u32,
    pub offset: u64,
    pub len: u32,
    /// The page that comes next.
    pub page: u32,
}

/// Stage of an fsync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SyncStage {
    /// Write what is dirty and wait.
    Data,
    /// Once more for what was under write-back and dirty at once.
    DataAgain,
    Journal,
    Done,
}

/// Work of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Between two system calls.
    Next,
    Read(Call),
    Write(Call),
    /// O_DIRECT: dirty pages in its range are written, with this number of passes left, then its
    /// own requests; bytes count when these are done.
    DirectBegin(Call, Op, u8),
    Direct(Call, Op),
    DirectDone(Call, Op),
    Fsync(u32, SyncStage),
    /// Remove a file, by its number.
    Delete(u32),
}

/// One thread of an application.
#[derive(Debug)]
pub(super) struct Thread {
    /// The application, and the thread's number in it.
    pub app: u32,
    pub local: u32,
    pub work: Work,
    /// I/Os that it waits for.
    pub pending: u32,
}

impl Thread {
    /// Thread number `local` of application `app`.
    pub fn new(app: u32, local: u32) -> Self {
        Thread { app, local, work: Work::Next, pending: 0 }
    }
}
