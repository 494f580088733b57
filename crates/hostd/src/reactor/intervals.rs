//! What each disk got of its device in the last whole interval of ten seconds,
//! and how evenly that was shared.
//!
//! Intervals end at multiples of ten seconds of the reactor's time, whatever
//! happens meanwhile: not at requests, changes of policy or scrapes. An index of
//! fairness since the daemon's start would say little after an idle night, and
//! one since the last scrape would depend on who scrapes how often.
//!
//! Nobody tells the daemon how much a guest wants. A disk that had a request
//! outstanding for at least half of the interval counts as *busy*: it would have
//! taken more. Any other got what it asked for.

use seekway_policy::fairness::{jain, max_min_share, phi};
use seekway_policy::units::{Instant, Nanos};

/// Length of an interval.
pub const INTERVAL: Nanos = Nanos::from_secs(10);

/// What a disk got of its device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskUse {
    /// Device time of its commands, flushes and discards included; of a command that carries several,
    /// the first one's disk has it.
    pub device_time: Nanos,
    /// Bytes of its reads and writes that succeeded.
    pub bytes: u64,
    /// Time in which it had a request outstanding.
    pub busy: Nanos,
}

impl DiskUse {
    fn since(self, before: DiskUse) -> DiskUse {
        DiskUse {
            device_time: self.device_time.saturating_sub(before.device_time),
            bytes: self.bytes - before.bytes,
            busy: self.busy.saturating_sub(before.busy),
        }
    }

    /// Would it have taken more?
    fn is_busy(&self) -> bool {
        self.busy + self.busy >= INTERVAL
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
    /// Since when it has had requests outstanding.
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
    fn end_interval(&mut self, end: Instant, idle: bool) {
        let total = self.at(end);
        let start = Instant::from_nanos(end.as_nanos() - INTERVAL.get());
        let begin = if idle { self.at(start) } else { self.begin };
        self.last = total.since(begin);
        self.begin = total;
    }

    /// The total as it was at `then`; nothing has happened since.
    fn at(&self, then: Instant) -> DiskUse {
        let open = self.busy_since.map_or(Nanos::ZERO, |since| then.since(since));
        DiskUse { busy: self.total.busy + open, ..self.total }
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

    /// Look at the clock, before anything else of this moment is counted.
    pub fn tick<'a>(&mut self, now: Instant, disks: impl Iterator<Item = &'a mut UseMeter>) {
        if now < self.ends {
            return;
        }
        // The reactor may have slept through several.
        let whole = now.as_nanos() / INTERVAL.get() * INTERVAL.get();
        let end = Instant::from_nanos(whole);
        let idle = end > self.ends;
        disks.for_each(|disk| disk.end_interval(end, idle));
        self.ends = end + INTERVAL;
    }
}

/// How evenly a device was shared in the last whole interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fairness {
    /// Disks that would have taken more.
    pub busy_disks: usize,
    /// Jain's index over the device time per weight of the busy disks, 1 is fair;
    /// `None` with fewer than two.
    pub jain: Option<f64>,
    /// Of the disk that came off worst: its device time as a part of its share
    /// under weighted max-min fairness, where the busy ones demand all and the
    /// others what they got. `None` where fewer than two asked for anything.
    pub max_min_share: Option<f64>,
    /// VMCD's φ for equal demands over the bandwidths of the busy disks in MiB/s,
    /// 0 is fair; `None` with fewer than two.
    pub phi_mib_s: Option<f64>,
}

/// What one disk got in the last whole interval, and the weight that says how much it should.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Share {
    /// Relative to the other disks of the device.
    pub weight: u32,
    pub used: DiskUse,
}

