//! **anticipatory**: deadline's batches, and a short wait after a synchronous
//! read for the next one of the same issuer.
//!
//! Source: Linux `block/as-iosched.c`, 2.6.x; Iyer and Druschel: "Anticipatory
//! scheduling", SOSP 2001.
//!
//! Synchronous requests (reads, and writes that somebody waits for) and
//! asynchronous ones alternate in batches limited by time. Inside a batch the
//! choose rule orders requests around the last sector of that direction. When
//! the last synchronous issuer has nothing queued or in flight, the device is
//! held, up to `antic_expire` after its completion, for that issuer or for a
//! request closer than its mean seek distance; unless it is known to think
//! longer than that. A synchronous FIFO is looked at once per expire interval.
//!
//! Where the source leaves room or Seekway differs:
//! - The acceptable distance does not widen while waiting (Linux starts at
//!   4 MiB and doubles it every jiffy): algorithms.md gives the mean alone.
//! - Asynchronous requests belong to no issuer here: in Linux the write-back
//!   threads issue them, and a reader's wait neither ends nor fails by them.
//! - That an issuer has exited is never known, so there is no exit probability.
//!   Newcomers are judged by the mean think time of earlier newcomers' first.
//! - Changing direction drains the device, as in Linux, but for no longer than
//!   a batch lasts.
//! - The length of a write batch in requests adapts as in Linux; adjacent
//!   writes that engines coalesce count once.

use crate::entry::{Entry, Starves};
use crate::issuers::{IssuerId, Issuers};
use crate::runs::{BACK_SEEK_MAX, BACK_SEEK_PENALTY, Run};
use seekway_core::means::FadingMean;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool, Slots, choose};
use seekway_core::request::{Completion, Extent, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, HOLD_MAX, Scheduler};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("read_expire", Kind::Duration, "125ms",
        "age at which a synchronous request goes first, looked at once per such interval"),
    param("write_expire", Kind::Duration, "250ms", "the same for an asynchronous one"),
    param("antic_expire", Kind::Duration, "6700us",
        "longest wait for the issuer that was just served; 0 never waits"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "anticipatory",
    summary: "batches by deadline; waits briefly for the issuer just served",
    source: "Linux block/as-iosched.c, 2.6; Iyer & Druschel, SOSP 2001",
    params: PARAMS,
    holds: &[ANTICIPATION, DRAIN],
    keeps: &[],
    starves: &[Starves {
        with: "",
        why: "after it has drained a device, a batch goes on from its last place, not with the oldest \
              request (`as_dispatch_request`): what lies behind a stream of writes waits",
    }],
    build: |params| Ok(Box::new(Anticipatory::new(params)?)),
};

const ASYNC: usize = 0;

const SYNC: usize = 1;

/// Time for which asynchronous and synchronous requests go on while the others wait: Linux's
/// `default_write_batch_expire` and `default_read_batch_expire`.
const BATCH: [Nanos; 2] = [Nanos::from_millis(125), Nanos::from_millis(500)];

/// Held for the issuer that was just served.
const ANTICIPATION: &str = "anticipation";

/// Held until a batch of the other direction has drained.
const DRAIN: &str = "async";

/// The requests of one direction.
#[derive(Default)]
struct Direction {
    sorted: LbaQueue,
    fifo: ExpiryQueue,
    expire: Nanos,
    /// When the FIFO was last looked at.
    looked: Instant,
    /// The sector after the last one dispatched.
    place: Lba,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Wait {
    /// Nobody has been waited for since the last dispatch.
    #[default]
    Off,
    On,
    /// The wait is over; the next request goes.
    Finished,
}

#[derive(Default)]
struct Anticipatory {
    antic_expire: Nanos,

    queued: Pool,
    links: Links,
    directions: [Direction; 2],
    issuers: Issuers<Issuer>,
    /// The issuer of each request from arrival to completion.
    issuer_of: Slots<IssuerId>,
    in_flight: u32,

    /// Direction of the running batch, [`ASYNC`] or [`SYNC`].
    direction: usize,
    batch_ends: Instant,
    /// The direction changed and the device drains, at the latest until then.
    draining: Option<Instant>,
    /// A synchronous batch waits for its first completion to start its clock.
    new_batch: bool,
    write_batch_began: Instant,
    /// Asynchronous dispatches that a batch may have, adapted to its length in
    /// time, and how many are left of the running one.
    write_batch_max: u64,
    write_batch_left: u64,
    /// The write batch ran dry or alone, and so says nothing about its length.
    write_batch_idled: bool,
    run: Run,

