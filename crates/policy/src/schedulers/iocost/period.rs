//! The clock of the device's virtual time, and what happens at the end of a
//! period (`ioc_timer_fn`).

use super::IoCost;
use super::Virtual;
use super::groups::WHOLE;
use super::model::CLASSES;
use seekway_core::units::{Instant, Nanos};

/// A rate of 100 %, in millionths.
pub(super) const MILLION: u64 = 1_000_000;
/// Bounds of a period.
const PERIOD_MIN: Nanos = Nanos::from_millis(1);
const PERIOD_MAX: Nanos = Nanos::from_secs(1);
/// Margins of a budget, in percent of a period.
const MARGIN_MIN: u64 = 10;
pub(super) const MARGIN_LOW: u64 = 20;
pub(super) const MARGIN_TARGET: u64 = 50;
/// Waiting for the device above this percentage of a period is overload.
const WAIT_BUSY_PERCENT: u64 = 5;
/// Below this percentage of the thresholds the device is not busy.
const UNBUSY_PERCENT: u64 = 75;
/// Periods for which a request in flight counts as lagging.
const LAGGING_PERIODS: Virtual = 10;
/// Time for which a device is too fast or too slow for its class before the class changes.
const CLASS_CYCLE: Nanos = Nanos::from_secs(10);
/// Percentage by which a rate out of bounds goes back.
const CLAMP_PERCENT: u64 = 4;
/// Periods without an input that are made up for one by one.
const CATCH_UP_MAX: u32 = 16;

/// `vrate_adj_pct`: by how many percent the rate changes at that level.
pub(super) fn adjustment(level: i32) -> u64 {
    match level.unsigned_abs() {
        0..=3 => 0,
        4..=19 => 1,
        20..=35 => 2,
        36..=43 => 4,
        44..=51 => 8,
        _ => 16,
    }
}

/// Device virtual time (vtime): how fast it runs, and in which period it is.
pub(super) struct Clock {
    pub running: bool,
    /// Number of the period: how many have ended before it.
    pub number: u64,
    pub period: Nanos,
    /// When the period began.
    pub at: Instant,
    at_virtual: Virtual,
    /// The rate against the wall clock, in millionths, by how busy the device is.
    pub base_rate: u64,
    /// As `base_rate`, with a correction for budget that was thrown away.
    rate: u64,
    /// Budget that was thrown away and has not been made up for, negative.
    error: Virtual,
    /// Above zero: periods of overload in a row; below: of spare capacity.
    pub busy_level: i32,
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            running: false,
            number: 0,
            period: PERIOD_MAX,
            at: Instant::ZERO,
            at_virtual: 0,
            base_rate: MILLION,
            rate: MILLION,
            error: 0,
            busy_level: 0,
        }
    }
}

impl Clock {
    /// `ioc_refresh_period_us`: by the latency target and its percentile in millionths.
    pub fn set_period(&mut self, latency: Nanos, ppm: u64) {
        let times = if ppm > 0 { ((MILLION - ppm) / 50_000).max(2) } else { 2 };
        self.period = latency.scaled(times, 1).clamp(PERIOD_MIN, PERIOD_MAX);
    }

    pub fn virtual_now(&self, now: Instant) -> Virtual {
        let elapsed = Virtual::from(now.since(self.at).get());
        self.at_virtual + elapsed * Virtual::from(self.rate) / 1_000
    }
    pub fn end(&self) -> Instant {
        self.at + self.period
    }
    /// Work in picoseconds as time at the base rate.
    pub fn time(&self, work: Virtual) -> Nanos {
        let ns = (work.max(0) as u128 * 1_000).div_ceil(u128::from(self.base_rate.max(1)));
        Nanos::new(u64::try_from(ns).unwrap_or(u64::MAX / 4).min(u64::MAX / 4))
    }
    /// A percentage of a period in virtual time.
    pub fn margin(&self, percent: u64) -> Virtual {
        let period = Virtual::from(self.period.get()) * Virtual::from(self.base_rate);
        period * Virtual::from(percent) / 100_000
    }
    /// Tolerance of a wake-up.
    pub fn slack(&self) -> Nanos {
        Nanos::new(self.period.get() / 100)
    }

    pub fn start(&mut self, now: Instant) {
        let vnow = self.virtual_now(now);
        (self.at, self.at_virtual) = (now, vnow);
        self.running = true;
    }

    /// The rate is 100 % again.
    fn reset_rate(&mut self, now: Instant) {
        self.start_rate(now, MILLION);
        self.base_rate = MILLION;
    }
    fn start_rate(&mut self, now: Instant, rate: u64) {
        let vnow = self.virtual_now(now);
        (self.at, self.at_virtual, self.rate) = (now, vnow, rate);
    }

