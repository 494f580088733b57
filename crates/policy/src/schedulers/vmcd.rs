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
//! C credits ([`channels`]). C is what the device is expected to serve in the
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

use crate::entry::{Entry, Starves};
use crate::runs::{BACK_SEEK_MAX, BACK_SEEK_PENALTY};
use channels::{Channels, LastPeriod};
use seekway_core::means::Mean;
use seekway_core::mix::Draws;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool, choose};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos};

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
    starves: &[Starves {
        with: "batch=1000",
        why: "a VM's late requests go between rounds, one for each: a long batch has passed many more",
    }],
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

// The pending queue of a channel: one VM's requests by place and by age.
// `vmcd-time` uses it too.

/// A longer way is a seek to CFQ (`CFQQ_SEEK_THR`), in sectors.
const SEEK_MIN: u64 = 800;

/// Index of a request's deadline: reads and writes have one each.
pub fn kind(request: &Request) -> usize {
    (request.op != Op::Read) as usize
}

/// One VM's queued requests.
#[derive(Default)]
pub(super) struct Pending {
    sorted: LbaQueue,
    /// Reads and writes, each by age.
    fifos: [ExpiryQueue; 2],
    /// Where its last dispatched request ended.
    position: Lba,
}

impl Pending {
    pub fn len(&self) -> usize {
        self.sorted.len()
    }
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub fn insert(&mut self, links: &mut Links, request: &Request) {
        self.sorted.insert(request);
        self.fifos[kind(request)].push(links, request.id);
    }

    /// Take out a request that leaves unserved.
    pub fn withdraw(&mut self, links: &mut Links, request: &Request) {
        self.sorted.remove(request);
        self.fifos[kind(request)].remove(links, request.id);
    }

    /// Take out a request that is dispatched.
    pub fn take(&mut self, links: &mut Links, request: &Request) {
        self.withdraw(links, request);
        self.position = request.extent.end();
    }

    /// The next in the channel's own order: CFQ's choose rule from where its
    /// last request ended, wherever others have moved the head since.
    pub fn next(&self) -> Option<RequestId> {
        choose(&self.sorted, self.position, BACK_SEEK_MAX, BACK_SEEK_PENALTY).map(|(_, id)| id)
    }

    /// Is this request near the last one, so that CFQ would not call it a seek?
    pub fn is_near(&self, request: &Request) -> bool {
        request.extent.start().get().abs_diff(self.position.get()) <= SEEK_MIN
    }

    /// The request that begins where the last one ended.
    pub fn following(&self) -> Option<RequestId> {
        let (lba, id) = self.sorted.at_or_after(self.position)?;
        (lba == self.position).then_some(id)
    }

    /// The request whose deadline comes first, with that deadline; reads and writes expire `expire`
    /// after their arrival.
    pub fn most_urgent(&self, pool: &Pool, expire: [Nanos; 2]) -> Option<(Instant, RequestId)> {
        let first = |kind: usize| {
            let oldest = pool.get(self.fifos[kind].head()?)?;
            Some((oldest.arrived + expire[kind], oldest.id))
        };
        match (first(0), first(1)) {
            (Some(read), Some(write)) => Some(if write.0 < read.0 { write } else { read }),
            (read, write) => read.or(write),
        }
    }

    /// The request that has waited longest.
    pub fn oldest<'a>(&self, pool: &'a Pool) -> Option<&'a Request> {
        let (_, id) = self.most_urgent(pool, [Nanos::ZERO; 2])?;
        pool.get(id)
    }
}

// The most urgent deadline of each channel: a tournament tree, in which the
// first channel that is about to be late is found in the logarithm of their
// number.

/// No deadline comes before this.
const NEVER: u64 = u64::MAX;

/// The deadlines by channel, in nanoseconds.
#[derive(Default)]
pub struct Deadlines {
    /// Node `n` has the least of nodes `2n` and `2n + 1`; channel `i` is node
    /// `len / 2 + i`. The length is zero or a power of two.
    nodes: Vec<u64>,
}

