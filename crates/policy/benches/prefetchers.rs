//! Cost of a guest's read to the prefetcher, for every one of the registry and
//! the forms that differ: told of the read (128 KiB), and asked for proposals
//! until there are none. Twelve processes that read files by turns, with tags
//! and without; random reads; a guest that uses every tag there is.
//!
//! `cargo bench -p seekway-policy --bench prefetchers`; a word after `--`
//! selects by name.

#![allow(missing_docs)] // criterion_group! makes a public function

mod common;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use seekway_core::prefetcher::{Access, Prefetcher};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers;
use std::hint::black_box;

const CAPACITY: u64 = 1 << 34;
const READ: Sectors = Sectors::new(256);
/// Between reads: 2 GiB/s.
const PAUSE: Nanos = Nanos::from_micros(64);
const SPECS: &[&str] =
    &["none", "linux", "flashy", "vio", "vio:interval=continuous,threshold=auto"];

#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Twelve streams by turns, each with a tag or none.
    Streams {
        tagged: bool,
    },
    Random,
    /// As `Random`, with a tag for each read, all tags in turn.
    AllTags,
}

struct Loop {
    prefetcher: Box<dyn Prefetcher>,
    load: Load,
    now: Instant,
    reads: u64,
    random: u64,
}

impl Loop {
    fn new(spec: &str, load: Load) -> Loop {
        let mut prefetcher = prefetchers::build(spec).expect("a registered name");
        prefetcher.attach(Instant::ZERO, VmId::new(0), Sectors::new(CAPACITY));
        prefetcher.bandwidth(2 << 30);
        let mut this = Loop { prefetcher, load, now: Instant::ZERO, reads: 0, random: 1 };
        (0..200_000).for_each(|_| this.step());
        this
    }

    fn step(&mut self) {
        let n = self.reads;
        self.reads += 1;
        let (start, tag) = match self.load {
            Load::Streams { tagged } => {
                let (stream, place) = (n % 12, n / 12 * READ.get());
                let file = CAPACITY / 12;
                (stream * file + place % (file - READ.get()), if tagged { 8 + stream } else { 0 })
            }
            Load::Random | Load::AllTags => {
                let random = common::random(&mut self.random);
                let tag = if self.load == Load::AllTags { n & 0xffff } else { 0 };
                (random % (CAPACITY / READ.get() - 1) * READ.get(), tag)
            }
        };
        let access = Access {
            vm: VmId::new(0),
            tag: ProcessTag::new(tag as u16),
            extent: Extent::new(Lba::new(start), READ).expect("in range"),
            missed: Sectors::ZERO,
            late: if n.is_multiple_of(8) { READ } else { Sectors::ZERO },
        };
        self.now = self.now + PAUSE;
        self.prefetcher.accessed(self.now, &access);
        while let Some(proposal) = self.prefetcher.propose(self.now, Sectors::new(1 << 14)) {
            black_box(proposal);
        }
    }
}

fn accessed(c: &mut Criterion) {
    for (name, load) in [
        ("streams_tagged", Load::Streams { tagged: true }),
        ("streams_untagged", Load::Streams { tagged: false }),
        ("random", Load::Random),
        ("all_tags", Load::AllTags),
    ] {
        let mut group = c.benchmark_group("prefetcher");
        for spec in SPECS {
            group.bench_function(BenchmarkId::new(*spec, name), |b| {
                let mut this = Loop::new(spec, load);
                b.iter(|| this.step());
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = common::config();
    targets = accessed
}
criterion_main!(benches);
