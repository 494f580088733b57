//! **cats**: cache-aware table scheduling. Reads that the drive's cache is
//! believed to hold go first; the others in the order that a table of all of
//! them shows to be the best.
//!
//! Source: Geist, Jones and Westall: "Predicting disk scheduling performance
//! with virtual machines", section 3, on Geist and Ross's table and Geist,
//! Steele and Westall's busdriver delay; as algorithms.md, section 3, states it.
//!
//! 1. A pending read that the shadow cache ([`shadow`]) predicts to be a hit.
//! 2. Reads before writes; writes in C-SCAN order when no read is pending.
//! 3. When the oldest read has waited for `read_delay`: reads in C-SCAN order,
//!    until the oldest is younger again.
//! 4. After a completion a wait ([`hold`]) for a nearer read, unless the next
//!    one is where the head is.
//! 5. The next read of the [`plan`], which stands until a read arrives or the head
//!    moves otherwise; longer, while more reads are pending than it takes. When a
//!    new one does not pay yet, reads go in C-SCAN order.
//!
//! A predicted hit moves neither the head that all this reasons with nor the
//! plan.
//!
//! Where the paper is silent or Seekway differs:
//! - What continues the command just handed out joins it, as the dispatcher
//!   will make it one anyway; a command of predicted hits takes in only such.
//! - Hits could go for ever: every hit renews its stream's read-ahead, so one
//!   stream that always has a read queued would keep out all others. While a
//!   read or a write is past its delay, no more than [`HITS_IN_A_ROW`] hits
//!   pass it before another request goes, a read that is no hit if there is one.
//! - A C-SCAN sweep ahead of a sequential stream never turns back: after twice
//!   as many as were queued when it was begun, and [`SWEEP_SPARE`] more, the
//!   late request itself goes.
//! - Writes past `write_delay` go in turn with the reads that are no hits,
//!   one for one: neither waits for the other's whole queue.
//! - The plan takes the [`PLAN_MAX`] reads nearest to the head; when they are
//!   served, the next. Read delays, and so C-SCAN, keep the rest from starving.
//! - Only an idle device is held, and only for reads: writes alone go at once.

mod hold;
mod plan;
mod shadow;
mod table;

use self::hold::Busdriver;
use self::plan::Plan;
use self::shadow::{LOOK_MAX, Shadow};
use super::merge::Run;
use super::{Entry, Starves};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool, Slots};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("segments", Kind::Count(0, 1024), "64",
        "segments of the drive's cache; 0: the drive has none"),
    param("prefetch_sectors", Kind::Count(0, 1 << 40), "64", "what the drive reads on after a command"),
    param("read_delay", Kind::Duration, "100ms",
        "a read older than this sends all reads into C-SCAN order; 0: none does"),
    param("write_delay", Kind::Duration, "5s",
        "writes older than this go in turn with reads; 0: they wait until no read is pending"),
    param("busdriver", Kind::DurationOr("auto"), "auto",
        "longest wait after a completion for a nearer read; auto: while it pays, up to 7ms; 0: none"),
    param("hit", Kind::Duration, "500us",
        "a read command served within this counts as a hit of the drive's cache in the metrics"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "cats",
    summary: "cache hits first, then the order with the least mean response",
    source: "Geist, Jones, Westall, section 3 (algorithms.md, section 3)",
    params: PARAMS,
    holds: &[BUSDRIVER],
    keeps: &[],
    starves: &[Starves {
        with: "read_delay=0",
        why: "without its delay a read is as urgent as those that arrive later",
    }],
    build: |params| Ok(Box::new(Cats::new(params)?)),
};

/// Held for a nearer read than those that are queued (the busdriver delay).
const BUSDRIVER: &str = "busdriver";

/// Size of a segment of the drive's cache: that of the paper's drive, a Cheetah 15K.4.
const SEGMENT: Sectors = Sectors::new(221);
/// Most reads in a plan, the nearest to the head: work grows with its square.
const PLAN_MAX: usize = 256;

/// Predicted hits that may pass a request that is past its delay. A hit takes a
/// twentieth of a miss's time, so this is that of about three misses.
const HITS_IN_A_ROW: u32 = 64;
/// Requests that a sweep may take, beyond twice the number that were queued, before it reaches the
/// late request for which it began: room for new ones ahead of the head.
const SWEEP_SPARE: usize = 64;

/// The rule that chose a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    Hit,
    Table,
    Cscan,
    Write,
}

