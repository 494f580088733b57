//! Each request once: the kernel traces some of them again.
//!
//! - Linux before 4.12 queues the rest of a split request (`X`) as if it were a new one.
//! - A request to a device made of others (dm, md) is queued there, and once more on the device
//!   below (`A`, then `Q`). If both are traced, the upper one is the request.
//! - A request that the driver did not take (`R`) is issued again.

use super::events::{Event, Kind};
use std::collections::{HashMap, HashSet};

/// CPUs, devices and requests that are remembered at most. Beyond that, a request may be counted
/// twice.
const REMEMBERED_MAX: usize = 1 << 16;

/// Remembers which of the next events are known requests.
#[derive(Default)]
pub(super) struct Once {
    /// Device and sector of the next queue event on a CPU, if it is a known request.
    announced: HashMap<u32, (u32, u64)>,
    /// Devices with requests.
    queued: HashSet<u32>,
    /// Device, sector and bytes of requests that the driver gave back, and how often it did.
    given_back: HashMap<(u32, u64, u32), u32>,
    /// Events that were a known request.
    pub(super) repeated: u64,
}

impl Once {
    /// True if the event is a request that was there before. All events have to pass, in order.
    pub(super) fn is_repeat(&mut self, event: &Event) -> bool {
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
                let request = (event.device, event.sector, event.bytes);
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
            Kind::Issue => self.was_given_back((event.device, event.sector, event.bytes)),
            Kind::Complete => false,
        };
        self.repeated += u64::from(repeat);
        repeat
    }

    fn announce(&mut self, cpu: u32, request: (u32, u64)) {
        if self.announced.len() < REMEMBERED_MAX {
            self.announced.insert(cpu, request);
        }
    }

    fn was_given_back(&mut self, request: (u32, u64, u32)) -> bool {
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
