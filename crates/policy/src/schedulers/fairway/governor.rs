//! Bounds the cost in the device at once, where it works on several commands, and the length of a
//! command.
//!
//! *Bound.* A command that a VM with little outstanding sends waits for what is in the device
//! before it. So the bound just keeps the device busy: the most cost that it completes a second,
//! times the least time that a command takes there (the bandwidth-delay product of BBR: Cardwell
//! and others, ACM Queue 2016). The rate is measured in epochs in which requests had to wait for
//! the bound, from time to time with the bound doubled; the time by a few commands one at a time.
//! Short and long reads and writes take different times: each kind has its own, and counts by its
//! share of the cost. While a VM is light parts are shorter and the times others than while none
//! is, and both are kept: a light VM that comes back to long requests finds what was known when it
//! left.
//!
//! *Isolation.* The product is where it begins. How long short reads and writes of light VMs take,
//! over the least that they take, and how much of its best rate the device reaches, say whether
//! more may be in it or less: see [`Governor::steer`]. Gimbal (Min and others, SIGCOMM 2021) steers
//! a rate by the same latency, with a fixed threshold.
//!
//! *Parts.* Nothing stops a command that has begun, so requests that are long go in parts that take the
//! device a quarter of the time of a short read, and in the longest of those parts while no VM is
//! light but others are attached, who may come. Where a part costs as much as the whole (a cloud
//! volume counts commands), short parts cost bandwidth: an epoch with parts of twice or half
//! the length shows it.

use super::cost;
use seekway_core::units::{Instant, Nanos, Sectors};

/// Fewest commands and least time of an epoch.
const EPOCH_COMMANDS: u32 = 64;
const EPOCH_LEAST: Nanos = Nanos::from_millis(1);
/// An epoch goes on after a pause of a VM with long requests that is not longer.
const IDLE_MOST: Nanos = Nanos::from_millis(2);
/// Time after a trial of the price until a device works on reads and writes as before. A drive that
/// collects garbage is fast until its buffer is full of writes again.
const SETTLES: Nanos = Nanos::from_millis(5);
/// Cost that may be in the device before its rate is known: some milliseconds' worth of a slow one.
const FIRST: f64 = (4 << 20) as f64;
/// From one probe to the next, at least, and how much longer at most. It varies, or a VM that reads at
/// regular times would meet the same probe, with the doubled bound, every time.
const PROBE_EVERY: Nanos = Nanos::from_millis(200);
const PROBE_VARIES_MS: u64 = 100;
/// Commands that go one at a time in a probe of the delay: at least and at most. It ends between
/// them when each [kind](kind) that matters has been seen.
const DELAY_COMMANDS: u32 = 8;
const DELAY_COMMANDS_MAX: u32 = 32;
/// A kind matters from this share of the cost on.
const SHARE_LEAST: f64 = 0.2;
/// Commands of at most this cost are short.
const SHORT: u64 = 12 << 10;
/// A part takes the device this fraction of the time of a short read.
const PART_OF_ANSWER: f64 = 0.25;
/// Parts while that is not known, and the least and the longest by it, in bytes.
pub const PART_DEFAULT: u64 = 32 << 10;
const PART_LEAST: u64 = 16 << 10;
pub const PART_LONGEST: Sectors = Sectors::new(256);
/// Most doublings of parts where short ones cost bandwidth.
const DOUBLINGS_MAX: u32 = 4;
/// By how much the bound is above the product of rate and delay at an isolation of 0; not at 1.
const GAIN_MORE: f64 = 0.75;
/// At an isolation of 1 light VMs may cost the others this part of the device's best rate.
const RATE_GIVEN: f64 = 0.3;
/// Distance from the aim within which the bound stays.
const DEAD: f64 = 0.05;
/// While light VMs are slowed down by this factor more than the isolation allows, the bound may go
/// below where it began: a drive that writes takes long for some reads, and so has a long delay.
const FAR: f64 = 2.0;
/// Further factor of the stretch with many VMs: on a disk of its own, n times slower, each of n
/// would wait n times as long.
const MANY_TIMES: f64 = 2.0;
/// An epoch counts this much in what is steered by.
const NEW: f64 = 0.25;
/// Least share of the bound that writes have. Linux's BFQ leaves a fifth to a half of a device's
/// tags to what nobody waits for (`bfq_update_depths`).
const WRITES_LEAST: f64 = 0.25;
/// Numbers of busy VMs that are few, and that are many.
const FEW: u32 = 4;
const MANY: u32 = 8;
/// Factor of the rate that longer parts have to bring, and that shorter ones have to keep.
const LONGER_BRINGS: f64 = 1.05;
const SHORTER_KEEPS: f64 = 0.97;
/// Rounds of probes, at most, from one trial of longer parts to the next.
const ROUNDS_MAX: u32 = 32;
/// Probes for which a measurement stands.
const KEPT: usize = 4;

