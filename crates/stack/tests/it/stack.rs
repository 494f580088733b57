//! The stack under random guests, devices and operators, against a flat model that says
//! what each sector may read as; and its journal, which replays byte for byte.
//! `PROPTEST_CASES=20000` looks longer.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use seekway_core::params::ParamError;
use seekway_core::request::{Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::{prefetchers, schedulers};
use seekway_stack::cache::Frame;
use seekway_stack::journal::{Build, Replay, ReplayError};
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits};
use seekway_stack::stack::{
    Action, CacheSpec, Config, Copy, DiskSpec, FileExtent, IoError, Map, Refused, Stack, Stages,
    Submit, Target, frames_of,
};
use seekway_stack::{cache, dispatcher};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

/// Every step of a case, and its journal played again.
fn runs(case: &Case) -> Result<(), TestCaseError> {
    let mut rig = Rig::new(case);
    for &step in &case.steps {
        rig.step(step)?;
    }
    rig.drain()?;
    let journal = rig.stack.take_journal();
    let mut replay = Replay::new(Build { scheduler: &build, ..Build::default() });
    for line in journal.lines() {
        replay.feed(line).map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
    let inputs = journal.matches(" submit ").count() + journal.matches(" io ").count();
    prop_assert!(replay.replayed().inputs >= inputs as u64);
    let done = journal.matches(" done ").count();
    prop_assert_eq!(done, journal.matches(" submit ").count());
    Ok(())
}

/// fairway: a command goes at the very instant at which the device is found to stand still, and
/// is done before those that do. (What of the device's content did not count was then more than
/// there was.)
#[test]
fn a_command_of_the_instant_of_a_stall_is_done() {
    #[rustfmt::skip]
    let steps = vec![
        (40, 15, 3088405538), (40, 176, 110073630), (20, 114, 2654701846), (20, 8, 856037098),
        (100, 221, 1121161990), (91, 0, 189717471), (100, 141, 3699886310), (246, 32, 3700678939),
        (100, 14, 1044819630), (211, 0, 294178850), (20, 33, 965824625), (20, 50, 2407610576),
        (20, 7, 4000), (120, 94, 525973481), (20, 93, 3719064454), (204, 5, 3773286990),
        (218, 105, 1056236713), (107, 149, 3857868033), (131, 189, 1157646266), (172, 214, 1771813230),
        (231, 121, 1477036877), (20, 182, 335480433), (115, 29, 817605285), (54, 141, 3397528925),
        (43, 209, 4127547860), (15, 159, 2691877154), (214, 1, 2256611819), (117, 57, 2434298074),
        (68, 228, 3623840656), (44, 56, 3475619416), (182, 97, 1874269210), (55, 33, 2603382282),
        (177, 154, 4068711396), (64, 171, 3653094424), (219, 11, 38752452), (222, 127, 2358846899),
        (158, 165, 1413130581), (174, 243, 945738193), (93, 33, 163288543), (179, 17, 2818581220),
        (137, 232, 3778917199), (86, 82, 3707178913), (174, 168, 3219436158), (12, 207, 2524702870),
        (64, 218, 2848899774), (11, 24, 3410209013), (213, 209, 2236583401), (95, 165, 697951927),
        (94, 50, 3944550437), (28, 114, 4178049919), (14, 215, 2049578434), (11, 41, 701267112),
        (11, 107, 1574354904), (178, 10, 238566388), (28, 132, 2494997389), (173, 72, 424246211),
        (212, 6, 3209424075), (236, 151, 3283923371), (139, 124, 80550272), (27, 244, 2815631333),
        (44, 31, 1909879734), (77, 112, 841210713), (173, 91, 3188511269), (98, 136, 2072425781),
        (137, 9, 3785818739),
    ];
    let (depth, coalesce, hard_us, cache) = (2, 35, 12_524, Some(2));
    let (policy, prefetcher) = (0, 0);
    assert_eq!(schedulers::REGISTRY[policy].name, "fairway", "the case is one of fairway's");
    let (merge, rotational) = (false, false);
    let case =
        Case { depth, coalesce, merge, hard_us, rotational, cache, policy, prefetcher, steps };
    runs(&case).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn guests_read_what_was_written_and_journals_replay(case in case()) {
        runs(&case)?;
    }

    #[test]
    fn replay_never_panics_on_garbage(lines in prop::collection::vec(line(), 0..60)) {
        let mut replay = Replay::new(Build::default());
        replay.feed(&format!("{HEADER} rotation=8ms cache=65536 unit=32 prefetch=vio")).unwrap();
        let mut time = 0u64;
        for (passed, line) in &lines {
            time = time.wrapping_add(*passed);
            let _ = replay.feed(&format!("{time} {line}"));
        }
    }
}

const HEADER: &str =
    "seekway-journal 2 policy=pregather depth=2 coalesce=1024 hard=30s outstanding=99 capacity=99";

/// A line that a journal may hold, or nearly: the time since the line before,
/// and the rest.
fn line() -> impl Strategy<Value = (u64, String)> {
    let time = prop_oneof![40 => 0u64..10_000_000, 4 => 0..20_000_000_000u64, 1 => any::<u64>()];
    let lba = prop_oneof![4 => 0u64..100, 1 => any::<u64>()];
    let what = (0..18, 0u32..3, lba.clone(), 0u64..40, lba, any::<u16>()).prop_map(
        |(verb, n, start, len, other, tag)| match verb {
            0 | 1 => format!("attach {n} weight={tag} size={other} cached=yes map={len}/{other}:0@{start},9@h{len}"),
            2 => format!("remap {n} 99/999:0@{start}"),
            3 => format!("detach {n}"),
            4 => format!("leave {n}"),
            5 => format!("resize {n} {other} {len}/{other}:0@{start}"),
            6 => format!(
                "switch {}",
                ["cfq", "pregather:literal=true", "deadline", "no"][tag as usize % 4]
            ),
            7 => format!("prefetcher {}", ["linux", "vio", "none", "no"][tag as usize % 4]),
            8..=11 => format!(
                "submit {n} {} sync {start}+{len} tag={tag} token={other}",
                ["R", "W", "F", "D", "", "x"][tag as usize % 6]
            ),
            12 => format!("io {n} ok"),
            13 => format!("io {n} {n}:5,{len}:7"),
            14 => format!("weight {n} {tag}"),
            16 => format!("limit {n} {}", ["iops=5", "none", "group=a", "x"][tag as usize % 4]),
            17 => format!("group {n} iops={tag}"),
            _ => "wait - -".into(),
        },
    );
    (time, prop_oneof![30 => what, 1 => ".{0,60}"])
}

#[test]
fn a_replay_refuses_curves_and_times_that_go_back() {
    let mut replay = Replay::new(Build::default());
    assert!(replay.feed(&format!("{HEADER} seek=9:1ms,5:2ms")).is_err(), "distances ascend");
    let mut replay = Replay::new(Build::default());
    replay.feed(&format!("{HEADER} seek=5:1ms,9:2ms")).unwrap();
    let arrays = ["1:128", "2:0", "9999:128", "2", "x:1"];
    for stripe in arrays {
        let mut replay = Replay::new(Build::default());
        assert!(replay.feed(&format!("{HEADER} stripe={stripe}")).is_err(), "{stripe}");
    }
    replay.feed("5 attach 0 weight=1 size=9 cached=no map=9/99:0@0").unwrap();
    assert!(matches!(replay.feed("4 detach 0"), Err(ReplayError::Line(3, _))));
    assert!(replay.feed(&format!("{} detach 0", u64::MAX)).is_err());
    replay.feed("5 detach 0").unwrap();
}

/// A stack of one VM without a cache, its journal begun.
fn small(spec: &str) -> Stack {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 20), true);
    let scheduler = schedulers::build(spec).unwrap();
    let mut stack = Stack::new(scheduler, profile, Config::default(), None);
    stack.start_journal(spec);
    let (map, capacity) = (map(0, 0), Sectors::new(DISK));
    let disk = DiskSpec { weight: NonZeroU32::MIN, capacity, map, cached: false };
    stack.attach(Instant::ZERO, VmId::new(0), disk);
    stack
}

