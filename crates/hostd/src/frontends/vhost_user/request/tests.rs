//! Chains as drivers make them, chains as they should not be, and any bytes.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const NEXT: u16 = vring::VRING_DESC_F_NEXT as u16;
const WRITE: u16 = vring::VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = vring::VRING_DESC_F_INDIRECT as u16;

/// Entries of the tables here.
const SIZE: u16 = 16;
const TABLE: u64 = 0;
const HEADER: u64 = 0x1000;
const DATA: u64 = 0x2000;
/// Two regions that touch in the guest and not here, and a hole behind them.
const SPLIT: u64 = 0x1_0000;
const END: u64 = 0x2_0000;

fn memory() -> GuestMemoryMmap {
    let half = SPLIT as usize;
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), half), (GuestAddress(SPLIT), half)]).unwrap()
}

fn put(memory: &GuestMemoryMmap, at: u64, descriptor: (u64, u32, u16, u16)) {
    let (address, len, flags, next) = descriptor;
    memory.write_obj(address.to_le(), GuestAddress(at)).unwrap();
    memory.write_obj(len.to_le(), GuestAddress(at + 8)).unwrap();
    memory.write_obj(flags.to_le(), GuestAddress(at + 12)).unwrap();
    memory.write_obj(next.to_le(), GuestAddress(at + 14)).unwrap();
}

/// A chain of descriptors 0, 1, …: address, length, flags without NEXT.
fn chain(memory: &GuestMemoryMmap, table: u64, parts: &[(u64, u32, u16)]) {
    for (i, &(address, len, flags)) in parts.iter().enumerate() {
        let more = if i + 1 < parts.len() { NEXT } else { 0 };
        put(memory, table + 16 * i as u64, (address, len, flags | more, i as u16 + 1));
    }
}

fn header(memory: &GuestMemoryMmap, kind: u32, ioprio: u32, sector: u64) {
    memory.write_obj(kind.to_le(), GuestAddress(HEADER)).unwrap();
    memory.write_obj(ioprio.to_le(), GuestAddress(HEADER + 4)).unwrap();
    memory.write_obj(sector.to_le(), GuestAddress(HEADER + 8)).unwrap();
}

fn table(memory: &GuestMemoryMmap) -> Table<'_> {
    // SAFETY: the table is in the first region.
    unsafe { Table::new(host(memory, TABLE), SIZE) }
}

fn host(memory: &GuestMemoryMmap, address: u64) -> *mut u8 {
    place(memory, address).unwrap().0
}

/// The parsed request, and the lengths of its pieces.
fn parsed(memory: &GuestMemoryMmap) -> Result<(Request, Vec<usize>), BrokenChain> {
    let mut pieces = Vec::new();
    let request = parse(memory, table(memory), 0, &mut pieces)?;
    Ok((request, pieces.iter().map(|p| p.iov_len).collect()))
}

fn ask(memory: &GuestMemoryMmap, parts: &[(u64, u32, u16)]) -> Ask {
    chain(memory, TABLE, parts);
    parsed(memory).unwrap().0.ask
}

fn carried(op: Op, offset: u64, len: u64) -> Ask {
    Ask::Carry { op, offset, len, unmap: false }
}

#[test]
fn a_read_as_linux_makes_it() {
    let memory = memory();
    // Best effort, level 4, hint 8.
    header(&memory, 0, 0x4044, 8);
    let status = DATA + 0x3000;
    chain(&memory, TABLE, &[(HEADER, 16, 0), (DATA, 4096, WRITE), (status, 1, WRITE)]);
    let (request, pieces) = parsed(&memory).unwrap();
    assert_eq!(request.ask, carried(Op::Read, 4096, 4096));
    assert_eq!(request.status, Some(host(&memory, status)));
    assert_eq!((request.writable_len, request.priority), (4097, 0x4044));
    assert_eq!(pieces, [4096]);
}

#[test]
fn the_framing_is_free() {
    let memory = memory();
    header(&memory, 1, 0, 1);
    // The header in three parts, the last with data; a status with room before it.
    let parts =
        [(HEADER, 3, 0), (HEADER + 3, 0, 0), (HEADER + 3, 10, 0), (HEADER + 13, 3 + 512, 0)];
    chain(&memory, TABLE, &[&parts[..], &[(DATA, 512, 0), (DATA + 600, 7, WRITE)]].concat());
    let (request, pieces) = parsed(&memory).unwrap();
    assert_eq!(request.ask, carried(Op::Write, 512, 1024));
    assert_eq!(request.status, Some(host(&memory, DATA + 606)));
    assert_eq!(pieces, [512, 512]);
    // Data and status in one, and an empty descriptor at the end.
    header(&memory, 0, 0, 1);
    chain(&memory, TABLE, &[(HEADER, 16, 0), (DATA, 1025, WRITE), (0, 0, WRITE)]);
    let (request, pieces) = parsed(&memory).unwrap();
    assert_eq!(request.ask, carried(Op::Read, 512, 1024));
    assert_eq!(request.status, Some(host(&memory, DATA + 1024)));
    assert_eq!(pieces, [1024]);
}

