//! Amount that is prefetched: intervals, the device's bandwidth, aggressiveness and threshold.
//!
//! At the end of an interval T (the paper, 3.3 and 3.4; TP is what a stream
//! read in it, PCT its linear share):
//!
//! - Feedback, on streams that were prefetched for: S rises (×1.25) when more
//!   than [`FEEDBACK`] of the linear blocks reached the disk; it falls (×0.8) when
//!   none did and more was proposed than read. S stays in [0.25, 4].
//! - TP_L = TP·PCT, TP_R = TP·(1-PCT), BW_A = BW_T - TP_R over all streams;
//!   a stream's quota is T·S·TP_L. When all quotas exceed T·BW_A each gets its
//!   share of that in proportion. What it was given before and its reader has
//!   not come to counts.
//!
//! Where the paper is silent:
//!
//! - **Losses.** Blocks that leave the cache unread make reads miss, and a rising
//!   S would drive out more. Where more than [`FEEDBACK`] of what a VM was proposed
//!   was lost, S falls, and its streams are kept half as far ahead (twice again,
//!   up to `lead`, after an interval without).
//! - **Waste.** Short files look linear and are over before what was prefetched
//!   for them is read. Whenever readers have come to, or left behind, a
//!   mebibyte of proposals, they are judged: if less than 84 % was of use (what
//!   the paper finds with 0.60), the *patience* with the VM's streams doubles,
//!   which is what each has to read by its pattern before it is armed, up to
//!   `lead`; else it falls by an eighth. `threshold=auto` moves a process's
//!   threshold by the same judgement, half of the way to 1 or to 0.5. For every
//!   T without a judgement patience falls by an eighth, and the threshold goes
//!   half of the way back to 0.60.
//! - **The device.** In the continuous form, too, no more than T·BW_A is proposed
//!   in T = 500 ms.
//!
//! In the literal form the first two are off, nothing goes along with a read, and nothing but its
//! pace bounds how far ahead a stream is kept.

use super::plan::Outcome;
use super::stream::{Counts, share};
use super::table::{Ref, Table};
use seekway_core::units::{Instant, Nanos, SECTOR_BYTES, Sectors};
use std::collections::VecDeque;

/// The paper's T; also for what is measured by interval in the continuous form.
pub const INTERVAL: Nanos = Nanos::from_millis(500);
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
pub const THRESHOLD: f64 = 0.60;
const THRESHOLD_MIN: f64 = 0.5;
/// The rules and the interval that runs.
#[derive(Default)]
pub(super) struct Rate {
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
        self.budget.map_or(sectors, |budget| budget.min(sectors))
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
        let part = match self.budget {
            Some(budget) if wanted > budget as f64 => budget as f64 / wanted,
            _ => 1.0,
        };
        active.retain(|&at| {
            let Some(followed) = table.stream(at) else { return false };
            if self.interval.is_some() {
                let sectors = followed.scale * as_span(followed.stream.now.linear) as f64 * part;
                let quota = if followed.armed { sectors as u64 } else { 0 };
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
        let scale = if lost || counts.missed == 0 && counts.proposed > counts.read {
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
