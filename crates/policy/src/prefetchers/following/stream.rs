//! One stream of reads, and the pattern that it follows.
//!
//! A stream remembers its last two *runs*: stretches of reads that touch each
//! other. A read that
//!
//! - begins where one of them ends is **consecutive**,
//! - ends where one of them begins is **reverse**,
//! - lies as far from the beginning of a run as that run from the one before
//!   it is **strided** (a run is what a stride repeats, so that a record may be
//!   read in several requests).
//!
//! Anything else that joins the stream is a jump: it begins a run. Each read
//! counts with its length (the paper, 3.2). A guest's requests overtake each
//! other on their way here (two windows of read-ahead under way, several
//! vCPUs): the one that comes too early begins a run, and is counted as soon as
//! another closes the gap between the two runs.

use seekway_core::units::{Instant, Nanos};
use std::ops::AddAssign;

/// A read so near to where a stream was last belongs to it though it does not
/// follow its pattern: requests that overtake each other, holes in files, reads
/// to and fro in one place. Sectors: 2 MiB.
pub(super) const REACH: u64 = 4096;

/// A stretch of the disk, in sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Run {
    /// The first sector of the stretch.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

impl Run {
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// Where the next reads are expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// From the end of the last run on, ascending.
    Up,
    /// Before the start of the last run, descending.
    Down,
    /// Records of `len` sectors, each `jump` sectors from the one before.
    Stride { jump: i64, len: u64 },
}

/// Relation of a read to a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Relation {
    /// Follows the pattern, or closes a gap in it.
    Follows,
    /// Lies this number of sectors from where the stream was last.
    Near(u64),
}

/// Counts of a stream's reads, in sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// All that was read, by the pattern or not.
    pub read: u64,
    /// Those that followed the pattern.
    pub linear: u64,
    /// Those of `linear` that reached the disk.
    pub missed: u64,
    /// The part of `linear` that ascended: consecutive reads.
    up: u64,
    /// The part of `linear` that descended: reverse reads.
    down: u64,
    /// Proposed for the stream.
    pub proposed: u64,
}

impl Counts {
    fn plus(&self, other: &Counts) -> Counts {
        Counts {
            read: self.read + other.read,
            linear: self.linear + other.linear,
            missed: self.missed + other.missed,
            up: self.up + other.up,
            down: self.down + other.down,
            proposed: self.proposed + other.proposed,
        }
    }
}

/// The runs of a stream and its counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    run: Run,
    before: Option<Run>,
    /// From the start of the run before to that of this one; 0 where there is none.
    jump: i64,
    /// The jump before that, for when the last turns out to be none.
    jump_before: i64,
    /// Number of times that the jump was repeated.
    strides: u32,
    /// Sectors of the jump that are not counted as linear yet.
    pending: u64,
    /// Of this interval, and of the one before it.
    pub now: Counts,
    pub last: Counts,
    /// Linear sectors since the stream began or was lost.
    pub streak: u64,
    /// Linear reads since then.
    pub streak_reads: u32,
}

impl Stream {
    /// A stream that begins with `read`; `before` and `jump` where it is known
    /// to be the third of a stride.
    pub fn new(read: Run, stride_from: Option<Run>) -> Stream {
        let jump = stride_from.map_or(0, |b| read.start.wrapping_sub(b.start) as i64);
        Stream {
            run: read,
            before: stride_from,
            jump,
            strides: u32::from(stride_from.is_some()),
            now: Counts { read: read.len(), ..Counts::default() },
            ..Stream::default()
        }
    }

    /// All that [`Stream::relation`] looks at: where the last run began, the jump to
    /// it, and the stretch that this run and one beside it lie in.
    pub fn traces(&self) -> (u64, i64, Run) {
        (self.run.start, self.jump, self.beside().map_or(self.run, |before| join(self.run, before)))
    }

    /// Relation of `read` to the stream.
    pub fn relation(&self, read: Run) -> Relation {
        let follows = extends(self.run, read)
            || self.beside().is_some_and(|before| extends(before, read))
            || self.strides_to(read);
        if follows {
            return Relation::Follows;
        }
        let place = match self.pattern() {
            Pattern::Down => self.run.start,
            _ => self.run.end,
        };
        Relation::Near(read.start.abs_diff(place))
    }

    /// The run before, if it is so near that requests may have overtaken each
    /// other; two readers far apart are not one stream.
    fn beside(&self) -> Option<Run> {
        self.before.filter(|before| {
            let gap = self.run.start.saturating_sub(before.end);
            gap.max(before.start.saturating_sub(self.run.end)) <= REACH
        })
    }

