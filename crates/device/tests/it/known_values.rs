//! Figures that can be worked out by hand from a profile.

use crate::common;

use common::{metric, request, serve};
use seekway_core::mix;
use seekway_core::request::Op;
use seekway_core::units::{Instant, SECTOR_BYTES};
use seekway_device::profile;

const DISKS: [&str; 7] = [
    "cheetah-15k4",
    "cheetah-15k5",
    "cheetah-9lp",
    "atlas-10k",
    "seagate-1tb-7200",
    "seagate-exos-x18",
    "seagate-exos-x24",
];

/// Time of a turn, and sectors a track in the first zone, with the time that
/// track and cylinder skews add per track there, in turns.
fn outer_zone(name: &str) -> (f64, f64, f64) {
    match name {
        "cheetah-15k4" => (60e9 / 15_000.0, 852.0, 0.14314),
        "cheetah-15k5" => (60e9 / 15_017.477, 1_200.0, 0.14314),
        "cheetah-9lp" => (60e9 / 10_045.0, 254.0, (11.0 * 97.0 + 133.0) / 12.0 / 254.0),
        "atlas-10k" => (60e9 / 10_025.0, 334.0, (5.0 * 63.0 + 113.0) / 6.0 / 334.0),
        "seagate-1tb-7200" => (60e9 / 7_200.0, 1_800.0, (7.0 * 86.0 + 182.0) / 8.0 / 1_800.0),
        "seagate-exos-x18" => (60e9 / 7_200.0, 4_574.0, 0.34 / 8.3333),
        "seagate-exos-x24" => (60e9 / 7_200.0, 4_828.0, 0.34 / 8.3333),
        _ => unreachable!("{name}"),
    }
}

#[test]
fn a_sequential_stream_runs_at_the_zone_s_rate() {
    for name in DISKS {
        let profile = profile::load(name).unwrap();
        let (turn_ns, sectors_per_track, skew) = outer_zone(name);
        // 128 KiB each, 32 MiB in all, one after the other without a pause.
        let mut device = profile.build();
        let mut now = serve(&mut *device, 0, Op::Read, 0, 256);
        let begin = now;
        for i in 1..=256 {
            now = serve(&mut *device, now, Op::Read, 256 * i, 256);
        }
        let measured = 256.0 * 256.0 / (now - begin) as f64;
        // The slower of medium and bus.
        let medium = sectors_per_track / (turn_ns * (1.0 + skew));
        let slow_bus = matches!(name, "cheetah-9lp" | "atlas-10k");
        if slow_bus {
            assert!(measured < medium, "{name}");
        } else {
            let error = measured / medium - 1.0;
            assert!(
                error.abs() < 0.04,
                "{name}: {:.1} % off {:.1} MB/s",
                100.0 * error,
                medium * 512e3
            );
        }
    }
}

#[test]
fn random_reads_take_overhead_seek_and_half_a_turn() {
    for name in DISKS {
        let profile = profile::load(&format!("{name}:read_ahead=false")).unwrap();
        let disk = profile.build_disk().unwrap();
        let m = disk.mechanics();
        let mut device = profile.build();
        let (mut now, mut state, n) = (0, 1, 40_000_u64);
        let capacity = profile.capacity_sectors() - 8;
        // The formula's result for these very offsets: the mean seek depends on the layout, not on
        // the cylinders being equally likely.
        let (mut service, mut expected, mut cylinder) = (0, 0.0, 0_u32);
        let overhead = device.profile().seek[0].1.get() as f64 - m.seek.knots()[0].1 as f64;
        for _ in 0..n {
            let lba = mix::next(&mut state) % capacity;
            let place = m.geometry.locate(lba);
            let sector = m.rotation_ns as f64 / f64::from(m.geometry.sectors_per_track(place.zone));
            expected += overhead
                + m.seek.time_ns(cylinder.abs_diff(place.track.cylinder)) as f64
                + m.rotation_ns as f64 / 2.0
                + sector * 8.0;
            cylinder = place.track.cylinder;
            let done = serve(&mut *device, now, Op::Read, lba, 8);
            service += done - now;
            now = done + mix::next(&mut state) % 5_000_000;
        }
        // The slow buses of the old drives add the time that does not overlap.
        let bus = if matches!(name, "cheetah-9lp" | "atlas-10k") { 7.0 * 0.1e6 } else { 0.0 };
        let error = service as f64 / (expected + bus * n as f64) - 1.0;
        assert!(error.abs() < 0.02, "{name}: {:.2} % off", 100.0 * error);
    }
}

#[test]
fn read_ahead_in_idle_time_decides_what_a_gap_costs() {
    for (idle, hits) in [(true, true), (false, false)] {
        let profile = profile::load(&format!("seagate-1tb-7200:read_ahead_idle={idle}")).unwrap();
        let mut device = profile.build();
        let turn = device.profile().rotation.unwrap().get();
        let first = serve(&mut *device, 0, Op::Read, 1_000_000, 8);
        let after = first + 500_000;
        let service = serve(&mut *device, after, Op::Read, 1_000_008, 8) - after;
        assert_eq!(metric(&*device, "cache_hits") == 1.0, hits);
        if hits {
            assert!(service < 200_000, "{service} ns");
        } else {
            // The sectors have just passed: nearly the whole turn is lost.
            assert!(service > turn * 9 / 10 && service < turn * 11 / 10, "{service} ns");
        }
    }
}

