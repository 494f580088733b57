//! Streams of reads, as [vio](super::vio) and [flashy](super::flashy) follow them: each is
//! prefetched for as far as its reader's pattern and pace say.
//!
//! A read is counted for its stream ([`table`], [`stream`]); a stream that is
//! linear enough is *armed* and given a quota ([`Rate`]); quotas are proposed
//! in turns ([`stream::Plan`]). There are two forms.
//!
//! **By interval** (after the paper, 3.2 to 3.4): whenever one ends, each stream whose linear share
//! in it was above the threshold may be prefetched for during the next, from the end of its last
//! read, as many sectors as `min(S·TP_L, BW_A)` makes in an interval. That is the paper's letter
//! with `literal=true` only: `BW_A` bounds each stream, the fetches of an interval go at once,
//! stream by stream, and they go as ordinary reads (3.3: a `readahead` call). By default three
//! corrections of ours ([`Rate`]) hold it back: no stream is kept more than `lead` ahead of its
//! reader, waste makes patient, and losses shorten the lead. The literal form keeps those rules of
//! ours that decide which stream a read belongs to, not how much is prefetched for it: streams are
//! found by address and not hashed by region (`vio`), requests that overtake each other are put in
//! order, and a record that is strided over may be read in several requests.
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
//! ([`stream::Runs`]), as a drive would read ahead if it had the time.
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

pub(super) mod stream;
pub(super) mod table;
#[cfg(test)]
mod tests;

use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, SECTOR_BYTES, Sectors};
use std::collections::VecDeque;
use stream::{Counts, Outcome, Pattern, Run, share};
use table::{PROVEN_READS, Ref, Table, Vm};

/// Sectors of one proposal: what a stream gets before it is another's turn.
const TURN: u64 = 256;

/// A region of the disk in which flashy follows one stream, in sectors: 1 GiB. The paper gives no
/// size; each of its readers has a file of 1 GB.
const REGION: u64 = 1 << 21;

/// A reader that is so near to a stretch, in sectors, is on its way there: 16 MiB.
const COMING: u64 = 1 << 15;

