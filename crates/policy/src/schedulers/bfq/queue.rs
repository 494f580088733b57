//! A queue of BFQ: the synchronous or the asynchronous requests of a VM, and
//! what is known of them.

use seekway_core::means::FadingMean;
use seekway_core::queues::{ExpiryQueue, KeyedHeap, LbaQueue};
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

// The peak rate of the device (`bfq_update_peak_rate`), from which follow the
// largest budget and for how long an interactive VM is raised.

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

// B-WF2Q+ (`bfq-wf2q.c`): which queue is next, by virtual times that pass as
// service is given.
//
// A queue that is to receive `budget` sectors from virtual time `start` on would
// finish at `start + budget / weight`. Virtual time passes by the service given
// over the sum of weights. Of the queues whose start has come the one with the
// earliest finish is next; if none has come, virtual time jumps to the earliest
// start. A queue that leaves keeps its finish and its part of the sum of weights
// until virtual time has passed the finish, so that it gains nothing by coming
// back at once.

/// Virtual time: sectors over weight, in 2^-22 (`WFQ_SERVICE_SHIFT`). Linux has 64
/// bits of it and lets them wrap.
pub(super) type Virtual = u128;

const SERVICE_SHIFT: u32 = 22;

/// A queue as the tree sees it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Entity {
    pub start: Virtual,
    pub finish: Virtual,
    pub weight: u64,
    /// Sectors that it may have, and those that it has had.
    pub budget: u64,
    pub service: u64,
    /// Does it count in the sum of weights?
    counted: bool,
}

impl Entity {
    pub fn budget_left(&self) -> u64 {
        self.budget.saturating_sub(self.service)
    }
}

/// The queues, by number.
#[derive(Default)]
pub(super) struct Tree {
    entities: Vec<Entity>,
    virtual_now: Virtual,
    weights: u64,
    /// Those that are to be served and whose start has come, by finish.
    eligible: KeyedHeap<Virtual>,
    /// Those whose start has not come, by start.
    future: KeyedHeap<Virtual>,
    /// Those that left and whose finish has not come, by finish.
    left: KeyedHeap<Virtual>,
    /// The one that is served.
    serving: Option<u32>,
}

fn delta(service: u64, weight: u64) -> Virtual {
    // What fits into 64 bits is divided there, in a fraction of the time.
    match service < 1 << (64 - SERVICE_SHIFT) {
        true => Virtual::from((service << SERVICE_SHIFT) / weight.max(1)),
        false => (Virtual::from(service) << SERVICE_SHIFT) / Virtual::from(weight.max(1)),
    }
}

impl Tree {
    pub fn get(&self, queue: u32) -> &Entity {
        &self.entities[queue as usize]
    }
    pub fn get_mut(&mut self, queue: u32) -> &mut Entity {
        &mut self.entities[queue as usize]
    }

    /// A new queue, without requests; an older one of that number is forgotten.
    pub fn add(&mut self, queue: u32, weight: u64) {
        if self.entities.len() <= queue as usize {
            self.entities.resize_with(queue as usize + 1, Entity::default);
        }
        self.forget(queue);
        self.entities[queue as usize] = Entity { weight, ..Entity::default() };
    }

    /// A queue is as if it had never been.
    pub fn forget(&mut self, queue: u32) {
        let entity = &mut self.entities[queue as usize];
        if std::mem::take(&mut entity.counted) {
            self.weights -= entity.weight;
        }
        self.eligible.set(queue, None);
        self.future.set(queue, None);
        self.left.set(queue, None);
        if self.serving == Some(queue) {
            self.serving = None;
        }
    }

    /// Another weight from now on; it counts at the next placing.
    pub fn set_weight(&mut self, queue: u32, weight: u64) {
        let entity = &mut self.entities[queue as usize];
        if entity.counted {
            self.weights = self.weights - entity.weight + weight;
        }
        entity.weight = weight;
    }

