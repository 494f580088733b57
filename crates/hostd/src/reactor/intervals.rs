//! Each disk's use of its device in the last whole interval of ten seconds, and the fairness among
//! the disks.
//!
//! Intervals end at multiples of ten seconds of the reactor's time, whatever
//! happens meanwhile: not at requests, changes of policy or scrapes. An index of
//! fairness since the daemon's start would say little after an idle night, and
//! one since the last scrape would depend on who scrapes how often.
//!
//! Nobody tells the daemon how much a guest wants, so its demand is estimated. A disk that
//! waited for its turn in a part w of the interval and got a device time t would have had
//! t / (1 − w) without the others: without the waits, a guest that sends one request after the
//! other would have sent more in the same time. A disk with many requests always has one
//! that waits: it would take everything. A disk that waits for its own rate limits does not wait
//! for its turn, and one that asks for little has what it wants.

use crate::port::DiskId;
use seekway_core::fairness::{jain, max_min_shares, phi};
use seekway_core::units::{Instant, Nanos};

/// Length of an interval.
pub const INTERVAL: Nanos = Nanos::from_secs(10);

/// Use of a device by a disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskUse {
    /// Device time of its commands, flushes and discards included; of a command that carries several,
    /// the first one's disk has it.
    pub device_time: Nanos,
    /// Bytes of its reads and writes that succeeded.
    pub bytes: u64,
    /// Time in which it had a request outstanding.
    pub busy: Nanos,
    /// Time in which a read or a write waited for its turn.
    pub queued: Nanos,
}

impl DiskUse {
    fn since(self, before: DiskUse) -> DiskUse {
        DiskUse {
            device_time: self.device_time.saturating_sub(before.device_time),
            bytes: self.bytes - before.bytes,
            busy: self.busy.saturating_sub(before.busy),
            queued: self.queued.saturating_sub(before.queued),
        }
    }

    /// Was something outstanding for half of the interval?
    fn is_busy(&self) -> bool {
        self.busy + self.busy >= INTERVAL
    }

    /// The device time that it would have taken of `total`.
    fn demand_s(&self, total_s: f64) -> f64 {
        let (interval, got_s) = (INTERVAL.as_secs_f64(), self.device_time.as_secs_f64());
        let left_s = interval - self.queued.as_secs_f64();
        // It got nothing to estimate from, or waited all the time.
        let starves = got_s == 0.0 && left_s <= interval / 2.0;
        if starves || left_s <= 0.0 { total_s } else { (got_s * interval / left_s).min(total_s) }
    }

    /// Did it ask for anything?
    fn asked(&self) -> bool {
        self.busy > Nanos::ZERO || self.bytes > 0
    }
}

/// Counts what one disk gets.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct UseMeter {
    /// Since the disk was attached, without the busy stretch that goes on.
    total: DiskUse,
    /// Start of its present time with requests outstanding.
    busy_since: Option<Instant>,
    /// `total` at the beginning of this interval.
    begin: DiskUse,
    /// The last whole interval.
    last: DiskUse,
}

impl UseMeter {
    /// The disk has a request outstanding from `now` on.
    pub fn begin_busy(&mut self, now: Instant) {
        self.busy_since = Some(now);
    }

    /// The disk has none outstanding any more.
    pub fn end_busy(&mut self, now: Instant) {
        if let Some(since) = self.busy_since.take() {
            self.total.busy += now.since(since);
        }
    }

    /// A request is done.
    pub fn add(&mut self, device_time: Nanos, bytes: u64) {
        self.total.device_time += device_time;
        self.total.bytes += bytes;
    }

    /// Device time since the disk was attached.
    pub fn device_time(&self) -> Nanos {
        self.total.device_time
    }

    /// The last whole interval.
    pub fn last(&self) -> DiskUse {
        self.last
    }

    /// An interval has ended at `end`, and `idle` more passed before it without a
    /// single event.
    fn end_interval(&mut self, end: Instant, idle: bool, queued: impl Fn(Instant) -> Nanos) {
        let total = self.at(end, &queued);
        let start = Instant::from_nanos(end.as_nanos() - INTERVAL.get());
        let begin = if idle { self.at(start, &queued) } else { self.begin };
        self.last = total.since(begin);
        self.begin = total;
    }

    /// The total as it was at `then`; nothing has happened since.
    fn at(&self, then: Instant, queued: impl Fn(Instant) -> Nanos) -> DiskUse {
        let open = self.busy_since.map_or(Nanos::ZERO, |since| then.since(since));
        DiskUse { busy: self.total.busy + open, queued: queued(then), ..self.total }
    }
}

/// The clock of the intervals, the same for all disks of a reactor.
pub(super) struct IntervalClock {
    ends: Instant,
}

impl IntervalClock {
    pub fn new() -> IntervalClock {
        IntervalClock { ends: Instant::ZERO + INTERVAL }
    }

