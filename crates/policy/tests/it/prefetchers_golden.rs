//! One scene of reads through every prefetcher of the registry, as text in
//! `tests/golden/prefetchers`.
//! `UPDATE_EXPECT=1 cargo test -p seekway-policy --test it prefetchers_golden`
//! rewrites them.

use expect_test::expect_file;
use seekway_core::prefetcher::{Access, Prefetcher};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers::{self, REGISTRY};
use std::fmt::Write;

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

fn play(spec: &str, bandwidth: u64) -> String {
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
        text += &play(entry.name, AMPLE);
        if entry.params.iter().any(|p| p.key == "interval") {
            text += "\n# interval=continuous\n";
            text += &play(&format!("{}:interval=continuous", entry.name), AMPLE);
            text += "\n# 20 MiB/s\n";
            text += &play(entry.name, SCARCE);
        }
        expect_file![format!("../golden/prefetchers/{}.txt", entry.name)].assert_eq(&text);
    }
}
