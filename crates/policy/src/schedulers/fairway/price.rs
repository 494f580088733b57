//! What a write costs, in reads of as much cost: learnt.
//!
//! A device that is never without reads and writes does not show what each of them takes: one
//! rate of each is one equation with two unknowns. So from time to time, for some milliseconds,
//! only writes go, and then only reads; light VMs go on as ever. The rates of these two *trials*
//! say what each takes. Writes come first: after reads alone the drive's buffer would be empty, and
//! would take in a few milliseconds what the drive programs in many.
//!
//! Others do it in other ways: iocost's model (Heo and others, ASPLOS 2022) is measured before the
//! disk is used, Gimbal's write cost (Min and others, SIGCOMM 2021) follows the latency.

use crate::request::Op;
use crate::units::{Instant, Nanos};

/// The price until both rates are known. Published figures: 2.6 (Intel DC P3700, 4 KiB: 460,000
/// reads and 175,000 writes a second), 2.5 (X25-M G2, in sequence: 250 and 100 MB/s).
const TIMES_DEFAULT: f64 = 2.0;
/// The lowest and the highest price: ReFlex (ASPLOS 2017) measured 10.
const TIMES: std::ops::RangeInclusive<f64> = 0.25..=20.0;
/// From one pair of trials to the next.
const EVERY: Nanos = Nanos::from_secs(4);
/// After a pair that showed nothing twice as long, and so on up to so many times.
const EVERY_TIMES_MAX: u64 = 16;
/// A trial has so many commands and takes so long, at least. Its first half does not count: what
/// the device had begun or buffered before belongs to nobody.
const COMMANDS: u32 = 64;
const LEAST: Nanos = Nanos::from_millis(10);
/// It is given up after so long.
const MOST: Nanos = Nanos::from_millis(50);
/// Reads and writes are both a part of the load if both have this part of what was sent lately.
const PART_LEAST: u64 = 20;
/// What was sent lately: so many bytes of cost, older ones less.
const LATELY: u64 = 4 << 20;
/// Pairs of trials that the price is the mean of.
const KEPT: usize = 4;

/// Reads or writes: policies see nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Reads,
    Writes,
}

impl Class {
    fn of(op: Op) -> Class {
        if op == Op::Read { Class::Reads } else { Class::Writes }
    }
}

/// While it lasts only one class goes.
struct Trial {
    class: Class,
    since: Instant,
    commands: u32,
    /// When what counts began, at how many commands, and the cost since then.
    counts: Option<(Instant, u32, u64)>,
    /// Commands since then that left the device too little to do.
    idle: u32,
}

impl Trial {
    fn new(class: Class, now: Instant) -> Trial {
        Trial { class, since: now, commands: 0, counts: None, idle: 0 }
    }

    /// Cost a nanosecond, once the trial has seen enough.
    fn completed(&mut self, now: Instant, op: Op, cost: u64, is_busy: bool) -> Option<f64> {
        let counts = Class::of(op) == self.class;
        if counts {
            self.commands += 1;
            self.idle += u32::from(!is_busy);
        }
        let length = now.since(self.since);
        match &mut self.counts {
            None if 2 * self.commands >= COMMANDS && 2 * length.get() >= LEAST.get() => {
                self.counts = Some((now, self.commands, 0));
                self.idle = 0;
                None
            }
            None => None,
            Some((since, before, sum)) => {
                *sum += if counts { cost } else { 0 };
                let took = now.since(*since).get();
                let is_over = 2 * (self.commands - *before) >= COMMANDS && length >= LEAST;
                (is_over && took > 0).then(|| *sum as f64 / took as f64)
            }
        }
    }
}

pub struct Price {
    /// What a write costs over a read of as many bytes.
    times: f64,
    /// Somebody has set it.
    is_set: bool,
    trial: Option<Trial>,
    /// Cost of reads and of writes that heavy VMs sent lately.
    sent: [u64; 2],
    /// When the last pair of trials began, and how many times [`EVERY`] the next one waits.
    tried: Option<Instant>,
    wait: u64,
    /// The rate of writes, of the pair that is under way.
    writes: Option<f64>,
    /// The logarithms of the prices that the last pairs found, the latest first.
    found: Vec<f64>,
}

impl Price {
    /// `set`: the price, or 0 to learn it.
    pub fn new(set: f64) -> Price {
        Price {
            times: if set > 0.0 { set } else { TIMES_DEFAULT },
            is_set: set > 0.0,
            trial: None,
            sent: [0; 2],
            tried: None,
            wait: 1,
            writes: None,
            found: Vec::new(),
        }
    }

    /// What a write costs over a read of as many bytes.
    pub fn times(&self) -> f64 {
        self.times
    }

    /// The class that may not go now.
    pub fn withheld(&self) -> Option<Class> {
        Some(match self.trial.as_ref()?.class {
            Class::Reads => Class::Writes,
            Class::Writes => Class::Reads,
        })
    }

