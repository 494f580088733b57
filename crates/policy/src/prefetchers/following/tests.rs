//! The rules, one by one, on hand-computed sequences of reads.

use crate::prefetcher::{Access, Prefetcher, Stream};
use crate::prefetchers;
use crate::request::{Extent, ProcessTag, VmId};
use crate::units::{Instant, Lba, Nanos, Sectors};

const DISK: u64 = 1 << 21;
/// A guest's request: 128 KiB.
const READ: u64 = 256;

/// A prefetcher, one VM, and a clock.
struct Scene {
    prefetcher: Box<dyn Prefetcher>,
    now: Instant,
}

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

impl Scene {
    fn new(spec: &str) -> Scene {
        let mut prefetcher = prefetchers::build(spec).unwrap();
        prefetcher.attach(Instant::ZERO, VmId::new(0), Sectors::new(DISK));
        Scene { prefetcher, now: Instant::ZERO }
    }

    fn wait(&mut self, span: Nanos) {
        self.now = self.now + span;
    }

    fn access(&mut self, tag: u16, start: u64, len: u64, missed: u64, late: u64) {
        let access = Access {
            vm: VmId::new(0),
            tag: ProcessTag::new(tag),
            extent: Extent::new(Lba::new(start), Sectors::new(len)).unwrap(),
            missed: Sectors::new(missed),
            late: Sectors::new(late),
        };
        self.prefetcher.accessed(self.now, &access);
    }

    /// A read that misses; then a millisecond passes.
    fn miss(&mut self, tag: u16, start: u64, len: u64) {
        self.access(tag, start, len, len, 0);
        self.wait(ms(1));
    }

    /// One that hits.
    fn hit(&mut self, tag: u16, start: u64, len: u64) {
        self.access(tag, start, len, 0, 0);
        self.wait(ms(1));
    }

    /// All that is proposed now, `start..end`, neighbours joined.
    fn proposals(&mut self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        while let Some(p) = self.prefetcher.propose(self.now, Sectors::new(1 << 14)) {
            let (start, end) = (p.extent.start().get(), p.extent.end().get());
            match all.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                Some(last) if last.0 == end => last.0 = start,
                _ => all.push((start, end)),
            }
        }
        all
    }

    fn streams(&self) -> Vec<Stream> {
        let mut all = Vec::new();
        self.prefetcher.streams(&mut |s| all.push(*s));
        all
    }
}

#[test]
fn an_interval_of_reads_is_prefetched_in_the_next() {
    let mut scene = Scene::new("vio");
    for n in 0..4 {
        scene.miss(8, n * READ, READ);
    }
    assert_eq!(scene.proposals(), []);
    assert_eq!(scene.prefetcher.next_wake(), Some(Instant::ZERO + ms(500)));
    scene.now = Instant::ZERO + ms(500);
    // Three of four were linear: 0.75 of the interval's blocks.
    assert_eq!(scene.proposals(), [(4 * READ, 7 * READ)]);
    assert_eq!(scene.streams()[0].linear, 0.75);
    // Nobody reads any more: the next interval ends, and is the last.
    scene.now = Instant::ZERO + ms(1000);
    assert_eq!(scene.proposals(), []);
    assert_eq!(scene.prefetcher.next_wake(), None);
}

#[test]
fn continuous_windows_double_while_reads_are_late() {
    let mut scene = Scene::new("vio:interval=continuous");
    scene.miss(8, 0, READ);
    scene.miss(8, READ, READ);
    assert_eq!(scene.proposals(), []);
    // The second linear read: two reads' length.
    scene.miss(8, 2 * READ, READ);
    assert_eq!(scene.proposals(), [(3 * READ, 5 * READ)]);
    // In time: half of it is left, and is filled up.
    scene.hit(8, 3 * READ, READ);
    assert_eq!(scene.proposals(), [(5 * READ, 6 * READ)]);
    // Late: a read longer, and one ahead is read.
    scene.access(8, 4 * READ, READ, 0, READ);
    assert_eq!(scene.proposals(), [(6 * READ, 8 * READ)]);
    assert!(scene.streams()[0].armed);
}
