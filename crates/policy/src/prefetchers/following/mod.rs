//! Streams of reads, as [vio](super::vio) and [flashy](super::flashy) follow them: each is
//! prefetched for as far as its reader's pattern and pace say.
//!
//! A read is counted for its stream ([`table`], [`stream`]); a stream that is
//! linear enough is *armed* and given a quota ([`rate`]); quotas are proposed
//! in turns ([`plan`]). There are two forms.
//!
//! **By interval** (after the paper, 3.2 to 3.4): whenever one ends, each stream whose linear share
//! in it was above the threshold may be prefetched for during the next, from the end of its last
//! read, as many sectors as `min(S·TP_L, BW_A)` makes in an interval. That is the paper's letter
//! with `literal=true` only. By default three corrections of ours ([`rate`]) hold it back: no
//! stream is kept more than `lead` ahead of its reader, waste makes patient, and losses shorten the
//! lead. The literal form keeps those rules of ours that decide which stream a read belongs to, not
//! how much is prefetched for it: streams are found by address and not hashed by region (`vio`),
//! requests that overtake each other are put in order, and a record that is strided over may be
//! read in several requests.
//!
//! **Continuous** (ours): a stream is armed as soon as its share is above the threshold with two
//! linear reads at least, and has a window from then on. When its reader has used half of what lies
//! ahead of it, it is topped up to the window. The window begins at two reads, and grows by the
//! length of each linear read that was not in time (that waited for a prefetch, or missed): so it
//! doubles, window by window, until reads are in time, and no further. It is never longer than what
//! the stream has read by its pattern, so that a short file costs no more than it is long, nor than
//! `lead`. A stream whose reader leaves proposals behind begins again.
//!
//! **Along** (ours): a read that goes to a busy head takes along what its reader
//! will want next. Where a process goes on after most of the places at which it
//! begins to read, what it reads there on average goes along with the first read
//! ([`record::Runs`]), as a drive would read ahead if it had the time.
//!
//! **Left behind** (ours). A reader that has read a mebibyte or so elsewhere has abandoned what
//! lies ahead of its stream ([`table`] says when): that is named to the cache, which gives it away
//! first, unless another process of the VM is on its way there. A loop that just fits into the
//! cache would else be lost to what was fetched behind its end.
//!
//! **At a limit** (ours). A VM's own limit counts what the cache has like anything else. Where
//! most of a VM's reads wait at it, a process that has less than half of them is not
//! prefetched for: it would only take from the others. A limit that a hypervisor keeps shows
//! nowhere here.
//!
//! None of these four is in the paper, and the literal form has none.

pub(super) mod plan;
pub(super) mod rate;
pub(super) mod record;
pub(super) mod stream;
pub(super) mod table;

use plan::Outcome;
use rate::Rate;
pub(super) use rate::{INTERVAL, THRESHOLD};
use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::VecDeque;
use stream::{Pattern, Run};
pub(super) use table::Key;
use table::{PROVEN_READS, Ref, Table, Vm};

/// Sectors of one proposal: what a stream gets before it is another's turn.
const TURN: u64 = 256;

/// A reader that is so near to a stretch, in sectors, is on its way there: 16 MiB.
const COMING: u64 = 1 << 15;

/// A prefetcher that follows streams.
pub(super) struct StreamFollower {
    table: Table,
    rate: Rate,
    /// Read in this interval or the last.
    active: Vec<Ref>,
    /// Those with something to propose, in turns.
    queue: VecDeque<Ref>,
    /// The stream of the last read.
    read: Option<Ref>,
    /// The last proposal: two streams that have met do not both make it.
    last: Option<(VmId, Run)>,
}

impl StreamFollower {
    /// T (`None`: continuous), the linear share above which a stream is prefetched for (`None`: it
    /// finds itself), and how far ahead of a reader at most (`None`: as far as its pace says).
    pub(super) fn new(
        interval: Option<Nanos>,
        threshold: Option<f64>,
        lead: Option<Sectors>,
        key: Key,
    ) -> StreamFollower {
        let rate = Rate::new(interval, threshold, lead);
        let table = Table::new(key, rate.threshold_first());
        let (active, queue) = (Vec::new(), VecDeque::new());
        StreamFollower { table, rate, active, queue, read: None, last: None }
    }

    /// Begin a new interval when one is over.
    fn roll(&mut self, now: Instant) {
        if self.rate.is_over(now) {
            self.rate.roll(now, &mut self.table, &mut self.active, &mut self.queue);
        }
    }