    /// A VM with much outstanding sends a command of this cost.
    pub fn sends(&mut self, op: Op, cost: u64) {
        self.sent[Class::of(op) as usize] += cost;
        if self.sent.iter().sum::<u64>() > LATELY {
            self.sent = self.sent.map(|cost| cost / 2);
        }
    }

    /// Begin a pair of trials, if it is time.
    pub fn begin(&mut self, now: Instant) -> bool {
        let all = self.sent.iter().sum::<u64>();
        let is_mixed = all > LATELY / 4 && self.sent.iter().all(|cost| cost * PART_LEAST >= all);
        let wait = Nanos::new(self.wait * EVERY.get());
        let is_due = self.tried.is_none_or(|at| now.since(at) >= wait);
        if self.is_set || !is_mixed || !is_due || self.trial.is_some() {
            return false;
        }
        self.tried = Some(now);
        self.trial = Some(Trial::new(Class::Writes, now));
        true
    }

    /// When the trial that is under way is given up.
    pub fn until(&self) -> Option<Instant> {
        self.trial.as_ref().map(|trial| trial.since + MOST)
    }

    /// The trial shows nothing.
    pub fn give_up(&mut self) {
        (self.trial, self.writes) = (None, None);
        self.wait = (2 * self.wait).min(EVERY_TIMES_MAX);
    }

    /// A command is done; `is_busy`: the device still has enough to do. `true`: another class goes
    /// from now on.
    pub fn completed(&mut self, now: Instant, op: Op, cost: u64, is_busy: bool) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let Some(rate) = trial.completed(now, op, cost, is_busy) else { return false };
        if trial.idle > COMMANDS / 16 {
            self.give_up();
            return true;
        }
        self.trial = match self.writes.take() {
            None => {
                self.writes = Some(rate);
                Some(Trial::new(Class::Reads, now))
            }
            Some(writes) => {
                self.wait = 1;
                self.found.truncate(KEPT - 1);
                self.found.insert(0, (rate / writes).clamp(*TIMES.start(), *TIMES.end()).ln());
                self.times = (self.found.iter().sum::<f64>() / self.found.len() as f64).exp();
                None
            }
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many reads as writes.
    fn mix(price: &mut Price) {
        for _ in 0..1000 {
            price.sends(Op::Read, 8192);
            price.sends(Op::Write, 8192);
        }
    }

    /// A device that takes so long for a read and for a write of 4 KiB, as long as a pair of trials
    /// lasts; the first commands of each trial are still of what was buffered before.
    fn run(price: &mut Price, from: Instant, [read, write]: [u64; 2], is_busy: bool) -> Instant {
        let mut now = from;
        mix(price);
        assert!(price.begin(now));
        while let Some(withheld) = price.withheld() {
            let (op, took) = match withheld {
                Class::Writes => (Op::Read, read),
                Class::Reads => (Op::Write, write),
            };
            now = now + Nanos::new(took);
            price.completed(now, op, 8192, is_busy);
        }
        now
    }

    #[test]
    fn a_write_costs_what_it_takes_over_what_a_read_takes() {
        let mut price = Price::new(0.0);
        assert_eq!(price.times(), TIMES_DEFAULT);
        let now = run(&mut price, Instant::ZERO, [100_000, 410_000], true);
        assert!((price.times() - 4.1).abs() < 0.01, "{}", price.times());
        mix(&mut price);
        assert!(!price.begin(now), "the next pair is not due yet");
        (0..1000).for_each(|_| price.sends(Op::Read, 8192));
        assert!(!price.begin(now + EVERY), "there are no writes to speak of");
    }

    #[test]
    fn what_was_not_busy_says_nothing() {
        let mut price = Price::new(0.0);
        run(&mut price, Instant::ZERO, [100_000, 410_000], false);
        assert_eq!(price.times(), TIMES_DEFAULT);
    }

    #[test]
    fn one_strange_pair_of_trials_moves_the_price_a_little() {
        let mut price = Price::new(0.0);
        let mut now = Instant::ZERO;
        for times in [2, 2, 2, 2, 32] {
            now = run(&mut price, now, [100_000, 100_000 * times], true) + EVERY;
        }
        assert!((price.times() - 2.0 * 10_f64.powf(0.25)).abs() < 0.01, "{}", price.times());
    }

    /// Nothing comes back: the trial ends by its time.
    #[test]
    fn a_trial_does_not_last() {
        let mut price = Price::new(0.0);
        mix(&mut price);
        assert!(price.begin(Instant::ZERO));
        assert_eq!(price.until(), Some(Instant::ZERO + MOST));
        price.give_up();
        assert_eq!(price.withheld(), None);
        let later = Instant::ZERO + EVERY;
        assert!(!price.begin(later) && price.begin(later + EVERY), "twice as long");
    }
}
