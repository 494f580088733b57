//! Requests that begin and end inside blocks: of a device with blocks of 4096 bytes, of a file
//! that ends inside a sector, of a file of XFS with a snapshot.

use crate::common::loops::{loop_device, mount, output};
use crate::common::{Answer, Ask, Client, Rig, RigSetup, cache, dir, image, open_image, pattern};
use seekway_core::request::Op;
use seekway_hostd::images::{BlockSize, Image, OpenOptions};
use seekway_hostd::port::Errno;
use seekway_hostd::reactor::{Disk, Message};
use std::fs;
use std::path::Path;

const AREA: usize = 64 << 10;
const BLOCK: usize = 4096;

/// Numbers below `n`.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % n
    }
}

/// Cut the area at random bytes; the pieces in random order.
fn pieces(next: &mut impl FnMut(u64) -> u64) -> Vec<(usize, usize)> {
    let mut cuts: Vec<usize> = (0..150).map(|_| 1 + next(AREA as u64 - 1) as usize).collect();
    // Some whole blocks are among them.
    cuts.extend([0, BLOCK, 2 * BLOCK, 5 * BLOCK, AREA]);
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<_> = cuts.windows(2).map(|cut| (cut[0], cut[1] - cut[0])).collect();
    for at in (1..pieces.len()).rev() {
        pieces.swap(at, next(at as u64 + 1) as usize);
    }
    pieces
}

fn all_went_well(answers: &[Answer], about: &str) {
    for answer in answers {
        assert_eq!(answer.result, Ok(()), "{about}, request {}", answer.token);
    }
}

/// Contents of the area, read in pieces.
fn area(client: &Client, next: &mut impl FnMut(u64) -> u64, about: &str) -> Vec<u8> {
    let mut held = vec![0; AREA];
    let pieces = pieces(next);
    let reads = pieces.iter().map(|&(at, len)| Ask::read(at as u64, len as u64)).collect();
    let answers = client.do_all(reads);
    all_went_well(&answers, about);
    for ((at, len), answer) in pieces.into_iter().zip(answers) {
        held[at..at + len].copy_from_slice(&answer.buffer);
    }
    held
}

/// Write to each byte of the area once, all at a time, and look.
fn churn(client: &Client, seed: u64, about: &str) {
    let mut next = random(seed);
    let about = &format!("{about}, seed {seed}");
    let mut truth = pattern(seed, AREA);
    all_went_well(&client.do_all(vec![Ask::write(0, truth.clone())]), about);
    let mut discarded = Vec::new();
    let mut asks = Vec::new();
    for (at, len) in pieces(&mut next) {
        let (offset, range) = (at as u64, at..at + len);
        let ask = match next(10) {
            0 => {
                discarded.push(range);
                Ask::new(Op::Discard, offset, len as u64, Vec::new())
            }
            1..3 => {
                truth[range].fill(0);
                Ask::new(Op::WriteZeroes, offset, len as u64, Vec::new())
            }
            n => {
                let data = pattern(offset + seed, len);
                truth[range].copy_from_slice(&data);
                let mut ask = Ask::write(offset, data);
                ask.buffer.splice(0..0, std::iter::repeat_n(0, n as usize));
                ask.skip = n as usize;
                ask
            }
        };
        asks.push(Ask { fua: next(4) == 0, unmap: next(2) == 0, ..ask });
    }
    all_went_well(&client.do_all(asks), about);
    let held = area(client, &mut next, about);
    for range in discarded {
        // What was discarded may be anything that was there, or zeroes.
        let is_kept = |at: &usize| held[*at] == truth[*at] || held[*at] == 0;
        assert!(range.clone().all(|at| is_kept(&at)), "{about}: discarded {range:?}");
        truth[range.clone()].copy_from_slice(&held[range]);
    }
    let wrong = (0..AREA).find(|&at| held[at] != truth[at]);
    assert_eq!(wrong, None, "{about}: a byte that is not what was written");
}

fn rig(path: &Path, options: &OpenOptions, cached: bool) -> (Rig, Client) {
    let cache = cached.then(|| cache(1 << 20)).flatten();
    let rig = Rig::start(RigSetup { policy: "deadline", cache, ..RigSetup::default() });
    let image = open_image(path, options).unwrap();
    let disk = Disk { cached, ..Disk::new("disk", image) };
    let id = rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
    let client = rig.open(id);
    (rig, client)
}

#[test]
fn writes_to_parts_of_blocks_lose_nothing_of_their_neighbours() {
    let folder = dir();
    let path = image(&folder, "disk", 1 << 20);
    let Some(device) = loop_device(&path, 4096) else { return };
    let smaller = Some(BlockSize::B512);
    for (direct, cached) in [(true, false), (true, true), (false, false)] {
        let options = OpenOptions { direct, block_size: smaller, ..OpenOptions::writing() };
        let (_rig, client) = rig(Path::new(&device.0), &options, cached);
        for seed in 0..8 {
            churn(&client, seed, &format!("direct: {direct}, cached: {cached}"));
        }
        assert!(client.do_one(Ask::flush()).result.is_ok());
    }
}