/// Short and long reads and writes.
const KINDS: usize = 4;
const SHORT_READS: usize = 0;
const SHORT_WRITES: usize = 2;

/// The kind of a command, as an index.
fn kind(is_write: bool, cost: u64) -> usize {
    SHORT_WRITES * usize::from(is_write) + usize::from(cost > SHORT)
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    /// Bounded, and the rate is measured.
    #[default]
    Steady,
    /// Commands go one at a time.
    Delay,
    /// An epoch with twice the bound.
    Rate,
    /// An epoch with parts doubled this number of times.
    Part(u32),
}

/// Counts of one epoch, or of one probe, until now.
#[derive(Clone, Copy, Default)]
struct Epoch {
    since: Instant,
    commands: u32,
    /// A VM with a target of latency was active.
    pressed: bool,
    /// A command of a VM with much outstanding is among them.
    heavy: bool,
    /// By kind: cost, commands and nanoseconds.
    cost: [u64; KINDS],
    count: [u32; KINDS],
    took: [u64; KINDS],
    /// Nanoseconds from the arrival to the end of light VMs' short reads and writes, and the least
    /// that these would have taken.
    waited: u64,
    least: f64,
}

impl Epoch {
    fn total(&self) -> u64 {
        self.cost.iter().sum()
    }
    /// Bytes without what a command costs on top.
    fn bytes(&self) -> u64 {
        self.total() - u64::from(self.commands) * cost::of_command(Sectors::ZERO)
    }
}

/// The bound of what is in a device.
#[derive(Default)]
pub struct Governor {
    /// The part of its own speed that a light VM is to keep, 0 to 1.
    isolation: f64,
    phase: Phase,
    /// Until then nothing but a delay is measured.
    settled: Instant,
    /// When the last probe began, and which one it was.
    probed: Instant,
    probes: u32,
    /// Cost a nanosecond, the most of each of the last probes' times.
    rates: [f64; KEPT],
    /// Long requests go in parts.
    splits: bool,
    /// While they do not and while they do, by kind: the mean nanoseconds of a command one at a
    /// time, in the last probes.
    delays: [[[f64; KEPT]; KINDS]; 2],
    /// By kind: share of the cost.
    shares: [f64; KINDS],
    /// By kind: a probe of the delay has not seen one since the last probe that was due.
    unseen: [bool; KINDS],
    /// The delay of a kind that matters is not known, and was not looked for in vain.
    is_missing: bool,
    /// Rate times delay, as far as they are known: infinite, or no number, without a delay.
    product: f64,
    /// The bound over gain, rate and delay.
    stretch: f64,
    /// Rate of the last steady epochs: cost a nanosecond, 0 while unknown.
    reached: f64,
    /// Time of light VMs' short reads and writes in them, over their least time.
    slowdown: f64,
    /// The most VMs that were busy at once since the last probe, and before that.
    busy: u32,
    busy_before: u32,
    /// Bytes a nanosecond in the last steady epoch.
    steady: f64,
    /// Number of doublings of parts.
    doublings: u32,
    /// Rounds of probes until longer parts are tried, and how many the next wait will last:
    /// twice as many after each trial in vain.
    rounds_left: u32,
    rounds: u32,
    epoch: Epoch,
}

impl Governor {
    pub fn new(isolation: f64) -> Self {
        Governor {
            isolation,
            delays: [[[f64::INFINITY; KEPT]; KINDS]; 2],
            stretch: 1.0,
            rounds: 1,
            ..Governor::default()
        }
    }