    /// `ioc_refresh_vrate`: make up for thrown away budget within the period.
    fn compensate(&mut self, now: Instant) {
        let base = Virtual::from(self.base_rate);
        let left = Virtual::from(self.end().since(now).get());
        if left > 0 {
            let more = (-self.error * 1_000 / left).clamp(-(base / 2), base);
            self.error += more * left / 1_000;
            self.start_rate(now, (base + more) as u64);
        }
        let bound = self.margin(100);
        self.error = self.error.clamp(-bound, bound);
    }
}

/// Counts of a period.
#[derive(Default)]
pub(super) struct Counted {
    /// Reads and writes within their latency target, and over it.
    pub met: [u64; 2],
    pub missed: [u64; 2],
    /// Time for which requests that were paid for waited for a tag.
    pub waited: Nanos,
}

impl Counted {
    /// Misses of reads (0) or of writes (1), in millionths, rounded up.
    fn missed_ppm(&self, write: usize) -> u64 {
        let all = self.met[write] + self.missed[write];
        (self.missed[write] * MILLION).div_ceil(all.max(1))
    }
}

impl IoCost {
    /// Do what timers were due by `now`, in their order.
    pub(super) fn advance(&mut self, now: Instant) {
        let mut periods = 0;
        loop {
            let ends = Some(self.clock.end()).filter(|&at| self.clock.running && at <= now);
            let kick = self.kicks.first().filter(|&(at, _)| at <= now);
            match (ends, kick) {
                (Some(ends), kick) if kick.is_none_or(|(at, _)| ends <= at) => {
                    periods += 1;
                    self.end_period(if periods < CATCH_UP_MAX { ends } else { now });
                }
                (_, Some((at, vm))) => {
                    self.kicks.set(vm, None);
                    self.kick(at, vm as usize);
                }
                (_, None) => return,
            }
        }
    }

    /// Ends a period: donates unused shares and adjusts the rate (`ioc_timer_fn`).
    fn end_period(&mut self, now: Instant) {
        let vnow = self.clock.virtual_now(now);
        self.check_groups(now, vnow);
        let mut donors = std::mem::take(&mut self.donors);
        let (shortages, lagging) = self.find_surpluses(now, vnow, &mut donors);
        if !donors.is_empty() && shortages > 0 {
            self.groups.transfer(&mut donors, vnow);
        }
        donors.clear();
        self.donors = donors;
        self.judge(shortages > 0, lagging > 0);
        self.adjust_rate(lagging > 0);
        self.classify(now);
        self.counted = Counted::default();
        self.clock.number += 1;
        if self.groups.active.is_empty() {
            self.clock.running = false;
            (self.clock.busy_level, self.clock.error) = (0, 0);
        } else {
            self.clock.start(now);
            self.clock.compensate(now);
        }
    }

    /// `ioc_check_iocgs`: wake those that wait, put to rest those that were idle.
    fn check_groups(&mut self, now: Instant, vnow: Virtual) {
        let mut at = 0;
        while let Some(&vm) = self.groups.active.get(at) {
            let vm = usize::from(vm);
            let group = &self.groups.all[vm];
            let idle = group.active_period != self.clock.number && group.done_vtime == group.vtime;
            if group.is_waiting() {
                self.kick(now, vm);
            } else if idle && group.head == super::Head::Unseen {
                let excess = vnow - group.vtime - self.clock.margin(MARGIN_TARGET);
                let share = Virtual::from(self.groups.share_in_use(vm));
                self.clock.error -= excess.max(0) * share / Virtual::from(WHOLE);
                self.groups.set(vm, 0, 0);
                self.groups.active.swap_remove(at);
                continue;
            }
            at += 1;
        }
    }

    /// Finds VMs that do not use all of their budget, and appends them to `donors` with the share
    /// that each has afterwards. Counts VMs that are short of budget, and VMs with requests of past
    /// periods in flight.
    fn find_surpluses(
        &mut self,
        now: Instant,
        vnow: Virtual,
        donors: &mut Vec<(u16, u64)>,
    ) -> (u32, u32) {
        let (mut shortages, mut lagging) = (0, 0);
        let latency = self.qos.iter().any(|qos| qos.ppm > 0);
        let period = vnow - self.clock.at_virtual;
        for at in 0..self.groups.active.len() {
            let id = self.groups.active[at];
            let vm = usize::from(id);
            let usage = std::mem::take(&mut self.groups.all[vm].usage);
            let group = &self.groups.all[vm];
            let (vtime, done) = (group.vtime, group.done_vtime);
            let late = vtime > done && vtime > vnow - LAGGING_PERIODS * period;
            lagging += u32::from(latency && late && done < vnow - period);
            let low = vnow - self.clock.margin(MARGIN_LOW);
            let gives = self.groups.share_in_use(vm) < self.groups.share(vm);
            if !gives && (group.is_waiting() || vtime >= low) {
                shortages += 1;
                continue;
            }
            let usage = self.usage_share(now, vm, usage);
            let most = self.groups.share_at_most(vm);
            let after = self.share_after_donation(vm, most, usage, vnow);
            if after < most && self.groups.share(vm) >= 2 {
                donors.push((id, after));
            } else {
                let all = self.groups.all[vm].active;
                self.groups.set_and_save(vm, all, vnow);
                shortages += 1;
            }
        }
        (shortages, lagging)
    }

