//! Which stream a read belongs to: bounded tables of streams for each VM, by
//! process or by region of its disk.

use super::stream::{Counts, Outcome, Plan, REACH, Record, Relation, Run, Runs, Stream};
use super::{Key, REGION};
use seekway_core::request::{ProcessTag, VmId};

/// Sets of streams of one VM at most: one for what is untagged, and these. Tags that are equal
/// modulo their number share one; streams of different tags stay apart in it.
const SETS: u64 = 256;

/// Streams followed for one process.
const STREAMS_TAGGED: usize = 8;

/// Regions followed of those that share a set.
const REGIONS: usize = 4;

/// Streams followed for all untagged processes of a VM.
const STREAMS_UNTAGGED: usize = 32;

/// Linear reads that make a stream: it is not replaced by the first random read.
pub(super) const PROVEN_READS: u32 = 2;

/// Fewest sectors that a reader has read elsewhere when it has abandoned a stream; and the divisor
/// of what lies ahead of the stream that gives the same.
const LEFT_MIN: u64 = 512;

const LEFT_PART: u64 = 4;

/// Names a stream: VM, set, place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ref {
    pub vm: VmId,
    set: u16,
    way: u16,
}

impl Ref {
    /// Another stream in the same set.
    pub fn beside(self, way: usize) -> Ref {
        Ref { way: way as u16, ..self }
    }
}

/// The reader of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reader {
    /// Its process; `None` where processes are not told apart.
    pub tag: Option<ProcessTag>,
    /// The region where it reads; 0 where regions are not told apart.
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
    /// Distance that it is kept ahead of its reader, in sectors; 0 while it is not armed.
    pub window: u64,
    /// Is it in the list of those read in this interval or the last?
    pub active: bool,
    /// Is it in the queue of those with something to propose?
    pub queued: bool,
    /// Its last read began a run.
    pub has_just_begun: bool,
}

impl FollowedStream {
    /// Its reader is gone, it seems: what lay ahead is waste, and it begins again if the
    /// reader comes back. Until then no interval arms it.
    pub fn abandon(&mut self) -> Outcome {
        let outcome = Outcome { used: 0, wasted: self.plan.ahead() };
        self.stream.now = Counts::default();
        self.plan = Plan::new(&self.stream);
        (self.armed, self.window) = (false, 0);
        outcome
    }
}

/// Excerpt of a stream: enough to rule out that a read belongs to it, and to choose the stream that
/// a new one replaces. The streams themselves are several times as large.
struct Hint {
    reader: Reader,
    /// Where its last run began, and how far that is from the run before.
    start: u64,
    jump: i64,
    /// All within reach of its runs lies from here to before there.
    low: u64,
    high: u64,
    /// When it was read last: [`Set::read_sectors`] after that.
    touched: u64,
    /// Is it kept when the first random read needs a place?
    proven: bool,
}

/// Streams among which a read is sought.
#[derive(Default)]
pub(super) struct Set {
    streams: Vec<FollowedStream>,
    /// One for each of them, in their order.
    hints: Vec<Hint>,
    /// The set's last two reads: far strides show in them.
    reads: [Option<Run>; 2],
    /// Outcome of its proposals, by which the threshold is moved.
    pub record: Record,
    /// Linear share above which its streams are armed.
    pub threshold: f64,
    /// Runs of its readers: how far they go on where they have begun to read.
    pub runs: Runs,
    /// Sectors that its readers have read, of any stream.
    read_sectors: u64,
    /// Most of these sectors for which one stream was away before its reader came back. Halved
    /// whenever a stream is taken for abandoned.
    away_max: u64,
}

/// A VM's streams, and what is counted for all of them.
#[derive(Default)]
pub(super) struct Vm {
    pub capacity: u64,
    sets: Vec<Option<Set>>,
    /// Furthest that a stream may be kept ahead, in sectors.
    pub lead: u64,
    /// Sectors that a stream has to have read by its pattern before it is armed.
    pub patience: u64,
    /// Outcome of proposals, by which patience is moved.
    pub record: Record,
    /// Sectors proposed in this interval.
    pub proposed: u64,
    /// Prefetched sectors that left the cache in it, unread.
    pub lost: u64,
    /// Sectors read, and those that waited at a limit of the VM: in this interval, and in
    /// the one before it.
    pub read: [u64; 2],
    pub held: [u64; 2],
}

impl Vm {
    pub fn new(capacity: u64, lead: u64) -> Vm {
        Vm { capacity, lead, ..Vm::default() }
    }

    /// Did most of what it read wait at its own limit?
    fn is_held(&self) -> bool {
        2 * sum(self.held) > sum(self.read)
    }

