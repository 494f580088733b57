//! `seekway-guest migrate --probe`, which asks the guest what there is to see with, and looks.

use super::ask::print;
use super::detectors::Detectors;
use super::loads::{Loads, ThreadLoad};
use super::preemption::thread::settle;
use super::preemption::{Preemption, Seen, Waker};
use super::steering::{self, NarrowDisk};
use super::{clock, loads, preemption};
use crate::agent::{AgentError, failed};
use crate::args::{Format, MigrateArgs};
use crate::procfs;
use crate::signals::Signals;
use crate::system::Linux;
use seekway_policy::units::Nanos;
use seekway_policy::vcpu::{Sign, VcpuId};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io, thread};

/// A detector, and whether this guest has it. JSON keys stay.
#[derive(Serialize)]
struct Probed {
    what: &'static str,
    way: String,
    missing: Option<String>,
    /// How long it looked.
    looked_ms: u64,
    #[serde(flatten)]
    looked: Looked,
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
    /// When a monitor told of it.
    told_ns: u64,
}

/// What a detector saw.
#[derive(Default, Serialize)]
struct Looked {
    /// Who it saw waiting for I/O.
    waiting: Vec<Waiting>,
    /// Losses and returns of vCPUs that it saw by itself, each vCPU's in order.
    edges: Vec<Edge>,
    /// How often its threads woke for that, and their CPU time.
    wakeups: u64,
    cpu_us: u64,
}

/// Say which detectors this guest has, of those that the user names or of all, and what they see,
/// each in so much time. Ctrl-C ends the look early; what was seen is printed.
///
/// # Errors
/// It cannot be written, or signals cannot be handled.
pub fn probe(args: &MigrateArgs, time: Duration) -> Result<(), AgentError> {
    let signals = Signals::new().map_err(failed("handle signals"))?;
    let watch = |detector: Box<dyn Preemption>| watch(&*detector, time, &signals);
    let preemption = probed("preemption", &preemption::DETECTORS, args.preemption(), watch);
    let look = |detector| look(detector, time, &signals);
    let loads = probed("loads", &loads::DETECTORS, args.loads(), look);
    let interrupts = interrupts()?.into_iter();
    for probed in preemption.chain(loads).chain(interrupts) {
        let line = match args.format {
            Format::Json => serde_json::to_string(&probed).expect("plain data"),
            Format::Text => probed.to_string(),
        };
        print(&(line + "\n"))?;
    }
    Ok(())
}

/// Opens each of these detectors, or the one that is wanted, and looks with it.
fn probed<T: ?Sized>(
    what: &'static str,
    detectors: &Detectors<T>,
    wanted: Option<&str>,
    look: impl Fn(Box<T>) -> io::Result<Looked>,
) -> impl Iterator<Item = Probed> {
    detectors.names(wanted).map(move |name| {
        let opened = detectors.open(Some(name)).map_err(|e| e.to_string());
        let begun = clock::now();
        let seen = opened.and_then(|chosen| look(chosen.detector).map_err(|e| e.to_string()));
        Probed::new(what, name, clock::now().since(begun), seen)
    })
}

/// Disks with fewer queues than there are vCPUs: can their interrupts follow tasks?
fn interrupts() -> Result<Vec<Probed>, AgentError> {
    let vcpus = procfs::online().map_err(failed("read /sys/devices/system/cpu/online"))?;
    let disks = steering::narrow_disks(&Linux, vcpus.iter().count(), &[]);
    let disks = disks.map_err(failed("read /proc/interrupts"))?;
    let probed = |narrow: NarrowDisk| {
        let seen = narrow.fixed.map_or_else(|| Ok(Looked::default()), Err);
        Probed::new("interrupts", narrow.disk.name, Nanos::ZERO, seen)
    };
    Ok(disks.into_iter().map(probed).collect())
}

/// Waits for this time, or until a signal asks for the end.
fn pause(time: Duration, signals: &Signals) -> io::Result<()> {
    let end = clock::now() + Nanos::new(time.as_nanos() as u64);
    while !signals.ending() && clock::now() < end {
        signals.wait(Duration::from_nanos(end.since(clock::now()).get()), None)?;
    }
    Ok(())
}

fn look(mut detector: Box<dyn Loads>, time: Duration, signals: &Signals) -> io::Result<Looked> {
    let mut loads = Vec::new();
    detector.window(clock::now(), &mut loads)?;
    pause(time, signals)?;
    detector.window(clock::now(), &mut loads)?;
    let waiting = |load: ThreadLoad| Waiting {
        tid: load.tid,
        pid: load.pid,
        vcpu: load.vcpu.index(),
        waited_us: load.waited.get() / 1000,
        ran_us: load.ran.get() / 1000,
        ios: load.ios,
    };
    Ok(Looked { waiting: loads.into_iter().map(waiting).collect(), ..Looked::default() })
}