    /// The issuer of the last dispatch, when that was synchronous.
    anticipated: Option<IssuerId>,
    /// When it last completed a request, and so a wait began.
    wait_began: Option<Instant>,
    wait: Wait,
    newcomers: Newcomers,
    waits_met: u64,
    waits_in_vain: u64,
}

impl Anticipatory {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let direction =
            |expire| Direction { expire: params.duration(expire), ..Direction::default() };
        // One request for each 10 ms, as Linux begins.
        let write_batch_max = BATCH[ASYNC].get() / 10_000_000;
        Ok(Anticipatory {
            antic_expire: params.duration_within("antic_expire", Nanos::ZERO, HOLD_MAX)?,
            directions: [direction("write_expire"), direction("read_expire")],
            issuers: Issuers::new(true),
            direction: SYNC,
            batch_ends: Instant::ZERO + BATCH[SYNC],
            write_batch_max,
            write_batch_left: write_batch_max,
            ..Anticipatory::default()
        })
    }

    // ---- what is known of issuers -------------------------------------------

    /// Is the request nearer than what the issuer usually asks for next?
    fn is_close(&self, issuer: &Issuer, request: &Request) -> bool {
        let distance = request.extent.start().distance(self.directions[self.direction].place);
        distance < issuer.mean_seek(&self.newcomers)
    }

    fn learn(&mut self, now: Instant, id: IssuerId, request: &Request) {
        let issuer = self.issuers.get_mut(id);
        issuer.learn(now, request, &mut self.newcomers);
    }

    /// `as_can_break_anticipation`: should `candidate` go rather than wait for
    /// the issuer `id`?
    fn breaks(&mut self, now: Instant, id: IssuerId, candidate: Option<RequestId>) -> bool {
        let request = candidate.and_then(|c| self.queued.get(c).copied());
        let own = candidate.is_some_and(|c| self.issuer_of.get(c) == Some(&id));
        let issuer = *self.issuers.get(id);
        if own || issuer.queued > 0 || issuer.in_flight > 0 || self.wait_end() <= Some(now) {
            return true;
        }
        if let Some(request) = request
            && self.is_close(&issuer, &request)
        {
            // Processes that work together: another's close request is as
            // good as its own, and says the same about it.
            self.learn(now, id, &request);
            return true;
        }
        issuer.mean_think(&self.newcomers) > self.antic_expire
    }

    /// When the wait for the anticipated issuer is over.
    fn wait_end(&self) -> Option<Instant> {
        self.wait_began.map(|began| began + self.antic_expire)
    }

    /// `as_can_anticipate`: wait, until then, rather than dispatch `candidate`?
    fn anticipate(&mut self, now: Instant, candidate: Option<RequestId>) -> Option<Instant> {
        let id = self.anticipated?;
        if self.wait == Wait::Finished || self.breaks(now, id, candidate) {
            return None;
        }
        self.wait_end()
    }

    /// The running wait's end, when that has not come.
    fn still_waiting(&mut self, now: Instant) -> Option<Instant> {
        if self.wait != Wait::On {
            return None;
        }
        if let Some(until) = self.wait_end()
            && now < until
        {
            return Some(until);
        }
        self.wait = Wait::Finished;
        self.waits_in_vain += 1;
        None
    }

    // ---- batches --------------------------------------------------------------

    fn batch_expired(&self, now: Instant) -> bool {
        if self.draining.is_some() || self.new_batch {
            return false;
        }
        now > self.batch_ends || self.direction == ASYNC && self.write_batch_left == 0
    }

    /// Look at a FIFO, at most once per expire interval: has its head expired?
    fn fifo_expired(&mut self, now: Instant, direction: usize) -> Option<RequestId> {
        let d = &mut self.directions[direction];
        if now.since(d.looked) < d.expire {
            return None;
        }
        d.looked = now;
        let id = d.fifo.head()?;
        let expired = now > self.queued.get(id)?.arrived + d.expire;
        expired.then_some(id)
    }

