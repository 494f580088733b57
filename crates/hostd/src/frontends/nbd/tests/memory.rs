//! The memory of a connection: buffers of requests, the inbox of what comes, the outbox of replies.

use super::super::buffers::{Buffer, DiskMemory, Inbox, Pool};
use super::super::outbox::Outbox;
use super::super::request::{self, Reply};
use super::super::wire::REQUEST_LEN_MAX;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

#[test]
fn buffers_are_reused_and_bounded() {
    let mut pool = Pool::new(64 << 20, Arc::default());
    let first = pool.take(5000).expect("there is room");
    let start = first.start();
    assert_eq!(start as usize % 4096, 0);
    pool.give(first);
    assert_eq!(pool.take(8192).expect("there is room").start(), start);
    let mut pool = Pool::new(128 << 20, Arc::default());
    let mut long = pool.take(REQUEST_LEN_MAX).expect("there is room");
    long.bytes()[REQUEST_LEN_MAX as usize - 1] = 1;
    let other = pool.take(REQUEST_LEN_MAX).expect("there is room");
    assert!(pool.take(512).is_none());
    pool.give(other);
    // What lies idle makes room for what is wanted.
    let small = pool.take(512).expect("there is room");
    assert_eq!(pool.held_bytes(), (64 << 20) + 4096);
    pool.give(small);
    pool.give(long);
    pool.clear();
    assert_eq!((pool.held_bytes(), pool.used_bytes()), (0, 0));
}

/// Buffers of as many longest requests as a disk's clients may have.
fn exhaust(memory: &Arc<DiskMemory>) -> Vec<(Pool, Vec<Buffer>)> {
    let mut all = Vec::new();
    loop {
        let mut pool = Pool::new(64 << 20, Arc::clone(memory));
        let buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take(REQUEST_LEN_MAX)).collect();
        if buffers.is_empty() {
            return all;
        }
        all.push((pool, buffers));
    }
}

#[test]
fn clients_of_one_disk_take_no_memory_of_anothers() {
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    let disks: Vec<_> = (0..32).map(|_| Arc::new(DiskMemory::sharing(&SHARED))).collect();
    let held: Vec<_> = disks.iter().map(exhaust).collect();
    let count = |of: &Vec<(Pool, Vec<Buffer>)>| of.iter().map(|(_, b)| b.len()).sum::<usize>();
    assert_eq!(count(&held[0]), 4, "256 MiB, however many clients");
    // What is shared has run out; what is reserved for each disk has not.
    for of in &held {
        assert!(count(of) >= 1, "64 MiB of its own");
    }
    assert_eq!(held.iter().map(count).sum::<usize>(), 32 + 16, "1 GiB beyond that");
}

/// Bytes that an outbox would send, in steps of `step` bytes.
fn drain(outbox: &mut Outbox, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        // SAFETY: the pieces point to the outbox and to the test's data.
        let sent = unsafe {
            let message = &*outbox.message();
            let pieces = std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen);
            let mut left = step;
            for piece in pieces {
                let len = piece.iov_len.min(left);
                all.extend(std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), len));
                left -= len;
            }
            step - left
        };
        if outbox.advance(sent) {
            return all;
        }
    }
}

#[test]
fn outbox_holds_many_replies() {
    let mut outbox = Outbox::new();
    let data = [7u8; 512];
    outbox.clear();
    let mut count = 0;
    while outbox.has_room() {
        let data = Some((data.as_ptr(), data.len()));
        outbox.push(|out| request::header(out, 1, Reply::Done, false), data);
        count += 1;
    }
    assert!(count >= 256, "only {count} replies in one message");
    assert_eq!(drain(&mut outbox, usize::MAX).len(), count * 528);
}

#[test]
fn a_message_is_no_longer_than_a_client_has_to_read_in_time() {
    let mut outbox = Outbox::new();
    let data = vec![7u8; 3 << 20];
    outbox.clear();
    outbox
        .push(|out| request::header(out, 1, Reply::Done, false), Some((data.as_ptr(), data.len())));
    // SAFETY: the message points to the outbox's own pieces.
    let pieces = unsafe {
        let message = &*outbox.message();
        std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen)
    };
    assert_eq!(pieces.iter().map(|piece| piece.iov_len).sum::<usize>(), 1 << 20);
    assert_eq!(drain(&mut outbox, usize::MAX).len(), 16 + (3 << 20));
}

proptest! {
    /// However the bytes are cut, the inbox gives back the same.
    #[test]
    fn inbox_keeps_the_stream(bytes in vec(any::<u8>(), 0..2000), cuts in vec(1usize..90, 1..60)) {
        let mut inbox = Inbox::new(64);
        let (mut fed, mut got) = (0, Vec::<u8>::new());
        for cut in cuts.iter().cycle() {
            let space = inbox.space();
            let len = space.len().min(*cut).min(bytes.len() - fed);
            space[..len].copy_from_slice(&bytes[fed..fed + len]);
            inbox.received(len);
            fed += len;
            if cut % 3 == 0 && let Some(header) = inbox.header() {
                got.extend(header);
                inbox.take_header();
            } else {
                got.extend(inbox.take(cut / 2 + 1));
            }
            if got.len() == bytes.len() {
                break;
            }
        }
        prop_assert_eq!(got, bytes);
    }

    /// Short sends: all bytes leave once and in order.
    #[test]
    fn outbox_continues(lens in vec(0usize..40, 1..30), step in 1usize..50) {
        let data: Vec<Vec<u8>> = lens.iter().map(|&len| vec![len as u8; len]).collect();
        let mut outbox = Outbox::new();
        outbox.clear();
        let mut expected = Vec::new();
        for piece in &data {
            let header = |out: &mut Vec<u8>| request::header(out, 9, Reply::Done, false);
            header(&mut expected);
            expected.extend(piece);
            let some = (!piece.is_empty()).then_some((piece.as_ptr(), piece.len()));
            outbox.push(header, some);
        }
        prop_assert_eq!(drain(&mut outbox, step), expected);
    }
}
