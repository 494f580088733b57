//! Several equal drives striped (RAID 0): chunk after chunk over the members. A command is split
//! among its members and is done when all parts are. The card in between costs nothing, and its
//! queue takes the commands beyond the members' own queues. With mirrors (RAID 10) each member
//! stands for several with the same data: a write goes to all of them, reads take turns.
//!
//! Disks serve reads in order of arrival. A disk's write cache stands for its part of the card's,
//! which survives a loss of power: a cached write waits for no read, is written out while the disk
//! is idle or when the cache is full, and a flush of disks is answered at once.

use crate::DeviceModel;
use crate::disk::Disk;
use crate::in_flight::{Behind, InFlight, assert_inside};
use crate::ssd::Ssd;
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::{DeviceProfile, Stripe};
use seekway_core::units::{Instant, Sectors};

/// Everything that a profile states of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Raid0Spec {
    /// Members, at least 1.
    pub members: u32,
    /// Members with the same data, a divisor of `members`; 1 for none.
    pub mirrors: u32,
    /// Sectors of a chunk, at least 1.
    pub chunk_sectors: u64,
    /// Commands that the array takes at once, at least 1.
    pub queue_depth: u32,
}

/// A drive of an array. Boxed, because their sizes differ much.
pub enum Member {
    Flash(Box<Ssd>),
    Disk(Box<Disk>),
}

impl Member {
    fn model(&self) -> &dyn DeviceModel {
        match self {
            Member::Flash(drive) => &**drive,
            Member::Disk(drive) => &**drive,
        }
    }
}

pub struct Raid0 {
    spec: Raid0Spec,
    /// Mirrors of the same data are neighbours.
    members: Vec<Member>,
    capacity: u64,
    in_flight: InFlight,
    /// Programs that the command waits for, with their members; empty between commands.
    behind: Vec<(usize, Behind)>,
    parts: u64,
}

impl Raid0 {
    /// An array of `members`, as many as the specification says and of one size.
    /// Of that size, whole chunks are used.
    pub fn new(spec: Raid0Spec, members: Vec<Member>) -> Raid0 {
        let sizes = members.iter().map(|m| m.model().profile().capacity.get());
        let chunks = sizes.min().unwrap_or(0) / spec.chunk_sectors;
        Raid0 {
            capacity: chunks * spec.chunk_sectors * u64::from(spec.members / spec.mirrors),
            in_flight: InFlight::new(spec.queue_depth),
            spec,
            members,
            behind: Vec::new(),
            parts: 0,
        }
    }

    /// The sectors of the `number`-th member or group of mirrors that [start, end) of the array
    /// touches: one run, since a member's chunks of successive stripes are neighbours.
    fn part(&self, number: u64, start: u64, end: u64) -> (u64, u64) {
        let chunk = self.spec.chunk_sectors;
        let stripe = chunk * u64::from(self.spec.members / self.spec.mirrors);
        // Number of the member's sectors before a sector of the array.
        let before =
            |at: u64| at / stripe * chunk + (at % stripe).saturating_sub(number * chunk).min(chunk);
        (before(start), before(end))
    }

