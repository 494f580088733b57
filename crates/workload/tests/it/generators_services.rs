//! The services of the VIO-prefetching paper through the guest.

use crate::device;
use device::{DATA, Run, vm};
use seekway_core::request::Op;
use seekway_core::units::Nanos;
use seekway_workload::Issue;
use seekway_workload::generators::parse_vm;
use seekway_workload::generators::surge::{Recipe, file_bytes};
use seekway_workload::guest::layout::LaidFiles;
use seekway_workload::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn data(run: &Run, op: Op) -> Vec<Issue> {
    run.of(op).into_iter().filter(|i| i.start.get() >= DATA).collect()
}

#[test]
fn darwin_sends_each_video_in_sequence_to_many_clients() {
    let text = "tags=true,read_ahead_kb=0,app=darwin:videos=9,size=32m,clients=12,workers=4,\
                operations=4000";
    let done = vm(text, 1);
    assert_eq!(done.apps[0].bytes, 4000 * 65_536);
    let reads = data(&done, Op::Read);
    let mut by_tag: BTreeMap<u16, Vec<&Issue>> = BTreeMap::new();
    for read in &reads {
        by_tag.entry(read.tag.unwrap().get()).or_default().push(read);
    }
    assert_eq!(by_tag.keys().copied().collect::<Vec<_>>(), [8, 9, 10, 11]);
    for reads in by_tag.values() {
        // Three clients of each worker: a read follows one of those just before.
        let follows = |n: usize| {
            let before = &reads[n.saturating_sub(64)..n];
            before.iter().any(|b| b.start + b.len == reads[n].start)
        };
        let linear = (64..reads.len()).filter(|&n| follows(n)).count();
        assert!(linear * 100 > (reads.len() - 64) * 97, "{linear} of {}", reads.len());
    }
}

#[test]
fn darwin_keeps_the_rate_of_each_client() {
    let text = "app=darwin:videos=9,size=32m,clients=10,workers=2,rate_kib=1024,runtime=10s";
    let done = vm(text, 1);
    let mib = done.apps[0].bytes >> 20;
    assert!((98..=102).contains(&mib), "{mib} MiB in 10 s");
}

#[test]
fn cloudstone_reads_files_and_updates_its_database() {
    let done = vm("app=cloudstone:database=256m,files=400,operations=20000", 1);
    let (reads, writes) = (data(&done, Op::Read), data(&done, Op::Write));
    let lookups = reads.iter().filter(|i| i.len.get() == 32).count();
    assert!(lookups > 500, "{lookups} reads of a database block");
    let long = reads.iter().filter(|i| i.len.get() >= 128).map(|i| i.len.get()).sum::<u64>();
    assert!(long * 512 > 100 << 20, "{long} sectors of files");
    // Four in a hundred requests append a record and wait for it. A request has
    // 4 lookups and, three times in five, 12 calls of a file: some 1700 of them.
    let log = writes.iter().filter(|i| i.sync && i.len.get() == 8).count();
    assert!((20..200).contains(&log), "{log} records of the log");
    let written = writes.iter().map(|i| i.len.get()).sum::<u64>() * 512;
    assert!(written > 20 << 20, "{written} bytes: uploads are written");
}

#[test]
fn wiki_reads_blocks_by_popularity_and_hardly_writes() {
    let text = "ram=164m,app=wiki:database=2g,files=400,operations=20000";
    let done = vm(text, 1);
    let (reads, writes) = (data(&done, Op::Read), data(&done, Op::Write));
    let read = reads.iter().map(|i| i.len.get()).sum::<u64>();
    let written = writes.iter().map(|i| i.len.get()).sum::<u64>();
    assert!(written * 50 < read, "{written} of {read} sectors written");
    let lookups = reads.iter().filter(|i| i.len.get() == 32).count();
    // Popular blocks are read once and then cached: fewer than were asked for.
    assert!(lookups * 100 > reads.len() * 80, "{lookups} of {}", reads.len());
    assert!((5_000..17_000).contains(&lookups), "{lookups} lookups reach the disk");
}