    /// Count a read for its stream, and prefetch on if it advanced one. `left`: it
    /// began it, in place of one of which this became.
    fn count(&mut self, now: Instant, at: Ref, left: Option<Outcome>, read: Run, access: &Access) {
        let Some((set, way)) = self.table.get_mut(at) else { return };
        let (mut linear, mut gained) = (false, 0);
        let outcome = left.unwrap_or_else(|| {
            let before = set.stream(way).stream.now.linear;
            linear = set.read(way, read, access.missed.get());
            let followed = set.stream(way);
            gained = followed.stream.now.linear - before;
            let outcome = followed.plan.follow(&followed.stream, linear);
            if outcome.wasted > 0 {
                set.lost(way);
            }
            outcome
        });
        self.rate.count(read.len(), gained);
        self.rate.forget(now, &mut self.table, at);
        self.rate.judge(now, &mut self.table, at, outcome);
        let would_take = !self.rate.is_literal() && self.table.would_take(at);
        let mut patience = 0;
        if let Some(vm) = &mut self.table.vms[at.vm.index()] {
            vm.read[0] += read.len();
            patience = vm.patience;
        }
        let Some((set, way)) = self.table.get_mut(at) else { return };
        let threshold = set.threshold;
        let followed = set.stream(way);
        if !followed.active {
            followed.active = true;
            self.active.push(at);
        }
        if self.rate.is_continuous() {
            let stream = &followed.stream;
            let proven = stream.streak_reads >= PROVEN_READS && stream.streak >= patience;
            followed.armed = proven && stream.share() > threshold && !would_take;
            let in_time = access.missed.get() + access.late.get() == 0;
            self.top_up(at, read.len(), linear, in_time);
        } else if followed.armed {
            self.go_on(at);
        }
    }

    /// A stream that had come as far ahead as it may takes part in the turns
    /// again when half of that is read.
    fn go_on(&mut self, at: Ref) {
        let Some(lead) = self.lead(at.vm) else { return };
        let Some(followed) = self.table.stream(at) else { return };
        if followed.plan.quota > 0 && !followed.queued && followed.plan.ahead() <= lead / 2 {
            followed.queued = true;
            self.queue.push_back(at);
        }
    }

    /// Furthest that a VM's streams may be kept ahead of their readers now.
    fn lead(&self, vm: VmId) -> Option<u64> {
        self.table.vms[vm.index()].as_ref().map(|vm| vm.lead)
    }

    /// Keep an armed stream its window ahead of its reader (`interval=continuous`).
    fn top_up(&mut self, at: Ref, len: u64, linear: bool, in_time: bool) {
        let Some(lead) = self.lead(at.vm) else { return };
        let Some(followed) = self.table.stream(at) else { return };
        if !followed.armed {
            followed.plan.quota = 0;
            return;
        }
        if followed.window == 0 {
            followed.window = 2 * len;
        } else if linear && !in_time {
            followed.window += len;
        }
        followed.window = followed.window.min(followed.stream.streak).min(lead);
        let ahead = followed.plan.ahead();
        if ahead <= followed.window / 2 {
            followed.plan.quota = followed.window - ahead;
        }
        if followed.plan.quota > 0 && !followed.queued {
            followed.queued = true;
            self.queue.push_back(at);
        }
    }

    /// A stream's turn to propose, at most `most` sectors; its next comes after
    /// everybody else's.
    fn turn(&mut self, at: Ref, most: u64) -> Option<Proposal> {
        self.table.stream(at)?.queued = false;
        let (tag, run) = self.go_ahead(at, most)?;
        let followed = self.table.stream(at)?;
        if followed.plan.quota > 0 {
            followed.queued = true;
            self.queue.push_back(at);
        }
        self.proposal(at, tag, run)
    }

    /// Is another process of the VM on its way to a run that this stream's reader left, or
    /// in it?
    fn is_awaited(&mut self, left: Ref, run: Run) -> bool {
        let reader = self.table.stream(left).map(|f| f.reader);
        let others = self.active.iter().filter(|&&at| at.vm == left.vm && at != left);
        others.into_iter().any(|&at| {
            self.table.stream(at).is_some_and(|f| {
                let end = f.stream.run().end;
                (f.reader.is_none() || Some(f.reader) != reader)
                    && f.stream.pattern() == Pattern::Up
                    && end < run.end
                    && run.start.saturating_sub(end) <= COMING
            })
        })
    }

    /// The next run of a stream's quota, at most `most` sectors.
    fn go_ahead(&mut self, at: Ref, most: u64) -> Option<(Option<ProcessTag>, Run)> {
        let vm = self.table.vms[at.vm.index()].as_ref()?;
        let (capacity, lead) = (vm.capacity, vm.lead);
        let followed = self.table.stream(at)?;
        // A stream that is far enough ahead waits for its reader.
        let most = most.min(lead.saturating_sub(followed.plan.ahead()));
        if followed.plan.quota == 0 || most == 0 {
            return None;
        }
        let run = followed.plan.next(most, capacity)?;
        followed.stream.now.proposed += run.len();
        Some((followed.reader, run))
    }

    /// A run as a proposal, unless the last one was the same.
    fn proposal(&mut self, at: Ref, tag: Option<ProcessTag>, run: Run) -> Option<Proposal> {
        if self.last.replace((at.vm, run)) == Some((at.vm, run)) {
            return None;
        }
        self.rate.spend(run.len());
        self.table.vms[at.vm.index()].as_mut()?.proposed += run.len();
        let extent = Extent::new(Lba::new(run.start), Sectors::new(run.len()))?;
        Some(Proposal { vm: at.vm, tag, extent })
    }
}

