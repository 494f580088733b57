//! Iometer's patterns as the disk sees them.

use crate::device;

use device::vm;
use seekway_core::request::Op;
use seekway_workload::Issue;

fn adjacent(requests: &[Issue]) -> bool {
    requests.windows(2).all(|w| w[0].start + w[0].len == w[1].start)
}

#[test]
fn a_direct_block_of_512_bytes_is_one_sector() {
    for depth in [1, 8] {
        let done = vm(&format!("app=iometer:block=512b,requests=2000,depth={depth}"), 1);
        let reads = done.of(Op::Read);
        assert_eq!((reads.len(), done.in_flight_max), (2000, depth));
        assert!(reads.iter().all(|i| i.len.get() == 1));
        assert!(adjacent(&reads));
    }
}

#[test]
fn small_writes_at_random_stay_small() {
    let done = vm("journal=none,app=iometer:block=512b,read=0,random=100,requests=500", 1);
    let writes = done.of(Op::Write);
    let small: Vec<_> = writes.iter().filter(|i| i.len.get() == 1).collect();
    assert_eq!(small.len(), 500);
    assert!(small.windows(2).any(|w| w[1].start < w[0].start));
    // What remains is the inode.
    assert!(writes.len() < 510, "{}", writes.len());
}

#[test]
fn through_the_page_cache_small_blocks_become_read_ahead() {
    let done = vm("app=iometer:block=512b,requests=20000,direct=false", 1);
    let reads = done.of(Op::Read);
    assert!(adjacent(&reads));
    let sectors: u64 = reads.iter().map(|i| i.len.get()).sum();
    assert!((20_000..20_000 + 512).contains(&sectors), "{sectors}");
    assert!(reads.len() < 20_000 / 100, "{} requests", reads.len());
}

#[test]
fn the_shares_are_kept_and_sequence_goes_on_behind_a_random_access() {
    let done = vm("journal=none,app=iometer:read=70,random=30,requests=5000,block=8k", 3);
    // The inode, written in place, lies below 193 MiB.
    let is_data = |i: &Issue| i.start.get() >= 193 * 2048;
    let data: Vec<_> = done.issued.iter().map(|i| i.1).filter(is_data).collect();
    assert_eq!(data.len(), 5000);
    let reads = data.iter().filter(|i| i.op == Op::Read).count();
    assert!((3350..3650).contains(&reads), "{reads} reads of 5000"); // sd 32
    let sequential = data.windows(2).filter(|w| w[0].start + w[0].len == w[1].start).count();
    assert!((3350..3650).contains(&sequential), "{sequential} in sequence");
}

#[test]
fn the_rate_is_met_by_both_arrivals() {
    for arrival in ["fixed", "exponential"] {
        let text = format!(
            "app=iometer:block=64k,random=100,iops=300,depth=64,arrival={arrival},requests=0,\
             runtime=20s"
        );
        let done = vm(&text, 4);
        let n = done.issued.len();
        assert!((5700..6300).contains(&n), "{arrival}: {n} requests in 20 s"); // sd 77
        let took = done.apps[0].finished.unwrap().as_secs_f64();
        assert!((took - 20.0).abs() < 0.01, "{arrival}: {took}");
        // Half of them keep an even interval, or none does.
        let even = done
            .issued
            .windows(2)
            .filter(|w| (3_333_000..3_334_000).contains(&w[1].0.since(w[0].0).get()));
        assert_eq!(even.count() * 2 > n, arrival == "fixed");
    }
}

#[test]
fn what_is_late_is_made_up_for_or_dropped() {
    // 2 at a time of 500 us each are 4000 a second: 5000 are asked for.
    let text = |late| {
        format!("app=iometer:random=100,iops=5000,depth=2,late={late},requests=0,runtime=2s")
    };
    let (queue, drop) = (vm(&text("queue"), 1), vm(&text("drop"), 1));
    assert_eq!((queue.in_flight_max, drop.in_flight_max), (2, 2));
    assert!(queue.issued.len() > 7800, "{}", queue.issued.len());
    assert!(drop.issued.len() < queue.issued.len());
    assert!(drop.issued.len() > 5000, "{}", drop.issued.len());
}

#[test]
fn requests_and_runtime_end_it_whichever_comes_first() {
    let done = vm("app=iometer:requests=100,runtime=10s", 1);
    assert_eq!(done.issued.len(), 100);
    let done = vm("app=iometer:requests=1000000,runtime=1s", 1);
    assert!(done.apps[0].finished.unwrap().as_secs_f64() < 1.01);
}
