//! The vhost-user-blk front end, on a reactor with real images: with a client
//! written by others (crate `virtio-driver`), and with one that does what it
//! should not.

use crate::common;
mod driver;
mod firecracker;
mod hostile;
mod migration;
mod raw;
mod restart;
mod server;

use common::{PATIENCE, RigSetup, cache, dir, pattern};
use driver::{Driver, all_features};
use raw::{Guest, Vmm};
use server::{Server, Shape};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

const MIB: u64 = 1 << 20;
const EIO: i32 = -libc::EIO;
const FLUSH: u64 = 1 << 9;

#[test]
fn what_is_written_is_read() {
    let server = Server::start(MIB, 1);
    let mut driver = Driver::connect(&server, 1, 128);
    let data = pattern(1, 64 << 10);
    assert_eq!(driver.write(0, 4096, &data), 0);
    assert_eq!(driver.flush(0), 0);
    assert_eq!(driver.read(0, 4096, data.len()), (0, data.clone()));
    assert_eq!(&server.image()[4096..4096 + data.len()], &data[..]);
}

#[test]
fn queues_read_through_the_cache_what_others_wrote() {
    let dir = dir();
    let setup = RigSetup { cache: cache(MIB), ..RigSetup::default() };
    let shape = Shape { bytes: MIB, queues: 2, read_only: false };
    let server = Server::on(setup, dir.path(), shape);
    let mut driver = Driver::connect(&server, 2, 128);
    for round in 0..20 {
        let data = pattern(round, 20 << 10);
        assert_eq!(driver.write(0, 2560, &data), 0);
        assert_eq!(driver.read(1, 2560, data.len()), (0, data.clone()), "round {round}");
        assert_eq!(driver.read(0, 3072, 4096), (0, data[512..4608].to_vec()), "a hit");
        assert_eq!(driver.discard(1, 4096, 4096), 0);
        assert_eq!(driver.read(0, 4096, 4096), (0, vec![0; 4096]), "round {round}");
    }
    let usage = server.rig.status().disks[0].cache.as_ref().unwrap().usage;
    assert_eq!((usage.reads, usage.cached), (60, 20 * 8), "{usage:?}");
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let server = Server::start(MIB, 1);
    let mut driver = Driver::connect(&server, 1, 128);
    let data = pattern(2, 256 << 10);
    assert_eq!(driver.write(0, 0, &data), 0);
    assert_eq!(driver.discard(0, 64 << 10, 64 << 10), 0);
    assert_eq!(driver.write_zeroes(0, 128 << 10, 4096, false), 0);
    assert_eq!(driver.write_zeroes(0, 192 << 10, 4096, true), 0);
    let mut expected = data;
    expected[64 << 10..(128 << 10) + 4096].fill(0);
    expected[192 << 10..(192 << 10) + 4096].fill(0);
    assert_eq!(driver.read(0, 0, 256 << 10), (0, expected));
    assert_eq!(driver.discard(0, MIB, 4096), EIO);
}

#[test]
fn what_the_disk_does_not_have_is_an_error() {
    let server = Server::start(MIB, 1);
    let mut driver = Driver::connect(&server, 1, 128);
    assert_eq!(driver.read(0, MIB, 4096).0, EIO);
    assert_eq!(driver.read(0, MIB - 4096, 8192).0, EIO);
    assert_eq!(driver.write(0, 1 << 60, &[0; 4096]), EIO);
    assert_eq!(driver.read(0, MIB - 4096, 4096), (0, vec![0; 4096]));
}

#[test]
fn a_read_only_disk_is_read_only() {
    let server = Server::with(Shape { bytes: MIB, queues: 1, read_only: true });
    let mut driver = Driver::connect(&server, 1, 128);
    assert_ne!(driver.transport.get_features() & 1 << 5, 0);
    assert_eq!(driver.write(0, 0, &[1; 4096]), EIO);
    assert_eq!(driver.discard(0, 0, 4096), EIO);
    assert_eq!(driver.read(0, 0, 4096), (0, vec![0; 4096]));
}

