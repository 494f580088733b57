//! Against a flat model: several connections of one disk read, write, discard
//! and zero at random, among resizes and wild guesses, and every read shows
//! what was written.

use super::guesses::{MIB, Wild, prefetch, quiet, rig};
use crate::common::loops::loop_device;
use crate::common::{Ask, Client, dir, image, pattern};
use seekway_core::request::Op;
use seekway_hostd::reactor::Message;
use seekway_testing::disk::{Model, SECTOR_BYTES, sectors_of};
use seekway_workload::rng::{Rng, split};
use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sectors that are written and checked; resizes move the end behind them.
const SECTORS: u64 = 2048;
const CONNECTIONS: u64 = 4;
const BATCHES: u64 = 120;
const BATCH: u64 = 12;

/// The model of the disk that all connections share, and its clock. A write's number is the time at
/// which it was asked for.
struct Truth {
    model: Model,
    now: u64,
}

impl Truth {
    fn new() -> Mutex<Truth> {
        let mut model = Model::new(SECTORS as usize);
        // The page cache may show a part of another connection's write.
        model.tears = true;
        Mutex::new(Truth { model, now: 0 })
    }

    /// A request for these sectors, at random, is about to be asked for.
    fn begin(&mut self, sectors: Range<usize>, random: &mut Rng) -> (Asked, Ask) {
        self.now += 1;
        let (at, len) = ((sectors.start * SECTOR_BYTES) as u64, sectors.len() * SECTOR_BYTES);
        let (ask, stamp) = match random.below(8) {
            0..4 => (Ask::read(at, len as u64), None),
            4 | 5 => (Ask::write(at, sectors_of(self.now, sectors.clone())), Some(self.now)),
            6 => (Ask::new(Op::WriteZeroes, at, len as u64, Vec::new()), Some(0)),
            _ => (Ask::new(Op::Discard, at, len as u64, Vec::new()), Some(0)),
        };
        if let Some(stamp) = stamp {
            self.model.begin(sectors.clone(), self.now, stamp, self.now);
        }
        let ask = Ask { unmap: random.below(2) == 0, ..ask };
        (Asked { op: ask.op, sectors, begun: self.now }, ask)
    }

    /// Ends a request; a read found these bytes.
    fn end(&mut self, asked: Asked, bytes: &[u8]) -> Result<(), String> {
        self.now += 1;
        let Asked { op, sectors, begun } = asked;
        match op {
            Op::Read => return self.model.check(sectors.start, bytes, begun),
            // Advice: what was there may stay.
            Op::Discard => self.model.end(sectors, begun, self.now, false, false),
            _ => self.model.end(sectors, begun, self.now, true, false),
        }
        Ok(())
    }
}

struct Asked {
    op: Op,
    sectors: Range<usize>,
    begun: u64,
}

/// Ask for batches of requests, each batch together, and check the answers.
fn play(client: &Client, truth: &Mutex<Truth>, mut random: Rng) {
    for batch in 0..BATCHES {
        let begin = |_| {
            let start = random.below(SECTORS);
            let len = (1 + random.below(64)).min(SECTORS - start);
            let sectors = start as usize..(start + len) as usize;
            truth.lock().unwrap().begin(sectors, &mut random)
        };
        let (asked, asks): (Vec<Asked>, Vec<Ask>) = (0..BATCH).map(begin).unzip();
        for (asked, answer) in asked.into_iter().zip(client.do_all(asks)) {
            assert_eq!(answer.result, Ok(()), "batch {batch}");
            let ended = truth.lock().unwrap().end(asked, &answer.buffer);
            ended.unwrap_or_else(|e| panic!("batch {batch}: {e}"));
        }
    }
}

