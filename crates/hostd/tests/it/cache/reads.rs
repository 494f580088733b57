//! Reads through the cache: what needs the device, and what does not.

use super::guesses::{
    MIB, ReadOn, Wants, Wild, build, device_read, of_disk, prefetch, prefetch_named, quiet, rig,
};
use crate::common::{Ask, Rig, RigSetup, cache, dir, open_image, pattern};
use seekway_core::units::Nanos;
use seekway_hostd::images::OpenOptions;
use seekway_hostd::reactor::{Disk, Message};
use seekway_policy::schedulers;
use seekway_stack::journal::{Build, Replay};
use seekway_workload::rng::Rng;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use tempfile::TempDir;

/// An image full of bytes that tell where they belong.
pub fn full_image(dir: &TempDir, name: &str, seed: u64, len: u64) -> (PathBuf, Vec<u8>) {
    let (path, data) = (dir.path().join(name), pattern(seed, len as usize));
    fs::write(&path, &data).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    (path, data)
}

/// The bytes at this place.
pub fn at(data: &[u8], offset: u64, len: u64) -> &[u8] {
    &data[offset as usize..(offset + len) as usize]
}

#[test]
fn what_was_read_once_needs_no_device() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 1, MIB);
    let rig = rig(MIB);
    let client = rig.open(rig.attach(&path, None).unwrap());
    // Sectors inside blocks, across blocks, and in memory that is misaligned.
    let places = [(512, 512), (3584, 1024), (8192, 65_536), (0, 131_072), (100_352, 3072)];
    for round in 0..2 {
        for (offset, len) in places {
            let mut ask = Ask::read(offset, len);
            ask.buffer.splice(0..0, [0; 7]);
            ask.skip = 7;
            let answer = client.do_one(ask);
            assert_eq!(answer.result, Ok(()), "{offset}+{len}");
            assert!(answer.buffer[7..] == *at(&data, offset, len), "{offset}+{len}");
        }
        // Blocks, whole: up to 131,072 all, and those of the last place behind.
        assert_eq!(device_read(&rig.status()), 131_072, "round {round}");
    }
    let usage = of_disk(&rig.status()).usage;
    let read: u64 = 2 * places.iter().map(|(_, len)| len / 512).sum::<u64>();
    assert_eq!((usage.reads, usage.read), (10, read));
    assert_eq!(usage.cached + usage.missed, read);
}

#[test]
fn nothing_is_read_twice() {
    let seed = seekway_testing::setting("SEED", 11);
    eprintln!("seed {seed}");
    let dir = dir();
    let len = 8 * MIB;
    let (path, data) = full_image(&dir, "a.img", 2, len);
    let rig = rig(2 * len);
    prefetch(&rig, Wild::new(seed));
    let disk = rig.attach(&path, None).unwrap();
    let clients = [rig.open(disk), rig.open(disk)];
    let mut random = Rng::new(seed);
    let mut asked = Vec::new();
    for _ in 0..2000 {
        let offset = random.below(len / 512) * 512;
        asked.push((offset, (1 + random.below(256)) * 512));
    }
    for chunk in asked.chunks(200) {
        let asks = |half: usize| {
            let mine = chunk[half * 100..][..100].iter();
            mine.map(|&(o, l)| Ask::read(o, l.min(len - o))).collect::<Vec<_>>()
        };
        // Both at once.
        clients[1].ask(asks(1));
        let first = clients[0].do_all(asks(0));
        let mut second: Vec<_> = (0..100).map(|_| clients[1].answer()).collect();
        second.sort_by_key(|a| a.token);
        for (&(offset, l), answer) in chunk.iter().zip(first.iter().chain(&second)) {
            assert_eq!(answer.result, Ok(()));
            assert!(answer.buffer == *at(&data, offset, l.min(len - offset)), "{offset}+{l}");
        }
    }
    let status = quiet(&rig, &clients[0]);
    let usage = of_disk(&status).usage;
    assert!(usage.prefetched > 0 && usage.used > 0 && usage.cached > 0, "{usage:?}");
    assert!(device_read(&status) <= len, "{} of {len} bytes were read", device_read(&status));
    // What found a demand fetch under way is none of the three. Few do: each block
    // is fetched once, and most reads come when it is there.
    let counted = usage.cached + usage.late + usage.missed;
    assert!(counted <= usage.read, "{usage:?}");
    let joined = usage.read - counted;
    eprintln!("{joined} sectors joined, {usage:?}");
    assert!(joined < usage.read / 2, "{usage:?}");
}

