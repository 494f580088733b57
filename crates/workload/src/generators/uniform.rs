//! Uniformly random (or sequential) requests in a closed loop, without a guest:
//! the cheapest load there is, for measuring engines and policies.

use crate::generators::rng::Rng;
use crate::generators::{Build, Generator, param};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::request::Op;
use seekway_policy::units::{Instant, Lba, Sectors};

static PARAMS: &[ParamSpec] = &[
    param("outstanding", Kind::Count(1, 65_536), "32", "requests in flight"),
    param("size", Kind::Size, "4KiB", "size of a request"),
    param("read", Kind::Count(0, 100), "100", "% of reads"),
    param("requests", Kind::Count(0, u64::MAX), "0", "how many in all (0: until the run ends)"),
    param("sequential", Kind::Flag, "false", "one after the other instead of at random"),
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
    sequential: bool,
    next_block: u64,
    /// Requests that it may still make; `None` without a limit.
    left: Option<u64>,
    idle: Vec<u32>,
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
        Ok(Uniform {
            blocks: disk.capacity.get() / size,
            disk: [disk],
            rng: Rng::new(seed),
            size,
            read_share: p.count("read"),
            sequential: p.flag("sequential"),
            next_block: 0,
            left: Some(p.count("requests")).filter(|n| *n > 0),
            idle: (0..outstanding).rev().collect(),
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
}

impl Source for Uniform {
    fn vms(&self) -> &[VmDisk] {
        &self.disk
    }
    fn poll(&mut self, _now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while self.left != Some(0) {
            let Some(slot) = self.idle.pop() else { break };
            self.left = self.left.map(|left| left - 1);
            let read = self.read_share == 100 || self.rng.percent(self.read_share);
            let start = self.block() * self.size;
            out.push(Issue {
                token: u64::from(slot),
                vm: 0,
                tag: None,
                op: if read { Op::Read } else { Op::Write },
                sync: true,
                start: Lba::new(start),
                len: Sectors::new(self.size),
            });
        }
        Ok(())
    }
    fn completed(&mut self, now: Instant, token: u64) {
        self.done += 1;
        self.idle.push(token as u32);
        if self.finished() {
            self.finished = Some(now);
        }
    }
    fn next_wake(&self) -> Option<Instant> {
        None
    }
    fn finished(&self) -> bool {
        self.left == Some(0) && self.idle.len() == self.outstanding as usize
    }
    fn apps(&self) -> Vec<AppReport> {
        let bytes = self.done * self.size * 512;
        vec![AppReport { vm: 0, name: "uniform".into(), finished: self.finished, bytes }]
    }
}