    /// Is nothing probed now?
    pub fn is_steady(&self) -> bool {
        self.phase == Phase::Steady
    }

    /// The share of writes in the cost of what was completed recently.
    pub fn writes(&self) -> f64 {
        self.shares[SHORT_WRITES..].iter().sum()
    }

    /// Highest rate seen recently, in cost a nanosecond.
    pub fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Least nanoseconds that a command of this kind took recently; infinite if unknown.
    fn delay_of(&self, kind: usize) -> f64 {
        self.delays[usize::from(self.splits)][kind].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The least nanoseconds that a command takes, each kind by its share of the cost.
    pub fn delay(&self) -> f64 {
        let (mut sum, mut shares) = (0.0, 0.0);
        for (kind, share) in self.shares.iter().enumerate() {
            let delay = self.delay_of(kind);
            if delay.is_finite() {
                (sum, shares) = (sum + share * delay, shares + share);
            }
        }
        // Of what has shares nothing may be known yet.
        let least = || (0..KINDS).map(|kind| self.delay_of(kind)).fold(f64::INFINITY, f64::min);
        if shares > 0.0 { sum / shares } else { least() }
    }

    /// Longest command where it must not stand in others' way, in bytes, a power of two.
    pub fn part_bytes(&self) -> u64 {
        let part = PART_OF_ANSWER * self.rate() * self.delay_of(SHORT_READS);
        let least = match part.is_finite() && part > 0.0 {
            false => PART_DEFAULT,
            // The nearest power of two by its ratio.
            true => {
                let wide = (part * std::f64::consts::SQRT_2) as u64;
                (1 << wide.max(1).ilog2()).clamp(PART_LEAST, PART_LONGEST.bytes())
            }
        };
        let doublings = if let Phase::Part(trial) = self.phase { trial } else { self.doublings };
        least << doublings
    }

    /// Number of VMs that have something outstanding now. `is_pressed`: a VM with a target of
    /// latency is active.
    pub fn busy(&mut self, vms: u32, is_pressed: bool) {
        self.busy = self.busy.max(vms);
        self.epoch.pressed |= is_pressed;
    }

    /// By how many VMs the bound goes: a target of latency does not wait for many.
    fn crowd(&self) -> u32 {
        if self.epoch.pressed { FEW } else { self.busy.max(self.busy_before) }
    }

    /// Furthest that the bound may be stretched: with few VMs as far as light ones may be slowed
    /// down.
    fn stretch_max(&self) -> f64 {
        let many = f64::from(self.crowd().clamp(FEW, MANY) - FEW) / f64::from(MANY - FEW);
        (1.0 + many * (MANY_TIMES - 1.0)) / self.isolation
    }

    fn stretch(&self) -> f64 {
        self.stretch.min(self.stretch_max())
    }

    /// The bound over rate and delay at a stretch of 1.
    fn gain(&self) -> f64 {
        1.0 + GAIN_MORE * (1.0 - self.isolation)
    }

    /// After a steady epoch, stretch the bound or relax it. The device is to reach a part of its
    /// best rate, whatever light VMs feel. Beyond that it goes by them, to the slow-down that the
    /// isolation allows. While they are [`FAR`] times slower than that, it goes below where it began.
    fn steer(&mut self, rate: f64) {
        let mean = |old: f64, new: f64| if old > 0.0 { old + NEW * (new - old) } else { new };
        self.reached = mean(self.reached, rate);
        self.rates[0] = self.rates[0].max(self.reached);
        let Epoch { waited, least, .. } = self.epoch;
        let is_felt = least > 0.0;
        if is_felt {
            self.slowdown = mean(self.slowdown, waited as f64 / least);
        }
        let (reached, asked) = (self.reached / self.rate(), 1.0 - RATE_GIVEN * self.isolation);
        let over = self.slowdown * self.isolation;
        let times = match () {
            () if reached < asked => 1.05,
            () if is_felt && over < 1.0 - DEAD && reached < 1.0 - DEAD => 1.02,
            () if is_felt && over < 1.0 + DEAD => 1.0,
            () if reached > asked + DEAD => 0.99,
            () => 1.0,
        };
        let floor = if is_felt && over > FAR { 0.0 } else { self.stretch().min(1.0) };
        self.stretch = (self.stretch() * times).max(floor);
    }

    /// Hears of a light VM's read or write of this cost: its time from arrival to completion.
    pub fn answered(&mut self, is_write: bool, cost: u64, took: Nanos) {
        let least = self.delay_of(kind(is_write, cost));
        if cost <= SHORT && self.phase == Phase::Steady && least.is_finite() {
            self.epoch.waited += took.get();
            self.epoch.least += least;
        }
    }

    /// Cost that may be in the device. `None`: not known yet, no bound.
    pub fn bound(&self) -> Option<f64> {
        let knee = self.gain() * self.stretch() * self.product;
        match self.phase {
            Phase::Delay => Some(0.0),
            _ if !knee.is_finite() || knee == 0.0 => None,
            Phase::Rate => Some(2.0 * knee),
            Phase::Steady | Phase::Part(_) => Some(knee),
        }
    }

    /// May a command of this cost go, with `in_flight` in the device? `times`: factor of the bound;
    /// of one that is stretched for many VMs less, but no less than once. One command may always
    /// go.
    pub fn allows(&self, in_flight: u64, cost: u64, times: f64) -> bool {
        let many = (self.stretch() * self.isolation).max(1.0);
        let times = (times / many).max(times.min(1.0));
        let bound = self.bound().map_or(FIRST, |bound| times * bound);
        in_flight == 0 || (in_flight + cost) as f64 <= bound
    }

    /// May a write of this cost go, with `in_flight` of writes in the device? They have their share
    /// of the bound, never several times that: a drive that has more writes than it can program
    /// keeps each write waiting for all before it, and many reads too.
    pub fn allows_write(&self, in_flight: u64, cost: u64) -> bool {
        let share = self.writes().max(WRITES_LEAST);
        let fits = |bound: f64| (in_flight + cost) as f64 <= share * bound;
        in_flight == 0 || self.bound().is_none_or(fits)
    }

    /// The device did only reads or only writes until now: what it does in the next [`SETTLES`] says
    /// nothing. `is_clean`: only reads, so how long a command takes is measured at once.
    pub fn settle(&mut self, now: Instant, is_clean: bool) {
        self.settled = now + SETTLES;
        if is_clean && self.phase == Phase::Steady {
            self.phase = Phase::Delay;
        }
        self.begin_epoch(now);
    }

    /// The device has work again, or a bound: the time before says nothing. How long a command takes
    /// is measured command by command, and goes on.
    pub fn resume(&mut self, now: Instant) {
        if self.phase != Phase::Delay {
            self.begin_epoch(now);
        }
    }

    /// A VM with much outstanding has a command done: see [`Governor::resume_after`].
    pub fn heavy(&mut self) {
        self.epoch.heavy = true;
    }

    /// The device has work again after `idle`. A VM with long requests, one at a time, makes short
    /// pauses that are no more than left out: from one to the next are too few commands for an epoch.
    pub fn resume_after(&mut self, now: Instant, idle: Nanos) {
        if self.epoch.heavy && idle <= IDLE_MOST {
            self.epoch.since = self.epoch.since + idle;
        } else {
            self.resume(now);
        }
    }

    /// Starts the measurement anew.
    fn begin_epoch(&mut self, now: Instant) {
        self.epoch = Epoch { since: now, ..Epoch::default() };
    }

    /// The device hangs: what was measured says nothing.
    pub fn stalled(&mut self, now: Instant) {
        self.phase = Phase::Steady;
        self.begin_epoch(now);
    }

    /// A command is done that was dispatched then, while others wait for the bound.
    pub fn completed(&mut self, now: Instant, is_write: bool, cost: u64, dispatched: Instant) {
        if self.phase == Phase::Delay && dispatched < self.epoch.since {
            return; // It had others beside it.
        }
        if self.phase != Phase::Delay && now < self.settled {
            self.epoch.since = now;
            return;
        }
        let kind = kind(is_write, cost);
        let epoch = &mut self.epoch;
        epoch.commands += 1;
        epoch.cost[kind] += cost;
        epoch.count[kind] += 1;
        epoch.took[kind] += now.since(dispatched).get();
        let length = now.since(epoch.since);
        let is_over = match self.phase {
            Phase::Delay => self.delay_is_known(),
            _ => self.epoch.commands >= EPOCH_COMMANDS && length >= EPOCH_LEAST,
        };
        if is_over {
            self.conclude(length);
            self.look();
            self.phase = Phase::Steady;
            self.begin_epoch(now);
        }
    }

    fn delay_is_known(&self) -> bool {
        let Epoch { commands, count, .. } = self.epoch;
        let is_missing = |kind: usize| self.shares[kind] >= SHARE_LEAST && count[kind] == 0;
        commands >= DELAY_COMMANDS_MAX || commands >= DELAY_COMMANDS && !(0..KINDS).any(is_missing)
    }

    /// Learns from the epoch, which took `length`.
    fn conclude(&mut self, length: Nanos) {
        if self.phase == Phase::Delay {
            self.unseen = self.epoch.count.map(|count| count == 0);
            for kind in (0..KINDS).filter(|&kind| !self.unseen[kind]) {
                let delays = &mut self.delays[usize::from(self.splits)][kind];
                delays.rotate_right(1);
                delays[0] = self.epoch.took[kind] as f64 / f64::from(self.epoch.count[kind]);
            }
            return;
        }
        let (total, bytes) = (self.epoch.total() as f64, self.epoch.bytes() as f64);
        let [rate, bytes] = [total, bytes].map(|sum| sum / length.get() as f64);
        for (share, &cost) in self.shares.iter_mut().zip(&self.epoch.cost) {
            *share = (*share + cost as f64 / total) / 2.0;
        }
        match self.phase {
            Phase::Rate => {
                self.rates.rotate_right(1);
                self.rates[0] = rate;
            }
            Phase::Part(trial) => {
                let asked = if trial > self.doublings { LONGER_BRINGS } else { SHORTER_KEEPS };
                let is_longer = trial > self.doublings;
                let is_better = bytes >= asked * self.steady;
                if is_longer {
                    self.rounds = if is_better { 1 } else { (2 * self.rounds).min(ROUNDS_MAX) };
                    self.rounds_left = self.rounds - 1;
                }
                self.doublings = if is_better { trial } else { self.doublings };
            }
            _ => {
                self.steady = bytes;
                self.steer(rate);
            }
        }
    }

    /// Look at what is known: rate times delay, and whether the delay of a kind that matters is
    /// missing.
    fn look(&mut self) {
        self.product = self.rate() * self.delay();
        let is_missing = |kind: usize| {
            self.shares[kind] >= SHARE_LEAST
                && !self.unseen[kind]
                && self.delay_of(kind).is_infinite()
        };
        self.is_missing = self.rate() > 0.0 && (0..KINDS).any(is_missing);
    }

    /// From this probe to the next: spread evenly, by the golden ratio.
    fn probe_after(&self) -> Nanos {
        let varied = u64::from(self.probes) * 618 * PROBE_VARIES_MS / 1000 % PROBE_VARIES_MS;
        PROBE_EVERY + Nanos::from_millis(varied)
    }

    /// Begin a probe when it is time. `splits`: long requests go in parts now.
    pub fn probe(&mut self, now: Instant, splits: bool) {
        if std::mem::replace(&mut self.splits, splits) != splits {
            self.begin_epoch(now);
            self.look();
        }
        if self.phase != Phase::Steady || now < self.settled {
            return;
        }
        let is_due = now.since(self.probed) >= self.probe_after() || self.bound().is_none();
        let is_missing = self.is_missing;
        if !is_due && !is_missing {
            return;
        }
        if is_due {
            self.unseen = [false; KINDS];
            self.look();
        }
        self.phase = match self.probes % 4 {
            _ if is_missing => Phase::Delay,
            0 => Phase::Delay,
            1 if self.rounds_left > 0 => {
                self.rounds_left -= 1;
                Phase::Rate
            }
            1 if self.doublings < DOUBLINGS_MAX => Phase::Part(self.doublings + 1),
            3 if self.doublings > 0 => Phase::Part(self.doublings - 1),
            _ => Phase::Rate,
        };
        self.probes += 1;
        (self.busy_before, self.busy) = (self.busy, 0);
        self.probed = now;
        self.begin_epoch(now);
    }
}

/// The bound, without a device.
#[cfg(test)]
mod tests {
    use super::*;

