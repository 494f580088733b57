//! The policy's model of the drive's cache, and the pending reads that it predicts as hits
//! (algorithms.md, section 3.1).
//!
//! A ring of spans, each a segment, replaced in the order in which they were
//! written. Every command writes one span, hits too: from its start to its end
//! and the sectors that the drive reads ahead. When that is more than a
//! segment it wraps round within it, and the segment keeps the last of it.
//!
//! **Commands, not requests.** The drive gives a segment to a command. What is
//! coalesced into one is written as one span here: counted by request, a
//! stream of short reads would push everything else out of the ring while in
//! the drive it holds a single segment.
//!
//! **Bounded work.** Each span knows one pending read that it holds, the lowest
//! of them, its *candidate*: a span that changes, or whose candidate leaves,
//! looks for another among the first [`LOOK_MAX`] reads that start within it;
//! a read that arrives is compared with each span. So a step costs some tens
//! of comparisons and a few searches, whatever the length of the queue. A read
//! behind more than `LOOK_MAX` others that begin in a span and do not fit into
//! it is not found there; it is served as any other.

use seekway_core::queues::{LbaQueue, Pool};
use seekway_core::request::{Extent, Request, RequestId};
use seekway_core::units::{Instant, Lba, Sectors};

/// Most reads that a span looks at for a candidate. 221 sectors hold 27 pages.
pub const LOOK_MAX: usize = 64;

/// The lowest pending read that a span holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    place: (Lba, RequestId),
    arrived: Instant,
}

/// The spans that the drive's segments are believed to hold.
#[derive(Default)]
pub struct Shadow {
    segment: Sectors,
    prefetch: Sectors,
    /// Sectors [start, end) of each segment; empty when start = end.
    spans: Vec<(Lba, Lba)>,
    candidates: Vec<Option<Candidate>>,
    /// Number of spans with a candidate.
    holding: usize,
    /// The segment that the next command is written to.
    next: usize,
    /// The last command, and its segment.
    last: Option<(usize, Extent)>,
    /// Reads looked at in all, so that a test can count the work.
    #[cfg(test)]
    pub looked: usize,
}

impl Shadow {
    /// An empty cache of that many segments; none at all predicts nothing.
    pub fn new(segments: usize, segment: Sectors, prefetch: Sectors) -> Self {
        Shadow {
            segment,
            prefetch,
            spans: vec![(Lba::ZERO, Lba::ZERO); segments],
            candidates: vec![None; segments],
            ..Shadow::default()
        }
    }

    /// End of what the cache holds from `lba` on: the furthest end of a span around it, or `lba`
    /// itself.
    pub fn reach(&self, lba: Lba) -> Lba {
        let around = self.spans.iter().filter(|&&(start, _)| start <= lba);
        around.map(|&(_, end)| end).fold(lba, Lba::max)
    }

    /// Is a read of this extent a predicted hit: does one span hold all of it?
    pub fn holds(&self, extent: Extent) -> bool {
        self.reach(extent.start()) >= extent.end()
    }

    /// A command begins with this request.
    pub fn begin(&mut self, extent: Extent, reads: &LbaQueue, pool: &Pool) {
        if !self.spans.is_empty() {
            let segment = self.next;
            self.next = (self.next + 1) % self.spans.len();
            self.write(segment, extent, reads, pool);
        }
    }

    /// The last command goes on with this request, which continues it.
    pub fn extend(&mut self, extent: Extent, reads: &LbaQueue, pool: &Pool) {
        if let Some((segment, command)) = self.last {
            let whole = Extent::new(command.start(), command.len() + extent.len());
            self.write(segment, whole.unwrap_or(extent), reads, pool);
        }
    }

    fn write(&mut self, segment: usize, command: Extent, reads: &LbaQueue, pool: &Pool) {
        let end = command.end() + self.prefetch;
        let kept = Lba::new(end.get().saturating_sub(self.segment.get()));
        self.spans[segment] = (command.start().max(kept), end);
        self.last = Some((segment, command));
        self.look(segment, reads, pool);
    }

    /// Find a segment's candidate anew.
    fn look(&mut self, segment: usize, reads: &LbaQueue, pool: &Pool) {
        let (start, end) = self.spans[segment];
        let mut found = None;
        for place in reads.ascending(start).take(LOOK_MAX).take_while(|&(lba, _)| lba < end) {
            #[cfg(test)]
            (self.looked += 1);
            let Some(read) = pool.get(place.1) else { continue };
            if read.extent.end() <= end {
                found = Some(Candidate { place, arrived: read.arrived });
                break;
            }
        }
        self.set(segment, found);
    }

    fn set(&mut self, segment: usize, candidate: Option<Candidate>) {
        self.holding += usize::from(candidate.is_some());
        self.holding -= usize::from(self.candidates[segment].is_some());
        self.candidates[segment] = candidate;
    }

    /// A read has joined the queue.
    pub fn arrived(&mut self, read: &Request) {
        let (start, end) = (read.extent.start(), read.extent.end());
        for segment in 0..self.spans.len() {
            let (from, to) = self.spans[segment];
            if from <= start && end <= to {
                let place = (start, read.id);
                let lower = self.candidates[segment].is_none_or(|c| place < c.place);
                if lower {
                    self.set(segment, Some(Candidate { place, arrived: read.arrived }));
                }
            }
        }
    }

    /// A read has left the queue.
    pub fn left(&mut self, read: &Request, reads: &LbaQueue, pool: &Pool) {
        if self.holding == 0 {
            return;
        }
        for segment in 0..self.spans.len() {
            if self.candidates[segment].is_some_and(|c| c.place.1 == read.id) {
                self.look(segment, reads, pool);
            }
        }
    }

