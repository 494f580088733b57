//! Where a command's time goes, at queue depth 1: nothing completes before its
//! rotation is over, and overhead, seek, rotation and transfer make up the
//! time that the drive was busy.

use proptest::prelude::*;
use seekway_device::DeviceModel;
use seekway_device::disk::Disk;
use seekway_device::disk::geometry::Place;
use seekway_device::disk::mechanics::Mechanics;
use seekway_device::profile;
use seekway_policy::request::{Extent, Op, Request, RequestId, VmId};
use seekway_policy::units::{Instant, Lba, Sectors};

/// Every drive's name and what its profile states, read here once more so that
/// the test does not ask the code that it tests.
const DRIVES: [(&str, &str); 5] = [
    ("cheetah-15k4", include_str!("../profiles/cheetah-15k4.toml")),
    ("cheetah-15k5", include_str!("../profiles/cheetah-15k5.toml")),
    ("cheetah-9lp", include_str!("../profiles/cheetah-9lp.toml")),
    ("atlas-10k", include_str!("../profiles/atlas-10k.toml")),
    ("seagate-1tb-7200", include_str!("../profiles/seagate-1tb-7200.toml")),
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
    /// What the metrics grew by.
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
        disk.submit(Instant::from_nanos(begin_ns), &request(op, start, sectors));
        let done = disk.next_completion().unwrap();
        assert!(disk.pop_completed(done).is_some());
        now = done.as_nanos();
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
    let mut found = [0; 3];
    disk.metrics(&mut |name, value| match name {
        "mechanical" => found[0] = value as u64,
        "seek_ms" => found[1] = (value * 1e6).round() as u64,
        "rotation_ms" => found[2] = (value * 1e6).round() as u64,
        _ => {}
    });
    found
}

fn request(op: Op, start: u64, sectors: u64) -> Request {
    Request {
        id: RequestId::new(0),
        vm: VmId::new(0),
        tag: None,
        op,
        sync: true,
        extent: Extent::new(Lba::new(start), Sectors::new(sectors)).unwrap(),
        arrived: Instant::ZERO,
    }
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
                // What the bus adds: a read's last sector at least, all of it at most.
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
                    // What the cache has, or read-ahead brings, comes when it comes.
                    if s.mechanical == 0 || s.sectors > 1 {
                        return;
                    }
                    let spt = f64::from(m.geometry.sectors_per_track(s.place.zone));
                    let passed = s.place.angle.as_fraction() + 1.0 / spt;
                    let bus = if s.write { 0 } else { bus_ns };
                    let phase = ((s.done_ns - bus) % m.rotation_ns) as f64 / m.rotation_ns as f64;
                    // How far beyond the sector's end the head is. A write's data
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