impl Rule {
    const ALL: [Rule; 4] = [Rule::Hit, Rule::Table, Rule::Cscan, Rule::Write];
    const fn metric(self) -> &'static str {
        match self {
            Rule::Hit => "by_hit",
            Rule::Table => "by_table",
            Rule::Cscan => "by_cscan",
            Rule::Write => "by_write",
        }
    }
}

/// The requests of one direction.
#[derive(Default)]
struct Direction {
    places: LbaQueue,
    fifo: ExpiryQueue,
    /// A request that has waited longer is late; zero: none ever is.
    delay: Nanos,
    /// The oldest when a sweep was last begun for it, and how many others that
    /// sweep may still take first.
    sweep: (Option<(RequestId, Instant)>, usize),
}

impl Direction {
    fn new(delay: Nanos) -> Self {
        Direction { delay, ..Direction::default() }
    }
    fn is_empty(&self) -> bool {
        self.fifo.is_empty()
    }
    /// When the oldest has waited for the delay.
    fn due(&self, pool: &Pool) -> Option<Instant> {
        let oldest = pool.get(self.fifo.head()?)?;
        (self.delay > Nanos::ZERO).then(|| oldest.arrived + self.delay)
    }
    /// Returns the oldest request, which is late, if the sweep that was to reach it has taken as many
    /// others as it may: it must be running ahead of a stream. Counts.
    fn overdue(&mut self, pool: &Pool) -> Option<RequestId> {
        let oldest = pool.get(self.fifo.head()?)?;
        let is = Some((oldest.id, oldest.arrived));
        if self.sweep.0 != is {
            self.sweep = (is, 2 * self.fifo.len() + SWEEP_SPARE);
        }
        match &mut self.sweep.1 {
            0 => Some(oldest.id),
            left => {
                *left -= 1;
                None
            }
        }
    }
    /// The next in C-SCAN order.
    fn cscan(&self, head: Lba) -> Option<RequestId> {
        let next = self.places.at_or_after(head).or_else(|| self.places.first());
        next.map(|(_, id)| id)
    }
}

/// A command that was handed out, by its first request.
#[derive(Clone, Copy)]
struct Sent {
    vm: VmId,
    op: Op,
    extent: Extent,
    /// The shadow held all of it.
    predicted: bool,
    /// Did the command begin where the head was?
    adjacent: bool,
    /// If it succeeds a command that was watched: did it go at once, or late?
    succeeds: Option<bool>,
}

/// The command that is being made.
struct Current {
    lead: RequestId,
    rule: Rule,
    /// End of what the shadow held of the read before it was written to the shadow.
    reach: Lba,
}

#[derive(Default)]
struct Counts {
    dispatches: [u64; Rule::ALL.len()],
    reads: u64,
    predicted: u64,
    actual: u64,
    both: u64,
}

#[derive(Default)]
struct Cats {
    hit: Nanos,
    pool: Pool,
    reads: Direction,
    writes: Direction,
    links: Links,
    shadow: Shadow,
    busdriver: Busdriver,

    /// Where the head is, as far as commands that were no predicted hits moved it.
    head: Lba,
    /// Where the dispatcher has it after the last dispatch, hits too: when it
    /// stands elsewhere, somebody else moved it.
    sent_end: Option<Lba>,
    run: Run,
    current: Option<Current>,
    /// By the first request of each command in flight.
    in_flight: Slots<Sent>,

    plan: Plan,
    /// Hits since a command that was none.
    hits_in_a_row: u32,
    /// A read that was no hit has gone since the last write.
    read_went: bool,
    counts: Counts,
}

