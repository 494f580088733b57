//! Contract of every prefetcher of the registry, on random sequences of reads, evictions, waits,
//! and VMs that come and go: proposals inside the disk and the room, never the same twice in a row,
//! nothing of a VM that has left, bounded state, equal input gives equal proposals.
//!
//! The sequences are seeded. `SEEKWAY_SEED=n cargo test --test it prefetchers`
//! tries others; a failure prints the seed and the shrunken sequence.

use expect_test::expect_file;
use proptest::prelude::*;
use seekway_conformance::seeded;
use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers;
use seekway_policy::prefetchers::REGISTRY;
use std::collections::BTreeSet;
use std::fmt::Write;

const VMS: u16 = 4;

/// Streams that a prefetcher may follow of a guest with all tags there are, and of
/// one without any: 32 of what is untagged, and 8 for each of 256 values of tags.
const STREAMS_MAX: [usize; 2] = [32 + 256 * 8, 32];

/// Regions that flashy may follow of either: 4 in each of 256 sets.
const REGIONS_MAX: [usize; 2] = [256 * 4; 2];

/// Stretches, marked pages and windows that `linux` may remember for two disks.
const REMEMBERED_MAX: f64 = 2.0 * 3.0 * 64.0;

#[derive(Clone, Debug)]
enum Step {
    /// A read that goes on where the process's last one ended (begins, jumped
    /// to), or elsewhere.
    Read {
        vm: u16,
        tag: u16,
        place: Place,
        len: u64,
        missed: u64,
    },
    Evicted {
        vm: u16,
        start: u64,
        used: bool,
    },
    Propose {
        room: u64,
    },
    Wait(u64),
    Detach(u16),
    Attach {
        vm: u16,
        capacity: u64,
    },
    Bandwidth(u64),
}

#[derive(Clone, Debug)]
enum Place {
    After,
    Before,
    Stride(i64),
    At(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let tag = prop_oneof![4 => Just(0u16), 6 => 8u16..12, 1 => any::<u16>()];
    let place = prop_oneof![
        12 => Just(Place::After),
        4 => Just(Place::Before),
        4 => prop_oneof![Just(1000i64), Just(-3000), Just(1 << 20)].prop_map(Place::Stride),
        3 => (0u64..1 << 20).prop_map(Place::At),
        1 => (0u64..4096).prop_map(|n| Place::At(u64::MAX - 4096 + n)),
    ];
    let len = prop_oneof![4 => Just(256u64), 3 => Just(8), 2 => 1u64..2048];
    let span = prop_oneof![6 => 0u64..1_000_000, 2 => 0u64..600_000_000, 1 => 0..5_000_000_000u64];
    let room = prop_oneof![Just(0u64), Just(1), Just(256), 1u64..100_000];
    let read = (0..VMS, tag, place, len, 0u64..3)
        .prop_map(|(vm, tag, place, len, missed)| Step::Read { vm, tag, place, len, missed });
    prop_oneof![
        30 => read,
        2 => (0..VMS, 0u64..1 << 17, any::<bool>())
            .prop_map(|(vm, block, used)| Step::Evicted { vm, start: block * 8, used }),
        8 => room.prop_map(|room| Step::Propose { room }),
        6 => span.prop_map(Step::Wait),
        1 => (0..VMS).prop_map(Step::Detach),
        1 => (0..VMS, prop_oneof![Just(1u64 << 20), 1u64..10_000_000])
            .prop_map(|(vm, capacity)| Step::Attach { vm, capacity }),
        1 => prop_oneof![Just(0u64), Just(u64::MAX), 0u64..1 << 32].prop_map(Step::Bandwidth),
    ]
}

/// A prefetcher with what its caller knows.
struct Caller {
    prefetcher: Box<dyn Prefetcher>,
    now: Instant,
    capacities: [Option<u64>; VMS as usize],
    last: Option<Proposal>,
    /// Where proposals began and ended, by VM.
    ends: [BTreeSet<u64>; VMS as usize],
    log: String,
}

impl Caller {
    fn attach(&mut self, vm: u16, capacity: u64) {
        self.prefetcher.attach(self.now, VmId::new(vm), Sectors::new(capacity));
        self.capacities[usize::from(vm)] = Some(capacity);
    }