    /// The predicted hit that goes first: of the spans' candidates the one that
    /// arrived first; at the same time, the lower slot.
    pub fn first(&self) -> Option<RequestId> {
        if self.holding == 0 {
            return None;
        }
        let candidates = self.candidates.iter().flatten();
        candidates.min_by_key(|c| (c.arrived, c.place.1)).map(|c| c.place.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::request::{Op, VmId};

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(Lba::new(start), Sectors::new(len)).unwrap()
    }

    #[test]
    fn a_span_longer_than_a_segment_keeps_its_last_part() {
        let (reads, pool) = (LbaQueue::new(), Pool::new());
        let mut shadow = Shadow::new(2, Sectors::new(221), Sectors::new(64));
        shadow.begin(extent(1_000, 157), &reads, &pool);
        assert!(shadow.holds(extent(1_000, 221)), "just a segment");
        shadow.begin(extent(5_000, 300), &reads, &pool);
        assert!(!shadow.holds(extent(5_000, 8)) && !shadow.holds(extent(5_142, 8)));
        assert!(shadow.holds(extent(5_143, 8)) && shadow.holds(extent(5_356, 8)));
        assert!(!shadow.holds(extent(5_357, 8)));
        shadow.begin(extent(9_000, 8), &reads, &pool);
        assert!(!shadow.holds(extent(1_000, 8)), "the first segment is written again");
        assert!(shadow.holds(extent(5_200, 8)));
    }

    #[test]
    fn what_continues_a_command_takes_no_segment() {
        let (reads, pool) = (LbaQueue::new(), Pool::new());
        let mut shadow = Shadow::new(2, Sectors::new(221), Sectors::new(64));
        shadow.begin(extent(1_000, 8), &reads, &pool);
        shadow.begin(extent(5_000, 8), &reads, &pool);
        shadow.extend(extent(5_008, 8), &reads, &pool);
        shadow.extend(extent(5_016, 8), &reads, &pool);
        assert!(shadow.holds(extent(1_000, 72)), "the other segment stays");
        assert!(shadow.holds(extent(5_000, 24 + 64)));
    }

    /// Segments as (start, end) pairs, oldest first, and every pending read
    /// looked at each time.
    struct Naive {
        spans: Vec<(u64, u64)>,
        max: usize,
    }

    impl Naive {
        fn write(&mut self, start: u64, end: u64) {
            self.spans.push(((end + 64).saturating_sub(221).max(start), end + 64));
            if self.spans.len() > self.max {
                self.spans.remove(0);
            }
        }
        fn within(&(from, to): &(u64, u64), read: &Request) -> bool {
            from <= read.extent.start().get() && read.extent.end().get() <= to
        }
        /// Of each span's lowest read, the one that arrived first.
        fn first(&self, pending: &[Request]) -> Option<RequestId> {
            let lowest = |span: &(u64, u64)| {
                let held = pending.iter().filter(|read| Naive::within(span, read));
                held.min_by_key(|read| (read.extent.start(), read.id))
            };
            let lowest = self.spans.iter().filter_map(lowest);
            lowest.min_by_key(|read| (read.arrived, read.id)).map(|read| read.id)
        }
    }

    #[test]
    fn agrees_with_looking_at_everything_after_every_step() {
        let mut state = 3u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut shadow = Shadow::new(8, Sectors::new(221), Sectors::new(64));
        let mut naive = Naive { spans: Vec::new(), max: 8 };
        let (mut reads, mut pool) = (LbaQueue::new(), Pool::new());
        let (mut pending, mut command) = (Vec::<Request>::new(), (0, 0));
        let mut predicted = 0;
        for step in 0..20_000 {
            let slot = random(30) as u32;
            let present = pending.iter().position(|read| read.id == RequestId::new(slot));
            match (present, random(4)) {
                // It arrives, near others; some are longer than a segment.
                (None, 0..3) => {
                    let len = if random(20) == 0 { 1 + random(400) } else { 8 };
                    let read = Request {
                        id: RequestId::new(slot),
                        vm: VmId::new(0),
                        tag: None,
                        op: Op::Read,
                        sync: true,
                        extent: extent(random(1_500) * 8, len),
                        arrived: Instant::from_nanos(step / 3),
                    };
                    pool.insert(read);
                    reads.insert(&read);
                    pending.push(read);
                    shadow.arrived(&read);
                }
                // It leaves, dispatched or handed back.
                (Some(at), kind) => {
                    let read = pending.remove(at);
                    pool.take(read.id);
                    reads.remove(&read);
                    shadow.left(&read, &reads, &pool);
                    if kind > 0 {
                        command = (read.extent.start().get(), read.extent.end().get());
                        naive.write(command.0, command.1);
                        shadow.begin(read.extent, &reads, &pool);
                    }
                }
                // A write joins the last command.
                (None, _) if !naive.spans.is_empty() => {
                    let more = 1 + random(100);
                    shadow.extend(extent(command.1, more), &reads, &pool);
                    command.1 += more;
                    let newest = naive.spans.pop().unwrap();
                    naive.write(command.0, command.1);
                    assert!(newest.1 < naive.spans[naive.spans.len() - 1].1);
                }
                _ => {}
            }
            let first = naive.first(&pending);
            assert_eq!(shadow.first(), first, "step {step}");
            predicted += u32::from(first.is_some());
            for read in &pending {
                let held = naive.spans.iter().any(|span| Naive::within(span, read));
                assert_eq!(shadow.holds(read.extent), held, "step {step}");
            }
        }
        assert!((1_000..19_000).contains(&predicted), "{predicted} of 20,000 steps");
    }
}
