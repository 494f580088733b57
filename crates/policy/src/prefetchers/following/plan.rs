//! Proposals of a stream: those that were made, and those that are still to be.

use super::stream::{Pattern, Run, Stream};
use std::ops::AddAssign;

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
