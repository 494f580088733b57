//! A disk drive with angle-exact mechanics and a segmented cache
//! (algorithms.md, section 9).
//!
//! A command passes through: overhead, then either a cache hit (overhead and
//! bus transfer) or seek, write settle, head switch, rotation and transfer, the
//! bus overlapping the medium. Between commands the drive reads ahead and
//! writes cached data back; both are worked out when the next command comes,
//! so an idle drive costs nothing. The spindle never stops: its phase is a
//! function of time alone.
//!
//! Left out: defects remapped to distant spares, retries, thermal recalibration, commands that
//! overlap inside the drive (a hit does not overtake a miss that is being served).
//!
//! Files: [`geometry`] positions of sectors, [`seek`] times of the arm, [`mechanics`] both with
//! time, [`cache`] the segments, `drive` one command and the background, `divisor` arithmetic; this
//! one, the queue in front of it.

pub mod cache;
mod drive;
pub mod geometry;
pub mod mechanics;

use crate::DeviceModel;
use crate::in_flight::assert_inside;
use cache::{CacheShape, OnHit};
use drive::Drive;
use mechanics::Mechanics;
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Nanos, Sectors};
use serde::Deserialize;
use std::collections::VecDeque;

/// An angle: 2^64 to a turn, so that arithmetic wraps where the disk does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn(pub u64);

impl Turn {
    /// From a fraction of a turn; whole turns vanish.
    pub fn of_fraction(fraction: f64) -> Turn {
        // 2^64 is exact in f64, and the product stays below it.
        Turn((fraction.rem_euclid(1.0) * 18_446_744_073_709_551_616.0) as u64)
    }
    /// As a fraction of a turn, in [0, 1].
    pub fn as_fraction(self) -> f64 {
        self.0 as f64 / 18_446_744_073_709_551_616.0
    }
    /// Time from angle 0 to here when a turn takes `rotation_ns`.
    #[inline]
    pub fn as_ns(self, rotation_ns: u64) -> u64 {
        ((u128::from(self.0) * u128::from(rotation_ns)) >> 64) as u64
    }
}

/// Times of the drive's electronics, by the command's type, by a hit or miss of the cache, and by
/// the previous command (DiskSim 4.0's eight overheads). All in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overheads {
    /// Read served from the cache: [after a read, after a write].
    pub read_hit_ns: [u64; 2],
    /// Read that needs the medium.
    pub read_miss_ns: [u64; 2],
    /// Write that continues one in the cache.
    pub write_hit_ns: [u64; 2],
    /// Write that continues none in the cache.
    pub write_miss_ns: [u64; 2],
}

/// Rules of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheRules {
    /// Number, size and replacement of the segments.
    pub shape: CacheShape,
    /// Effect of a hit on the segments.
    pub on_hit: OnHit,
    /// Does the drive read on after a read at all?
    pub read_ahead: bool,
    /// Sectors that it reads on before a new command may cut in.
    pub read_ahead_min: u64,
    /// Sectors after the last requested one at which it stops.
    pub read_ahead_max: u64,
    /// A hit that leaves fewer sectors than this ahead of it starts stopped
    /// read-ahead again (0: never). Only with [`OnHit::Extend`] and [`OnHit::Consume`].
    pub resume_below: u64,
    /// Does read-ahead go on while no command is there?
    pub read_ahead_idle: bool,
    /// Does a new command that needs the medium cut it short (after
    /// `read_ahead_min`), or wait for its end?
    pub cut_short: bool,
    /// May reads be served from data that was written?
    pub read_hits_on_writes: bool,
    /// Are writes done when they are in the cache ("immediate reporting")?
    pub write_cache: bool,
    /// Written runs that the cache may hold before they reach the medium, at least 1.
    pub write_segments: u32,
    /// In which order those reach the medium.
    pub write_order: QueueOrder,
}

// In which order a drive with several commands serves them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "OrderFile"))]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    // In the order in which they came.
    #[default]
    Fcfs,
    // The command that the head reaches first (native command queueing), but none waits longer than
    // QUEUE_WAIT_NS_MAX while younger ones pass it.
    Sptf,
}

/// Wait in the drive after which a command is served next, wherever it is: a guess.
pub const QUEUE_WAIT_NS_MAX: u64 = 500_000_000;

/// Everything that a profile states of a drive.
pub struct DiskSpec {
    /// Layout, arm and spindle.
    pub mechanics: Mechanics,
    /// Time of the drive's electronics for each command.
    pub overheads: Overheads,
    /// Bus time of a sector of 512 bytes.
    pub bus_sector_ns: u64,
    pub cache: CacheRules,
    /// Commands that the drive takes at once, at least 1.
    pub queue_depth: u32,
    /// In which order it serves them.
    pub order: QueueOrder,
}

/// A command that the medium or the bus is busy with.
#[derive(Clone, Copy)]
struct InService {
    id: RequestId,
    done_ns: u64,
}

