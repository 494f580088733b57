//! The channels and their credits: who has how many, and who may send.
//!
//! Busy channels run out of credits all the time, so that a replenishment comes
//! with almost every round. It must not cost a look at every channel: where the
//! credits follow from a channel's own queue ([`Rule`]), and did last time, only
//! the channels that something has happened to since are looked at.

use super::{Deadlines, Pending};
use seekway_core::queues::Pool;
use seekway_core::request::{RequestId, VmId};
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;

/// A VM's pending requests and its credits.
#[derive(Default)]
pub struct Channel {
    weight: u64,
    pub pending: Pending,
    /// L'_i: credits that it has now (algorithms.md, section 4).
    pub credits: u64,
    /// Credits allotted and consumed since the last replenishment.
    allotted: u64,
    dispatched: u64,
    /// As the two above, in the period before (L_c, L_b).
    pub allotted_before: u64,
    pub dispatched_before: u64,
    /// Something has happened to it since the last replenishment.
    is_touched: bool,
    /// Is it in [`Channels::active`]?
    is_active: bool,
    /// Is it in [`Channels::moved`]?
    is_moved: bool,
}

impl Channel {
    fn new(weight: u64) -> Self {
        Channel { weight, ..Channel::default() }
    }
    fn tickets(&self) -> u64 {
        if self.pending.is_empty() { 0 } else { self.credits }
    }
    /// Has it work and no credits?
    fn wants_credits(&self) -> bool {
        self.credits == 0 && !self.pending.is_empty()
    }
    /// Sends one request for a credit.
    pub fn spend(&mut self) {
        self.credits -= 1;
        self.dispatched += 1;
    }
    /// A period is over, and another begins with that many credits.
    fn replenish(&mut self, credits: u64) {
        (self.allotted_before, self.dispatched_before) = (self.allotted, self.dispatched);
        (self.credits, self.allotted, self.dispatched) = (credits, credits, 0);
        self.is_touched = false;
    }
}

/// Rule by which channels with work were given credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Rule {
    #[default]
    Share,
    /// One: there are no more credits than channels with work.
    One,
    /// As many as it has requests, and some channel has only one.
    Length,
}

/// The last complete period, as condition (2) sees it.
pub struct LastPeriod {
    /// L_t: the least that any channel with credits was allotted.
    pub least_allotted: u64,
    pub most_dispatched: u64,
}

/// The channels of all VMs.
#[derive(Default)]
pub struct Channels {
    /// Original deadlines of reads and writes.
    expire: [Nanos; 2],
    /// A late request goes without a credit.
    late_is_free: bool,
    /// By number of the VM; `None` where none is attached.
    channels: Vec<Option<Channel>>,
    /// By what rule credits were given last.
    rule: Rule,
    /// The channels of which the next replenishment may change anything if the
    /// rule stays, and is to be [`Rule::One`] or [`Rule::Length`].
    active: Vec<u16>,
    /// Channels with requests, and with exactly one.
    working: u64,
    singles: u64,
    /// All have the same weight.
    are_alike: bool,
    tickets: Tickets,
    /// Of the channels that have credits (of all, if what is late is free), but for those in
    /// `moved`: as long as nothing is late nobody asks.
    deadlines: Deadlines,
    /// The channels whose deadline may have changed.
    moved: Vec<u16>,
    /// Σ L'_i, also of channels without work.
    unused: u64,
    /// Channels with work and no credits.
    wanting: usize,
    claims: Vec<Claim>,
}

impl Channels {
    pub fn new(expire: [Nanos; 2], late_is_free: bool) -> Self {
        Channels { expire, late_is_free, are_alike: true, ..Channels::default() }
    }

