//! The disks of a reactor: image, place on the device, and what has been done.

use super::lately::Lately;
use super::message::{DiskStatus, OpKind, OpStatus};
use crate::images::fault::Fault;
use crate::images::{Image, Limits};
use crate::port::{DiskId, Job};
use hdrhistogram::Histogram;
use seekway_policy::dispatcher::Withheld;
use seekway_policy::request::Op;
use seekway_policy::stack::limit::DiskLimits;
use seekway_policy::units::{Instant, Lba, Nanos};
use std::num::NonZeroU32;
use std::sync::mpsc::SyncSender;

/// Significant digits of the latency histograms: within one per cent.
const DIGITS: u8 = 2;

/// One disk.
pub struct DiskState {
    /// Its name.
    pub name: String,
    /// The open image.
    pub image: Image,
    /// Its limits as they are now.
    pub limits: Limits,
    /// Its share.
    pub weight: NonZeroU32,
    /// Its rate limits.
    pub limits_per_s: DiskLimits,
    /// The map is one piece that we chose: nothing to ask the file system.
    pub placed: Option<Lba>,
    /// The file system has not placed any of it yet.
    pub unmapped: bool,
    /// A write went where the map knows nothing.
    pub map_stale: bool,
    /// Not before then is the file system asked again.
    pub map_due: Instant,
    /// How long after that the next time.
    pub remap_after: Nanos,
    /// A thread is asking it now.
    pub mapping: bool,
    /// Failures to inject.
    pub fault: Option<Fault>,
    /// Ports that are open.
    pub ports: u32,
    /// Guests' jobs under way.
    pub outstanding: u32,
    /// Device time withheld while this disk was the one served last.
    pub held: Withheld,
    /// Shall end; whom to tell.
    pub detaching: Option<SyncSender<Result<(), String>>>,
    /// What has been done.
    pub ops: [OpStatus; OpKind::COUNT],
    /// What it got of the device.
    pub lately: Lately,
}

impl DiskState {
    /// The sectors where we put it; `None` where the file system did.
    pub fn placed_at(&self) -> Option<(u64, u64)> {
        let start = self.placed?.get();
        Some((start, start + self.limits.capacity_bytes.div_ceil(512)))
    }

    /// A job has come.
    pub fn begin(&mut self, now: Instant) {
        if self.outstanding == 0 {
            self.lately.begin_busy(now);
        }
        self.outstanding += 1;
    }

    /// A job is done.
    pub fn count(&mut self, now: Instant, job: &Job, ok: bool, response: Nanos) {
        let kind = match job.op {
            Op::Read => OpKind::Read,
            Op::Write => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard | Op::WriteZeroes => OpKind::Discard,
        };
        let status = &mut self.ops[kind as usize];
        status.requests += 1;
        match ok {
            true => status.bytes += job.len,
            false => status.errors += 1,
        }
        // An auto-resizing histogram takes every value but zero.
        let _ = status.latency_ns.record(response.get().max(1));
        if ok && job.op.is_data() {
            self.lately.add(Nanos::ZERO, job.len);
        }
        self.outstanding -= 1;
        if self.outstanding == 0 {
            self.lately.end_busy(now);
        }
    }

    /// How it stands.
    pub fn status(&self, id: DiskId) -> DiskStatus {
        DiskStatus {
            id,
            name: self.name.clone(),
            weight: self.weight.get(),
            capacity_bytes: self.limits.capacity_bytes,
            ports: self.ports,
            outstanding: self.outstanding,
            limits: self.limits_per_s.clone(),
            limited: 0,
            limited_time: Nanos::ZERO,
            held: self.held.clone(),
            ops: self.ops.clone(),
            device_time: self.lately.device_time(),
            lately: self.lately.last(),
            policy_metrics: Vec::new(),
            cache: None,
        }
    }
}

/// Nothing done yet.
pub fn no_ops() -> [OpStatus; OpKind::COUNT] {
    std::array::from_fn(|_| OpStatus {
        requests: 0,
        bytes: 0,
        errors: 0,
        latency_ns: Histogram::new(DIGITS).expect("two digits are in range"),
    })
}