fn read(start: u64, len: u64, token: u64) -> Submit {
    let vm = VmId::new(0);
    Submit { vm, tag: None, op: Op::Read, sync: true, extent: extent(start, len), token }
}

#[test]
fn a_specification_with_spaces_stays_one_word_of_the_journal() {
    let spec = "cfq:slice_idle=4ms, quantum=4";
    let mut stack = small(spec);
    stack.switch(Instant::ZERO, spec, schedulers::build(spec).unwrap());
    let mut replay = Replay::new(Build::default());
    for line in stack.take_journal().lines() {
        replay.feed(line).unwrap();
    }
    assert_eq!(replay.replayed().inputs, 2);
}

#[test]
fn replay_says_where_it_differs() {
    let mut stack = small("noop");
    stack.submit(Instant::ZERO, read(100, 8, 7)).unwrap();
    stack.poll(Instant::ZERO);
    let text = stack.take_journal().replace("issue 0 R 100+8", "issue 0 R 100+9");
    let mut replay = Replay::new(Build::default());
    let error = text.lines().find_map(|l| replay.feed(l).err()).unwrap();
    assert!(matches!(error, ReplayError::Differs { line: 4, .. }), "{error}");
}

/// A journal may come from anywhere: one that asks for more than a stack takes is refused like
/// any other wrong line.
#[test]
fn a_journal_of_too_many_requests_is_refused() {
    let mut replay = Replay::new(Build::default());
    replay.feed(HEADER).unwrap();
    replay.feed("0 attach 0 weight=1 size=99 cached=no map=99/99:0@0").unwrap();
    let refused = (0..200).find(|_| replay.feed("0 submit 0 R sync 0+8 tag=0 token=1").is_err());
    assert_eq!(refused, Some(99));
}

