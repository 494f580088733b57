//! A VMM with Firecracker's order of messages (`src/vmm/src/devices/virtio/vhost_user.rs` and
//! `block/vhost_user/device.rs` there, as of August 2026).
//!
//! It connects when the drive is configured, and negotiates everything before the guest runs. It
//! asks for one protocol feature, CONFIG, so no message is acknowledged. It has one queue of 256
//! entries, enables it at once, never stops it, keeps no record of requests in flight, and does
//! not connect again.

use super::raw::{self, Guest, USER, Vmm};
use super::server::{Served, Server, Shape};
use crate::common::pattern;
use std::os::fd::AsRawFd;

const BYTES: u64 = 1 << 20;
const QUEUE_SIZE: u16 = 256;
/// Of the configuration space, what Firecracker reads.
const CONFIG_BYTES: u32 = 60;
const CONFIG_IS_WRITABLE: u32 = 1;

const READ_ONLY: u64 = 1 << 5;
const FLUSH: u64 = 1 << 9;
const EVENT_INDEX: u64 = 1 << 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_CONFIG: u64 = 1 << 9;

/// A drive of Firecracker's.
struct Drive {
    vmm: Vmm,
    /// Of the disk, those that the VMM knows.
    features: u64,
    config: Vec<u8>,
}

impl Drive {
    /// `PUT /drives/…` with `"socket"` and `"cache_type"`.
    fn configure(served: &Served, writeback: bool) -> Drive {
        let vmm = Vmm::connect(&served.socket);
        vmm.send(raw::SET_OWNER, 1, &[], &[]).unwrap();
        let flush = if writeback { FLUSH } else { 0 };
        let known = VERSION_1 | EVENT_INDEX | PROTOCOL_FEATURES | READ_ONLY | flush;
        let features = known & word(&vmm.ask(raw::GET_FEATURES, &[]).unwrap().0);
        assert_ne!(features & PROTOCOL_FEATURES, 0);
        let protocol = word(&vmm.ask(raw::GET_PROTOCOL_FEATURES, &[]).unwrap().0);
        assert_ne!(protocol & PROTOCOL_CONFIG, 0);
        vmm.send(raw::SET_PROTOCOL_FEATURES, 1, &PROTOCOL_CONFIG.to_le_bytes(), &[]).unwrap();
        let config = read_config(&vmm);
        Drive { vmm, features, config }
    }

    /// The guest's driver has started; it accepts all that it is offered.
    fn activate(&self, guest: &Guest) {
        let send = |request, body: &[u8]| self.vmm.send(request, 1, body, &[]).unwrap();
        send(raw::SET_FEATURES, &self.features.to_le_bytes());
        self.vmm.send_memory(guest).unwrap();
        let ring = |value: u32| [0, value].map(u32::to_le_bytes).concat();
        send(raw::SET_VRING_NUM, &ring(guest.size.into()));
        let [descriptors, available, used] = [0, raw::AVAILABLE, raw::USED].map(|at| USER + at);
        let places = [descriptors, used, available, 0].map(u64::to_le_bytes).concat();
        send(raw::SET_VRING_ADDR, &[vec![0; 8], places].concat());
        send(raw::SET_VRING_BASE, &ring(guest.available.into()));
        for (request, event) in
            [(raw::SET_VRING_CALL, &guest.call), (raw::SET_VRING_KICK, &guest.kick)]
        {
            self.vmm.send(request, 1, &[0; 8], &[event.as_raw_fd()]).unwrap();
        }
        send(raw::SET_VRING_ENABLE, &ring(1));
    }

    fn capacity_bytes(&self) -> u64 {
        word(&self.config[..8]) * 512
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// At the start, and with `PATCH /drives/…` after the disk was resized.
fn read_config(vmm: &Vmm) -> Vec<u8> {
    let head = [0, CONFIG_BYTES, CONFIG_IS_WRITABLE].map(u32::to_le_bytes).concat();
    let asked = [head.clone(), vec![0; CONFIG_BYTES as usize]].concat();
    let (answer, _) = vmm.ask(raw::GET_CONFIG, &asked).unwrap();
    assert_eq!(answer[..8], head[..8], "offset and size are those that were asked for");
    assert_eq!(answer.len(), asked.len());
    answer[12..].to_vec()
}

fn disk(read_only: bool) -> Server {
    // As many queues as the daemon offers; Firecracker takes one.
    Server::with(Shape { bytes: BYTES, queues: 256, read_only })
}

#[test]
fn a_guest_of_firecracker_writes_flushes_and_reads() {
    // Each request has three descriptors.
    const HEADS: [u16; 3] = [0, 3, 6];
    let server = disk(false);
    let drive = Drive::configure(&server, true);
    assert_eq!(drive.capacity_bytes(), BYTES);
    assert_eq!(drive.features & (FLUSH | READ_ONLY), FLUSH);
    let mut guest = Guest::new(QUEUE_SIZE);
    drive.activate(&guest);
    for head in HEADS {
        guest.write(head, head.into(), &sector(head));
    }
    carry_out(&mut guest, 3);
    guest.request(9, 4, 0); // a flush
    carry_out(&mut guest, 1);
    assert_eq!([0, 3, 6, 9].map(|head| guest.status(head)), [0; 4]);
    for head in HEADS {
        assert_eq!(server.image()[usize::from(head) * 512..][..512], sector(head));
    }
    for head in HEADS {
        guest.request(head, 0, head.into());
    }
    carry_out(&mut guest, 3);
    for head in HEADS {
        let read = guest.get(Guest::data(head), 512);
        assert_eq!((guest.status(head), &read[..]), (0, &sector(head)[..]));
    }
    server.limits.lock().unwrap().capacity_bytes = 2 * BYTES;
    let config = read_config(&drive.vmm);
    assert_eq!(word(&config[..8]) * 512, 2 * BYTES, "PATCH shows the new size");
    // Firecracker ends without a message.
    drop(drive);
}

#[test]
fn firecracker_sees_a_read_only_disk_and_no_write_cache() {
    let server = disk(true);
    let drive = Drive::configure(&server, false);
    assert_eq!(drive.features & (FLUSH | READ_ONLY), READ_ONLY);
    let mut guest = Guest::new(QUEUE_SIZE);
    drive.activate(&guest);
    guest.write(0, 0, &sector(1));
    guest.request(3, 0, 0);
    carry_out(&mut guest, 2);
    assert_eq!((guest.status(0), guest.status(3)), (1, 0), "the write fails, the read does not");
    drop(drive);
}

fn sector(seed: u16) -> [u8; 512] {
    pattern(seed.into(), 512).try_into().unwrap()
}

/// Ring, and wait until the last of `count` requests is called for.
fn carry_out(guest: &mut Guest, count: u16) {
    // EVENT_INDEX: the driver's "call me when you use this one".
    let last = guest.used.wrapping_add(count - 1);
    guest.put16(raw::AVAILABLE + 4 + 2 * u64::from(QUEUE_SIZE), last);
    guest.carry_out(count.into());
}