    /// The share of the device that a VM used in this period; `usage` in picoseconds.
    fn usage_share(&self, now: Instant, vm: usize, usage: u64) -> u64 {
        let group = &self.groups.all[vm];
        let flying = (group.vtime - group.done_vtime).max(0);
        let flying = flying * Virtual::from(self.groups.share_in_use(vm));
        let work = Virtual::from(usage).max(flying / Virtual::from(WHOLE));
        let span = now.since(group.activated_at.max(self.clock.at)).get().max(1);
        let used = self.clock.time(work).scaled(WHOLE, span).get();
        used.clamp(1, WHOLE)
    }

    /// `hweight_after_donation`: the share that leaves half a period's budget at
    /// the end of the next one. Throws away budget above that.
    fn share_after_donation(&mut self, vm: usize, most: u64, usage: u64, vnow: Virtual) -> u64 {
        let margin = self.clock.margin(MARGIN_MIN);
        let share = Virtual::from(self.groups.share_in_use(vm));
        let group = &mut self.groups.all[vm];
        if group.is_waiting() || group.vtime > vnow - margin {
            return most;
        }
        let excess = vnow - group.vtime - self.clock.margin(MARGIN_TARGET);
        if excess > 0 {
            group.vtime += excess;
            group.done_vtime += excess;
            self.clock.error -= excess * share / Virtual::from(WHOLE);
        }
        let whole = Virtual::from(WHOLE);
        let period = (vnow - self.clock.at_virtual).max(1);
        let delta = whole * (vnow - group.vtime) / period;
        let target = whole * Virtual::from(MARGIN_TARGET) / 100;
        let after = whole * Virtual::from(usage) / (whole - target + delta).max(1);
        after.clamp(1, Virtual::from(most)) as u64
    }

    /// How busy was the device?
    fn judge(&mut self, shortages: bool, lagging: bool) {
        let waited = self.counted.waited.scaled(100, self.clock.period.get()).get();
        let missed = [0, 1].map(|write| self.counted.missed_ppm(write));
        let allowed = [0, 1].map(|write| MILLION - self.qos[write].ppm);
        let level = &mut self.clock.busy_level;
        if waited > WAIT_BUSY_PERCENT || missed[0] > allowed[0] || missed[1] > allowed[1] {
            *level = (*level).max(0) + 1;
        } else if waited <= WAIT_BUSY_PERCENT * UNBUSY_PERCENT / 100
            && missed[0] <= allowed[0] * UNBUSY_PERCENT / 100
            && missed[1] <= allowed[1] * UNBUSY_PERCENT / 100
        {
            // With room to spare; only if somebody is short does that matter.
            *level = if shortages { (*level).min(0) - i32::from(!lagging) } else { 0 };
        } else {
            *level = 0;
        }
        *level = (*level).clamp(-1_000, 1_000);
    }

    /// Moves the base rate by the busy level, within its bounds (`ioc_adjust_base_vrate`).
    fn adjust_rate(&mut self, lagging: bool) {
        let (level, rate) = (self.clock.busy_level, self.clock.base_rate);
        if level == 0 || level < 0 && lagging {
            return;
        }
        let (min, max) = self.rates;
        self.clock.base_rate = if rate < min {
            (rate * (100 + CLAMP_PERCENT) / 100).min(min)
        } else if rate > max {
            (rate * (100 - CLAMP_PERCENT) / 100).max(max)
        } else {
            let change = adjustment(level);
            let percent = if level > 0 { 100 - change } else { 100 + change };
            (rate * percent).div_ceil(100).clamp(min, max)
        };
    }

    /// `ioc_autop_idx`: does the device belong to another class?
    fn classify(&mut self, now: Instant) {
        if !self.steps {
            return;
        }
        let class = &CLASSES[self.class];
        let percent = self.clock.base_rate * 100 / MILLION;
        let long = |since: &mut Option<Instant>, off: bool| {
            if !off {
                *since = None;
            }
            off && now.since(*since.get_or_insert(now)) >= CLASS_CYCLE
        };
        let fast = class.too_fast_percent.is_some_and(|limit| percent >= limit);
        let slow = class.too_slow_percent.is_some_and(|limit| percent <= limit);
        if long(&mut self.too_fast_since, fast) {
            self.clock.reset_rate(now);
            self.set_class(self.class + 1);
        } else if long(&mut self.too_slow_since, slow) {
            self.clock.reset_rate(now);
            self.set_class(self.class - 1);
        }
    }
}
