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
//! 4. After a completion a wait ([`Busdriver`]) for a nearer read, unless the next
//!    one is where the head is.
//! 5. The next read of the [`Plan`], which stands until a read arrives or the head
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

mod shadow;
mod table;
#[cfg(test)]
mod tests;

use self::shadow::{LOOK_MAX, Shadow};
use crate::entry::{Entry, Starves};
use crate::runs::Run;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool, Queued, Slots};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use table::{Side, Table};

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
        with: "",
        why: "hits of the drive's cache go first, and a late request waits for a sweep that begins at \
              the head and that requests ahead of it prolong",
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

// The busdriver delay: the time that the policy waits, after a completion, for a nearer read
// rather than go where the plan says (algorithms.md, section 3.3).
//
// `busdriver=7ms` is the paper's form: always that long. `auto` asks what a
// wait is worth, from two things that it can see without waiting:
//
// - **When does the successor come?** The *successor* of a command is a read
//   that begins where it ended, or that lies in what the drive has read ahead
//   for it. At each opportunity to wait the command is *watched* for up to
//   `BINS` ms, whether the policy waits or goes elsewhere: a guest's think
//   time does not depend on it. The gaps are counted in bins of 1 ms, for each
//   VM and apart for commands that went on with a stream and for others.
// - **What does it save?** The service time of successors that went *at once*,
//   before any other command, against those that went *late*. Where the drive's
//   cache still has the data when the successor's turn comes the two are alike,
//   and no wait is worth anything, however likely the successor is.
//
// Then waiting up to the end of bin k is worth, in device time, Σ P(gap in bin i)·(saving - time
// waited) - P(later)·(time waited), and the policy waits until the best k, if that is worth more
// than nothing. The wait of those that are queued counts no further: a wait that saves device time
// serves them too, and any other would have to be weighed against the length of the queue, which
// only makes waiting worse.
//
// Each of the two means grows stale when the policy always does the other
// thing, so now and then it does what it would not: seldom, and the more
// seldom the longer nothing changes.

/// Longest wait for a successor, in bins: the paper's 7 ms.
const BINS: usize = 7;

const BIN: Nanos = Nanos::from_millis(1);

/// Commands watched at once. When there are more the oldest is given up.
const WATCHES: usize = 16;

/// Opportunities between two trials of what would not be done, at first and at most.
const TRIAL_FIRST: u32 = 8;

const TRIAL_MAX: u32 = 256;

/// Counts of gaps are halved when they reach this.
const GAPS_MAX: u16 = 64;

/// Gaps that must have been seen before they are believed.
const GAPS_MIN: u16 = 4;

/// The probability 1, with 16 binary digits behind the point.
const ONE: i64 = 1 << 16;

/// Times from a command to its successor.
#[derive(Clone, Copy, Default, Debug)]
struct Gaps {
    /// Watches that went through the bin or ended in it with a successor.
    watched: [u16; BINS],
    /// Those that ended in it.
    came: [u16; BINS],
}

impl Gaps {
    /// A watch that saw the bins from `first` up to before `end`; in the last
    /// of them the successor came, or did not.
    fn note(&mut self, first: usize, end: usize, came: bool) {
        for bin in first..end.min(BINS) {
            self.watched[bin] += 1;
            self.came[bin] += u16::from(came && bin + 1 == end);
            if self.watched[bin] >= GAPS_MAX {
                self.watched[bin] /= 2;
                self.came[bin] /= 2;
            }
        }
    }

    /// The end of the bin up to which waiting is worth most from bin `first`
    /// on, and what it is worth there in nanoseconds, perhaps less than nothing.
    fn best(&self, first: usize, saving_ns: i64) -> Option<(usize, i64)> {
        let bin_ns = BIN.get() as i64;
        let (mut best, mut gained, mut left) = (None, 0, ONE);
        for bin in first..BINS {
            if self.watched[bin] < GAPS_MIN {
                break;
            }
            let came = left * i64::from(self.came[bin]) / i64::from(self.watched[bin]);
            let waited_ns = (bin - first) as i64 * bin_ns;
            gained += came * (saving_ns - waited_ns - bin_ns / 2);
            left -= came;
            let worth = (gained - left * (waited_ns + bin_ns)) / ONE;
            if best.is_none_or(|(_, most)| worth > most) {
                best = Some((bin + 1, worth));
            }
        }
        best
    }
}

