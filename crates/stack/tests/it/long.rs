//! Requests that are longer than what a device gets at once, under every policy, on devices with
//! and without a head, past the hard limit, and through a cache.

use seekway_core::request::{Extent, Op, RequestId, VmId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_stack::cache;
use seekway_stack::dispatcher::{self, Tags};
use seekway_stack::stack::{
    Action, CacheSpec, Config, DiskSpec, FileExtent, IoError, Map, Stack, Submit, Target,
};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

/// The longest read or write that a device may get: 1 MiB.
const PIECE: u64 = 1 << 11;
/// All that may be on it: 16 MiB.
const ROOM: u64 = 16 * PIECE;
const DISK: Sectors = Sectors::new(1 << 26);

/// A stack over a device that does one command after the other, in the order in which it got them.
struct Rig {
    stack: Stack,
    now: Instant,
    device: VecDeque<(RequestId, Op, u64)>,
    /// Sectors of each guest's request that have moved, and how it ended.
    moved: BTreeMap<u64, u64>,
    done: BTreeMap<u64, Result<(), IoError>>,
    /// The most requests that the dispatcher had.
    most: usize,
    commands: usize,
    parts: usize,
}

impl Rig {
    fn new(policy: &str, has_head: bool, dispatch: dispatcher::Config, cached: bool) -> Rig {
        let profile = DeviceProfile::unknown(DISK, has_head);
        let cache = cached.then(|| CacheSpec::new(cache::Config::new(64 << 20), "none").unwrap());
        let config = Config { dispatch, ..Config::default() };
        let mut stack = Stack::new(schedulers::build(policy).unwrap(), profile, config, cache);
        for vm in 0..2 {
            let (weight, map) = (NonZeroU32::MIN, Map::linear(Lba::ZERO, DISK));
            stack.attach(
                Instant::ZERO,
                VmId::new(vm),
                DiskSpec { weight, capacity: DISK, map, cached },
            );
        }
        let (now, device) = (Instant::ZERO, VecDeque::new());
        let (moved, done) = (BTreeMap::new(), BTreeMap::new());
        Rig { stack, now, device, moved, done, most: 0, commands: 0, parts: 0 }
    }

    fn submit(&mut self, vm: u16, op: Op, mib: u64, token: u64) {
        let extent = Extent::new(Lba::new(token * 7919 * 8), Sectors::new(mib << 11)).unwrap();
        let request = Submit { vm: VmId::new(vm), tag: None, op, sync: true, extent, token };
        self.stack.submit(self.now, request).unwrap();
    }

    /// Poll until nothing more goes. When to come back.
    fn poll(&mut self) -> Option<Instant> {
        loop {
            match self.stack.poll(self.now) {
                Action::Issue(command) => {
                    let len = command.extent.len().get();
                    assert!(!command.op.is_data() || len <= PIECE, "a command of {len} sectors");
                    for member in self.stack.members(command.id) {
                        self.parts += 1;
                        if let Target::Guest { token } = member.target {
                            *self.moved.entry(token).or_default() += member.part.len().get();
                        }
                    }
                    self.commands += 1;
                    self.device.push_back((command.id, command.op, len));
                    let held: u64 = self.device.iter().map(|(_, _, len)| len).sum();
                    assert!(held < ROOM + PIECE, "{held} sectors on the device");
                }
                Action::Done(done) => {
                    assert!(self.done.insert(done.token, done.result).is_none(), "done twice");
                }
                Action::Wait(wake) => break wake.earliest(),
                _ => {}
            }
            self.most = self.most.max(self.stack.outstanding());
        }
    }

    /// The device does a command, or time passes; false when nothing is left.
    fn step(&mut self, error: Option<IoError>) -> bool {
        let wake = self.poll();
        let Some((io, ..)) = self.device.pop_front() else {
            let Some(at) = wake else { return false };
            self.now = at;
            return true;
        };
        self.now = self.now + Nanos::from_micros(700);
        let members = self.stack.members(io).map(|member| member.id);
        let failed: Vec<_> = members.filter_map(|id| Some((id, error?))).collect();
        self.stack.io_done(self.now, io, &failed);
        true
    }
}

fn config(hard_limit: Nanos) -> dispatcher::Config {
    dispatcher::Config { depth: 128, hard_limit, ..dispatcher::Config::default() }
}

#[test]
fn no_policy_and_no_path_gives_a_device_more_than_a_piece() {
    for policy in schedulers::REGISTRY.iter().map(|entry| entry.name) {
        for (has_head, cached) in [(false, false), (false, true), (true, false), (true, true)] {
            for hard_limit in [Nanos::from_secs(30), Nanos::from_micros(1)] {
                let mut rig = Rig::new(policy, has_head, config(hard_limit), cached);
                let lengths = [64, 3, 17, 1, 2, 4, 5, 33];
                for (token, mib) in (0u64..).zip(lengths) {
                    let op = [Op::Read, Op::Read, Op::Write][token as usize % 3];
                    rig.submit(token as u16 % 2, op, mib, token);
                }
                while rig.step(None) {}
                let case = format!("{policy}, head {has_head}, cache {cached}, {hard_limit}");
                assert_eq!(rig.done.len(), lengths.len(), "{case}");
                assert!(rig.stack.is_idle(), "{case}");
                for (token, moved) in &rig.moved {
                    assert_eq!(*moved, lengths[*token as usize] * PIECE, "{case}: {token}");
                }
            }
        }
    }
}

/// A guest may ask for a gibibyte in each of as many requests as there is room for.
#[test]
fn what_a_long_request_costs_does_not_grow_with_its_length() {
    for (has_head, most) in [(false, 64 + 1000), (true, 1000)] {
        let mut rig = Rig::new("noop", has_head, config(Nanos::from_secs(30)), false);
        for token in 0..1000 {
            rig.submit(0, Op::Read, 1024, token);
        }
        for _ in 0..5000 {
            rig.step(None);
        }
        assert!(rig.most <= most, "{} requests, head {has_head}", rig.most);
    }
}

/// One request at a time: a device without a head has several pieces of it.
#[test]
fn one_long_request_keeps_a_device_busy() {
    for (has_head, pieces) in [(false, 8), (true, 1)] {
        let mut rig = Rig::new("noop", has_head, config(Nanos::from_secs(30)), false);
        rig.submit(0, Op::Read, 64, 0);
        for _ in 0..50 {
            rig.poll();
            assert_eq!(rig.device.len(), pieces, "head {has_head}");
            rig.step(None);
        }
        while rig.step(None) {}
        assert_eq!(rig.commands, 64);
    }
}

#[test]
fn after_an_error_nothing_more_of_a_request_goes() {
    for has_head in [false, true] {
        let mut rig = Rig::new("noop", has_head, config(Nanos::from_secs(30)), false);
        rig.submit(0, Op::Write, 1024, 0);
        rig.submit(1, Op::Read, 20, 1);
        for step in 0..10_000 {
            let of_first = rig.device.front().is_some_and(|&(_, op, _)| op == Op::Write);
            let error = (of_first && step > 3).then_some(IoError(5));
            if !rig.step(error) {
                break;
            }
        }
        assert_eq!(rig.done, BTreeMap::from([(0, Err(IoError(5))), (1, Ok(()))]));
        assert!(rig.moved[&0] < 40 * PIECE && rig.moved[&1] == 20 * PIECE, "{:?}", rig.moved);
        assert!(rig.stack.is_idle());
    }
}

/// Every other 64 KiB of the image is a hole, so that a command has several parts of one piece.
#[test]
fn an_error_in_several_parts_of_a_request_ends_it_once() {
    let extents: Vec<FileExtent> =
        (0..64).map(|n| FileExtent { at: n * 256, place: n * 256, len: 128 }).collect();
    for (has_head, fails) in [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2)] {
        let mut rig = Rig::new("noop", has_head, config(Nanos::from_secs(30)), false);
        let map = Map::of_extents(&extents, Lba::ZERO, DISK, DISK).unwrap();
        rig.stack.remap(rig.now, VmId::new(0), map);
        rig.submit(0, Op::Write, 4, 0);
        let mut command = 0;
        while rig.step((command == fails).then_some(IoError(5))) {
            command += 1;
        }
        assert!(rig.commands < rig.parts, "commands have several parts");
        assert_eq!(rig.done, BTreeMap::from([(0, Err(IoError(5)))]), "head {has_head}");
        assert!(rig.stack.is_idle());
    }
}

/// 64 tags for 128 KiB each: a command of 1 MiB takes eight.
#[test]
fn a_device_gets_no_more_than_its_queue_has_tags_for() {
    let tags = Some(Tags { count: 64, sectors: Sectors::new(256) });
    let dispatch = dispatcher::Config { tags, ..config(Nanos::from_secs(30)) };
    let mut rig = Rig::new("noop", false, dispatch, false);
    (0..48).for_each(|token| rig.submit(0, Op::Read, 64, token));
    for _ in 0..500 {
        rig.poll();
        let taken: u64 = rig.device.iter().map(|(_, _, len)| len.div_ceil(256)).sum();
        assert_eq!(taken, 48, "three quarters of them");
        rig.step(None);
    }
}
