//! O_DIRECT beside the page cache, on the same file (`generic_file_read_iter`,
//! `generic_file_direct_write`).

use crate::device;

use device::{Run, Script, run_on_a_file};
use seekway_core::params::Params;
use seekway_core::request::Op as DiskOp;
use seekway_core::units::Nanos;
use seekway_workload::guest::app::{HandleSpec, Op};
use seekway_workload::guest::{GuestParams, GuestVm, params};

const LATENCY: Nanos = Nanos::from_micros(300);
const BUFFERED: u32 = 0;
const DIRECT: u32 = 1;

const fn read(handle: u32, page: u64, pages: u32) -> Op {
    Op::Read { handle, offset: page * 4096, len: pages * 4096 }
}
const fn write(handle: u32, page: u64, pages: u32) -> Op {
    Op::Write { handle, offset: page * 4096, len: pages * 4096 }
}

/// Requests for the file at the disk: operation, first page, pages.
fn requests(calls: &[Op]) -> (Run, Vec<(DiskOp, u64, u64)>) {
    // One file, open in both ways.
    let handles = [false, true].map(|direct| HandleSpec { direct, ..HandleSpec::default() });
    let app = Script::boxed(1, handles.into(), vec![calls.to_vec()]);
    let given = [("read_ahead_kb", "0"), ("journal", "none"), ("flush_interval", "1h")];
    let params = Params::with(params::SPECS, "a VM", &given).unwrap();
    let mut vm = GuestVm::new("t", GuestParams::from(&params), vec![app], 1).unwrap();
    run_on_a_file(&mut vm, LATENCY)
}

use DiskOp::{Read, Write};

#[test]
fn a_direct_read_waits_for_dirty_pages_of_its_range_only() {
    let (run, seen) = requests(&[write(BUFFERED, 0, 8), read(DIRECT, 2, 4)]);
    assert_eq!(seen[..2], [(Write, 2, 4), (Read, 2, 4)]);
    let at = |op| run.issued.iter().find(|i| i.1.op == op).unwrap().0;
    assert!(at(Read) >= at(Write) + LATENCY, "read before the write was done");
    // The rest is written when the guest syncs; what was read stays cached.
    assert_eq!(seen[2..], [(Write, 0, 2), (Write, 6, 2)]);
    let (_, seen) = requests(&[write(BUFFERED, 0, 4), read(DIRECT, 0, 4), read(BUFFERED, 0, 4)]);
    assert_eq!(seen, [(Write, 0, 4), (Read, 0, 4)]);
}

#[test]
fn a_direct_write_drops_its_range_from_the_cache() {
    let (_, seen) = requests(&[
        read(BUFFERED, 0, 1),
        read(BUFFERED, 1, 1),
        write(DIRECT, 0, 1),
        read(BUFFERED, 1, 1),
        read(BUFFERED, 0, 1),
    ]);
    assert_eq!(seen, [(Read, 0, 1), (Read, 1, 1), (Write, 0, 1), (Read, 0, 1)]);
}

#[test]
fn a_direct_write_goes_behind_what_was_dirty_before() {
    let (run, seen) = requests(&[write(BUFFERED, 0, 4), write(DIRECT, 0, 4)]);
    assert_eq!(seen, [(Write, 0, 4), (Write, 0, 4)]);
    assert!(run.issued[1].0 >= run.issued[0].0 + LATENCY, "both at once");
}

#[test]
fn without_cached_pages_nothing_else_is_done() {
    let (_, seen) = requests(&[write(DIRECT, 0, 4), read(DIRECT, 0, 8), write(DIRECT, 9, 1)]);
    assert_eq!(seen, [(Write, 0, 4), (Read, 0, 8), (Write, 9, 1)]);
}