/// An exponentially weighted mean.
#[derive(Clone, Copy, Default, Debug)]
struct Mean {
    ns: i64,
    samples: i64,
}

impl Mean {
    /// Beyond the first sixteen, each sample counts a sixteenth.
    fn add(&mut self, sample: Nanos) {
        self.samples = (self.samples + 1).min(16);
        self.ns += (sample.get().min(1 << 40) as i64 - self.ns) / self.samples;
    }
}

/// A command whose successor may come.
#[derive(Clone, Copy)]
struct Watch {
    class: (VmId, bool),
    completed: Instant,
    /// The bin in which the watch began.
    first: usize,
    extent: Extent,
    /// Commands that had been sent by then.
    sent: u64,
}

/// Record of one VM's commands of one kind.
#[derive(Clone, Copy, Debug)]
struct Class {
    gaps: Gaps,
    /// Did waiting pay when it was last asked?
    paid: bool,
    /// Opportunities since the last trial, and how many there shall be.
    since_trial: u32,
    trial_every: u32,
}

impl Default for Class {
    fn default() -> Self {
        Class { gaps: Gaps::default(), paid: false, since_trial: 0, trial_every: TRIAL_FIRST }
    }
}

/// When to wait, and for how long.
#[derive(Default)]
pub struct Busdriver {
    /// The paper's form: always as long; `None` decides by what it is worth.
    fixed: Option<Nanos>,
    prefetch: Sectors,
    /// The last read command that completed, for a wait that counts from there.
    last: Option<Watch>,
    /// Decision for it: until when to wait, if at all.
    decided: Option<Option<Instant>>,
    watches: [Option<Watch>; WATCHES],
    next_watch: usize,
    /// By VM: commands that began something new, and those that went on.
    classes: Vec<[Class; 2]>,
    /// Commands sent until now, reads and writes.
    sent: u64,
    /// Queued reads that are successors: the commands sent when they became so.
    successors: Slots<u64>,
    /// Service of successors that went at once, and late.
    at_once: Mean,
    late: Mean,
    /// Waits decided on, and what was done against the better knowledge.
    pub waits: u64,
    pub trials: u64,
}

impl Busdriver {
    /// `fixed` of `None` decides by worth; the drive reads `prefetch` ahead.
    pub fn new(fixed: Option<Nanos>, prefetch: Sectors) -> Self {
        Busdriver { fixed, prefetch, ..Busdriver::default() }
    }

    /// Does it decide by worth?
    pub fn is_auto(&self) -> bool {
        self.fixed.is_none()
    }

    /// Nothing is known of this VM.
    pub fn attach(&mut self, vm: VmId) {
        if let Some(classes) = self.classes.get_mut(vm.index()) {
            *classes = Default::default();
        }
    }

    /// A read has joined the queue: is it the successor of a watched command?
    pub fn arrived(&mut self, now: Instant, read: &Request) {
        for n in 0..WATCHES {
            let Some(watch) = self.watches[n] else { continue };
            let bin = (now.since(watch.completed).get() / BIN.get()) as usize;
            let came = bin < BINS && self.succeeds(&watch, read.extent);
            if bin >= BINS || came {
                self.watches[n] = None;
                let end = if came { bin + 1 } else { BINS };
                self.class(watch.class).gaps.note(watch.first, end, came);
            }
            if came {
                self.successors.remove(read.id);
                self.successors.insert(read.id, watch.sent);
            }
        }
    }

    fn succeeds(&self, watch: &Watch, extent: Extent) -> bool {
        let end = watch.extent.end();
        extent.start() == end
            || watch.extent.start() <= extent.start() && extent.end() <= end + self.prefetch
    }

    fn class(&mut self, (vm, on): (VmId, bool)) -> &mut Class {
        if self.classes.len() <= vm.index() {
            self.classes.resize(vm.index() + 1, Default::default());
        }
        &mut self.classes[vm.index()][usize::from(on)]
    }

    /// A read has left the queue: sent or handed back. Whether it went at once, if it was a successor.
    pub fn left(&mut self, id: RequestId) -> Option<bool> {
        self.successors.remove(id).map(|sent| sent == self.sent)
    }

    /// A command is sent: successors that stay queued will go late.
    pub fn begin(&mut self) {
        self.sent += 1;
    }

