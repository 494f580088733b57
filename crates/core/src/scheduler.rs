//! The contract between the dispatcher and a scheduling policy.
//!
//! A scheduler is a state machine: the engine reports events with their times, and asks for
//! decisions. It never reads a clock, never calls back, and decides the same on the same input.

use crate::request::{Completion, Extent, Request, RequestId, VmId};
use crate::units::{Instant, Lba, Nanos, Sectors};
use std::num::NonZeroU32;

/// The longest that a policy may withhold work without being asked again.
pub const HOLD_MAX: Nanos = Nanos::from_secs(10);

/// The least rate that a VM gets while it asks for it. Zero: nothing is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reserve {
    /// Requests a second; zero reserves none.
    pub iops: u64,
    /// Bytes a second, read or written; zero reserves none.
    pub bytes_per_s: u64,
}

impl Reserve {
    /// Neither requests nor bytes are reserved.
    pub fn is_none(self) -> bool {
        self == Reserve::default()
    }
}

/// A service-level target beside the weight, which only some policies keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Reserved requests a second: [`Reserve::iops`].
    Iops,
    /// Reserved bytes a second: [`Reserve::bytes_per_s`].
    Bandwidth,
    /// A target of latency: [`VmSpec::latency`].
    Latency,
    /// A part of the share of a group: [`VmSpec::group`].
    Group,
}

/// A group of VMs that has one share, which its VMs divide by their weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// Which one: VMs with the same number are in the same group. Small.
    pub number: u16,
    /// Its share relative to those of other groups and of VMs without a group.
    pub weight: NonZeroU32,
}

/// Description of a VM for the scheduler it joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmSpec {
    /// Its share relative to the other VMs', of its group if it has one; 1 unless the operator
    /// says otherwise.
    pub weight: NonZeroU32,
    /// The group that divides its share among its VMs, if the VM is in one.
    pub group: Option<Group>,
    /// Met before the shares by a policy that knows reservations.
    pub reserve: Reserve,
    /// Target time of 99 of 100 of its requests, for a policy that knows such targets.
    pub latency: Option<Nanos>,
    /// The VM's region: the extents of its images on the device, ascending and
    /// disjoint. Empty when nothing is known of them.
    pub region: Vec<Extent>,
}

impl Default for VmSpec {
    fn default() -> Self {
        VmSpec {
            weight: NonZeroU32::MIN,
            group: None,
            reserve: Reserve::default(),
            latency: None,
            region: Vec::new(),
        }
    }
}

/// A scheduling policy for one device.
pub trait Scheduler: Send {
    /// The policy takes over this device. Called once, before any VM joins.
    fn takes_over(&mut self, _device: &DeviceProfile) {}

    /// A VM joins. Requests of a VM arrive only between its attach and its detach.
    fn attach(&mut self, _now: Instant, _vm: VmId, _spec: VmSpec) {}

    /// The VM leaves: hand back all it has queued, in arrival order.
    /// Requests already dispatched complete later; their `completed` still comes.
    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request>;

    /// Adds a request to the queue: a read or a write. Its extent is what remains to be sent, after
    /// an earlier policy sent a part.
    fn arrived(&mut self, now: Instant, request: Request);

    /// A queued request of this policy has grown to `extent`: an adjacent one was merged with it when
    /// it arrived, as in Linux's block layer. It keeps its id and its age, and goes as a whole
    /// ([`Decision::Dispatch`]). A policy that takes no merged requests answers false, and the new
    /// one arrives by itself.
    fn merged(&mut self, _now: Instant, _id: RequestId, _extent: Extent) -> bool {
        false
    }

    /// A queued request is taken back: the policy forgets it and does not count
    /// it as served. No `completed` follows, except for parts that the policy
    /// sent before. Panics when the request is not queued.
    fn withdraw(&mut self, now: Instant, id: RequestId);

    /// A request that this policy dispatched is done, or a part of one.
    fn completed(&mut self, _now: Instant, _completion: &Completion) {}

    /// Chooses the next step. Called only while the device has room for a command.
    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision;