#[test]
fn back_to_back_needs_no_idle_time() {
    let profile = profile::load("seagate-1tb-7200:read_ahead_idle=false").unwrap();
    let mut device = profile.build();
    let mut now = serve(&mut *device, 0, Op::Read, 0, 256);
    for i in 1..100 {
        now = serve(&mut *device, now, Op::Read, 256 * i, 256);
    }
    assert_eq!(metric(&*device, "mechanical"), 1.0);
    assert_eq!(metric(&*device, "stream_hits") + metric(&*device, "cache_hits"), 99.0);
}

#[test]
fn a_command_cuts_read_ahead_short_or_waits_for_it() {
    let elsewhere = |cut: bool, lba: u64| {
        let what = format!("seagate-1tb-7200:cut_short={cut}");
        let mut device = profile::load(&what).unwrap().build();
        let now = serve(&mut *device, 0, Op::Read, 0, 8);
        serve(&mut *device, now, Op::Read, lba, 8) - now
    };
    // 1024 sectors at 1800 a turn are 4.7 ms; rotation makes a whole turn of it or nothing.
    let turn = 8_333_333;
    let late = (1..=100).map(|i| 10_000_000 * i).filter(|&lba| {
        let (cut, waits) = (elsewhere(true, lba), elsewhere(false, lba));
        assert!(waits == cut || waits.abs_diff(cut + turn) < 1_000, "{cut} {waits}");
        waits > cut
    });
    let share = late.count() as f64 / 100.0;
    assert!((0.42..0.72).contains(&share), "4.7 ms of 8.3 ms, but {share} of the reads were late");
}

#[test]
fn a_write_cache_answers_at_once_and_a_flush_pays() {
    let mut device = profile::load("seagate-1tb-7200:write_cache=true").unwrap().build();
    let mut now = 0;
    for i in 0..8 {
        let done = serve(&mut *device, now, Op::Write, 200_000_000 * i, 8);
        assert!(done - now < 1_000_000, "write {i} took {} ns", done - now);
        now = done;
    }
    let flushed = serve(&mut *device, now, Op::Flush, 0, 1);
    assert!(flushed - now > 30_000_000, "eight writes far apart take their time");
    assert_eq!(metric(&*device, "destages"), 8.0);
    assert!(serve(&mut *device, flushed, Op::Flush, 0, 1) - flushed < 1_000_000);

    let mut through = profile::load("seagate-1tb-7200").unwrap().build();
    let done = serve(&mut *through, 0, Op::Write, 1_000_000_000, 8);
    assert!(done > 5_000_000, "written through in {done} ns");
}

#[test]
fn cached_writes_reach_the_medium_in_their_order_or_the_nearest_first() {
    // Far apart by turns: in order of arrival the arm crosses the disk for each.
    let flushed = |order: &str| {
        let what =
            format!("seagate-1tb-7200:write_cache=true,write_segments=32,write_order={order}");
        let mut device = profile::load(&what).unwrap().build();
        let mut now = 0;
        for i in 0..32 {
            now = serve(&mut *device, now, Op::Write, 1_900_000_000 * (i % 2) + 16 * i, 8);
        }
        let done = serve(&mut *device, now, Op::Flush, 0, 1);
        assert_eq!(metric(&*device, "destages"), 32.0, "{order}");
        done - now
    };
    let (arrival, nearest) = (flushed("fcfs"), flushed("sptf"));
    assert!(arrival > 4 * nearest, "{arrival} ns, the nearest first {nearest} ns");
}

#[test]
fn choosing_the_nearest_beats_taking_turns() {
    let total = |order: &str| {
        let what = format!("seagate-1tb-7200:queue_depth=16,queue_order={order}");
        let profile = profile::load(&what).unwrap();
        let mut device = profile.build();
        let (mut state, mut now, mut in_flight) = (7, 0, 0);
        for _ in 0..2_000 {
            while in_flight >= 16 {
                now = device.next_completion().unwrap().as_nanos();
                while device.pop_completed(Instant::from_nanos(now)).is_some() {
                    in_flight -= 1;
                }
            }
            let lba = mix::next(&mut state) % (profile.capacity_sectors() - 8);
            device.submit(Instant::from_nanos(now), &request(Op::Read, lba, 8));
            in_flight += 1;
        }
        now as f64
    };
    let gain = total("fcfs") / total("sptf");
    assert!((1.6..3.5).contains(&gain), "16 commands deep: {gain:.2} times as fast");
}

#[test]
fn the_profile_s_knots_cover_the_device() {
    for name in DISKS {
        let p = profile::load(name).unwrap().build().profile();
        let last = p.seek.last().unwrap().0.get();
        assert!(last <= p.capacity.get() && last * 20 > p.capacity.get() * 19, "{name}");
        assert!(p.seek.windows(2).all(|w| w[0].0 < w[1].0), "{name}");
        assert!(p.capacity.get() * SECTOR_BYTES > 9_000_000_000, "{name}");
    }
}