    /// Does `read` begin a jump from where the last run began? Once the jump was
    /// repeated: or two jumps, or where one was left out?
    fn strides_to(&self, read: Run) -> bool {
        let (jump, twice) = (self.jump, self.jump.wrapping_mul(2));
        let from = |place: u64| read.start.wrapping_sub(place) as i64;
        let left_out = || {
            let before = self.before.map(|before| before.start);
            before.is_some_and(|before| {
                self.run.start.wrapping_sub(before) as i64 == twice && from(before) == jump
            })
        };
        let here = from(self.run.start);
        jump != 0 && (here == jump || self.strides > 0 && (here == twice || left_out()))
    }

    /// A read joins the stream; true if it follows the pattern. `missed` sectors
    /// of it reached the disk.
    pub fn read(&mut self, read: Run, missed: u64) -> bool {
        self.now.read += read.len();
        let linear = self.linear(read);
        if linear {
            self.now.missed += missed;
            self.streak_reads = self.streak_reads.saturating_add(1);
        } else {
            self.jump_to(read);
        }
        linear
    }

    fn linear(&mut self, read: Run) -> bool {
        if let Some(before) = self.beside()
            && closes(before, self.run, read)
        {
            let upwards = before.start < self.run.start;
            let len = read.len() + self.pending;
            self.count(len, if upwards { Pattern::Up } else { Pattern::Down });
            let (start, end) = (before.start.min(self.run.start), before.end.max(self.run.end));
            self.run = Run { start, end };
            (self.before, self.jump, self.strides, self.pending) = (None, self.jump_before, 0, 0);
        } else if extends(self.run, read) {
            self.count(read.len(), direction(self.run, read));
            self.run = join(self.run, read);
            // More than the record that was repeated: no stride any more.
            if self.before.is_none_or(|before| self.run.len() > before.len()) {
                self.strides = 0;
            }
        } else if let Some(before) = self.beside().filter(|&before| extends(before, read)) {
            self.count(read.len(), direction(before, read));
            self.before = Some(join(before, read));
        } else if self.strides_to(read) {
            let jump = self.jump;
            self.count(read.len(), Pattern::Stride { jump, len: 0 });
            if read.start.wrapping_sub(self.run.start) as i64 != -jump {
                (self.before, self.run) = (Some(self.run), read);
                self.strides = self.strides.saturating_add(1);
            }
            self.pending = 0;
        } else {
            return false;
        }
        true
    }

    fn count(&mut self, len: u64, pattern: Pattern) {
        self.now.linear += len;
        self.streak += len;
        match pattern {
            Pattern::Up => self.now.up += len,
            Pattern::Down => self.now.down += len,
            Pattern::Stride { .. } => {}
        }
    }

    fn jump_to(&mut self, read: Run) {
        self.jump_before = self.jump;
        self.jump = read.start.wrapping_sub(self.run.start) as i64;
        (self.before, self.run) = (Some(self.run), read);
        (self.strides, self.pending) = (0, read.len());
    }

    /// The pattern is lost: what it had is no evidence for what follows.
    pub fn lost(&mut self) {
        (self.streak, self.streak_reads) = (0, 0);
    }

    /// Where the next reads are expected.
    pub fn pattern(&self) -> Pattern {
        if let Some(before) = self.before.filter(|_| self.strides > 0) {
            return Pattern::Stride { jump: self.jump, len: before.len() };
        }
        match self.now.down + self.last.down > self.now.up + self.last.up {
            true => Pattern::Down,
            false => Pattern::Up,
        }
    }

    /// The run that the reader is in.
    pub fn run(&self) -> Run {
        self.run
    }

    /// Sectors read in this interval and the last.
    pub fn read_lately(&self) -> u64 {
        self.now.read + self.last.read
    }

    /// Linear share of this interval and the last, 0 to 1.
    pub fn share(&self) -> f64 {
        share(&self.now.plus(&self.last))
    }

    /// The interval is over.
    pub fn roll(&mut self) {
        self.last = std::mem::take(&mut self.now);
    }
}

/// Linear share of all blocks, 0 to 1.
pub(super) fn share(counts: &Counts) -> f64 {
    match counts.read {
        0 => 0.0,
        // A read out of turn may be counted an interval after it came.
        read => counts.linear.min(read) as f64 / read as f64,
    }
}

/// Does `read` make the run longer, at one end?
fn extends(run: Run, read: Run) -> bool {
    run.start < read.start && read.start <= run.end && run.end < read.end
        || read.end < run.end && run.start <= read.end && read.start < run.start
}

fn direction(run: Run, read: Run) -> Pattern {
    if read.start > run.start { Pattern::Up } else { Pattern::Down }
}

fn join(run: Run, read: Run) -> Run {
    Run { start: run.start.min(read.start), end: run.end.max(read.end) }
}