    /// `__bfq_activate_entity`: a queue has requests again. `in_time`: it came
    /// back so soon that it loses nothing; `raised` divides what it is set
    /// back by otherwise.
    pub fn activate(&mut self, queue: u32, in_time: bool, raised: u64) {
        let now = self.virtual_now;
        let entity = &mut self.entities[queue as usize];
        let backshifted = in_time && now > entity.finish;
        let least = if backshifted { entity.finish } else { now };
        entity.start = if entity.counted { least.max(entity.finish) } else { least };
        if !entity.counted {
            entity.counted = true;
            self.weights += entity.weight;
        }
        self.left.set(queue, None);
        self.place(queue, backshifted.then_some(raised));
    }

    /// `__bfq_requeue_entity`: a queue with requests is done with its turn, or
    /// its budget has changed.
    pub fn requeue(&mut self, queue: u32) {
        let entity = &mut self.entities[queue as usize];
        if self.serving == Some(queue) {
            entity.finish = entity.start + delta(entity.service, entity.weight);
            entity.start = entity.finish;
            self.serving = None;
        }
        self.place(queue, None);
    }

    /// `__bfq_deactivate_entity`: a queue has no more requests.
    pub fn deactivate(&mut self, queue: u32) {
        let entity = &mut self.entities[queue as usize];
        entity.finish = entity.start + delta(entity.service, entity.weight);
        let finish = entity.finish;
        if self.serving == Some(queue) {
            self.serving = None;
        } else {
            entity.service = 0;
        }
        self.eligible.set(queue, None);
        self.future.set(queue, None);
        if finish > self.virtual_now {
            self.left.set(queue, Some(finish));
        } else if std::mem::take(&mut entity.counted) {
            self.weights -= entity.weight;
        }
    }

    /// Sets the finish by the budget, and queues by it (`bfq_update_fin_time_enqueue`).
    fn place(&mut self, queue: u32, backshifted: Option<u64>) {
        let now = self.virtual_now;
        let entity = &mut self.entities[queue as usize];
        entity.finish = entity.start + delta(entity.budget, entity.weight);
        if let Some(raised) = backshifted
            && now > entity.finish
        {
            let behind = (now - entity.finish) / Virtual::from(raised.max(1));
            entity.start += behind;
            entity.finish += behind;
        }
        let (start, finish) = (entity.start, entity.finish);
        let eligible = start <= now;
        self.eligible.set(queue, eligible.then_some(finish));
        self.future.set(queue, (!eligible).then_some(start));
    }

    /// `bfq_bfqq_served`: adds `sectors` to a queue's service.
    pub fn served(&mut self, queue: u32, sectors: u64) {
        let service = &mut self.entities[queue as usize].service;
        *service = service.saturating_add(sectors);
        self.virtual_now += delta(sectors, self.weights);
        self.forget_idle();
    }

    /// Of those that left, the earliest is forgotten once its finish has come.
    fn forget_idle(&mut self) {
        if let Some((finish, queue)) = self.left.first()
            && finish <= self.virtual_now
        {
            self.left.set(queue, None);
            let entity = &mut self.entities[queue as usize];
            entity.counted = false;
            self.weights -= entity.weight;
        }
    }

    /// The queue that would be next, besides the one that is served.
    pub fn peek_next(&self) -> Option<u32> {
        let future = self.future.first().filter(|_| self.eligible.first().is_none());
        self.eligible.first().or(future).map(|(_, queue)| queue)
    }

    /// `bfq_get_next_queue`: the queue that is served from now on.
    pub fn serve_next(&mut self) -> Option<u32> {
        debug_assert!(self.serving.is_none(), "a queue is served");
        if self.eligible.first().is_none()
            && let Some((start, _)) = self.future.first()
        {
            self.virtual_now = self.virtual_now.max(start);
            self.forget_idle();
        }
        while let Some((start, queue)) = self.future.first()
            && start <= self.virtual_now
        {
            self.future.set(queue, None);
            self.eligible.set(queue, Some(self.entities[queue as usize].finish));
        }
        let (_, queue) = self.eligible.first()?;
        self.eligible.set(queue, None);
        self.serving = Some(queue);
        Some(queue)
    }
}
