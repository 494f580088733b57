//! Which stream a read belongs to: bounded tables of streams for each VM, by
//! process or by region of its disk.

use super::plan::{Outcome, Plan};
use super::record::{Record, Runs};
use super::stream::{REACH, Relation, Run, Stream};
use crate::request::{ProcessTag, VmId};

/// Sets of streams of one VM at most: one for what is untagged, and these. Tags
/// (regions) that are equal modulo their number share one; streams of different
/// tags (regions) stay apart in it.
const SETS: u64 = 256;
/// Streams followed for one process.
const STREAMS_TAGGED: usize = 8;
/// Regions followed of those that share a set.
const REGIONS: usize = 4;
/// Streams followed for all untagged processes of a VM.
const STREAMS_UNTAGGED: usize = 32;
/// Linear reads that make a stream: it is not replaced by the first random read.
pub(super) const PROVEN_READS: u32 = 2;

/// How reads are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::prefetchers) enum Key {
    /// By process, and there by address.
    Process,
    /// By regions of so many sectors, one stream in each.
    Region(u64),
}

/// Names a stream: VM, set, place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ref {
    pub vm: VmId,
    set: u16,
    way: u16,
}

/// Whose reads a stream takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reader {
    /// Of which process; `None` where they are not told apart.
    pub tag: Option<ProcessTag>,
    /// In which region; 0 where they are not told apart.
    region: u64,
}

/// A stream and what is done for it.
pub(super) struct FollowedStream {
    pub reader: Reader,
    pub stream: Stream,
    pub plan: Plan,
    /// Is it being prefetched for?
    pub armed: bool,
    /// Aggressiveness S, 0.25 to 4 (algorithms.md, section 6).
    pub scale: f64,
    /// How far ahead of its reader it is kept, in sectors; 0 while it is not armed.
    pub window: u64,
    /// It is in the list of those read in this interval or the last.
    pub active: bool,
    /// It is in the queue of those with something to propose.
    pub queued: bool,
    /// Its last read began a run.
    pub has_just_begun: bool,
}

/// What tells that a read cannot belong to a stream, and whose place a new one
/// takes, without a look at the streams, which are several times as large.
struct Hint {
    reader: Reader,
    /// Where its last run began, and how far that is from the run before.
    start: u64,
    jump: i64,
    /// All within reach of its runs lies from here to before there.
    low: u64,
    high: u64,
    /// When it was read last, in reads.
    touched: u64,
    /// It is not replaced by the first random read.
    proven: bool,
}

/// Streams among which a read is sought.
pub(super) struct Set {
    streams: Vec<FollowedStream>,
    /// One for each of them, in their order.
    hints: Vec<Hint>,
    /// The set's last two reads: far strides show in them.
    reads: [Option<Run>; 2],
    /// What became of its proposals, by which the threshold is moved.
    pub record: Record,
    /// Linear share above which its streams are armed.
    pub threshold: f64,
    /// How far its readers go on where they have begun to read.
    pub runs: Runs,
}

/// A VM's streams, and what is counted for all of them.
pub(super) struct Vm {
    pub capacity: u64,
    sets: Vec<Option<Set>>,
    /// Furthest that a stream may be kept ahead, in sectors.
    pub lead: u64,
    /// Sectors that a stream has to have read by its pattern before it is armed.
    pub patience: u64,
    /// What became of proposals, by which patience is moved.
    pub record: Record,
    /// Sectors proposed in this interval.
    pub proposed: u64,
    /// Prefetched sectors that left the cache in it, unread.
    pub lost: u64,
}

impl Vm {
    pub fn new(capacity: u64, lead: u64) -> Vm {
        let (sets, record) = (Vec::new(), Record::default());
        Vm { capacity, sets, lead, patience: 0, record, proposed: 0, lost: 0 }
    }
}

/// The streams of all VMs.
pub(super) struct Table {
    key: Key,
    /// Threshold of a new set.
    threshold: f64,
    pub vms: Vec<Option<Vm>>,
    reads: u64,
}

impl Table {
    pub fn new(key: Key, threshold: f64) -> Table {
        Table { key, threshold, vms: Vec::new(), reads: 0 }
    }

    /// Who reads, the set of its streams, how many it may hold, and how far from
    /// where it was last a read belongs to a stream.
    fn place(&self, tag: Option<ProcessTag>, read: Run) -> (Reader, usize, usize, u64) {
        match (self.key, tag) {
            (Key::Region(sectors), _) => {
                let region = read.start / sectors;
                (Reader { tag: None, region }, (region % SETS) as usize, REGIONS, u64::MAX)
            }
            (Key::Process, None) => (Reader { tag, region: 0 }, 0, STREAMS_UNTAGGED, REACH),
            (Key::Process, Some(n)) => {
                let index = 1 + u64::from(n.get()) % SETS;
                (Reader { tag, region: 0 }, index as usize, STREAMS_TAGGED, REACH)
            }
        }
    }

    /// The stream of a read that has come, and what became of the one that had to
    /// leave for it, if the read begins it. Else the read is not counted yet.
    pub fn find(
        &mut self,
        vm: VmId,
        tag: Option<ProcessTag>,
        read: Run,
    ) -> Option<(Ref, Option<Outcome>)> {
        self.reads += 1;
        let reads = self.reads;
        let (reader, index, ways, reach) = self.place(tag, read);
        let known = self.vms.get_mut(vm.index())?.as_mut()?;
        if known.sets.len() <= index {
            known.sets.resize_with(index + 1, || None);
        }
        let threshold = self.threshold;
        let set = known.sets[index].get_or_insert_with(|| Set::new(threshold));
        let (way, new) = match set.nearest(reader, read, reach) {
            Some(way) => (way, None),
            None => {
                let (way, outcome) = set.begin(reader, read, ways);
                (way, Some(outcome))
            }
        };
        set.hints[way].touched = reads;
        set.reads = [set.reads[1], Some(read)];
        Some((Ref { vm, set: index as u16, way: way as u16 }, new))
    }

