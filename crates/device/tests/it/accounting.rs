//! Where a command's time goes, at queue depth 1: nothing completes before its
//! rotation is over, and overhead, seek, rotation and transfer make up the
//! time that the drive was busy.

use crate::common;

use common::{metric, request};
use proptest::prelude::*;
use seekway_core::request::{Op, RequestId};
use seekway_core::units::Instant;
use seekway_device::disk::Disk;
use seekway_device::disk::geometry::Place;
use seekway_device::disk::mechanics::Mechanics;
use seekway_device::profile;

/// Every drive's name and its profile's figures, read here once more so that the test is
/// independent of the code.
const DRIVES: [(&str, &str); 6] = [
    ("cheetah-15k4", include_str!("../../profiles/cheetah-15k4.toml")),
    ("cheetah-15k5", include_str!("../../profiles/cheetah-15k5.toml")),
    ("cheetah-9lp", include_str!("../../profiles/cheetah-9lp.toml")),
    ("atlas-10k", include_str!("../../profiles/atlas-10k.toml")),
    ("seagate-1tb-7200", include_str!("../../profiles/seagate-1tb-7200.toml")),
    ("seagate-exos-x24", include_str!("../../profiles/seagate-exos-x24.toml")),
];

/// The numbers behind `key =`, in millionths of their unit.
fn figures(profile: &str, key: &str) -> Vec<u64> {
    let line = profile.lines().find(|l| l.split('=').next().is_some_and(|k| k.trim() == key));
    let value = line.unwrap().split(['=', '#']).nth(1).unwrap();
    let numbers = value.split(['[', ']', ',']).filter_map(|n| n.trim().parse::<f64>().ok());
    numbers.map(|n| (n * 1e6).round() as u64).collect()
}

fn bus_sector_ns(profile: &str) -> u64 {
    figures(profile, "bus_sector_us")[0] / 1000
}

#[derive(Clone, Copy, Debug)]
struct Command {
    write: bool,
    /// Share of the device, or `None`: a little behind the previous command.
    at: Option<f64>,
    sectors: u64,
    gap_ns: u64,
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let at = prop_oneof![2 => (0.0..1.0).prop_map(Some), 1 => Just(None)];
    let gap = prop_oneof![2 => Just(0_u64), 1 => 0..300_000_u64, 1 => 0..60_000_000_u64];
    let command = (any::<bool>(), at, prop_oneof![Just(1_u64), 1..200_u64], gap)
        .prop_map(|(write, at, sectors, gap_ns)| Command { write, at, sectors, gap_ns });
    prop::collection::vec(command, 1..200)
}

/// One command as the drive served it.
struct Served {
    write: bool,
    sectors: u64,
    place: Place,
    begin_ns: u64,
    done_ns: u64,
    /// Increases of the metrics.
    mechanical: u64,
    seek_ns: u64,
    rotation_ns: u64,
}

/// One command after the other, each within one track.
fn serve(disk: &mut Disk, commands: &[Command], mut watch: impl FnMut(&Mechanics, &Served)) {
    let (mut now, mut next) = (0, 0);
    let mut before = metrics(disk);
    for c in commands {
        let capacity = disk.mechanics().geometry.capacity();
        let start = c.at.map_or((next + 3) % capacity, |share| (share * capacity as f64) as u64);
        let place = disk.mechanics().geometry.locate(start);
        let sectors = c.sectors.min(place.left_on_track);
        next = start + sectors;
        let begin_ns = now + c.gap_ns;
        let op = if c.write { Op::Write } else { Op::Read };
        now = common::serve(disk, begin_ns, op, start, sectors);
        let after = metrics(disk);
        let [mechanical, seek_ns, rotation_ns] = [0, 1, 2].map(|i| after[i] - before[i]);
        before = after;
        let (write, done_ns) = (c.write, now);
        let served =
            Served { write, sectors, place, begin_ns, done_ns, mechanical, seek_ns, rotation_ns };
        watch(disk.mechanics(), &served);
    }
}

/// Count of accesses to the medium, seek and rotation in ns.
fn metrics(disk: &Disk) -> [u64; 3] {
    let [seek_ms, rotation_ms] = ["seek_ms", "rotation_ms"].map(|name| metric(disk, name));
    let ns = |ms: f64| (ms * 1e6).round() as u64;
    [metric(disk, "mechanical") as u64, ns(seek_ms), ns(rotation_ms)]
}

