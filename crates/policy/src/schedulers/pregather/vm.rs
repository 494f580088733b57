//! Pregather's state of one VM.

use super::config::Config;
use crate::vnavigator::VNavigator;
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links};
use seekway_core::request::{Extent, Request, RequestId};
use seekway_core::scheduler::VmSpec;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

/// A VM's queues, averages and model.
#[derive(Debug)]
pub(super) struct Vm {
    weight: u32,
    /// Extents of its images, or the interval around them; empty when unknown.
    region: Vec<Extent>,
    /// Distance of its region from each other VM's; `None` when one is unknown.
    pub gaps: Vec<Option<Sectors>>,
    /// The interval that its requests have touched, for want of a region.
    touched: Option<(Lba, Lba)>,
    pub sorted: LbaQueue,
    /// The EDF queue: synchronous requests and the others, each in order of
    /// arrival, which is order of deadline.
    sync: ExpiryQueue,
    rest: ExpiryQueue,
    /// AvgT; `None` before the second arrival.
    pub think: Option<Average>,
    /// AvgD; `None` before the second arrival.
    pub distance: Option<Sectors>,
    arrived: Option<Instant>,
    completed: Option<Instant>,
    /// End of its last request to arrive.
    arrived_end: Option<Lba>,
    /// End of its last request to be dispatched.
    pub dispatched_end: Option<Lba>,
    /// Number of its last turn, 0 before the first.
    pub last_turn: u64,
    /// Serving time of the turns that are over.
    pub served: Nanos,
    pub model: VNavigator,
}

impl Vm {
    pub fn new(spec: VmSpec, config: &Config) -> Vm {
        let mut region = spec.region;
        let (low, high) =
            (region.iter().map(|e| e.start()).min(), region.iter().map(|e| e.end()).max());
        if let (false, Some(low), Some(high)) = (config.region_extents, low, high) {
            region = Vec::from_iter(Extent::new(low, high.distance(low)));
        }
        Vm {
            weight: spec.weight.get(),
            region,
            gaps: Vec::new(),
            touched: None,
            sorted: LbaQueue::new(),
            sync: ExpiryQueue::new(),
            rest: ExpiryQueue::new(),
            think: None,
            distance: None,
            arrived: None,
            completed: None,
            arrived_end: None,
            dispatched_end: None,
            last_turn: 0,
            served: Nanos::ZERO,
            model: VNavigator::new(config.model),
        }
    }

    /// Its turn: the slice times its weight.
    pub fn slice(&self, config: &Config) -> Nanos {
        config.slice.scaled(u64::from(self.weight), 1)
    }

    /// A request arrives: queues, averages, model. `clock` counts windows.
    pub fn arrive(&mut self, request: &Request, clock: Nanos, config: &Config, links: &mut Links) {
        let (now, start, end) = (request.arrived, request.extent.start(), request.extent.end());
        if let Some(arrived) = self.arrived {
            let sample = if config.think {
                // A hold ends with the slice: what is longer is all the same.
                now.since(arrived.max(self.completed.unwrap_or(arrived))).min(config.slice)
            } else {
                now.since(arrived)
            };
            self.think = Some(Average::with(self.think, sample));
        }
        if let Some(previous) = self.arrived_end {
            let sample = previous.distance(start).get();
            let mean = self.distance.map_or(sample, |d| d.get() - d.get() / 8 + sample / 8);
            self.distance = Some(Sectors::new(mean));
        }
        (self.arrived, self.arrived_end) = (Some(now), Some(end));
        let (low, high) = self.touched.unwrap_or((start, end));
        self.touched = Some((low.min(start), high.max(end)));
        self.sorted.insert(request);
        let edf = if request.sync { &mut self.sync } else { &mut self.rest };
        edf.push(links, request.id);
        self.model.observe(clock, now, request.extent);
    }

    /// A request leaves the queues.
    pub fn remove(&mut self, request: &Request, links: &mut Links) {
        self.sorted.remove(request);
        let edf = if request.sync { &mut self.sync } else { &mut self.rest };
        edf.remove(links, request.id);
    }

    /// A request of this VM is done.
    pub fn complete(&mut self, now: Instant) {
        self.completed = Some(now);
    }

    /// The heads of the EDF queue: of the synchronous requests and of the others.
    pub fn edf(&self) -> [Option<RequestId>; 2] {
        [self.sync.head(), self.rest.head()]
    }

    /// The request after `from` in ascending order, round the end.
    pub fn next_from(&self, from: Lba) -> Option<RequestId> {
        let next = self.sorted.at_or_after(from).or_else(|| self.sorted.first());
        next.map(|(_, id)| id)
    }

    /// Distance between two regions, if both are known.
    pub fn gap(&self, other: &Vm) -> Option<Sectors> {
        let mut least: Option<Sectors> = None;
        let (mut a, mut b) = (self.region.iter().peekable(), other.region.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let gap = between((x.start(), x.end()), (y.start(), y.end()));
            least = Some(least.map_or(gap, |l| l.min(gap)));
            if x.end() <= y.end() {
                a.next()
            } else {
                b.next()
            };
        }
        least
    }

    /// Distance between what the two have touched.
    pub fn touched_gap(&self, other: &Vm) -> Sectors {
        match (self.touched, other.touched) {
            (Some(a), Some(b)) => between(a, b),
            _ => Sectors::new(u64::MAX),
        }
    }

    /// The memory that it occupies beside itself; a queued request is counted
    /// once here, for its place in the sorted queue.
    pub fn state_bytes(&self) -> usize {
        self.model.state_bytes() - size_of::<VNavigator>()
            + self.region.capacity() * size_of::<Extent>()
            + self.gaps.capacity() * size_of::<Option<Sectors>>()
            + self.sorted.len() * size_of::<(Lba, RequestId)>()
    }
}

/// A moving mean of weight 7/8 with its mean deviation, in 256ths of a
/// nanosecond: without the fraction rounding would pull the mean of equal
/// samples below them, and a timer would end just before what it waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    mean: u64,
    deviation: u64,
}

impl Average {
    /// Samples count as this at the most.
    const LONGEST: Nanos = Nanos::from_secs(3_600);

    /// The average, if there is one, and one sample more.
    fn with(average: Option<Average>, sample: Nanos) -> Average {
        let sample = sample.min(Self::LONGEST).get() << 8;
        let Some(Average { mean, deviation }) = average else {
            return Average { mean: sample, deviation: 0 };
        };
        let step = mean.abs_diff(sample);
        let mean = if sample > mean { mean + step / 8 } else { mean - step / 8 };
        Average { mean, deviation: deviation - deviation / 8 + step / 8 }
    }
    /// The mean, rounded to the nearest nanosecond.
    pub fn mean(&self) -> Nanos {
        Nanos::new((self.mean + 128) >> 8)
    }
    /// The mean deviation, rounded.
    pub fn deviation(&self) -> Nanos {
        Nanos::new((self.deviation + 128) >> 8)
    }
}

/// Distance between two intervals; zero when they touch.
fn between(a: (Lba, Lba), b: (Lba, Lba)) -> Sectors {
    if a.1 <= b.0 {
        a.1.distance(b.0)
    } else if b.1 <= a.0 {
        b.1.distance(a.0)
    } else {
        Sectors::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_samples_average_to_themselves() {
        let mut average = Average::with(None, Nanos::new(900_017));
        for ns in [1, 2_000_003].into_iter().chain([500_001; 400]) {
            average = Average::with(Some(average), Nanos::new(ns));
        }
        assert_eq!(average.mean(), Nanos::new(500_001));
        assert!(average.deviation() <= Nanos::new(1));
    }
}
