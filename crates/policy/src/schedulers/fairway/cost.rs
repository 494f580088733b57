//! Cost of a command on a device without a head, as a number of bytes: its length, and a constant
//! for the command itself. Shares and the governor count in it.

use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos, Sectors};

/// Bytes that a command costs on top of its length. It lies between the drives of the profiles:
/// a 4 KiB read then costs an eighth of a 64 KiB one, not a sixteenth.
const COMMAND_BYTES: u64 = 4096;

/// Longer requests cost as much as this one: 8 GiB.
const SECTORS_MAX: u64 = 1 << 24;

/// The cost of a command, in bytes.
pub fn of_command(len: Sectors) -> u64 {
    of_more(len) + COMMAND_BYTES
}

/// The cost of what is added to a command, in bytes.
pub fn of_more(len: Sectors) -> u64 {
    Sectors::new(len.get().min(SECTORS_MAX)).bytes()
}

/// Cost that counts in the shares. `write_times`: cost of a write over that of a read.
pub fn in_shares(op: Op, cost: u64, write_times: f64) -> u64 {
    if op == Op::Write { (cost as f64 * write_times) as u64 } else { cost }
}

/// Cost of commands in flight: of all, and of writes.
#[derive(Clone, Copy, Default)]
pub struct InFlight {
    pub all: u64,
    pub writes: u64,
}

impl InFlight {
    pub fn of(op: Op, all: u64) -> InFlight {
        InFlight { all, writes: if op == Op::Write { all } else { 0 } }
    }
    pub fn plus(self, more: InFlight) -> InFlight {
        InFlight { all: self.all + more.all, writes: self.writes + more.writes }
    }
    /// The difference; neither figure goes below zero.
    pub fn less(self, some: InFlight) -> InFlight {
        let less = u64::saturating_sub;
        InFlight { all: less(self.all, some.all), writes: less(self.writes, some.writes) }
    }
    pub fn min(self, most: InFlight) -> InFlight {
        InFlight { all: self.all.min(most.all), writes: self.writes.min(most.writes) }
    }
}

// Cost of a write over that of a read of the same length, learnt by trials.
//
// A device that is never without reads and writes does not show what each of them takes: one rate
// of each is one equation with two unknowns. So from time to time, for some milliseconds, only
// writes go, and then only reads; light VMs go on as ever. The rates of these two *trials* give
// both costs. Writes come first: after reads alone the drive's buffer would be empty, and would
// take in a few milliseconds what the drive programs in many.
//
// Other ways: iocost's model (Heo and others, ASPLOS 2022) is measured before the disk is used,
// Gimbal's write cost (Min and others, SIGCOMM 2021) follows the latency.

/// The price until both rates are known. Published figures: 2.6 (Intel DC P3700, 4 KiB: 460,000
/// reads and 175,000 writes a second), 2.5 (X25-M G2, in sequence: 250 and 100 MB/s).
const TIMES_DEFAULT: f64 = 2.0;

/// The lowest and the highest price: ReFlex (ASPLOS 2017) measured 10.
const TIMES: std::ops::RangeInclusive<f64> = 0.25..=20.0;

/// From one pair of trials to the next.
const EVERY: Nanos = Nanos::from_secs(4);

/// Factor of that wait at most: it doubles after each pair that showed nothing.
const EVERY_TIMES_MAX: u64 = 16;

/// Fewest commands and least time of a part of a trial. A trial has two parts and goes on while its
/// rate grows by more than a fifth from one to the next: the device still works on what it had
/// begun or buffered before. A drive that collects garbage needs 12 ms after writes.
const COMMANDS: u32 = 32;

const LEAST: Nanos = Nanos::from_millis(5);

const GROWS: f64 = 1.2;

/// Time after which a trial is given up.
const MOST: Nanos = Nanos::from_millis(50);

/// Reads and writes are both a part of the load if each has a 20th (the divisor) of what was sent
/// recently.
const PART_LEAST: u64 = 20;

/// Bytes of cost that count as sent recently; older ones count less.
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
    part: Part,
    /// The rate of the part before.
    before: Option<f64>,
}

/// A part of a trial: its commands and their cost.
struct Part {
    since: Instant,
    commands: u32,
    cost: u64,
}

impl Trial {
    fn new(class: Class, now: Instant) -> Trial {
        Trial { class, since: now, part: Part::new(now), before: None }
    }

    /// A command is done. The rate of the class, in cost a nanosecond, when the trial shows it.
    fn completed(&mut self, now: Instant, op: Op, cost: u64) -> Option<f64> {
        let part = &mut self.part;
        if Class::of(op) == self.class {
            part.commands += 1;
            part.cost += cost;
        }
        let took = now.since(part.since);
        if part.commands < COMMANDS || took < LEAST {
            return None;
        }
        let rate = part.cost as f64 / took.get() as f64;
        self.part = Part::new(now);
        self.before.replace(rate).filter(|before| rate <= GROWS * before).map(|_| rate)
    }
}

