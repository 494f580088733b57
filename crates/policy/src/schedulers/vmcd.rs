//! **vmcd**: a channel and a pending queue for each VM, credits by the length
//! of the queues, a lottery among those that have some, and a pass for
//! requests that are about to be late.
//!
//! Source: Tan, Li, He, Li, Hwang, "VMCD: A Virtual Multi-Channel Disk I/O
//! Scheduling Method for Virtual Machines", section 3 (equations 3 to 8,
//! algorithm 1), with what algorithms.md, section 4, corrects.
//!
//! *Credits.* One credit is one dispatch of a guest's request, as this policy
//! sees it: a request that the dispatcher coalesces into the command of the one
//! before costs a credit too. At a replenishment all earlier credits lapse, and
//! a channel with R_i requests and weight w_i gets R_i·w_i / Σ R_j·w_j of
//! C credits ([`credits`]). C is what the device is expected to serve in the
//! coming period, T over the mean service time; or Σ R when that is less: then
//! the device is *under-used*, for all that is queued would be done before the
//! period is over. (The paper gives no rule.) A channel whose queue is empty
//! gets none, and its next request waits for the next replenishment.
//!
//! *Replenishment*, looked at when a round begins: (1) the period T is over;
//! (2) a channel has work and no credits, more credits are unused than any
//! channel got at least last period (L_t), and more requests have arrived than
//! any channel consumed last period; (3) no channel with work has a credit, in
//! which case the paper would idle the disk. T is the longest time that a queued
//! request has left to its deadline, but never less than a round; with empty
//! queues the longer of the original deadlines.
//!
//! *A round* (algorithm 1): a lottery, credits being tickets; the winner sends
//! its next `batch` requests, as far as it has requests and credits, in the
//! order of CFQ's choose rule; then each channel whose most urgent request has
//! less time left than a round takes sends that one, if it has a credit. T_s,
//! the time of a round, is the mean from draw to draw, rounds that ran out of
//! work left out.
//!
//! *What the paper leaves open* has parameters. Its scheduler extends CFQ and
//! does not say whether CFQ's waiting stays: with `idle`, a winner whose queue
//! runs empty keeps its turn that long, unless its last request sought further
//! than CFQ allows. Its constants α and β decide how many credits there are:
//! `credits=period` gives what the device serves in a period, however little is
//! queued. Algorithm 1 does not ask for a credit in the pass: `late=free`.
//!
//! The time that a request took from its creation to this queue (T_c) is not
//! known here and taken as zero.

mod channels;
mod credits;
mod deadlines;
mod lottery;
mod mean;
mod pending;
#[cfg(test)]
mod tests;

pub(super) use mean::Mean;
pub(super) use pending::Pending;
use pending::kind;

use super::Entry;
use channels::{Channels, LastPeriod};
use seekway_core::mix::Draws;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, Links, Pool};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("batch", Kind::Count(1, 1_000_000), "4",
        "requests that the winner of a lottery sends at most"),
    param("idle", Kind::Duration, "0ms",
        "how long the winner's turn waits for its next request; at most 1s"),
    param("credits", Kind::Choice(&["queued", "period"]), "queued",
        "queued: no more credits than queued requests; period: what the device serves in a period"),
    param("late", Kind::Choice(&["credit", "free"]), "credit",
        "credit: the pass for late requests takes a credit for each; free: it needs none"),
    param("seed", Kind::Count(0, u64::MAX), "1",
        "of the lottery: the same seed, the same schedule"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "vmcd",
    summary: "a channel for each VM, credits by queue length, a lottery and deadlines",
    source: "the VMCD paper, section 3, corrected (algorithms.md, section 4)",
    params: PARAMS,
    holds: &[ANTICIPATION],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(Vmcd::new(params)?)),
};

/// The original deadlines of reads and of writes: CFQ's.
pub(super) const EXPIRE: [Nanos; 2] = [Nanos::from_millis(125), Nanos::from_millis(250)];
/// Held for the winner of the lottery.
const ANTICIPATION: &str = "anticipation";
/// Time that a turn waits for a command that the device does not complete.
const STALL: Nanos = Nanos::from_secs(1);

/// Rest of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Round {
    /// Nothing: a new one begins.
    #[default]
    Over,
    /// The winner may send `left` more; then comes the pass.
    Batch { winner: usize, left: u64 },
    /// The pass has looked at the channels below this.
    Pass { next: usize },
}

/// Replenishments by their cause.
#[derive(Default)]
struct Causes {
    period: u64,
    spare: u64,
    exhausted: u64,
}