    /// Begin a batch of the other direction, or a further one of the same when
    /// only that has requests: with the oldest.
    fn begin_batch(&mut self, now: Instant) -> Option<RequestId> {
        let (sync, writes) =
            (!self.directions[SYNC].fifo.is_empty(), !self.directions[ASYNC].fifo.is_empty());
        let chosen = if sync && !(writes && self.direction == SYNC) { SYNC } else { ASYNC };
        if chosen != self.direction {
            self.draining = Some(now + BATCH[chosen]);
            self.new_batch = false;
        }
        self.direction = chosen;
        if chosen == ASYNC {
            self.write_batch_left = self.write_batch_max;
            self.write_batch_idled = false;
        }
        self.directions[chosen].looked = now;
        self.directions[chosen].fifo.head()
    }

    /// The device has drained: the clock of the new batch starts.
    fn end_drain(&mut self, now: Instant) {
        self.draining = None;
        if self.direction == ASYNC {
            self.batch_ends = now + BATCH[ASYNC];
            self.write_batch_began = now;
        } else {
            self.new_batch = true;
        }
    }

    /// `update_write_batch`: the first synchronous request after a write batch
    /// is done; fit the number of writes to the time that they took.
    fn adapt_write_batch(&mut self, now: Instant) {
        let (took, batch) = (now.since(self.write_batch_began).get(), BATCH[ASYNC].get());
        if took > batch && !self.write_batch_idled {
            if took > batch.saturating_mul(3) {
                self.write_batch_max /= 2;
            } else {
                self.write_batch_max -= 1;
            }
        } else if took < batch && self.write_batch_left == 0 {
            if batch > took.saturating_mul(3) {
                self.write_batch_max *= 2;
            } else {
                self.write_batch_max += 1;
            }
        }
        self.write_batch_max = self.write_batch_max.clamp(1, 1 << 20);
    }

    /// Chooses the request to dispatch now, or the time until which to wait for the anticipated
    /// issuer.
    fn select(&mut self, now: Instant) -> Result<RequestId, Instant> {
        let sync = !self.directions[SYNC].fifo.is_empty();
        let writes = !self.directions[ASYNC].fifo.is_empty();
        let mut pick = None;
        if !(sync && writes && self.batch_expired(now)) {
            let d = &self.directions[self.direction];
            let next =
                choose(&d.sorted, d.place, BACK_SEEK_MAX, BACK_SEEK_PENALTY).map(|(_, id)| id);
            if self.direction == SYNC && self.antic_expire > Nanos::ZERO {
                if let Some(expired) = self.fifo_expired(now, SYNC) {
                    return Ok(expired);
                }
                if let Some(until) = self.anticipate(now, next) {
                    self.wait = Wait::On;
                    return Err(until);
                }
            }
            if next.is_some() && sync && !writes {
                self.batch_ends = now + BATCH[SYNC];
            }
            pick = next;
        }
        let pick = match pick {
            Some(id) => id,
            None => self.begin_batch(now).expect("something is queued"),
        };
        Ok(self.fifo_expired(now, self.direction).unwrap_or(pick))
    }

    fn dispatch(&mut self, id: RequestId) {
        let request = self.queued.take(id);
        self.unlink(&request);
        self.wait = Wait::Off;
        self.wait_began = None;
        let continues = self.run.extend(&request);
        self.directions[self.direction].place = request.extent.end();
        let issuer_id = *self.issuer_of.get(id).expect("a queued request has an issuer");
        let issuer = self.issuers.get_mut(issuer_id);
        issuer.queued -= request.sync as u32;
        issuer.in_flight += request.sync as u32;
        self.in_flight += 1;
        if self.direction == SYNC {
            self.anticipated = Some(issuer_id);
        } else {
            self.anticipated = None;
            self.write_batch_left = self.write_batch_left.saturating_sub(!continues as u64);
        }
    }

    fn unlink(&mut self, request: &Request) {
        let direction = &mut self.directions[request.sync as usize];
        direction.fifo.remove(&mut self.links, request.id);
        direction.sorted.remove(request);
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, request: &Request) {
        self.unlink(request);
        if let Some(id) = self.issuer_of.remove(request.id) {
            self.issuers.get_mut(id).queued -= request.sync as u32;
            self.issuers.leave(id);
        }
    }

    /// The anticipated issuer is no longer known.
    fn forget_anticipated(&mut self) {
        self.anticipated = None;
        self.wait = Wait::Off;
        self.wait_began = None;
    }
}