    /// One more than the highest number of a VM.
    pub fn len(&self) -> usize {
        self.channels.len()
    }
    pub fn get(&self, vm: usize) -> Option<&Channel> {
        self.channels.get(vm)?.as_ref()
    }
    pub fn iter(&self) -> impl Iterator<Item = (VmId, &Channel)> {
        let numbered = self.channels.iter().enumerate();
        numbered.filter_map(|(vm, channel)| Some((VmId::new(vm as u16), channel.as_ref()?)))
    }
    pub fn tickets(&self) -> &Tickets {
        &self.tickets
    }
    pub fn unused(&self) -> u64 {
        self.unused
    }
    pub fn wanting(&self) -> usize {
        self.wanting
    }

    pub fn attach(&mut self, vm: VmId, weight: u64) {
        if self.channels.len() <= vm.index() {
            self.channels.resize_with(vm.index() + 1, || None);
        }
        self.channels[vm.index()] = Some(Channel::new(weight));
        self.look_at_all();
    }

    /// The VM's requests leave with it.
    pub fn detach(&mut self, vm: VmId) {
        let Some(channel) = self.channels.get_mut(vm.index()).and_then(Option::take) else {
            return;
        };
        self.unused -= channel.credits;
        self.wanting -= usize::from(channel.wants_credits());
        self.working -= u64::from(!channel.pending.is_empty());
        self.singles -= u64::from(channel.pending.len() == 1);
        self.tickets.set(vm.index(), 0);
        self.deadlines.set(vm.index(), None);
        self.moved.retain(|&moved| usize::from(moved) != vm.index());
        self.active.retain(|&active| usize::from(active) != vm.index());
        self.look_at_all();
    }

    /// The VMs or their weights have changed: the next replenishment is of all channels.
    fn look_at_all(&mut self) {
        self.rule = Rule::Share;
        let mut weights = self.channels.iter().flatten().map(|channel| channel.weight);
        let first = weights.next();
        self.are_alike = weights.all(|weight| Some(weight) == first);
    }

    /// Changes a channel, which must be there, and all that follows from it.
    #[inline]
    pub fn change(&mut self, vm: usize, change: impl FnOnce(&mut Channel)) {
        let channel = self.channels.get_mut(vm).and_then(Option::as_mut);
        let channel = channel.expect("a request of a VM that is not attached");
        let (len, credits) = (channel.pending.len(), channel.credits);
        change(channel);
        let (len_now, credits_now) = (channel.pending.len(), channel.credits);
        self.unused -= credits - credits_now;
        // Long queues with credits to spare, the most of all, count as before.
        if len.min(len_now) < 2 || credits_now == 0 {
            self.wanting += usize::from(channel.wants_credits());
            self.wanting -= usize::from(credits == 0 && len > 0);
            self.working += u64::from(len_now > 0);
            self.working -= u64::from(len > 0);
            self.singles += u64::from(len_now == 1);
            self.singles -= u64::from(len == 1);
        }
        if credits != credits_now || len.min(len_now) == 0 {
            self.tickets.set(vm, channel.tickets());
        }
        if channel.is_touched && channel.is_moved {
            return;
        }
        channel.is_touched = true;
        if !std::mem::replace(&mut channel.is_active, true) {
            self.active.push(vm as u16);
        }
        if !std::mem::replace(&mut channel.is_moved, true) {
            self.moved.push(vm as u16);
        }
    }

    /// The next channel from `from` on whose most urgent request has its deadline
    /// before `limit` and that may send it: that channel and the request.
    pub fn late(&mut self, pool: &Pool, limit: Instant, from: usize) -> Option<(usize, RequestId)> {
        for vm in self.moved.drain(..).map(usize::from) {
            let Some(channel) = self.channels[vm].as_mut() else { continue };
            channel.is_moved = false;
            let urgent = channel.pending.most_urgent(pool, self.expire);
            let urgent = urgent.filter(|_| self.late_is_free || channel.credits > 0);
            self.deadlines.set(vm, urgent.map(|(deadline, _)| deadline));
        }
        let vm = self.deadlines.first_before(limit, from)?;
        let (_, id) = self.get(vm)?.pending.most_urgent(pool, self.expire)?;
        Some((vm, id))
    }

