//! Files that are removed and written anew.

use crate::device;

use device::{Run, Script, run, run_on_a_file};
use seekway_core::params::Params;
use seekway_core::request::Op as DiskOp;
use seekway_core::units::Nanos;
use seekway_workload::guest::app::{HandleSpec, Op};
use seekway_workload::guest::{GuestParams, GuestVm, params};
use seekway_workload::rng::Rng;

const LATENCY: Nanos = Nanos::from_micros(300);
const FILE_BYTES: u64 = 1 << 20;

fn guest(calls: Vec<Vec<Op>>, given: &[(&str, &str)]) -> GuestVm {
    let params = Params::with(params::SPECS, "a VM", given).unwrap();
    let handles = (0..calls.len() as u32).map(|file| HandleSpec::of(file, 0)).collect();
    let app = Script::boxed(calls.len(), handles, calls);
    GuestVm::new("t", GuestParams::from(&params), vec![app], 1).unwrap()
}

/// Requests for the only file at the disk: operation, first page, pages.
fn requests(calls: &[Op]) -> (Run, Vec<(DiskOp, u64, u64)>) {
    let given = [("journal", "none"), ("flush_interval", "1h"), ("read_ahead_kb", "512")];
    let mut vm = guest(vec![calls.to_vec()], &given);
    run_on_a_file(&mut vm, LATENCY)
}

const fn read(page: u64, pages: u32) -> Op {
    Op::Read { handle: 0, offset: page * 4096, len: pages * 4096 }
}
const fn write(page: u64, pages: u32) -> Op {
    Op::Write { handle: 0, offset: page * 4096, len: pages * 4096 }
}
const DELETE: Op = Op::Delete { file: 0 };
const FSYNC: Op = Op::Fsync { handle: 0 };

use DiskOp::Write;

#[test]
fn what_was_not_written_when_the_file_went_never_is() {
    let (_, seen) = requests(&[write(0, 8), DELETE]);
    assert_eq!(seen, []);
    let (_, seen) = requests(&[write(0, 8), FSYNC, write(2, 1), DELETE, write(0, 3), FSYNC]);
    assert_eq!(seen, [(Write, 0, 8), (Write, 0, 3)]);
}

#[test]
fn a_removed_file_has_nothing_to_read_and_its_successor_is_written_first() {
    let (run, seen) = requests(&[read(0, 1), DELETE, read(0, 4), write(0, 2), read(0, 2)]);
    // One read with its read-ahead; after that only what was written.
    assert!(seen.iter().filter(|s| s.0 == DiskOp::Read).count() <= 2, "{seen:?}");
    assert_eq!(seen.last(), Some(&(Write, 0, 2)));
    // A partial page of the new file is not read from the disk.
    let partial = Op::Write { handle: 0, offset: 5 * 4096 + 100, len: 50 };
    let (_, seen) = requests(&[DELETE, partial]);
    assert_eq!(seen, [(Write, 5, 1)]);
    assert!(run.apps[0].finished.is_some());
}

#[test]
fn removal_waits_for_reads_under_way() {
    // A read of one page starts a read-ahead that outlasts it.
    let (run, seen) = requests(&[read(0, 1), read(1, 1), DELETE]);
    let last_read = run.issued.iter().rev().find(|i| i.1.op == DiskOp::Read).unwrap().0;
    assert!(seen.len() >= 2, "{seen:?}");
    assert!(run.apps[0].finished.unwrap() >= last_read + LATENCY);
}

#[test]
fn random_writing_and_removing_leaves_nothing_behind() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let calls = (0..6).map(|n| script(n, &mut rng)).collect();
        let ram = ["104MiB", "1GiB"][seed as usize % 2]; // 4 MiB of page cache, or plenty
        let journal = ["ordered", "writeback", "none"][seed as usize % 3];
        let given =
            [("ram", ram), ("journal", journal), ("dirty_background", "2"), ("mtime", "4ms")];
        let mut vm = guest(calls, &given);
        run(&mut vm, LATENCY);
        let (used, limit) = vm.cache_pages();
        assert!(used <= limit, "seed {seed}");
        assert_eq!(vm.dirty_pages(), 0, "seed {seed}");
    }
}

/// 60 calls on the file of thread `n`.
fn script(n: u32, rng: &mut Rng) -> Vec<Op> {
    let mut calls = Vec::new();
    for _ in 0..60 {
        let (offset, len) = (rng.below(FILE_BYTES), 1 + rng.below(200_000) as u32);
        calls.push(match rng.below(8) {
            0 => Op::Delete { file: n },
            1 => Op::Fsync { handle: n },
            2 | 3 => Op::Read { handle: n, offset, len },
            4 => Op::Sleep(Nanos::new(rng.below(3_000_000))),
            _ => Op::Write { handle: n, offset, len },
        });
    }
    calls
}
