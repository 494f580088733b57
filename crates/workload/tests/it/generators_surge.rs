//! SURGE's file system and what its processes do to a disk.

use crate::device;

use device::{Run, vm};
use seekway_core::request::Op;
use seekway_core::units::Nanos;
use seekway_workload::generators::fragmented::{Recipe, file_bytes};
use seekway_workload::generators::parse_vm;
use seekway_workload::generators::rng::Rng;
use seekway_workload::guest::laid::LaidFiles;
use std::collections::BTreeMap;
use std::sync::Arc;

fn recipe(seed: u64) -> Recipe {
    Recipe { seed, files: 20_000, tail_percent: 3.2, fill_percent: 75 }
}

/// Extents of all files, ascending.
fn extents(laid: &LaidFiles) -> Vec<(u32, u32)> {
    let all = (0..laid.count()).flat_map(|f| laid.extents(f));
    let mut all: Vec<(u32, u32)> = all.map(|e| (e.start, e.pages)).collect();
    all.sort_unstable();
    all
}

#[test]
fn sizes_have_the_paper_s_quantiles() {
    let mut rng = Rng::new(21);
    let n = 200_000;
    let mut sizes: Vec<u64> = (0..n).map(|_| file_bytes(&mut rng, 7.0)).collect();
    sizes.sort_unstable();
    let below = |bytes: u64| sizes.partition_point(|s| *s < bytes) as f64 / f64::from(n);
    // Below 133 KB: lognormal cut off at its 96.8 % quantile, Φ(1.852) = 0.96798.
    let expected = [
        (11_579.0, 0.93 * 0.5 / 0.967_98), // e^9.357, the median
        (133_000.0, 0.93),
        (133_000.0 * 2f64.powf(1.0 / 1.1), 0.965), // half of the tail
        (99_999_999.0, 1.0 - 0.07 * (0.133f64 / 100.0).powf(1.1)),
    ];
    for (bytes, share) in expected {
        let got = below(bytes as u64);
        let sd = (share * (1.0 - share) / f64::from(n)).sqrt();
        assert!((got - share).abs() < 5.0 * sd + 1e-5, "{got} below {bytes}, not {share}");
    }
    assert_eq!(*sizes.last().unwrap(), 100_000_000, "seed 21 has files that were cut");
    assert!(sizes[0] > 0);
}

#[test]
fn no_two_files_overlap_and_none_lacks_a_page() {
    for seed in 0..4 {
        let laid = recipe(seed).lay_out();
        let all = extents(&laid);
        assert!(all.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "seed {seed}");
        let (last, n) = all[all.len() - 1];
        assert!(last + n <= laid.area_pages(), "seed {seed}");
        assert!((0..laid.count()).all(|f| laid.pages(f) > 0), "seed {seed}");
        let used: u32 = all.iter().map(|e| e.1).sum();
        // 75 % at the fullest moment, rounded up to whole groups.
        assert!(u64::from(used) * 100 <= u64::from(laid.area_pages()) * 75, "seed {seed}");
    }
}

#[test]
fn files_keep_the_sizes_drawn_for_them() {
    // The sizes are drawn first, file by file; a file that was not erased keeps its own.
    let recipe = Recipe { tail_percent: 0.0, ..recipe(5) };
    let laid = recipe.lay_out();
    let mut rng = Rng::new(seekway_workload::generators::rng::split(5, 0));
    let drawn: Vec<u32> =
        (0..20_000).map(|_| file_bytes(&mut rng, 0.0).div_ceil(4096) as u32).collect();
    let same = (0..20_000).filter(|f| laid.pages(*f) == drawn[*f as usize]).count();
    // Half, and those whose new size happens to be the old one in pages.
    assert!((10_000..13_000).contains(&same), "{same}");
}

#[test]
fn the_files_are_fragmented_by_what_was_erased() {
    let laid = recipe(7).lay_out();
    let pieces = extents(&laid).len() as f64 / 20_000.0;
    assert!((1.1..5.0).contains(&pieces), "{pieces} extents a file");
    let whole = (0..20_000).filter(|f| laid.extents(*f).len() == 1).count();
    assert!((8_000..19_000).contains(&whole), "{whole} of 20,000 in one piece");
}