#[test]
fn ycsb_reads_whole_blocks_and_compacts_in_sequence() {
    let done = vm("tags=true,app=ycsb:stores=16,size=16m,clients=3,operations=6000", 1);
    let (reads, writes) = (data(&done, Op::Read), data(&done, Op::Write));
    let of = |tag: u16| -> Vec<&Issue> {
        reads.iter().filter(|i| i.tag.unwrap().get() == tag).collect()
    };
    for client in [8, 9, 10] {
        let reads = of(client);
        assert!(reads.len() > 50, "{} reads of client {client}", reads.len());
        let whole = reads.iter().filter(|i| i.len.get() == 128).count();
        assert!(whole * 10 > reads.len() * 8, "{whole} of {} are whole blocks", reads.len());
    }
    let compaction = of(11);
    let in_order = compaction.windows(2).filter(|w| w[0].start + w[0].len == w[1].start).count();
    assert!(in_order * 10 > compaction.len() * 7, "{in_order} of {}", compaction.len());
    let written = writes.iter().map(|i| i.len.get()).sum::<u64>() * 512;
    assert!(written >= 16 << 20, "{written} bytes written");
}

fn sectors(run: &Run, op: Op) -> u64 {
    run.of(op).iter().filter(|i| i.start.get() >= DATA).map(|i| i.len.get()).sum()
}

/// Data that the disk reads, and writes, and what the application moved; bytes.
fn moved(text: &str) -> (u64, u64, u64) {
    let done = vm(text, 1);
    (sectors(&done, Op::Read) * 512, sectors(&done, Op::Write) * 512, done.apps[0].bytes)
}

#[test]
fn a_web_server_reads_and_hardly_writes() {
    let (read, written, bytes) = moved("app=webserver:files=5000,operations=5500,threads=20");
    // 10 reads of 16 KiB to one append of 8 KiB, on average: 5000 files once.
    assert!((80_000_000..100_000_000).contains(&bytes), "{bytes}");
    assert!((70_000_000..110_000_000).contains(&read), "{read}");
    assert!(written < read / 10, "{written}");
}

#[test]
fn a_file_server_writes_more_than_it_reads() {
    let (read, written, bytes) = moved("app=fileserver:files=2000,operations=6000,threads=20");
    // Of its four calls one writes 128 KiB, one 8 KiB, and one reads 128 KiB,
    // some of it cached or not yet written; 1500 rounds, but for skipped steps.
    assert!((300_000_000..450_000_000).contains(&bytes), "{bytes}");
    assert!(read > 50_000_000, "{read}");
    assert!(written > 60_000_000 && written < bytes, "{written}");
}

#[test]
fn a_mail_server_waits_for_the_journal() {
    let text = "app=mailserver:files=2000,operations=3000";
    let done = vm(text, 1);
    let log = done.of(Op::Write).iter().filter(|i| i.start.get() < DATA).count();
    // Some 850 fsyncs by 16 threads, which share commits of two writes.
    assert!(log > 80, "{log} writes below the data");
    assert!(done.of(Op::Write).iter().all(|i| i.sync));
    // Seven calls a round, two of them fsyncs.
    assert!(sectors(&done, Op::Write) > 500 * 16, "{}", sectors(&done, Op::Write));
}

#[test]
fn a_proxy_reads_five_for_one_that_it_replaces() {
    let (read, written, bytes) = moved("app=proxy:files=3000,operations=7000,threads=10");
    // Rounds of seven calls: 5 × 16 KiB read, less where the file was replaced
    // by a shorter one, 8 KiB written.
    assert!((50_000_000..95_000_000).contains(&bytes), "{bytes}");
    assert!(written < read, "{written} written, {read} read");
}

#[test]
fn a_database_keeps_its_proportions() {
    let done = vm("app=oltp:size=20m,operations=40000,threads=50,runtime=0,compute=20us", 1);
    let log = |i: &&seekway_workload::Issue| i.len.get() >= 128 && i.start.get() >= DATA;
    let writes = done.of(Op::Write);
    assert!(writes.iter().filter(log).count() > 10, "the log is written");
    assert!(writes.len() > 2000, "{} writes", writes.len());
    // 2 KiB each, but for the log.
    let mean = done.apps[0].bytes / 40_000;
    assert!((2048..2500).contains(&mean), "{mean} bytes a call");
    // 1000 reads let ten writers make 100 writes each, 2000 ahead.
    let small = (done.apps[0].bytes - 2048 * 40_000) / (256 * 1024 - 2048);
    assert!((4..16).contains(&small), "{small} log writes");
}