// Random guests over a device, and the flat model that says what each sector may read as.

const VMS: u16 = 3;

/// Sectors of a VM's disk: 48 blocks and a half.
pub const DISK: u64 = 388;

const BLOCK: u64 = cache::BLOCK_SECTORS;

/// One event: kind, VM, value.
type Step = (u8, u8, u32);

#[derive(Clone, Debug)]
pub struct Case {
    pub depth: u32,
    pub coalesce: u64,
    pub merge: bool,
    pub hard_us: u64,
    pub rotational: bool,
    /// Blocks of the cache; none without one.
    pub cache: Option<u64>,
    pub policy: usize,
    pub prefetcher: usize,
    pub steps: Vec<Step>,
}

pub fn case() -> impl Strategy<Value = Case> {
    let steps = prop::collection::vec((any::<u8>(), any::<u8>(), any::<u32>()), 1..300);
    let cache = prop::option::of(1u64..64);
    let flags = (any::<bool>(), any::<bool>());
    (1u32..6, 0u64..64, 1u64..200_000, flags, cache, 0usize..64, 0usize..64, steps).prop_map(
        |(depth, coalesce, hard_us, (merge, rotational), cache, policy, prefetcher, steps)| Case {
            depth,
            coalesce,
            merge,
            hard_us,
            rotational,
            cache,
            policy,
            prefetcher,
            steps,
        },
    )
}

/// A write of one sector: `done` is `None` while it is under way, and for good when it failed.
struct Write {
    version: u64,
    submitted: u64,
    done: Option<u64>,
}

/// A guest's request under way.
struct Guest {
    vm: u16,
    op: Op,
    extent: Extent,
    submitted: u64,
    arrived: Instant,
    version: u64,
    /// Content read of each sector.
    data: Vec<Option<u64>>,
}

pub struct Rig {
    pub stack: Stack,
    now: Instant,
    /// Steps taken and requests done until now.
    clock: u64,
    guests: BTreeMap<u64, Guest>,
    next_token: u64,
    flying: Vec<Request>,
    /// Content of each sector of each VM on the device.
    device: BTreeMap<(u16, u64), u64>,
    frames: Vec<u64>,
    writes: BTreeMap<(u16, u64), Vec<Write>>,
    leaving: [bool; VMS as usize],
    ends: [u64; VMS as usize],
}

pub fn extent(start: u64, len: u64) -> Extent {
    Extent::new(Lba::new(start), Sectors::new(len)).unwrap()
}

/// A disk in one piece, or in pieces of 8 to 64 sectors with a hole.
pub fn map(vm: u16, value: u32) -> Map {
    let start = u64::from(vm) * 10_000;
    if value.is_multiple_of(2) {
        return Map::linear(Lba::new(start), Sectors::new(DISK));
    }
    let step = 8 << (value / 2 % 4);
    let pieces: Vec<FileExtent> = (0..DISK / step)
        .filter(|n| n % 5 != 4)
        .map(|n| FileExtent { at: n * step, place: start + n * 7 % 11 * 128, len: step })
        .collect();
    Map::of_extents(&pieces, Lba::ZERO, Sectors::new(DISK), Sectors::new(1 << 20)).unwrap()
}