#[test]
fn any_byte_of_a_file_can_be_read_and_written() {
    let folder = dir();
    let path = image(&folder, "a.img", 1 << 20);
    for direct in [true, false] {
        let options = OpenOptions { direct, ..OpenOptions::writing() };
        let (_rig, client) = rig(&path, &options, false);
        (0..4).for_each(|seed| churn(&client, seed, &format!("direct: {direct}")));
    }
}

#[test]
fn a_read_that_fails_before_a_write_fails_the_write_alone() {
    let folder = dir();
    let path = image(&folder, "a.img", 1 << 20);
    fs::write(&path, pattern(1, 1 << 20)).unwrap();
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&path, Some("eio:op=read,from=4096,len=512")).unwrap());
    let direct = Image::open(&image(&folder, "b.img", 4096), &OpenOptions::writing());
    if !direct.unwrap().is_direct() {
        return seekway_testing::skip("direct I/O where tests build");
    }
    let answers = client.do_all(vec![
        Ask::write(4100, vec![7; 8]),
        Ask::write(4608, vec![7; 8]),
        Ask::write(4096, vec![7; 512]),
    ]);
    let results: Vec<_> = answers.iter().map(|answer| answer.result).collect();
    assert_eq!(results, [Err(Errno(libc::EIO)), Ok(()), Ok(())]);
}

#[test]
fn an_image_that_ends_inside_a_sector_is_served_to_its_end() {
    let folder = dir();
    let path = folder.path().join("odd.img");
    let data = pattern(3, 1000);
    fs::write(&path, &data).unwrap();
    let (rig, client) = rig(&path, &OpenOptions::writing(), false);
    let whole = client.do_one(Ask::read(0, 1024));
    assert_eq!(whole.result, Ok(()));
    assert_eq!((&whole.buffer[..1000], &whole.buffer[1000..]), (&data[..], &[0; 24][..]));
    assert_eq!(client.do_one(Ask::read(1001, 23)).buffer, [0; 23]);
    for (offset, len) in [(1024, 1), (0, 1025)] {
        assert_eq!(client.do_one(Ask::read(offset, len)).result, Err(Errno(libc::EINVAL)));
    }
    // A write inside leaves the file as long as it is; one behind its end is kept.
    assert_eq!(client.do_one(Ask::write(990, vec![1; 10])).result, Ok(()));
    assert_eq!(fs::metadata(&path).unwrap().len(), 1000);
    assert_eq!(client.do_one(Ask::write(1010, vec![2; 4])).result, Ok(()));
    assert_eq!(client.do_one(Ask::read(998, 16)).buffer, [&[1; 2][..], &[0; 10], &[2; 4]].concat());
    drop((client, rig));
    let held = fs::read(&path).unwrap();
    assert_eq!((held.len(), &held[..990]), (1014, &data[..990]));
}

#[test]
fn a_snapshot_changes_nothing_that_a_guest_sees() {
    let folder = dir();
    let disk = image(&folder, "fs", 400 << 20);
    let Some(device) = loop_device(&disk, 512) else { return };
    if output("mkfs.xfs", &["-q", "-m", "reflink=1", &device.0]).is_none() {
        return seekway_testing::skip("mkfs.xfs");
    }
    let Some(mounted) = mount(&[&device.0], folder.path().join("mount")) else { return };
    let path = image(folder.path().join("mount"), "web.img", 1 << 20);
    fs::write(&path, pattern(5, 1 << 20)).unwrap();
    let limits = |options: &OpenOptions| *open_image(&path, options).unwrap().limits();
    let before = limits(&OpenOptions::writing());
    let (from, to) = (path.to_str().unwrap(), path.with_extension("1"));
    let copied = output("cp", &["--reflink=always", from, to.to_str().unwrap()]);
    assert!(copied.is_some(), "a snapshot");
    let after = limits(&OpenOptions::writing());
    let seen = |limits: &seekway_hostd::images::Limits| {
        let logical = limits.logical_block_bytes;
        (logical, limits.physical_block_bytes, limits.capacity_bytes, limits.least_bytes())
    };
    assert_eq!(seen(&before), seen(&after));
    assert_eq!(after.logical_block_bytes, 512);
    let (rig, client) = rig(&path, &OpenOptions::writing(), false);
    churn(&client, 1, "after a snapshot");
    drop((client, rig));
    assert!(fs::read(&to).unwrap() == pattern(5, 1 << 20), "the snapshot has changed");
    drop(mounted);
}
