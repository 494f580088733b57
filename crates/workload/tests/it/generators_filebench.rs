//! Filebench's servers through the guest.

use crate::device;

use device::{DATA, Run, vm};
use seekway_core::request::Op;
use std::collections::BTreeSet;

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