    /// A VM, a set and a stream in it. `None` when the VM has left since.
    pub fn get_mut(&mut self, at: Ref) -> Option<(&mut Set, usize)> {
        let set = self.vms.get_mut(at.vm.index())?.as_mut()?.sets.get_mut(usize::from(at.set))?;
        Some((set.as_mut()?, usize::from(at.way)))
    }

    /// A stream; `None` when its VM has left since.
    pub fn stream(&mut self, at: Ref) -> Option<&mut FollowedStream> {
        let (set, way) = self.get_mut(at)?;
        set.streams.get_mut(way)
    }

    /// All streams, by VM and set.
    pub fn each(&self, mut sink: impl FnMut(VmId, &FollowedStream)) {
        for (n, vm) in self.vms.iter().enumerate() {
            let sets = vm.iter().flat_map(|vm| vm.sets.iter().flatten());
            sets.flat_map(|set| &set.streams).for_each(|f| sink(VmId::new(n as u16), f));
        }
    }
}

impl Hint {
    fn new(followed: &FollowedStream, touched: u64) -> Hint {
        let (start, jump, around) = followed.stream.traces();
        let (low, high) = (around.start.saturating_sub(REACH), around.end.saturating_add(REACH));
        let proven = followed.stream.streak_reads >= PROVEN_READS;
        Hint { reader: followed.reader, start, jump, low, high, touched, proven }
    }

    /// May `read` follow the stream, or lie within `reach` of it? Never no where
    /// [`Stream::relation`] says yes.
    fn may_take(&self, read: Run, reach: u64) -> bool {
        let from = read.start.wrapping_sub(self.start) as i64;
        let twice = self.jump.wrapping_mul(2);
        reach > REACH
            || read.start <= self.high && self.low <= read.end
            || from == self.jump
            || from == twice
            || from == self.jump.wrapping_neg()
    }
}

impl Set {
    fn new(threshold: f64) -> Set {
        Set {
            streams: Vec::new(),
            hints: Vec::new(),
            reads: [None; 2],
            record: Record::default(),
            threshold,
            runs: Runs::default(),
        }
    }

    pub fn stream(&mut self, way: usize) -> &mut FollowedStream {
        &mut self.streams[way]
    }

    /// A read joins a stream; true if it follows its pattern. `missed` sectors of
    /// it reached the disk. Only this moves a stream's runs.
    pub fn read(&mut self, way: usize, read: Run, missed: u64) -> bool {
        let followed = &mut self.streams[way];
        let linear = followed.stream.read(read, missed);
        match linear {
            true => self.runs.go_on(followed.has_just_begun, read.len()),
            false => self.runs.begin(),
        }
        followed.has_just_begun = !linear;
        self.hints[way] = Hint::new(followed, self.hints[way].touched);
        linear
    }

    /// A stream's reader left proposals behind: it has to begin again.
    pub fn lost(&mut self, way: usize) {
        self.streams[way].stream.lost();
        self.streams[way].window = 0;
        self.hints[way].proven = false;
    }

    /// The stream that the read follows, or the nearest within reach.
    fn nearest(&self, reader: Reader, read: Run, reach: u64) -> Option<usize> {
        let mut best = None;
        for (way, hint) in self.hints.iter().enumerate() {
            if hint.reader != reader || !hint.may_take(read, reach) {
                continue;
            }
            match self.streams[way].stream.relation(read) {
                Relation::Follows => return Some(way),
                Relation::Near(distance) => {
                    if distance <= reach && best.is_none_or(|(least, _)| distance < least) {
                        best = Some((distance, way));
                    }
                }
            }
        }
        best.map(|(_, way)| way)
    }

    /// A new stream, in place of another when there are too many: where, and what
    /// became of the other's proposals.
    fn begin(&mut self, reader: Reader, read: Run, ways: usize) -> (usize, Outcome) {
        let stride_from = match self.reads {
            [Some(a), Some(b)] => {
                let jump = b.start.wrapping_sub(a.start);
                (read.start.wrapping_sub(b.start) == jump).then_some(b)
            }
            _ => None,
        };
        self.runs.begin();
        let stream = Stream::new(read, stride_from);
        let plan = Plan::new(&stream);
        let new = FollowedStream {
            reader,
            stream,
            plan,
            armed: false,
            scale: 1.0,
            window: 0,
            active: false,
            queued: false,
            has_just_begun: true,
        };
        let hint = Hint::new(&new, 0); // the caller says when
        if self.streams.len() < ways {
            self.streams.push(new);
            self.hints.push(hint);
            return (self.streams.len() - 1, Outcome::default());
        }
        let way = self.victim();
        let old = &mut self.streams[way];
        let outcome = Outcome { used: 0, wasted: old.plan.ahead() };
        self.hints[way] = hint;
        // The lists that name its place keep doing so.
        *old = FollowedStream { active: old.active, queued: old.queued, ..new };
        (way, outcome)
    }

    /// Whose place a new stream takes: that of the one read longest ago, among
    /// those not proven while they are a quarter or more.
    fn victim(&self) -> usize {
        let count = self.hints.iter().filter(|h| !h.proven).count();
        let all = count * 4 < self.hints.len().max(1);
        let among = self.hints.iter().enumerate().filter(|(_, h)| all || !h.proven);
        among.min_by_key(|(_, h)| h.touched).map_or(0, |(way, _)| way)
    }
}