/// With a monitor on each vCPU. One that has to be told when to beat sees nothing by itself.
fn watch(detector: &dyn Preemption, time: Duration, signals: &Signals) -> io::Result<Looked> {
    if detector.bells().is_none() {
        return Ok(Looked::default());
    }
    let online = procfs::online()?;
    let ended = &AtomicBool::new(false);
    let (sender, wakers) = mpsc::channel();
    let mut all = thread::scope(|scope| -> io::Result<Looked> {
        let watch = |vcpu| {
            let sender = sender.clone();
            scope.spawn(move || watch_one(detector, vcpu, &sender, ended))
        };
        let threads: Vec<_> = online.iter().map(watch).collect();
        drop(sender);
        let paused = pause(time, signals);
        ended.store(true, Ordering::Release);
        wakers.iter().for_each(|waker: Waker| waker.wake());
        let mut all = Looked::default();
        for thread in threads {
            let one = thread.join().expect("nothing in it panics")?;
            all.edges.extend(one.edges);
            all.wakeups += one.wakeups;
            all.cpu_us += one.cpu_us;
        }
        paused.map(|()| all)
    })?;
    // A loss and a return at the same moment are in that order.
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
) -> io::Result<Looked> {
    settle(vcpu)?;
    let mut monitor = detector.monitor(vcpu)?;
    let waker = monitor.waker()?;
    wakers.send(waker).map_err(|_| io::ErrorKind::BrokenPipe)?;
    let (mut seen, mut looked, before) = (Vec::new(), Looked::default(), cpu_time());
    while !ended.load(Ordering::Acquire) {
        monitor.wait(None, None, &mut seen)?;
        let told_ns = clock::now().as_nanos();
        looked.wakeups += 1;
        looked.edges.extend(seen.drain(..).map(|Seen { at, vcpu, sign }| Edge {
            vcpu: vcpu.index(),
            away: matches!(sign, Sign::Preempted | Sign::Lost { .. }),
            at_ns: at.as_nanos(),
            told_ns,
        }));
    }
    looked.cpu_us = cpu_time().saturating_sub(before).get() / 1000;
    Ok(looked)
}

fn cpu_time() -> Nanos {
    Nanos::new(clock::read(libc::CLOCK_THREAD_CPUTIME_ID))
}

impl Probed {
    fn new(
        what: &'static str,
        way: impl Into<String>,
        time: Nanos,
        seen: Result<Looked, String>,
    ) -> Probed {
        let (missing, looked) = match seen {
            Ok(looked) => (None, looked),
            Err(why) => (Some(why), Looked::default()),
        };
        Probed { what, way: way.into(), missing, looked_ms: time.get() / 1_000_000, looked }
    }

    /// How often each vCPU that was away was given back, and its time away before that.
    fn away(&self) -> Vec<(usize, u64, Nanos)> {
        let mut vcpus: Vec<(usize, u64, Nanos)> = Vec::new();
        for pair in self.looked.edges.windows(2) {
            let [lost, back] = pair else { continue };
            if lost.vcpu != back.vcpu || !lost.away || back.away {
                continue;
            }
            if vcpus.last().is_none_or(|last| last.0 != lost.vcpu) {
                vcpus.push((lost.vcpu, 0, Nanos::new(0)));
            }
            if let Some((_, times, time)) = vcpus.last_mut() {
                *times += 1;
                *time += Nanos::new(back.at_ns.saturating_sub(lost.at_ns));
            }
        }
        vcpus
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Probed { what, way, missing, looked_ms, looked } = self;
        match missing {
            None => write!(f, "{what}: {way}: yes")?,
            Some(why) => write!(f, "{what}: {way}: no: {why}")?,
        }
        for (vcpu, times, time) in self.away() {
            let each = time.as_millis_f64() / times as f64;
            write!(
                f,
                "\n  vCPU {vcpu} was away {times} times in {looked_ms} ms, {each:.1} ms each"
            )?;
        }
        for it in &looked.waiting {
            let percent = it.waited_us / 10 / looked_ms.max(&1);
            let Waiting { tid, vcpu, ios, .. } = it;
            write!(
                f,
                "\n  thread {tid} on vCPU {vcpu} waits {percent} % of the time ({ios} I/Os)"
            )?;
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
        let seen = Ok(Looked { edges, ..Looked::default() });
        let probed = Probed::new("preemption", "x", Nanos::from_millis(100), seen);
        let text = "preemption: x: yes
  vCPU 0 was away 2 times in 100 ms, 15.0 ms each
  vCPU 2 was away 1 times in 100 ms, 2.0 ms each";
        assert_eq!(probed.to_string(), text);
    }
}