    /// Look at the clock, before anything else of this moment is counted. `queued` says for how
    /// long a disk had waited for its turn until a time.
    pub fn tick<'a>(
        &mut self,
        now: Instant,
        disks: impl Iterator<Item = (DiskId, &'a mut UseMeter)>,
        queued: impl Fn(DiskId, Instant) -> Nanos,
    ) {
        if now < self.ends {
            return;
        }
        // The reactor may have slept through several.
        let whole = now.as_nanos() / INTERVAL.get() * INTERVAL.get();
        let end = Instant::from_nanos(whole);
        let idle = end > self.ends;
        disks.for_each(|(id, disk)| disk.end_interval(end, idle, |at| queued(id, at)));
        self.ends = end + INTERVAL;
    }
}

/// Fairness among a device's disks in the last whole interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fairness {
    /// Disks that had a request outstanding for half of it.
    pub busy_disks: usize,
    /// Jain's index over what the busy disks got of their shares, 1 is fair; `None` with fewer
    /// than two.
    pub jain: Option<f64>,
    /// Device time of the worst disk as a part of its share under weighted max-min fairness.
    /// `None` where fewer than two asked for anything.
    pub max_min_share: Option<f64>,
    /// VMCD's φ for equal demands, 0 is fair: over the bandwidths in MiB/s of the disks that would
    /// have taken more than their shares; `None` with fewer than two.
    pub phi_mib_s: Option<f64>,
}

/// Use by one disk in the last whole interval, and the weight of its share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Share {
    /// Relative to the other disks of the device.
    pub weight: u32,
    pub used: DiskUse,
}