    /// A new period begins: earlier credits lapse, and `total` new ones are given
    /// to the channels that have work; `queued` requests in all. On equal claims
    /// `first` goes before those after it. What is to be said of the last period;
    /// `None` when no channel had credits.
    pub fn replenish(&mut self, total: u64, queued: u64, first: usize) -> Option<LastPeriod> {
        let rule = match total {
            // Of equal weights and a credit for each request the shares are the lengths.
            _ if total == queued && self.are_alike && self.singles > 0 => Rule::Length,
            _ if total <= self.working => Rule::One,
            _ => Rule::Share,
        };
        let last = if rule == self.rule && rule != Rule::Share {
            Some(self.replenish_active(rule))
        } else {
            self.replenish_all(total, first)
        };
        self.rule = rule;
        self.wanting = 0;
        last
    }

    /// Gives credits by the rule by which all have them already but for what has
    /// happened since.
    fn replenish_active(&mut self, rule: Rule) -> LastPeriod {
        // Under either rule there is a channel that got one.
        let mut last = LastPeriod { least_allotted: 1, most_dispatched: 0 };
        let Channels { active, channels, tickets, moved, .. } = self;
        active.retain(|&vm| {
            let vm = usize::from(vm);
            let Some(channel) = channels[vm].as_mut() else { return false };
            last.most_dispatched = last.most_dispatched.max(channel.dispatched);
            // What was touched stands otherwise next time, when nothing has been dispatched.
            channel.is_active = channel.is_touched;
            let len = channel.pending.len() as u64;
            channel.replenish(if rule == Rule::One { len.min(1) } else { len });
            tickets.set(vm, channel.tickets());
            if !std::mem::replace(&mut channel.is_moved, true) {
                moved.push(vm as u16);
            }
            channel.is_active
        });
        self.unused = tickets.total();
        last
    }

    fn replenish_all(&mut self, total: u64, first: usize) -> Option<LastPeriod> {
        let (mut least, mut most_dispatched) = (None::<u64>, 0);
        let mut claims = std::mem::take(&mut self.claims);
        claims.clear();
        for vm in (first..self.channels.len()).chain(0..first) {
            let Some(channel) = &mut self.channels[vm] else { continue };
            if channel.allotted > 0 {
                least = Some(least.map_or(channel.allotted, |l| l.min(channel.allotted)));
            }
            most_dispatched = most_dispatched.max(channel.dispatched);
            channel.replenish(0);
            let len = channel.pending.len() as u64;
            if len > 0 {
                claims.push(Claim { vm: vm as u16, demand: len * channel.weight, credits: 0 });
            }
        }
        allot(&mut claims, total);
        for claim in &claims {
            if let Some(channel) = &mut self.channels[usize::from(claim.vm)] {
                (channel.credits, channel.allotted) = (claim.credits, claim.credits);
            }
        }
        self.claims = claims;
        let tickets = |c: &Option<Channel>| c.as_ref().map_or(0, Channel::tickets);
        self.tickets.fill(self.channels.iter().map(tickets));
        self.unused = self.tickets.total();
        self.active.clear();
        self.moved.clear();
        for (vm, channel) in self.channels.iter_mut().enumerate() {
            let Some(channel) = channel else { continue };
            self.moved.push(vm as u16);
            channel.is_moved = true;
            channel.is_active =
                (channel.allotted_before, channel.dispatched_before) != (channel.allotted, 0);
            self.active.extend(channel.is_active.then_some(vm as u16));
        }
        least.map(|least_allotted| LastPeriod { least_allotted, most_dispatched })
    }
}

// Credits of each channel at a replenishment: in proportion to claims, in whole numbers, with a
// sum that is exact.