impl Rig {
    pub fn new(case: &Case) -> Rig {
        let config = Config {
            dispatch: dispatcher::Config {
                depth: case.depth,
                coalesce: Sectors::new(case.coalesce),
                merge: case.merge,
                hard_limit: Nanos::from_micros(case.hard_us),
                tags: case
                    .rotational
                    .then_some(dispatcher::Tags { count: 8, sectors: Sectors::new(24) }),
            },
            outstanding_max: 64,
        };
        let profile = DeviceProfile::unknown(Sectors::new(1 << 20), case.rotational);
        let policy = policy(case.policy);
        let cache = case.cache.map(|blocks| {
            let config =
                cache::Config { unit: Sectors::new(32), ..cache::Config::new(blocks * 4096) };
            CacheSpec::new(config, prefetcher(case.prefetcher)).unwrap()
        });
        let mut stack = Stack::new(build(policy).unwrap(), profile, config, cache);
        stack.start_journal(policy);
        stack.set_bandwidth(Instant::ZERO, 100_000_000);
        Rig {
            stack,
            now: Instant::ZERO,
            clock: 0,
            guests: BTreeMap::new(),
            next_token: 0,
            flying: Vec::new(),
            device: BTreeMap::new(),
            frames: vec![u64::MAX; case.cache.unwrap_or(0) as usize * BLOCK as usize],
            writes: BTreeMap::new(),
            leaving: [false; VMS as usize],
            ends: [0; VMS as usize],
        }
    }

    pub fn step(&mut self, (what, vm, value): Step) -> Result<(), TestCaseError> {
        let short = value % 4_000;
        let us = if value & 0xf000 == 0 { short * 100 } else { short };
        self.now = self.now + Nanos::from_micros(us.into());
        self.clock += 1;
        let (now, n) = (self.now, u16::from(vm) % VMS);
        let id = VmId::new(n);
        let here = self.stack.is_attached(id);
        match what % 40 {
            0..=2 if self.stack.can_attach(id) => {
                let weight = NonZeroU32::new(value % 9 + 1).unwrap();
                let (capacity, cached) = (Sectors::new(DISK), !value.is_multiple_of(7));
                let spec = DiskSpec { weight, capacity, map: map(n, value), cached };
                self.stack.attach(now, id, spec);
            }
            3 if here && value.is_multiple_of(4) => {
                self.stack.leave(now, id);
                self.leaving[usize::from(n)] = true;
            }
            4 => {
                let name = policy(value as usize);
                self.stack.switch(now, name, build(name).unwrap());
            }
            5 => {
                let name = prefetcher(value as usize);
                self.stack.switch_prefetcher(now, name, prefetchers::build(name).unwrap());
            }
            6 if here => self.stack.remap(now, id, map(n, value)),
            7 if here => self.stack.set_weight(now, id, NonZeroU32::new(value % 9 + 1).unwrap()),
            8 if here => {
                let moved = (!value.is_multiple_of(3)).then(|| map(n, value));
                self.stack.resize(now, id, Sectors::new(DISK), moved);
            }
            9 if here => {
                let limits =
                    ["iops=1000", "bandwidth=4MiB,group=a", "read_iops=200", "group=a", "none"];
                let limits = DiskLimits::parse(limits[value as usize % limits.len()]).unwrap();
                self.stack.set_limits(now, id, &limits);
            }
            10 => {
                let limits = ["iops=500,iops_burst=5000", "none"][value as usize % 2];
                let name = GroupName::new("a").unwrap();
                self.stack.set_group(now, &name, &Limits::parse(limits).unwrap());
            }
            11..=19 => self.complete(value)?,
            20.. if here && !self.leaving[usize::from(n)] => self.submit(n, value)?,
            _ => {}
        }
        // Now and then several inputs come before the stack is polled.
        if value.is_multiple_of(5) {
            while let Some(action) = self.stack.take() {
                self.act(action)?;
            }
            return Ok(());
        }
        self.poll()?;
        self.detach();
        Ok(())
    }

