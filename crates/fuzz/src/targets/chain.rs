//! Descriptor chains. The request equals that of a second, slow reading of the same memory; no byte
//! outside of the guest's memory is named.

use super::guest::{self, END, REGION_BYTES, TABLE_LEN};
use super::input::Input;
use crate::Target;
use seekway_core::request::Op;
use seekway_hostd::frontends::vhost_user::request::{
    Ask, CHAIN_MAX, DISCARD_SECTORS_MAX, STATUS_IOERR, STATUS_UNSUPP, WRITE_ZEROES_SECTORS_MAX,
    parse,
};
use vm_memory::{Bytes, GuestAddress};

pub const TARGET: Target =
    Target { name: "chain", run, heap_bytes_max: 1 << 20, test_runs: 120_000, words: &[] };

fn run(input: &[u8]) {
    let mut input = Input(input);
    let memory = guest::memory();
    let head = u16::from(input.u8() % 18);
    let (table, indirect) = (input.u8() % 17, input.u8() % 9);
    let indirect_at = u64::from(input.u16()) % END;
    let header_at = u64::from(input.u16()) % END;
    for i in 0..u64::from(table) {
        guest::put_descriptor(&memory, 16 * i, &mut input);
    }
    for i in 0..u64::from(indirect) {
        guest::put_descriptor(&memory, indirect_at + 16 * i, &mut input);
    }
    let len = (END - header_at) as usize;
    let rest = input.bytes(len);
    memory.write_slice(rest, GuestAddress(header_at)).expect("it fits");

    let before = guest::snapshot(&memory);
    let mut pieces = Vec::new();
    let parsed = parse(&memory, guest::table(&memory), head, &mut pieces);
    assert!(before == guest::snapshot(&memory), "parsing writes");
    assert!(pieces.len() <= CHAIN_MAX);
    let pieces = guest::addresses(&memory, &pieces);
    let wanted = Chain::read(&before, head);
    let Ok(request) = parsed else {
        return assert!(wanted.is_none(), "{parsed:?} and not {wanted:?}");
    };
    let wanted = wanted.unwrap_or_else(|| panic!("{request:?} of a broken chain"));
    let status = request.status.map(|at| guest::address(&memory, at, 1));
    assert_eq!(status, wanted.status());
    let [_, writable] = wanted.len_bytes();
    assert_eq!(
        (u64::from(request.writable_len), request.descriptors),
        (writable, wanted.descriptors)
    );
    let (ask, data) = wanted.ask(&before);
    assert_eq!(request.ask, ask);
    if !matches!(ask, Ask::Refuse(_)) {
        let bytes: Vec<u64> = pieces.iter().flat_map(|&(at, len)| at..at + len).collect();
        assert_eq!(bytes, data);
    }
    if ask != Ask::Refuse(STATUS_IOERR) {
        assert_eq!(request.priority, number(&wanted.header(&before), 4..8) as u32);
    }
}