impl Scheduler for Anticipatory {
    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        for request in &leaving {
            self.leaves(request);
        }
        if self.anticipated.is_some_and(|id| self.issuers.vm(id) == vm) {
            self.forget_anticipated();
        }
        self.issuers.detach(vm);
        leaving
    }

    fn merged(&mut self, _now: Instant, id: RequestId, extent: Extent) -> bool {
        self.run.end();
        let before = self.queued.resize(id, extent);
        self.directions[before.sync as usize].sorted.resize(&before, extent);
        true
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(&request);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.run.end();
        let (id, forgotten) = self.issuers.enter(&request, Issuer::default);
        if forgotten.is_some() && self.anticipated == Some(id) {
            self.forget_anticipated();
        }
        if request.sync {
            self.learn(now, id, &request);
            self.issuers.get_mut(id).queued += 1;
        }
        self.issuer_of.insert(request.id, id);
        let direction = &mut self.directions[request.sync as usize];
        direction.fifo.push(&mut self.links, request.id);
        direction.sorted.insert(&request);
        self.queued.insert(request);
        if self.wait == Wait::On
            && let Some(anticipated) = self.anticipated
            && request.sync
        {
            let late = self.wait_end() <= Some(now);
            if self.breaks(now, anticipated, Some(request.id)) {
                self.waits_met += !late as u64;
                self.wait = Wait::Finished;
            }
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.run.end();
        let request = &completion.request;
        let Some(id) = self.issuer_of.remove(request.id) else { return };
        self.in_flight -= 1;
        if request.sync {
            let issuer = self.issuers.get_mut(id);
            issuer.in_flight -= 1;
            issuer.last_completion = Some(now);
        }
        if self.anticipated == Some(id) {
            self.wait_began = Some(now);
        }
        self.issuers.leave(id);
        if self.draining.is_some() && self.in_flight == 0 {
            self.end_drain(now);
        }
        if self.new_batch && self.direction == SYNC && request.sync {
            self.adapt_write_batch(now);
            self.batch_ends = now + BATCH[SYNC];
            self.new_batch = false;
        }
    }

    fn decide(&mut self, now: Instant, _device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        let alone = self.directions[SYNC].fifo.is_empty();
        if self.direction == ASYNC && alone && self.write_batch_left == 0 {
            self.write_batch_idled = true;
        }
        loop {
            if let Some(until) = self.draining {
                if self.in_flight > 0 && now < until {
                    return Decision::Hold { until, why: DRAIN };
                }
                self.end_drain(now);
            }
            if let Some(until) = self.still_waiting(now) {
                return Decision::Hold { until, why: ANTICIPATION };
            }
            match self.select(now) {
                Err(until) => {
                    return Decision::Hold { until, why: ANTICIPATION };
                }
                Ok(_) if self.draining.is_some() && self.in_flight > 0 => continue,
                Ok(id) => {
                    if self.draining.is_some() {
                        self.end_drain(now);
                    }
                    self.dispatch(id);
                    return Decision::Dispatch(id);
                }
            }
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("waits_met", self.waits_met as f64);
        sink("waits_in_vain", self.waits_in_vain as f64);
        sink("write_batch_max", self.write_batch_max as f64);
    }
}

// Anticipatory's record of issuers: how long they think, and how far they seek.

/// A longer think time counts as this (`MAX_THINKTIME`).
const THINK_MAX: Nanos = Nanos::from_millis(20);

/// An issuer's record.
#[derive(Clone, Copy, Default)]
struct Issuer {
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
struct Newcomers {
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

/// The rules of anticipatory, one by one.
#[cfg(test)]
mod tests {
    use super::{ANTICIPATION, DRAIN};
    use crate::schedulers::tests::Rig;
    use seekway_core::request::{Op, VmId};

    /// VM 0 reads sequentially with a think time, eight times; then VM 1 queues a distant read.
    fn reader(think_us: u64) -> Rig {
        let mut rig = Rig::new("anticipatory");
        for i in 0..8 {
            rig.read(0, 1_000 + 8 * i);
            rig.serve(500);
            rig.wait_us(think_us);
        }
        rig.read(0, 1_064);
        rig.read(1, 9_000_000);
        rig.serve(500);
        rig
    }

    #[test]
    fn waits_for_the_reader_just_served() {
        let mut rig = reader(1_000);
        assert_eq!(rig.hold_us(ANTICIPATION), 6_700);
        rig.wait_us(1_000);
        // A third VM far away does not end the wait, and does not prolong it.
        rig.read(2, 5_000_000);
        assert_eq!(rig.hold_us(ANTICIPATION), 5_700);
        rig.read(0, 1_072);
        assert_eq!(rig.dispatch(), 1_072);
        assert_eq!(rig.metric("waits_met"), 1.0);
    }

    #[test]
    fn the_wait_ends_in_vain_after_antic_expire() {
        let mut rig = reader(1_000);
        let us = rig.hold_us(ANTICIPATION);
        rig.wait_us(us);
        assert_eq!(rig.dispatch(), 9_000_000);
        assert_eq!(rig.metric("waits_in_vain"), 1.0);
    }

    #[test]
    fn a_slow_thinker_is_not_waited_for() {
        assert_eq!(reader(10_000).dispatch(), 9_000_000);
    }

    #[test]
    fn an_issuer_with_a_request_queued_is_not_waited_for() {
        let mut rig = Rig::new("anticipatory");
        rig.reads(0, [1_000, 900_000]);
        rig.read(1, 5_000);
        assert_eq!(rig.serve_n(2), [1_000, 5_000]);
    }

    #[test]
    fn a_request_closer_than_the_mean_seek_is_as_good() {
        let mut rig = Rig::new("anticipatory");
        for i in 0..8 {
            rig.read(0, 1_000 + 10_000 * i);
            rig.serve(500);
        }
        rig.read(1, 900_000);
        assert_eq!(rig.hold_us(ANTICIPATION), 6_700);
        // VM 0 seeks 9,992 sectors from 71,008: 12,000 away is too far, 9,000 is not.
        rig.read(2, 83_008);
        rig.hold_us(ANTICIPATION);
        rig.read(3, 80_008);
        assert_eq!(rig.dispatch(), 80_008);
    }

    #[test]
    fn batches_alternate_by_time() {
        let mut rig = Rig::new("anticipatory:antic_expire=0");
        rig.reads(0, (0..200).map(|i| 1_000 + 100 * i));
        rig.writes(1, (0..200).map(|i| 1_000_000 + 100 * i));
        let order: Vec<bool> = (0..60).map(|_| rig.serve(20_000) < 1_000_000).collect();
        let runs: Vec<(bool, usize)> =
            order.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
        // The first batch counts from the rig's start: 500 ms. Writes go for more than
        // 125 ms; then the reads' clock starts with their first completion.
        assert_eq!(runs[..3], [(true, 26), (false, 7), (true, 27)]);
    }

    #[test]
    fn changing_direction_drains_the_device() {
        let mut rig = Rig::new("anticipatory:antic_expire=0");
        rig.reads(0, [100, 200, 300]);
        rig.writes(1, [10_000]);
        assert_eq!(rig.dispatch(), 100);
        rig.wait_ms(501);
        assert_eq!(rig.hold_us(DRAIN), 125_000);
        rig.complete();
        assert_eq!(rig.dispatch(), 10_000);
    }

    #[test]
    fn the_fifo_is_looked_at_once_per_interval() {
        let mut rig = Rig::new("anticipatory:antic_expire=0");
        rig.read(0, 1_000_000);
        rig.serve(100);
        rig.reads(1, [10, 20, 30]);
        rig.reads(0, (0..100).map(|i| 1_000_008 + 8 * i));
        rig.wait_ms(1);
        // What lies at 10 to 30 expires at 125.1 ms; one of them goes then, and the
        // choose rule goes on from there: 20 and 30 lie ahead.
        let order: Vec<u64> = (0..50).map(|_| rig.serve(5_000)).collect();
        let first = order.iter().position(|&lba| lba == 10).unwrap();
        assert_eq!(first, 25);
        assert_eq!(order[26..28], [20, 30]);
    }

    #[test]
    fn detach_of_the_awaited_ends_the_wait() {
        let mut rig = reader(1_000);
        rig.hold_us(ANTICIPATION);
        let now = rig.now;
        assert!(rig.policy.detach(now, VmId::new(0)).is_empty());
        assert_eq!(rig.dispatch(), 9_000_000);
    }

    #[test]
    fn processes_of_one_vm_are_told_apart() {
        let mut rig = Rig::new("anticipatory");
        for tag in [8, 9] {
            rig.arrive(0, tag, Op::Read, true, 1_000 * u64::from(tag));
        }
        assert_eq!(rig.serve(500), 8_000);
        assert_eq!(rig.hold_us(ANTICIPATION), 6_700);
    }
}