/// Keep `depth` requests under way on each of `queues` queues until `count` are done.
fn exercise(driver: &mut Driver, queues: usize, depth: usize, count: usize) {
    let len = 4096;
    let mut pending: Vec<Vec<Option<(u64, usize)>>> = vec![vec![None; depth]; queues];
    let mut state: u64 = 0x5eed;
    let (mut started, mut ended) = (0, 0);
    // Each queue has a part of the disk and of the buffer to itself, each slot a block.
    let place = |queue: usize, slot: usize| (queue * depth + slot) * len;
    let mut versions = vec![0u64; queues * depth];
    while ended < count {
        for (queue, slots) in pending.iter_mut().enumerate() {
            for (slot, request) in slots.iter_mut().enumerate() {
                if request.is_none() && started < count {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = place(queue, slot);
                    // Blocks begin as zeroes, which are nobody's pattern.
                    let version = &mut versions[queue * depth + slot];
                    let is_write = *version == 0 || state >> 63 == 1;
                    if is_write {
                        *version += 1;
                        let data = pattern(*version * 1000 + at as u64, len);
                        driver.buffer()[at..at + len].copy_from_slice(&data);
                        driver.queue_write(queue, at as u64, at, len, slot);
                    } else {
                        driver.buffer()[at..at + len].fill(0xee);
                        driver.queue_read(queue, at as u64, at, len, slot);
                    }
                    *request = Some((*version, at));
                    started += 1;
                }
            }
            driver.kick(queue);
        }
        for (queue, slots) in pending.iter_mut().enumerate() {
            if slots.iter().all(Option::is_none) {
                continue;
            }
            for (slot, result) in driver.complete(queue) {
                assert_eq!(result, 0);
                let (version, at) = slots[slot].take().expect("completed once");
                let expected = pattern(version * 1000 + at as u64, len);
                assert!(driver.buffer()[at..at + len] == expected[..], "queue {queue} slot {slot}");
                ended += 1;
            }
        }
    }
}

#[test]
fn many_requests_on_many_queues() {
    for features in [all_features(), all_features() & !(1 << 29)] {
        let server = Server::start(8 * MIB, 4);
        let mut driver = Driver::with_features(&server, 4, 256, features);
        let queues = u16::from(driver.config().num_queues);
        assert_eq!(queues, 4);
        exercise(&mut driver, 4, 64, 20_000);
        drop(driver);
        server.wait_idle();
        assert_eq!(server.rig.status().disks[0].ports, 0);
    }
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let server = Server::start(MIB, 3);
    let driver = Driver::connect(&server, 1, 16);
    let config = driver.config();
    assert_eq!((u64::from(config.capacity), u16::from(config.num_queues)), (2048, 3));
    assert_eq!((u32::from(config.seg_max), config.writeback), (126, 1));
    assert_eq!((u32::from(config.max_discard_seg), u32::from(config.max_write_zeroes_seg)), (1, 1));
}

#[test]
fn requests_by_hand() {
    let server = Server::start(MIB, 1);
    let mut guest = Guest::new(64);
    let vmm = Vmm::serve(&server.socket, &guest);
    // GET_ID.
    guest.request(0, 8, 0);
    guest.descriptor(1, Guest::data(0), 20, 3, 2);
    assert_eq!(guest.carry_out(1), [(0, 21)]);
    assert_eq!((guest.status(0), &guest.get(Guest::data(0), 5)[..]), (0, &b"disk\0"[..]));
    // An unknown request, a header cut short, and one that nothing can be said about.
    guest.request(3, 99, 0);
    guest.request(6, 1, 0);
    guest.descriptor(6, Guest::data(6), 15, 1, 8);
    guest.descriptor(9, Guest::data(9), 16, 0, 0);
    guest.offer(9);
    assert_eq!(guest.carry_out(3), [(3, 1), (6, 1), (9, 0)]);
    assert_eq!((guest.status(3), guest.status(6)), (2, 1));
    // The queue goes on where it stopped.
    assert_eq!(vmm.stop(0).unwrap(), 4);
    vmm.start(&guest, 0, 4).unwrap();
    guest.write(0, 5, &[7; 512]);
    assert_eq!((guest.carry_out(1).len(), guest.status(0)), (1, 0));
    assert_eq!(server.image()[5 * 512..6 * 512], [7; 512]);
}