    fn submit(&mut self, n: u16, value: u32) -> Result<(), TestCaseError> {
        use Op::*;
        let op = [Read, Read, Read, Read, Read, Write, Write, Flush, Discard, WriteZeroes];
        let op = op[value as usize / 5 % 97 % op.len()];
        let start = match value % 4 {
            0..=1 => self.ends[usize::from(n)] % DISK,
            _ => u64::from(value) / 8 % (DISK + 4),
        };
        let extent = extent(start, 1 + u64::from(value >> 8) % 60);
        let (vm, token) = (VmId::new(n), self.next_token);
        let tag = ProcessTag::new([0, 0, 8, 9][value as usize / 3 % 4]);
        let request = Submit { vm, tag, op, sync: value & 0x400 == 0, extent, token };
        let refused = self.stack.submit(self.now, request).err();
        let outside = op != Flush && extent.end().get() > DISK;
        match refused {
            Some(Refused::Full) => prop_assert!(self.guests.len() >= 64),
            Some(Refused::Range) => prop_assert!(outside),
            None => {
                prop_assert!(!outside && self.guests.len() < 64);
                self.begin(n, op, extent, token);
            }
        }
        Ok(())
    }

    fn begin(&mut self, vm: u16, op: Op, extent: Extent, token: u64) {
        (self.next_token, self.ends[usize::from(vm)]) = (token + 1, extent.end().get());
        let (submitted, version) = (self.clock, token + 1);
        if !matches!(op, Op::Read | Op::Flush) {
            for sector in extent.start().get()..extent.end().get() {
                let write = Write { version, submitted, done: None };
                self.writes.entry((vm, sector)).or_default().push(write);
            }
        }
        let data = vec![None; extent.len().get() as usize];
        self.guests
            .insert(token, Guest { vm, op, extent, submitted, arrived: self.now, version, data });
    }

    /// A command ends, of which some members may fail.
    fn complete(&mut self, value: u32) -> Result<(), TestCaseError> {
        if self.flying.is_empty() {
            return Ok(());
        }
        let command = self.flying.swap_remove(value as usize % self.flying.len());
        let members: Vec<_> = self.stack.members(command.id).collect();
        let mut failed = Vec::new();
        for (n, member) in members.iter().enumerate() {
            if value % 11 == 3 && (value as usize >> n).is_multiple_of(2) {
                failed.push((member.id, IoError(5)));
                continue;
            }
            let (start, end) = (member.part.start().get(), member.part.end().get());
            match member.target {
                Target::Guest { token } => {
                    let guest = self.guests.get_mut(&token).expect("a guest waits");
                    let first = guest.extent.start().get();
                    for sector in start..end {
                        match guest.op {
                            Op::Read => {
                                let value = self.device.get(&(guest.vm, sector)).copied();
                                guest.data[(sector - first) as usize] = Some(value.unwrap_or(0));
                            }
                            Op::Flush => {}
                            _ => _ = self.device.insert((guest.vm, sector), guest.version),
                        }
                    }
                }
                Target::Cache(id) => {
                    let fetch = self.stack.fetch(id);
                    let (frames, skip) = frames_of(fetch, member.part);
                    for (n, sector) in (start..end).enumerate() {
                        let at = skip as u64 / 512 + n as u64;
                        let value = self.device.get(&(fetch.vm.index() as u16, sector));
                        self.frames[place(frames, at)] = value.copied().unwrap_or(0);
                    }
                }
            }
        }
        self.stack.io_done(self.now, command.id, &failed);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Instant>, TestCaseError> {
        loop {
            match self.stack.poll(self.now) {
                Action::Wait(wake) => return Ok(wake.earliest()),
                action => self.act(action)?,
            }
        }
    }

    fn act(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::Issue(command) => self.flying.push(command),
            Action::Copy(copy) => self.copy(&copy),
            Action::Done(done) => {
                let guest = self.guests.remove(&done.token);
                let guest = guest.ok_or_else(|| TestCaseError::fail("done twice"))?;
                self.clock += 1;
                let Stages { limited, queued, device } = done.stages;
                prop_assert_eq!(limited + queued + device, self.now.since(guest.arrived));
                self.check(&guest, done.result.is_ok())?;
            }
            Action::LookedUp { .. } | Action::Prefetching | Action::Wait(_) => {}
        }
        Ok(())
    }

    fn copy(&mut self, copy: &Copy) {
        let frames = self.stack.frames(copy);
        let guest = self.guests.get_mut(&copy.token).expect("a guest waits");
        let (start, first) = (copy.part.start().get(), guest.extent.start().get());
        for sector in start..copy.part.end().get() {
            let at = start % BLOCK + (sector - start);
            guest.data[(sector - first) as usize] = Some(self.frames[place(frames, at)]);
        }
    }

