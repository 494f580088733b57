//! The drive's on-board cache, rule by rule, through the drive itself: which of
//! a sequence of reads it serves from its segments.

use crate::common;

use seekway_core::request::Op;
use seekway_device::DeviceModel;
use seekway_device::profile;

/// Longer than any seek, a turn and the longest read-ahead here.
const IDLE_NS: u64 = 60_000_000;

struct Drive {
    model: Box<dyn DeviceModel>,
    now_ns: u64,
}

impl Drive {
    /// A Cheetah 15K.4 with changes.
    fn new(changes: &str) -> Drive {
        let profile = profile::load(&format!("cheetah-15k4:{changes}")).unwrap();
        Drive { model: profile.build(), now_ns: 0 }
    }

    /// Does a command once the one before is done; how long it took.
    fn serve(&mut self, op: Op, start: u64, sectors: u64) -> u64 {
        let begin_ns = self.now_ns;
        self.now_ns = common::serve(&mut *self.model, begin_ns, op, start, sectors);
        self.now_ns - begin_ns
    }

    /// Reads 8 sectors; did the cache have them?
    fn hits(&mut self, start: u64) -> bool {
        let before = self.metric("cache_hits");
        self.serve(Op::Read, start, 8);
        self.metric("cache_hits") > before
    }

    /// Idles, then reads 8 sectors; did the cache have them?
    fn hits_later(&mut self, start: u64) -> bool {
        self.now_ns += IDLE_NS;
        self.hits(start)
    }

    fn metric(&self, name: &str) -> f64 {
        common::metric(&*self.model, name)
    }
}

const A: u64 = 0;
const B: u64 = 10_000_000;
const C: u64 = 20_000_000;

#[test]
fn fifo_drops_the_oldest_segment_and_lru_the_unused() {
    for (replacement, has_a, has_b) in [("fifo", false, true), ("lru", true, false)] {
        for (probe, expected) in [(A, has_a), (B, has_b), (C, true)] {
            let changes = format!("segments=2,read_ahead=false,replacement={replacement}");
            let mut d = Drive::new(&changes);
            assert!(!d.hits(A) && !d.hits(B));
            assert!(d.hits(A), "two segments hold two runs");
            assert!(!d.hits(C));
            assert_eq!(d.hits(probe), expected, "{replacement}, sector {probe}");
        }
    }
}

#[test]
fn a_miss_that_goes_on_in_its_segment_is_a_use_of_it() {
    // The second read begins where the first segment ends: it joins it.
    for (replacement, has_a) in [("fifo", false), ("lru", true)] {
        let mut d = Drive::new(&format!("segments=2,read_ahead=false,replacement={replacement}"));
        assert!(!d.hits(A) && !d.hits(B) && !d.hits(A + 8) && !d.hits(C));
        assert_eq!(d.hits(A), has_a, "{replacement}");
    }
    // So is a write that does.
    for (replacement, has_a) in [("fifo", false), ("lru", true)] {
        let mut d = Drive::new(&format!("segments=2,read_ahead=false,replacement={replacement}"));
        assert!(!d.hits(A) && !d.hits(B));
        d.serve(Op::Write, A + 8, 8);
        assert!(!d.hits(C));
        assert_eq!(d.hits(A), has_a, "{replacement}");
    }
}

#[test]
fn a_hit_consumes_a_segment_or_leaves_the_others_alone() {
    for (on_hit, has_b) in [("consume", false), ("extend", true), ("keep", true)] {
        let mut d = Drive::new(&format!("segments=2,on_hit={on_hit}"));
        assert!(!d.hits_later(A) && !d.hits_later(B));
        // The first hit may take A's own segment, which is the oldest; the
        // second takes B's.
        assert!(d.hits_later(A + 8) && d.hits_later(A + 16));
        assert_eq!(d.hits_later(B + 8), has_b, "{on_hit}");
    }
}

#[test]
fn a_hit_moves_read_ahead_along_or_leaves_it_where_the_miss_set_it() {
    // 8 sectors and 64 ahead are nine reads; then the next miss begins anew.
    for (changes, misses) in [
        ("on_hit=extend", 1),
        ("on_hit=consume", 1),
        ("on_hit=keep", 5),
        ("on_hit=extend,resume_below=0", 5),
        ("on_hit=extend,resume_below=8", 1),
    ] {
        let mut d = Drive::new(changes);
        let found = (0..40).filter(|i| !d.hits_later(8 * i)).count();
        assert_eq!(found, misses, "{changes}");
    }
}