#[test]
fn what_is_read_on_is_there_when_the_guest_comes() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 3, 4 * MIB);
    let rig = rig(8 * MIB);
    prefetch(&rig, ReadOn::new(256 << 10));
    let client = rig.open(rig.attach(&path, None).unwrap());
    for n in 0..64 {
        let answer = client.do_one(Ask::read(n * 65_536, 65_536));
        assert!(answer.buffer == *at(&data, n * 65_536, 65_536), "{n}");
    }
    let status = quiet(&rig, &client);
    let usage = of_disk(&status).usage;
    assert_eq!(usage.missed, 128, "only the first read: {usage:?}");
    assert_eq!((usage.prefetched, usage.used), (8192 - 128, 8192 - 128), "{usage:?}");
    assert_eq!(device_read(&status), 4 * MIB);
    assert_eq!((usage.wasted, usage.cost()), (0, 0.0));
    assert!(status.stats.background > 0);
}

#[test]
fn guests_take_waiting_prefetches_over_and_a_crowd_has_them_dropped() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 9, 4 * MIB);
    let slow = "seagate-1tb-7200:k=20";
    let setup = RigSetup { emulate: Some(slow), cache: cache(8 * MIB), ..RigSetup::default() };
    let rig = Rig::start(setup);
    let (wanted, unwanted) = ((MIB, 65_536), (3 * MIB, 65_536));
    prefetch(&rig, Wants::new(&[wanted, unwanted]));
    let client = rig.open(rig.attach(&path, None).unwrap());
    let read = |offset| Ask::read(offset, 4096);
    // One on the device, for a fifth of a second, and one that waits for it: both
    // prefetches wait behind them.
    client.ask(vec![read(0), read(2 * MIB)]);
    while rig.status().cache.unwrap().fetching < 4 {
        std::thread::yield_now();
    }
    client.ask(vec![read(MIB + 8192)]);
    let crowd = (0..8).map(|n| read(2 * MIB + (n + 1) * 65_536));
    client.ask(crowd.collect());
    for _ in 0..11 {
        let answer = client.answer();
        let offset = match answer.token {
            0 => 0,
            2 => MIB + 8192,
            n => 2 * MIB + n.saturating_sub(2) * 65_536,
        };
        assert!(answer.buffer == *at(&data, offset, 4096), "{}", answer.token);
    }
    let status = quiet(&rig, &client);
    let usage = of_disk(&status).usage;
    assert_eq!((usage.promoted, usage.dropped, usage.wasted), (1, 128, 0), "{usage:?}");
    assert_eq!((usage.prefetched, usage.used, usage.late), (256, 8, 8), "{usage:?}");
    // Ten blocks, and the prefetch that was taken over.
    assert_eq!(device_read(&status), 10 * 4096 + 65_536);
    // Two prefetches, in two pieces each.
    assert_eq!((status.stats.background, status.stats.withdrawn), (0, 4));
}

/// An image of 4 MiB whose map has, where the file system tells, a piece for each
/// 16 KiB: data and holes in turn.
fn image_in_pieces(dir: &TempDir) -> (PathBuf, Vec<u8>, usize) {
    let path = dir.path().join("a.img");
    let file = File::create(&path).unwrap();
    file.set_len(4 * MIB).unwrap();
    let mut data = vec![0; 4 * MIB as usize];
    for n in (0..256).step_by(2) {
        let (from, piece) = (n * 16_384, pattern(n as u64, 16_384));
        data[from..from + 16_384].copy_from_slice(&piece);
        file.write_all_at(&piece, from as u64).unwrap();
        file.sync_all().unwrap();
    }
    let image = open_image(&path, &OpenOptions::reading()).unwrap();
    let pieces = image.map().map_or(1, |map| map.region().len());
    (path, data, pieces)
}

#[test]
fn a_prefetch_that_has_begun_is_not_taken_back() {
    let dir = dir();
    let (path, data, pieces) = image_in_pieces(&dir);
    let setup = RigSetup { depth: Some(1), cache: cache(8 * MIB), ..RigSetup::default() };
    let rig = Rig::start(setup);
    let client = rig.open(rig.attach(&path, None).unwrap());
    let (prefetch_bytes, crowd) = (131_072, 12);
    for round in 0..16 {
        let before = device_read(&rig.status());
        let place = round * prefetch_bytes;
        prefetch(&rig, Wants::new(&[(place, prefetch_bytes)]));
        // Far from there, and far from each other.
        let far = |n: u64| 2 * MIB + (round * (crowd + 1) + n) * 8192;
        // Behind the first the prefetch begins, piece by piece; while it is under
        // way a crowd comes, and then a guest that waits for the prefetch's end.
        client.do_one(Ask::read(far(crowd), 4096));
        let wanted = place + prefetch_bytes - 4096;
        client.ask((0..crowd).map(|n| Ask::read(far(n), 4096)).collect());
        assert_eq!(client.answer().result, Ok(()));
        client.ask(vec![Ask::read(wanted, 4096)]);
        for _ in 0..crowd {
            assert_eq!(client.answer().result, Ok(()));
        }
        quiet(&rig, &client);
        let answer = client.do_one(Ask::read(place, prefetch_bytes));
        assert!(answer.buffer == *at(&data, place, prefetch_bytes), "round {round}");
        let expected = prefetch_bytes + (crowd + 1) * 4096;
        assert_eq!(device_read(&rig.status()) - before, expected, "round {round}: read twice");
    }
    let status = rig.status();
    eprintln!("{pieces} pieces, {:?}", status.stats);
    let usage = of_disk(&status).usage;
    assert_eq!(usage.used + usage.wasted + usage.dropped, usage.prefetched, "{usage:?}");
}