    /// Requests are queued and the device has no room for a command. Called
    /// after each input, and only if [`Scheduler::wants_full`].
    fn full(&mut self, _now: Instant, _device: &DeviceView<'_>) {}

    /// Does the policy want the calls of [`Scheduler::full`]? Asked once, when
    /// the policy takes over a device.
    fn wants_full(&self) -> bool {
        false
    }

    /// Limits the VM's prefetches that may go now as one command: at least `len` sectors, or none.
    /// Called while nothing is queued. An idle device takes one request for any answer; a device
    /// with an arm does so after a while without demand. A policy without rules for prefetches lets
    /// all of them go.
    fn background_most(
        &mut self,
        _now: Instant,
        _vm: VmId,
        _len: Sectors,
        _device: &DeviceView<'_>,
    ) -> Sectors {
        Sectors::new(u64::MAX)
    }

    /// Of VMs that have prefetches waiting, the one with the least of these goes next, and equal
    /// ones by turns.
    fn background_place(&self, _vm: VmId) -> u128 {
        0
    }

    /// A command of prefetches has gone, by the id of the first of them.
    fn background_sent(&mut self, _now: Instant, _command: &Request) {}

    /// Such a command is done, which was sent then. Its VM may have left.
    fn background_completed(&mut self, _now: Instant, _command: &Request, _sent: Instant) {}

    /// Reports figures that only this policy knows; latency is measured outside, alike for all.
    fn metrics(&self, _sink: &mut dyn FnMut(&'static str, f64)) {}

    /// As [`Scheduler::metrics`], for each attached VM.
    fn vm_metrics(&self, _sink: &mut dyn FnMut(&'static str, VmId, f64)) {}
}

/// A scheduler's answer.
///
/// A `why` is the cause by which reports show the time withheld. It is a word
/// of the policy's own, listed in its registry entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Send this one; the policy forgets it until `completed`.
    Dispatch(RequestId),
    /// Send the first `len` sectors that remain of this request, or all of it if it is not longer.
    /// A remainder stays in the policy's queue.
    ///
    /// `len`, at least 1, also bounds the command: requests that continue it
    /// are asked for only as far as they fit.
    DispatchPart {
        /// The queued request of which a part goes.
        id: RequestId,
        /// Longest allowed command.
        len: Sectors,
    },
    /// Work is queued and deliberately withheld, at the latest until `until`,
    /// which lies in `(now, now + HOLD_MAX]`. Every arrival and completion asks again.
    Hold {
        /// When the policy wants to be asked again if nothing happens.
        until: Instant,
        /// Reason of the hold.
        why: &'static str,
    },
    /// Work is queued and withheld until a command completes or a request
    /// arrives. Only while a command is in flight.
    Wait {
        /// When the policy wants to be asked again if neither happens, because
        /// the device may never complete a command: in `(now, now + HOLD_MAX]`.
        until: Option<Instant>,
        /// Reason of the hold.
        why: &'static str,
    },
    /// Nothing is queued, so nothing goes and nothing is withheld.
    Idle,
}

/// The device as the dispatcher sees it when it asks for a decision.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'a> {
    /// The sector after the last one that was dispatched.
    pub head: Lba,
    /// Requests dispatched and not completed, each part of a split one
    /// counted; without the background's.
    pub in_flight: u32,
    /// Commands that the device takes at once, at least 1.
    pub depth: u32,
    /// Commands in flight, including the one that is being decided.
    pub commands: u32,
    /// Those of `commands` that do not come from this policy: flushes, discards
    /// and write-zeroes, requests past the hard limit, the background's, and
    /// an earlier policy's.
    pub unseen: u32,
    /// The device's description.
    pub profile: &'a DeviceProfile,
}

impl<'a> DeviceView<'a> {
    /// A device that takes one command at a time and has nothing in flight.
    pub fn idle(head: Lba, profile: &'a DeviceProfile) -> Self {
        DeviceView { head, in_flight: 0, depth: 1, commands: 0, unseen: 0, profile }
    }
}

/// Description of a device for policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceProfile {
    /// Size of the device.
    pub capacity: Sectors,
    /// Time of a revolution; `None` for a device without one.
    pub rotation: Option<Nanos>,
    /// Seek time against distance in sectors, ascending in distance: the
    /// knots of a piecewise linear curve, without rotation. Empty: unknown.
    pub seek: Vec<(Sectors, Nanos)>,
    /// Layout of its sectors over several drives, if known.
    pub stripe: Option<Stripe>,
}

/// Chunk after chunk goes to one of several alike drives after the other (RAID 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    members: u32,
    chunk: Sectors,
}

impl Stripe {
    /// The most drives, which bounds the memory for any journal.
    pub const MEMBERS_MAX: u32 = 1024;