#[derive(Default)]
struct Vmcd {
    batch: u64,
    idle: Nanos,
    /// Credits are what the device serves in a period, however little is queued.
    by_period: bool,
    late_is_free: bool,
    /// The winner's turn waits until then for its next request.
    wait: Option<Instant>,
    queued: Pool,
    channels: Channels,
    links: Links,
    /// Reads and writes of all channels by age.
    ages: [ExpiryQueue; 2],
    age_links: Links,
    generator: Draws,
    round: Round,
    /// When the running period ends; `None` before the first.
    period_ends: Option<Instant>,
    last_period: Option<LastPeriod>,
    /// Arrivals since the last replenishment.
    arrivals: u64,
    /// Mean time that the device takes for a request.
    service: Mean,
    /// Mean time of a round, T_s, and when the running one began.
    round_time: Mean,
    round_began: Option<Instant>,
    /// Time of the latest input.
    now: Instant,
    rounds: u64,
    late: u64,
    causes: Causes,
}

impl Vmcd {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let late_is_free = params.choice("late") == "free";
        Ok(Vmcd {
            batch: params.count("batch"),
            idle: params.duration_within("idle", Nanos::ZERO, HOLD_MAX)?,
            by_period: params.choice("credits") == "period",
            late_is_free,
            channels: Channels::new(EXPIRE, late_is_free),
            generator: Draws::new(params.count("seed")),
            ..Vmcd::default()
        })
    }

    /// Equation 7: the longest time left over all queues; their youngest
    /// requests have it. With empty queues the longer original deadline.
    fn longest_left(&self, now: Instant) -> Nanos {
        let left = |kind: usize| {
            let youngest = self.queued.get(self.ages[kind].tail()?)?;
            Some((youngest.arrived + EXPIRE[kind]).since(now))
        };
        match (left(0), left(1)) {
            (None, None) => EXPIRE[0].max(EXPIRE[1]),
            (read, write) => read.max(write).unwrap_or(Nanos::ZERO),
        }
    }

    /// Replenish, if one of the conditions holds. Some request is queued.
    fn replenish_if_due(&mut self, now: Instant) {
        let spare = || {
            self.channels.wanting() > 0
                && self.last_period.as_ref().is_some_and(|last| {
                    self.channels.unused() > last.least_allotted
                        && self.arrivals > last.most_dispatched
                })
        };
        if self.channels.tickets().total() == 0 {
            self.causes.exhausted += 1;
        } else if self.period_ends.is_some_and(|end| end <= now) {
            self.causes.period += 1;
        } else if spare() {
            self.causes.spare += 1;
        } else {
            return;
        }
        self.replenish(now);
    }

    fn replenish(&mut self, now: Instant) {
        let round = self.round_time.get().unwrap_or(Nanos::ZERO);
        let period = self.longest_left(now).max(round).max(Nanos::new(1));
        // Another channel goes first each time, so that ties favour nobody for long.
        let replenishments = self.causes.period + self.causes.spare + self.causes.exhausted;
        let first = (replenishments % self.channels.len().max(1) as u64) as usize;
        let queued = self.queued.len() as u64;
        self.last_period = self.channels.replenish(self.amount(period, queued), queued, first);
        self.period_ends = Some(now + period);
        self.arrivals = 0;
    }

    /// C: what the device serves in a period, at most what is queued unless `credits=period`.
    fn amount(&self, period: Nanos, queued: u64) -> u64 {
        match self.service.get().map(|service| period.get() / service.get().max(1)) {
            Some(served) if self.by_period => served,
            Some(served) => served.min(queued),
            None => queued,
        }
    }

    /// Begin a round. Some request is queued.
    fn draw(&mut self, now: Instant) {
        self.replenish_if_due(now);
        if let Some(began) = self.round_began.replace(now) {
            self.round_time.learn(now.since(began));
        }
        self.rounds += 1;
        let tickets = self.channels.tickets();
        let number = self.generator.below(tickets.total());
        let winner = tickets.holder(number).expect("a channel with work has a credit");
        let channel = self.channels.get(winner).expect("a ticket is held by a channel");
        let queued = channel.pending.len() as u64;
        let most = if self.idle == Nanos::ZERO { queued } else { self.batch };
        let left = self.batch.min(channel.credits).min(most);
        self.round = Round::Batch { winner, left };
        self.wait = None;
    }

    /// The next channel from `from` on whose most urgent request is about to
    /// be late (T_f < T_s) and may go: that channel and the request.
    fn next_late(&mut self, now: Instant, from: usize) -> Option<(usize, RequestId)> {
        let round = self.round_time.get().unwrap_or(Nanos::ZERO);
        // Some request is late at all?
        if self.earliest_deadline()? >= now + round {
            return None;
        }
        self.channels.late(&self.queued, now + round, from)
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        let first = |kind: usize| {
            let oldest = self.queued.get(self.ages[kind].head()?)?;
            Some(oldest.arrived + EXPIRE[kind])
        };
        [first(0), first(1)].into_iter().flatten().min()
    }

    /// Send the winner's next request, after which `left` may follow.
    fn dispatch_in_turn(&mut self, now: Instant, vm: usize, id: RequestId, left: u64) -> Decision {
        self.round = Round::Batch { winner: vm, left };
        let waits = self.idle > Nanos::ZERO && left > 0 && self.is_worth_waiting_for(vm, id);
        self.wait = waits.then(|| now + STALL);
        self.dispatch(vm, id)
    }

    /// Would CFQ wait for what follows this request? It is synchronous and near the last one.
    fn is_worth_waiting_for(&self, vm: usize, id: RequestId) -> bool {
        let request = self.queued.get(id).filter(|request| request.sync);
        let channel = self.channels.get(vm);
        request.zip(channel).is_some_and(|(request, channel)| channel.pending.is_near(request))
    }

    /// Send a queued request of channel `vm` for one credit; a late one may go without.
    fn dispatch(&mut self, vm: usize, id: RequestId) -> Decision {
        let request = self.queued.take(id);
        self.ages[kind(&request)].remove(&mut self.age_links, id);
        self.channels.change(vm, |channel| {
            channel.pending.take(&mut self.links, &request);
            if channel.credits > 0 || !self.late_is_free {
                channel.spend();
            }
        });
        if self.queued.is_empty() && self.wait.is_some() {
            self.round_began = None;
        } else if self.queued.is_empty() {
            // What comes next finds a new round, and this one has no honest length.
            (self.round, self.round_began) = (Round::Over, None);
        }
        Decision::Dispatch(id)
    }
}

