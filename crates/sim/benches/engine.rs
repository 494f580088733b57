//! Requests a second of the whole simulator on one core: source, dispatcher, policy, disk model and
//! metrics, uniformly random 4 KiB, two thirds reads, 64 outstanding.
//!
//! Targets: noop 1.5 million requests a second, pregather 0.7 million.
//! `cargo bench -p seekway-sim --bench engine`; a word after `--` selects
//! policies by name.
#![allow(missing_docs)] // criterion's macros

#[path = "../../policy/benches/common/mod.rs"]
mod common;

use common::measure;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use seekway_core::units::Lba;
use seekway_device::profile;
use seekway_policy::schedulers::{self, REGISTRY};
use seekway_sim::{Layout, Limits, Placement, Setup, run};
use seekway_workload::generators::parse_vm;
use std::time::Duration;

/// Requests of one run: enough that building it does not count.
const REQUESTS: u64 = 200_000;

/// One run; returns how many requests completed.
fn simulate(policy: &str, vms: u64) -> u64 {
    let image = 900 / vms;
    let source = |n| {
        // The first VM gets the remainder.
        let share = |all: u64| all / vms + if n == 0 { all % vms } else { 0 };
        let (outstanding, requests) = (share(64), share(REQUESTS));
        let app = format!("uniform:outstanding={outstanding},read=67,requests={requests}");
        let plan = parse_vm(&format!("image={image}g,app={app}")).expect("a plan");
        plan.source(n, n as u16).expect("a source")
    };
    let sources: Vec<_> = (0..vms).map(source).collect();
    let disks: Vec<_> = sources.iter().flat_map(|s| s.vms().iter().cloned()).collect();
    let device = profile::load("seagate-1tb-7200").expect("an embedded profile").build();
    let placement = Placement::Packed(Lba::ZERO);
    let layout = Layout::place(&disks, device.profile().capacity, &placement).expect("it fits");
    let setup = Setup::new(schedulers::build(policy).expect("a registered policy"), device, layout);
    let (result, _) = run(sources, setup, Limits::default(), &mut |_, _| true).expect("a run");
    assert!(result.finished);
    result.requests()
}

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(REQUESTS));
    group.sample_size(10);
    for entry in REGISTRY.iter() {
        group.bench_function(BenchmarkId::new(entry.name, 1), |b| {
            b.iter_custom(|times| measure(times, || assert_eq!(simulate(entry.name, 1), REQUESTS)));
        });
    }
    for policy in ["noop", "cfq", "pregather"] {
        group.bench_function(BenchmarkId::new(policy, 3), |b| {
            b.iter_custom(|times| measure(times, || assert_eq!(simulate(policy, 3), REQUESTS)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(3))
        .warm_up_time(Duration::from_millis(500));
    targets = engine
}
criterion_main!(benches);