#[test]
fn data_across_regions_is_split() {
    let memory = memory();
    header(&memory, 0, 0, 0);
    chain(&memory, TABLE, &[(HEADER, 16, 0), (SPLIT - 512, 1024, WRITE), (DATA, 1, WRITE)]);
    let (request, pieces) = parsed(&memory).unwrap();
    assert_eq!(request.ask, carried(Op::Read, 0, 1024));
    assert_eq!(pieces, [512, 512]);
    // A header across regions.
    memory.write_slice(&[1, 0, 0, 0], GuestAddress(SPLIT - 4)).unwrap();
    memory.write_slice(&[0; 12], GuestAddress(SPLIT)).unwrap();
    let ask = ask(&memory, &[(SPLIT - 4, 16, 0), (DATA, 512, 0), (DATA, 1, WRITE)]);
    assert_eq!(ask, carried(Op::Write, 0, 512));
}

#[test]
fn indirect_tables() {
    let memory = memory();
    header(&memory, 0, 0, 2);
    let inner = 0x3000;
    put(&memory, TABLE, (inner, 48, INDIRECT, 0));
    chain(&memory, inner, &[(HEADER, 16, 0), (DATA, 512, WRITE), (DATA + 512, 1, WRITE)]);
    let (request, pieces) = parsed(&memory).unwrap();
    assert_eq!(request.ask, carried(Op::Read, 1024, 512));
    assert_eq!(pieces, [512]);
    for (wrong, error) in [
        ((inner, 47, INDIRECT, 0), BrokenChain::Indirect),
        ((inner, 0, INDIRECT, 0), BrokenChain::Indirect),
        ((inner, 48, INDIRECT | NEXT, 1), BrokenChain::Indirect),
        ((inner, 32, INDIRECT, 0), BrokenChain::Index(2)),
        ((inner, 16 * 65_536, INDIRECT, 0), BrokenChain::Indirect),
        ((END, 48, INDIRECT, 0), BrokenChain::Address(END)),
        ((END - 16, 48, INDIRECT, 0), BrokenChain::Address(END - 16)),
    ] {
        put(&memory, TABLE, wrong);
        assert_eq!(parsed(&memory).unwrap_err(), error, "{wrong:?}");
    }
    put(&memory, TABLE, (inner, 48, INDIRECT, 0));
    put(&memory, inner + 16, (inner, 48, INDIRECT, 0));
    assert_eq!(parsed(&memory).unwrap_err(), BrokenChain::Indirect);
}

#[test]
fn chains_that_cannot_be_walked() {
    let memory = memory();
    let broken = |parts: &[(u64, u32, u16)]| {
        chain(&memory, TABLE, parts);
        parsed(&memory).unwrap_err()
    };
    assert_eq!(broken(&[(END, 16, 0), (DATA, 1, WRITE)]), BrokenChain::Address(END));
    assert_eq!(broken(&[(HEADER, 16, 0), (END - 1, 2, WRITE)]), BrokenChain::Address(END));
    let top = u64::MAX;
    assert_eq!(broken(&[(top, 16, 0), (DATA, 1, WRITE)]), BrokenChain::Address(top));
    assert_eq!(broken(&[(HEADER, 16, WRITE), (DATA, 1, 0)]), BrokenChain::Order);
    assert_eq!(broken(&[(HEADER, 16, 0), (0, u32::MAX, 0)]), BrokenChain::TooLarge);
    put(&memory, TABLE, (HEADER, 1, NEXT, SIZE));
    assert_eq!(parsed(&memory).unwrap_err(), BrokenChain::Index(SIZE));
    put(&memory, TABLE, (HEADER, 1, NEXT, 0));
    assert_eq!(parsed(&memory).unwrap_err(), BrokenChain::TooLong);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let memory = memory();
    let status = (DATA + 0x4000, 1, WRITE);
    let refused = Ask::Refuse(STATUS_IOERR);
    header(&memory, 0, 0, 0);
    assert_eq!(ask(&memory, &[(HEADER, 15, 0), status]), refused);
    assert_eq!(ask(&memory, &[(HEADER, 16, 0), status]), refused);
    assert_eq!(ask(&memory, &[(HEADER, 16, 0), (DATA, 511, WRITE), status]), refused);
    header(&memory, 0, 0, u64::MAX / 512 + 1);
    assert_eq!(ask(&memory, &[(HEADER, 16, 0), (DATA, 512, WRITE), status]), refused);
    header(&memory, 0, 0, u64::MAX / 512);
    assert_eq!(ask(&memory, &[(HEADER, 16, 0), (DATA, 512, WRITE), status]), refused);
    header(&memory, 99, 0, 0);
    assert_eq!(ask(&memory, &[(HEADER, 16, 0), status]), Ask::Refuse(STATUS_UNSUPP));
    // Nowhere to say so.
    header(&memory, 1, 0, 0);
    chain(&memory, TABLE, &[(HEADER, 16, 0), (DATA, 512, 0)]);
    let (request, _) = parsed(&memory).unwrap();
    assert_eq!((request.ask, request.status, request.writable_len), (refused, None, 0));
}

