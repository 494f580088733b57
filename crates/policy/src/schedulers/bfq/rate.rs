//! The peak rate of the device (`bfq_update_peak_rate`), from which follow the
//! largest budget and for how long an interactive VM is raised.

use super::queue::seeky;
use seekway_core::request::Request;
use seekway_core::units::{Instant, Lba, Nanos};

/// Rates are in sectors a microsecond, in 2^-16 (`BFQ_RATE_SHIFT`).
const SHIFT: u32 = 16;
/// Requirements of a sample before it counts (`BFQ_RATE_MIN_SAMPLES`, `_INTERVAL`, `_REF_`).
const SAMPLES_MIN: u64 = 32;
const INTERVAL_MIN: Nanos = Nanos::from_millis(300);
const INTERVAL: Nanos = Nanos::from_secs(1);
/// A pause after which a sample ends.
const PAUSE: Nanos = Nanos::from_millis(100);
/// A request that follows a completion so soon is part of a stream (`BFQ_MIN_TT`).
const SOON: Nanos = Nanos::from_millis(2);
/// A rate above 20 sectors a microsecond (10 GB/s) is an error.
const RATE_MAX: u64 = 20 << SHIFT;

/// The reference rates and durations of a rotating device and of another one.
const REFERENCE: [(u64, Nanos); 2] =
    [(14_000, Nanos::from_millis(7_000)), (33_000, Nanos::from_millis(2_500))];
const RAISE_MIN: Nanos = Nanos::from_millis(3_000);
const RAISE_MAX: Nanos = Nanos::from_millis(25_000);

#[derive(Default)]
pub(super) struct Rate {
    rotational: bool,
    peak: u64,
    samples: u64,
    sequential: u64,
    sectors: u64,
    largest: u64,
    first_dispatch: Instant,
    last_dispatch: Instant,
    span: Nanos,
    pub last_completion: Instant,
    pub last_position: Option<Lba>,
}

impl Rate {
    pub fn new(rotational: bool) -> Self {
        Rate { rotational, peak: REFERENCE[usize::from(!rotational)].0 * 2 / 3, ..Rate::default() }
    }

    pub fn rotational(&self) -> bool {
        self.rotational
    }

    /// The peak rate as it is estimated now, rounded down.
    pub fn sectors_a_second(&self) -> u64 {
        (self.peak * 1_000_000) >> SHIFT
    }

    /// `bfq_calc_max_budget`: what the device does in a timeout.
    pub fn budget(&self, timeout: Nanos) -> u64 {
        self.peak.saturating_mul(timeout.get() / 1_000) >> SHIFT
    }

    /// `bfq_wr_duration`: how long an interactive VM is raised.
    pub fn raise_span(&self) -> Nanos {
        let (rate, span) = REFERENCE[usize::from(!self.rotational)];
        span.scaled(rate, self.peak).clamp(RAISE_MIN, RAISE_MAX)
    }

    /// A request is dispatched; `flying`: others are in flight. Has the rate changed?
    pub fn dispatched(&mut self, now: Instant, request: &Request, flying: bool) -> bool {
        let changed = self.sample(now, request, flying);
        self.last_position = Some(request.extent.end());
        self.last_dispatch = now;
        changed
    }

    fn sample(&mut self, now: Instant, request: &Request, flying: bool) -> bool {
        if self.samples == 0 {
            self.begin(now, request);
            return false;
        }
        if now.since(self.last_dispatch) > PAUSE && !flying {
            return self.end(now, Some(request));
        }
        self.samples += 1;
        let soon = flying || now.since(self.last_completion) < SOON;
        self.sequential += u64::from(soon && !seeky(self.rotational, self.last_position, request));
        let sectors = request.extent.len().get();
        self.sectors = self.sectors.saturating_add(sectors);
        self.largest =
            if self.samples.is_multiple_of(32) { sectors } else { self.largest.max(sectors) };
        self.span = now.since(self.first_dispatch);
        self.span >= INTERVAL && self.end(now, Some(request))
    }

    fn begin(&mut self, now: Instant, request: &Request) {
        (self.first_dispatch, self.last_dispatch) = (now, now);
        (self.samples, self.sequential) = (1, 0);
        self.sectors = request.extent.len().get();
        self.largest = self.sectors;
    }

    /// A command is done. Has the rate changed?
    pub fn completed(&mut self, now: Instant) -> bool {
        let us = now.since(self.last_completion).get() / 1_000;
        // Slower than a sector in 1,024 µs: the device was not at work all the time.
        let slow = us > SOON.get() / 1_000 && self.largest.saturating_mul(1_024) < us;
        let changed = slow && self.end(now, None);
        self.last_completion = now;
        changed
    }

    /// `bfq_update_rate_reset`: a sample ends, and the next begins with `request`.
    fn end(&mut self, now: Instant, request: Option<&Request>) -> bool {
        let changed = self.learn();
        match request {
            Some(request) => self.begin(now, request),
            None => self.samples = 0,
        }
        changed
    }

    fn learn(&mut self) -> bool {
        if self.samples < SAMPLES_MIN || self.span < INTERVAL_MIN {
            return false;
        }
        let span = self.span.max(self.last_completion.since(self.first_dispatch));
        let us = (span.get() / 1_000).max(1);
        let rate = (u128::from(self.sectors) << SHIFT) / u128::from(us);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let random = self.sequential < 3 * self.samples / 4;
        if random && rate <= self.peak || rate > RATE_MAX {
            return false;
        }
        // The more of it was sequential and the longer it took, the more it counts.
        let part = u128::from(9 * self.sequential / self.samples);
        let weight = (part * u128::from(span.get()) / u128::from(INTERVAL.get())).min(8) as u64;
        let divisor = 10 - weight;
        self.peak = (self.peak * (divisor - 1) / divisor + rate / divisor).max(1);
        true
    }
}