/// The fairness among the disks of one device. For each disk, in their order, too: its device time
/// as a part of its share under weighted max-min fairness of the estimated demands; `None` where it
/// asked for nothing.
pub(super) fn fairness(disks: &[Share]) -> (Fairness, Vec<Option<f64>>) {
    let time_s = |d: &Share| d.used.device_time.as_secs_f64();
    let total_s: f64 = disks.iter().map(time_s).sum();
    let demands: Vec<f64> = disks.iter().map(|d| d.used.demand_s(total_s)).collect();
    let weights: Vec<f64> = disks.iter().map(|d| f64::from(d.weight)).collect();
    let due_s = max_min_shares(total_s, &demands, &weights);
    let share = |(disk, due_s): (&Share, &f64)| {
        (disk.used.asked() && *due_s > 0.0).then(|| time_s(disk) / due_s)
    };
    let shares: Vec<Option<f64>> = disks.iter().zip(&due_s).map(share).collect();
    let busy = |n: &usize| disks[*n].used.is_busy();
    let of_busy: Vec<f64> = (0..disks.len()).filter(busy).filter_map(|n| shares[n]).collect();
    // It would have taken more than its share, by more than rounding makes of it.
    let contends = |n: &usize| busy(n) && demands[*n] > due_s[*n] * (1.0 + 1e-9);
    let contending: Vec<usize> = (0..disks.len()).filter(contends).collect();
    let rate = |n: &usize| disks[*n].used.bytes as f64 / (1 << 20) as f64 / INTERVAL.as_secs_f64();
    let fairness = Fairness {
        busy_disks: disks.iter().filter(|d| d.used.is_busy()).count(),
        jain: (of_busy.len() > 1).then(|| jain(&of_busy)).flatten(),
        max_min_share: (shares.iter().flatten().count() > 1)
            .then(|| shares.iter().flatten().copied().min_by(f64::total_cmp))
            .flatten(),
        phi_mib_s: (contending.len() > 1)
            .then(|| {
                let rates: Vec<f64> = contending.iter().map(rate).collect();
                let weights: Vec<f64> = contending.iter().map(|&n| weights[n]).collect();
                phi(&vec![1.0; rates.len()], &rates, &weights)
            })
            .flatten(),
    };
    (fairness, shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    /// A disk whose requests have been queued since 1.5 s, for half a minute at most.
    fn tick(intervals: &mut IntervalClock, ms: u64, disk: &mut UseMeter) {
        intervals.tick(at(ms), std::iter::once((DiskId(0), disk)), |_, now| {
            now.since(at(1_500)).min(Nanos::from_secs(30))
        });
    }

    #[test]
    fn an_interval_is_what_happened_in_it() {
        let (mut intervals, mut disk) = (IntervalClock::new(), UseMeter::default());
        let mut tick = |ms, disk: &mut UseMeter| tick(&mut intervals, ms, disk);
        tick(0, &mut disk);
        disk.begin_busy(at(1_000));
        disk.add(Nanos::from_millis(500), 4096);
        disk.end_busy(at(3_000));
        tick(9_999, &mut disk);
        assert_eq!(disk.last(), DiskUse::default(), "it has not ended yet");
        // Busy over the end: each interval has its part.
        disk.begin_busy(at(9_999));
        tick(10_005, &mut disk);
        let first = disk.last();
        assert_eq!((first.bytes, first.device_time), (4096, Nanos::from_millis(500)));
        assert_eq!(first.busy, Nanos::from_millis(2_001));
        assert_eq!(first.queued, Nanos::from_millis(8_500), "until the interval's end");
        disk.add(Nanos::from_millis(1), 512);
        disk.end_busy(at(10_006));
        tick(20_000, &mut disk);
        assert_eq!((disk.last().bytes, disk.last().busy), (512, Nanos::from_millis(6)));
        assert_eq!(disk.device_time(), Nanos::from_millis(501));
    }

    #[test]
    fn intervals_that_nobody_was_awake_for_count() {
        let (mut intervals, mut disk) = (IntervalClock::new(), UseMeter::default());
        let mut tick = |ms, disk: &mut UseMeter| tick(&mut intervals, ms, disk);
        disk.begin_busy(at(2_000));
        disk.add(Nanos::from_millis(7), 512);
        // A request that takes half a minute, and the reactor sleeps.
        tick(35_000, &mut disk);
        let whole =
            DiskUse { device_time: Nanos::ZERO, bytes: 0, busy: INTERVAL, queued: INTERVAL };
        assert_eq!(disk.last(), whole, "the one from 20 to 30 s");
        disk.end_busy(at(35_000));
        tick(40_000, &mut disk);
        assert_eq!(disk.last().busy, Nanos::from_secs(5));
        assert_eq!(disk.last().queued, Nanos::from_millis(1_500));
        tick(90_000, &mut disk);
        assert_eq!(disk.last(), DiskUse::default());
    }

    /// A disk with the part of the interval in which it waited for its turn.
    fn disk(weight: u32, device_ms: u64, mib: u64, busy_ms: u64, queued_ms: u64) -> Share {
        let used = DiskUse {
            device_time: Nanos::from_millis(device_ms),
            bytes: mib << 20,
            busy: Nanos::from_millis(busy_ms),
            queued: Nanos::from_millis(queued_ms),
        };
        Share { weight, used }
    }

    #[test]
    fn shares_are_judged_by_weight_among_those_that_want_more() {
        let (made, shares) =
            fairness(&[disk(1, 2_000, 40, 9_000, 9_000), disk(3, 6_000, 120, 10_000, 9_000)]);
        assert_eq!((made.busy_disks, made.jain, made.phi_mib_s), (2, Some(1.0), Some(0.0)));
        assert_eq!((made.max_min_share, shares), (Some(1.0), vec![Some(1.0); 2]));
        // One has all: Jain 1/2, and the other's part of its half is nothing.
        let (made, shares) =
            fairness(&[disk(1, 8_000, 80, 9_000, 0), disk(1, 0, 0, 10_000, 10_000)]);
        assert_eq!((made.jain, made.max_min_share), (Some(0.5), Some(0.0)));
        assert_eq!(shares, [Some(2.0), Some(0.0)]);
        assert_eq!(made.phi_mib_s, Some(8.0), "8 and 0 MiB/s, each 4 off");
    }

    #[test]
    fn who_asks_for_little_and_gets_it_is_no_unfairness() {
        let (made, _) = fairness(&[disk(1, 8_000, 80, 9_000, 9_000), disk(1, 100, 1, 150, 0)]);
        assert_eq!((made.busy_disks, made.jain, made.phi_mib_s), (1, None, None));
        assert_eq!(made.max_min_share, Some(1.0));
        let (alone, shares) = fairness(&[disk(1, 8_000, 80, 9_000, 9_000), disk(1, 0, 0, 0, 0)]);
        assert_eq!((alone.max_min_share, alone.busy_disks), (None, 1));
        assert_eq!(shares, [Some(1.0), None]);
    }

    /// Both were called unfair once: they have requests outstanding all the time.
    #[test]
    fn who_waits_for_its_own_limits_or_has_one_request_at_a_time_lacks_nothing() {
        let flood = disk(1, 9_000, 900, 10_000, 10_000);
        let (made, _) = fairness(&[flood, disk(1, 500, 50, 10_000, 0)]);
        assert_eq!((made.busy_disks, made.jain, made.max_min_share), (2, Some(1.0), Some(1.0)));
        assert_eq!(made.phi_mib_s, None, "the second would not take more");
    }

    #[test]
    fn who_waits_half_of_the_time_has_half_of_what_it_would_have() {
        let flood = disk(1, 9_000, 900, 10_000, 10_000);
        let (made, shares) = fairness(&[flood, disk(1, 500, 50, 10_000, 5_000)]);
        let [Some(floods), Some(quiets)] = shares[..] else { panic!("both asked") };
        assert!((quiets - 0.5).abs() < 1e-9 && floods > 1.0, "{shares:?}");
        assert_eq!(made.max_min_share, Some(quiets));
        // Of two that take turns, each has its half of the device, not half of its share.
        let (made, _) = fairness(&[disk(1, 5_000, 50, 10_000, 5_000); 2]);
        assert_eq!((made.jain, made.max_min_share), (Some(1.0), Some(1.0)));
        // Nobody got anything: the device hangs, and that is not unfair.
        let (made, shares) = fairness(&[disk(1, 0, 0, 10_000, 10_000); 2]);
        assert_eq!((made.jain, made.max_min_share, shares), (None, None, vec![None; 2]));
    }
}
