//! Anticipatory's record of issuers: how long they think, and how far they seek.

use crate::schedulers::think::FadingMean;
use seekway_core::request::Request;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

/// A longer think time counts as this (`MAX_THINKTIME`).
const THINK_MAX: Nanos = Nanos::from_millis(20);

/// An issuer's record.
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
    think: FadingMean,
    /// Seek distances in sectors.
    seek: FadingMean,
}

/// The means over the first requests of issuers, to judge newcomers by.
#[derive(Default)]
pub(super) struct Newcomers {
    think: FadingMean,
    seek: FadingMean,
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

    /// Mean think time of the issuer.
    pub fn mean_think(&self, all: &Newcomers) -> Nanos {
        let mean = if self.think.samples == 0 { all.think } else { self.think };
        Nanos::new(mean.get())
    }

    /// Mean seek distance of the issuer.
    pub fn mean_seek(&self, all: &Newcomers) -> Sectors {
        let mean = if self.seek.samples == 0 { all.seek } else { self.seek };
        Sectors::new(mean.get())
    }
}
