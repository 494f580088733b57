//! Tests on the running kernel: they need the right to load BPF programs and a host whose KVM tells
//! steal time, and skip where there is none.

use super::*;
use crate::migrate::clock;
use crate::migrate::preemption::thread::settle;
use crate::migrate::preemption::{Preemption, Seen};
use seekway_core::units::Instant;
use seekway_vcpu::{Sign, VCPUS_MAX, VcpuId};
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

/// Loads the programs, or prints the reason and returns `None`.
fn possible() -> Option<Arc<Edges>> {
    match open() {
        Ok(steal) => Some(steal),
        Err(reason @ (BpfError::Forbidden(_) | BpfError::Absent(_) | BpfError::NoTypes(_))) => {
            seekway_testing::skip(reason);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Collects what the monitor of a vCPU tells until then.
fn watch(steal: &Arc<Edges>, vcpu: VcpuId, until: Instant) -> JoinHandle<Vec<Seen>> {
    let mut monitor = steal.monitor(vcpu).unwrap();
    thread::spawn(move || {
        settle(vcpu).unwrap();
        let mut seen = Vec::new();
        while clock::now() < until {
            monitor.wait(Some(until), None, &mut seen).unwrap();
        }
        seen
    })
}

/// From the begin to the end.
type Span = (Instant, Instant);

/// The times for which a thread of this vCPU that looks at the clock all the time, as
/// ordinary threads may, did not see it.
fn gaps(vcpu: VcpuId, until: Instant) -> JoinHandle<Vec<Span>> {
    thread::spawn(move || {
        settle(vcpu).unwrap();
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameter lives through the call, and 0 names the caller.
        assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const none) }, 0);
        let (mut gaps, mut last) = (Vec::new(), clock::now());
        while last < until {
            let now = clock::now();
            if now.since(last) > Nanos::from_micros(50) {
                gaps.push((last, now));
            }
            last = now;
        }
        gaps
    })
}

/// The losses and returns of a vCPU, two by two.
fn absences(seen: &[Seen], vcpu: VcpuId) -> Vec<Span> {
    let mut own: Vec<&Seen> = seen.iter().filter(|seen| seen.vcpu == vcpu).collect();
    own.sort_by_key(|seen| seen.at);
    let pairs = own.chunks(2).map(|pair| {
        assert_eq!(pair[0].sign, Sign::Preempted, "{own:?}");
        let back = pair.get(1).map(|back| {
            assert_eq!(back.sign, Sign::Resumed, "{own:?}");
            back.at
        });
        Some((pair[0].at, back?))
    });
    pairs.flatten().collect()
}

/// Time that was stolen of all vCPUs, as the kernel counts it, in hundredths of a second.
fn stolen() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let line = stat.lines().next().unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// A vCPU that is away sees no clock. A return is seen at the next timer or switch, which may be a
/// tick later (10 ms at most), and the loss is then as much too late.
#[test]
fn who_was_away_did_not_run_meanwhile() {
    let Some(steal) = possible() else { return };
    let vcpus: Vec<VcpuId> = (0..possible_vcpus().unwrap() as u16).map(VcpuId::new).collect();
    let tick = Nanos::from_millis(10);
    let (mut found, mut strange, before) = (0, 0, stolen());
    for round in 0..20 {
        let until = clock::now() + Nanos::from_millis(500);
        let last = vcpus[round % vcpus.len()];
        let gaps = gaps(last, until);
        let watches: Vec<_> = vcpus.iter().map(|&vcpu| watch(&steal, vcpu, until)).collect();
        let seen: Vec<Seen> = watches.into_iter().flat_map(|w| w.join().unwrap()).collect();
        let gaps = gaps.join().unwrap();
        for (from, back) in absences(&seen, last) {
            let away = back.since(from);
            let fits = |gap: &&Span| {
                gap.0 < back && from < gap.1 + tick && gap.1.since(gap.0) + LEAST > away
            };
            let gap = gaps.iter().find(fits);
            eprintln!("{last:?} away for {away:?}, no clock for {:?}", gap.map(|g| g.1.since(g.0)));
            // An absence that began before the thread did is not in its record.
            found += usize::from(gap.is_some());
            // Many small steals between two looks are told as one loss, which matches no single
            // gap.
            strange += usize::from(gap.is_none() && gaps.first().is_some_and(|g| from >= g.0));
        }
        if found >= 3 {
            assert!(strange <= found, "{strange} of {} fit no gap", strange + found);
            return;
        }
    }
    // Steal that the kernel accounts for itself was not seen.
    let stolen = stolen().saturating_sub(before);
    eprintln!("{found} absences and {stolen} ticks of steal in ten seconds");
    assert!(found > 0 || stolen < 100, "{stolen} ticks of steal, and nobody was away");
    seekway_testing::skip("a host that takes vCPUs away for long enough");
}

/// Each edge is told once, by the first monitor.
#[test]
fn a_monitor_tells_what_no_other_has_told() {
    let Some(steal) = possible() else { return };
    let vcpu = &steal.vcpus.records()[0];
    // As the programs count an absence.
    let before = vcpu.edges.fetch_add(2, Ordering::AcqRel);
    let edges = before + 2;
    steal.told[0].store(before, Ordering::Release);
    let first_two = |seen: &[Seen]| -> Vec<Sign> {
        seen.iter().filter(|seen| seen.vcpu == VcpuId::new(0)).take(2).map(|s| s.sign).collect()
    };
    let (mut once, mut again) = (Vec::new(), Vec::new());
    steal.news(&mut once);
    steal.news(&mut again);
    let told = first_two(&once);
    assert!(told.len() == 2 || edges & 1 == 1, "{once:?}");
    assert!(again.is_empty() || vcpu.edges.load(Ordering::Acquire) != edges, "{again:?}");
}

/// The kernel's verifier follows each way through the programs, and their loops are as long
/// as there are vCPUs.
#[test]
fn the_programs_load_for_any_number_of_vcpus() {
    if possible().is_none() {
        return;
    }
    for vcpus in [1, 2, 3, 4, 8, 16, 17, 64, VCPUS_MAX] {
        if let Err(e) = with(vcpus) {
            panic!("{vcpus} vCPUs: {e}");
        }
    }
}

/// The processor and the kernel agree, unless the kernel's command line disables it.
#[test]
fn where_the_programs_are_told_the_processor_says_so() {
    match with(1) {
        Ok(_) => assert_ne!(kvm_offers_steal_time(), Some(false)),
        Err(e) => seekway_testing::skip(e),
    }
}
