//! A guest with several disks: what each has of its own, and what they share.

use crate::device;

use device::{MIB, Run};
use seekway_core::request::Op;
use seekway_core::units::Instant;
use seekway_workload::Issue;
use seekway_workload::generators::parse_vm;

fn vm(text: &str) -> Run {
    device::vm(text, 3)
}

fn on(done: &Run, disk: u16, op: Op) -> Vec<(Instant, Issue)> {
    let here = |i: &&(Instant, Issue, usize)| i.1.vm == disk && i.1.op == op;
    done.issued.iter().filter(here).map(|i| (i.0, i.1)).collect()
}

fn sectors(requests: &[(Instant, Issue)]) -> u64 {
    requests.iter().map(|(_, i)| i.len.get()).sum()
}

#[test]
fn files_and_their_journal_are_on_the_disk_of_their_application() {
    let text = "name=db,image=4g,atime=false,disk=log:1g,app=sysbench:mode=SR,size=64m,\
                app=sysbench:mode=SW,size=64m,disk=log";
    let source = parse_vm(text).unwrap().source(3, 0).unwrap();
    let names: Vec<&str> = source.vms().iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["db", "db.log"]);
    assert_eq!(source.vms()[1].capacity.get(), 1024 * MIB);
    let done = vm(text);
    assert_eq!(done.apps.iter().map(|a| a.vm).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(sectors(&on(&done, 0, Op::Read)), 64 * MIB);
    assert_eq!(on(&done, 0, Op::Write), [], "who reads there writes nothing");
    assert_eq!(on(&done, 1, Op::Read), []);
    // 1 GiB: 1 MiB, 16 MiB of inodes, 32 MiB of journal.
    let written = on(&done, 1, Op::Write);
    let data = 49 * MIB;
    let of_files = written.iter().filter(|(_, i)| i.start.get() >= data).map(|(_, i)| i.len.get());
    assert_eq!(of_files.sum::<u64>(), 64 * MIB);
    let log = written.iter().filter(|(_, i)| (17 * MIB..data).contains(&i.start.get())).count();
    assert_eq!(log, 2, "one commit: its blocks, then the commit block");
}

#[test]
fn a_disk_that_nobody_uses_changes_nothing() {
    let load = "app=sysbench:mode=RW,size=64m,requests=500,app=sysbench:mode=SR,size=64m";
    let (one, two) = (vm(load), vm(&format!("disk=log:1g,iops=5,{load}")));
    assert_eq!(one.issued, two.issued);
}

/// The writer's transaction stays open, whatever is synced on the other disk; on the same disk
/// each fsync commits it.
#[test]
fn an_fsync_commits_the_journal_of_its_own_disk_alone() {
    let commits = |disk: &str| {
        let done = vm(&format!(
            "image=4g,mtime=1ms,commit=60s,sync_at_end=false,disk=log:4g,\
             app=sysbench:mode=SW,size=16m,threads=1,files=1,fsync_end=false,\
             app=sysbench:mode=RW,size=16m,files=4,requests=400,fsync_freq=1{disk}"
        ));
        // 4 GiB: 1 MiB, 64 MiB of inodes, 128 MiB of journal.
        let is_log = |i: &Issue| (65 * MIB..193 * MIB).contains(&i.start.get());
        on(&done, 0, Op::Write).iter().filter(|(_, i)| is_log(i)).count()
    };
    assert!(commits("") > 100, "{}", commits(""));
    assert_eq!(commits(",disk=log"), 0);
}

#[test]
fn each_disk_has_a_queue_of_its_own() {
    let reader = "app=fio:rw=randread,bs=4KiB,size=16MiB,io_size=1MiB,direct=true,numjobs=16";
    let flying = |text: &str| vm(&format!("image=1g,ring=4,vcpus=32,{text}")).in_flight_max;
    assert_eq!(flying(&format!("{reader},{reader}")), 4);
    assert_eq!(flying(&format!("disk=b:1g,{reader},{reader},disk=b")), 8);
}

/// 4 MiB of page cache: files of 3 MiB on two disks push each other out, and one alone is read
/// once.
#[test]
fn the_page_cache_is_shared() {
    let reader = "app=sysbench:mode=RR,size=3MiB,files=1,threads=1,requests=4000";
    let read = |text: &str| {
        let done = vm(&format!("image=1g,ram=104MiB,atime=false,read_ahead_kb=0,{text}"));
        done.of(Op::Read).iter().map(|i| i.len.get()).sum::<u64>() / MIB
    };
    assert_eq!(read(reader), 3);
    let both = read(&format!("disk=b:1g,{reader},{reader},disk=b"));
    assert!(both > 20, "{both} MiB read of 6");
}
