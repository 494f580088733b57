//! Policies and disks change while requests are under way.

use super::MIB;
use crate::common::{Ask, Client, Rig, RigSetup, dir, image, pattern};
use seekway_hostd::reactor::Message;
use seekway_policy::schedulers;
use seekway_stack::journal::{Build, Replay};
use seekway_workload::rng::Rng;
use std::fs::{self, File};
use std::num::NonZeroU32;

#[test]
fn disks_leave_when_their_work_is_done_and_come_back_under_their_number() {
    let dir = dir();
    let path = image(&dir, "a.img", MIB);
    let rig = Rig::start(RigSetup { emulate: Some("linear-15k4"), ..RigSetup::default() });
    let disk = rig.attach(&path, None).unwrap();
    let client = rig.open(disk);
    client.ask((0..20).map(|i| Ask::write(i * 40_960, pattern(i, 4096))).collect());
    rig.handle.ask(|r| Message::DetachDisk(disk, r)).unwrap().unwrap();
    for _ in 0..20 {
        assert!(client.answer().result.is_ok());
    }
    assert!(rig.status().disks.is_empty());
    let again = rig.attach(&path, None).expect("the lock is gone with the disk");
    assert_eq!(again, disk);
    assert!(rig.open(again).do_one(Ask::read(0, 4096)).buffer == pattern(0, 4096));
}

#[test]
fn a_resize_is_seen() {
    let dir = dir();
    let path = image(&dir, "a.img", MIB);
    let rig = Rig::start(RigSetup::default());
    let disk = rig.attach(&path, None).unwrap();
    let client = rig.open(disk);
    assert!(client.do_one(Ask::read(MIB, 4096)).result.is_err());
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * MIB).unwrap();
    assert_eq!(rig.handle.ask(|r| Message::Resize(disk, false, r)).unwrap(), Ok(2 * MIB));
    assert!(client.do_one(Ask::read(MIB, 4096)).result.is_ok());
}

/// Disks come, go, grow, change weight, and policies change, under load: what
/// is written is what is read, and the journal replays byte for byte.
#[test]
fn everything_changes_under_load_and_the_journal_replays() {
    let mut policies = schedulers::REGISTRY.iter().cycle();
    for (emulate, fault, turns) in [
        (None, "short", 150),
        (None, "again:op=read,after=3,count=900", 150),
        (Some("linear-15k4"), "short", 20),
    ] {
        let dir = dir();
        let journal = dir.path().join("journal");
        let file = File::create(&journal).unwrap();
        let rig = Rig::start(RigSetup {
            policy: "pregather",
            emulate,
            journal: Some(file),
            depth: Some(3),
            ..RigSetup::default()
        });
        let mut rng = Rng::new(7);
        let mut next = |n| rng.below(n);
        let paths = ["a.img", "b.img", "c.img"].map(|n| image(&dir, n, 4 * MIB));
        let mut disks: Vec<_> = paths.iter().map(|p| rig.attach(p, Some(fault)).unwrap()).collect();
        let mut clients: Vec<_> = disks.iter().map(|&d| rig.open(d)).collect();
        let mut under_way = [0usize; 3];
        let drain = |client: &Client, left: &mut usize| {
            for _ in 0..std::mem::take(left) {
                assert!(client.answer().result.is_ok());
            }
        };
        for turn in 0..turns {
            let at = next(3) as usize;
            let spot = |i: u64| (i % 1024) * 4096;
            // Each block has one content, so that order does not matter.
            let mut asks = Vec::new();
            for _ in 0..next(20) {
                let block = next(1024);
                asks.push(match next(4) {
                    0 => Ask::flush(),
                    1 => Ask::read(spot(block), 4096),
                    _ => Ask { fua: next(2) == 0, ..Ask::write(spot(block), pattern(block, 4096)) },
                });
            }
            under_way[at] += asks.len();
            clients[at].ask(asks);
            match next(8) {
                0 | 4 => {
                    let policy = policies.next().expect("a circle has no end").name;
                    rig.handle.ask(|r| Message::SetPolicy(policy.into(), r)).unwrap().unwrap();
                }
                1 => {
                    let weight = NonZeroU32::new(1 + next(9) as u32).unwrap();
                    let id = disks[at];
                    rig.handle.ask(|r| Message::SetWeight(id, weight, r)).unwrap().unwrap();
                }
                2 => {
                    let file = fs::OpenOptions::new().write(true).open(&paths[at]).unwrap();
                    let len = 4 * MIB + next(8) * MIB;
                    file.set_len(len).unwrap();
                    // On an emulated device its neighbour may be in the way.
                    let _ = rig.handle.ask(|r| Message::Resize(disks[at], true, r)).unwrap();
                }
                3 if turn % 2 == 0 => {
                    rig.handle.ask(|r| Message::DetachDisk(disks[at], r)).unwrap().unwrap();
                    drain(&clients[at], &mut under_way[at]);
                    disks[at] = rig.attach(&paths[at], Some(fault)).unwrap();
                    clients[at] = rig.open(disks[at]);
                }
                _ => {}
            }
        }
        let bad = rig.handle.ask(|r| Message::SetPolicy("nonesuch".into(), r)).unwrap();
        assert!(bad.unwrap_err().contains("pregather"), "the error lists what there is");
        for (client, left) in clients.iter().zip(&mut under_way) {
            drain(client, left);
        }
        for client in &clients {
            for (i, a) in client
                .do_all((0..1024).map(|i| Ask::read(i * 4096, 4096)).collect())
                .iter()
                .enumerate()
            {
                let blank = a.buffer.iter().all(|&b| b == 0);
                assert!(blank || a.buffer == pattern(i as u64, 4096), "block {i}");
            }
        }
        drop(rig);
        let text = fs::read_to_string(&journal).unwrap();
        let mut replay = Replay::new(Build::default());
        text.lines().for_each(|line| replay.feed(line).unwrap());
        let replayed = replay.replayed();
        assert!(replayed.inputs > 640 && replayed.outputs > 100, "{replayed:?}");
    }
}