#[test]
fn flush_and_identify() {
    let memory = memory();
    let status = (DATA + 0x4000, 1, WRITE);
    header(&memory, 4, 0, 7);
    assert_eq!(ask(&memory, &[(HEADER, 16, 0), status]), carried(Op::Flush, 0, 0));
    header(&memory, 8, 0, 0);
    chain(&memory, TABLE, &[(HEADER, 16, 0), (DATA, 20, WRITE), status]);
    let (request, pieces) = parsed(&memory).unwrap();
    assert_eq!((request.ask, pieces), (Ask::Identify, vec![20]));
}

#[test]
fn discard_and_write_zeroes() {
    let memory = memory();
    let status = (DATA + 0x4000, 1, WRITE);
    let segment = |kind, sector: u64, sectors: u32, flags: u32, len| {
        header(&memory, kind, 0, 0);
        memory.write_obj(sector, GuestAddress(DATA)).unwrap();
        memory.write_obj(sectors, GuestAddress(DATA + 8)).unwrap();
        memory.write_obj(flags, GuestAddress(DATA + 12)).unwrap();
        chain(&memory, TABLE, &[(HEADER, 16, 0), (DATA, len, 0), status]);
        let (request, pieces) = parsed(&memory).unwrap();
        assert_eq!(pieces.len(), 0);
        request.ask
    };
    let (discard, zeroes) = (11, 13);
    assert_eq!(segment(discard, 8, 16, 0, 16), carried(Op::Discard, 4096, 8192));
    let zeroed = |unmap| Ask::Carry { op: Op::WriteZeroes, offset: 4096, len: 8192, unmap };
    assert_eq!(segment(zeroes, 8, 16, 0, 16), zeroed(false));
    assert_eq!(segment(zeroes, 8, 16, 1, 16), zeroed(true));
    assert_eq!(segment(discard, 8, 16, 1, 16), Ask::Refuse(STATUS_UNSUPP));
    assert_eq!(segment(zeroes, 8, 16, 2, 16), Ask::Refuse(STATUS_UNSUPP));
    let refused = Ask::Refuse(STATUS_IOERR);
    assert_eq!(segment(discard, 8, 0, 0, 16), refused);
    assert_eq!(segment(discard, 8, DISCARD_SECTORS_MAX + 1, 0, 16), refused);
    assert_eq!(segment(zeroes, 8, WRITE_ZEROES_SECTORS_MAX + 1, 0, 16), refused);
    assert_eq!(segment(discard, u64::MAX, 16, 0, 16), refused);
    assert_eq!(segment(discard, 8, 16, 0, 15), refused);
    // One segment was offered.
    assert_eq!(segment(zeroes, 8, 16, 0, 32), Ask::Refuse(STATUS_UNSUPP));
    assert_eq!(segment(discard, 8, 16, 0, 17), Ask::Refuse(STATUS_UNSUPP));
}

#[test]
fn copies_stop_where_either_side_ends() {
    let memory = memory();
    let piece = |at, len| iovec { iov_base: host(&memory, at).cast::<c_void>(), iov_len: len };
    let pieces = [piece(DATA, 3), piece(DATA + 8, 4)];
    scatter(&pieces, b"abcdefghij");
    let mut back = [0; 10];
    gather(&pieces, &mut back);
    assert_eq!(&back, b"abcdefg\0\0\0");
    scatter(&pieces, b"xy");
    gather(&pieces, &mut back);
    assert_eq!(&back[..7], b"xycdefg");
}

proptest! {
    /// However header, data and status are cut, the request is the same.
    #[test]
    fn any_framing(
        cuts in prop::collection::btree_set(1u32..16 + 1024, 0..6),
        in_cuts in prop::collection::btree_set(1u32..8, 0..3),
    ) {
        let memory = memory();
        self::header(&memory, 1, 0, 3);
        let mut parts = VecDeque::new();
        for (cuts, at, len, flags) in
            [(cuts, HEADER, 16 + 1024, 0), (in_cuts, DATA + 0x4000, 8, WRITE)]
        {
            let mut from = 0;
            for to in cuts.into_iter().chain([len]) {
                parts.push_back((at + u64::from(from), to - from, flags));
                from = to;
            }
        }
        chain(&memory, TABLE, parts.make_contiguous());
        let (request, pieces) = parsed(&memory).unwrap();
        prop_assert_eq!(request.ask, carried(Op::Write, 1536, 1024));
        prop_assert_eq!(request.status, Some(host(&memory, DATA + 0x4007)));
        prop_assert_eq!(pieces.iter().sum::<usize>(), 1024);
    }
}
