//! The services of the VIO-prefetching paper through the guest.

use crate::device;

use device::{DATA, Run, vm};
use seekway_core::request::Op;
use seekway_workload::Issue;
use std::collections::BTreeMap;

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
