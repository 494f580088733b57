//! Cost of rate limits for one request, on one of 64 disks in turn. `none`:
//! the disk has no limits. `pass_…`: it has some that are not used up: two of its
//! own, or two of its own and two of its group, or the same with bursts. `wait`:
//! the limits are used up, and each request waits before it goes.
//!
//! `cargo bench -p seekway-stack --bench limit`; a word after `--` selects.

#![allow(missing_docs)] // criterion_group! makes a public function

#[path = "../../policy/benches/common/mod.rs"]
mod common;

use common::measure;
use criterion::{Criterion, criterion_group, criterion_main};
use seekway_core::request::VmId;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, DiskLimits, GroupName, Limiter, Limits};
use std::hint::black_box;

const DISKS: u16 = 64;

struct Bench {
    limiter: Limiter,
    now: Instant,
    count: u32,
}

impl Bench {
    fn new(disk: &str, group: &str) -> Bench {
        let mut limiter = Limiter::new();
        let (DiskLimits { limits, group: member }, name) =
            (DiskLimits::parse(disk).unwrap(), GroupName::new("a").unwrap());
        for n in 0..DISKS {
            limiter.set_disk(Instant::ZERO, VmId::new(n), &limits, member.as_ref());
        }
        limiter.set_group(Instant::ZERO, &name, &Limits::parse(group).unwrap());
        Bench { limiter, now: Instant::ZERO, count: 0 }
    }

    /// A request of 4 KiB every microsecond.
    fn submit(&mut self) -> bool {
        self.now = self.now + Nanos::from_micros(1);
        self.count = self.count.wrapping_add(1);
        let vm = VmId::new((self.count % u32::from(DISKS)) as u16);
        let direction = Direction::ALL[(self.count & 1) as usize];
        !self.limiter.is_limited(vm)
            || self.limiter.submit(self.now, vm, direction, 4096, self.count)
    }
}

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("limit");
    let own = "iops=1000000,bandwidth=100GiB";
    let bursts = "iops=1000000,iops_burst=2000000,bandwidth=10GiB,bandwidth_burst=100GiB";
    let member = format!("{own},group=a");
    for (name, disk, limits) in [
        ("none", "none", "none"),
        ("pass_disk", own, "none"),
        ("pass_disk_and_group", &member, "iops=100000000,bandwidth=1TiB"),
        ("pass_bursts", bursts, "none"),
    ] {
        let mut this = Bench::new(disk, limits);
        group.bench_function(name, |b| {
            b.iter_custom(|times| {
                measure(times, || assert!(black_box(this.submit()), "nothing waits here"))
            });
        });
    }
    for (name, disk, limits) in
        [("wait_disk", "iops=15625", "none"), ("wait_group", "group=a", "iops=1000000")]
    {
        let mut this = Bench::new(disk, limits);
        // Use up what may pass at once: from then on one goes when one comes.
        let mut ahead = 0;
        for _ in 0..4_000_000 {
            this.now = Instant::ZERO;
            ahead += u32::from(!this.submit());
            if ahead == 1024 {
                break;
            }
        }
        group.bench_function(name, |b| {
            b.iter_custom(|times| {
                measure(times, || {
                    let passed = this.submit();
                    while let Some(item) = this.limiter.next(this.now) {
                        black_box(item);
                    }
                    black_box((passed, this.limiter.next_wake()));
                })
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::config();
    targets = requests
}
criterion_main!(benches);