#[test]
fn a_kick_before_the_queue_was_started_is_not_lost() {
    let server = Server::start(MIB, 1);
    let mut guest = Guest::new(64);
    guest.write(0, 0, &[9; 512]);
    guest.kick.write(1).unwrap();
    guest.kick.read().unwrap();
    let vmm = Vmm::introduce(&server.socket, raw::FEATURES, &guest);
    vmm.start(&guest, 0, 0).unwrap();
    assert_eq!(guest.wait_used(1).len(), 1);
    // While it is disabled nothing is taken.
    vmm.vring(raw::SET_VRING_ENABLE, 0, 0).unwrap();
    guest.write(3, 1, &[9; 512]);
    guest.kick.write(1).unwrap();
    vmm.ask(raw::GET_FEATURES, &[]).unwrap();
    assert_eq!(guest.used(), []);
    vmm.vring(raw::SET_VRING_ENABLE, 0, 1).unwrap();
    assert_eq!(guest.wait_used(1).len(), 1);
}

#[test]
fn memory_can_change_under_a_running_queue() {
    let server = Server::start(MIB, 1);
    let mut guest = Guest::new(64);
    let vmm = Vmm::serve(&server.socket, &guest);
    for round in 0..50u8 {
        for i in 0..16 {
            guest.write(3 * i, u64::from(i), &[round; 512]);
        }
        guest.kick.write(1).unwrap();
        vmm.set_memory(&guest).unwrap();
        assert_eq!(guest.wait_used(16).len(), 16);
    }
    assert_eq!(server.image()[..16 * 512], [49; 16 * 512]);
}

#[test]
fn a_resize_reaches_the_guest() {
    let server = Server::start(MIB, 1);
    let guest = Guest::new(64);
    let vmm = Vmm::serve(&server.socket, &guest);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    vmm.set(raw::SET_BACKEND_REQ_FD, &[], &[ours.as_raw_fd()]).unwrap();
    // The acknowledgement came before the channel was handed on.
    vmm.ask(raw::GET_FEATURES, &[]).unwrap();
    vmm.ask(raw::GET_FEATURES, &[]).unwrap();
    server.limits.lock().unwrap().capacity_bytes = 2 * MIB;
    server.config_changed.notify();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut message = [0; 12];
    theirs.read_exact(&mut message).unwrap();
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let body = [[0u32, 8, 0].map(u32::to_le_bytes).concat(), vec![0; 8]].concat();
    let (config, _) = vmm.ask(raw::GET_CONFIG, &body).unwrap();
    assert_eq!(config[12..], (2 * MIB / 512).to_le_bytes());
}

#[test]
fn the_write_cache_can_be_switched() {
    let server = Server::start(MIB, 1);
    let vmm = Vmm::connect(&server.socket);
    vmm.negotiate(raw::FEATURES);
    vmm.set_write_cache(0).unwrap();
    assert_eq!(vmm.write_cache(), 0);
    // Nothing else can be written.
    let capacity = [[0u32, 1, 0].map(u32::to_le_bytes).concat(), vec![1]].concat();
    assert!(vmm.set(raw::SET_CONFIG, &capacity, &[]).is_err());
    assert!(vmm.is_refused());
    // Without the feature, not that either.
    server.wait_idle();
    let vmm = Vmm::connect(&server.socket);
    vmm.negotiate(raw::FEATURES & !(1 << 11) & !FLUSH);
    assert!(vmm.set_write_cache(0).is_err());
}

