//! Cost of the host cache's bookkeeping for one request, with a million blocks
//! (4 GiB) cached: a read of 4 KiB or 64 KiB that is a hit, or a miss for which
//! as much has to go, or part of a stream that is prefetched; at random places,
//! the fetches' ends included; the frames of what hits are looked up as an
//! engine does. `mix` is all of them together: of ten requests three hits of
//! 4 KiB and three of 64 KiB, two misses of 4 KiB, and two stream reads of 64 KiB.
//!
//! `cargo bench -p seekway-stack --bench cache`; a word after `--` selects. The
//! memory that the books take is printed first.

#![allow(missing_docs)] // criterion_group! makes a public function
#![allow(clippy::disallowed_macros)] // a bench prints

#[path = "../../policy/benches/common/mod.rs"]
mod common;

use common::measure;
use criterion::{Criterion, criterion_group, criterion_main};
use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_stack::cache::{BLOCK_BYTES, BLOCK_SECTORS, Config, HostCache, Piece};
use std::hint::black_box;
use std::num::NonZeroU32;

/// Blocks that are cached.
const BLOCKS: u64 = 1 << 20;
/// Blocks of each VM's disk: 4 TiB.
const DISK: u64 = 1 << 30;
const VMS: u16 = 4;
/// Where streams run: behind all else.
const STREAMS: u64 = DISK / 2;
/// Blocks that a stream is ahead.
const LEAD: u64 = 64;

/// As cheap as one can be: each read of the streams' part is followed
/// by what comes [`LEAD`] blocks later.
#[derive(Default)]
struct Ahead(Option<Proposal>);

impl Prefetcher for Ahead {
    fn accessed(&mut self, _now: Instant, access: &Access) {
        let Access { vm, tag, extent, .. } = *access;
        if extent.start().get() >= STREAMS * BLOCK_SECTORS {
            let start = extent.start() + Sectors::new(LEAD * BLOCK_SECTORS);
            self.0 = Extent::new(start, extent.len()).map(|extent| Proposal { vm, tag, extent });
        }
    }
    fn propose(&mut self, _now: Instant, _room: Sectors) -> Option<Proposal> {
        self.0.take()
    }
}

struct Bench {
    cache: HostCache,
    random: u64,
    pieces: Vec<Piece>,
    /// Where each VM's stream reads next.
    streams: [u64; VMS as usize],
    /// Sectors of each VM's disk that are cached, from its beginning on.
    hot: u64,
}

impl Bench {
    fn new() -> Bench {
        let config = Config { seed: 1, ..Config::new(BLOCKS * BLOCK_BYTES) };
        let mut cache = HostCache::with(config, Box::<Ahead>::default());
        for vm in 0..VMS {
            let (vm, capacity) = (VmId::new(vm), Sectors::new(DISK * BLOCK_SECTORS));
            cache.attach(Instant::ZERO, vm, NonZeroU32::MIN, capacity);
        }
        let streams = [STREAMS; VMS as usize];
        let hot = BLOCKS / u64::from(VMS) / 2;
        let mut this = Bench { cache, random: 1, pieces: Vec::new(), streams, hot };
        // Half of the cache is hot and known to be; the rest is filled by misses,
        // in no order, until it has gone round twice.
        for _ in 0..4 {
            for first in (0..this.hot).step_by(16) {
                (0..VMS).for_each(|vm| this.read(vm, first, 16));
            }
        }
        for _ in 0..2 * BLOCKS / 8 {
            this.miss(16);
        }
        this
    }

    fn random(&mut self) -> u64 {
        common::random(&mut self.random)
    }

    fn read(&mut self, vm: u16, first: u64, blocks: u64) {
        let (now, vm) = (Instant::ZERO, VmId::new(vm));
        let (start, len) = (Lba::new(first * BLOCK_SECTORS), Sectors::new(blocks * BLOCK_SECTORS));
        let extent = Extent::new(start, len).expect("in range");
        self.pieces.clear();
        self.cache.read(now, vm, None, extent, 0, &mut self.pieces);
        for &piece in &self.pieces {
            match piece {
                Piece::Cached(part) => self.cache.frames(vm, part).for_each(|frame| {
                    black_box(frame);
                }),
                Piece::Fetch(id, _) | Piece::Wait(id, _) => self.cache.fetched(now, id, true),
                Piece::Direct(_) => unreachable!("there is room"),
            }
        }
        while let Some(id) = self.cache.propose(now, 64) {
            self.cache.fetched(now, id, true);
        }
    }

    fn hit(&mut self, blocks: u64) {
        let random = self.random();
        let first = (random >> 8) % (self.hot / blocks) * blocks;
        self.read(random as u16 % VMS, first, blocks);
    }

    /// Somewhere on the disk where hardly anything is cached.
    fn miss(&mut self, blocks: u64) {
        let random = self.random();
        let first = DISK / 4 + (random >> 8) % (DISK / 4 / blocks) * blocks;
        self.read(random as u16 % VMS, first, blocks);
    }

    fn stream(&mut self, blocks: u64) {
        let vm = self.random() as u16 % VMS;
        let first = self.streams[usize::from(vm)];
        self.streams[usize::from(vm)] = STREAMS + (first - STREAMS + blocks) % (DISK / 4);
        self.read(vm, first, blocks);
    }

    fn mix(&mut self) {
        match self.random() % 10 {
            0..3 => self.hit(1),
            3..6 => self.hit(16),
            6..8 => self.miss(1),
            _ => self.stream(16),
        }
    }
}

fn requests(c: &mut Criterion) {
    let mut this = Bench::new();
    let per_block = this.cache.overhead_bytes() as f64 / BLOCKS as f64;
    println!("host cache: {per_block:.1} bytes of books for a block of {BLOCK_BYTES}");
    let mut group = c.benchmark_group("cache");
    let mut run = |name: &str, step: fn(&mut Bench)| {
        group.bench_function(name, |b| b.iter_custom(|times| measure(times, || step(&mut this))));
    };
    run("hit_4k", |b| b.hit(1));
    run("hit_64k", |b| b.hit(16));
    run("stream_64k", |b| b.stream(16));
    run("mix", Bench::mix);
    run("miss_4k", |b| b.miss(1));
    run("miss_64k", |b| b.miss(16));
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::config();
    targets = requests
}
criterion_main!(benches);