impl Cats {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let fixed = params.duration_or_word("busdriver");
        if fixed.is_some_and(|delay| delay > HOLD_MAX) {
            return Err(ParamError::new(format!("busdriver: at most {HOLD_MAX}")));
        }
        let segments = params.count("segments") as usize;
        let ahead = Sectors::new(params.count("prefetch_sectors"));
        Ok(Cats {
            hit: params.duration("hit"),
            reads: Direction::new(params.duration("read_delay")),
            writes: Direction::new(params.duration("write_delay")),
            shadow: Shadow::new(segments, SEGMENT, ahead),
            busdriver: Busdriver::new(fixed, ahead),
            plan: Plan::new(PLAN_MAX),
            ..Cats::default()
        })
    }

    /// Chooses the request to send now, with the rule that chose it, or the time until which to
    /// wait.
    fn choose(
        &mut self,
        now: Instant,
        device: &DeviceView<'_>,
    ) -> Result<(Rule, RequestId), Instant> {
        if let Some(found) = self.continuation() {
            return Ok(found);
        }
        let (read_due, write_due) = self.due();
        let late = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let (late_read, late_write) = (late(read_due), late(write_due));
        let passed = (late_read || late_write) && self.hits_in_a_row >= HITS_IN_A_ROW;
        if !passed && let Some(id) = self.shadow.first() {
            return Ok((Rule::Hit, id));
        }
        if self.reads.is_empty() || late_write && self.read_went {
            if self.busdriver.is_auto()
                && !late_write
                && let Some(until) = self.hold(now, device)
            {
                return Err(until);
            }
            let of = &mut self.writes;
            let oldest = of.overdue(&self.pool).filter(|_| late_write);
            let id = oldest.or_else(|| of.cscan(self.head)).expect("a request is queued");
            return Ok((Rule::Write, id));
        }
        if late_read {
            let oldest = self.reads.overdue(&self.pool);
            let next = || if passed { self.cscan_no_hit() } else { self.reads.cscan(self.head) };
            let id = oldest.or_else(next).expect("a read is queued");
            return Ok((Rule::Cscan, id));
        }
        if !late_write && let Some(until) = self.hold(now, device) {
            return Err(until);
        }
        if let Some(id) = self.plan.next(self.head, &self.reads.places, &self.pool) {
            return Ok((Rule::Table, id));
        }
        let id = self.reads.cscan(self.head).expect("a read is queued");
        Ok((Rule::Cscan, id))
    }

    /// Until when to wait for a nearer read than those that are queued.
    fn hold(&mut self, now: Instant, device: &DeviceView<'_>) -> Option<Instant> {
        let here = self.reads.places.at_or_after(self.head);
        if device.in_flight > 0
            || !device.profile.rotational()
            || here.is_some_and(|(lba, _)| lba == self.head)
        {
            return None;
        }
        let until = self.busdriver.until(now)?;
        let (read, write) = self.due();
        Some(read.into_iter().chain(write).fold(until, Instant::min))
    }

    /// When the oldest read and the oldest write are past their delays.
    fn due(&self) -> (Option<Instant>, Option<Instant>) {
        (self.reads.due(&self.pool), self.writes.due(&self.pool))
    }

    /// The request that continues the command just handed out.
    fn continuation(&self) -> Option<(Rule, RequestId)> {
        let current = self.current.as_ref()?;
        let (reads, end) = (current.rule != Rule::Write, self.sent_end?);
        let of = if reads { &self.reads } else { &self.writes };
        let here = of.places.ascending(end).take_while(|&(lba, _)| lba == end).take(LOOK_MAX);
        let mut here = here.filter_map(|(_, id)| self.pool.get(id));
        let found = here.find(|r| {
            let within = current.rule != Rule::Hit || r.extent.end() <= current.reach;
            within && self.run.continues(r)
        })?;
        Some((current.rule, found.id))
    }

    /// The next read in C-SCAN order that is no predicted hit, or the next of all.
    fn cscan_no_hit(&self) -> Option<RequestId> {
        let reads = &self.reads;
        let around = reads.places.ascending(self.head).chain(reads.places.iter()).take(LOOK_MAX);
        let mut around = around.filter_map(|(_, id)| self.pool.get(id));
        let found = around.find(|r| !self.shadow.holds(r.extent)).map(|r| r.id);
        found.or_else(|| reads.cscan(self.head))
    }

    fn dispatch(&mut self, rule: Rule, id: RequestId) {
        let request = self.pool.take(id);
        self.unlink(&request);
        self.plan.sent();
        self.counts.dispatches[rule as usize] += 1;
        let extent = request.extent;
        let (reads, pool) = (&self.reads.places, &self.pool);
        let mut succeeds = None;
        if request.op == Op::Read {
            self.shadow.left(&request, reads, pool);
            succeeds = self.busdriver.left(id);
        }
        if let Some(current) = &mut self.current
            && self.run.continues(&request)
        {
            self.shadow.extend(extent, reads, pool);
            if let Some(sent) = self.in_flight.get_mut(current.lead) {
                let len = sent.extent.len() + extent.len();
                sent.extent = Extent::new(sent.extent.start(), len).unwrap_or(extent);
                sent.predicted &= extent.end() <= current.reach;
            }
        } else {
            let reach = self.shadow.reach(extent.start());
            self.shadow.begin(extent, reads, pool);
            let predicted = request.op == Op::Read && reach >= extent.end();
            let adjacent = extent.start() == self.head;
            let (vm, op) = (request.vm, request.op);
            let sent = Sent { vm, op, extent, predicted, adjacent, succeeds };
            self.in_flight.insert(id, sent);
            self.busdriver.begin();
            self.current = Some(Current { lead: id, rule, reach });
            self.hits_in_a_row =
                if rule == Rule::Hit { self.hits_in_a_row.saturating_add(1) } else { 0 };
        }
        self.run.extend(&request);
        self.sent_end = Some(extent.end());
        match rule {
            Rule::Hit => return,
            Rule::Table => {}
            Rule::Cscan | Rule::Write => self.plan.break_off(),
        }
        self.read_went = rule != Rule::Write;
        self.head = extent.end();
    }

    /// Count and learn from a read command's service.
    fn served(&mut self, sent: &Sent, service: Nanos) {
        if let Some(at_once) = sent.succeeds {
            self.busdriver.served(at_once, service);
        }
        let actual = service <= self.hit;
        self.counts.reads += 1;
        self.counts.predicted += u64::from(sent.predicted);
        self.counts.actual += u64::from(actual);
        self.counts.both += u64::from(actual && sent.predicted);
    }

    /// A request has left the pool: take it out of its direction's queues.
    fn unlink(&mut self, request: &Request) {
        let of = if request.op == Op::Read { &mut self.reads } else { &mut self.writes };
        of.places.remove(request);
        of.fifo.remove(&mut self.links, request.id);
    }

    /// A request has left the pool and the queues unserved.
    fn leaves(&mut self, request: &Request) {
        if request.op == Op::Read {
            self.shadow.left(request, &self.reads.places, &self.pool);
            self.busdriver.left(request.id);
        }
    }

    /// An input: what goes next is a command of its own.
    fn end_command(&mut self) {
        self.run.end();
        self.current = None;
    }
}