    /// A device that does a byte a nanosecond at best, and on which a command takes 100 µs at least.
    fn known(isolation: f64) -> Governor {
        let mut governor = Governor::new(isolation);
        governor.rates[0] = 1.0;
        governor.delays = [[[100_000.0; KEPT]; KINDS]; 2];
        governor.shares[SHORT_READS] = 1.0;
        governor.look();
        governor
    }

    /// The bound goes up while the device does less than it could and light VMs do not feel it, down
    /// while they do, and up again where the device would do too little.
    #[test]
    fn the_bound_follows_what_light_vms_feel() {
        let mut governor = known(0.5);
        let mut after = |slowdown: f64, rate: f64| {
            for _ in 0..200 {
                governor.begin_epoch(Instant::ZERO);
                governor.answered(false, 8192, Nanos::new((slowdown * 1e5) as u64));
                governor.answered(false, 1 << 20, Nanos::from_secs(1)); // Long reads say nothing.
                governor.steer(rate);
            }
            governor.bound().unwrap() / (1e5 * governor.gain())
        };
        assert_eq!(after(1.5, 0.9), 2.0, "as far as it may go");
        assert_eq!(after(2.0, 0.9), 2.0);
        assert_eq!(after(1.5, 0.99), 2.0, "all that the device can do");
        assert_eq!(after(3.0, 0.95), 1.0);
        let least = after(6.0, 0.95);
        assert!(
            least < 2.0 / 3.0,
            "far too slow: less than what just keeps the device busy: {least}"
        );
        assert!((after(3.0, 0.95) - least).abs() < 0.1 * least, "it stays there");
        assert!((after(1.5, 0.99) - least).abs() < 0.1 * least, "more would bring nothing");
        assert_eq!(after(3.0, 0.8), 2.0, "0.85 is the others'");
        assert_eq!(after(3.0, 0.87), 2.0);
        assert!(known(0.2).stretch_max() == 5.0 && known(1.0).stretch_max() == 1.0);
    }