/// The bytes of this range, at most eight, as a little-endian number.
fn number(bytes: &[u8], range: std::ops::Range<usize>) -> u64 {
    bytes[range].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The descriptors of a chain: ranges of guest memory, the readable and then the writable.
#[derive(Debug)]
struct Chain {
    readable: Vec<(u64, u64)>,
    writable: Vec<(u64, u64)>,
    descriptors: u32,
}

impl Chain {
    /// Walks the chain as VIRTIO 1.2, 2.7, says; `None` when it cannot be walked.
    fn read(memory: &[u8], head: u16) -> Option<Chain> {
        let mut chain = Chain { readable: Vec::new(), writable: Vec::new(), descriptors: 0 };
        let (mut table, mut len, mut index, mut is_indirect) =
            (0, u64::from(TABLE_LEN), head, false);
        // Header bytes are no piece: the pieces are counted as host memory is cut.
        let (mut pieces, mut header) = (0, 0);
        loop {
            chain.descriptors += 1;
            if chain.descriptors as usize > CHAIN_MAX || u64::from(index) >= len {
                return None;
            }
            let at = (table + 16 * u64::from(index)) as usize;
            let raw = &memory[at..at + 16];
            let (address, bytes) = (number(raw, 0..8), number(raw, 8..12));
            let flags = number(raw, 12..14);
            let end = address.checked_add(bytes).filter(|&end| end <= END);
            if flags & 4 != 0 {
                let end = end.filter(|end| *end <= REGION_BYTES || address >= REGION_BYTES)?;
                let is_table = bytes > 0 && bytes % 16 == 0 && end > address;
                if is_indirect || flags & 1 != 0 || !is_table {
                    return None;
                }
                (table, len, index, is_indirect) = (address, bytes / 16, 0, true);
                continue;
            }
            if flags & 2 == 0 && !chain.writable_is_empty_so_far() {
                return None;
            }
            if bytes > 0 {
                end?;
            }
            let skipped = if flags & 2 == 0 { bytes.min(16 - header) } else { 0 };
            header += skipped;
            let (from, to) = (address.wrapping_add(skipped), address.wrapping_add(bytes));
            if bytes > skipped {
                pieces += 1 + usize::from(from < REGION_BYTES && to > REGION_BYTES);
            }
            if pieces > CHAIN_MAX {
                return None;
            }
            match flags & 2 {
                0 => chain.readable.push((address, bytes)),
                _ => chain.writable.push((address, bytes)),
            }
            let [readable, writable] = chain.len_bytes();
            if readable + writable > u64::from(u32::MAX) {
                return None;
            }
            if flags & 1 == 0 {
                return Some(chain);
            }
            index = number(raw, 14..16) as u16;
        }
    }

    /// Has no writable descriptor come, also no empty one?
    fn writable_is_empty_so_far(&self) -> bool {
        self.writable.is_empty()
    }

    /// Readable and writable bytes.
    fn len_bytes(&self) -> [u64; 2] {
        [&self.readable, &self.writable].map(|ranges| ranges.iter().map(|(_, len)| len).sum())
    }

    /// The last writable byte.
    fn status(&self) -> Option<u64> {
        self.writable.iter().rev().find(|(_, len)| *len > 0).map(|(at, len)| at + len - 1)
    }

    /// Reads the first 16 readable bytes, or fewer if there are fewer.
    fn header(&self, memory: &[u8]) -> Vec<u8> {
        bytes(&self.readable).take(16).map(|at| memory[at as usize]).collect()
    }

    /// Builds the request, and returns the addresses of its data.
    fn ask(&self, memory: &[u8]) -> (Ask, Vec<u64>) {
        let [readable, writable] = self.len_bytes();
        let header = self.header(memory);
        let refused = (Ask::Refuse(STATUS_IOERR), Vec::new());
        if header.len() < 16 || writable == 0 {
            return refused;
        }
        let (sector, len) = (number(&header, 8..16), [writable - 1, readable - 16]);
        let data_in = || bytes(&self.writable).take(len[0] as usize).collect();
        let data_out = || bytes(&self.readable).skip(16).collect::<Vec<_>>();
        match number(&header, 0..4) {
            0 => (carry(Op::Read, sector, len[0], false), data_in()),
            1 => (carry(Op::Write, sector, len[1], false), data_out()),
            4 => (Ask::Carry { op: Op::Flush, offset: 0, len: 0, unmap: false }, Vec::new()),
            8 => (Ask::Identify, data_in()),
            kind @ (11 | 13) if len[1] == 16 => {
                let raw: Vec<u8> = data_out().iter().map(|&at| memory[at as usize]).collect();
                (segment(kind == 13, &raw), Vec::new())
            }
            // More than the one segment that is offered, or none.
            11 | 13 if len[1] > 16 => (Ask::Refuse(STATUS_UNSUPP), Vec::new()),
            11 | 13 => refused,
            _ => (Ask::Refuse(STATUS_UNSUPP), Vec::new()),
        }
    }
}

/// The addresses in ranges.
fn bytes(ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> + '_ {
    ranges.iter().flat_map(|&(at, len)| at..at + len)
}

fn segment(is_write_zeroes: bool, raw: &[u8]) -> Ask {
    let (sectors, flags) = (number(raw, 8..12), number(raw, 12..16));
    if flags > u64::from(is_write_zeroes) {
        return Ask::Refuse(STATUS_UNSUPP);
    }
    let max = if is_write_zeroes { WRITE_ZEROES_SECTORS_MAX } else { DISCARD_SECTORS_MAX };
    if sectors > max.into() {
        return Ask::Refuse(STATUS_IOERR);
    }
    let op = if is_write_zeroes { Op::WriteZeroes } else { Op::Discard };
    carry(op, number(raw, 0..8), sectors * 512, flags == 1)
}

/// The operation, when its range makes sense.
fn carry(op: Op, sector: u64, len: u64, unmap: bool) -> Ask {
    match sector.checked_mul(512) {
        Some(offset) if 0 < len && len.is_multiple_of(512) && offset.checked_add(len).is_some() => {
            Ask::Carry { op, offset, len, unmap }
        }
        _ => Ask::Refuse(STATUS_IOERR),
    }
}
