//! The ring against a guest on another processor. Each test plays one race many times, with its
//! own ring each time: neither side ever waits for the other, so that the two meet at any point.
//!
//! On x86 the processor itself reorders a store and a later load, so a missing fence is found
//! here. The other orderings it keeps whatever the code says: those are found by Miri, which
//! plays what any processor may do (`make miri`).

use super::*;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;

const SIZE: u16 = 4;
/// Races of one test. Miri plays few of them, with many seeds.
const ROUNDS: usize = if cfg!(miri) { 12 } else { 30_000 };

/// The memory of one ring, and data that only the used or the available index protects.
#[derive(Default)]
struct Shared {
    descriptors: [AtomicU64; 2 * SIZE as usize],
    available: [AtomicU64; 3],
    used: [AtomicU64; 6],
    data: UnsafeCell<u64>,
}

// SAFETY: `data` is written by one side before it shows an index, and read by the other behind
// it. That this suffices is what the tests are about.
unsafe impl Sync for Shared {}

impl Shared {
    fn parts(&self) -> Parts {
        Parts {
            descriptors: self.descriptors.as_ptr().cast(),
            available: self.available.as_ptr().cast_mut().cast(),
            used: self.used.as_ptr().cast_mut().cast(),
        }
    }

    fn ring(&self, event_idx: bool) -> Ring {
        // SAFETY: the parts have room for `SIZE` entries, and outlive the test's rings.
        unsafe { Ring::new(self.parts(), SIZE, event_idx, 0) }
    }

    /// A field of the available ring, by its byte offset.
    fn available(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the ring; all offsets are even.
        unsafe { AtomicU16::from_ptr(self.parts().available.add(offset).cast()) }
    }

    /// A field of the used ring, by its byte offset.
    fn used(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.parts().used.add(offset).cast()) }
    }
}

const FLAGS: usize = 0;
const INDEX: usize = 2;
/// Where the guest says from which used index on it wants a call.
const USED_EVENT: usize = 4 + 2 * SIZE as usize;
/// Where the device says from which available index on it wants a kick.
const AVAILABLE_EVENT: usize = 4 + 8 * SIZE as usize;
/// An event that is far from the first index.
const FAR: u16 = 0x8000;

/// Runs both sides of each race, and returns what both say of each.
fn race<A: Send, B: Send>(
    setup: impl Fn(&Shared),
    device: impl Fn(&Shared) -> A + Sync,
    guest: impl Fn(&Shared) -> B + Sync,
) -> Vec<(A, B)> {
    let rounds: Vec<Shared> = (0..ROUNDS).map(|_| Shared::default()).collect();
    rounds.iter().for_each(setup);
    // Both go through the rounds side by side: they meet at a counter, not in the race itself.
    let arrived = [AtomicU64::new(0), AtomicU64::new(0)];
    let meet = |own: usize, round: usize| {
        arrived[own].store(round as u64 + 1, Ordering::Relaxed);
        let mut spins = if cfg!(miri) { 0 } else { 1_000 };
        while arrived[1 - own].load(Ordering::Relaxed) <= round as u64 {
            if spins == 0 {
                std::thread::yield_now(); // the other one has no processor
            } else {
                spins -= 1;
                std::hint::spin_loop();
            }
        }
    };
    let (device, guest) = std::thread::scope(|scope| {
        let device = scope.spawn(|| {
            let play = |(i, round)| {
                meet(0, i);
                device(round)
            };
            rounds.iter().enumerate().map(play).collect::<Vec<A>>()
        });
        let play = |(i, round)| {
            meet(1, i);
            guest(round)
        };
        let guest: Vec<B> = rounds.iter().enumerate().map(play).collect();
        (device.join().expect("no panic"), guest)
    });
    device.into_iter().zip(guest).collect()
}

/// Number of times that something happened, and the first round in which it did.
fn count(what: impl Iterator<Item = bool>) -> (usize, Option<usize>) {
    let rounds: Vec<usize> = what.enumerate().filter(|(_, is)| *is).map(|(i, _)| i).collect();
    (rounds.len(), rounds.first().copied())
}

fn calls(event_idx: bool) {
    let setup = |shared: &Shared| {
        shared.available(FLAGS).store(VRING_AVAIL_F_NO_INTERRUPT as u16, Ordering::Relaxed);
        shared.available(USED_EVENT).store(FAR.to_le(), Ordering::Relaxed);
    };
    let device = |shared: &Shared| {
        let mut ring = shared.ring(event_idx);
        // SAFETY: the guest reads it when it has seen the used index.
        unsafe { *shared.data.get() = 7 };
        ring.push_used(3, 512);
        ring.publish();
        ring.needs_call()
    };
    // As a driver does before it sleeps: ask for a call, then look.
    let guest = |shared: &Shared| {
        shared.available(FLAGS).store(0, Ordering::Relaxed);
        shared.available(USED_EVENT).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_seen = shared.used(INDEX).load(Ordering::Acquire) != 0;
        if is_seen {
            assert_eq!(shared.used(4).load(Ordering::Relaxed), 3);
            // SAFETY: the device wrote it before the index.
            assert_eq!(unsafe { *shared.data.get() }, 7);
        }
        is_seen
    };
    let rounds = race(setup, device, guest);
    let lost = count(rounds.iter().map(|(called, seen)| !called && !seen));
    assert_eq!(lost.0, 0, "{} of {ROUNDS} calls are lost, the first in round {:?}", lost.0, lost.1);
}

fn kicks(event_idx: bool) {
    let setup = |shared: &Shared| {
        shared.used(FLAGS).store(VRING_USED_F_NO_NOTIFY as u16, Ordering::Relaxed);
        shared.used(AVAILABLE_EVENT).store(FAR.to_le(), Ordering::Relaxed);
    };
    let device = |shared: &Shared| {
        let mut ring = shared.ring(event_idx);
        let has_work = ring.enable_kicks().expect("a good index");
        if has_work {
            assert_eq!(ring.pop(), Ok(Some(2)));
            // SAFETY: the guest wrote it before the index.
            assert_eq!(unsafe { *shared.data.get() }, 9);
        }
        has_work
    };
    // As a driver does: make a chain available, then ask whether to kick.
    let guest = |shared: &Shared| {
        // SAFETY: the device reads it when it has seen the available index.
        unsafe { *shared.data.get() = 9 };
        shared.available(4).store(2, Ordering::Relaxed);
        shared.available(INDEX).store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        match event_idx {
            true => shared.used(AVAILABLE_EVENT).load(Ordering::Relaxed) == 0,
            false => shared.used(FLAGS).load(Ordering::Relaxed) == 0,
        }
    };
    let rounds = race(setup, device, guest);
    let lost = count(rounds.iter().map(|(seen, kicked)| !seen && !kicked));
    assert_eq!(lost.0, 0, "{} of {ROUNDS} kicks are lost, the first in round {:?}", lost.0, lost.1);
}

#[test]
fn a_guest_that_goes_to_sleep_sees_the_entry_or_is_called() {
    calls(true);
}

#[test]
fn the_same_with_flags() {
    calls(false);
}

#[test]
fn a_device_that_goes_to_sleep_sees_the_chain_or_is_kicked() {
    kicks(true);
}

#[test]
fn the_same_for_kicks_with_flags() {
    kicks(false);
}
