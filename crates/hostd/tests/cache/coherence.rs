//! Against a flat model: several connections of one disk read, write, discard
//! and zero at random, among resizes and wild guesses, and every read shows
//! what was written.

use crate::common::{Ask, Client, dir, image, pattern};
use crate::guesses::{MIB, Random, Wild, prefetch, quiet, rig};
use seekway_hostd::reactor::Message;
use seekway_policy::request::Op;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sectors that are written and checked; resizes move the end behind them.
const SECTORS: u64 = 2048;
const CONNECTIONS: u64 = 4;
const BATCHES: u64 = 120;
const BATCH: u64 = 12;

/// A sector's contents: 0 is zeroes, all else the version that was written.
fn contents(version: u64) -> Vec<u8> {
    if version == 0 { vec![0; 512] } else { pattern(version, 512) }
}

/// One connection's model: each sector has one owner, who alone changes it, and
/// owners' sectors lie mixed within blocks.
struct Guest {
    me: u64,
    random: Random,
    owner: Vec<u64>,
    /// What a sector may hold.
    may: Vec<Vec<u64>>,
    version: u64,
}

impl Guest {
    fn new(me: u64, seed: u64, owner: Vec<u64>) -> Guest {
        let random = Random((seed ^ me.wrapping_mul(0x9e37_79b9)) | 1);
        let may = vec![vec![0]; owner.len()];
        Guest { me, random, owner, may, version: me << 32 }
    }

    /// A run of this guest's sectors, at most `max`.
    fn run(&mut self, max: u64) -> (u64, u64) {
        loop {
            let start = self.random.below(SECTORS);
            let mine = |s: &u64| *s < SECTORS && self.owner[*s as usize] == self.me;
            let len = (start..start + 1 + start % max).take_while(mine).count() as u64;
            if len > 0 {
                return (start, len);
            }
        }
    }

    /// Requests that are under way together, and which sectors they change.
    fn batch(&mut self) -> Vec<Ask> {
        let mut asks = Vec::new();
        let mut changed = vec![false; SECTORS as usize];
        for _ in 0..BATCH {
            let kind = self.random.below(8);
            if kind < 4 {
                let start = self.random.below(SECTORS);
                let len = (1 + self.random.below(64)).min(SECTORS - start);
                asks.push(Ask::read(start * 512, len * 512));
                continue;
            }
            let (start, len) = self.run(24);
            let range = start as usize..(start + len) as usize;
            if changed[range.clone()].iter().any(|c| *c) {
                continue; // two writes at once of the same: either may win
            }
            changed[range.clone()].fill(true);
            self.version += 1;
            let (version, (at, bytes)) = (self.version, (start * 512, len * 512));
            let (ask, now) = match kind {
                4 | 5 => (Ask::write(at, contents(version).repeat(len as usize)), version),
                6 => (Ask::new(Op::WriteZeroes, at, bytes, Vec::new()), 0),
                // Advice: what was there may stay.
                _ => (Ask::new(Op::Discard, at, bytes, Vec::new()), 0),
            };
            let unmap = self.random.below(2) == 0;
            asks.push(Ask { unmap, ..ask });
            self.may[range].iter_mut().for_each(|may| may.push(now));
        }
        asks
    }

    /// Every read shows one of the things that it may.
    fn check(&self, start: u64, buffer: &[u8], when: &str) {
        for (sector, bytes) in (start..).zip(buffer.chunks(512)) {
            if self.owner[sector as usize] == self.me {
                let may = &self.may[sector as usize];
                let fine = may.iter().any(|&version| contents(version) == bytes);
                assert!(fine, "{when}: guest {}, sector {sector}: none of {may:?}", self.me);
            }
        }
    }

    /// The batch is done: what was written is what there is, but for discards.
    fn settle(&mut self, asks: &[(Op, u64, u64)]) {
        for &(op, offset, len) in asks {
            if !matches!(op, Op::Write | Op::WriteZeroes) {
                continue;
            }
            for sector in offset / 512..(offset + len) / 512 {
                let may = &mut self.may[sector as usize];
                let last = *may.last().expect("something");
                *may = vec![last];
            }
        }
    }

    fn play(&mut self, client: &Client) {
        for batch in 0..BATCHES {
            let asks = self.batch();
            let places: Vec<_> = asks.iter().map(|a| (a.op, a.offset, a.len)).collect();
            let answers = client.do_all(asks);
            for (answer, &(op, offset, len)) in answers.iter().zip(&places) {
                assert_eq!(answer.result, Ok(()), "{op:?} {offset}+{len}");
                if op == Op::Read {
                    self.check(offset / 512, &answer.buffer, &format!("batch {batch}"));
                }
            }
            self.settle(&places);
            // Nothing else is under way of this guest's: exactly what is there.
            let (start, len) = self.run(64);
            let answer = client.do_one(Ask::read(start * 512, len * 512));
            self.check(start, &answer.buffer, &format!("after batch {batch}"));
        }
    }
}

/// Make owners of short runs, so that blocks have several.
fn owners(seed: u64) -> Vec<u64> {
    let mut random = Random(seed | 1);
    let mut owners = Vec::new();
    while (owners.len() as u64) < SECTORS {
        let (owner, run) = (random.below(CONNECTIONS), 1 + random.below(20));
        owners.extend(std::iter::repeat_n(owner, run as usize));
    }
    owners.truncate(SECTORS as usize);
    owners
}

#[test]
fn blocks_of_both_sizes_are_read_and_written() {
    let dir = dir();
    for sector_bytes in [512, 4096] {
        let path = image(&dir, &format!("{sector_bytes}.img"), MIB);
        let Some(device) = crate::loops::Loop::new(&path, sector_bytes as u32) else { return };
        let rig = rig(256 << 10);
        prefetch(&rig, Wild::new(sector_bytes));
        let client = rig.open(rig.attach(Path::new(&device.0), None).unwrap());
        let mut flat = vec![0; MIB as usize];
        let mut random = Random(sector_bytes);
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
        let wrong = client.do_one(Ask::read(sector_bytes / 2, sector_bytes)).result;
        assert!(wrong.is_err());
        client.close();
        rig.stop();
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
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guests: Vec<_> = (0..)
            .zip(&mut clients)
            .map(|(me, client)| {
                let mut guest = Guest::new(me, seed, owners(seed));
                scope.spawn(move || guest.play(client))
            })
            .collect();
        let (over, path, handle) = (&over, &path, &rig.handle);
        let resizes = scope.spawn(move || {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            let mut random = Random(seed | 1);
            while !over.load(Ordering::SeqCst) {
                let bytes = (SECTORS + random.below(128)) * 512;
                file.set_len(bytes).unwrap();
                assert_eq!(handle.ask(|r| Message::Resize(disk, r)).unwrap(), Ok(bytes));
            }
        });
        // The cache too: nothing that is taken back may be on its way to or from a guest.
        let cache_resizes = scope.spawn(move || {
            let mut random = Random(seed | 1);
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
    let status = quiet(&rig, &clients[0]);
    let usage = crate::guesses::of_disk(&status).usage;
    // The smallest cache may lose a block before it is read again, but not one that somebody
    // waits for.
    assert!(usage.cached + usage.late > 0 && usage.prefetched > 0, "{usage:?}");
    clients.into_iter().for_each(Client::close);
    rig.stop();
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