    /// After a trial of the price the device is still fast: its rate then is not its best rate, and
    /// the time of a command is measured at once.
    #[test]
    fn what_a_device_does_right_after_a_trial_is_no_rate() {
        let mut governor = known(0.6);
        let from = Instant::ZERO + Nanos::from_secs(1);
        governor.settle(from, true);
        assert_eq!(governor.bound(), Some(0.0), "one command at a time");
        let at = |us: u64| from + Nanos::from_micros(us);
        (1..=8).for_each(|n| governor.completed(at(50 * n), false, 8192, at(50 * n - 50)));
        assert_eq!(governor.delay_of(SHORT_READS), 50_000.0);
        (0..200).for_each(|n| governor.completed(at(400 + n), false, 65_536, at(0)));
        assert_eq!(governor.rate(), 1.0, "it is too early");
        (0..64).for_each(|n| governor.completed(at(5_001 + 100 * n), false, 8192, at(5_000)));
        assert_eq!(governor.rate(), 1.0);
        assert!(governor.reached > 0.0, "an epoch was seen");
    }

    /// A device of a byte a nanosecond, on which a command takes 100 µs: writes have a quarter of
    /// the bound, or their share of the cost where that is more.
    #[test]
    fn writes_have_their_share_of_the_bound() {
        assert!(Governor::new(1.0).allows_write(1 << 40, 4096), "there is no bound yet");
        let mut governor = known(1.0);
        for (shares, most) in [([0.9, 0.0, 0.1, 0.0], 25_000), ([0.0, 0.4, 0.2, 0.4], 60_000)] {
            governor.shares = shares;
            governor.look();
            assert_eq!(governor.bound().map(f64::round), Some(100_000.0));
            assert!(governor.allows_write(most - 5_000, 4_900), "{shares:?}");
            assert!(!governor.allows_write(most - 5_000, 5_100), "{shares:?}");
        }
        assert!(governor.allows_write(0, 1 << 40), "one may always go");
    }