#[test]
fn a_database_past_the_page_cache_reads_two_kibibytes() {
    let done = vm("app=oltp:direct=true,size=20m,operations=3000,threads=8,writers=1", 1);
    assert!(done.of(Op::Read).iter().filter(|i| i.len.get() == 4).count() > 1500);
    assert!(done.in_flight_max >= 8, "{}", done.in_flight_max);
}

#[test]
fn a_video_server_keeps_its_rate_and_replaces_videos() {
    let text = "ram=256m,app=videoserver:size=16m,threads=8,active=8,passive=8,rate=24MiB,\
                interval=2s,runtime=20s";
    let done = vm(text, 1);
    let took = done.apps[0].finished.unwrap().as_secs_f64();
    assert!((took - 20.0).abs() < 0.1, "{took}");
    let written = sectors(&done, Op::Write) * 512 / (16 << 20);
    assert!((7..=11).contains(&written), "{written} videos in 20 s");
    let read = (done.apps[0].bytes >> 20) - written * 16;
    assert!((440..=500).contains(&read), "{read} MiB in 20 s");
}

/// By Zipf's law some readers share a video, and they begin anywhere in it; in turn each has one
/// of its own, and begins at its start.
#[test]
fn viewers_begin_anywhere_in_popular_videos() {
    const VIDEO: u64 = 64 << 20;
    let text = |starts: &str| {
        format!(
            "ram=256m,read_ahead_kb=0,app=videoserver:size=64m,threads=8,active=8,passive=2,\
             rate=8MiB,iosize=64k,interval=1000s,starts={starts},runtime=1s"
        )
    };
    let reads = |starts: &str, seed| {
        let reads = vm(&text(starts), seed).of(Op::Read);
        let places = reads.iter().filter_map(|read| read.start.get().checked_sub(DATA));
        places.map(|sectors| sectors * 512).collect::<BTreeSet<u64>>()
    };
    let even = reads("even", 1);
    let first = *even.first().expect("they read");
    let videos = |reads: &BTreeSet<u64>| {
        reads.iter().map(|at| (at - first) / VIDEO).collect::<BTreeSet<_>>()
    };
    // Each reads 1 MiB.
    let is_early = |at: &u64| (at - first) % VIDEO < 2 << 20;
    assert!(videos(&even).len() == 8 && even.iter().all(is_early), "{even:?}");
    for seed in 1..=3 {
        let zipf = reads("zipf", seed);
        assert!((2..8).contains(&videos(&zipf).len()), "seed {seed}: {zipf:?}");
        assert!(!zipf.iter().all(is_early), "seed {seed}: {zipf:?}");
        assert_eq!(zipf, reads("zipf", seed));
    }
}

#[test]
fn limits_end_a_server() {
    let took = |text: &str| vm(text, 1).apps[0].finished.unwrap().as_secs_f64();
    for app in ["fileserver", "webserver", "mailserver", "proxy"] {
        let took = took(&format!("app={app}:files=500,size=8k,threads=4,runtime=300ms"));
        assert!((took - 0.3).abs() < 0.05, "{app}: {took}");
        let done = vm(&format!("app={app}:files=500,size=8k,runtime=0,bytes=3m"), 1);
        assert!((3 << 20..5 << 20).contains(&done.apps[0].bytes), "{app}");
    }
    let text = "app=oltp:size=4m,threads=4,writers=2,runtime=300ms";
    assert!((took(text) - 0.3).abs() < 0.05);
}

fn adjacent(requests: &[Issue]) -> bool {
    requests.windows(2).all(|w| w[0].start + w[0].len == w[1].start)
}

