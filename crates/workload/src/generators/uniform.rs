//! Uniformly random (or sequential) requests in a closed loop, without a guest:
//! the cheapest load there is, for measuring engines and policies.
//!
//! A real client takes time between a completion and its next request, 50 to
//! 100 µs through a guest and vhost-user. `think` is that time. Without it a
//! client is back in the same instant, which flatters a policy that lets the head
//! stay where the last request was.
//!
//! With `on` and `off` the load comes in bursts: requests are made while it is on,
//! beginning at time 0, and what is then outstanding is served out. With `start` nothing is
//! asked for before that time.

use crate::generators::{Build, Generator, param};
use crate::rng::Rng;
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::request::Op;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::VecDeque;

static PARAMS: &[ParamSpec] = &[
    param("outstanding", Kind::Count(1, 65_536), "32", "requests in flight"),
    param("size", Kind::Size, "4KiB", "size of a request"),
    param("read", Kind::Count(0, 100), "100", "% of reads"),
    param("requests", Kind::Count(0, u64::MAX), "0", "how many in all (0: until the run ends)"),
    param("sequential", Kind::Flag, "false", "one after the other instead of at random"),
    param("discard", Kind::Count(0, 100), "0", "% of discards; of the rest, read says how many"),
    param(
        "sync",
        Kind::Flag,
        "true",
        "writes are synchronous, as with O_DIRECT on a host; false: as `serve` takes a guest's",
    ),
    param("think", Kind::Duration, "0", "from a completion to the next request"),
    param("on", Kind::Duration, "0", "length of a burst, with off"),
    param("off", Kind::Duration, "0", "pause between bursts (0: none)"),
    param("start", Kind::Duration, "0", "when the first request is made"),
];

pub const GENERATOR: Generator = Generator {
    name: "uniform",
    summary: "uniformly random requests in a closed loop, without a guest",
    params: PARAMS,
    ends_by: &["requests"],
    build: Build::Bare(|disk, params, seed| Ok(Box::new(Uniform::new(disk, params, seed)?))),
};

/// The source. Tokens are the loop's slots.
#[derive(Clone, Debug)]
pub struct Uniform {
    disk: [VmDisk; 1],
    rng: Rng,
    size: u64,
    blocks: u64,
    read_share: u64,
    discard_share: u64,
    sync_writes: bool,
    think: Nanos,
    /// Length of a burst, and of a burst with its pause.
    bursts: Option<(Nanos, Nanos)>,
    sequential: bool,
    next_block: u64,
    /// Requests that it may still make; `None` without a limit.
    left: Option<u64>,
    /// Slots with nothing in flight and when each may make a request, in order of time.
    idle: VecDeque<(Instant, u32)>,
    /// Of the last poll: when it would have gone on.
    wake: Option<Instant>,
    outstanding: u32,
    done: u64,
    finished: Option<Instant>,
}

impl Uniform {
    /// From the parameters of [`GENERATOR`].
    pub fn new(disk: VmDisk, p: &Params, seed: u64) -> Result<Self, ParamError> {
        let size = p.size("size").get();
        if size == 0 || size > disk.capacity.get() {
            let room = disk.capacity;
            return Err(ParamError::new(format!(
                "uniform: size={size} sectors on an image of {room}: give 1 to {room}"
            )));
        }
        let outstanding = p.count("outstanding") as u32;
        let (on, off) = (p.duration("on"), p.duration("off"));
        if (on == Nanos::ZERO) != (off == Nanos::ZERO) {
            return Err(ParamError::new("uniform: on and off come together: on=20ms,off=80ms"));
        }
        Ok(Uniform {
            blocks: disk.capacity.get() / size,
            disk: [disk],
            rng: Rng::new(seed),
            size,
            read_share: p.count("read"),
            discard_share: p.count("discard"),
            sync_writes: p.flag("sync"),
            think: p.duration("think"),
            bursts: (on > Nanos::ZERO).then_some((on, on + off)),
            sequential: p.flag("sequential"),
            next_block: 0,
            left: Some(p.count("requests")).filter(|n| *n > 0),
            idle: (0..outstanding)
                .map(|slot| (Instant::ZERO + p.duration("start"), slot))
                .collect(),
            wake: None,
            outstanding,
            done: 0,
            finished: None,
        })
    }

    fn block(&mut self) -> u64 {
        if !self.sequential {
            return self.rng.below(self.blocks);
        }
        let block = self.next_block;
        self.next_block = if block + 1 == self.blocks { 0 } else { block + 1 };
        block
    }

    fn op(&mut self) -> Op {
        if self.discard_share > 0 && self.rng.percent(self.discard_share) {
            return Op::Discard;
        }
        let read = self.read_share == 100 || self.rng.percent(self.read_share);
        if read { Op::Read } else { Op::Write }
    }

    /// The first time from `at` on at which requests are made.
    fn next_on(&self, at: Instant) -> Instant {
        let Some((on, period)) = self.bursts else { return at };
        let since = Nanos::new(at.as_nanos() % period.get());
        if since < on { at } else { at + period.saturating_sub(since) }
    }
}

