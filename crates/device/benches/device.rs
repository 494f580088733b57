//! Cost of a command: submit and pop; and of building a device.
#![allow(missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use seekway_core::mix;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_device::profile;

fn commands(c: &mut Criterion) {
    let mut group = c.benchmark_group("device");
    group.throughput(Throughput::Elements(1));
    for (what, sequential) in [
        ("linear-15k4", false),
        ("cheetah-15k5", false),
        ("cheetah-15k5", true),
        ("cheetah-9lp", false),
        ("seagate-1tb-7200", false),
        ("seagate-1tb-7200:queue_depth=8,queue_order=sptf", false),
        ("intel-320", false),
        ("intel-320", true),
        ("samsung-970-pro", false),
        ("raid0-8x-x25m-g2", false),
    ] {
        let profile = profile::load(what).expect("an embedded profile");
        let mut device = profile.build();
        let depth = device.queue_depth();
        let (mut state, mut now, mut next, mut in_flight) = (42, Instant::ZERO, 0, 0);
        let capacity = profile.capacity_sectors() - 8;
        let mut step = || {
            if in_flight == depth {
                now = device.next_completion().expect("commands are in flight");
                while device.pop_completed(now).is_some() {
                    in_flight -= 1;
                }
            }
            next =
                if sequential { (next + 8) % capacity } else { mix::next(&mut state) % capacity };
            let extent = Extent::new(Lba::new(next), Sectors::new(8)).expect("not empty");
            let request = Request {
                id: RequestId::new(0),
                vm: VmId::new(0),
                tag: None,
                op: Op::Read,
                sync: true,
                extent,
                arrived: now,
            };
            device.submit(now, &request);
            in_flight += 1;
        };
        let kind = if sequential { "sequential" } else { "random" };
        group.bench_function(format!("{what}/{kind} 4 KiB reads"), |b| b.iter(&mut step));
    }
    group.finish();
}

/// Experiments build a device for every run.
fn building(c: &mut Criterion) {
    let mut group = c.benchmark_group("device/build");
    for what in ["intel-320", "intel-320:filled=1", "samsung-970-pro", "raid0-8x-x25m-g2"] {
        let profile = profile::load(what).expect("an embedded profile");
        group.bench_function(what, |b| b.iter(|| profile.build().queue_depth()));
    }
    group.finish();
}

criterion_group!(benches, commands, building);
criterion_main!(benches);