#[test]
fn a_direct_block_of_512_bytes_is_one_sector() {
    for depth in [1, 8] {
        let done = vm(&format!("app=iometer:block=512b,requests=2000,depth={depth}"), 1);
        let reads = done.of(Op::Read);
        assert_eq!((reads.len(), done.in_flight_max), (2000, depth));
        assert!(reads.iter().all(|i| i.len.get() == 1));
        assert!(adjacent(&reads));
    }
}

#[test]
fn small_writes_at_random_stay_small() {
    let done = vm("journal=none,app=iometer:block=512b,read=0,random=100,requests=500", 1);
    let writes = done.of(Op::Write);
    let small: Vec<_> = writes.iter().filter(|i| i.len.get() == 1).collect();
    assert_eq!(small.len(), 500);
    assert!(small.windows(2).any(|w| w[1].start < w[0].start));
    // What remains is the inode.
    assert!(writes.len() < 510, "{}", writes.len());
}

#[test]
fn through_the_page_cache_small_blocks_become_read_ahead() {
    let done = vm("app=iometer:block=512b,requests=20000,direct=false", 1);
    let reads = done.of(Op::Read);
    assert!(adjacent(&reads));
    let sectors: u64 = reads.iter().map(|i| i.len.get()).sum();
    assert!((20_000..20_000 + 512).contains(&sectors), "{sectors}");
    assert!(reads.len() < 20_000 / 100, "{} requests", reads.len());
}

#[test]
fn the_shares_are_kept_and_sequence_goes_on_behind_a_random_access() {
    let done = vm("journal=none,app=iometer:read=70,random=30,requests=5000,block=8k", 3);
    // The inode, written in place, lies below 193 MiB.
    let is_data = |i: &Issue| i.start.get() >= 193 * 2048;
    let data: Vec<_> = done.issued.iter().map(|i| i.1).filter(is_data).collect();
    assert_eq!(data.len(), 5000);
    let reads = data.iter().filter(|i| i.op == Op::Read).count();
    assert!((3350..3650).contains(&reads), "{reads} reads of 5000"); // sd 32
    let sequential = data.windows(2).filter(|w| w[0].start + w[0].len == w[1].start).count();
    assert!((3350..3650).contains(&sequential), "{sequential} in sequence");
}

#[test]
fn the_rate_is_met_by_both_arrivals() {
    for arrival in ["fixed", "exponential"] {
        let text = format!(
            "app=iometer:block=64k,random=100,iops=300,depth=64,arrival={arrival},requests=0,\
             runtime=20s"
        );
        let done = vm(&text, 4);
        let n = done.issued.len();
        assert!((5700..6300).contains(&n), "{arrival}: {n} requests in 20 s"); // sd 77
        let took = done.apps[0].finished.unwrap().as_secs_f64();
        assert!((took - 20.0).abs() < 0.01, "{arrival}: {took}");
        // Half of them keep an even interval, or none does.
        let even = done
            .issued
            .windows(2)
            .filter(|w| (3_333_000..3_334_000).contains(&w[1].0.since(w[0].0).get()));
        assert_eq!(even.count() * 2 > n, arrival == "fixed");
    }
}

#[test]
fn what_is_late_is_made_up_for_or_dropped() {
    // 2 at a time of 500 us each are 4000 a second: 5000 are asked for.
    let text = |late| {
        format!("app=iometer:random=100,iops=5000,depth=2,late={late},requests=0,runtime=2s")
    };
    let (queue, drop) = (vm(&text("queue"), 1), vm(&text("drop"), 1));
    assert_eq!((queue.in_flight_max, drop.in_flight_max), (2, 2));
    assert!(queue.issued.len() > 7800, "{}", queue.issued.len());
    assert!(drop.issued.len() < queue.issued.len());
    assert!(drop.issued.len() > 5000, "{}", drop.issued.len());
}

#[test]
fn requests_and_runtime_end_it_whichever_comes_first() {
    let done = vm("app=iometer:requests=100,runtime=10s", 1);
    assert_eq!(done.issued.len(), 100);
    let done = vm("app=iometer:requests=1000000,runtime=1s", 1);
    assert!(done.apps[0].finished.unwrap().as_secs_f64() < 1.01);
}

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
    let mut rng = Rng::new(seekway_workload::rng::split(5, 0));
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
