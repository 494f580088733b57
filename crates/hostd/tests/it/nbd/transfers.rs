//! Streams of requests cut in ways that no good client cuts them.

use super::client::{Client, DISC, READ, WRITE, request};
use super::server::{MIB, Server, Setup};
use crate::common::pattern;
use seekway_hostd::reactor::OpKind;
use seekway_workload::rng::Rng;
use std::io::Write;
use std::net::Shutdown;

#[test]
fn payloads_arrive_however_the_stream_is_cut() {
    let server = Server::one(Setup::default());
    let mut client = Client::open(&server.socket());
    let mut next = Rng::new(7);
    let mut expected = vec![0; 32 << 20];
    for round in 0..4 {
        let (mut stream, mut count, mut at) = (Vec::new(), 0, 0u64);
        // Ascending, so that no two overlap: they may be done in any order.
        while at < 6 * MIB {
            let len = match next.below(4) {
                0 => 512 * (1 + next.below(4)),
                1 => 4096 * (1 + next.below(16)),
                2 => 4096,
                _ => 512 * (1 + next.below(1024)),
            };
            let data = pattern(round * 1000 + count, len as usize);
            let offset = round * 8 * MIB + at;
            stream.extend(request(WRITE, count, offset, len as u32));
            stream.extend(&data);
            expected[offset as usize..][..data.len()].copy_from_slice(&data);
            if next.below(5) == 0 {
                // Refused, its payload is swallowed.
                stream.extend(request(WRITE, 1 << 32 | count, 1 << 40, 700));
                stream.extend([0xee; 700]);
            }
            at += len;
            count += 1;
        }
        let mut writer = client.socket.try_clone().unwrap();
        let mut cut = Rng::new(round);
        let sender = std::thread::spawn(move || {
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let sizes = [1, 27, 28, 29, 4124, 70_000, 300_000];
                let len = sizes[cut.below(7) as usize].min(rest.len());
                writer.write_all(&rest[..len]).unwrap();
                rest = &rest[len..];
            }
        });
        let mut done = 0;
        while done < count {
            let (error, cookie) = client.reply();
            assert_eq!(error, if cookie >> 32 == 0 { 0 } else { 28 }, "cookie {cookie:#x}");
            done += u64::from(cookie >> 32 == 0);
        }
        sender.join().unwrap();
    }
    // A read that all refusals' replies come before.
    client.send(&request(READ, 77, 0, 32 << 20));
    while client.reply().1 != 77 {}
    assert!(client.data(32 << 20) == expected, "what is read is not what was written");
    client.send(&request(DISC, 0, 0, 0));
    assert!(client.rest().is_empty());
    server.wait_idle();
}

#[test]
fn a_client_that_reads_late_gets_all_replies() {
    let server = Server::one(Setup::default());
    let mut client = Client::open(&server.socket());
    let mut stream = Vec::new();
    // 256 MiB of replies to more requests than a connection may have.
    const COUNT: u64 = 4096;
    for cookie in 0..COUNT {
        stream.extend(request(READ, cookie, cookie * 512, 65536));
    }
    let mut writer = client.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&stream).unwrap());
    server.wait("a full connection", |d| d.ops[OpKind::Read as usize].requests > 100);
    let mut seen = vec![false; COUNT as usize];
    for _ in 0..COUNT {
        let (error, cookie) = client.reply();
        assert_eq!(error, 0);
        assert!(!std::mem::replace(&mut seen[cookie as usize], true), "{cookie} came twice");
        assert!(client.data(65536).iter().all(|&b| b == 0));
    }
    sender.join().unwrap();
    drop(client);
    server.wait_idle();
}

#[test]
fn a_client_that_has_closed_its_half_gets_its_replies() {
    let server = Server::one(Setup::default());
    let mut client = Client::open(&server.socket());
    for cookie in 0..32 {
        client.send(&request(READ, cookie, cookie * 4096, 4096));
    }
    client.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest().len(), 32 * (16 + 4096));
    server.wait_idle();
}

#[test]
fn a_client_that_goes_in_mid_request_harms_nobody() {
    let server = Server::one(Setup::default());
    let mut other = Client::open(&server.socket());
    let header = request(WRITE, 1, 0, 1 << 20);
    // Within a header, a short and a long payload, and with replies under way.
    for cut in [10, 28, 100, 28 + 70_000, 28 + 1_000_000] {
        let mut client = Client::open(&server.socket());
        for cookie in 0..64 {
            client.send(&request(READ, cookie, cookie * 65536, 65536));
        }
        let mut bytes = header.clone();
        bytes.resize(28 + (1 << 20), 0x77);
        client.send(&bytes[..cut]);
        drop(client);
        server.wait("the end of a connection", |d| d.ports == 1 && d.outstanding == 0);
        other.send(&request(READ, 5, 0, 4096));
        assert_eq!(other.reply(), (0, 5));
        assert_eq!(other.data(4096), vec![0; 4096], "a write that was cut off was carried out");
    }
}

#[test]
fn an_orderly_end_replies_to_what_was_taken() {
    let mut server = Server::one(Setup::default());
    let mut client = Client::open(&server.socket());
    for cookie in 0..200 {
        client.send(&request(READ, cookie, cookie * 4096, 65536));
    }
    server.wait("a request", |d| d.ops[OpKind::Read as usize].requests > 0);
    let rig = server.rig.take().unwrap();
    let stopping = std::thread::spawn(move || drop(rig));
    // Whole replies, as many as were taken, and then the end.
    let replies = client.rest();
    assert!(!replies.is_empty());
    assert_eq!(replies.len() % (16 + 65536), 0);
    stopping.join().unwrap();
}

#[test]
fn an_idle_connection_gives_its_memory_back() {
    let server = Server::one(Setup::default());
    let mut client = Client::open(&server.socket());
    for _ in 0..8 {
        client.send(&request(READ, 1, 0, 8 << 20));
    }
    for _ in 0..8 {
        assert_eq!(client.reply(), (0, 1));
        client.data(8 << 20);
    }
    let start = std::time::Instant::now();
    while mapped_buffers() > 0 {
        assert!(start.elapsed() < crate::common::PATIENCE, "buffers are still mapped");
        std::thread::yield_now();
    }
    client.send(&request(READ, 2, 0, 4096));
    assert_eq!(client.reply(), (0, 2));
}

/// Anonymous mappings of 8 MiB and more without a name or a guard: buffers.
fn mapped_buffers() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let buffer = |line: &&str| {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next().unwrap(), fields.next().unwrap());
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|a| u64::from_str_radix(a, 16).unwrap());
        access == "rw-p" && fields.count() == 3 && (end - start) % (8 << 20) == 0
    };
    maps.lines().filter(buffer).count()
}
