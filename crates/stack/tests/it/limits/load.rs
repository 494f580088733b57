//! Disks under load that never lets up: each keeps a fixed number of requests outstanding, and each
//! request takes the same time once it may go.

use seekway_core::request::VmId;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, DiskLimits, GroupName, Limiter, Limits, Unit};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub const SECOND: Nanos = Nanos::from_secs(1);

/// A stream of requests of one disk: it keeps `depth` of them outstanding.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub vm: u16,
    pub direction: Direction,
    pub bytes: u64,
    pub depth: u32,
    /// From when a request may go until it is done.
    pub latency: Nanos,
}

/// A request that went.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    pub at: Instant,
    pub stream: usize,
    /// Its place among the stream's requests.
    pub number: u32,
}

pub struct Load {
    pub limiter: Limiter,
    pub now: Instant,
    streams: Vec<Stream>,
    issued: Vec<u32>,
    /// When a request is done, and whose it is.
    done: BinaryHeap<Reverse<(Instant, usize)>>,
    /// By item: stream and number.
    items: Vec<(usize, u32)>,
    pub passed: Vec<Passed>,
}

pub fn vm(number: u16) -> VmId {
    VmId::new(number)
}

pub fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

impl Load {
    /// Disks with limits by number, groups, and the streams that load them.
    pub fn new(disks: &[&str], groups: &[(&str, &str)], streams: &[Stream]) -> Load {
        let mut limiter = Limiter::new();
        for (n, text) in disks.iter().enumerate() {
            let DiskLimits { limits, group } = DiskLimits::parse(text).unwrap();
            limiter.set_disk(Instant::ZERO, vm(n as u16), &limits, group.as_ref());
        }
        for (name, text) in groups {
            let (name, limits) = (GroupName::new(name).unwrap(), Limits::parse(text).unwrap());
            limiter.set_group(Instant::ZERO, &name, &limits);
        }
        let issued = vec![0; streams.len()];
        let mut load = Load {
            limiter,
            now: Instant::ZERO,
            streams: streams.to_vec(),
            issued,
            done: BinaryHeap::new(),
            items: Vec::new(),
            passed: Vec::new(),
        };
        for (n, stream) in streams.iter().enumerate() {
            (0..stream.depth).for_each(|_| load.issue(n));
        }
        load
    }

    fn issue(&mut self, stream: usize) {
        let Stream { vm: number, direction, bytes, .. } = self.streams[stream];
        let item = self.items.len() as u32;
        self.items.push((stream, self.issued[stream]));
        self.issued[stream] += 1;
        if self.limiter.submit(self.now, vm(number), direction, bytes, item) {
            self.go(item);
        }
        self.poll();
    }

    fn go(&mut self, item: u32) {
        let (stream, number) = self.items[item as usize];
        self.passed.push(Passed { at: self.now, stream, number });
        self.done.push(Reverse((self.now + self.streams[stream].latency, stream)));
    }

    pub fn poll(&mut self) {
        while let Some(item) = self.limiter.next(self.now) {
            self.go(item);
        }
    }

    /// Let time pass, and everything happen that happens until then.
    pub fn run(&mut self, until: Instant) {
        loop {
            let wake = self.limiter.next_wake();
            let done = self.done.peek().map(|Reverse((at, _))| *at);
            let Some(next) = wake.into_iter().chain(done).min().filter(|at| *at <= until) else {
                break;
            };
            assert!(wake.is_none_or(|at| at > self.now), "something waits that may go");
            self.now = next;
            self.poll();
            while let Some(Reverse((at, stream))) = self.done.peek().copied() {
                if at > self.now {
                    break;
                }
                self.done.pop();
                self.issue(stream);
            }
        }
        self.now = until;
    }

    /// Amount of these streams that passed in `from..until`, in units.
    pub fn count(&self, of: &[usize], unit: Unit, from: Instant, until: Instant) -> u64 {
        let units = |p: &Passed| match unit {
            Unit::Iops => 1,
            Unit::Bytes => self.streams[p.stream].bytes,
        };
        let first = self.passed.partition_point(|p| p.at < from);
        let last = self.passed.partition_point(|p| p.at < until);
        self.passed[first..last].iter().filter(|p| of.contains(&p.stream)).map(units).sum()
    }

    /// Every second that begins in `from..until`, at a request or just behind
    /// one, has `rate` to within 1 % and one request.
    pub fn assert_rate(&self, of: &[usize], unit: Unit, rate: u64, from: Instant, until: Instant) {
        let units: Vec<(Instant, u64)> = self
            .passed
            .iter()
            .filter(|p| of.contains(&p.stream))
            .map(|p| (p.at, if unit == Unit::Iops { 1 } else { self.streams[p.stream].bytes }))
            .collect();
        let one = units.iter().map(|(_, n)| *n).max().unwrap_or(1);
        let (least, most) = (rate - rate / 100, rate + rate / 100 + one);
        let (mut end, mut sum) = (0, 0);
        for (begin, (start, first)) in units.iter().enumerate() {
            while end < units.len() && units[end].0 < *start + SECOND {
                sum += units[end].1;
                end += 1;
            }
            if *start >= from && *start + SECOND <= until {
                assert!(sum <= most, "{sum} of {rate} in the second from {start}");
                // Just behind this request, up to and with the one a second later.
                let behind = sum - first + units.get(end).map_or(0, |_| one);
                assert!(behind + one >= least, "{behind} of {rate} in the second behind {start}");
            }
            debug_assert!(begin < end);
            sum -= first;
        }
    }

    /// The streams' requests went in their order.
    pub fn assert_fifo(&self) {
        let mut next = vec![0; self.streams.len()];
        for p in &self.passed {
            assert_eq!(p.number, next[p.stream], "stream {} at {}", p.stream, p.at);
            next[p.stream] += 1;
        }
    }
}