    /// The time of a light VM's short writes counts once it is known how long one takes alone. Without
    /// reads or writes of light VMs the bound stays at its gain.
    #[test]
    fn the_bound_follows_writes_of_light_vms_too() {
        let mut governor = known(0.5);
        governor.delays[0][SHORT_WRITES] = [f64::INFINITY; KEPT];
        let after = |governor: &mut Governor, writes: bool| {
            for _ in 0..200 {
                governor.begin_epoch(Instant::ZERO);
                if writes {
                    governor.answered(true, 8192, Nanos::from_micros(600));
                }
                governor.steer(0.95);
            }
            (governor.bound().unwrap() / (1e5 * governor.gain()) * 100.0).round()
        };
        assert_eq!(after(&mut governor, false), 100.0);
        assert_eq!(after(&mut governor, true), 100.0, "nobody knows what 600 us are");
        let at = |us: u64| Instant::ZERO + Nanos::from_micros(us);
        governor.settle(at(0), true);
        (1..=7).for_each(|n| governor.completed(at(50 * n), false, 8192, at(50 * n - 50)));
        assert_eq!(governor.bound(), Some(0.0), "one command at a time");
        governor.completed(at(600), true, 8192, at(500));
        assert_eq!(governor.delay_of(SHORT_WRITES), 100_000.0);
        assert_eq!(governor.delay_of(SHORT_READS), 50_000.0);
        governor.delays[0][SHORT_READS] = [100_000.0; KEPT];
        governor.look();
        assert!(after(&mut governor, true) < 67.0);
    }