/// The drive with its queue.
pub struct Disk {
    drive: Drive,
    queue_depth: u32,
    order: QueueOrder,
    /// In order of arrival.
    waiting: VecDeque<(u64, Request)>,
    in_service: Option<InService>,
    completed: VecDeque<InService>,
}

impl Disk {
    /// A drive at rest: head on the first track, cache empty, time 0.
    pub fn new(spec: DiskSpec) -> Disk {
        // Never reallocated: the engine submits at most `queue_depth`.
        let depth = spec.queue_depth as usize;
        Disk {
            queue_depth: spec.queue_depth,
            order: spec.order,
            drive: Drive::new(spec),
            waiting: VecDeque::with_capacity(depth),
            in_service: None,
            completed: VecDeque::with_capacity(depth),
        }
    }

    /// Layout, arm and spindle, for tests and tools.
    pub fn mechanics(&self) -> &Mechanics {
        &self.drive.mechanics
    }

    /// Takes a command of an array on sectors [start, end): behind all that the arm has to do, and
    /// past the drive's queue. Returns its end.
    pub(crate) fn accept(&mut self, now_ns: u64, op: Op, start: u64, end: u64) -> u64 {
        self.drive.serve(now_ns, op, start, end)
    }

    /// Serves a command that has the drive to itself; says when it is done.
    fn serve(&mut self, at_ns: u64, command: &Request) -> u64 {
        let (start, end) = (command.extent.start().get(), command.extent.end().get());
        self.drive.serve(at_ns, command.op, start, end)
    }

    /// Finishes the commands that end by `now_ns`, and begins those that waited.
    fn settle(&mut self, now_ns: u64) {
        while let Some(service) = self.in_service {
            if service.done_ns > now_ns {
                break;
            }
            self.completed.push_back(service);
            self.in_service = None;
            if !self.waiting.is_empty() {
                self.begin(service.done_ns);
            }
        }
    }

    /// Begins one of the waiting commands, of which there is at least one.
    fn begin(&mut self, at_ns: u64) {
        let index = match self.order {
            QueueOrder::Fcfs => 0,
            QueueOrder::Sptf => self.nearest(at_ns),
        };
        if let Some((_, command)) = self.waiting.remove(index) {
            let done_ns = self.serve(at_ns, &command);
            self.in_service = Some(InService { id: command.id, done_ns });
        }
    }

    fn nearest(&mut self, at_ns: u64) -> usize {
        match self.waiting.front() {
            Some(&(since, _)) if self.waiting.len() > 1 && at_ns < since + QUEUE_WAIT_NS_MAX => {}
            _ => return 0,
        }
        self.drive.catch_up(at_ns);
        let (drive, waiting) = (&self.drive, &self.waiting);
        // The first of equals is the oldest: min_by_key keeps it.
        (0..waiting.len()).min_by_key(|&i| drive.positioning_ns(at_ns, &waiting[i].1)).unwrap_or(0)
    }
}

impl DeviceModel for Disk {
    /// Seek knots hold seek time plus the overhead of a read that misses after
    /// a read, which is constant; distances are cylinders times the mean number
    /// of sectors in a cylinder.
    fn profile(&self) -> DeviceProfile {
        let m = &self.drive.mechanics;
        let per_cylinder = m.geometry.capacity() as f64 / f64::from(m.geometry.cylinders().max(1));
        let overhead = self.drive.overheads.read_miss_ns[0];
        let mut seek: Vec<(Sectors, Nanos)> = Vec::with_capacity(m.seek.knots().len());
        for &(cylinders, ns) in m.seek.knots() {
            let distance = (f64::from(cylinders) * per_cylinder).round() as u64;
            if seek.last().is_none_or(|&(d, _)| d.get() < distance) {
                seek.push((Sectors::new(distance), Nanos::new(ns + overhead)));
            }
        }
        DeviceProfile {
            capacity: Sectors::new(m.geometry.capacity()),
            rotation: Some(Nanos::new(m.rotation_ns)),
            seek,
            stripe: None,
        }
    }

    fn queue_depth(&self) -> u32 {
        self.queue_depth
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        assert_inside(command, self.drive.mechanics.geometry.capacity());
        let now_ns = now.as_nanos();
        self.settle(now_ns);
        let in_drive = self.waiting.len() + usize::from(self.in_service.is_some());
        assert!(in_drive < self.queue_depth as usize, "more commands than the queue takes");
        if self.in_service.is_none() {
            // Nothing waits either: `settle` has begun it.
            let done_ns = self.serve(now_ns, command);
            self.in_service = Some(InService { id: command.id, done_ns });
        } else {
            self.waiting.push_back((now_ns, *command));
        }
    }

    fn next_completion(&self) -> Option<Instant> {
        let next = self.completed.front().or(self.in_service.as_ref())?;
        Some(Instant::from_nanos(next.done_ns))
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.settle(now.as_nanos());
        self.completed.pop_front().map(|s| s.id)
    }

    /// Counts and, for `seek_ms` and `rotation_ms`, sums over all commands that
    /// needed the medium (of a command over several tracks: its first).
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.drive.report(sink);
    }
}