impl Part {
    fn new(now: Instant) -> Part {
        Part { since: now, commands: 0, cost: 0 }
    }
}

pub struct Price {
    /// Cost of a write over a read of as many bytes.
    times: f64,
    /// Somebody has set it.
    is_set: bool,
    trial: Option<Trial>,
    /// Cost of reads and of writes that heavy VMs sent recently.
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

    /// Cost of a write over a read of as many bytes.
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

    /// Is it time for a pair of trials?
    pub fn is_due(&self, now: Instant) -> bool {
        let all = self.sent.iter().sum::<u64>();
        let is_mixed = all > LATELY / 4 && self.sent.iter().all(|cost| cost * PART_LEAST >= all);
        let wait = Nanos::new(self.wait * EVERY.get());
        let has_waited = self.tried.is_none_or(|at| now.since(at) >= wait);
        !self.is_set && is_mixed && has_waited && self.trial.is_none()
    }

    /// Begin a pair of trials.
    pub fn begin(&mut self, now: Instant) {
        self.postpone(now);
        self.trial = Some(Trial::new(Class::Writes, now));
    }

    /// The next pair is due as if one began now.
    pub fn postpone(&mut self, now: Instant) {
        self.tried = Some(now);
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

    /// A command is done. `true`: another class goes from now on.
    pub fn completed(&mut self, now: Instant, op: Op, cost: u64) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let Some(rate) = trial.completed(now, op, cost) else { return false };
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
mod price_tests {
    use super::*;

    /// As many reads as writes.
    fn mix(price: &mut Price) {
        for _ in 0..1000 {
            price.sends(Op::Read, 8192);
            price.sends(Op::Write, 8192);
        }
    }

    /// Runs a device that takes `read` or `write` for 4 KiB, for as long as a pair of trials lasts;
    /// the first commands of each trial are still of what was buffered before.
    fn run(price: &mut Price, from: Instant, [read, write]: [u64; 2]) -> Instant {
        let mut now = from;
        mix(price);
        assert!(price.is_due(now));
        price.begin(now);
        while let Some(withheld) = price.withheld() {
            let (op, took) = match withheld {
                Class::Writes => (Op::Read, read),
                Class::Reads => (Op::Write, write),
            };
            now = now + Nanos::new(took);
            price.completed(now, op, 8192);
        }
        now
    }

    #[test]
    fn a_write_costs_what_it_takes_over_what_a_read_takes() {
        let mut price = Price::new(0.0);
        assert_eq!(price.times(), TIMES_DEFAULT);
        let now = run(&mut price, Instant::ZERO, [100_000, 410_000]);
        assert!((price.times() - 4.1).abs() < 0.01, "{}", price.times());
        mix(&mut price);
        assert!(!price.is_due(now), "the next pair is not due yet");
        (0..1000).for_each(|_| price.sends(Op::Read, 8192));
        assert!(!price.is_due(now + EVERY), "there are no writes to speak of");
    }

    #[test]
    fn one_strange_pair_of_trials_moves_the_price_a_little() {
        let mut price = Price::new(0.0);
        let mut now = Instant::ZERO;
        for times in [2, 2, 2, 2, 32] {
            now = run(&mut price, now, [100_000, 100_000 * times]) + EVERY;
        }
        assert!((price.times() - 2.0 * 10_f64.powf(0.25)).abs() < 0.01, "{}", price.times());
    }

    /// After writes the drive still collects garbage: reads are slow at first.
    #[test]
    fn a_trial_goes_on_while_its_rate_grows() {
        let mut price = Price::new(0.0);
        let (mut now, mut reads) = (Instant::ZERO, 0);
        mix(&mut price);
        price.begin(now);
        while let Some(withheld) = price.withheld() {
            let (op, took) = match (withheld, reads) {
                (Class::Reads, _) => (Op::Write, 130_000),
                (_, 0..50) => (Op::Read, 100_000),
                (_, 50..200) => (Op::Read, 30_000),
                _ => (Op::Read, 10_000),
            };
            reads += u32::from(op == Op::Read);
            now = now + Nanos::new(took);
            price.completed(now, op, 8192);
        }
        assert!((price.times() - 13.0).abs() < 0.1, "{}", price.times());
    }

    /// Nothing comes back: the trial ends by its time.
    #[test]
    fn a_trial_does_not_last() {
        let mut price = Price::new(0.0);
        mix(&mut price);
        price.begin(Instant::ZERO);
        assert_eq!(price.until(), Some(Instant::ZERO + MOST));
        price.give_up();
        assert_eq!(price.withheld(), None);
        let later = Instant::ZERO + EVERY;
        assert!(!price.is_due(later) && price.is_due(later + EVERY), "twice as long");
    }
}
