//! Several equal solid-state drives striped (RAID 0): chunk after chunk over the members. A command
//! is split among its members and is done when all parts are. The card in between costs nothing,
//! and its queue takes the commands beyond the members' own queues.

use crate::DeviceModel;
use crate::in_flight::{InFlight, assert_inside};
use crate::ssd::Ssd;
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::{DeviceProfile, Stripe};
use seekway_core::units::{Instant, Sectors};

/// Everything that a profile states of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Raid0Spec {
    /// Members, at least 1.
    pub members: u32,
    /// Sectors of a chunk, at least 1.
    pub chunk_sectors: u64,
    /// Commands that the array takes at once, at least 1.
    pub queue_depth: u32,
}

pub struct Raid0 {
    spec: Raid0Spec,
    members: Vec<Ssd>,
    capacity: u64,
    in_flight: InFlight,
    parts: u64,
}

impl Raid0 {
    /// An array of `members`, as many as the specification says and of one size.
    /// Of that size, whole chunks are used.
    pub fn new(spec: Raid0Spec, members: Vec<Ssd>) -> Raid0 {
        let smallest = members.iter().map(|m| m.profile().capacity.get()).min().unwrap_or(0);
        let chunks = smallest / spec.chunk_sectors;
        Raid0 {
            capacity: chunks * spec.chunk_sectors * members.len() as u64,
            in_flight: InFlight::new(spec.queue_depth),
            spec,
            members,
            parts: 0,
        }
    }

    /// The sectors of member `member` that [start, end) of the array touches:
    /// one run, since a member's chunks of successive stripes are neighbours.
    fn part(&self, member: u64, start: u64, end: u64) -> (u64, u64) {
        let chunk = self.spec.chunk_sectors;
        let stripe = chunk * self.members.len() as u64;
        // Number of the member's sectors before a sector of the array.
        let before =
            |at: u64| at / stripe * chunk + (at % stripe).saturating_sub(member * chunk).min(chunk);
        (before(start), before(end))
    }
}

impl DeviceModel for Raid0 {
    fn profile(&self) -> DeviceProfile {
        let Raid0Spec { members, chunk_sectors, .. } = self.spec;
        DeviceProfile {
            stripe: Stripe::new(members, Sectors::new(chunk_sectors)),
            ..DeviceProfile::unknown(Sectors::new(self.capacity), false)
        }
    }

    fn queue_depth(&self) -> u32 {
        self.spec.queue_depth
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        let (start, end) = (command.extent.start().get(), command.extent.end().get());
        assert_inside(command, self.capacity);
        let now_ns = now.as_nanos();
        let mut done_ns = now_ns;
        let mut behind = Vec::new();
        for member in 0..self.members.len() {
            let (from, to) = self.part(member as u64, start, end);
            // A flush has no offset: it goes to all.
            if from < to || command.op == Op::Flush {
                self.parts += 1;
                let drive = &mut self.members[member];
                done_ns = done_ns.max(drive.accept(now_ns, command.op, from, to));
                behind.extend(drive.behind().map(|behind| (member, behind)));
                self.in_flight.follow(member, drive.moved());
            }
        }
        self.in_flight.enter(done_ns, command.id);
        for (member, behind) in behind {
            self.in_flight.stays_behind(member, behind);
        }
    }

    fn next_completion(&self) -> Option<Instant> {
        self.in_flight.next()
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.in_flight.pop(now)
    }

    /// `parts` counts the members' commands; the others are sums over the
    /// members, but for `write_amplification`, which is their mean.
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("parts", self.parts as f64);
        let mut sums: Vec<(&'static str, f64)> = Vec::new();
        for member in &self.members {
            member.metrics(&mut |name, value| match sums.iter_mut().find(|(n, _)| *n == name) {
                Some((_, sum)) => *sum += value,
                None => sums.push((name, value)),
            });
        }
        for (name, sum) in sums {
            let mean = name == "write_amplification";
            sink(name, if mean { sum / self.members.len() as f64 } else { sum });
        }
    }
}

#[cfg(test)]
mod tests;
