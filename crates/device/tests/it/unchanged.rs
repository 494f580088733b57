//! Holds flash drives to recorded results. They show that a key that a profile does not use changes
//! nothing; a change of the model that is meant to move times records them anew and says why.

use crate::common;

use common::numbered;
use seekway_core::request::{Op, Request};
use seekway_core::units::Instant;
use seekway_device::DeviceModel;
use seekway_device::profile;

/// A profile with overrides, and its [`digest`].
const DRIVES: [(&str, u64); 12] = [
    ("intel-320", 0xFE83_06F9_F9CE_41AD),
    ("intel-x25m-g2", 0xE4C7_BF0A_39C7_877C),
    ("samsung-970-pro", 0x1BFC_B0F6_C357_116F),
    ("samsung-970-pro-gc", 0x4107_C253_C33D_35D5),
    ("cloud-flash", 0x368A_7801_0146_4ED6),
    ("raid0-8x-x25m-g2", 0x6F11_BF2A_F547_5D7C),
    (
        "intel-320:capacity_sectors=400000,spare=0,filled=1,write_buffer_kib=64",
        0x07E5_0C34_FE76_3445,
    ),
    (
        "samsung-970-pro:channels=1,dies_per_channel=1,write_buffer_kib=32,filled=0.3,queue_depth=2",
        0x6EDB_BB18_E639_37A9,
    ),
    (
        "samsung-970-pro:state=gc,channels=2,dies_per_channel=1,write_buffer_kib=64,capacity_sectors=9000000",
        0x70C3_6E24_3AD5_8EDA,
    ),
    ("intel-320:state=gc,filled=0.8,capacity_sectors=4000000", 0x02D8_A818_BC1F_03CA),
    (
        "raid0-8x-x25m-g2:members=3,chunk_kib=5,queue_depth=4,capacity_sectors=300001",
        0x5EB8_1B3D_5289_29C6,
    ),
    ("intel-x25m-g2:slow=3,filled=1,capacity_sectors=500000", 0x29FE_CD81_6FF3_3419),
];

const COMMANDS: u32 = 20_000;

/// FNV-1a, 64 bits.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
}

/// xorshift64: a number below `below`.
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) % below
}

fn command(id: u32, state: &mut u64, capacity: u64, previous_end: u64) -> Request {
    let op = match random(state, 100) {
        0..50 => Op::Read,
        50..93 => Op::Write,
        93..95 => Op::Flush,
        95..98 => Op::Discard,
        _ => Op::WriteZeroes,
    };
    let sectors = match random(state, 20) {
        0..12 => 8,
        12..17 => 1 + random(state, 300),
        17..19 => 64,
        _ => 300 + random(state, 2_000),
    };
    let start = match random(state, 4) {
        0 => previous_end,
        1 => random(state, 4_000) * 8,
        _ => random(state, capacity),
    };
    numbered(id, op, start.min(capacity - sectors), sectors)
}

/// Which command completes when, and all figures at the end, of commands that come one at a time,
/// eight at a time and as many as the drive takes, in turn, with pauses now and then.
fn digest(device: &mut dyn DeviceModel) -> u64 {
    let mut hash = Fnv(0xCBF2_9CE4_8422_2325);
    let (mut state, mut now, mut end, mut in_flight) = (0x5EED_u64, 0, 0, 0);
    let capacity = device.profile().capacity.get();
    for id in 0..COMMANDS {
        let depth = [1, 8, u32::MAX][id as usize / 500 % 3].min(device.queue_depth());
        if random(&mut state, 40) == 0 {
            now += random(&mut state, 5_000_000);
        }
        while let Some(next) = device.next_completion() {
            if in_flight < depth && next.as_nanos() > now {
                break;
            }
            now = now.max(next.as_nanos());
            let Some(done) = device.pop_completed(Instant::from_nanos(now)) else { break };
            in_flight -= 1;
            hash.add(&(done.slot() as u32).to_le_bytes());
            hash.add(&next.as_nanos().to_le_bytes());
        }
        let next = command(id, &mut state, capacity, end);
        end = next.extent.end().get();
        device.submit(Instant::from_nanos(now), &next);
        in_flight += 1;
    }
    while let Some(next) = device.next_completion() {
        let Some(done) = device.pop_completed(next) else { break };
        hash.add(&(done.slot() as u32).to_le_bytes());
        hash.add(&next.as_nanos().to_le_bytes());
    }
    device.metrics(&mut |name, value| {
        hash.add(name.as_bytes());
        hash.add(&value.to_bits().to_le_bytes());
    });
    hash.0
}

#[test]
fn what_a_profile_without_new_keys_does_is_what_it_did() {
    let found = DRIVES.map(|(name, _)| {
        let mut device = profile::load(name).unwrap().build();
        (name, digest(&mut *device))
    });
    assert!(found == DRIVES, "{found:#x?}");
}
