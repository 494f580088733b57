//! `seekway-guest migrate --probe`: lists this guest's detectors, and watches with them.

use super::ask::print;
use super::clock;
use super::detectors::Detectors;
use super::loads::{Loads, ThreadLoad};
use super::preemption::thread::settle;
use super::preemption::{Preemption, Seen, Waker};
use crate::agent::{AgentError, failed};
use crate::args::{Format, MigrateArgs};
use crate::procfs;
use crate::signals::Signals;
use seekway_core::units::Nanos;
use seekway_vcpu::{Sign, VcpuId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io, thread};

/// From one look at who waits to the next.
const WINDOW: Duration = Duration::from_millis(100);

/// The detectors that `migrate` uses in this guest, and their observations. JSON keys stay.
#[derive(Serialize)]
struct Probed {
    preemption: &'static str,
    loads: &'static str,
    /// Better detectors, and why they do not work here.
    passed_over: Vec<String>,
    looked_ms: u64,
    /// Tasks that waited for I/O.
    waiting: Vec<Waiting>,
    #[serde(flatten)]
    watched: Watched,
}

/// A thread that waited for I/O.
#[derive(Serialize)]
struct Waiting {
    tid: i32,
    pid: i32,
    vcpu: usize,
    waited_us: u64,
    ran_us: u64,
    ios: u32,
}

/// A vCPU was taken away, or given back. Times are of CLOCK_MONOTONIC.
#[derive(Serialize)]
struct Edge {
    vcpu: usize,
    away: bool,
    at_ns: u64,
    /// Time at which a monitor told it.
    told_ns: u64,
}

/// Absences of vCPUs that monitors saw.
#[derive(Default, Serialize)]
struct Watched {
    /// Losses and returns of vCPUs, each vCPU's in order. Heartbeats see none, because nobody asks
    /// them to beat.
    edges: Vec<Edge>,
    /// Wake-ups of monitors for that, and their CPU time.
    wakeups: u64,
    cpu_us: u64,
}

/// Prints the detectors that `migrate` would use, and their observations in that time. Ctrl-C ends
/// it early with a result.
///
/// # Errors
/// Nothing can be seen or written, or signals cannot be handled.
pub fn probe(args: &MigrateArgs, time: Duration) -> Result<(), AgentError> {
    let signals = Signals::new().map_err(failed("handle signals"))?;
    let detectors = Detectors::open(!args.no_bpf)?;
    let ((preemption, edges), (name, mut loads)) = (detectors.preemption, detectors.loads);
    let begun = clock::now();
    let mut waiting = Vec::new();
    let look = || look(&mut *loads, time, &signals).map(|seen| waiting = seen);
    let watched = watch(&*edges, look).map_err(failed("see this guest"))?;
    let probed = Probed {
        preemption,
        loads: name,
        passed_over: detectors.passed_over,
        looked_ms: clock::now().since(begun).get() / 1_000_000,
        waiting,
        watched,
    };
    print(&match args.format {
        Format::Json => serde_json::to_string(&probed).expect("plain data") + "\n",
        Format::Text => probed.to_string(),
    })
}

/// Looks who waits for this time, or until a signal asks for the end.
fn look(loads: &mut dyn Loads, time: Duration, signals: &Signals) -> io::Result<Vec<Waiting>> {
    let end = clock::now() + Nanos::new(time.as_nanos() as u64);
    let (mut sums, mut window) = (BTreeMap::<i32, ThreadLoad>::new(), Vec::new());
    loads.window(clock::now(), &mut window)?;
    while !signals.ending() && clock::now() < end {
        let left = Duration::from_nanos(end.since(clock::now()).get());
        signals.wait(left.min(WINDOW), None)?;
        loads.window(clock::now(), &mut window)?;
        for load in window.drain(..) {
            let sum = sums.entry(load.tid).and_modify(|sum| sum.add(&load));
            sum.or_insert(load);
        }
    }
    let waiting = |load: ThreadLoad| Waiting {
        tid: load.tid,
        pid: load.pid,
        vcpu: load.vcpu.index(),
        waited_us: load.waited.get() / 1000,
        ran_us: load.ran.get() / 1000,
        ios: load.ios,
    };
    Ok(sums.into_values().map(waiting).collect())
}