#[test]
fn equal_recipes_make_equal_file_systems_and_share_one() {
    let (a, b, c) = (recipe(1).lay_out(), recipe(1).lay_out(), recipe(2).lay_out());
    assert_eq!(a, b);
    assert_ne!(extents(&a), extents(&c));
    let (x, y) = (recipe(1).stored(), recipe(1).stored());
    assert!(Arc::ptr_eq(&x, &y) && *x == a);
    // Many others push it out of the store, and it comes back the same.
    let small = |seed| Recipe { seed, files: 10, tail_percent: 3.2, fill_percent: 75 };
    (0..20).for_each(|seed| drop(small(seed).stored()));
    assert_eq!(*recipe(1).stored(), a);
    // One file, and a full file system, are possible.
    for files in [1, 2, 1001] {
        let full = Recipe { seed: 3, files, tail_percent: 100.0, fill_percent: 100 }.lay_out();
        assert!((0..files).all(|f| full.pages(f) >= 33));
    }
}

#[test]
fn direct_reads_are_pages_by_as_many_processes_as_asked() {
    let done = vm("image=4g,tags=true,app=surge:files=20000,requests=5000", 1);
    let reads = done.of(Op::Read);
    assert_eq!(reads.len(), 5000);
    assert!(reads.iter().all(|i| i.len.get() == 8 && i.start.get().is_multiple_of(8)));
    let mut tags: Vec<u16> = reads.iter().map(|i| i.tag.unwrap().get()).collect();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), 50);
    assert_eq!(done.apps[0].bytes, 5000 * 4096);
    // 50 processes with half a millisecond of service and six of sleep (mean of
    // Pareto(1.5, 2 ms), which a finite run falls short of) keep about 4 busy.
    let busy = done.issued.iter().map(|i| i.2).sum::<usize>() / 5000;
    assert!((2..8).contains(&busy), "{busy} outstanding on average");
    assert!(done.of(Op::Write).is_empty(), "nothing is written");
}

#[test]
fn through_the_page_cache_popular_files_are_read_once() {
    let text =
        |direct| format!("image=4g,ram=165m,app=surge:files=20000,requests=20000,direct={direct}");
    let (direct, buffered) = (vm(&text(true), 1), vm(&text(false), 1));
    let count = |run: &Run| run.of(Op::Read).len();
    assert_eq!(count(&direct), 20_000);
    assert!(count(&buffered) * 2 < count(&direct), "{} requests", count(&buffered));
    assert!(buffered.of(Op::Read).iter().any(|i| i.len.get() > 8), "read-ahead");
    assert_eq!(buffered.apps[0].bytes, direct.apps[0].bytes);
    // Reading for the first time changes inodes, unless the mount says otherwise.
    assert!(!buffered.of(Op::Write).is_empty());
    let noatime = vm(&format!("atime=false,{}", text(false)), 1);
    assert!(noatime.of(Op::Write).is_empty());
}

#[test]
fn popularity_follows_zipf_wherever_popular_files_lie() {
    let share_of_first = |popularity: &str| {
        let text = format!(
            "image=4g,app=surge:files=20000,requests=20000,think=0,popularity={popularity}"
        );
        let done = vm(&text, 2);
        let mut by_group: BTreeMap<u64, usize> = BTreeMap::new();
        for read in done.of(Op::Read) {
            *by_group.entry(read.start.get() / 262_144).or_default() += 1;
        }
        by_group.values().max().copied().unwrap_or(0) as f64 / 20_000.0
    };
    // Half of the draws are among the first 1000 files of 20,000, and more by
    // Zipf; scattered, no group has that much.
    let (ordered, scattered) = (share_of_first("ordered"), share_of_first("scattered"));
    assert!(ordered > 0.4, "{ordered}");
    assert!(scattered < ordered, "{scattered} of {ordered}");
}

#[test]
fn a_pause_between_on_periods_slows_it_down_and_pieces_of_the_area_do_not_matter() {
    let base = "app=surge:files=5000,requests=2000,processes=4";
    let (plain, off) = (vm(base, 3), vm(&format!("{base},off=100ms"), 3));
    assert!(off.ended > plain.ended + Nanos::from_secs(1));
    let cut = vm(&format!("pieces=7,{base}"), 3);
    assert_eq!(cut.of(Op::Read).len(), 2000);
}

#[test]
fn an_image_too_small_is_refused_with_what_is_missing() {
    let plan = parse_vm("image=256m,app=surge:files=20000").unwrap();
    let error = plan.source(1, 0).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("exceed the image by"), "{error}");
}