impl Deadlines {
    /// Sets the deadline of channel `at`; `None` removes it.
    pub fn set(&mut self, at: usize, deadline: Option<Instant>) {
        if at >= self.nodes.len() / 2 {
            self.grow(at + 1);
        }
        let mut node = self.nodes.len() / 2 + at;
        self.nodes[node] = deadline.map_or(NEVER, Instant::as_nanos);
        while node > 1 {
            let least = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if std::mem::replace(&mut self.nodes[node], least) == least {
                break;
            }
        }
    }

    /// The first channel, from `from` on, whose deadline comes before `limit`.
    pub fn first_before(&self, limit: Instant, from: usize) -> Option<usize> {
        let (limit, leaves) = (limit.as_nanos(), self.nodes.len() / 2);
        if from >= leaves {
            return None;
        }
        let mut node = leaves + from;
        while self.nodes[node] >= limit {
            // The next subtree to the right, as large as its place allows.
            node += 1;
            node >>= node.trailing_zeros();
            if node == 1 {
                return None;
            }
        }
        while node < leaves {
            node = 2 * node + usize::from(self.nodes[2 * node] >= limit);
        }
        Some(node - leaves)
    }

    fn grow(&mut self, channels: usize) {
        let leaves = channels.next_power_of_two();
        let old = &self.nodes[self.nodes.len() / 2..];
        let mut nodes = vec![NEVER; 2 * leaves];
        nodes[leaves..leaves + old.len()].copy_from_slice(old);
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node].min(nodes[2 * node + 1]);
        }
        self.nodes = nodes;
    }
}

#[cfg(test)]
mod deadlines_tests {
    use super::*;
    use seekway_core::mix::Draws;

    #[test]
    fn deadlines_agree_with_a_list() {
        let (mut deadlines, mut list) = (Deadlines::default(), vec![NEVER; 90]);
        let mut random = Draws::new(3);
        for step in 0..20_000 {
            let at = random.below(90.min(1 + step / 50)) as usize;
            let deadline = Some(random.below(30)).filter(|&deadline| deadline < 20);
            list[at] = deadline.unwrap_or(NEVER);
            deadlines.set(at, deadline.map(Instant::from_nanos));
            let (limit, from) = (random.below(22), random.below(95) as usize);
            let expected = (from..90).find(|&at| list[at] < limit);
            let found = deadlines.first_before(Instant::from_nanos(limit), from);
            assert_eq!(found, expected, "step {step}: before {limit}, from {from}");
        }
    }
}

/// The rules of VMCD, one by one. VM `n` reads at multiples of `n` gigasectors.
#[cfg(test)]
mod tests {
    use crate::schedulers::tests::Rig;
    use seekway_core::request::VmId;

    const GIGA: u64 = 1_000_000_000;

    /// A request of each VM at each of these places in its region.
    fn reads(rig: &mut Rig, vm: u16, places: impl IntoIterator<Item = u64>) {
        rig.reads(vm, places.into_iter().map(|place| u64::from(vm) * GIGA + place));
    }

    /// Serve `n` requests of `us` each; whose they were.
    fn serve(rig: &mut Rig, n: usize, us: u64) -> Vec<u64> {
        (0..n).map(|_| rig.serve(us) / GIGA).collect()
    }

    fn credits(rig: &Rig) -> [f64; 4] {
        [0, 1, 2, 3].map(|vm| rig.vm_metric(vm, "credits_left").unwrap())
    }

    /// Replenishments by (period, spare, exhaustion).
    fn causes(rig: &Rig) -> (f64, f64, f64) {
        let by = |cause| rig.metric(&format!("replenished_by_{cause}"));
        (by("period"), by("spare"), by("exhaustion"))
    }

