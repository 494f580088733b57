//! A queue of BFQ: the synchronous or the asynchronous requests of a VM, and
//! what is known of them.

use crate::schedulers::think::FadingMean;
use seekway_core::queues::{ExpiryQueue, LbaQueue};
use seekway_core::request::Request;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

/// A request further than that from the one before is a seek (`BFQQ_SEEK_THR`),
/// on a device that does not rotate only if it is shorter than 32 KiB.
const SEEK_LONG: Sectors = Sectors::new(800);
pub(super) const SHORT_SOLID: u64 = 64;
/// Of the last 32 requests, with more seeks than this a queue is seeky.
const SEEKS_MAX: u32 = 19;
/// Half-life of the share of time without requests.
const INTENSITY_SPAN: Nanos = Nanos::from_millis(200);

/// Is the request a seek by [`SEEK_LONG`] (`BFQ_RQ_SEEKY`)?
pub(super) fn seeky(rotational: bool, last: Option<Lba>, request: &Request) -> bool {
    let start = request.extent.start();
    let distance = last.map_or(start.distance(Lba::ZERO), |last| start.distance(last));
    distance > SEEK_LONG && (rotational || request.extent.len().get() < SHORT_SOLID)
}

/// Raised weight (`wr_coeff` and what belongs to it).
#[derive(Default)]
pub(super) struct Raising {
    /// Factor of the weight; 1: not raised.
    pub factor: u64,
    /// Is it raised as soft real time? Otherwise as interactive.
    pub soft: bool,
    pub span: Nanos,
    /// When it began, or when it was last not raised.
    pub since: Instant,
    /// When the interactive raising began that soft real time took over.
    pub interactive_since: Option<Instant>,
    /// Sectors received while raised.
    pub service: u64,
    /// From when on a request makes it soft real time.
    pub soft_from: Instant,
    /// `soft_from` is due at the last completion.
    pub soft_due: bool,
    /// When it last became backlogged, and what it has received since.
    pub backlogged_at: Instant,
    pub backlogged_service: u64,
}

/// Number of others' requests that may be in flight while the queue is idled for.
#[derive(Default)]
pub(super) struct Injection {
    pub limit: u32,
    /// Time to serve its first request without others.
    pub base: Option<Nanos>,
    pub decreased_at: Instant,
}

#[derive(Default)]
pub(super) struct Queue {
    pub sync: bool,
    pub weight: u64,
    pub sorted: LbaQueue,
    pub fifo: ExpiryQueue,
    /// The sector after its last dispatch.
    pub position: Option<Lba>,
    /// Its commands on the device; requests that share one count once.
    pub in_flight: u32,
    /// Is the queue served, or waiting for service?
    pub busy: bool,
    pub max_budget: u64,
    /// The FIFO has been looked at in this turn.
    pub fifo_looked: bool,
    /// Did the queue run empty within its turn, so that it may come back in time?
    pub may_return: bool,
    /// The end of its turn; or since when it is idle. `None`: ever.
    pub timeout: Option<Instant>,
    pub raising: Raising,
    pub injection: Injection,
    seeks: u32,
    last_end: Option<Lba>,
    pub last_completion: Instant,
    think: FadingMean,
    pub thinks_short: bool,
    pub io_bound: bool,
    io_since: Instant,
    idle_total: Nanos,
    just_created: bool,
}

impl Queue {
    pub fn new(now: Instant, sync: bool, weight: u64, max_budget: u64) -> Self {
        Queue {
            sync,
            weight,
            max_budget: 2 * max_budget / 3,
            raising: Raising {
                factor: 1,
                since: now,
                soft_from: now,
                backlogged_at: now,
                ..Raising::default()
            },
            injection: Injection { decreased_at: now, ..Injection::default() },
            seeks: 1,
            last_completion: now,
            thinks_short: sync,
            io_bound: true,
            io_since: now,
            just_created: true,
            ..Queue::default()
        }
    }

    pub fn is_raised(&self) -> bool {
        self.raising.factor > 1
    }
    pub fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKS_MAX
    }
    pub fn is_totally_seeky(&self) -> bool {
        self.seeks == u32::MAX
    }

    /// `bfq_update_io_thinktime`, `_seektime`, `_intensity` at an arrival. Has
    /// the think time become short or long?
    pub fn learn(
        &mut self,
        now: Instant,
        request: &Request,
        rotational: bool,
        idle: Nanos,
    ) -> bool {
        let before = self.thinks_short;
        if self.in_flight == 0 && !self.busy {
            let elapsed = now.since(self.last_completion).get().min(idle.get().saturating_mul(2));
            self.think.add(elapsed);
        }
        if self.sync && idle > Nanos::ZERO {
            let mean = (self.think.total + 128) / self.think.samples.max(1);
            let long = self.think.is_known() && mean > idle.get() / 2;
            self.thinks_short = !long;
        }
        self.seeks = self.seeks << 1 | u32::from(seeky(rotational, self.last_end, request));
        self.last_end = Some(request.extent.end());
        self.learn_intensity(now);
        before != self.thinks_short
    }

    /// Bound by I/O: less than a fifth of the time without a request.
    fn learn_intensity(&mut self, now: Instant) {
        if !self.sync {
            return;
        }
        let span = now.since(self.io_since);
        if self.sorted.is_empty() && self.in_flight == 0 {
            self.idle_total += now.since(self.last_completion);
        }
        if std::mem::take(&mut self.just_created) {
            return;
        }
        self.io_bound = self.idle_total.scaled(5, 1) <= span;
        if span > INTENSITY_SPAN {
            let half = span.get() / 2;
            self.io_since = Instant::from_nanos(now.as_nanos().saturating_sub(half));
            self.idle_total = Nanos::new(self.idle_total.get() / 2);
        }
    }
}