    /// Gives [from, to) to member `member`; returns its end by the present state.
    fn accept(&mut self, now_ns: u64, member: usize, op: Op, from: u64, to: u64) -> u64 {
        self.parts += 1;
        match &mut self.members[member] {
            Member::Flash(drive) => {
                let done_ns = drive.accept(now_ns, op, from, to);
                self.behind.extend(drive.behind().map(|behind| (member, behind)));
                self.in_flight.follow(member, drive.moved());
                done_ns
            }
            Member::Disk(_) if op == Op::Flush => now_ns,
            Member::Disk(drive) => drive.accept(now_ns, op, from, to),
        }
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
        let mirrors = self.spec.mirrors as usize;
        for group in 0..self.members.len() / mirrors {
            let (from, to) = self.part(group as u64, start, end);
            // A flush has no offset: it goes to all.
            if from == to && command.op != Op::Flush {
                continue;
            }
            let first = group * mirrors;
            let turn = first + self.parts as usize % mirrors;
            let taking =
                if command.op == Op::Read { turn..turn + 1 } else { first..first + mirrors };
            for member in taking {
                done_ns = done_ns.max(self.accept(now_ns, member, command.op, from, to));
            }
        }
        self.in_flight.enter(done_ns, command.id);
        for (member, behind) in self.behind.drain(..) {
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
            member.model().metrics(&mut |name, value| match sums
                .iter_mut()
                .find(|(n, _)| *n == name)
            {
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
mod tests {
    use super::*;
    use crate::profile;
    use crate::tests::{read, request, serve_one};
    use proptest::prelude::*;

    fn array(members: u32, chunk_sectors: u64) -> Raid0 {
        let profile = profile::load("intel-x25m-g2").unwrap();
        let flash = |_| Member::Flash(Box::new(profile.build_ssd().unwrap()));
        let spec = Raid0Spec { members, mirrors: 1, chunk_sectors, queue_depth: 8 };
        Raid0::new(spec, (0..members).map(flash).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Chunk by chunk, by the definition: chunk c is on member c mod n, as its
        /// chunk c div n.
        #[test]
        fn the_parts_are_the_chunks_in_order(
            members in 1..9_u32, chunk in 1..300_u64, start in 0..5_000_u64, sectors in 1..3_000_u64,
        ) {
            let array = array(members, chunk);
            let end = start + sectors;
            let mut expected = vec![Vec::new(); members as usize];
            for sector in start..end {
                let (number, within) = (sector / chunk, sector % chunk);
                let member = (number % u64::from(members)) as usize;
                expected[member].push(number / u64::from(members) * chunk + within);
            }
            for (member, sectors) in expected.iter().enumerate() {
                let (from, to) = array.part(member as u64, start, end);
                prop_assert_eq!(&(from..to).collect::<Vec<_>>(), sectors);
            }
        }
    }

    #[test]
    fn a_command_is_done_with_its_last_part() {
        // One chunk on each of two members takes as long as a chunk on one member.
        let mut single = profile::load("intel-x25m-g2").unwrap().build();
        let one = serve_one(&mut *single, 0, &read(0, 0, 64));
        let mut pair = array(2, 64);
        assert_eq!(serve_one(&mut pair, 0, &read(0, 0, 128)), one);
        // Half a chunk on the second is no longer, and a whole stripe more is.
        let mut pair = array(2, 64);
        assert_eq!(serve_one(&mut pair, 0, &read(0, 0, 96)), one);
        let mut pair = array(2, 64);
        assert!(serve_one(&mut pair, 0, &read(0, 0, 256)) > one);
    }

    #[test]
    fn members_work_at_once() {
        let mut pair = array(2, 64);
        let alone = serve_one(&mut array(2, 64), 0, &read(0, 0, 8));
        pair.submit(Instant::ZERO, &read(1, 0, 8));
        pair.submit(Instant::ZERO, &read(2, 64, 8));
        let done = Instant::from_nanos(alone);
        assert_eq!(pair.next_completion(), Some(done));
        assert_eq!(pair.pop_completed(done), Some(RequestId::new(1)));
        assert_eq!(pair.pop_completed(done), Some(RequestId::new(2)));
    }

    #[test]
    fn the_capacity_is_whole_chunks_and_a_flush_goes_to_all() {
        let one = array(1, 1).capacity;
        let mut three = array(3, 100);
        assert_eq!(three.capacity, one / 100 * 300);
        serve_one(&mut three, 0, &request(1, Op::Flush, 0, 1));
        let mut parts = 0.0;
        three.metrics(&mut |name, value| parts += if name == "parts" { value } else { 0.0 });
        assert_eq!(parts, 3.0);
    }

    #[test]
    fn sequential_reads_and_writes_have_the_bandwidth_of_all_members() {
        let profile = profile::load("raid0-8x-x25m-g2").unwrap();
        let published = profile::load("intel-x25m-g2").unwrap().published().unwrap();
        let member = profile::load("intel-x25m-g2").unwrap();
        let alone = crate::published::run(&published, |_| member.build());
        let all = crate::published::run(&published, |_| profile.build());
        // Sequential reads, sequential writes.
        for (alone, all) in alone.iter().zip(&all).take(2) {
            let members = all.model / alone.model;
            assert!((7.5..=8.1).contains(&members), "{}: {members} members' worth", all.test);
        }
    }

    fn raid10(changes: &str) -> Box<dyn DeviceModel> {
        profile::load(&format!("raid10-8x-exos-x18:{changes}")).unwrap().build()
    }

    #[test]
    fn mirrors_halve_the_capacity_take_every_write_and_share_the_reads() {
        let parts = |op, mirrors: u32| {
            let mut array = raid10(&format!("mirrors={mirrors}"));
            serve_one(&mut *array, 0, &request(1, op, 0, 8));
            let mut parts = 0.0;
            array.metrics(&mut |name, value| parts += if name == "parts" { value } else { 0.0 });
            (parts, array.profile().capacity.get())
        };
        let (plain, capacity) = parts(Op::Write, 1);
        assert_eq!((plain, parts(Op::Write, 2)), (1.0, (2.0, capacity / 2)));
        assert_eq!(parts(Op::Read, 2).0, 1.0);
        // Two reads of one place go to two arms: neither waits for the other.
        let alone = serve_one(&mut *raid10("read_ahead=false"), 0, &read(1, 1 << 20, 8));
        let mut array = raid10("read_ahead=false");
        array.submit(Instant::ZERO, &read(1, 1 << 20, 8));
        array.submit(Instant::ZERO, &read(2, 1 << 20, 8));
        for id in 1..=2 {
            assert_eq!(array.next_completion(), Some(Instant::from_nanos(alone)), "read {id}");
            assert_eq!(array.pop_completed(Instant::from_nanos(alone)), Some(RequestId::new(id)));
        }
    }

    #[test]
    fn a_cached_write_waits_for_no_read_until_the_cache_is_full() {
        // Behind a read that keeps the arm busy: two runs fit, the third waits for the medium.
        let mut array = raid10("members=2,write_segments=2,read_ahead=false");
        array.submit(Instant::ZERO, &read(0, 1 << 24, 8));
        let arm = array.next_completion().expect("it reads").as_nanos();
        let mut times = Vec::new();
        for id in 1..=3 {
            array.submit(Instant::ZERO, &request(id, Op::Write, u64::from(id) << 20, 8));
        }
        while let Some(at) = array.next_completion() {
            while let Some(id) = array.pop_completed(at) {
                times.push((id.slot(), at.as_nanos()));
            }
        }
        let order: Vec<usize> = times.iter().map(|&(id, _)| id).collect();
        assert_eq!(order, [1, 2, 0, 3]);
        assert!(times[1].1 < 200_000, "cached after {} ns", times[1].1);
        assert!(times[3].1 > arm, "written through after {} ns", times[3].1);
        // The cache survives a loss of power: a flush costs nothing.
        let now = times[3].1;
        assert_eq!(serve_one(&mut *array, now, &request(4, Op::Flush, 0, 1)), now);
    }

    #[test]
    fn a_flush_of_the_array_waits_for_what_reads_suspend_on_its_members() {
        let flushed = |reads: bool| {
            let member = "intel-x25m-g2:reads_first=1,program_suspends=1,program_suspend_us=100";
            let profile = profile::load(member).unwrap();
            let flash = |_| Member::Flash(Box::new(profile.build_ssd().unwrap()));
            let all = (0..2).map(flash).collect();
            let spec = Raid0Spec { members: 2, mirrors: 1, chunk_sectors: 8, queue_depth: 8 };
            let mut pair = Raid0::new(spec, all);
            // To the second member's first die, the only one with work.
            let t = serve_one(&mut pair, 0, &request(0, Op::Write, 24, 8));
            pair.submit(Instant::from_nanos(t), &request(1, Op::Flush, 0, 1));
            if reads {
                pair.submit(Instant::from_nanos(t + 500_000), &read(2, 8, 8));
                let at = pair.next_completion().unwrap();
                assert_eq!(pair.pop_completed(at), Some(RequestId::new(2)));
            }
            let at = pair.next_completion().unwrap();
            assert_eq!(pair.pop_completed(at), Some(RequestId::new(1)));
            at.as_nanos()
        };
        // 100 µs to suspend, and the read itself.
        let moved = flushed(true) - flushed(false);
        assert!((100_000..300_000).contains(&moved), "{moved}");
    }
}