    #[test]
    fn credits_follow_the_queues_and_run_out_together() {
        let mut rig = Rig::new("vmcd");
        reads(&mut rig, 0, [0, 100, 200, 300, 400]);
        reads(&mut rig, 1, [0, 100]);
        // Nothing is known of the device: a credit for each request, and one is gone.
        let first = rig.serve(100) / GIGA;
        let mut left = [5.0, 2.0, 0.0, 0.0];
        left[first as usize] -= 1.0;
        assert_eq!((credits(&rig), causes(&rig)), (left, (0.0, 0.0, 1.0)));
        // A channel that wakes has to wait; the others' credits go first.
        reads(&mut rig, 2, [0]);
        assert!(!serve(&mut rig, 6, 100).contains(&2));
        assert_eq!(causes(&rig), (0.0, 0.0, 1.0));
        assert_eq!(serve(&mut rig, 1, 100), [2]);
        assert_eq!(causes(&rig), (0.0, 0.0, 2.0));
    }

    #[test]
    fn a_period_is_as_long_as_the_longest_remaining_deadline() {
        for (write, period_ms) in [(false, 125), (true, 250)] {
            let mut rig = Rig::new("vmcd:batch=1");
            reads(&mut rig, 0, (0..600).map(|i| 100 * i));
            if write {
                rig.write(1, GIGA);
            }
            for ms in 0..period_ms {
                assert_eq!(causes(&rig).0, 0.0, "after {ms} ms");
                rig.serve(1_000);
            }
            rig.serve(1_000);
            rig.serve(1_000);
            assert_eq!(
                causes(&rig),
                (1.0, 0.0, 1.0),
                "the credits of a period, and not all consumed"
            );
        }
    }

    #[test]
    fn spare_credits_are_dealt_out_anew_when_more_came_than_any_consumed() {
        let scene = |first: u64, newcomers: u64| {
            let mut rig = Rig::new("vmcd");
            // The last period: `first` credits each, all consumed.
            for vm in [0, 1] {
                reads(&mut rig, vm, (0..first).map(|i| 100 * i));
            }
            serve(&mut rig, 2 * first as usize, 100);
            // This one: six each; four are consumed in a round while others come.
            for vm in [0, 1] {
                reads(&mut rig, vm, (0..6).map(|i| 100 * i));
            }
            serve(&mut rig, 4, 100);
            reads(&mut rig, 2, (0..newcomers).map(|i| 100 * i));
            serve(&mut rig, 1, 100);
            causes(&rig)
        };
        // Eight are unused, three are more than the two that each consumed.
        assert_eq!(scene(2, 3), (0.0, 1.0, 2.0));
        assert_eq!(scene(2, 2), (0.0, 0.0, 2.0), "no more arrivals than were consumed");
        assert_eq!(scene(2, 0), (0.0, 0.0, 2.0), "no channel wants credits");
        assert_eq!(
            scene(8, 9),
            (0.0, 0.0, 2.0),
            "eight unused are not more than the least allotted"
        );
        assert_eq!(scene(7, 9), (0.0, 1.0, 2.0), "eight are more than seven");
    }

    #[test]
    fn a_slow_device_has_no_more_credits_than_it_serves_in_a_period() {
        let mut rig = Rig::new("vmcd:batch=1");
        reads(&mut rig, 0, [0]);
        rig.serve(10_000);
        reads(&mut rig, 0, (0..60).map(|i| 100 * i));
        reads(&mut rig, 1, (0..30).map(|i| 100 * i));
        rig.serve(10_000);
        // 125 ms / 10 ms = 12 credits for 90 requests.
        let [a, b, ..] = credits(&rig);
        assert_eq!(a + b, 11.0, "{a}, {b}");
        assert!((7.0..=8.0).contains(&a), "{a}");
    }

    #[test]
    fn the_winner_sends_four_in_the_order_of_the_choose_rule() {
        let mut rig = Rig::new("vmcd");
        reads(&mut rig, 1, [900, 500, 700, 100, 300, 1_100]);
        let lbas: Vec<u64> = (0..6).map(|_| rig.serve(100) - GIGA).collect();
        assert_eq!(lbas, [100, 300, 500, 700, 900, 1_100]);
        assert_eq!(rig.metric("rounds"), 2.0);
    }

