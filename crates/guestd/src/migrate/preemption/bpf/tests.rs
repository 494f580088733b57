//! On the running kernel: they need the right to load BPF programs and a host whose KVM
//! tells of steal time, and say so where there is none.

use super::*;
use crate::migrate::preemption::thread::settle;
use std::thread;

/// The programs, or `None` with the reason printed where this machine has not got what
/// they need.
fn possible() -> Option<Steal> {
    match Steal::open() {
        Ok(steal) => Some(steal),
        Err(reason @ (BpfError::Forbidden(_) | BpfError::Absent(_) | BpfError::NoTypes(_))) => {
            eprintln!("skipped: {reason}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// What the monitor of a vCPU tells for a while.
fn watch(steal: &Steal, vcpu: VcpuId, until: Instant) -> thread::JoinHandle<Vec<Seen>> {
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

/// Nanoseconds for which a vCPU was away by the kernel's own account, which counts in
/// hundredths of a second.
fn stolen(vcpu: VcpuId) -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let name = format!("cpu{}", vcpu.index());
    let line = text.lines().find(|line| line.split(' ').next() == Some(&name)).unwrap();
    line.split(' ').nth(8).unwrap().parse::<u64>().unwrap() * 10_000_000
}

#[test]
fn edges_come_in_turn_and_add_up_to_no_more_than_was_stolen() {
    let Some(steal) = possible() else { return };
    let until = clock::now() + Nanos::from_millis(1500);
    let vcpus: Vec<VcpuId> = (0..possible_vcpus() as u16).map(VcpuId::new).collect();
    let before: Vec<u64> = vcpus.iter().map(|&vcpu| stolen(vcpu)).collect();
    let watches: Vec<_> = vcpus.iter().map(|&vcpu| watch(&steal, vcpu, until)).collect();
    let mut seen: Vec<Seen> = watches.into_iter().flat_map(|w| w.join().unwrap()).collect();
    seen.sort_by_key(|seen| seen.at);
    for (&vcpu, before) in vcpus.iter().zip(before) {
        let own: Vec<&Seen> = seen.iter().filter(|seen| seen.vcpu == vcpu).collect();
        let of = |seen: &Seen| seen.sign == Sign::Preempted;
        assert!(own.chunks(2).all(|pair| of(pair[0]) && pair.get(1).is_none_or(|s| !of(s))));
        let away = |pair: &[&Seen]| pair[1].at.since(pair[0].at).get();
        let away: u64 = own.chunks_exact(2).map(away).sum();
        let stolen = stolen(vcpu) - before;
        eprintln!("{vcpu:?}: {} losses, {away} ns; stolen {stolen} ns", own.len() / 2);
    }
}