    /// The interval is over.
    pub fn roll(&mut self) {
        (self.lost, self.proposed) = (0, 0);
        (self.read, self.held) = ([0, self.read[0]], [0, self.held[0]]);
    }
}

fn sum([now, last]: [u64; 2]) -> u64 {
    now + last
}

/// The streams of all VMs.
pub(super) struct Table {
    key: Key,
    /// Threshold of a new set.
    threshold: f64,
    pub vms: Vec<Option<Vm>>,
}

impl Table {
    pub fn new(key: Key, threshold: f64) -> Table {
        Table { key, threshold, vms: Vec::new() }
    }

    /// The reader, the set of its streams, the most streams that the set may hold, and the furthest
    /// that a read may be from where a stream was last to belong to it.
    fn place(&self, tag: Option<ProcessTag>, read: Run) -> (Reader, usize, usize, u64) {
        match (self.key, tag) {
            (Key::Region, _) => {
                let region = read.start / REGION;
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
        let (reader, index, ways, reach) = self.place(tag, read);
        let known = self.vms.get_mut(vm.index())?.as_mut()?;
        if known.sets.len() <= index {
            known.sets.resize_with(index + 1, || None);
        }
        let threshold = self.threshold;
        let set = known.sets[index].get_or_insert_with(|| Set::new(threshold));
        set.read_sectors += read.len();
        let (way, new) = match set.nearest(reader, read, reach) {
            Some(way) => (way, None),
            None => {
                let (way, outcome) = set.begin(reader, read, ways);
                (way, Some(outcome))
            }
        };
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

    /// Would a stream that is prefetched for only take from others? A limit counts what the
    /// cache has as well: where most of a VM's reads wait at it, a reader that has less than
    /// half of them gets more only at the cost of others in the same VM.
    pub fn would_take(&self, at: Ref) -> bool {
        let vm = self.vms.get(at.vm.index()).and_then(|vm| vm.as_ref());
        let Some(vm) = vm.filter(|vm| vm.is_held()) else { return false };
        let Some(Some(set)) = vm.sets.get(usize::from(at.set)) else { return false };
        let reader = set.hints[usize::from(at.way)].reader;
        let streams = set.streams.iter().filter(|f| f.reader == reader);
        2 * streams.map(|f| f.stream.read_lately()).sum::<u64>() < sum(vm.read)
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
        Set { threshold, ..Set::default() }
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
        let before = self.read_sectors - read.len();
        let hint = &mut self.hints[way];
        if linear {
            self.away_max = self.away_max.max(before - hint.touched);
        }
        *hint = Hint::new(followed, self.read_sectors);
        linear
    }

    /// A stream that the reader of the stream `by`, just read for, seems to have abandoned: it has
    /// read enough elsewhere for what lies ahead of that stream, and more than twice as much as any
    /// stream was away for and came back. Where it reads several streams by turns, that much of
    /// each. Looked for once in [`LEFT_MIN`] sectors.
    pub fn left(&self, by: usize) -> Option<usize> {
        let last = self.reads[1].map_or(0, Run::len);
        if self.read_sectors / LEFT_MIN == (self.read_sectors - last) / LEFT_MIN {
            return None;
        }
        let reader = self.hints[by].reader;
        let ways = || (0..self.hints.len()).filter(|&way| self.hints[way].reader == reader);
        let turns = ways().filter(|&way| self.streams[way].active).count() as u64;
        ways().filter(|&way| way != by).find(|&way| {
            let followed = &self.streams[way];
            let others = (turns - u64::from(followed.active)).max(1);
            let ahead = followed.plan.ahead();
            let enough = (ahead / LEFT_PART).max(2 * self.away_max).max(LEFT_MIN) * others;
            ahead > 0 && self.read_sectors - self.hints[way].touched >= enough
        })
    }

    /// This stream was left: what was ahead of it, and where that lies.
    pub fn leave(&mut self, way: usize) -> (Outcome, Option<Run>) {
        self.away_max /= 2;
        let followed = &mut self.streams[way];
        let stretch = followed.plan.stretch();
        (followed.abandon(), stretch)
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
        let hint = Hint::new(&new, self.read_sectors);
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

    /// Chooses the stream that a new one replaces: the one read longest ago, among those not proven
    /// while they are a quarter or more.
    fn victim(&self) -> usize {
        let count = self.hints.iter().filter(|h| !h.proven).count();
        let all = count * 4 < self.hints.len().max(1);
        let among = self.hints.iter().enumerate().filter(|(_, h)| all || !h.proven);
        among.min_by_key(|(_, h)| h.touched).map_or(0, |(way, _)| way)
    }
}