/// The fairness among the disks of one device.
pub(super) fn fairness(disks: impl IntoIterator<Item = Share>) -> Fairness {
    let asked: Vec<Share> = disks.into_iter().filter(|d| d.used.asked()).collect();
    let busy: Vec<Share> = asked.iter().filter(|d| d.used.is_busy()).copied().collect();
    let list =
        |disks: &[Share], of: &dyn Fn(&Share) -> f64| disks.iter().map(of).collect::<Vec<_>>();
    let weight = |d: &Share| f64::from(d.weight);
    let time = |d: &Share| d.used.device_time.as_secs_f64();
    let rate = |d: &Share| d.used.bytes as f64 / f64::from(1 << 20) / INTERVAL.as_secs_f64();
    let total: f64 = asked.iter().map(time).sum();
    let demand = |d: &Share| if d.used.is_busy() { total } else { time(d) };
    Fairness {
        busy_disks: busy.len(),
        jain: (busy.len() > 1).then(|| jain(&list(&busy, &|d| time(d) / weight(d)))).flatten(),
        max_min_share: (asked.len() > 1)
            .then(|| {
                max_min_share(&list(&asked, &demand), &list(&asked, &time), &list(&asked, &weight))
            })
            .flatten(),
        phi_mib_s: (busy.len() > 1)
            .then(|| phi(&vec![1.0; busy.len()], &list(&busy, &rate), &list(&busy, &weight)))
            .flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    #[test]
    fn an_interval_is_what_happened_in_it() {
        let (mut intervals, mut disk) = (IntervalClock::new(), UseMeter::default());
        let mut tick = |ms, disk: &mut UseMeter| intervals.tick(at(ms), std::iter::once(disk));
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
        disk.add(Nanos::from_millis(1), 512);
        disk.end_busy(at(10_006));
        tick(20_000, &mut disk);
        assert_eq!((disk.last().bytes, disk.last().busy), (512, Nanos::from_millis(6)));
        assert_eq!(disk.device_time(), Nanos::from_millis(501));
    }

    #[test]
    fn intervals_that_nobody_was_awake_for_count() {
        let (mut intervals, mut disk) = (IntervalClock::new(), UseMeter::default());
        let mut tick = |ms, disk: &mut UseMeter| intervals.tick(at(ms), std::iter::once(disk));
        disk.begin_busy(at(2_000));
        disk.add(Nanos::from_millis(7), 512);
        // A request that takes half a minute, and the reactor sleeps.
        tick(35_000, &mut disk);
        let whole = DiskUse { device_time: Nanos::ZERO, bytes: 0, busy: INTERVAL };
        assert_eq!(disk.last(), whole, "the one from 20 to 30 s");
        disk.end_busy(at(35_000));
        tick(40_000, &mut disk);
        assert_eq!(disk.last().busy, Nanos::from_secs(5));
        tick(90_000, &mut disk);
        assert_eq!(disk.last(), DiskUse::default());
    }

    fn disk(weight: u32, device_ms: u64, mib: u64, busy_ms: u64) -> Share {
        let used = DiskUse {
            device_time: Nanos::from_millis(device_ms),
            bytes: mib << 20,
            busy: Nanos::from_millis(busy_ms),
        };
        Share { weight, used }
    }

    #[test]
    fn shares_are_judged_by_weight_among_those_that_want_more() {
        let made = fairness([disk(1, 2_000, 40, 9_000), disk(3, 6_000, 120, 10_000)]);
        assert_eq!((made.busy_disks, made.jain, made.phi_mib_s), (2, Some(1.0), Some(0.0)));
        assert_eq!(made.max_min_share, Some(1.0));
        // One has all: Jain 1/2, and the other's part of its half is nothing.
        let made = fairness([disk(1, 8_000, 80, 9_000), disk(1, 0, 0, 10_000)]);
        assert_eq!((made.jain, made.max_min_share), (Some(0.5), Some(0.0)));
        assert_eq!(made.phi_mib_s, Some(8.0), "8 and 0 MiB/s, each 4 off");
    }

    #[test]
    fn who_asks_for_little_and_gets_it_is_no_unfairness() {
        let made = fairness([disk(1, 8_000, 80, 9_000), disk(1, 100, 1, 150)]);
        assert_eq!((made.busy_disks, made.jain, made.phi_mib_s), (1, None, None));
        assert_eq!(made.max_min_share, Some(1.0));
        let alone = fairness([disk(1, 8_000, 80, 9_000), disk(1, 0, 0, 0)]);
        assert_eq!((alone.max_min_share, alone.busy_disks), (None, 1));
    }
}