/// A channel's claim, and the credits that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Number of the VM.
    pub vm: u16,
    /// Its requests times its weight, at least 1.
    pub demand: u64,
    /// Set by [`allot`]; the value before does not count.
    pub credits: u64,
}

/// Divide `total` credits by the claims: C_i = round(demand_i / Σ demand × total),
/// rounded by largest remainders so that Σ C_i = `total`, and no claim below 1.
///
/// A claim worth less than one credit gets one; the others share the rest. When
/// there are more claims than credits, "at least 1" wins over the sum. Of equal
/// remainders the larger claim's goes first, of equal claims the earlier one:
/// the caller's order decides between equals and nothing else.
pub fn allot(claims: &mut [Claim], total: u64) {
    let sum: u128 = claims.iter().map(|c| u128::from(c.demand)).sum();
    if sum == u128::from(total) {
        // Each gets what it claims: the device is under-used and weights are 1.
        claims.iter_mut().for_each(|c| c.credits = c.demand);
        return;
    }
    if total <= claims.len() as u64 || claims.is_empty() {
        claims.iter_mut().for_each(|c| c.credits = 1);
        return;
    }
    let (shared, sum) = give_the_least(claims, total, sum);
    give_the_rest(claims, shared, sum);
}

/// One credit for each claim that is worth less; zero marks the others. What
/// is left to share, and the sum of the claims that share it.
fn give_the_least(claims: &mut [Claim], total: u64, sum: u128) -> (u64, u128) {
    let (mut shared, mut sum) = (total, sum);
    claims.iter_mut().for_each(|c| c.credits = 0);
    // Each round takes away less than its claims got, so that others may come to be worth
    // less than one: until none does.
    loop {
        let (before, before_sum) = (shared, sum);
        for claim in claims.iter_mut().filter(|c| c.credits == 0) {
            if u128::from(claim.demand) * u128::from(before) < before_sum {
                claim.credits = 1;
                shared -= 1;
                sum -= u128::from(claim.demand);
            }
        }
        if shared == before {
            return (shared, sum);
        }
    }
}

/// Share `shared` credits among the claims that have none, by largest remainders.
fn give_the_rest(claims: &mut [Claim], shared: u64, sum: u128) {
    // Claims without credits: remainder, demand and place, largest remainder first.
    let mut remainders = Vec::with_capacity(claims.len());
    let mut left = shared;
    for (at, claim) in claims.iter_mut().enumerate().filter(|(_, c)| c.credits == 0) {
        let (whole, remainder) = divide(claim.demand, shared, sum);
        claim.credits = whole;
        left -= whole;
        remainders.push((Reverse(remainder), Reverse(claim.demand), at));
    }
    let left = left as usize;
    if left > 0 && left < remainders.len() {
        remainders.select_nth_unstable(left - 1);
    }
    for &(.., at) in &remainders[..left] {
        claims[at].credits += 1;
    }
}

/// `demand · total / sum` and its remainder; in 64 bits where they suffice.
fn divide(demand: u64, total: u64, sum: u128) -> (u64, u128) {
    if let (Some(product), Ok(sum)) = (demand.checked_mul(total), u64::try_from(sum)) {
        return (product / sum, u128::from(product % sum));
    }
    let product = u128::from(demand) * u128::from(total);
    // Below `total`, for no claim exceeds the sum.
    ((product / sum) as u64, product % sum)
}

// The lottery: tickets by channel, drawn and changed in the logarithm of their number.

/// Tickets of each channel: a Fenwick tree.
#[derive(Default)]
pub struct Tickets {
    held: Vec<u64>,
    /// Entry `i` is the sum of the `lowest set bit of i + 1` holders up to `i`.
    sums: Vec<u64>,
    total: u64,
}