fn build(what: &str) -> Disk {
    profile::load(what).unwrap().build_disk().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_parts_of_a_service_sum_up_to_the_busy_time(commands in commands()) {
        for (name, text) in DRIVES {
            let bus_ns = bus_sector_ns(text);
            let overheads = ["read_miss_ms", "write_miss_ms"].map(|key| figures(text, key));
            // Without a cache every command goes to the medium.
            let mut disk = build(&format!(
                "{name}:queue_depth=1,segments=0,read_ahead=false,read_hits_on_writes=false,\
                 write_cache=false"
            ));
            let (mut busy_ns, mut parts_ns, mut bus_parts_ns) = (0, 0, 0);
            let mut after_write = 0;
            serve(&mut disk, &commands, |m, s| {
                let overhead = overheads[usize::from(s.write)][after_write];
                let (zone, lba) = (s.place.zone, m.geometry.lba_at(s.place.track, s.place.sector));
                let passing = m.geometry.passing(zone, lba.unwrap(), s.sectors);
                let spt = u64::from(m.geometry.sectors_per_track(zone));
                let medium = overhead + s.seek_ns + s.rotation_ns + passing * m.rotation_ns / spt;
                let took = s.done_ns - s.begin_ns;
                assert_eq!(s.mechanical, 1, "{name}");
                assert!(took >= medium, "{name}: done after {took} ns, the medium needs {medium}");
                // The bus adds a read's last sector at least, all of it at most.
                let most = medium + s.sectors * bus_ns;
                assert!(took <= most, "{name}: done after {took} ns, at most {most} expected");
                if s.sectors == 1 && !s.write {
                    assert_eq!(took, medium + bus_ns, "{name}");
                }
                busy_ns += took;
                parts_ns += medium;
                bus_parts_ns += s.sectors * bus_ns;
                after_write = usize::from(s.write);
            });
            assert!((parts_ns..=parts_ns + bus_parts_ns).contains(&busy_ns), "{name}");
        }
    }

    #[test]
    fn no_command_is_done_before_its_last_sector_has_passed(commands in commands()) {
        for (name, text) in DRIVES {
            let bus_ns = bus_sector_ns(text);
            for variant in ["", ",segments=0", ",on_hit=consume", ",cut_short=false"] {
                let mut disk = build(&format!("{name}:queue_depth=1,write_cache=false{variant}"));
                serve(&mut disk, &commands, |m, s| {
                    // Data of the cache or of read-ahead may come at any time.
                    if s.mechanical == 0 || s.sectors > 1 {
                        return;
                    }
                    let spt = f64::from(m.geometry.sectors_per_track(s.place.zone));
                    let passed = s.place.angle.as_fraction() + 1.0 / spt;
                    let bus = if s.write { 0 } else { bus_ns };
                    let phase = ((s.done_ns - bus) % m.rotation_ns) as f64 / m.rotation_ns as f64;
                    // The head's distance beyond the sector's end. A write's data
                    // may come over the bus more slowly than the sector passes.
                    let beyond_ns = (phase - passed).rem_euclid(1.0) * m.rotation_ns as f64;
                    let slack_ns = if s.write { 70.0 + bus_ns as f64 } else { 70.0 };
                    let early_ns = m.rotation_ns as f64 - beyond_ns;
                    assert!(
                        beyond_ns <= slack_ns || early_ns <= 70.0,
                        "{name}{variant}: done {beyond_ns} ns past the end of its sector"
                    );
                });
            }
        }
    }
}

/// A solid-state drive's limits, read from its profile's text.
struct Limits {
    name: &'static str,
    read_ns: u64,
    write_ns: u64,
    read_command_ns: u64,
    write_command_ns: u64,
    host_mb_s: u64,
}

fn limits(name: &'static str, text: &str) -> Limits {
    let ns = |key: &str| figures(text, key)[0] / 1_000;
    let command = [ns("read_command_us"), ns("write_command_us")];
    Limits {
        name,
        read_ns: command[0] + ns("read_latency_us"),
        write_ns: command[1] + ns("write_latency_us"),
        read_command_ns: command[0],
        write_command_ns: command[1],
        host_mb_s: figures(text, "host_mb_s")[0] / 1_000_000,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Controller and link do one thing at a time, even if others overlap.
    #[test]
    fn a_solid_state_drive_is_never_faster_than_its_parts(commands in commands()) {
        for l in [
            limits("intel-320", include_str!("../../profiles/intel-320.toml")),
            limits("samsung-970-pro", include_str!("../../profiles/samsung-970-pro.toml")),
        ] {
            let profile = profile::load(l.name).unwrap();
            let (mut device, capacity) = (profile.build(), profile.capacity_sectors());
            let (mut now, mut next, mut begin, mut last) = (0, 0, u64::MAX, 0);
            let (mut bytes, mut controller_ns) = ([0, 0], 0);
            let mut submitted = Vec::new();
            for (index, c) in commands.iter().enumerate() {
                now += c.gap_ns;
                if index % device.queue_depth() as usize == 0 {
                    while let Some(at) = device.next_completion() {
                        let id = device.pop_completed(at).unwrap();
                        last = at.as_nanos();
                        let (at_ns, least_ns): (u64, u64) = submitted[id.slot()];
                        assert!(last >= at_ns + least_ns, "{}: {last}", l.name);
                    }
                    now = now.max(last);
                }
                let start = c.at.map_or(next, |share| (share * capacity as f64) as u64);
                let start = start.min(capacity - c.sectors);
                next = start + c.sectors;
                let op = if c.write { Op::Write } else { Op::Read };
                let mut command = request(op, start, c.sectors);
                command.id = RequestId::new(index as u32);
                device.submit(Instant::from_nanos(now), &command);
                begin = begin.min(now);
                let link_ns = c.sectors * 512 * 1_000 / l.host_mb_s;
                let own_ns = if c.write { l.write_ns } else { l.read_ns };
                submitted.push((now, (own_ns + link_ns).saturating_sub(c.sectors)));
                bytes[usize::from(c.write)] += c.sectors * 512;
                controller_ns += if c.write { l.write_command_ns } else { l.read_command_ns };
            }
            while let Some(at) = device.next_completion() {
                assert!(device.pop_completed(at).is_some());
                last = at.as_nanos();
            }
            // The 320's link is shared; the 970 PRO's has two ways. Each unit's
            // transfer is rounded down.
            let [read, written] = bytes;
            let most = if l.name == "intel-320" { read + written } else { read.max(written) };
            let least_ns = most * 1_000 / l.host_mb_s - (read + written) / 512;
            assert!(last - begin >= least_ns, "{}", l.name);
            assert!(last - begin >= controller_ns, "{}", l.name);
        }
    }
}