    /// A command of reads is done; it went on with a stream, or began something new.
    pub fn completed(&mut self, now: Instant, vm: VmId, extent: Extent, goes_on: bool) {
        let class = (vm, goes_on);
        self.last = Some(Watch { class, completed: now, first: 0, extent, sent: self.sent });
        self.decided = None;
    }

    /// As `completed`, for a command of writes, which has no successor.
    pub fn completed_write(&mut self, now: Instant, vm: VmId, extent: Extent) {
        self.completed(now, vm, extent, false);
        self.decided = self.is_auto().then_some(None);
    }

    /// A successor's command was served in this time.
    pub fn served(&mut self, at_once: bool, service: Nanos) {
        let mean = if at_once { &mut self.at_once } else { &mut self.late };
        mean.add(service);
    }

    /// Until when to wait after the last completion, when there is something
    /// to send that is not where the head is.
    pub fn until(&mut self, now: Instant) -> Option<Instant> {
        let mut watch = self.last?;
        let until = match (self.fixed, self.decided) {
            (Some(delay), _) => Some(watch.completed + delay),
            (None, Some(decided)) => decided,
            (None, None) => {
                watch.first = (now.since(watch.completed).get() / BIN.get()) as usize;
                let decided = self.decide(&watch);
                self.decided = Some(decided);
                decided
            }
        };
        until.filter(|&until| now < until)
    }

    /// Is it worth waiting for this command's successor? It is watched either way.
    fn decide(&mut self, watch: &Watch) -> Option<Instant> {
        if watch.first >= BINS {
            return None;
        }
        self.watches[self.next_watch] = Some(*watch);
        self.next_watch = (self.next_watch + 1) % WATCHES;
        let (at_once, late) = (self.at_once, self.late);
        let class = self.class(watch.class);
        // The most that it can be worth: a successor at once takes no time.
        let (bin_most, most) = class.gaps.best(watch.first, late.ns)?;
        if late.samples == 0 || most <= 0 {
            return None;
        }
        let found = class.gaps.best(watch.first, late.ns - at_once.ns);
        let worth = found.filter(|&(_, worth)| at_once.samples > 0 && worth > 0);
        if class.paid != worth.is_some() {
            (class.paid, class.trial_every) = (worth.is_some(), TRIAL_FIRST);
        }
        class.since_trial += 1;
        let trial = class.since_trial >= class.trial_every;
        if trial {
            class.since_trial = 0;
            class.trial_every = (2 * class.trial_every).min(TRIAL_MAX);
        }
        self.trials += u64::from(trial);
        let bin = match (worth, trial) {
            (Some((bin, _)), false) => bin,
            (None, true) => bin_most,
            _ => return None,
        };
        self.waits += 1;
        Some(watch.completed + BIN.scaled(bin as u64, 1))
    }
}

// The order in which the pending reads go that are no predicted hits, and when
// it is made anew.
//
// A table (`table`) takes time in proportion to the square of
// its reads. As long as it takes all that are pending, each read that arrives
// and each request that goes by another rule makes the plan stale. With more
// pending than a table takes, its cost would be paid for each request, while one
// more read changes little for hundreds of others. So the plan stands then:
//
// - a read that arrives goes when the head passes it, or by a later plan;
// - a plan that another rule has broken off is not made anew before half as many
//   requests have gone as a plan takes.
//
// So a request pays for no more than two reads of a table.

/// The order that the last table gave, and how far it was followed.
#[derive(Default)]
pub struct Plan {
    /// Most reads in it.
    max: usize,
    table: Table,
    /// Its reads above and below the head, each nearest first.
    sides: [Vec<Queued>; 2],
    /// The reads in order; some may have gone otherwise.
    pub order: Vec<Queued>,
    /// Number of them that have been looked at.
    next: usize,
    /// Is it not to be followed any more?
    stale: bool,
    /// Reads have arrived that it does not know, though it stands.
    joined: bool,
    /// Requests that have to go before another one is made for more reads than it takes.
    rest: usize,
    /// Plans made until now, shown as the metric `plans`.
    pub made: u64,
}

impl Plan {
    /// No plan; one will take the `max` reads nearest to the head.
    pub fn new(max: usize) -> Self {
        Plan { max, stale: true, ..Plan::default() }
    }

    /// A read has joined the others.
    pub fn arrived(&mut self, reads: &LbaQueue) {
        self.joined = true;
        self.stale |= reads.len() <= self.max;
    }