/// Key by which reads are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// By process, and there by address.
    Process,
    /// By regions of [`REGION`] sectors of a VM's disk, one stream in each.
    Region,
}

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
            match self.rate.is_literal() {
                true => self.queue.push_front(at),
                false => self.queue.push_back(at),
            }
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
                (f.reader.tag.is_none() || Some(f.reader) != reader)
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
        Some((followed.reader.tag, run))
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

    fn fetches_as_demand(&self) -> bool {
        self.rate.is_literal()
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
                tag: f.reader.tag,
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

// Amount that is prefetched: intervals, the device's bandwidth, aggressiveness and threshold.
//
// At the end of an interval T (the paper, 3.3 and 3.4; TP is what a stream
// read in it, PCT its linear share):
//
// - Feedback, on streams that were prefetched for: S rises (×1.25) when more
//   than `FEEDBACK` of the linear blocks reached the disk; it falls (×0.8) when
//   none did and more was proposed than read in line. S stays in [0.25, 4].
// - TP_L = TP·PCT, TP_R = TP·(1-PCT), BW_A = BW_T - TP_R over all streams;
//   a stream's quota is T·S·TP_L, in the literal form T·BW_A at most. Else, when
//   all quotas exceed T·BW_A, each gets its share of that in proportion. What it
//   was given before and its reader has not come to counts.
//
// Where the paper is silent:
//
// - **Losses.** Blocks that leave the cache unread make reads miss, and a rising
//   S would drive out more. Where more than `FEEDBACK` of what a VM was proposed
//   was lost, S falls, and its streams are kept half as far ahead (twice again,
//   up to `lead`, after an interval without).
// - **Waste.** Short files look linear and are over before what was prefetched
//   for them is read. Whenever readers have come to, or left behind, a
//   mebibyte of proposals, they are judged: if less than 84 % was of use (what
//   the paper finds with 0.60), the *patience* with the VM's streams doubles,
//   which is what each has to read by its pattern before it is armed, up to
//   `lead`; else it falls by an eighth. `threshold=auto` moves a process's
//   threshold by the same judgement, half of the way to 1 or to 0.5. For every
//   T without a judgement patience falls by an eighth, and the threshold goes
//   half of the way back to 0.60.
// - **The device.** In the continuous form, too, no more than T·BW_A is proposed
//   in T = 500 ms.
//
// In the literal form the first two are off, nothing goes along with a read, and nothing but its
// pace bounds how far ahead a stream is kept.

/// The paper's T; also for what is measured by interval in the continuous form.
pub(super) const INTERVAL: Nanos = Nanos::from_millis(500);

/// Share of linear reads that may reach the disk before S rises (algorithms.md, section 6).
const FEEDBACK: f64 = 0.05;

/// S and its bounds (algorithms.md, section 6).
const SCALE_RISE: f64 = 1.25;

const SCALE_FALL: f64 = 0.8;

const SCALE_MIN: f64 = 0.25;

const SCALE_MAX: f64 = 4.0;

/// The least that a stream may be kept ahead when a VM's prefetches are lost: a
/// guest's two windows of read-ahead. Sectors.
const LEAD_MIN: u64 = 512;

/// Patience after the first waste, in sectors: two of a guest's requests.
const PATIENCE_MIN: u64 = 512;

/// The paper's threshold; where `threshold=auto` starts, and its least.
pub(super) const THRESHOLD: f64 = 0.60;

const THRESHOLD_MIN: f64 = 0.5;

/// The rules and the interval that runs.
#[derive(Default)]
struct Rate {
    /// T, how often the pace is set; `None` in the continuous form.
    interval: Option<Nanos>,
    /// Linear share above which streams are armed; `None` for `threshold=auto`.
    threshold: Option<f64>,
    /// Furthest ahead of a reader, in sectors.
    pub lead: u64,
    /// BW_T in sectors a second, when it is known.
    bandwidth: Option<u64>,
    started: Option<Instant>,
    /// Sectors that may still be proposed in this interval.
    budget: Option<u64>,
    /// T·TP_R: sectors read in this interval by no pattern, of all streams, also
    /// of those that had to leave their place since.
    random: u64,
}

impl Rate {
    /// `interval`, `threshold`: as the fields. `lead`: furthest ahead of a reader; `None`: as far
    /// as its pace says.
    pub fn new(interval: Option<Nanos>, threshold: Option<f64>, lead: Option<Sectors>) -> Rate {
        let lead = lead.map_or(u64::MAX, Sectors::get);
        Rate { interval, threshold, lead, ..Rate::default() }
    }

    /// Threshold of streams that nothing is known of.
    pub fn threshold_first(&self) -> f64 {
        self.threshold.unwrap_or(THRESHOLD)
    }

    pub fn is_continuous(&self) -> bool {
        self.interval.is_none()
    }

    /// Do only the paper's rules say how much is prefetched?
    pub fn is_literal(&self) -> bool {
        self.lead == u64::MAX
    }

    fn span(&self) -> Nanos {
        self.interval.unwrap_or(INTERVAL)
    }

    pub fn set_bandwidth(&mut self, bytes_per_s: u64) {
        let sectors = bytes_per_s / SECTOR_BYTES;
        self.bandwidth = Some(sectors);
        self.budget = Some(in_span(sectors, self.span()));
    }

    /// A read: an interval runs from now on, if none does.
    pub fn begin(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.started.is_some_and(|started| now.since(started) >= self.span())
    }

    /// When the interval has to be ended. In the continuous form reads end it, and
    /// nothing waits for it but streams whose readers have left: when no read has
    /// come for another one.
    pub fn next_wake(&self) -> Option<Instant> {
        let end = self.started? + self.span();
        Some(if self.interval.is_none() { end + self.span() } else { end })
    }

    /// Share of `sectors` that the device has to spare in this interval.
    pub fn grant(&self, sectors: u64) -> u64 {
        let budget = self.budget.filter(|_| !self.is_literal());
        budget.map_or(sectors, |budget| budget.min(sectors))
    }

    pub fn spend(&mut self, sectors: u64) {
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(sectors);
        }
    }

    /// Counts a read: its sectors, and the sectors of this and earlier reads that it proved to be
    /// linear.
    pub fn count(&mut self, read: u64, linear: u64) {
        self.random = self.random.saturating_add(read).saturating_sub(linear);
    }

    /// Patience and threshold by what became of a stream's proposals.
    pub fn judge(&self, now: Instant, table: &mut Table, at: Ref, outcome: Outcome) {
        if outcome == Outcome::default() {
            return;
        }
        if let Some((set, _)) = table.get_mut(at)
            && self.threshold.is_none()
            && let Some(useful) = set.record.judge(now, outcome)
        {
            let goal = if useful { THRESHOLD_MIN } else { 1.0 };
            set.threshold = (set.threshold + goal) / 2.0;
        }
        if let Some(Some(vm)) = table.vms.get_mut(at.vm.index())
            && !self.is_literal()
        {
            vm.patience = match vm.record.judge(now, outcome) {
                None => vm.patience,
                Some(true) => vm.patience - vm.patience.div_ceil(8),
                Some(false) => (vm.patience * 2).max(PATIENCE_MIN).min(self.lead),
            };
        }
    }

    /// Patience and threshold go back to where they began while nothing is judged:
    /// where nothing is proposed nothing else would move them, and who reads next
    /// may be another.
    pub fn forget(&self, now: Instant, table: &mut Table, at: Ref) {
        if let Some((set, _)) = table.get_mut(at) {
            for _ in 0..set.record.forget(now, self.span()) {
                set.threshold = (set.threshold + self.threshold_first()) / 2.0;
            }
        }
        if let Some(Some(vm)) = table.vms.get_mut(at.vm.index()) {
            for _ in 0..vm.record.forget(now, self.span()) {
                vm.patience -= vm.patience.div_ceil(8);
            }
        }
    }

    /// The interval is over: judge it, and plan the next.
    pub fn roll(
        &mut self,
        now: Instant,
        table: &mut Table,
        active: &mut Vec<Ref>,
        queue: &mut VecDeque<Ref>,
    ) {
        let Some(started) = self.started else { return };
        let elapsed = now.since(started).get().max(1);
        let span = self.span();
        let as_span = |sectors: u64| Nanos::new(sectors).scaled(span.get(), elapsed).get();
        let mut wanted = 0.0;
        for &at in active.iter() {
            let lost = self.has_lost(table, at);
            self.forget(now, table, at);
            let would_take = !self.is_literal() && table.would_take(at);
            let patience = table.vms[at.vm.index()].as_ref().map_or(0, |vm| vm.patience);
            let Some((set, way)) = table.get_mut(at) else { continue };
            let threshold = set.threshold;
            let followed = set.stream(way);
            let counts = followed.stream.now;
            if self.interval.is_none() {
                continue;
            }
            if followed.armed {
                followed.scale = self.feedback(followed.scale, &counts, lost);
            }
            let proven = followed.stream.streak >= patience && !would_take;
            followed.armed = proven && share(&counts) > threshold;
            if followed.armed {
                wanted += followed.scale * counts.linear as f64;
            }
        }
        let random = std::mem::take(&mut self.random);
        self.budget = self.bandwidth.map(|b| in_span(b, span).saturating_sub(as_span(random)));
        let wanted = wanted * span.get() as f64 / elapsed as f64;
        let (part, most) = match self.budget {
            Some(budget) if self.is_literal() => (1.0, budget),
            Some(budget) if wanted > budget as f64 => (budget as f64 / wanted, u64::MAX),
            _ => (1.0, u64::MAX),
        };
        active.retain(|&at| {
            let Some(followed) = table.stream(at) else { return false };
            if self.interval.is_some() {
                let sectors = followed.scale * as_span(followed.stream.now.linear) as f64 * part;
                let quota = if followed.armed { (sectors as u64).min(most) } else { 0 };
                followed.plan.quota = quota.saturating_sub(followed.plan.ahead());
                if followed.plan.quota > 0 && !followed.queued {
                    followed.queued = true;
                    queue.push_back(at);
                }
            }
            followed.active = followed.stream.now.read > 0;
            followed.stream.roll();
            if followed.active {
                return true;
            }
            let outcome = followed.abandon();
            self.judge(now, table, at, outcome);
            false
        });
        self.judge_losses(table);
        self.started = (!active.is_empty()).then_some(now);
    }

    /// S after an interval in which a stream was prefetched for.
    fn feedback(&self, scale: f64, counts: &Counts, lost: bool) -> f64 {
        let missed = counts.missed as f64 > FEEDBACK * counts.linear as f64;
        let scale = if lost || counts.missed == 0 && counts.proposed > counts.linear {
            scale * SCALE_FALL
        } else if missed {
            scale * SCALE_RISE
        } else {
            scale
        };
        scale.clamp(SCALE_MIN, SCALE_MAX)
    }

    /// Did more than [`FEEDBACK`] of what the VM was proposed leave the cache unread?
    fn has_lost(&self, table: &Table, at: Ref) -> bool {
        if self.is_literal() {
            return false;
        }
        let vm = table.vms.get(at.vm.index()).and_then(|vm| vm.as_ref());
        vm.is_some_and(|vm| vm.lost as f64 > FEEDBACK * vm.proposed as f64)
    }

    /// Sets how far ahead each VM's streams may be kept.
    fn judge_losses(&self, table: &mut Table) {
        if self.is_literal() {
            return;
        }
        for vm in table.vms.iter_mut().flatten() {
            if vm.lost as f64 > FEEDBACK * vm.proposed as f64 {
                vm.lead = (vm.lead / 2).max(LEAD_MIN).min(self.lead);
            } else {
                vm.lead = vm.lead.saturating_mul(2).min(self.lead);
            }
            vm.roll();
        }
    }

    pub fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        if let Some(budget) = self.budget {
            sink("budget_bytes", (budget * SECTOR_BYTES) as f64);
        }
    }
}

/// Sectors that pass in `span` at `per_second`.
fn in_span(per_second: u64, span: Nanos) -> u64 {
    span.scaled(per_second, 1_000_000_000).get()
}
