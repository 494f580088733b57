//! Properties of every profile, for any commands.

use crate::common;

use common::numbered;
use proptest::prelude::*;
use seekway_core::request::Op;
use seekway_core::units::Instant;
use seekway_device::DeviceModel;
use seekway_device::disk::Disk;
use seekway_device::profile;

/// Every profile, and the variants whose code paths differ most.
fn variants() -> Vec<String> {
    let mut all: Vec<String> = profile::names().map(str::to_owned).collect();
    for variant in [
        "linear-15k4:on_hit=extend,queue_depth=4",
        "cheetah-15k5:queue_depth=16,queue_order=sptf,write_cache=true",
        "cheetah-15k4:on_hit=consume,resume_below=32,queue_depth=4",
        "cheetah-9lp:cut_short=false,read_ahead_idle=false,queue_depth=4",
        "atlas-10k:read_ahead=false,queue_depth=8,queue_order=sptf",
        "seagate-1tb-7200:write_cache=true,on_hit=keep,queue_depth=32,queue_order=sptf",
        "seagate-1tb-7200:segments=0,read_hits_on_writes=false",
        "seagate-1tb-7200:segments=1,write_cache=true,write_segments=1,on_hit=consume",
        // A few MiB with nothing to spare: garbage collection from the first write on.
        "intel-320:capacity_sectors=400000,spare=0,filled=1,write_buffer_kib=64",
        "samsung-970-pro:channels=1,dies_per_channel=1,write_buffer_kib=32,filled=0.3,queue_depth=2",
        "samsung-970-pro:state=gc,channels=2,dies_per_channel=1,write_buffer_kib=64,capacity_sectors=9000000",
        "intel-320:state=gc,filled=0.8,capacity_sectors=4000000",
        "samsung-970-pro:separate_paths=true,overlap=false,write_place=home",
        "samsung-970-pro:planes=4,state=gc,channels=2,dies_per_channel=1,capacity_sectors=9000000",
        "intel-320:program_spread_us=1500,seed=4,filled=1,write_buffer_kib=64",
        "intel-x25m-g2:write_place=home,overlap=false,capacity_sectors=400000,spare=0,filled=1",
        "intel-x25m-g2:reads_first=1,program_suspends=3,program_suspend_us=20,program_resume_us=30,erase_suspends=2,capacity_sectors=400000,spare=0,filled=1",
        "samsung-970-pro:reads_first=0.5,write_place=home,overlap=false,program_suspends=1000,planes=2,write_buffer_kib=64",
        "raid0-8x-x25m-g2:members=3,chunk_kib=5,capacity_sectors=300001,reads_first=0.7,program_suspends=2,erase_suspends=1,erase_suspend_us=50,resume_min_us=100",
        "intel-320:map_cache_kib=8,map_entry_bytes=64,capacity_sectors=400000,spare=0,filled=1,write_buffer_kib=64",
        "samsung-970-pro:map_cache_kib=16,state=gc,channels=2,dies_per_channel=1,write_buffer_kib=64,capacity_sectors=9000000,planes=2,reads_first=1,program_suspends=2,erase_suspends=3,resume_min_us=40,program_spread_us=185,separate_paths=true,write_place=home,overlap=false",
        "azure-p10:io_credit=20,credit_mib=1,spread_us=0,queue_depth=3",
        "aws-gp2-100gib:io_credit=7,unit_kib=16,seed=9",
        "raid0-8x-x25m-g2:members=3,chunk_kib=5,queue_depth=4,capacity_sectors=300001",
        "raid10-8x-exos-x18:members=6,mirrors=3,chunk_kib=5,queue_depth=4,write_segments=2",
        "seagate-exos-x18:queue_depth=8,write_segments=3,capacity=1TiB",
        "azure-premium-ssd:capacity=4GiB,io_credit=20,queue_depth=3",
    ] {
        all.push(variant.to_owned());
    }
    all
}

fn disks() -> Vec<(String, Disk)> {
    let disk = |n: &str| Some((n.to_owned(), profile::load(n).unwrap().build_disk()?));
    profile::names().filter_map(disk).collect()
}

#[derive(Clone, Debug)]
struct Command {
    op: Op,
    /// Share of the device, or `None`: right behind the previous command.
    at: Option<f64>,
    sectors: u64,
    gap_ns: u64,
}

fn command() -> impl Strategy<Value = Command> {
    let op = prop_oneof![
        6 => Just(Op::Read),
        4 => Just(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes),
    ];
    let at =
        prop_oneof![2 => Just(None), 2 => (0.0..1.0).prop_map(Some), 1 => Just(Some(0.999_999))];
    let sectors = prop_oneof![4 => Just(8_u64), 2 => 1..300_u64, 1 => 300..3_000_u64];
    let gap = prop_oneof![3 => Just(0_u64), 2 => 0..300_000_u64, 1 => 0..60_000_000_u64];
    (op, at, sectors, gap).prop_map(|(op, at, sectors, gap_ns)| Command { op, at, sectors, gap_ns })
}