#[test]
fn an_image_in_pieces_is_read_ahead_in_pieces() {
    let dir = dir();
    let (path, data, pieces) = image_in_pieces(&dir);
    let rig = rig(8 * MIB);
    prefetch(&rig, ReadOn::new(MIB));
    let client = rig.open(rig.attach(&path, None).unwrap());
    for n in 0..64 {
        let answer = client.do_one(Ask::read(n * 65_536, 65_536));
        assert!(answer.buffer == *at(&data, n * 65_536, 65_536), "{n}");
    }
    let status = quiet(&rig, &client);
    assert_eq!(device_read(&status), 4 * MIB);
    let requests = status.stats.background + status.stats.requests;
    eprintln!("{pieces} pieces, {requests} requests");
    assert!(pieces < 16 || requests > 64, "{pieces} pieces, {requests} requests");
}

#[test]
fn a_cache_smaller_than_a_read_serves_it() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 4, 4 * MIB);
    for bytes in [4096, 64 << 10] {
        let rig = rig(bytes);
        prefetch(&rig, Wild::new(5));
        let client = rig.open(rig.attach(&path, None).unwrap());
        for n in 0..20 {
            let offset = n * 100_352;
            let answer = client.do_one(Ask::read(offset, MIB));
            assert_eq!(answer.result, Ok(()));
            assert!(answer.buffer == *at(&data, offset, MIB), "{n}, cache of {bytes}");
        }
    }
}

#[test]
fn disks_past_the_cache_and_read_only_ones_are_served() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 5, MIB);
    for (read_only, cached) in [(true, true), (false, false)] {
        let rig = rig(MIB);
        let image =
            open_image(&path, &OpenOptions { read_only, ..OpenOptions::writing() }).unwrap();
        let disk = Disk { cached, ..Disk::new("a", image) };
        let disk = rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
        assert_eq!(rig.status().disks[0].cache.is_some(), cached, "before its first read");
        let client = rig.open(disk);
        for _ in 0..2 {
            assert!(client.do_one(Ask::read(4096, 8192)).buffer == *at(&data, 4096, 8192));
        }
        let status = rig.status();
        assert_eq!(device_read(&status), if cached { 8192 } else { 16_384 });
        assert_eq!(status.disks[0].cache.is_some(), cached);
        let write = client.do_one(Ask::write(4096, at(&data, 4096, 512).to_vec()));
        assert_eq!(write.result.is_err(), read_only);
        client.close();
        rig.handle.ask(|r| Message::DetachDisk(disk, r)).unwrap().unwrap();
    }
}

#[test]
fn disks_leave_while_they_are_read_ahead_and_their_number_is_used_again() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 6, 16 * MIB);
    let (other, others) = full_image(&dir, "b.img", 7, 16 * MIB);
    // Slow, so that prefetches wait and are under way when the disk leaves.
    let rig = Rig::start(RigSetup {
        emulate: Some("linear-15k4:k=1"),
        cache: cache(32 * MIB),
        ..RigSetup::default()
    });
    prefetch(&rig, ReadOn::new(MIB));
    let disk = rig.attach(&path, None).unwrap();
    let client = rig.open(disk);
    let offsets = |n: u64| n * 3 * 512 * 1000;
    client.ask((0..8).map(|n| Ask::read(offsets(n), 4096)).collect());
    // The first is there: its prefetch waits or is under way.
    let first = client.answer();
    assert!(first.buffer == *at(&data, offsets(first.token), 4096));
    assert!(rig.status().cache.unwrap().fetching > 0);
    rig.handle.ask(|r| Message::DetachDisk(disk, r)).unwrap().unwrap();
    for _ in 1..8 {
        let answer = client.answer();
        assert!(answer.buffer == *at(&data, offsets(answer.token), 4096));
    }
    assert_eq!(rig.status().cache.unwrap().fetching, 0);
    let again = rig.attach(&other, None).unwrap();
    assert_eq!(again, disk);
    let client = rig.open(again);
    for n in 0..8 {
        let answer = client.do_one(Ask::read(offsets(n), 4096));
        assert!(answer.buffer == *at(&others, offsets(n), 4096), "{n}");
    }
}

