//! When a row of `make hostile` is met, missed or void.

#[path = "../../benches/hostile/judge.rs"]
mod judge;

use judge::{Sample, Verdict, judge};

/// 10,000 reads a second, one after another, with a p99 of 200 µs. Each waits 10 µs for the
/// processor that reader and reactor share.
const ALONE: Sample = Sample { reads: 50_000.0, seconds: 5.0, p99_us: 200.0, waited_s: 0.5 };

fn beside(reads: f64, p99_us: f64, waited_s: f64) -> Verdict {
    judge(&ALONE, &Sample { reads, seconds: 5.0, p99_us, waited_s })
}

#[test]
fn half_of_the_reads_and_three_times_the_p99_are_met_whoever_waited() {
    for waited_s in [0.0, 4.0] {
        assert_eq!(beside(50_000.0, 200.0, waited_s), Verdict::Met);
        assert_eq!(beside(25_000.0, 600.0, waited_s), Verdict::Met);
    }
}

#[test]
fn less_is_missed_where_nobody_waited_for_a_processor() {
    assert_eq!(beside(24_000.0, 200.0, 0.0), Verdict::Missed);
    assert_eq!(beside(50_000.0, 601.0, 0.0), Verdict::Missed);
    // What the same reads wait alone is no excuse.
    assert_eq!(beside(24_000.0, 200.0, 0.24), Verdict::Missed);
    assert_eq!(beside(50_000.0, 601.0, 0.5), Verdict::Missed);
}

#[test]
fn less_is_void_where_waiting_explains_all_of_it() {
    // 20,000 reads are to take 4 s at most, and 0.2 s of waiting are theirs.
    assert_eq!(beside(20_000.0, 200.0, 1.19), Verdict::Missed);
    assert_eq!(beside(20_000.0, 200.0, 1.21), Verdict::Void);
    // The slowest 500 took up to 1 ms more than they may.
    assert_eq!(beside(50_000.0, 1600.0, 0.99), Verdict::Missed);
    assert_eq!(beside(50_000.0, 1600.0, 1.01), Verdict::Void);
    // One of two is not enough.
    assert_eq!(beside(20_000.0, 100_000.0, 1.21), Verdict::Missed);
}

#[test]
fn a_reader_that_got_nothing_is_missed() {
    assert_eq!(beside(0.0, f64::INFINITY, 5.0), Verdict::Missed);
    assert_eq!(beside(0.0, 0.0, 5.0), Verdict::Missed);
}