/// Watches with a monitor on each vCPU while `look` goes on.
fn watch(detector: &dyn Preemption, look: impl FnOnce() -> io::Result<()>) -> io::Result<Watched> {
    if detector.alarms().is_none() {
        return look().map(|()| Watched::default());
    }
    let online = procfs::online()?;
    let ended = &AtomicBool::new(false);
    let (sender, wakers) = mpsc::channel();
    let mut all = thread::scope(|scope| -> io::Result<Watched> {
        let watch = |vcpu| {
            let sender = sender.clone();
            scope.spawn(move || watch_one(detector, vcpu, &sender, ended))
        };
        let threads: Vec<_> = online.iter().map(watch).collect();
        drop(sender);
        let looked = look();
        ended.store(true, Ordering::Release);
        wakers.iter().for_each(|waker: Waker| waker.wake());
        let mut all = Watched::default();
        for thread in threads {
            let one = thread.join().expect("nothing in it panics")?;
            all.edges.extend(one.edges);
            all.wakeups += one.wakeups;
            all.cpu_us += one.cpu_us;
        }
        looked.map(|()| all)
    })?;
    // A vCPU may be seen to come back and be taken away again at one look: no absence is empty.
    all.edges.sort_by_key(|edge| (edge.vcpu, edge.at_ns, edge.away, edge.told_ns));
    Ok(all)
}

/// Watches until `ended` is set. It sends a waker, with which the caller then wakes it.
fn watch_one(
    detector: &dyn Preemption,
    vcpu: VcpuId,
    wakers: &mpsc::Sender<Waker>,
    ended: &AtomicBool,
) -> io::Result<Watched> {
    settle(vcpu)?;
    let mut monitor = detector.monitor(vcpu)?;
    let waker = monitor.waker()?;
    wakers.send(waker).map_err(|_| io::ErrorKind::BrokenPipe)?;
    let cpu_time = || clock::read(libc::CLOCK_THREAD_CPUTIME_ID);
    let (mut seen, mut watched, before) = (Vec::new(), Watched::default(), cpu_time());
    while !ended.load(Ordering::Acquire) {
        monitor.wait(None, None, &mut seen)?;
        let told_ns = clock::now().as_nanos();
        watched.wakeups += 1;
        watched.edges.extend(seen.drain(..).map(|Seen { at, vcpu, sign }| Edge {
            vcpu: vcpu.index(),
            away: matches!(sign, Sign::Preempted | Sign::Lost { .. }),
            at_ns: at.as_nanos(),
            told_ns,
        }));
    }
    watched.cpu_us = (cpu_time() - before) / 1000;
    Ok(watched)
}

impl Watched {
    /// Returns of each vCPU that was away, and its time away before that.
    fn away(&self) -> BTreeMap<usize, (u64, Nanos)> {
        let mut vcpus = BTreeMap::<usize, (u64, Nanos)>::new();
        for pair in self.edges.windows(2) {
            let [lost, back] = pair else { continue };
            if lost.vcpu == back.vcpu && lost.away && !back.away {
                let (times, time) = vcpus.entry(lost.vcpu).or_default();
                *times += 1;
                *time += Nanos::new(back.at_ns.saturating_sub(lost.at_ns));
            }
        }
        vcpus
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Probed { preemption, loads, passed_over, looked_ms, waiting, watched } = self;
        writeln!(f, "preemption by {preemption}, loads by {loads}")?;
        passed_over.iter().try_for_each(|why| writeln!(f, "  not by {why}"))?;
        for (vcpu, (times, time)) in watched.away() {
            let each = time.as_millis_f64() / times as f64;
            writeln!(f, "vCPU {vcpu} was away {times} times in {looked_ms} ms, {each:.1} ms each")?;
        }
        for Waiting { tid, vcpu, ios, waited_us, .. } in waiting {
            let percent = waited_us / 10 / looked_ms.max(&1);
            writeln!(f, "thread {tid} on vCPU {vcpu} waits {percent} % of the time ({ios} I/Os)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absences_are_counted_by_vcpu() {
        let edge = |vcpu, away, ms: u64| Edge { vcpu, away, at_ns: ms * 1_000_000, told_ns: 0 };
        let edges = vec![
            edge(0, false, 1), // lost before it was looked for
            edge(0, true, 5),
            edge(0, false, 15),
            edge(0, true, 20),
            edge(0, false, 40),
            edge(0, true, 50),
            edge(2, true, 10),
            edge(2, false, 12),
        ];
        let ms = Nanos::from_millis;
        let away = Watched { edges, ..Watched::default() }.away();
        assert_eq!(away, [(0, (2, ms(30))), (2, (1, ms(2)))].into());
    }
}