impl Scheduler for Vmcd {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        self.now = now;
        self.channels.attach(vm, u64::from(spec.weight.get()));
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        self.now = now;
        let leaving = self.queued.take_vm(vm);
        for request in &leaving {
            self.ages[kind(request)].remove(&mut self.age_links, request.id);
        }
        self.channels.detach(vm);
        match self.round {
            _ if self.queued.is_empty() => (self.round, self.round_began) = (Round::Over, None),
            Round::Batch { winner, .. } if winner == vm.index() => {
                self.round = Round::Pass { next: 0 };
            }
            _ => {}
        }
        leaving
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        self.now = now;
        let request = self.queued.take(id);
        self.ages[kind(&request)].remove(&mut self.age_links, id);
        self.channels.change(request.vm.index(), |channel| {
            channel.pending.withdraw(&mut self.links, &request);
        });
        if self.queued.is_empty() {
            (self.round, self.round_began) = (Round::Over, None);
        }
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.now = now;
        self.arrivals += 1;
        self.queued.insert(request);
        self.ages[kind(&request)].push(&mut self.age_links, request.id);
        self.channels.change(request.vm.index(), |channel| {
            channel.pending.insert(&mut self.links, &request);
        });
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.now = now;
        self.service.learn(completion.service);
        if let Round::Batch { winner, .. } = self.round
            && winner == completion.request.vm.index()
            && self.wait.is_some()
        {
            self.wait = Some(now + self.idle);
        }
    }

    fn decide(&mut self, now: Instant, _device: &DeviceView<'_>) -> Decision {
        self.now = now;
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        loop {
            match self.round {
                Round::Over => self.draw(now),
                Round::Batch { winner, left } => {
                    let channel = self.channels.get(winner);
                    let next = channel.filter(|_| left > 0).and_then(|c| c.pending.next());
                    if let Some(id) = next {
                        return self.dispatch_in_turn(now, winner, id, left - 1);
                    }
                    match self.wait.filter(|&until| now < until && left > 0) {
                        Some(until) => return Decision::Hold { until, why: ANTICIPATION },
                        None => (self.round, self.wait) = (Round::Pass { next: 0 }, None),
                    }
                }
                Round::Pass { next } => match self.next_late(now, next) {
                    Some((vm, id)) => {
                        self.round = Round::Pass { next: vm + 1 };
                        self.late += 1;
                        return self.dispatch(vm, id);
                    }
                    None => self.round = Round::Over,
                },
            }
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("rounds", self.rounds as f64);
        sink("late_dispatches", self.late as f64);
        sink("replenished_by_period", self.causes.period as f64);
        sink("replenished_by_spare", self.causes.spare as f64);
        sink("replenished_by_exhaustion", self.causes.exhausted as f64);
        sink("round_ms", self.round_time.get().unwrap_or(Nanos::ZERO).as_millis_f64());
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        for (vm, channel) in self.channels.iter() {
            sink("queued", vm, channel.pending.len() as f64);
            sink("credits_allotted", vm, channel.allotted_before as f64);
            sink("dispatched", vm, channel.dispatched_before as f64);
            sink("credits_left", vm, channel.credits as f64);
            // The most urgent request: its deadline as it came, and its wait until now.
            let urgent = channel.pending.most_urgent(&self.queued, EXPIRE);
            if let Some((deadline, request)) =
                urgent.and_then(|(deadline, id)| Some((deadline, self.queued.get(id)?)))
            {
                let [span, waited] = [deadline, self.now].map(|t| t.since(request.arrived));
                sink("deadline_left_ms", vm, span.as_millis_f64());
                sink("waited_ms", vm, waited.as_millis_f64());
            }
        }
    }
}