impl Prefetcher for StreamFollower {
    fn attach(&mut self, _now: Instant, vm: VmId, capacity: Sectors) {
        let vms = &mut self.table.vms;
        if vms.len() <= vm.index() {
            vms.resize_with(vm.index() + 1, || None);
        }
        match &mut vms[vm.index()] {
            Some(known) => known.capacity = capacity.get(),
            slot => *slot = Some(Vm::new(capacity.get(), self.rate.lead)),
        }
    }

    fn detach(&mut self, vm: VmId) {
        if let Some(slot) = self.table.vms.get_mut(vm.index()) {
            *slot = None;
        }
        self.active.retain(|at| at.vm != vm);
        self.queue.retain(|at| at.vm != vm);
        self.read.take_if(|at| at.vm == vm);
        self.last.take_if(|(last, _)| *last == vm);
    }

    fn bandwidth(&mut self, bytes_per_s: u64) {
        self.rate.set_bandwidth(bytes_per_s);
    }

    fn held(&mut self, vm: VmId, sectors: Sectors) {
        if let Some(Some(vm)) = self.table.vms.get_mut(vm.index()) {
            vm.held[0] += sectors.get();
        }
    }

    fn accessed(&mut self, now: Instant, access: &Access) {
        self.roll(now);
        self.rate.begin(now);
        let read = Run { start: access.extent.start().get(), end: access.extent.end().get() };
        let found = self.table.find(access.vm, access.tag, read);
        self.read = found.map(|(at, _)| at);
        if let Some((at, left)) = found {
            self.count(now, at, left, read, access);
        }
    }

    fn along(&mut self, now: Instant, most: Sectors) -> Option<Proposal> {
        self.roll(now);
        let at = self.read.filter(|_| !self.rate.is_literal())?;
        let (set, way) = self.table.get_mut(at)?;
        let (threshold, further) = (set.threshold, set.runs.further(set.threshold));
        let followed = set.stream(way);
        let stream = &followed.stream;
        if followed.plan.ahead() > 0 || stream.pattern() != Pattern::Up {
            return None;
        }
        // No more than it has read by its pattern: a short file costs no more than it is long.
        // Patience has no say: what goes along costs its transfer, and saves a way of the head.
        let is_proven = stream.streak_reads >= PROVEN_READS && stream.share() > threshold;
        let sectors = if is_proven { stream.streak } else { further }.min(most.get());
        if sectors == 0 {
            return None;
        }
        let quota = std::mem::replace(&mut followed.plan.quota, sectors);
        let gone = self.go_ahead(at, sectors);
        // Its place in the turns, and what it may propose then, stay as they are.
        self.table.stream(at)?.plan.quota = quota;
        let (tag, run) = gone?;
        self.proposal(at, tag, run)
    }

    fn evicted(&mut self, _now: Instant, vm: VmId, extent: Extent, used: bool) {
        if let Some(Some(vm)) = self.table.vms.get_mut(vm.index())
            && !used
        {
            vm.lost += extent.len().get();
        }
    }

    fn propose(&mut self, now: Instant, room: Sectors) -> Option<Proposal> {
        self.roll(now);
        let most = self.rate.grant(room.get().min(TURN));
        if most == 0 {
            return None;
        }
        loop {
            let at = self.queue.pop_front()?;
            if let Some(proposal) = self.turn(at, most) {
                return Some(proposal);
            }
        }
    }

    fn left(&mut self, now: Instant) -> Option<Extent> {
        let by = self.read.filter(|_| !self.rate.is_literal())?;
        loop {
            let (set, way) = self.table.get_mut(by)?;
            let left = set.left(way)?;
            let (outcome, stretch) = set.leave(left);
            self.rate.judge(now, &mut self.table, by, outcome);
            let left = by.beside(left);
            if let Some(run) = stretch.filter(|&run| !self.is_awaited(left, run)) {
                return Extent::new(Lba::new(run.start), Sectors::new(run.len()));
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.rate.next_wake()
    }

    fn streams(&self, sink: &mut dyn FnMut(&seekway_core::prefetcher::Stream)) {
        self.table.each(|vm, f| {
            sink(&seekway_core::prefetcher::Stream {
                vm,
                tag: f.reader,
                armed: f.armed,
                linear: f.stream.share(),
                scale: f.scale,
            });
        });
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        let (mut streams, mut armed, mut ahead, mut scale) = (0u64, 0u64, 0, 0.0);
        self.table.each(|_, f| {
            streams += 1;
            if f.armed {
                armed += 1;
                ahead += f.plan.ahead();
                scale += f.scale;
            }
        });
        sink("streams", streams as f64);
        sink("armed", armed as f64);
        sink("ahead_bytes", (ahead * seekway_core::units::SECTOR_BYTES) as f64);
        sink("scale_mean", if armed > 0 { scale / armed as f64 } else { 1.0 });
        self.rate.metrics(sink);
    }
}

#[cfg(test)]
mod tests;