impl Tickets {
    /// Of all channels together.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Give channel `at` that many, instead of what it has.
    pub fn set(&mut self, at: usize, tickets: u64) {
        if at >= self.held.len() {
            self.grow(at + 1);
        }
        let before = std::mem::replace(&mut self.held[at], tickets);
        if before == tickets {
            return;
        }
        // Sums are of what is held, so that wrapping differences come out right.
        let change = tickets.wrapping_sub(before);
        self.total = self.total.wrapping_add(change);
        let mut node = at;
        while let Some(sum) = self.sums.get_mut(node) {
            *sum = sum.wrapping_add(change);
            node |= node + 1;
        }
    }

    /// Replace what all of them have: `held[i]` for channel `i`.
    pub fn fill(&mut self, held: impl Iterator<Item = u64>) {
        self.held.clear();
        self.held.extend(held);
        self.sum_up();
    }

    /// The channel that holds ticket `number`, counted from channel 0 on.
    /// `None` when there are not that many.
    pub fn holder(&self, number: u64) -> Option<usize> {
        if number >= self.total {
            return None;
        }
        let (mut at, mut left) = (0, number);
        let mut step = self.sums.len().next_power_of_two();
        while step > 0 {
            // The sum of the `step` holders from `at` on.
            if let Some(&sum) = self.sums.get(at + step - 1)
                && sum <= left
            {
                left -= sum;
                at += step;
            }
            step /= 2;
        }
        Some(at)
    }

    fn grow(&mut self, len: usize) {
        self.held.resize(len, 0);
        self.sum_up();
    }