/// Drives a device as an engine does and checks the contract on the way.
fn drive(device: &mut dyn DeviceModel, commands: &[Command]) -> Vec<(u32, u64)> {
    let capacity = device.profile().capacity.get();
    let depth = device.queue_depth() as usize;
    let (mut now, mut previous_end) = (0_u64, 0_u64);
    let mut in_flight: Vec<u32> = Vec::new();
    let mut done: Vec<(u32, u64)> = Vec::new();
    let mut reap = |device: &mut dyn DeviceModel, in_flight: &mut Vec<u32>, now: u64| {
        let at = Instant::from_nanos(now);
        while let Some(id) = device.pop_completed(at) {
            let id = id.slot() as u32;
            let place = in_flight.iter().position(|&x| x == id);
            assert!(place.is_some(), "{id} completed twice or was never submitted");
            in_flight.swap_remove(place.unwrap());
            done.push((id, now));
        }
        assert!(device.next_completion().is_none_or(|t| t > at), "a due completion was kept");
    };
    for (index, c) in commands.iter().enumerate() {
        now += c.gap_ns;
        reap(device, &mut in_flight, now);
        while in_flight.len() >= depth {
            let next = device.next_completion().expect("commands are in flight").as_nanos();
            assert!(next >= now, "time runs backwards: {next} < {now}");
            now = next;
            reap(device, &mut in_flight, now);
        }
        let start = c.at.map_or(previous_end, |share| (share * capacity as f64) as u64);
        let start = if start + c.sectors > capacity { capacity - c.sectors } else { start };
        previous_end = start + c.sectors;
        device.submit(Instant::from_nanos(now), &numbered(index as u32, c.op, start, c.sectors));
        in_flight.push(index as u32);
    }
    while let Some(next) = device.next_completion() {
        assert!(next.as_nanos() >= now, "time runs backwards");
        now = next.as_nanos();
        reap(device, &mut in_flight, now);
    }
    assert!(in_flight.is_empty(), "never completed: {in_flight:?}");
    done
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_command_completes_once_and_alike(
        commands in prop::collection::vec(command(), 1..120),
    ) {
        for name in variants() {
            let profile = profile::load(&name).unwrap();
            let first = drive(&mut *profile.build(), &commands);
            prop_assert_eq!(first.len(), commands.len(), "{}", name);
            let second = drive(&mut *profile.build(), &commands);
            prop_assert_eq!(first, second, "{} decides differently on the same input", name);
        }
    }

    #[test]
    fn a_place_maps_back_to_its_sector(shares in prop::collection::vec(0.0..1.0_f64, 64)) {
        for (name, disk) in disks() {
            let g = &disk.mechanics().geometry;
            for share in &shares {
                let lba = (share * g.capacity() as f64) as u64;
                let place = g.locate(lba);
                prop_assert_eq!(g.lba_at(place.track, place.sector), Some(lba), "{}", &name);
                prop_assert!(place.track.cylinder < g.cylinders());
                // The last sector of the run is on the same track, the next one is not.
                let last = g.locate(lba + place.left_on_track - 1);
                prop_assert_eq!((last.track, last.left_on_track), (place.track, 1), "{}", &name);
                if lba + place.left_on_track < g.capacity() {
                    let next = g.locate(lba + place.left_on_track);
                    prop_assert_ne!(next.track, place.track, "{}", &name);
                }
            }
        }
    }

    #[test]
    fn a_wait_is_less_than_a_turn(now in 0..u64::MAX / 4, share in 0.0..1.0_f64) {
        for (name, disk) in disks() {
            let m = disk.mechanics();
            let lba = (share * m.geometry.capacity() as f64) as u64;
            let angle = m.geometry.locate(lba).angle;
            let wait = m.rotation_wait_ns(now, angle);
            prop_assert!(wait < m.rotation_ns, "{}", name);
            // Once waited for, it is there.
            prop_assert!(m.rotation_wait_ns(now + wait, angle) <= 64, "{}", name);
        }
    }
}

#[test]
fn the_sectors_of_all_tracks_add_up_to_the_capacity() {
    for (name, disk) in disks() {
        let g = &disk.mechanics().geometry;
        let (mut lba, mut tracks) = (0, 0_u64);
        while lba < g.capacity() {
            let place = g.locate(lba);
            assert!(place.left_on_track <= u64::from(g.sectors_per_track(place.zone)), "{name}");
            lba += place.left_on_track;
            tracks += 1;
        }
        assert_eq!(lba, g.capacity(), "{name}");
        assert!(tracks > 10_000, "{name}: {tracks}");
    }
}

#[test]
#[should_panic(expected = "ends past the device")]
fn a_command_past_the_end_is_a_programmer_error() {
    let profile = profile::load("cheetah-15k5").unwrap();
    let at = profile.capacity_sectors() - 4;
    profile.build().submit(Instant::ZERO, &numbered(0, Op::Read, at, 8));
}