#[test]
fn read_ahead_ends_at_most_where_it_should() {
    for max in [16, 64, 200] {
        let changes = format!("read_ahead_max={max},read_ahead_min=8,resume_below=0,on_hit=keep");
        for (at, expected) in [(8, true), (max, true), (max + 1, false), (max + 8, false)] {
            let mut d = Drive::new(&changes);
            assert!(!d.hits(0));
            assert_eq!(d.hits_later(at), expected, "at most {max}, sector {at}");
        }
    }
}

#[test]
fn read_ahead_goes_as_far_as_it_must_whatever_comes() {
    // In idle time when that ends it, and before a command that cuts it short.
    for min in [0, 24, 64] {
        for (at, idle_hit) in [(min, true), (min + 1, false)] {
            let changes = format!("read_ahead_min={min},read_ahead_idle=false,on_hit=keep");
            let mut d = Drive::new(&changes);
            assert!(!d.hits(0));
            assert_eq!(d.hits_later(at), idle_hit, "at least {min}, sector {at}, idle");
            let mut d = Drive::new(&format!("read_ahead_min={min},on_hit=keep"));
            assert!(!d.hits(0) && !d.hits(B));
            assert_eq!(d.hits(at), idle_hit, "at least {min}, sector {at}, cut short");
        }
    }
}

#[test]
fn read_ahead_goes_on_in_idle_time_if_the_drive_does_that() {
    for (idle, expected) in [(true, true), (false, false)] {
        let mut d = Drive::new(&format!("read_ahead_idle={idle}"));
        assert!(!d.hits(0));
        assert_eq!(d.hits_later(64), expected);
    }
}

#[test]
fn a_command_waits_for_read_ahead_or_cuts_it_short() {
    for (cut_short, expected) in [(true, false), (false, true)] {
        let mut d = Drive::new(&format!("cut_short={cut_short}"));
        assert!(!d.hits(0) && !d.hits(B));
        assert_eq!(d.hits(64), expected, "cut_short={cut_short}");
    }
    // A hit needs no arm: read-ahead of the other stream goes on.
    let mut d = Drive::new("cut_short=true,on_hit=keep");
    assert!(!d.hits(A) && !d.hits_later(B));
    assert!(d.hits(A + 8));
    assert!(d.hits_later(B + 64));
}

#[test]
fn sixty_four_lru_segments_hold_sixty_four_streams_and_no_more() {
    let misses = |streams: u64, changes: &str| {
        let mut d = Drive::new(changes);
        let rounds = (0..20).flat_map(|round| (0..streams).map(move |s| 4_000_000 * s + 8 * round));
        rounds.filter(|&at| !d.hits_later(at)).count() as u64
    };
    let lru = "replacement=lru,on_hit=extend";
    assert_eq!(misses(64, lru), 64);
    // The dropped one is always the one that comes next.
    assert_eq!(misses(65, lru), 65 * 20);
    assert_eq!(misses(64, "replacement=fifo,on_hit=consume"), 64);
}

#[test]
fn written_data_that_waits_is_read_from_the_cache_or_after_it_was_written() {
    // One segment: reading B drops written data from the segments, but they still wait for the
    // medium.
    let mut d = Drive::new("segments=1,write_cache=true,read_hits_on_writes=true");
    d.serve(Op::Write, A, 8);
    assert!(!d.hits(B));
    assert_eq!(d.metric("destages"), 0.0);
    assert!(d.hits(A), "the data is in the drive");

    let mut d = Drive::new("write_cache=true,read_hits_on_writes=false");
    d.serve(Op::Write, A, 8);
    let took = d.serve(Op::Read, A, 8);
    assert_eq!((d.metric("destages"), d.metric("mechanical")), (1.0, 2.0));
    // To read data that were just written takes the rest of a turn.
    assert!(took > 4_000_000, "{took}");
}

#[test]
fn a_write_past_the_cache_does_not_begin_before_it_came() {
    // 300 sectors fit no segment of 221; overlapping ones are written first. A turn to come back to
    // the start and a third to pass, at any phase.
    for phase in 0..6 {
        let mut d = Drive::new("write_cache=true");
        d.now_ns += IDLE_NS + 700_000 * phase;
        d.serve(Op::Write, A, 8);
        let took = d.serve(Op::Write, A, 300);
        assert_eq!(d.metric("destages"), 1.0);
        assert!(took > 4_000_000 + 1_000_000, "{took}");
    }
}
