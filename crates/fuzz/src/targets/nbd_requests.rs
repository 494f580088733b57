//! Headers of NBD requests, and the decisions on them. A header is the same when it is written
//! again; only requests for negotiated commands inside the disk are carried out; and extents never
//! call data a hole.

use super::input::Input;
use crate::Target;
use seekway_core::request::Op;
use seekway_hostd::frontends::nbd::fuzzed::{
    CMD_BLOCK_STATUS, CMD_READ, CMD_WRITE, HEADER_LEN, REQUEST_LEN_MAX, REQUEST_MAGIC, Request,
    STATE_HOLE, STATE_ZERO, Verdict, extents, judge,
};
use seekway_hostd::images::Limits;

pub const TARGET: Target = Target {
    name: "nbd_requests",
    run,
    heap_bytes_max: 1 << 20,
    test_runs: 600_000,
    words: &[b"\x25\x60\x95\x13"],
};

fn run(input: &[u8]) {
    let mut input = Input(input);
    let with = input.u8();
    let align_bytes = 512 << (with & 7);
    let limits = Limits {
        capacity_bytes: input.u64() >> (input.u8() % 64),
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        align_bytes,
        memory_align_bytes: 512,
        read_only: with & 8 != 0,
        rotational: false,
    };
    let header: [u8; HEADER_LEN] = input.take();
    match Request::parse(&header) {
        None => assert_ne!(header[..4], REQUEST_MAGIC.to_be_bytes()),
        Some(request) => {
            assert_eq!(encode(&request), header);
            check(&request, &limits, with & 16 != 0, with & 32 != 0);
        }
    }
    check_extents(input, align_bytes);
}

fn encode(request: &Request) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&request.flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&request.command.to_be_bytes());
    bytes[8..16].copy_from_slice(&request.cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&request.offset_bytes.to_be_bytes());
    bytes[24..].copy_from_slice(&request.len_bytes.to_be_bytes());
    bytes
}

fn check(request: &Request, limits: &Limits, structured: bool, allocation: bool) {
    let verdict = judge(request, limits, structured, allocation);
    assert_eq!(
        request.payload_bytes() == 0,
        request.command != CMD_WRITE || request.len_bytes == 0
    );
    // The data behind an accepted header are skipped or stored: never more than a buffer.
    if verdict != Verdict::HangUp {
        assert!(request.payload_bytes() <= REQUEST_LEN_MAX);
    }
    let is_range = match verdict {
        Verdict::Carry(action) => {
            let writes = matches!(action.op, Op::Write | Op::Discard | Op::WriteZeroes);
            assert!(!(writes && limits.read_only));
            assert!(writes || !action.fua);
            assert_eq!(action.op == Op::Read, request.command == CMD_READ);
            assert_eq!(action.op == Op::Write, request.command == CMD_WRITE);
            if matches!(action.op, Op::Read | Op::Write) {
                assert!(request.len_bytes <= REQUEST_LEN_MAX);
            }
            action.op != Op::Flush
        }
        Verdict::BlockStatus { .. } => {
            assert!(allocation && request.command == CMD_BLOCK_STATUS);
            true
        }
        _ => false,
    };
    if is_range {
        let (offset, len) = (u128::from(request.offset_bytes), u128::from(request.len_bytes));
        assert!(len > 0 && offset + len <= u128::from(limits.served_bytes()));
    }
}

/// Block status over runs of up to 255 quarter blocks.
fn check_extents(mut input: Input<'_>, align_bytes: u32) {
    let blocks = u32::from(input.u8()) + 1;
    let one = input.u8() & 1 != 0;
    let quarter = u64::from(align_bytes / 4);
    let mut runs = Vec::new();
    let mut is_data = Vec::new();
    while !input.is_over() && runs.len() < 64 {
        let (len, hole) = (input.u8(), input.u8() & 1 != 0);
        runs.push((u64::from(len) * quarter, hole));
        is_data.extend(std::iter::repeat_n(!hole, len.into()));
    }
    // Blocks that no run covers are unknown.
    is_data.resize(is_data.len().max(4 * blocks as usize), true);
    let told = extents(&runs, blocks * align_bytes, align_bytes, one);
    assert!(!told.is_empty() && (!one || told.len() == 1));
    let mut at = 0;
    for (len, state) in told {
        assert!(len > 0 && len.is_multiple_of(align_bytes), "an extent of {len} bytes");
        let end = at + 4 * (len / align_bytes) as usize;
        assert!(end <= 4 * blocks as usize, "an extent behind the end");
        assert!(state == 0 || state == STATE_HOLE | STATE_ZERO);
        if state != 0 {
            assert!(!is_data[at..end].contains(&true), "data are called a hole");
        }
        at = end;
    }
}
