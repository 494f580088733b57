//! What the agent needs of the operating system, so that tests can stand in for it.

use crate::kernel;
use crate::procfs::{self, Stat};
use std::io;

/// Processes, threads and their I/O priorities. All of them may be gone at any time.
pub trait System {
    /// All processes, in ascending order.
    ///
    /// # Errors
    /// They cannot be listed.
    fn processes(&self) -> io::Result<Vec<i32>>;
    /// About a process or a thread.
    fn stat(&self, id: i32) -> Option<Stat>;
    /// Bytes that a process, its threads and its children that have ended have
    /// moved from and to disks.
    ///
    /// # Errors
    /// It has gone, or may not be looked at.
    fn io_bytes(&self, pid: i32) -> io::Result<u64>;
    /// Those of one thread.
    ///
    /// # Errors
    /// It has gone, or may not be looked at.
    fn thread_io_bytes(&self, pid: i32, tid: i32) -> io::Result<u64>;
    /// The threads of a process.
    fn threads(&self, pid: i32) -> Vec<i32>;
    /// A thread's I/O priority.
    ///
    /// # Errors
    /// It has gone.
    fn priority(&self, tid: i32) -> io::Result<u16>;
    /// Give a thread an I/O priority.
    ///
    /// # Errors
    /// It has gone, or this is not allowed.
    fn set_priority(&self, tid: i32, priority: u16) -> io::Result<()>;
    /// Not real-time, idle or deadline.
    ///
    /// # Errors
    /// It has gone.
    fn schedules_normally(&self, tid: i32) -> io::Result<bool>;
    /// The control group of a process, and its `io.prio.class`.
    fn io_class(&self, pid: i32) -> Option<(String, String)>;
}

/// The running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Linux;

impl System for Linux {
    fn processes(&self) -> io::Result<Vec<i32>> {
        procfs::processes()
    }
    fn stat(&self, id: i32) -> Option<Stat> {
        procfs::stat(id)
    }
    fn io_bytes(&self, pid: i32) -> io::Result<u64> {
        procfs::io_bytes(pid)
    }
    fn thread_io_bytes(&self, pid: i32, tid: i32) -> io::Result<u64> {
        procfs::thread_io_bytes(pid, tid)
    }
    fn threads(&self, pid: i32) -> Vec<i32> {
        procfs::threads(pid)
    }
    fn priority(&self, tid: i32) -> io::Result<u16> {
        kernel::priority(tid)
    }
    fn set_priority(&self, tid: i32, priority: u16) -> io::Result<()> {
        kernel::set_priority(tid, priority)
    }
    fn schedules_normally(&self, tid: i32) -> io::Result<bool> {
        kernel::schedules_normally(tid)
    }
    fn io_class(&self, pid: i32) -> Option<(String, String)> {
        procfs::io_class(pid)
    }
}

#[cfg(test)]
pub mod fake;