    /// `None` with less than two drives or more than [`Stripe::MEMBERS_MAX`], or an empty chunk.
    pub fn new(members: u32, chunk: Sectors) -> Option<Stripe> {
        let is_array = (2..=Stripe::MEMBERS_MAX).contains(&members) && chunk > Sectors::ZERO;
        is_array.then_some(Stripe { members, chunk })
    }
    /// Number of drives.
    pub fn members(self) -> u32 {
        self.members
    }
    /// Sectors on one drive before the next drive's turn.
    pub fn chunk(self) -> Sectors {
        self.chunk
    }
    /// On which drive a sector lies, from 0.
    pub fn member(self, at: Lba) -> usize {
        (at.get() / self.chunk.get() % u64::from(self.members)) as usize
    }
}

impl DeviceProfile {
    /// A device of which only the size is known, taken to rotate or not.
    pub fn unknown(capacity: Sectors, rotational: bool) -> Self {
        // 7200 rpm, the slowest and commonest of today's disks.
        let rotation = rotational.then_some(Nanos::new(8_333_333));
        DeviceProfile { capacity, rotation, seek: Vec::new(), stripe: None }
    }

    /// Does the device have a head to move?
    pub fn rotational(&self) -> bool {
        self.rotation.is_some()
    }

    /// Time to move the arm by `distance`: seek by the curve and half a rotation (algorithms.md,
    /// section 2.2). Zero for distance zero. `None` when the curve is not known.
    pub fn positioning(&self, distance: Sectors) -> Option<Nanos> {
        let (&first, &last) = (self.seek.first()?, self.seek.last()?);
        if distance == Sectors::ZERO {
            return Some(Nanos::ZERO);
        }
        let half_turn = Nanos::new(self.rotation.map_or(0, |r| r.get() / 2));
        let seek = if distance <= first.0 {
            first.1
        } else if distance >= last.0 {
            last.1
        } else {
            let right = self.seek.partition_point(|&(d, _)| d < distance);
            let ((d0, t0), (d1, t1)) = (self.seek[right - 1], self.seek[right]);
            let span = d1.get() - d0.get();
            let into = distance.get() - d0.get();
            if t1 >= t0 {
                t0 + t1.saturating_sub(t0).scaled(into, span)
            } else {
                t0.saturating_sub(t0.saturating_sub(t1).scaled(into, span))
            }
        };
        Some(seek + half_turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positioning_interpolates_and_adds_half_a_turn() {
        let p = DeviceProfile {
            capacity: Sectors::new(1_000),
            rotation: Some(Nanos::new(100)),
            seek: vec![(Sectors::new(10), Nanos::new(20)), (Sectors::new(110), Nanos::new(120))],
            stripe: None,
        };
        let at = |d| p.positioning(Sectors::new(d)).unwrap().get();
        assert_eq!((at(0), at(1), at(10), at(60), at(5_000)), (0, 70, 70, 120, 170));
        assert_eq!(
            DeviceProfile::unknown(Sectors::new(1), true).positioning(Sectors::new(9)),
            None
        );
    }

    #[test]
    fn chunks_go_to_one_drive_after_the_other() {
        let stripe = Stripe::new(3, Sectors::new(128)).unwrap();
        assert_eq!([0, 127, 128, 383, 384].map(|at| stripe.member(Lba::new(at))), [0, 0, 1, 2, 0]);
        assert_eq!(Stripe::new(1, Sectors::new(128)), None);
        assert_eq!(Stripe::new(8, Sectors::ZERO), None);
        assert_eq!(Stripe::new(u32::MAX, Sectors::new(128)), None);
    }
}