    /// Is what a guest has read what somebody may have written, and no older than what had been
    /// written for good when it asked?
    fn check(&mut self, guest: &Guest, ok: bool) -> Result<(), TestCaseError> {
        let first = guest.extent.start().get();
        if guest.op != Op::Read {
            for sector in first..guest.extent.end().get() {
                let writes = self.writes.get_mut(&(guest.vm, sector)).into_iter().flatten();
                for write in writes.filter(|w| ok && w.version == guest.version) {
                    write.done = Some(self.clock);
                }
            }
            return Ok(());
        }
        for (n, read) in guest.data.iter().enumerate().filter(|_| ok) {
            let sector = first + n as u64;
            let read = read.ok_or_else(|| TestCaseError::fail(format!("{sector} was not read")))?;
            let writes = self.writes.get(&(guest.vm, sector)).map_or(&[][..], Vec::as_slice);
            let done_before =
                |end: u64| writes.iter().any(move |w| w.done.is_some_and(|d| d < end));
            let fresh = match writes.iter().find(|w| w.version == read) {
                None => read == 0 && !done_before(guest.submitted),
                Some(write) => !writes.iter().any(|later| {
                    write.done.is_some_and(|done| later.submitted > done)
                        && later.done.is_some_and(|done| done < guest.submitted)
                }),
            };
            prop_assert!(fresh, "sector {sector} of VM {} reads as {read}", guest.vm);
        }
        Ok(())
    }

    fn detach(&mut self) {
        for n in 0..VMS {
            let id = VmId::new(n);
            if self.leaving[usize::from(n)] && self.stack.is_attached(id) && !self.stack.is_busy(id)
            {
                self.stack.detach(self.now, id);
                self.leaving[usize::from(n)] = false;
            }
        }
    }

    pub fn drain(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..100_000 {
            let wake = self.poll()?;
            self.detach();
            if !self.flying.is_empty() {
                self.now = self.now + Nanos::from_millis(3);
                self.complete(0)?;
            } else if let (Some(wake), false) = (wake, self.guests.is_empty()) {
                self.now = wake;
            } else {
                break;
            }
        }
        prop_assert!(self.guests.is_empty(), "{} requests lost", self.guests.len());
        Ok(())
    }
}

/// Where a sector lies in the memory of these frames.
fn place(frames: &[Frame], at: u64) -> usize {
    (u64::from(frames[(at / BLOCK) as usize].0) * BLOCK + at % BLOCK) as usize
}

/// A policy that is registered, or [`Parts`].
fn policy(n: usize) -> &'static str {
    schedulers::REGISTRY.get(n % (schedulers::REGISTRY.len() + 3)).map_or("parts", |e| e.name)
}

pub fn build(spec: &str) -> Result<Box<dyn Scheduler>, ParamError> {
    match spec {
        "parts" => Ok(Box::new(Parts::default())),
        _ => schedulers::build(spec),
    }
}

/// First come, first served, each request in parts of 1 to 13 sectors; now and then it waits
/// for a completion.
#[derive(Default)]
struct Parts {
    queue: VecDeque<Request>,
    /// Sectors of the first that have gone.
    gone: u64,
    count: u64,
}

impl Scheduler for Parts {
    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let left: Vec<Request> = self.queue.iter().filter(|r| r.vm == vm).copied().collect();
        left.iter().for_each(|r| self.withdraw(now, r.id));
        left
    }
    fn arrived(&mut self, _: Instant, request: Request) {
        self.queue.push_back(request);
    }
    fn withdraw(&mut self, _: Instant, id: RequestId) {
        if self.queue.front().is_some_and(|r| r.id == id) {
            self.gone = 0;
        }
        self.queue.retain(|r| r.id != id);
    }
    fn decide(&mut self, _: Instant, device: &DeviceView<'_>) -> Decision {
        self.count += 1;
        let Some(first) = self.queue.front() else { return Decision::Idle };
        if device.commands > 0 && self.count.is_multiple_of(5) {
            return Decision::Wait { until: None, why: "turn" };
        }
        let (id, left) = (first.id, first.extent.len().get() - self.gone);
        let len = 1 + self.count % 13;
        if len >= left {
            (self.gone, _) = (0, self.queue.pop_front());
        } else {
            self.gone += len;
        }
        Decision::DispatchPart { id, len: Sectors::new(len) }
    }
}

fn prefetcher(n: usize) -> &'static str {
    prefetchers::REGISTRY[n % prefetchers::REGISTRY.len()].name
}
