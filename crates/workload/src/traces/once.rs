//! Each request once: the kernel traces some of them again.
//!
//! - Linux before 4.12 queues the rest of a split request (`X`) as if it were a new one.
//! - A request to a device made of others (dm, md) is queued there, and once more on the device
//!   below (`A`, then `Q`). If both are traced, the upper one is the request.
//! - A request that the driver did not take (`R`) is issued again.

use std::collections::{HashMap, HashSet};

/// CPUs, devices and requests that are remembered at most. Beyond that, a request may be counted
/// twice.
const REMEMBERED_MAX: usize = 1 << 16;

/// The events that matter, by their numbers in the lowest byte of an action of blktrace's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Queue = 1,
    Requeue = 6,
    Issue = 7,
    Complete = 8,
    Split = 13,
    Remap = 15,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Queue, Kind::Requeue, Kind::Issue, Kind::Complete, Kind::Split, Kind::Remap];

    /// As a set with one member.
    pub(super) const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The event of blkparse's action.
    pub(super) fn of_letter(action: &[u8]) -> Option<Kind> {
        let [letter] = action else { return None };
        let at = b"QRDCXA".iter().position(|known| known == letter);
        at.map(|at| Kind::ALL[at])
    }
}

/// The parts of an event that tell a repeat.
pub(super) struct Traced {
    pub(super) kind: Kind,
    pub(super) cpu: u32,
    pub(super) device: u32,
    pub(super) sector: u64,
    /// Bytes, or sectors.
    pub(super) len: u64,
    /// Of a split: where its rest begins. Of a remap: the device that it comes from.
    pub(super) from: u64,
}

/// Remembers which of the next events are known requests.
#[derive(Default)]
pub(super) struct Once {
    /// Device and sector of the next queue event on a CPU, if it is a known request.
    announced: HashMap<u32, (u32, u64)>,
    /// Devices with requests.
    queued: HashSet<u32>,
    /// Device, sector and length of requests that the driver gave back, and how often it did.
    given_back: HashMap<(u32, u64, u64), u32>,
    /// Events that were a known request.
    repeated: u64,
}

impl Once {
    /// True if the event is a request that was there before. All events have to pass, in order.
    pub(super) fn is_repeat(&mut self, event: &Traced) -> bool {
        let repeat = match event.kind {
            Kind::Split => {
                self.announce(event.cpu, (event.device, event.from));
                false
            }
            Kind::Remap => {
                let from = event.from as u32;
                if from != event.device && self.queued.contains(&from) {
                    self.announce(event.cpu, (event.device, event.sector));
                }
                false
            }
            Kind::Requeue => {
                let request = (event.device, event.sector, event.len);
                if self.given_back.len() < REMEMBERED_MAX {
                    *self.given_back.entry(request).or_default() += 1;
                }
                false
            }
            Kind::Queue => {
                let announced = self.announced.remove(&event.cpu);
                let repeat = announced == Some((event.device, event.sector));
                if !repeat && self.queued.len() < REMEMBERED_MAX {
                    self.queued.insert(event.device);
                }
                repeat
            }
            Kind::Issue => self.was_given_back((event.device, event.sector, event.len)),
            Kind::Complete => false,
        };
        self.repeated += u64::from(repeat);
        repeat
    }

    /// A line for the user about the repeats, if there were any.
    pub(super) fn note(&self) -> Option<String> {
        (self.repeated > 0).then(|| {
            format!(
                "{} events left out that repeat a request (rest of a split, remapped from another \
                 device of the trace, or requeued)",
                self.repeated
            )
        })
    }

    fn announce(&mut self, cpu: u32, request: (u32, u64)) {
        if self.announced.len() < REMEMBERED_MAX {
            self.announced.insert(cpu, request);
        }
    }

    fn was_given_back(&mut self, request: (u32, u64, u64)) -> bool {
        if self.given_back.is_empty() {
            return false;
        }
        let Some(times) = self.given_back.get_mut(&request) else { return false };
        *times -= 1;
        if *times == 0 {
            self.given_back.remove(&request);
        }
        true
    }
}
