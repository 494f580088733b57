//! The operating system as the agent needs it, so that tests can stand in for it.

use crate::kernel;
use crate::procfs::{self, Stat};
use seekway_vcpu::{VcpuId, VcpuSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A thread that was seen: tells it from a later one of the same number.
#[derive(Debug)]
pub struct Watched {
    pub tid: i32,
    /// When it started, in ticks after boot.
    pub start: u64,
    /// A file in the thread's folder: unreadable once the thread has gone.
    name: Option<File>,
}

/// Processes, threads and their I/O priorities: by default those of the running kernel. All of
/// them may be gone at any time.
pub trait System {
    /// All processes, in ascending order.
    ///
    /// # Errors
    /// They cannot be listed.
    fn processes(&self) -> io::Result<Vec<i32>> {
        procfs::processes()
    }
    /// About a process or a thread.
    fn stat(&self, id: i32) -> Option<Stat> {
        procfs::stat(id)
    }
    /// Bytes that a process, its threads and its children that have ended have
    /// moved from and to disks.
    ///
    /// # Errors
    /// When the task has ended or may not be read.
    fn io_bytes(&self, pid: i32) -> io::Result<u64> {
        procfs::io_bytes(pid)
    }
    /// Those of one thread.
    ///
    /// # Errors
    /// When the task has ended or may not be read.
    fn thread_io_bytes(&self, pid: i32, tid: i32) -> io::Result<u64> {
        procfs::thread_io_bytes(pid, tid)
    }
    /// The threads of a process.
    fn threads(&self, pid: i32) -> Vec<i32> {
        procfs::threads(pid)
    }
    /// A thread's I/O priority.
    ///
    /// # Errors
    /// When the task has ended.
    fn priority(&self, tid: i32) -> io::Result<u16> {
        kernel::priority(tid)
    }
    /// Give a thread an I/O priority.
    ///
    /// # Errors
    /// When the task has ended, or this is not allowed.
    fn set_priority(&self, tid: i32, priority: u16) -> io::Result<()> {
        kernel::set_priority(tid, priority)
    }
    /// Not real-time, idle or deadline.
    ///
    /// # Errors
    /// When the task has ended.
    fn schedules_normally(&self, tid: i32) -> io::Result<bool> {
        kernel::schedules_normally(tid)
    }
    /// The control group of a process, and its `io.prio.class`.
    fn io_class(&self, pid: i32) -> Option<(String, String)> {
        procfs::io_class(pid)
    }
    /// Keep an eye on a thread: cheaper than to ask for its start time again. `None` when
    /// it has gone.
    fn watch(&self, tid: i32) -> Option<Watched> {
        // First the file: if it is of an earlier thread, it is dead from the start.
        let name = File::open(format!("/proc/{tid}/comm")).ok()?;
        let start = procfs::stat(tid)?.start;
        Some(Watched { tid, start, name: Some(name) }).filter(|watched| self.lives(watched))
    }
    /// Is it still there?
    fn lives(&self, watched: &Watched) -> bool {
        watched.name.as_ref().is_some_and(|name| name.read_at(&mut [0; 16], 0).is_ok())
    }
    /// Where a thread may run, of the vCPUs that are on line.
    ///
    /// # Errors
    /// When the task has ended.
    fn affinity(&self, tid: i32) -> io::Result<VcpuSet> {
        kernel::affinity(tid)
    }
    /// As `affinity`, with the CPUs that are off line. `None` when the thread has gone.
    fn whole_affinity(&self, tid: i32) -> Option<VcpuSet> {
        procfs::affinity(tid)
    }
    /// Have a thread run there only. May take as long as a vCPU is away.
    ///
    /// # Errors
    /// When the task has ended, this is not allowed, or none of these is on line.
    fn set_affinity(&self, tid: i32, vcpus: &VcpuSet) -> io::Result<()> {
        kernel::set_affinity(tid, vcpus)
    }
    /// Where a thread ran last, or was put to run next. `None` when it has gone.
    fn vcpu(&self, tid: i32) -> Option<VcpuId> {
        procfs::vcpu(tid)
    }
    /// The vCPUs that are on line.
    ///
    /// # Errors
    /// The system does not tell.
    fn online(&self) -> io::Result<VcpuSet> {
        procfs::online()
    }
    /// Is it under SCHED_DEADLINE?
    ///
    /// # Errors
    /// When the task has ended.
    fn has_deadline(&self, tid: i32) -> io::Result<bool> {
        kernel::has_deadline(tid)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Linux;

impl System for Linux {}

#[cfg(test)]
#[path = "system/tests/fake.rs"]
pub mod fake;