    /// A request goes, by whatever rule.
    pub fn sent(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    /// The head has moved to where the plan did not send it.
    pub fn break_off(&mut self) {
        self.stale = true;
    }

    /// The next read, of a new plan if the old one is no longer good. Some read is
    /// pending. `None` when it is too early for a new plan.
    pub fn next(&mut self, head: Lba, reads: &LbaQueue, pool: &Pool) -> Option<RequestId> {
        if !self.stale {
            while let Some(&(lba, id)) = self.order.get(self.next) {
                // Hits and detached machines' reads are gone, and perhaps their slots
                // are taken again.
                let is_same = |r: &Request| r.op == Op::Read && r.extent.start() == lba;
                if pool.get(id).is_some_and(is_same) {
                    let passed = if self.joined { passed_between(head, lba, reads) } else { None };
                    return Some(passed.unwrap_or(id));
                }
                self.next += 1;
            }
        }
        if self.rest > 0 && reads.len() > self.max {
            return None;
        }
        self.make(head, reads);
        self.order.first().map(|&(_, id)| id)
    }

    /// A plan of the reads that are nearest to the head.
    fn make(&mut self, head: Lba, reads: &LbaQueue) {
        let mut above = reads.ascending(head).peekable();
        let mut below = reads.descending(head).peekable();
        self.table.clear();
        self.sides.iter_mut().for_each(Vec::clear);
        for _ in 0..self.max {
            let distance = |&(lba, _): &Queued| lba.distance(head).get();
            let (side, next) = match (above.peek().map(distance), below.peek().map(distance)) {
                (Some(up), Some(down)) if down < up => (Side::Below, below.next()),
                (None, Some(_)) => (Side::Below, below.next()),
                _ => (Side::Above, above.next()),
            };
            let Some(next) = next else { break };
            self.table.push(side, distance(&next));
            self.sides[side as usize].push(next);
        }
        let Plan { table, sides: [above, below], order, .. } = self;
        order.clear();
        let (mut above, mut below) = (above.iter(), below.iter());
        table.solve(|side| {
            let next = if side == Side::Above { above.next() } else { below.next() };
            order.extend(next);
        });
        (self.next, self.stale, self.joined) = (0, false, false);
        self.rest = if reads.len() > self.max { self.max / 2 } else { 0 };
        self.made += 1;
    }
}

/// The first read that the head passes on its way to `lba`.
fn passed_between(head: Lba, lba: Lba, reads: &LbaQueue) -> Option<RequestId> {
    let passed = match lba < head {
        true => reads.before(head).filter(|&(at, _)| at > lba),
        false => reads.at_or_after(head).filter(|&(at, _)| at < lba),
    };
    passed.map(|(_, id)| id)
}

#[cfg(test)]
mod plan_tests {
    use super::*;
    use seekway_core::request::{Extent, VmId};
    use seekway_core::units::{Instant, Sectors};

    fn insert(reads: &mut LbaQueue, pool: &mut Pool, slot: u32, lba: u64) {
        let extent = Extent::new(Lba::new(lba), Sectors::new(8)).unwrap();
        let (id, vm, arrived) = (RequestId::new(slot), VmId::new(0), Instant::ZERO);
        let read = Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived };
        reads.insert(&read);
        pool.insert(read);
    }

    #[test]
    fn a_read_in_the_slot_of_one_that_was_planned_is_another() {
        let (mut reads, mut pool, mut plan) = (LbaQueue::new(), Pool::new(), Plan::new(2));
        for (slot, lba) in [(0, 1_000), (1, 2_000), (2, 3_000), (3, 4_000)] {
            insert(&mut reads, &mut pool, slot, lba);
        }
        assert_eq!(plan.next(Lba::ZERO, &reads, &pool), Some(RequestId::new(0)));
        // It goes, the second is withdrawn, and a distant one has its slot.
        for slot in [0, 1] {
            reads.remove(&pool.take(RequestId::new(slot)));
        }
        insert(&mut reads, &mut pool, 1, 900_000);
        plan.arrived(&reads);
        let head = Lba::new(1_008);
        assert_eq!(plan.next(head, &reads, &pool), None, "too early for another plan");
        plan.sent();
        assert_eq!(plan.next(head, &reads, &pool), Some(RequestId::new(2)));
        assert_eq!(plan.made, 2);
    }
}