/// Does `read` fill what lies between the two?
fn closes(a: Run, b: Run, read: Run) -> bool {
    let (low, high) = if a.start < b.start { (a, b) } else { (b, a) };
    low.start < read.start
        && read.start <= low.end
        && high.start <= read.end
        && read.end < high.end
        && low.end < high.start
}

// Proposals of a stream: those that were made, and those that are still to be.

/// A stretch of a stream's future, up to `cursor` proposed and not read yet, and
/// `quota` sectors after it to be proposed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pattern: Pattern,
    /// Where the reader is expected next.
    at: u64,
    /// Where the next proposal begins (ends, downwards): all before it is proposed.
    cursor: u64,
    /// Sectors of the record at `cursor` that are proposed, for strides.
    offset: u64,
    /// Sectors still to be proposed.
    pub quota: u64,
}

/// Outcome of proposals, in sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Outcome {
    /// The reader came to them.
    pub used: u64,
    /// The reader went elsewhere before it came to them.
    pub wasted: u64,
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.used += other.used;
        self.wasted += other.wasted;
    }
}

impl Plan {
    /// Nothing is proposed yet.
    pub fn new(stream: &Stream) -> Plan {
        let pattern = stream.pattern();
        let at = expected(stream, pattern);
        Plan { pattern, at, cursor: at, offset: 0, quota: 0 }
    }

    /// Sectors proposed that the reader has not come to.
    pub fn ahead(&self) -> u64 {
        self.progress(self.cursor).unwrap_or(0) + self.offset
    }

    /// Where that lies; `None` for records that are strided over, and for nothing.
    pub fn stretch(&self) -> Option<Run> {
        let (start, end) = match self.pattern {
            Pattern::Up => (self.at, self.cursor),
            Pattern::Down => (self.cursor, self.at),
            Pattern::Stride { .. } => return None,
        };
        (start < end).then_some(Run { start, end })
    }

    /// Sectors of the pattern between where the reader was expected and `place`;
    /// `None` when it lies behind or beside.
    fn progress(&self, place: u64) -> Option<u64> {
        match self.pattern {
            Pattern::Up => place.checked_sub(self.at),
            Pattern::Down => self.at.checked_sub(place),
            Pattern::Stride { jump, len } => {
                let distance = place.wrapping_sub(self.at) as i64;
                let on_it = distance.checked_rem(jump) == Some(0);
                let records = distance.checked_div(jump).filter(|_| on_it)?;
                u64::try_from(records).ok()?.checked_mul(len)
            }
        }
    }

    /// The stream has read on; `linear` if by its pattern. When it went
    /// elsewhere, or on in another pattern, what was not proposed yet is dropped.
    pub fn follow(&mut self, stream: &Stream, linear: bool) -> Outcome {
        let ahead = self.ahead();
        let lost = Outcome { used: 0, wasted: ahead };
        let pattern = stream.pattern();
        if !self.pattern.continues(pattern) {
            *self = Plan::new(stream);
            return lost;
        }
        self.pattern = pattern;
        let at = expected(stream, pattern);
        match self.progress(at) {
            Some(advance) if advance <= ahead => {
                self.at = at;
                Outcome { used: advance, wasted: 0 }
            }
            // It reads faster than is proposed: what it has read itself is not to be.
            Some(advance) if linear => {
                let quota = self.quota.saturating_sub(advance - ahead);
                *self = Plan { quota, ..Plan::new(stream) };
                Outcome { used: ahead, wasted: 0 }
            }
            _ => {
                *self = Plan::new(stream);
                lost
            }
        }
    }

    /// The next proposal, at most `most` sectors of a disk of `capacity`.
    pub fn next(&mut self, most: u64, capacity: u64) -> Option<Run> {
        let most = most.min(self.quota);
        self.pass_record();
        let run = match self.pattern {
            Pattern::Up => {
                let end = self.cursor.saturating_add(most).min(capacity);
                Run { start: self.cursor, end }
            }
            // From outside, on a disk that has shrunk, nothing is begun.
            Pattern::Down if self.cursor > capacity => Run { start: 0, end: 0 },
            Pattern::Down => Run { start: self.cursor.saturating_sub(most), end: self.cursor },
            Pattern::Stride { len, .. } => {
                let start = self.cursor.saturating_add(self.offset);
                let end = self.cursor.saturating_add(len).min(capacity);
                Run { start, end: end.min(start.saturating_add(most)) }
            }
        };
        if run.start >= run.end {
            self.quota = 0; // the disk ends here
            return None;
        }
        self.quota -= run.len();
        match self.pattern {
            Pattern::Up => self.cursor = run.end,
            Pattern::Down => self.cursor = run.start,
            Pattern::Stride { .. } => {
                self.offset += run.len();
                self.pass_record();
            }
        }
        Some(run)
    }

