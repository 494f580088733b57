//! Costs of BPF: of each run of the programs, which is CPU time of whichever task runs there, and
//! of the agent's own part.

use super::{VCPU, cpu_time, print_windows, with_readers};
use crate::migrate::bpf::Cost;
use crate::migrate::clock;
use crate::migrate::loads::bpf::Bpf;
use crate::migrate::preemption::Preemption;
use crate::migrate::preemption::bpf::steal;
use crate::migrate::preemption::thread::settle;
use libbpf_rs::libbpf_sys;
use seekway_core::units::{Instant, Nanos};
use std::os::fd::{FromRawFd, OwnedFd};
use std::thread;

/// Makes the kernel count the programs' costs while this lives (some 20 ns more for each run).
fn count() -> OwnedFd {
    // SAFETY: a number, and the descriptor that it gives is ours.
    unsafe {
        let fd = libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME);
        assert!(fd >= 0, "bpf_enable_stats: {fd}: root may");
        OwnedFd::from_raw_fd(fd)
    }
}

fn print(what: &str, over: Nanos, costs: &[Cost]) {
    for Cost { name, runs, ns } in costs.iter().filter(|cost| cost.runs > 0) {
        let percent = *ns as f64 * 100.0 / over.get() as f64;
        println!("{what}: {name}: {} ns each, {runs} times: {percent:.3} % of a vCPU", ns / runs);
    }
    let sum: u64 = costs.iter().map(|cost| cost.ns).sum();
    println!("{what}: together {:.3} % of a vCPU", sum as f64 * 100.0 / over.get() as f64);
}

#[test]
#[ignore = "prints figures"]
fn costs_of_bpf_programs() {
    for readers in [0, 1, 10] {
        with_readers(readers, || {
            let _counting = count();
            let (mut loads, steal) = (Bpf::open(-1).unwrap(), steal::open());
            let begin = clock::now();
            print_windows(&format!("{readers} readers"), "bpf", &mut loads);
            let over = clock::now().since(begin);
            print(&format!("{readers} readers, waits"), over, &loads.programs.costs());
            if let Ok(steal) = &steal {
                print(&format!("{readers} readers, steal"), over, &steal.costs());
            }
        });
    }
}

/// Costs of a monitor that is told of preemptions, in its own CPU time.
#[test]
#[ignore = "prints figures"]
fn costs_of_a_monitor_by_steal() {
    let steal = match steal::open() {
        Ok(steal) => steal,
        Err(e) => return seekway_testing::skip(e),
    };
    let until: Instant = clock::now() + Nanos::from_secs(10);
    thread::scope(|scope| {
        scope.spawn(|| {
            settle(VCPU).unwrap();
            let mut monitor = steal.monitor(VCPU).unwrap();
            let (mut seen, mut edges, mut woken, before) = (Vec::new(), 0, 0, cpu_time());
            while clock::now() < until {
                monitor.wait(Some(until), None, &mut seen).unwrap();
                (edges, woken) = (edges + seen.len(), woken + 1);
                seen.clear();
            }
            let spent = cpu_time().saturating_sub(before).get();
            println!(
                "steal-bpf: {edges} edges in ten seconds; {} ns for each of {woken} wake-ups: \
                 {:.4} % of a vCPU",
                spent / woken,
                spent as f64 / 1e8
            );
        });
    });
}
