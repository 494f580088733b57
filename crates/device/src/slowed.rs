//! A device whose clock runs slower: every time is a whole multiple of the original's.
//!
//! A VM that shares a device with others may expect the performance of a private device that is as
//! many times slower (insulation: Wachs et al., FAST 2007; the virtual performance throttle of the
//! CATS paper makes such a device of a real one).

use crate::DeviceModel;
use seekway_core::request::{Extent, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Nanos};
use std::num::NonZeroU32;

/// The slowest clock: 1/1024 of the original's.
pub const SLOW_MAX: u32 = 1024;

/// A model whose clock runs at 1/`factor` of the engine's.
pub struct Slowed {
    model: Box<dyn DeviceModel>,
    factor: u64,
}

impl Slowed {
    /// `model`, `factor` times slower.
    pub fn new(model: Box<dyn DeviceModel>, factor: NonZeroU32) -> Slowed {
        Slowed { model, factor: u64::from(factor.get()) }
    }

    /// The model's time at the engine's `now`. Between two of its nanoseconds it is the first.
    fn inside(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.as_nanos() / self.factor)
    }
}

impl DeviceModel for Slowed {
    /// A revolution and each seek take `factor` times as long.
    fn profile(&self) -> DeviceProfile {
        let slow = |time: Nanos| time.scaled(self.factor, 1);
        let profile = self.model.profile();
        DeviceProfile {
            rotation: profile.rotation.map(slow),
            seek: profile.seek.into_iter().map(|(distance, time)| (distance, slow(time))).collect(),
            ..profile
        }
    }

    fn queue_depth(&self) -> u32 {
        self.model.queue_depth()
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        self.model.submit(self.inside(now), command);
    }

    fn next_completion(&self) -> Option<Instant> {
        let next = self.model.next_completion()?;
        Some(Instant::from_nanos(next.as_nanos().saturating_mul(self.factor)))
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.model.pop_completed(self.inside(now))
    }

    fn bad_sectors(&self) -> &[Extent] {
        self.model.bad_sectors()
    }

    /// The original's own figures; times among them are by its own clock.
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.model.metrics(sink);
    }
}

#[cfg(test)]
mod tests;