impl Source for Uniform {
    fn vms(&self) -> &[VmDisk] {
        &self.disk
    }
    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        self.wake = None;
        while self.left != Some(0) {
            let Some(&(ready, slot)) = self.idle.front() else { break };
            let at = self.next_on(ready.max(now));
            if at > now {
                self.wake = Some(at);
                break;
            }
            self.idle.pop_front();
            self.left = self.left.map(|left| left - 1);
            let op = self.op();
            let start = self.block() * self.size;
            out.push(Issue {
                token: u64::from(slot),
                vm: 0,
                tag: None,
                op,
                sync: self.sync_writes || op != Op::Write,
                start: Lba::new(start),
                len: Sectors::new(self.size),
            });
        }
        Ok(())
    }
    fn completed(&mut self, now: Instant, token: u64) {
        self.done += 1;
        self.idle.push_back((now + self.think, token as u32));
        if self.finished() {
            self.finished = Some(now);
        }
    }
    fn next_wake(&self) -> Option<Instant> {
        self.wake
    }
    fn finished(&self) -> bool {
        self.left == Some(0) && self.idle.len() == self.outstanding as usize
    }
    fn apps(&self) -> Vec<AppReport> {
        let bytes = self.done * self.size * 512;
        vec![AppReport { vm: 0, name: "uniform".into(), finished: self.finished, bytes }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::parse_vm;

    /// When each request is made in the first `until_us`, if each takes 100 µs.
    fn times_us(spec: &str, until_us: u64) -> Vec<u64> {
        let mut source = parse_vm(spec).unwrap().source(1, 0).unwrap();
        let (mut now, mut under_way, mut made) = (0, VecDeque::new(), Vec::new());
        loop {
            let mut out = Vec::new();
            source.poll(Instant::from_nanos(now * 1_000), &mut out).unwrap();
            for issue in out {
                made.push(now);
                under_way.push_back((now + 100, issue.token));
            }
            let wake = source.next_wake().map(|at| at.as_nanos() / 1_000);
            let done = under_way.front().map(|&(at, _)| at);
            let Some(next) = [wake, done].into_iter().flatten().min() else { return made };
            if next > until_us {
                return made;
            }
            now = next;
            while under_way.front().is_some_and(|&(at, _)| at <= now) {
                let (_, token) = under_way.pop_front().unwrap();
                source.completed(Instant::from_nanos(now * 1_000), token);
            }
        }
    }

    #[test]
    fn a_client_thinks_between_completion_and_next_request() {
        let times = times_us("app=uniform:outstanding=1,think=60us", 500);
        assert_eq!(times, [0, 160, 320, 480]);
        let two = times_us("app=uniform:outstanding=2,think=50us", 300);
        assert_eq!(two, [0, 0, 150, 150, 300, 300]);
        assert_eq!(times_us("app=uniform:outstanding=1", 300), [0, 100, 200, 300]);
    }

    #[test]
    fn a_load_that_starts_late_makes_no_request_before() {
        let times = times_us("app=uniform:outstanding=1,start=1ms", 1_250);
        assert_eq!(times, [1_000, 1_100, 1_200]);
        // Its bursts keep their period.
        let bursts = "app=uniform:outstanding=1,start=1100us,on=250us,off=750us";
        assert_eq!(times_us(bursts, 2_150), [1_100, 1_200, 2_000, 2_100]);
    }

    #[test]
    fn bursts_begin_with_their_period() {
        let times = times_us("app=uniform:outstanding=1,on=250us,off=750us", 1_300);
        assert_eq!(times, [0, 100, 200, 1_000, 1_100, 1_200]);
        let plan = parse_vm("app=uniform:on=1ms").unwrap();
        let error = plan.source(1, 0).map(drop).unwrap_err().to_string();
        assert!(error.contains("on and off come together"), "{error}");
    }

    #[test]
    fn discards_are_made_in_their_share() {
        let plan = parse_vm("app=uniform:discard=25,outstanding=1000,read=50").unwrap();
        let (mut source, mut out) = (plan.source(1, 0).unwrap(), Vec::new());
        source.poll(Instant::ZERO, &mut out).unwrap();
        let count = |op| out.iter().filter(|issue| issue.op == op).count();
        assert!((200..300).contains(&count(Op::Discard)), "{}", count(Op::Discard));
        assert!((325..425).contains(&count(Op::Read)), "{}", count(Op::Read));
    }

    #[test]
    fn writes_are_synchronous_unless_said_otherwise() {
        for (spec, expected) in [("", true), (",sync=false", false)] {
            let plan = parse_vm(&format!("app=uniform:outstanding=100,read=50{spec}")).unwrap();
            let (mut source, mut out) = (plan.source(1, 0).unwrap(), Vec::new());
            source.poll(Instant::ZERO, &mut out).unwrap();
            assert!(out.iter().all(|issue| issue.sync == (issue.op == Op::Read || expected)));
        }
    }
}