    #[test]
    fn a_continuation_costs_a_credit_too() {
        let mut rig = Rig::new("vmcd");
        reads(&mut rig, 0, [0, 8, 16, 24, 32]);
        // As the dispatcher does for one command: no input in between.
        for n in 1..=4 {
            rig.dispatch();
            assert_eq!(credits(&rig)[0], 5.0 - f64::from(n));
        }
    }

    /// VMs that always have these numbers of requests queued: the shares and the order of `n`
    /// dispatches.
    fn steady(spec: &str, weights: &[u32], queued: &[u64], n: usize) -> (Vec<f64>, Vec<u64>) {
        let mut rig = Rig::with_weights(spec, weights);
        for (vm, &len) in queued.iter().enumerate() {
            reads(&mut rig, vm as u16, (0..len).map(|i| 100 * i));
        }
        let (mut shares, mut order) = (vec![0.0; weights.len()], Vec::new());
        for i in 0..n as u64 {
            let vm = rig.serve(100) / GIGA;
            reads(&mut rig, vm as u16, [100 * (i % 5_000)]);
            shares[vm as usize] += 1.0 / n as f64;
            order.push(vm);
        }
        (shares, order)
    }

    #[test]
    fn the_lottery_is_won_in_proportion_to_credits() {
        for seed in 1..=5 {
            let (shares, order) =
                steady(&format!("vmcd:seed={seed}"), &[1; 3], &[30, 20, 10], 20_000);
            for (share, expected) in shares.iter().zip([1.0 / 2.0, 1.0 / 3.0, 1.0 / 6.0]) {
                // Not exact: the last to have credits left may see a replenishment for the others.
                assert!((share - expected).abs() < 0.03, "seed {seed}: {shares:?}");
            }
            let again = steady(&format!("vmcd:seed={seed}"), &[1; 3], &[30, 20, 10], 20_000);
            assert!(order == again.1, "seed {seed}: another schedule");
            let other = steady(&format!("vmcd:seed={}", seed + 5), &[1; 3], &[30, 20, 10], 20_000);
            assert!(order != other.1, "seeds {seed} and {}: the same schedule", seed + 5);
        }
    }

    #[test]
    fn weights_scale_credits() {
        let (shares, _) = steady("vmcd", &[1, 2, 4], &[20; 3], 20_000);
        for (share, expected) in shares.iter().zip([1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]) {
            assert!((share - expected).abs() < 0.02, "{shares:?}");
        }
    }