impl Scheduler for Cats {
    fn attach(&mut self, _now: Instant, vm: VmId, _spec: VmSpec) {
        self.busdriver.attach(vm);
    }

    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.pool.take_vm(vm);
        leaving.iter().for_each(|request| self.unlink(request));
        leaving.iter().for_each(|request| self.leaves(request));
        leaving
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.pool.take(id);
        self.unlink(&request);
        self.leaves(&request);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.end_command();
        let of = if request.op == Op::Read { &mut self.reads } else { &mut self.writes };
        of.places.insert(&request);
        of.fifo.push(&mut self.links, request.id);
        self.pool.insert(request);
        if request.op == Op::Read {
            self.shadow.arrived(&request);
            self.busdriver.arrived(now, &request);
            self.plan.arrived(&self.reads.places);
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.end_command();
        let Some(sent) = self.in_flight.remove(completion.request.id) else { return };
        if sent.op != Op::Read {
            self.busdriver.completed_write(now, sent.vm, sent.extent);
            return;
        }
        let goes_on = sent.predicted || sent.adjacent;
        self.busdriver.completed(now, sent.vm, sent.extent, goes_on);
        // Completions at one instant: the first has had all of the time.
        if completion.service > Nanos::ZERO {
            self.served(&sent, completion.service);
        }
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.pool.is_empty() {
            return Decision::Idle;
        }
        if self.sent_end != Some(device.head) {
            self.sent_end = Some(device.head);
            self.end_command();
            self.head = device.head;
            self.plan.break_off();
        }
        match self.choose(now, device) {
            Ok((rule, id)) => {
                self.dispatch(rule, id);
                Decision::Dispatch(id)
            }
            Err(until) => Decision::Hold { until, why: BUSDRIVER },
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        let counts = &self.counts;
        for rule in Rule::ALL {
            sink(rule.metric(), counts.dispatches[rule as usize] as f64);
        }
        sink("waits", self.busdriver.waits as f64);
        sink("wait_trials", self.busdriver.trials as f64);
        sink("plans", self.plan.made as f64);
        sink("read_commands", counts.reads as f64);
        sink("predicted_hits", counts.predicted as f64);
        sink("actual_hits", counts.actual as f64);
        sink("predicted_actual_hits", counts.both as f64);
        sink("false_hits", (counts.predicted - counts.both) as f64);
    }
}

#[cfg(test)]
mod tests;
