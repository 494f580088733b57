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
