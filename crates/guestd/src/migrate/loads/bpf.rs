//! Detects waiting for I/O by BPF: programs in the scheduler and the block layer keep totals for
//! each task (`bpf/waits.bpf.c`), and a window is the difference of two looks at them. A look is no
//! system call: the table is mapped.

use super::{Loads, ThreadLoad};
use crate::migrate::bpf::{self, BpfError, Loaded, Mapped, Plain};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{LastIo, VCPUS_MAX, VcpuId};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/waits.bpf.o"));

/// Entries of a set; `waits.bpf.c` has the layout of the records.
const WAYS: usize = 8;

#[repr(C)]
#[derive(Debug)]
struct Entry {
    born: AtomicU64,
    at: AtomicU64,
    since: AtomicU64,
    waited: AtomicU64,
    in_since: AtomicU64,
    ran: AtomicU64,
    io_time: AtomicU64,
    asked: AtomicU64,
    done: AtomicU64,
    ios: AtomicU32,
    under_way: AtomicU32,
    iowait: AtomicU32,
    pid: AtomicU32,
    cpu: AtomicU32,
    heard_on: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
struct Set {
    tid: [AtomicU32; WAYS],
    touched: AtomicU64,
    unused: [AtomicU64; 3],
    entries: [Entry; WAYS],
}

// SAFETY: atomics only.
unsafe impl Plain for Set {}

/// An entry's totals at the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Totals {
    tid: u32,
    born: u64,
    waited: u64,
    ran: u64,
    io_time: u64,
    ios: u32,
    /// The task waited or ran: the totals grow without an event.
    open: bool,
}

/// The programs, and their counts at the end of the last window.
#[derive(Debug)]
pub struct Bpf {
    sets: Mapped<Set>,
    /// Of each entry, in the table's order.
    before: Vec<Totals>,
    /// Of each set: an entry of it was open.
    open: Vec<bool>,
    /// The end of the last window.
    last: u64,
    except: i32,
    rests: bool,
    /// At work for as long as this is there.
    pub programs: Loaded,
}

impl Bpf {
    /// Load them. From now on everything counts, but for the threads of process `except`.
    ///
    /// # Errors
    /// This kernel, or the rights of this process, do not allow it.
    pub fn open(except: i32) -> Result<Bpf, BpfError> {
        bpf::check_numbers()?;
        let mut programs = bpf::load("waits", OBJECT, |_| Ok(()))?;
        programs.attach()?;
        let sets = programs.map::<Set>("sets")?;
        let count = sets.records().len();
        let before = vec![Totals::default(); count * WAYS];
        Ok(Bpf { sets, before, open: vec![false; count], last: 0, except, rests: false, programs })
    }
}

impl Loads for Bpf {
    /// Attaches or detaches the programs: they run at each switch of tasks, a cost for nothing
    /// while no window is wanted.
    fn rest(&mut self, rests: bool) -> io::Result<()> {
        match (self.rests, rests) {
            (false, true) => self.programs.detach(),
            (true, false) => {
                // A thread that waited when the programs were detached has long been woken.
                self.programs.clear("sets")?;
                self.programs.attach()?;
            }
            _ => {}
        }
        self.rests = rests;
        Ok(())
    }

    fn window(&mut self, now: Instant, loads: &mut Vec<ThreadLoad>) -> io::Result<()> {
        let now = now.as_nanos();
        loads.clear();
        for (n, set) in self.sets.records().iter().enumerate() {
            if !self.open[n] && set.touched.load(Ordering::Relaxed) < self.last {
                continue;
            }
            self.open[n] = false;
            let before = &mut self.before[n * WAYS..(n + 1) * WAYS];
            for ((tid, entry), before) in set.tid.iter().zip(&set.entries).zip(before) {
                let Some((totals, pid, vcpu)) = look(tid, entry, now) else { continue };
                self.open[n] |= totals.open;
                let load = difference(before, totals, pid, vcpu);
                let load = load.map(|load| ThreadLoad { last: last_io(entry), ..load });
                let counts = |load: &ThreadLoad| load.waited > Nanos::ZERO || load.ios > 0;
                loads.extend(load.filter(|load| load.pid != self.except && counts(load)));
            }
        }
        self.last = now;
        loads.sort_unstable_by_key(|load| load.tid);
        Ok(())
    }
}

/// An entry's totals up to now, its process and its vCPU; `None` if it has no task, or one that
/// changes just now.
fn look(tid: &AtomicU32, entry: &Entry, now: u64) -> Option<(Totals, i32, VcpuId)> {
    let number = tid.load(Ordering::Acquire);
    let get = |field: &AtomicU64| field.load(Ordering::Relaxed);
    let (born, since, running) = (get(&entry.born), get(&entry.since), get(&entry.in_since));
    // The open interval, from its beginning.
    let part = |from: u64| if from == 0 { 0 } else { now.saturating_sub(from) };
    let totals = Totals {
        tid: number,
        born,
        waited: get(&entry.waited).saturating_add(part(since)),
        ran: get(&entry.ran).saturating_add(part(running)),
        io_time: get(&entry.io_time),
        ios: entry.ios.load(Ordering::Relaxed),
        open: since != 0 || running != 0,
    };
    let pid = i32::try_from(entry.pid.load(Ordering::Relaxed)).ok()?;
    let cpu = entry.cpu.load(Ordering::Acquire) as usize;
    let still = tid.load(Ordering::Relaxed) == number && get(&entry.born) == born;
    let vcpu = VcpuId::new(u16::try_from(cpu).ok().filter(|_| cpu < VCPUS_MAX)?);
    (still && i32::try_from(number).is_ok_and(|n| n > 0)).then_some((totals, pid, vcpu))
}

/// The last I/O of a task that ended; `None` while the programs write it.
fn last_io(entry: &Entry) -> Option<LastIo> {
    let done = entry.done.load(Ordering::Acquire);
    let asked = entry.asked.load(Ordering::Acquire);
    let heard_on = entry.heard_on.load(Ordering::Acquire);
    let still = done != 0 && entry.done.load(Ordering::Relaxed) == done;
    let heard_on = u16::try_from(heard_on).ok().filter(|n| usize::from(*n) < VCPUS_MAX)?;
    still.then(|| LastIo {
        asked: Instant::from_nanos(asked),
        done: Instant::from_nanos(done),
        heard_on: VcpuId::new(heard_on),
    })
}

/// Computes the increase of the totals. They never fall: a look between the two halves of an update
/// of the kernel's sees less for a moment, and the next one makes up for it.
fn difference(before: &mut Totals, now: Totals, pid: i32, vcpu: VcpuId) -> Option<ThreadLoad> {
    if (before.tid, before.born) != (now.tid, now.born) {
        *before = Totals { tid: now.tid, born: now.born, ..Totals::default() };
    }
    let grown = |before: &mut u64, now: u64| {
        let more = now.saturating_sub(*before);
        *before += more;
        Nanos::new(more)
    };
    let ios = now.ios.wrapping_sub(before.ios);
    before.ios = now.ios;
    Some(ThreadLoad {
        tid: i32::try_from(now.tid).ok()?,
        pid,
        vcpu,
        waited: grown(&mut before.waited, now.waited),
        ran: grown(&mut before.ran, now.ran),
        ios,
        io_time: grown(&mut before.io_time, now.io_time),
        last: None,
    })
}

#[cfg(test)]
mod tests;
