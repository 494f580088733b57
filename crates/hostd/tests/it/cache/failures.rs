//! Errors below the cache stay there, or reach the one whom they concern.

use super::guesses::{MIB, ReadOn, Wild, of_disk, prefetch, quiet, rig};
use super::reads::{at, full_image};
use crate::common::{Ask, dir, pattern};
use seekway_hostd::port::Errno;
use seekway_hostd::reactor::Message;
use seekway_workload::rng::Rng;
use std::fs::{self, OpenOptions};

#[test]
fn a_prefetch_that_fails_is_nobodys_business() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 1, MIB);
    let rig = rig(MIB);
    prefetch(&rig, ReadOn::new(65_536));
    // The first read behind 64 KiB fails, and its first piece alone, and no other.
    let fault = Some("eio:op=read,from=65536,count=2");
    let client = rig.open(rig.attach(&path, fault).unwrap());
    assert!(client.do_one(Ask::read(0, 65_536)).result.is_ok());
    let status = quiet(&rig, &client);
    assert_eq!(of_disk(&status).usage.wasted, 128, "the prefetch came to nothing");
    let answer = client.do_one(Ask::read(65_536, 65_536));
    assert!(answer.result.is_ok() && answer.buffer == *at(&data, 65_536, 65_536));
    assert_eq!(rig.status().disks[0].ops[0].errors, 0);
}

#[test]
fn a_guest_that_waits_for_a_prefetch_that_fails_is_served_all_the_same() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 2, 4 * MIB);
    for count in [1, 2, 3] {
        let rig = rig(8 * MIB);
        prefetch(&rig, ReadOn::new(MIB));
        let fault = format!("eio:op=read,from=65536,count={count}");
        let client = rig.open(rig.attach(&path, Some(&fault)).unwrap());
        // All at once: those behind join what the first has had fetched.
        let asks = (0..32).map(|n| Ask::read(n * 65_536, 65_536)).collect();
        let errors = client
            .do_all(asks)
            .iter()
            .enumerate()
            .filter(|(n, answer)| {
                let fine = answer.buffer == *at(&data, *n as u64 * 65_536, 65_536);
                assert!(answer.result.is_err() || fine, "{n}");
                answer.result.is_err()
            })
            .count();
        // A failure that comes again for the guest's own read is the guest's.
        assert!(errors < count, "{errors} errors of {count} faults");
    }
}

#[test]
fn a_bad_sector_fails_who_wants_it_and_not_its_neighbours() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 3, MIB);
    let rig = rig(MIB);
    prefetch(&rig, Wild::new(3));
    let disk = rig.attach(&path, Some("eio:op=read,from=40960,len=512")).unwrap();
    let client = rig.open(disk);
    for round in 0..3 {
        for sector in 72..96 {
            let answer = client.do_one(Ask::read(sector * 512, 512));
            let expected = if sector == 80 { Err(Errno(libc::EIO)) } else { Ok(()) };
            assert_eq!(answer.result, expected, "round {round}, sector {sector}");
            let fine = answer.buffer == *at(&data, sector * 512, 512);
            assert!(fine || sector == 80, "round {round}, sector {sector}");
        }
    }
    assert_eq!(quiet(&rig, &client).disks[0].ops[0].errors, 3);
}

#[test]
fn no_disk_sees_anothers_data_in_frames_that_are_used_again() {
    let seed = 21;
    eprintln!("seed {seed}");
    let dir = dir();
    let len = 2 * MIB;
    let rig = rig(128 << 10);
    prefetch(&rig, Wild::new(seed));
    let disks: Vec<_> = (0..3)
        .map(|n| {
            let (path, data) = full_image(&dir, &format!("{n}.img"), n, len);
            // The last one's transfers stop short and go on.
            let fault = if n == 2 { Some("short:op=read") } else { None };
            let client = rig.open(rig.attach(&path, fault).unwrap());
            (path, data, client)
        })
        .collect();
    // The second shrinks behind our back: an error, and never a former owner's bytes.
    OpenOptions::new().write(true).open(&disks[1].0).unwrap().set_len(len / 2).unwrap();
    let mut random = Rng::new(seed);
    let (mut failed, mut served) = (0, 0);
    for _ in 0..300 {
        for (n, (_, data, client)) in disks.iter().enumerate() {
            let offset = random.below(len / 512 - 64) * 512;
            let bytes = (1 + random.below(64)) * 512;
            let answer = client.do_one(Ask::read(offset, bytes));
            let beyond = n == 1 && offset + bytes > len / 2;
            assert_eq!(answer.result.is_err(), beyond, "disk {n}, {offset}+{bytes}");
            assert!(
                beyond || answer.buffer == *at(data, offset, bytes),
                "disk {n}, {offset}+{bytes}"
            );
            (failed, served) = (failed + u32::from(beyond), served + u32::from(!beyond));
        }
    }
    assert!(failed > 50 && served > 500, "{failed} failed, {served} served");
}

#[test]
fn a_disk_that_shrinks_and_grows_reads_as_zeroes_there() {
    let dir = dir();
    // Its end is inside a block.
    let len = MIB + 512;
    let (path, data) = full_image(&dir, "a.img", 4, len);
    let (other, _) = full_image(&dir, "b.img", 5, MIB);
    let rig = rig(4 * MIB);
    let disk = rig.attach(&path, None).unwrap();
    let unharmed = rig.open(rig.attach(&other, None).unwrap());
    assert!(unharmed.do_one(Ask::read(0, MIB)).result.is_ok());
    let client = rig.open(disk);
    let resize = |bytes| {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        assert_eq!(rig.handle.ask(|r| Message::Resize(disk, true, r)).unwrap(), Ok(bytes));
    };
    assert!(client.do_one(Ask::read(0, len)).buffer == data);
    assert!(client.do_one(Ask::read(MIB, 512)).buffer == *at(&data, MIB, 512));
    resize(MIB / 2 + 1024);
    assert_eq!(client.do_one(Ask::read(MIB / 2, 4096)).result, Err(Errno(libc::EINVAL)));
    assert!(client.do_one(Ask::read(MIB / 2, 1024)).buffer == *at(&data, MIB / 2, 1024));
    resize(2 * MIB);
    let answer = client.do_one(Ask::read(0, 2 * MIB));
    let kept = (MIB / 2 + 1024) as usize;
    assert!(answer.buffer[..kept] == data[..kept]);
    assert!(answer.buffer[kept..].iter().all(|&b| b == 0), "bytes of before or of another");
    let new = pattern(6, 1536);
    assert!(client.do_one(Ask::write(2 * MIB - 1536, new.clone())).result.is_ok());
    assert!(client.do_one(Ask::read(2 * MIB - 1536, 1536)).buffer == new);
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * MIB);
}