    fn sum_up(&mut self) {
        self.sums.clone_from(&self.held);
        self.total = self.held.iter().sum();
        for at in 0..self.sums.len() {
            let parent = at | (at + 1);
            if parent < self.sums.len() {
                self.sums[parent] += self.sums[at];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::mix::Draws;
    use seekway_core::queues::Links;
    use seekway_core::request::{Extent, Op, Request};
    use seekway_core::units::{Lba, Sectors};

    const VMS: u64 = 9;

    /// Channels with the requests that they have queued.
    struct Scene {
        channels: Channels,
        pool: Pool,
        links: Links,
    }

    impl Scene {
        fn new() -> Scene {
            let expire = [Nanos::new(100), Nanos::new(250)];
            Scene { channels: Channels::new(expire, false), pool: Pool::new(), links: Links::new() }
        }
        fn insert(&mut self, request: Request) {
            self.pool.insert(request);
            self.channels.change(request.vm.index(), |channel| {
                channel.pending.insert(&mut self.links, &request);
            });
        }
        /// Takes a request out: sent for a credit, or withdrawn.
        fn take(&mut self, id: RequestId, sent: bool) {
            let request = self.pool.take(id);
            self.channels.change(request.vm.index(), |channel| {
                channel.pending.take(&mut self.links, &request);
                if sent {
                    channel.spend();
                }
            });
        }
        fn detach(&mut self, vm: VmId) {
            self.pool.take_vm(vm);
            self.channels.detach(vm);
        }
        /// All that decisions and metrics depend on.
        fn seen(&mut self, limit: Instant) -> impl PartialEq + std::fmt::Debug + use<> {
            let channels = &mut self.channels;
            let late = (0..=VMS).map(|from| channels.late(&self.pool, limit, from as usize));
            let late: Vec<_> = late.collect();
            let all = |(vm, c): (VmId, &Channel)| {
                (vm, c.credits, c.tickets(), c.allotted_before, c.dispatched_before)
            };
            let total = channels.tickets.total();
            (
                channels.iter().map(all).collect::<Vec<_>>(),
                late,
                (0..total).map(|number| channels.tickets.holder(number)).collect::<Vec<_>>(),
                (channels.unused, channels.wanting, total),
            )
        }
    }

    #[test]
    fn looking_at_some_channels_is_as_good_as_looking_at_all() {
        for seed in 1..=6 {
            let mut random = Draws::new(seed);
            // The second is made to look at all of them each time.
            let mut twins = [Scene::new(), Scene::new()];
            let (mut queued, mut short) = (Vec::<Request>::new(), 0);
            for step in 0..6_000u64 {
                let vm = VmId::new(random.below(VMS) as u16);
                let choice = random.below(100);
                let is_there = twins[0].channels.get(vm.index()).is_some();
                let pick = random.below(queued.len().max(1) as u64) as usize;
                match choice {
                    _ if !is_there => {
                        let weight = 1 + random.below(if seed % 2 == 0 { 1 } else { 3 });
                        twins.iter_mut().for_each(|s| s.channels.attach(vm, weight));
                    }
                    0 if step % 7 == 0 => {
                        twins.iter_mut().for_each(|s| s.detach(vm));
                        queued.retain(|request| request.vm != vm);
                    }
                    1..=34 if queued.len() < 30 => {
                        let slot = (0..).find(|&n| queued.iter().all(|r| r.id.slot() != n));
                        let op = if choice.is_multiple_of(3) { Op::Write } else { Op::Read };
                        let extent = Extent::new(Lba::new(random.below(99)), Sectors::new(8));
                        let request = Request {
                            id: RequestId::new(slot.unwrap() as u32),
                            vm,
                            tag: None,
                            op,
                            sync: true,
                            extent: extent.unwrap(),
                            arrived: Instant::from_nanos(step),
                        };
                        queued.push(request);
                        twins.iter_mut().for_each(|s| s.insert(request));
                    }
                    35..=74 if !queued.is_empty() => {
                        let credits =
                            twins[0].channels.get(queued[pick].vm.index()).unwrap().credits;
                        if credits > 0 || choice % 10 == 5 {
                            let id = queued.swap_remove(pick).id;
                            twins.iter_mut().for_each(|s| s.take(id, credits > 0));
                        }
                    }
                    75.. if !queued.is_empty() => {
                        let (all, working) = (queued.len() as u64, twins[0].channels.working);
                        // Mostly as many as are queued; for a while one each, or between.
                        let total = match step / 500 % 3 {
                            0 => all,
                            1 => working.min(1 + random.below(working)),
                            _ => all.min(working + random.below(4)),
                        };
                        twins[1].channels.look_at_all();
                        let rule = twins[0].channels.rule;
                        let [some, every] = twins.each_mut().map(|s| {
                            let last = s.channels.replenish(total, all, (step % VMS) as usize);
                            last.map(|last| (last.least_allotted, last.most_dispatched))
                        });
                        assert_eq!(some, every, "seed {seed}, step {step}");
                        short += u32::from(rule != Rule::Share && rule == twins[0].channels.rule);
                    }
                    _ => {}
                }
                let limit = Instant::from_nanos(step + random.below(60));
                if step % 3 == 0 {
                    let [some, every] = twins.each_mut().map(|s| s.seen(limit));
                    assert!(some == every, "seed {seed}, step {step}: {some:?} {every:?}");
                }
            }
            assert!(short > 100, "seed {seed}: {short} replenishments looked at some channels");
        }
    }
}

#[cfg(test)]
mod credits_tests {
    use super::*;
    use seekway_core::mix::Draws;

    fn allotted(demands: &[u64], total: u64) -> Vec<u64> {
        let claim = |(vm, &demand): (usize, &u64)| Claim { vm: vm as u16, demand, credits: 9 };
        let mut claims: Vec<Claim> = demands.iter().enumerate().map(claim).collect();
        allot(&mut claims, total);
        claims.iter().map(|c| c.credits).collect()
    }

    #[test]
    fn rounds_by_largest_remainders() {
        assert_eq!(allotted(&[1, 1, 1], 10), [4, 3, 3], "a tie goes to the earlier");
        assert_eq!(allotted(&[5, 3, 2], 7), [4, 2, 1], "3.5, 2.1, 1.4");
        assert_eq!(allotted(&[5, 3, 2], 9), [4, 3, 2], "4.5, 2.7, 1.8");
        assert_eq!(allotted(&[6, 1, 1], 8), [6, 1, 1]);
    }

    #[test]
    fn a_claim_worth_less_than_one_gets_one() {
        assert_eq!(allotted(&[1_000, 1, 1], 10), [8, 1, 1]);
        // 8 credits for 1,000 and 130: 7.08 and 0.92, though 130 of 1,130 is 1.03 of 9.
        assert_eq!(allotted(&[1_000, 130, 1], 9), [7, 1, 1]);
    }

    #[test]
    fn at_least_one_wins_over_the_sum() {
        assert_eq!(allotted(&[90, 5, 5], 2), [1, 1, 1]);
        assert_eq!(allotted(&[90, 5, 5], 0), [1, 1, 1]);
        assert_eq!(allotted(&[90, 5, 5], 3), [1, 1, 1]);
        assert_eq!(allotted(&[], 3), []);
    }

    #[test]
    fn the_sum_is_exact_and_the_order_is_of_no_account() {
        let mut random = Draws::new(1);
        for case in 0..20_000 {
            let n = 1 + random.below(12) as usize;
            // From a few to as large as 64 bits hold: 2^22 requests of weight 2^32 - 1.
            let bits = 1 + random.below(54);
            let demands: Vec<u64> = (0..n).map(|_| 1 + random.below(1 << bits)).collect();
            let spare_bits = 1 + random.below(30);
            let total = n as u64 + random.below(1 << spare_bits);
            let given = allotted(&demands, total);
            let seen = format!("case {case}: {demands:?} share {total}: {given:?}");
            assert_eq!(given.iter().sum::<u64>(), total, "{seen}");
            assert!(given.iter().all(|&c| c >= 1), "{seen}");
            let sum: u128 = demands.iter().map(|&d| u128::from(d)).sum();
            for (&d, &c) in demands.iter().zip(&given) {
                // Never above its share by one or more, unless that is the least of one.
                let above = u128::from(c.saturating_sub(1)) * sum;
                assert!(above < u128::from(d) * u128::from(total) || c == 1, "{seen}");
                for (&e, &f) in demands.iter().zip(&given) {
                    assert!(d < e || c + u64::from(d == e) >= f, "{seen}: less for more");
                }
            }
            let mut order: Vec<usize> = (0..n).collect();
            (1..n).for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
            let moved: Vec<u64> = order.iter().map(|&i| demands[i]).collect();
            let sorted = |demands: &[u64], given: &[u64]| {
                let mut pairs: Vec<_> = demands.iter().copied().zip(given.to_vec()).collect();
                pairs.sort_unstable();
                pairs
            };
            let again = allotted(&moved, total);
            assert_eq!(sorted(&demands, &given), sorted(&moved, &again), "{seen}: {order:?}");
        }
    }
}

#[cfg(test)]
mod lottery_tests {
    use super::*;
    use seekway_core::mix::Draws;

    #[test]
    fn tickets_agree_with_a_list() {
        let (mut tickets, mut list) = (Tickets::default(), vec![0u64; 70]);
        let mut random = Draws::new(7);
        for step in 0..3_000 {
            let (at, n) = (random.below(70) as usize, random.below(5));
            if step % 100 == 99 {
                list.iter_mut().for_each(|held| *held = random.below(3));
                tickets.fill(list.iter().copied());
            } else {
                list[at] = n;
                tickets.set(at, n);
            }
            let all: Vec<usize> =
                list.iter().enumerate().flat_map(|(i, &n)| vec![i; n as usize]).collect();
            assert_eq!(tickets.total(), all.len() as u64);
            for (number, &holder) in all.iter().enumerate() {
                assert_eq!(tickets.holder(number as u64), Some(holder));
            }
            assert_eq!(tickets.holder(tickets.total()), None);
        }
    }
}