    /// The kind that had all of the cost does not come while delays are measured: they are not measured
    /// for ever, one command at a time.
    #[test]
    fn a_probe_of_the_delay_ends_though_what_matters_does_not_come() {
        let mut governor = Governor::new(0.6);
        governor.rates[0] = 1.0;
        governor.shares[SHORT_READS + 1] = 1.0;
        let mut one_by_one = 0;
        for n in 1..20_000 {
            let now = Instant::ZERO + Nanos::from_micros(10 * n);
            governor.probe(now, true);
            one_by_one += u32::from(governor.bound() == Some(0.0));
            let dispatched = Instant::ZERO + Nanos::from_micros(10 * n - 5);
            governor.completed(now, false, 8192, dispatched);
        }
        assert!((1..=1_000).contains(&one_by_one), "{one_by_one} of 20,000");
    }

    /// A VM that reads once a second does not meet the doubled bound of a probe again and again, whenever
    /// it began.
    #[test]
    fn probes_do_not_fall_into_step_with_a_vm() {
        const STEP_US: u64 = 200;
        let mut governor = Governor::new(0.6);
        let mut doubled = Vec::new();
        for n in 1..60 * 1_000_000 / STEP_US {
            let now = Instant::ZERO + Nanos::from_micros(STEP_US * n);
            governor.probe(now, true);
            governor.completed(
                now,
                false,
                1 << 16,
                Instant::ZERO + Nanos::from_micros(STEP_US * (n - 1)),
            );
            doubled.push(governor.phase == Phase::Rate);
        }
        let second = (1_000_000 / STEP_US) as usize;
        let met = |from: usize| doubled.iter().skip(from).step_by(second).filter(|is| **is).count();
        let most = (0..second).map(met).max();
        assert!(most < Some(12), "{most:?} of 60 reads");
    }

    /// Requests of 32 parts that come one at a time: an epoch spans the pauses between them, and its
    /// rate leaves them out. One long pause, or short ones of a VM with little outstanding, begin anew.
    #[test]
    fn short_pauses_of_long_requests_do_not_end_an_epoch() {
        let rate = |pause: Nanos, is_heavy: bool| {
            let mut governor = Governor::new(0.6);
            governor.delays = [[[100_000.0; KEPT]; KINDS]; 2];
            governor.phase = Phase::Rate;
            let mut now = Instant::ZERO;
            for _ in 0..3 {
                now = now + pause;
                governor.resume_after(now, pause);
                for _ in 0..32 {
                    let sent = now;
                    now = now + Nanos::from_micros(32);
                    if is_heavy {
                        governor.heavy();
                    }
                    governor.completed(now, false, 32_000, sent);
                }
            }
            governor.rate()
        };
        assert_eq!(rate(Nanos::from_millis(1), true), 1.0);
        assert_eq!(rate(Nanos::from_millis(3), true), 0.0);
        assert_eq!(rate(Nanos::from_millis(1), false), 0.0);
    }
}