#[test]
fn a_second_connection_is_refused() {
    let server = Server::start(MIB, 1);
    let guest = Guest::new(64);
    let first = Vmm::serve(&server.socket, &guest);
    let second = Vmm::connect(&server.socket);
    assert!(second.is_refused());
    // The first is served still, and another when it has gone.
    first.ask(raw::GET_FEATURES, &[]).unwrap();
    drop(first);
    Vmm::serve(&server.socket, &guest).ask(raw::GET_FEATURES, &[]).unwrap();
}

#[test]
fn messages_that_make_no_sense_end_the_connection() {
    let server = Server::start(MIB, 2);
    let guest = Guest::new(64);
    let null = std::fs::File::open("/dev/null").unwrap();
    type Try<'a> = &'a dyn Fn(&Vmm) -> std::io::Result<()>;
    let tries: [(&str, Try<'_>); 14] = [
        ("a queue that is not there", &|v| v.vring(raw::SET_VRING_NUM, 2, 64)),
        ("a size that is no power of two", &|v| v.vring(raw::SET_VRING_NUM, 0, 63)),
        ("no size", &|v| v.vring(raw::SET_VRING_NUM, 0, 0)),
        ("a size beyond all bounds", &|v| v.vring(raw::SET_VRING_NUM, 0, 1 << 31)),
        ("a base beyond 16 bits", &|v| v.vring(raw::SET_VRING_BASE, 0, 1 << 16)),
        ("a kick that is no eventfd", &|v| v.vring_fd(raw::SET_VRING_KICK, 0, null.as_raw_fd())),
        ("a call that is no eventfd", &|v| v.vring_fd(raw::SET_VRING_CALL, 0, null.as_raw_fd())),
        ("no kick", &|v| v.set(raw::SET_VRING_KICK, &0x100u64.to_le_bytes(), &[])),
        ("features not offered", &|v| v.set(raw::SET_FEATURES, &u64::MAX.to_le_bytes(), &[])),
        ("a message cut short", &|v| v.set(raw::SET_VRING_NUM, &[0; 3], &[])),
        ("a message of its own", &|v| v.set(999, &[0; 64], &[])),
        ("an inflight record that is not sealed", &|v| {
            let file = tempfile::tempfile()?;
            file.set_len(1 << 20)?;
            let shape =
                [[1u64 << 20, 0].map(u64::to_le_bytes).concat(), vec![2, 0, 64, 0, 0, 0, 0, 0]];
            v.set_inflight(&shape.concat(), &file)
        }),
        ("memory that is not there", &|v| {
            let words = [1u64, 0, 1 << 40, 0, 0].map(u64::to_le_bytes).concat();
            v.set(raw::SET_MEM_TABLE, &words, &[tempfile::tempfile()?.as_raw_fd()])
        }),
        ("rings outside of memory", &|v| {
            v.set_memory(&guest)?;
            v.vring(raw::SET_VRING_NUM, 0, 64)?;
            v.set_addresses(0, [1 << 20, 0, 8])?;
            v.vring_fd(raw::SET_VRING_KICK, 0, guest.kick.as_raw_fd())?;
            v.vring(raw::SET_VRING_ENABLE, 0, 1)
        }),
    ];
    for (what, send) in tries {
        let vmm = Vmm::connect(&server.socket);
        vmm.negotiate(raw::FEATURES);
        assert!(send(&vmm).is_err(), "{what}");
        assert!(vmm.is_refused(), "{what}");
    }
}

#[test]
fn a_broken_queue_is_stopped_and_can_be_set_up_again() {
    let server = Server::start(MIB, 2);
    // What is wrong, and how many of the five requests before it are seen.
    type Break = (&'static str, usize, fn(&mut Guest));
    let ways: [Break; 6] = [
        ("an index far ahead", 0, |g| g.set_available_index(1000)),
        ("a head that is not there", 5, |g| g.offer(64)),
        ("a loop", 5, |g| {
            g.descriptor(0, 0x1_0000, 16, 1, 0);
            g.offer(0);
        }),
        ("a descriptor that is not there", 5, |g| {
            g.descriptor(0, 0x1_0000, 16, 1, 999);
            g.offer(0);
        }),
        ("an address that is not there", 5, |g| {
            g.request(0, 0, 0);
            g.descriptor(1, 1 << 50, 512, 3, 2);
        }),
        ("a chain twice", 5, |g| {
            g.request(0, 99, 0);
            g.offer(0);
        }),
    ];
    for (what, seen, spoil) in ways {
        let mut guest = Guest::new(64);
        let vmm = Vmm::serve(&server.socket, &guest);
        // Some requests in flight when it happens.
        for i in 10..15 {
            guest.write(3 * i, u64::from(i), &[1; 512]);
        }
        spoil(&mut guest);
        guest.kick.write(1).unwrap();
        raw::wait(&guest.err);
        vmm.stop(0).unwrap();
        // The refused half of "a chain twice" comes on top.
        assert!((seen..=seen + 1).contains(&guest.used().len()), "{what}");
        // As a driver does after a reset.
        let mut guest = Guest::new(64);
        vmm.set_memory(&guest).unwrap();
        vmm.start(&guest, 0, 0).unwrap();
        guest.write(0, 0, &[1; 512]);
        assert_eq!((guest.carry_out(1).len(), guest.status(0)), (1, 0), "{what}");
        drop(vmm);
        server.wait_idle();
    }
}

/// A guest with nothing but garbage in its rings, again and again.
fn garbage(socket: &std::path::Path, seed: u64, rounds: u32) {
    // Bytes to take random numbers from, other ones in each round.
    let number = |bytes: &mut std::vec::IntoIter<u8>| u32::from(bytes.next().unwrap());
    for round in 0..rounds {
        let mut guest = Guest::new(64);
        let vmm = Vmm::serve(socket, &guest);
        let mut random = pattern(seed + u64::from(round), 1000).into_iter();
        let mut bytes = pattern(seed ^ u64::from(round) << 32, 0xa000);
        // Descriptors that lead somewhere, most of the time.
        for descriptor in bytes[..64 * 16].chunks_exact_mut(16) {
            if !number(&mut random).is_multiple_of(16) {
                descriptor[3..8].fill(0);
                descriptor[2] &= 0xf;
                descriptor[9..12].fill(0);
                descriptor[13..16].fill(0);
                descriptor[14] = (number(&mut random) % 65) as u8;
                descriptor[12] &= 7;
            }
        }
        guest.put(0, &bytes);
        guest.put(0x1_0000, &pattern(seed ^ u64::from(round) << 48, 0x1_0000));
        for _ in 0..16 {
            let next = guest.available.wrapping_add((number(&mut random) % 8) as u16);
            guest.set_available_index(next);
            guest.kick.write(1).unwrap();
            if number(&mut random).is_multiple_of(4) {
                let _ = vmm.set_memory(&guest);
            }
        }
        match round % 3 {
            0 => _ = vmm.stop(0).unwrap(),
            1 => vmm.vring(raw::SET_VRING_ENABLE, 0, 0).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn garbage_in_one_guest_does_not_touch_another() {
    let seed = seekway_testing::setting("SEED", 20_26);
    println!("SEED={seed}");
    let shape = Shape { bytes: MIB, queues: 1, read_only: false };
    let server = Server::start(8 * MIB, 1);
    let other = server.also("other", shape);
    let socket = other.socket.clone();
    let bad = std::thread::spawn(move || garbage(&socket, seed, 60));
    let mut driver = Driver::connect(&server, 1, 128);
    let mut rounds = 0;
    while !bad.is_finished() || rounds == 0 {
        exercise(&mut driver, 1, 32, 500);
        rounds += 1;
    }
    bad.join().expect("the bad guest got through");
}
