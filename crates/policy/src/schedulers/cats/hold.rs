//! The busdriver delay: the time that the policy waits, after a completion, for a nearer read
//! rather than go where the plan says (algorithms.md, section 3.3).
//!
//! `busdriver=7ms` is the paper's form: always that long. `auto` asks what a
//! wait is worth, from two things that it can see without waiting:
//!
//! - **When does the successor come?** The *successor* of a command is a read
//!   that begins where it ended, or that lies in what the drive has read ahead
//!   for it. At each opportunity to wait the command is *watched* for up to
//!   [`BINS`] ms, whether the policy waits or goes elsewhere: a guest's think
//!   time does not depend on it. The gaps are counted in bins of 1 ms, for each
//!   VM and apart for commands that went on with a stream and for others.
//! - **What does it save?** The service time of successors that went *at once*,
//!   before any other command, against those that went *late*. Where the drive's
//!   cache still has the data when the successor's turn comes the two are alike,
//!   and no wait is worth anything, however likely the successor is.
//!
//! Then waiting up to the end of bin k is worth, in device time, Σ P(gap in bin i)·(saving - time
//! waited) - P(later)·(time waited), and the policy waits until the best k, if that is worth more
//! than nothing. The wait of those that are queued counts no further: a wait that saves device time
//! serves them too, and any other would have to be weighed against the length of the queue, which
//! only makes waiting worse.
//!
//! Each of the two means grows stale when the policy always does the other
//! thing, so now and then it does what it would not: seldom, and the more
//! seldom the longer nothing changes.

use seekway_core::queues::Slots;
use seekway_core::request::{Extent, Request, RequestId, VmId};
use seekway_core::units::{Instant, Nanos, Sectors};

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