#[test]
fn writes_under_way_when_a_disk_leaves_do_not_reach_the_next_of_its_number() {
    let dir = dir();
    let (path, _) = full_image(&dir, "a.img", 10, MIB);
    let (other, others) = full_image(&dir, "b.img", 11, MIB);
    // Slow, so that the writes are under way when the disk leaves.
    let rig = Rig::start(RigSetup {
        emulate: Some("linear-15k4:k=1"),
        cache: cache(4 * MIB),
        ..RigSetup::default()
    });
    let disk = rig.attach(&path, None).unwrap();
    let client = rig.open(disk);
    client.ask((0..8).map(|n| Ask::write(n * 65_536, pattern(n, 4096))).collect());
    rig.handle.ask(|r| Message::DetachDisk(disk, r)).unwrap().unwrap();
    (0..8).for_each(|_| assert_eq!(client.answer().result, Ok(())));
    assert_eq!(rig.attach(&other, None).unwrap(), disk);
    let client = rig.open(disk);
    for n in 0..8 {
        let before = device_read(&rig.status());
        for _ in 0..2 {
            let answer = client.do_one(Ask::read(n * 65_536, 4096));
            assert!(answer.buffer == *at(&others, n * 65_536, 4096), "{n}");
        }
        assert_eq!(device_read(&rig.status()), before + 4096, "{n}");
    }
}

#[test]
fn everything_changes_under_load_and_the_journal_replays() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 8, 16 * MIB);
    let journal = dir.path().join("journal");
    let rig = Rig::start(RigSetup {
        policy: "pregather",
        emulate: Some("linear-15k4"),
        journal: Some(File::create(&journal).unwrap()),
        cache: cache(4 * MIB),
        ..RigSetup::default()
    });
    prefetch_named(&rig, "wild:9");
    let client = rig.open(rig.attach(&path, None).unwrap());
    let mut random = Rng::new(77);
    for (turn, entry) in schedulers::REGISTRY.iter().enumerate() {
        // One, behind which the prefetcher has its turn, and a crowd that takes
        // back what waits; the policy changes while all that is under way.
        for count in [1, 40] {
            let offsets: Vec<u64> = (0..count).map(|_| random.below(4000) * 4096).collect();
            client.ask(offsets.iter().map(|&o| Ask::read(o, 16_384)).collect());
            if count > 1 {
                rig.handle.ask(|r| Message::SetPolicy(entry.name.into(), r)).unwrap().unwrap();
            }
            let mut answers: Vec<_> = offsets.iter().map(|_| client.answer()).collect();
            answers.sort_by_key(|a| a.token);
            for (&offset, answer) in offsets.iter().zip(&answers) {
                assert!(answer.buffer == *at(&data, offset, 16_384), "{offset}");
            }
        }
        match turn % 3 {
            0 => prefetch_named(&rig, &format!("ahead:{MIB}")),
            _ => prefetch_named(&rig, &format!("wild:{turn}")),
        }
    }
    let stats = quiet(&rig, &client).stats;
    assert!(stats.background > 0 && stats.withdrawn > 0, "{stats:?}");
    client.close();
    drop(rig);
    let mut replay = Replay::new(Build { prefetcher: &build, ..Build::default() });
    for line in fs::read_to_string(&journal).unwrap().lines() {
        replay.feed(line).unwrap();
    }
    let replayed = replay.replayed();
    assert!(replayed.inputs > stats.requests && replayed.outputs > 100, "{replayed:?}");
}

#[test]
fn what_the_page_cache_reads_is_no_measure_of_the_device() {
    let dir = dir();
    let (path, _) = full_image(&dir, "a.img", 12, 4 * MIB);
    for direct in [false, true] {
        let rig = rig(64 << 10);
        let image = open_image(&path, &OpenOptions { direct, ..OpenOptions::reading() }).unwrap();
        if direct && !image.is_direct() {
            return seekway_testing::skip("direct I/O on the file system of the target directory");
        }
        let disk = Disk { bandwidth_bytes_per_s: Some(1), ..Disk::new("a", image) };
        let disk = rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
        let client = rig.open(disk);
        // For longer than reads are counted before something is made of them.
        let mut status = rig.status();
        let end = status.now + Nanos::from_millis(1200);
        while status.now < end {
            client.do_one(Ask::read(0, 4 * MIB));
            status = rig.status();
        }
        let bandwidth = status.cache.unwrap().bandwidth_bytes_per_s.unwrap();
        assert_eq!(bandwidth > 1, direct, "{bandwidth} bytes a second, direct: {direct}");
    }
}