    /// To the next record of a stride when this one is proposed.
    fn pass_record(&mut self) {
        if let Pattern::Stride { jump, len } = self.pattern
            && self.offset >= len
        {
            (self.cursor, self.offset) = (self.cursor.wrapping_add_signed(jump), 0);
        }
    }
}

impl Pattern {
    /// Is this the same pattern? Records may be of different lengths.
    fn continues(self, other: Pattern) -> bool {
        match (self, other) {
            (Pattern::Stride { jump, .. }, Pattern::Stride { jump: other, .. }) => jump == other,
            _ => self == other,
        }
    }
}

/// Where a stream's reader is expected next.
fn expected(stream: &Stream, pattern: Pattern) -> u64 {
    match pattern {
        Pattern::Up => stream.run().end,
        Pattern::Down => stream.run().start,
        Pattern::Stride { jump, .. } => stream.run().start.wrapping_add_signed(jump),
    }
}

// Two records: what became of proposals, judged when there is enough of it and forgotten in
// time; and how far readers go on where they begin.

/// Sectors of proposals, used or wasted, after which they are judged.
const SAMPLE: u64 = 2048;

/// They were worth it when this share was used: what the paper finds with 0.60.
const USEFUL: f64 = 0.84;

/// Intervals after which nothing is left to forget.
const FORGOTTEN: u64 = 256;

/// Runs after which half of what is known of earlier ones is forgotten.
const RUNS: u32 = 64;

/// Runs that say how the next goes on.
const RUNS_MIN: u32 = 8;

/// Runs of a process's reads, or of all untagged ones of a VM, and how far they go on: its linear
/// share (the paper, 3.2) by runs, for one that has just begun and has no share of its own yet.
#[derive(Default)]
pub(super) struct Runs {
    begun: u32,
    /// Those of them that had a second read.
    gone_on: u32,
    /// Sectors after their first reads.
    sectors: u64,
}

impl Runs {
    pub fn begin(&mut self) {
        if self.begun >= RUNS {
            (self.begun, self.gone_on) = (self.begun / 2, self.gone_on / 2);
            self.sectors /= 2;
        }
        self.begun += 1;
    }

    /// Counts `sectors` by which a run has gone on; `is_second`: after its first read.
    pub fn go_on(&mut self, is_second: bool, sectors: u64) {
        self.gone_on += u32::from(is_second);
        self.sectors = self.sectors.saturating_add(sectors);
    }

    /// Sectors that one goes on for, on average, if more than `share` of them go on; else none.
    /// The last has just begun, and is not counted.
    pub fn further(&self, share: f64) -> u64 {
        let before = self.begun.saturating_sub(1);
        let do_go_on = before >= RUNS_MIN && f64::from(self.gone_on) > share * f64::from(before);
        if do_go_on { self.sectors / u64::from(before) } else { 0 }
    }
}

/// Outcome of proposals since they were last judged.
#[derive(Default)]
pub(super) struct Record {
    outcome: Outcome,
    /// When that was, or the end of the last interval that was told to be without.
    since: Instant,
}

impl Record {
    /// Were enough of the proposals of use? `None` until there are enough to tell.
    pub fn judge(&mut self, now: Instant, outcome: Outcome) -> Option<bool> {
        self.outcome += outcome;
        let Outcome { used, wasted } = self.outcome;
        if used + wasted < SAMPLE {
            return None;
        }
        *self = Record { outcome: Outcome::default(), since: now };
        Some(used as f64 >= USEFUL * (used + wasted) as f64)
    }

    /// Whole intervals that went by without a judgement, each told once.
    pub fn forget(&mut self, now: Instant, interval: Nanos) -> u64 {
        let idle = now.since(self.since);
        if idle < interval {
            return 0;
        }
        let count = idle.get() / interval.get();
        self.since = self.since + Nanos::new(count * interval.get());
        count.min(FORGOTTEN)
    }
}

#[cfg(test)]
mod record_tests {
    use super::*;

    fn runs(with_second: u32, without: u32) -> Runs {
        let mut runs = Runs::default();
        for n in 0..with_second + without {
            runs.begin();
            if n < with_second {
                runs.go_on(true, 8);
                runs.go_on(false, 24);
            }
        }
        runs.begin();
        runs
    }

    #[test]
    fn runs_say_how_far_the_next_goes_on() {
        assert_eq!(runs(7, 0).further(0.6), 0, "too few");
        assert_eq!(runs(8, 0).further(0.6), 32);
        assert_eq!(runs(7, 3).further(0.6), 22);
        assert_eq!(runs(6, 4).further(0.6), 0, "not more than the share");
    }

    #[test]
    fn runs_of_long_ago_count_for_little() {
        let mut runs = runs(1000, 0);
        (0..100).for_each(|_| runs.begin());
        assert_eq!(runs.further(0.6), 0);
    }
}