    #[test]
    fn a_head_about_to_be_late_goes_after_the_round_for_a_credit() {
        let mut rig = Rig::new("vmcd:seed=1");
        reads(&mut rig, 0, (0..40).map(|i| 100 * i));
        reads(&mut rig, 3, [0]);
        // Two rounds of VM 0; at 160 ms the first that came, of each channel, is late.
        assert_eq!(serve(&mut rig, 10, 20_000), [0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(rig.metric("late_dispatches"), 2.0);
    }

    #[test]
    fn a_late_head_without_a_credit_waits() {
        let mut rig = Rig::new("vmcd:seed=1");
        reads(&mut rig, 0, (0..40).map(|i| 100 * i));
        rig.serve(20_000);
        reads(&mut rig, 3, [0]);
        // Late at 145 ms. The pass at 160 ms has one for VM 0 alone; the period is over since
        // 125 ms, and the draw after the pass replenishes.
        assert_eq!(serve(&mut rig, 8, 20_000), [0; 8]);
        assert_eq!((rig.metric("late_dispatches"), causes(&rig).0), (1.0, 0.0));
        // Its head is late, and has a credit now: in this round, by the draw or by the pass.
        assert!(serve(&mut rig, 6, 20_000).contains(&3));
        assert_eq!((causes(&rig).0, causes(&rig).1), (1.0, 0.0));
    }

    #[test]
    fn nobody_starves_beside_a_flood() {
        for seed in 1..=5 {
            let mut rig = Rig::new(&format!("vmcd:seed={seed}"));
            reads(&mut rig, 0, (0..64).map(|i| 100 * i));
            let (mut arrived, mut longest_ms) = (None, 0);
            for i in 0..20_000u64 {
                if arrived.is_none() && i % 100 == 50 {
                    arrived = Some(rig.now);
                    reads(&mut rig, 1, [i]);
                }
                match rig.serve(8_000) / GIGA {
                    0 => reads(&mut rig, 0, [100 * i]),
                    _ => {
                        let waited = rig.now - arrived.take().unwrap();
                        longest_ms = longest_ms.max(waited.get() / 1_000_000);
                    }
                }
            }
            // At most the rest of a period without a credit, and then until its deadline and to
            // the end of a round (four, and two that are late).
            assert!(longest_ms <= 125 + 125 + 7 * 8, "seed {seed}: {longest_ms} ms");
        }
    }

    #[test]
    fn detach_in_mid_round_hands_back_all_in_order() {
        let mut rig = Rig::new("vmcd:seed=1");
        reads(&mut rig, 0, [900, 500, 700, 100, 300, 1_100]);
        reads(&mut rig, 3, [0]);
        assert_eq!(serve(&mut rig, 2, 100), [0, 0]);
        let now = rig.now;
        let returned = rig.policy.detach(now, VmId::new(0));
        let places: Vec<u64> = returned.iter().map(|r| r.extent.start().get()).collect();
        assert_eq!(places, [900, 500, 700, 1_100], "the order of arrival, without 100 and 300");
        assert_eq!(serve(&mut rig, 1, 100), [3]);
        assert!(rig.is_idle());
        assert_eq!(rig.vm_metric(0, "queued"), None);
        assert_eq!(causes(&rig), (0.0, 0.0, 1.0));
    }

    #[test]
    fn the_monitor_shows_what_the_paper_keeps() {
        let mut rig = Rig::new("vmcd");
        reads(&mut rig, 0, [0, 100, 200]);
        serve(&mut rig, 3, 100);
        reads(&mut rig, 0, (0..10).map(|i| 100 * i));
        serve(&mut rig, 1, 1_000);
        let shown = ["queued", "credits_allotted", "dispatched", "credits_left"]
            .map(|name| rig.vm_metric(0, name).unwrap());
        assert_eq!(shown, [9.0, 3.0, 3.0, 9.0]);
        assert_eq!(rig.vm_metric(0, "deadline_left_ms"), Some(125.0));
        assert_eq!(rig.vm_metric(0, "waited_ms"), Some(1.0));
        assert_eq!(rig.vm_metric(1, "waited_ms"), None, "nothing waits there");
    }

    /// A stream in which the next request comes when the last one is done.
    #[test]
    fn with_idle_a_turn_waits_for_the_winners_next_request() {
        let mut rig = Rig::new("vmcd:idle=4ms,credits=period");
        // What a request takes has to be known: 0.1 ms, so that 1,250 are served in a period.
        for vm in [0, 1] {
            reads(&mut rig, vm, [0]);
            rig.serve(100);
        }
        (0..2).for_each(|vm| reads(&mut rig, vm, [8]));
        let winner = rig.serve(100) / GIGA;
        let next = 16;
        assert_eq!(rig.hold_us("anticipation"), 4_000);
        reads(&mut rig, winner as u16, [next]);
        assert_eq!(rig.serve(100), winner * GIGA + next, "its turn goes on");
        rig.wait_ms(4);
        assert_eq!(rig.serve(100) / GIGA, 1 - winner, "it has waited long enough");
    }

    #[test]
    fn what_is_late_needs_a_credit_unless_it_is_free() {
        for (spec, free) in [("vmcd:batch=1", false), ("vmcd:batch=1,late=free", true)] {
            let mut rig = Rig::new(spec);
            rig.writes(0, (0..4).map(|i| 100 * i));
            // Four credits for a period of 250 ms; then a channel without one comes.
            serve(&mut rig, 1, 1_000);
            reads(&mut rig, 1, [0]);
            rig.wait_ms(200);
            let order = serve(&mut rig, 2, 1_000);
            assert_eq!(order.contains(&1), free, "{spec}: {order:?}");
        }
    }
}
