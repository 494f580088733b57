//! What anticipatory remembers of issuers: how long they think, and how far
//! they seek.

use crate::request::Request;
use crate::units::{Instant, Lba, Nanos, Sectors};

/// A longer think time counts as this (`MAX_THINKTIME`).
const THINK_MAX: Nanos = Nanos::from_millis(20);

/// A moving mean with weight 7/8 on the past, in fixed point (1.0 = 256
/// samples), as `as_update_thinktime` keeps it.
#[derive(Clone, Copy, Default)]
pub(super) struct Mean {
    samples: u64,
    total: u64,
}

impl Mean {
    fn add(&mut self, value: u64) {
        // Bounded so that 7 · 256 values stay below 2^64.
        let value = value.min(1 << 52);
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * value) / 8;
    }
    fn get(&self) -> u64 {
        (self.total + self.samples / 2) / self.samples.max(1)
    }
}

/// What is kept of an issuer.
#[derive(Clone, Copy, Default)]
pub(super) struct Issuer {
    /// Its synchronous requests that are queued, and those in flight.
    pub queued: u32,
    pub in_flight: u32,
    /// When its last synchronous request completed.
    pub last_completion: Option<Instant>,
    /// The end of its last synchronous request.
    place: Option<Lba>,
    /// Think times in nanoseconds.
    think: Mean,
    /// Seek distances in sectors.
    seek: Mean,
}

/// The means over the first requests of issuers, to judge newcomers by.
#[derive(Default)]
pub(super) struct Newcomers {
    think: Mean,
    seek: Mean,
}

impl Issuer {
    /// `as_update_iohist`: `request` is what the issuer asks for next.
    pub fn learn(&mut self, now: Instant, request: &Request, all: &mut Newcomers) {
        if let Some(place) = self.place {
            let outstanding = self.queued + self.in_flight > 0;
            let think = match self.last_completion {
                Some(at) if !outstanding => now.since(at).min(THINK_MAX).get(),
                _ => 0,
            };
            if self.think.samples == 0 {
                all.think.add(think);
            }
            self.think.add(think);
            let distance = request.extent.start().distance(place).get();
            if self.seek.samples == 0 {
                all.seek.add(distance);
            }
            // Do not let one odd fragment spoil the mean.
            let slack = if self.seek.samples <= 60 { 1 << 21 } else { 1 << 17 };
            self.seek.add(distance.min(self.seek.get().saturating_mul(4).saturating_add(slack)));
        }
        self.place = Some(request.extent.end());
    }

    /// How long it usually thinks.
    pub fn mean_think(&self, all: &Newcomers) -> Nanos {
        let mean = if self.think.samples == 0 { all.think } else { self.think };
        Nanos::new(mean.get())
    }

    /// How far it usually seeks.
    pub fn mean_seek(&self, all: &Newcomers) -> Sectors {
        let mean = if self.seek.samples == 0 { all.seek } else { self.seek };
        Sectors::new(mean.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_forgets_by_an_eighth() {
        let mut mean = Mean::default();
        mean.add(800);
        assert_eq!((mean.samples, mean.get()), (32, 800));
        mean.add(0);
        // 7/8 of the old total over 7/8 of the old weight and 1/8 of the new.
        assert_eq!((mean.samples, mean.get()), (60, 373));
        (0..100).for_each(|_| mean.add(1_000));
        // Rounding down settles the weight at 249 of 256.
        assert!((970..=1_030).contains(&mean.get()), "{}", mean.get());
        mean.add(u64::MAX);
    }
}