#[test]
fn blocks_of_both_sizes_are_read_and_written() {
    let dir = dir();
    for sector_bytes in [512, 4096] {
        let path = image(&dir, &format!("{sector_bytes}.img"), MIB);
        let Some(device) = loop_device(&path, sector_bytes as u32) else { return };
        let rig = rig(256 << 10);
        prefetch(&rig, Wild::new(sector_bytes));
        let client = rig.open(rig.attach(Path::new(&device.0), None).unwrap());
        let mut flat = vec![0; MIB as usize];
        let mut random = Rng::new(sector_bytes);
        for turn in 0..400 {
            let at = random.below(MIB / sector_bytes - 16) * sector_bytes;
            let len = (1 + random.below(16)) * sector_bytes;
            let range = at as usize..(at + len) as usize;
            if random.below(3) == 0 {
                let data = pattern(turn, len as usize);
                flat[range].copy_from_slice(&data);
                assert_eq!(client.do_one(Ask::write(at, data)).result, Ok(()));
            } else {
                let answer = client.do_one(Ask::read(at, len));
                assert_eq!(answer.result, Ok(()), "{sector_bytes}: {at}+{len}");
                assert!(answer.buffer == flat[range], "{sector_bytes}: {at}+{len}");
            }
        }
        // Parts of two blocks.
        let at = sector_bytes / 2;
        let answer = client.do_one(Ask::read(at, sector_bytes));
        assert_eq!(answer.result, Ok(()));
        assert!(answer.buffer == flat[at as usize..(at + sector_bytes) as usize]);
    }
}

fn check(seed: u64, cache_bytes: u64, fault: Option<&str>) {
    eprintln!("seed {seed}, cache of {cache_bytes} bytes, fault {fault:?}");
    let dir = dir();
    let path = image(&dir, "a.img", SECTORS * 512);
    let rig = rig(cache_bytes);
    prefetch(&rig, Wild::new(seed));
    let disk = rig.attach(&path, fault).unwrap();
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| rig.open(disk)).collect();
    let (truth, over) = (Truth::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let guests: Vec<_> = (1..)
            .zip(&mut clients)
            .map(|(me, client)| {
                let (truth, random) = (&truth, Rng::new(split(seed, me)));
                scope.spawn(move || play(client, truth, random))
            })
            .collect();
        let (over, path, handle) = (&over, &path, &rig.handle);
        let resizes = scope.spawn(move || {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            let mut random = Rng::new(seed);
            while !over.load(Ordering::SeqCst) {
                let bytes = (SECTORS + random.below(128)) * 512;
                file.set_len(bytes).unwrap();
                assert_eq!(handle.ask(|r| Message::Resize(disk, true, r)).unwrap(), Ok(bytes));
            }
        });
        // The cache too: nothing that is taken back may be on its way to or from a guest.
        let cache_resizes = scope.spawn(move || {
            let mut random = Rng::new(seed);
            while !over.load(Ordering::SeqCst) {
                // As large as it may be half of the time.
                let bytes = random.below(2 * cache_bytes).min(cache_bytes);
                handle.ask(|r| Message::ResizeCache(bytes, r)).unwrap();
            }
        });
        let played: Vec<_> = guests.into_iter().map(|guest| guest.join()).collect();
        over.store(true, Ordering::SeqCst);
        resizes.join().expect("resizes went well");
        cache_resizes.join().expect("the cache's too");
        played.into_iter().for_each(|played| played.expect("the guest saw what it wrote"));
    });
    let all = clients[0].do_one(Ask::read(0, SECTORS * 512)).buffer;
    truth.into_inner().unwrap().model.check(0, &all, u64::MAX).unwrap();
    let status = quiet(&rig, &clients[0]);
    let usage = super::guesses::of_disk(&status).usage;
    // The smallest cache may lose a block before it is read again, but not one that somebody
    // waits for.
    assert!(usage.cached + usage.late > 0 && usage.prefetched > 0, "{usage:?}");
}

#[test]
fn guests_read_what_they_wrote() {
    let seed = seekway_testing::setting("SEED", 1);
    for (n, bytes) in [(0, 64 << 10), (1, 512 << 10), (2, 4 * MIB)] {
        check(seed + n, bytes, None);
    }
}

#[test]
fn guests_read_what_they_wrote_when_transfers_stop_short() {
    let seed = seekway_testing::setting("SEED", 100);
    check(seed, 512 << 10, Some("short"));
}
