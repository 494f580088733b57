//! Measurements of the detectors' cost, which decides the agent's.
//!
//! ```sh
//! cargo test -p seekway-guestd --features bpf costs -- --ignored --nocapture --test-threads 1
//! ```

#[cfg(feature = "bpf")]
mod bpf;

use crate::migrate::clock;
use crate::migrate::loads::Loads;
use crate::migrate::loads::proc::Proc;
use crate::migrate::loads::tests::{OnDisk, Stop};
use crate::migrate::preemption::heartbeat::Heartbeat;
use crate::migrate::preemption::thread::{pin, settle};
use crate::migrate::preemption::{Monitor, Preemption};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::VcpuId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;

const VCPU: VcpuId = VcpuId::new(1);

/// Time for which the calling thread ran.
fn cpu_time() -> Nanos {
    Nanos::new(clock::read(libc::CLOCK_THREAD_CPUTIME_ID))
}

fn beat(monitor: &mut dyn Monitor, due: Instant) -> Instant {
    let mut seen = Vec::new();
    while seen.is_empty() {
        monitor.wait(None, Some(due), &mut seen).unwrap();
    }
    seen[0].at
}

/// Beats at this period for a second; their number, CPU time each, and how late in order.
fn beats(period: Nanos) -> (u64, Nanos, Vec<Nanos>) {
    let mut monitor = Heartbeat.monitor(VCPU).unwrap();
    let (mut late, mut due) = (Vec::new(), clock::now() + period);
    let (end, before) = (clock::now() + Nanos::from_secs(1), cpu_time());
    while due < end {
        let at = beat(&mut *monitor, due);
        late.push(at.since(due));
        due = at + period;
    }
    let each = cpu_time().saturating_sub(before).scaled(1, late.len() as u64);
    late.sort_unstable();
    (late.len() as u64, each, late)
}

const PERIODS_US: [u64; 3] = [300, 1000, 3000];

#[test]
#[ignore = "prints figures"]
fn costs_of_a_beat_on_an_idle_vcpu() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let rank = settle(VCPU).unwrap();
            for us in PERIODS_US {
                let (n, each, late) = beats(Nanos::from_micros(us));
                let at = |per_mille: usize| late[late.len() * per_mille / 1000].get() / 1000;
                println!(
                    "{rank}, every {us} us: {} ns of the thread's own for each of {n}; late by \
                     {} us (median), {} us (99 %), {} us (99.9 %)",
                    each.get(),
                    at(500),
                    at(990),
                    at(999)
                );
            }
        });
    });
}

/// Turns of an empty loop in a millisecond of this thread's own time, for 50 of them.
fn turns() -> f64 {
    let (begin, mut n) = (cpu_time(), 0u64);
    let end = Nanos::new(begin.get() + 50_000_000);
    loop {
        (0..1000).for_each(|_| std::hint::spin_loop());
        n += 1;
        let now = cpu_time();
        if now >= end {
            return n as f64 * 1e6 / now.saturating_sub(begin).get() as f64;
        }
    }
}

/// Measures the time that a computing thread loses to beats beside it (interrupts, caches, the
/// hypervisor's part), with beats and without in turn. The beats' own thread does not count.
#[test]
#[ignore = "prints figures"]
fn costs_of_beats_beside_a_thread_that_computes() {
    let (period_us, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            settle(VCPU).unwrap();
            let mut monitor = Heartbeat.monitor(VCPU).unwrap();
            while !stop.load(Relaxed) {
                let us = Some(period_us.load(Relaxed)).filter(|us| *us > 0).unwrap_or(5000);
                beat(&mut *monitor, clock::now() + Nanos::from_micros(us));
            }
        });
        scope.spawn(|| {
            let _end = Stop(&stop);
            pin(VCPU).unwrap();
            for us in PERIODS_US {
                let mut lost: Vec<f64> = (0..20)
                    .map(|_| {
                        period_us.store(0, Relaxed);
                        let without = turns();
                        period_us.store(us, Relaxed);
                        1.0 - turns() / without
                    })
                    .collect();
                lost.sort_unstable_by(f64::total_cmp);
                println!(
                    "every {us} us: {:.2} % of its own time (median; {:.2} to {:.2} % in half of \
                     20 pairs), {:.0} ns for each",
                    lost[10] * 100.0,
                    lost[5] * 100.0,
                    lost[15] * 100.0,
                    lost[10] * us as f64 * 1e3
                );
            }
        });
    });
}

/// CPU time of one window, at windows of 5 ms for two seconds: mean and most.
fn windows(seer: &mut dyn Loads) -> (Nanos, Nanos, usize) {
    let mut pace = Heartbeat.monitor(VCPU).unwrap();
    let (mut loads, mut at) = (Vec::new(), clock::now());
    let (mut sum, mut most, mut seen) = (Nanos::ZERO, Nanos::ZERO, 0);
    for _ in 0..400 {
        at = at + Nanos::from_millis(5);
        beat(&mut *pace, at);
        let before = cpu_time();
        seer.window(clock::now(), &mut loads).unwrap();
        let cost = cpu_time().saturating_sub(before);
        sum = Nanos::new(sum.get() + cost.get());
        (most, seen) = (most.max(cost), seen.max(loads.len()));
    }
    (sum.scaled(1, 400), most, seen)
}

fn print_windows(what: &str, name: &str, seer: &mut dyn Loads) {
    windows(seer);
    let (mean, most, seen) = windows(seer);
    println!(
        "{what}, {name}: a window costs {:.1} us (mean), {:.1} us (most): {:.2} % of a vCPU; {seen} \
         threads seen",
        mean.get() as f64 / 1e3,
        most.get() as f64 / 1e3,
        mean.get() as f64 / 50_000.0
    );
}

/// Runs `body` while `readers` threads read pages, each waiting between reads for as long as the
/// others.
fn with_readers(readers: usize, body: impl FnOnce()) {
    let Some(disk) = OnDisk::new(&format!("costs-{readers}.tmp")) else { return };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        (0..readers).for_each(|_| drop(scope.spawn(|| disk.read_until(&stop))));
        body();
    });
}

#[test]
#[ignore = "prints figures"]
fn costs_of_a_window() {
    print_windows("nobody reads", "proc", &mut Proc::open(-1).unwrap());
    for readers in [1, 10, 100] {
        with_readers(readers, || {
            let what = format!("{readers} readers");
            print_windows(&what, "proc", &mut Proc::open(-1).unwrap());
        });
    }
}

#[test]
#[ignore = "prints figures"]
fn costs_of_a_thousand_idle_threads() {
    let all = Arc::new(Barrier::new(1001));
    let idle = |all: Arc<Barrier>| {
        let small = thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || all.wait()).unwrap()
    };
    let threads: Vec<_> = (0..1000).map(|_| idle(all.clone())).collect();
    print_windows("1,000 idle, nobody reads", "proc", &mut Proc::open(-1).unwrap());
    with_readers(1, || {
        print_windows("1,000 idle, 1 reader", "proc", &mut Proc::open(-1).unwrap());
    });
    all.wait();
    threads.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
}