    /// Ask until there is nothing more, or often enough.
    fn propose(&mut self, mut room: u64) {
        for _ in 0..10_000 {
            let Some(p) = self.prefetcher.propose(self.now, Sectors::new(room)) else { return };
            let Some(capacity) = self.capacities[p.vm.index()] else {
                panic!("a proposal for {:?}, which has left", p.vm)
            };
            let (end, len) = (p.extent.end().get(), p.extent.len().get());
            assert!(end <= capacity, "{} on a disk of {capacity}", p.extent);
            assert!(len <= room, "{} into a room of {room}", p.extent);
            assert_ne!(self.last, Some(p), "proposed just now");
            self.last = Some(p);
            self.ends[p.vm.index()].extend([p.extent.start().get(), end]);
            writeln!(self.log, "{} {:?} {:?} {}", self.now, p.vm, p.tag, p.extent).unwrap();
            room -= len;
        }
    }

    fn streams(&self) -> usize {
        let mut count = 0;
        self.prefetcher.streams(&mut |s| {
            assert!((0.0..=1.0).contains(&s.linear), "{s:?}");
            assert!((0.25..=4.0).contains(&s.scale), "{s:?}");
            assert!(self.capacities[s.vm.index()].is_some(), "{s:?} of a VM that has left");
            count += 1;
        });
        count
    }
}

/// Play a sequence; the log of proposals.
fn play(spec: &str, steps: &[Step]) -> String {
    let mut caller = Caller {
        prefetcher: prefetchers::build(spec).unwrap(),
        now: Instant::ZERO,
        capacities: [None; VMS as usize],
        last: None,
        ends: Default::default(),
        log: String::new(),
    };
    let mut ends = std::collections::BTreeMap::new();
    (0..VMS).for_each(|vm| caller.attach(vm, 1 << 20));
    for step in steps {
        match *step {
            Step::Read { vm, tag, ref place, len, missed } => {
                let last: &mut (u64, u64) = ends.entry((vm, tag)).or_default();
                let start = match *place {
                    Place::After => last.1,
                    Place::Before => last.0.saturating_sub(len),
                    Place::Stride(jump) => last.0.saturating_add_signed(jump),
                    Place::At(lba) => lba,
                };
                let Some(extent) = Extent::new(Lba::new(start), Sectors::new(len)) else {
                    continue;
                };
                if caller.capacities[usize::from(vm)].is_none() {
                    continue;
                }
                *last = (start, extent.end().get());
                // All of it hits, all of it misses, half of it is late.
                let part = |n, of| if missed == n { Sectors::new(of) } else { Sectors::ZERO };
                let access = Access {
                    vm: VmId::new(vm),
                    tag: ProcessTag::new(tag),
                    extent,
                    missed: part(1, len),
                    late: part(2, len / 2),
                };
                caller.prefetcher.accessed(caller.now, &access);
                caller.last = None;
                let mut named = BTreeSet::new();
                while let Some(left) = caller.prefetcher.left(caller.now) {
                    let ends = &caller.ends[usize::from(vm)];
                    // The end that is furthest from the reader is that of a proposal.
                    let (start, end) = (left.start().get(), left.end().get());
                    assert!(ends.contains(&start) || ends.contains(&end), "{left}: not proposed");
                    assert!(named.insert(start), "{left} is named twice");
                    writeln!(caller.log, "{} left {left}", caller.now).unwrap();
                }
            }
            Step::Evicted { vm, start, used } => {
                let extent = Extent::new(Lba::new(start), Sectors::new(8)).unwrap();
                caller.prefetcher.evicted(caller.now, VmId::new(vm), extent, used);
            }
            Step::Propose { room } => caller.propose(room),
            Step::Wait(ns) => {
                // As an engine does: it asks when the time has come that was named.
                let end = caller.now + Nanos::new(ns);
                if let Some(wake) = caller.prefetcher.next_wake().filter(|&at| at <= end) {
                    caller.now = caller.now.max(wake);
                    caller.propose(4096);
                    let next = caller.prefetcher.next_wake();
                    assert!(next.is_none_or(|at| at > caller.now), "woken again at once");
                }
                caller.now = end;
            }
            Step::Detach(vm) => {
                caller.prefetcher.detach(VmId::new(vm));
                caller.capacities[usize::from(vm)] = None;
            }
            Step::Attach { vm, capacity } => {
                caller.attach(vm, capacity);
                caller.last = None;
            }
            Step::Bandwidth(bytes) => caller.prefetcher.bandwidth(bytes),
        }
        caller.streams();
    }
    caller.prefetcher.metrics(&mut |name, value| {
        assert!(value.is_finite(), "metric {name} is {value}");
    });
    caller.log
}

/// Every entry with its defaults, and the forms that differ from them.
fn specs() -> Vec<String> {
    let mut specs: Vec<String> = REGISTRY.iter().map(|e| e.name.to_string()).collect();
    for entry in REGISTRY.iter().filter(|e| e.params.iter().any(|p| p.key == "interval")) {
        for form in ["interval=continuous", "interval=continuous,threshold=auto", "literal=true"] {
            specs.push(format!("{}:{form}", entry.name));
        }
    }
    specs
}

#[test]
fn every_prefetcher_keeps_the_contract() {
    for spec in specs() {
        let steps = prop::collection::vec(step(), 1..300);
        seeded::check(&spec, 256, &steps, |steps| {
            let first = play(&spec, &steps);
            prop_assert_eq!(first, play(&spec, &steps), "equal input, other proposals");
            Ok(())
        });
    }
}

/// A guest with all tags there are, and one that jumps about without any; nothing
/// that is planned for them is ever asked for.
#[test]
fn state_is_bounded_whatever_a_guest_does() {
    // `none` is not asked: it is a type without a field.
    for spec in specs().iter().filter(|spec| *spec != "none") {
        let mut prefetcher = prefetchers::build(spec).unwrap();
        let vms = [VmId::new(0), VmId::new(1)];
        vms.iter().for_each(|&vm| prefetcher.attach(Instant::ZERO, vm, Sectors::new(1 << 33)));
        for n in 0..200_000u64 {
            // Some follow the one before, so that windows are opened and marked.
            let start = n / 4 * 7919 % (1 << 25) * 256 + n % 4 / 2 * 8;
            let extent = Extent::new(Lba::new(start), Sectors::new(8)).unwrap();
            let tag = if n % 2 == 0 { (n / 2) as u16 } else { 0 };
            let (vm, tag) = (vms[(n % 2) as usize], ProcessTag::new(tag));
            let access = Access { vm, tag, extent, missed: extent.len(), late: Sectors::ZERO };
            prefetcher.accessed(Instant::ZERO, &access);
        }
        let mut streams = [0; 2];
        prefetcher.streams(&mut |s| streams[s.vm.index()] += 1);
        let mut remembered = 0.0;
        prefetcher.metrics(&mut |name, value| {
            if name == "remembered" {
                remembered = value;
            }
        });
        let most = if spec == "flashy" { REGIONS_MAX } else { STREAMS_MAX };
        let few = streams.iter().zip(most).all(|(&n, most)| n <= most);
        assert!(few, "{spec}: {streams:?} streams");
        assert!(remembered <= REMEMBERED_MAX, "{spec}: {remembered} remembered");
        // Something was counted: else this would say nothing.
        assert!(streams[0] > 0 || remembered > 0.0, "{spec} says nothing of its state");
    }
}

// One scene of reads through every prefetcher of the registry, as text in
// `tests/golden/prefetchers`.
// `UPDATE_EXPECT=1 cargo test -p seekway-policy --test it prefetchers_golden`
// rewrites them.

/// Bytes that the device can read in a second: more than all that is proposed, and less than the
/// scene's streams ask for (25 MiB/s, beside 1.6 read at random).
const AMPLE: u64 = 200 << 20;

const SCARCE: u64 = 20 << 20;

/// Each of four processes reads once in ten milliseconds, for a second: one
/// upwards (its requests overtake each other), one downwards, one every eighth
/// 64 KiB, one anywhere. Then the first reads on elsewhere.
fn reads() -> Vec<(u64, u16, u64, u64)> {
    let mut all = Vec::new();
    for n in 0..100u64 {
        let swapped = match n % 10 {
            4 => n + 1,
            5 => n - 1,
            _ => n,
        };
        let jump = if n < 70 { 0 } else { 1_000_000 };
        all.push((n * 10, 8, jump + swapped * 256, 256));
        all.push((n * 10 + 2, 9, 3_000_000 - n * 128, 128));
        all.push((n * 10 + 4, 10, 4_000_000 + n * 1024, 128));
        all.push((n * 10 + 6, 11, 5_000_000 + n * n * n * 7919 % 1009 * 512, 64));
    }
    all
}

fn told(spec: &str, bandwidth: u64) -> String {
    let mut prefetcher = prefetchers::build(spec).unwrap();
    let vm = VmId::new(0);
    prefetcher.attach(Instant::ZERO, vm, Sectors::new(1 << 23));
    prefetcher.bandwidth(bandwidth);
    let mut text = String::new();
    let mut proposed: Vec<Extent> = Vec::new();
    for (ms, tag, start, len) in reads() {
        let now = Instant::ZERO + Nanos::from_millis(ms);
        if let Some(wake) = prefetcher.next_wake().filter(|&wake| wake < now) {
            ask(prefetcher.as_mut(), wake, &mut proposed, &mut text);
        }
        let extent = Extent::new(Lba::new(start), Sectors::new(len)).unwrap();
        // What was proposed has come by the time it is read.
        let cached =
            proposed.iter().any(|p| p.start() <= extent.start() && extent.end() <= p.end());
        let missed = if cached { Sectors::ZERO } else { extent.len() };
        let tag = ProcessTag::new(tag);
        let access = Access { vm, tag, extent, missed, late: Sectors::ZERO };
        prefetcher.accessed(now, &access);
        ask(prefetcher.as_mut(), now, &mut proposed, &mut text);
    }
    prefetcher.streams(&mut |s| {
        let tag = s.tag.map_or(0, ProcessTag::get);
        writeln!(text, "# tag {tag}: armed {}, linear {:.2}, S {:.2}", s.armed, s.linear, s.scale)
            .unwrap();
    });
    text
}

/// Write what is proposed now, neighbours of one process together.
fn ask(
    prefetcher: &mut dyn Prefetcher,
    now: Instant,
    proposed: &mut Vec<Extent>,
    text: &mut String,
) {
    let mut new: Vec<(Option<ProcessTag>, Extent)> = Vec::new();
    while let Some(p) = prefetcher.propose(now, Sectors::new(2048)) {
        let (tag, extent) = (p.tag, p.extent);
        let joined = new.iter_mut().find_map(|(known, run)| {
            let start = run.start().min(extent.start());
            let touches = run.end() == extent.start() || extent.end() == run.start();
            (*known == tag && touches).then(|| {
                *run = Extent::new(start, run.len() + extent.len()).unwrap();
            })
        });
        if joined.is_none() {
            new.push((tag, extent));
        }
    }
    for (tag, extent) in new {
        let (ms, tag) = (now.as_nanos() as f64 / 1e6, tag.map_or(0, ProcessTag::get));
        writeln!(text, "{ms:8.1}  tag {tag:2}  {extent}").unwrap();
        match proposed.iter_mut().find(|p| p.end() == extent.start()) {
            Some(p) => *p = Extent::new(p.start(), p.len() + extent.len()).unwrap(),
            None => proposed.push(extent),
        }
    }
}

#[test]
fn every_prefetcher_proposes_as_written() {
    for entry in REGISTRY.iter() {
        let mut text = format!("# {}: {}\n", entry.name, entry.summary);
        text += &told(entry.name, AMPLE);
        if entry.params.iter().any(|p| p.key == "interval") {
            text += "\n# interval=continuous\n";
            text += &told(&format!("{}:interval=continuous", entry.name), AMPLE);
            text += "\n# 20 MiB/s\n";
            text += &told(entry.name, SCARCE);
        }
        expect_file![format!("../golden/prefetchers/{}.txt", entry.name)].assert_eq(&text);
    }
}
