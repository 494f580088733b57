//! The record of requests in flight, of which the VMM may have written every byte: recovery equals
//! a reading of the bytes by the specification, and gives the same result twice.

use super::input::Input;
use crate::Target;
use seekway_hostd::frontends::vhost_user::inflight::Inflight;
use std::os::unix::fs::FileExt;

pub const TARGET: Target =
    Target { name: "inflight", run, heap_bytes_max: 1 << 20, test_runs: 90_000, words: &[] };

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;

fn run(input: &[u8]) {
    let mut input = Input(input);
    let queues = u16::from(input.u8() % 4);
    let size = 1u16 << (input.u8() % 6);
    let (used, with) = (input.u16(), input.u8());
    let Ok(file) = Inflight::create(queues, size) else { panic!("no memory file") };
    let mut have = Inflight::bytes(queues, size);
    let mut offset = 0;
    if with & 1 != 0 {
        (offset, have) = (input.u64(), input.u64());
    }
    let mut bytes = vec![0; Inflight::bytes(queues, size) as usize];
    for byte in &mut bytes {
        *byte = input.u8();
    }
    file.write_all_at(&bytes, 0).expect("the memory file is written");
    // The VMM's shapes may differ from the record that it made.
    let (queues, size) = if with & 2 != 0 { (queues + 1, size * 2) } else { (queues, size) };
    let Ok(inflight) = Inflight::map(file, offset, have, queues, size, &std::sync::Arc::default())
    else {
        return;
    };
    assert_eq!(offset, 0, "no other offset is inside the file and at a page");
    inflight.note_write_cache(inflight.write_cache().unwrap_or(false));
    let stride = (HEADER_BYTES + ENTRY_BYTES * usize::from(size)).next_multiple_of(64);
    for queue in 0..=queues {
        let Ok(record) = inflight.queue(queue, size) else { continue };
        assert_eq!(record.is_none(), queue == queues);
        let Some(record) = record else { continue };
        let wanted = recover(&bytes[usize::from(queue) * stride..], size, used);
        assert_eq!(record.recover(used), wanted);
        assert_eq!(record.recover(used), wanted, "a second time");
        for head in 0..size {
            record.begin(head, u64::MAX - u64::from(head));
            record.link(head);
            record.end(head);
        }
        record.settle(used);
        assert!(record.recover(used).0.is_empty());
    }
}

/// The recovery of a split virtqueue, as the specification has it, over bytes.
fn recover(bytes: &[u8], size: u16, used: u16) -> (Vec<u16>, u64) {
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let entry = |head: u16| HEADER_BYTES + ENTRY_BYTES * usize::from(head);
    let mut in_flight: Vec<bool> = (0..size).map(|head| bytes[entry(head)] == 1).collect();
    let (mut head, batch) = (u16_at(12), used.wrapping_sub(u16_at(14)));
    for _ in 0..batch.min(size) {
        let Some(entry_in_flight) = in_flight.get_mut(usize::from(head)) else { break };
        *entry_in_flight = false;
        head = u16_at(entry(head) + 6);
    }
    let counter = |head: u16| {
        u64::from_le_bytes(bytes[entry(head) + 8..entry(head) + 16].try_into().unwrap())
    };
    let mut left: Vec<u16> = (0..size).filter(|&head| in_flight[usize::from(head)]).collect();
    left.sort_by_key(|&head| (counter(head), head));
    let next = left.last().map_or(0, |&head| counter(head).wrapping_add(1));
    (left, next)
}
