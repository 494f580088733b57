//! Jobs as fio describes them: `fio:rw=randread,bs=4k,iodepth=16,size=1g`.
//!
//! Each of `numjobs` processes has a file of its own. `iodepth` requests of a
//! job are outstanding, with O_DIRECT or without (as with fio's io_uring
//! engine; libaio would not queue buffered ones). Random reads and writes
//! visit each block once before any again, as fio's random map has it, unless
//! `norandommap` or `zipf` is set. A rate is kept on average: what a slow disk
//! has delayed is made up for. A job has one block size: `bssplit` and ranges of
//! sizes are refused.

use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use crate::rng::{Pace, Permutation, Rng, Zipf, split};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};

const RW: &[&str] = &["read", "write", "rw", "randread", "randwrite", "randrw"];

static PARAMS: &[ParamSpec] = &[
    param("rw", Kind::Choice(RW), "read", "pattern"),
    param("bs", Kind::Size, "4KiB", "block size, one for the job: bssplit is not supported"),
    param("iodepth", Kind::Count(1, 4096), "1", "requests of a job outstanding"),
    param("numjobs", Kind::Count(1, 64), "1", "processes, each with its own file"),
    param("size", Kind::Size, "1GiB", "size of a job's file"),
    param("offset", Kind::Size, "0", "where in the file the job begins"),
    param("io_size", Kind::Size, "0", "what a job moves in all (0: the file once)"),
    param("runtime", Kind::Duration, "0", "a job ends after this time (0: never)"),
    param("time_based", Kind::Flag, "false", "go on until runtime is over"),
    param("direct", Kind::Flag, "false", "O_DIRECT"),
    param("sync", Kind::Flag, "false", "O_SYNC"),
    param("fsync", Kind::Count(0, u64::MAX), "0", "writes of a job between fsyncs (0: none)"),
    param("rate_iops", Kind::Count(0, 10_000_000), "0", "requests a second of a job (0: no limit)"),
    param("thinktime", Kind::Duration, "0", "pause after each request"),
    param("rwmixread", Kind::Count(0, 100), "50", "rw, randrw: % of reads"),
    param("norandommap", Kind::Flag, "false", "random blocks may repeat"),
    param(
        "zipf",
        Kind::Number(0.0, 10.0),
        "0",
        "random_distribution=zipf with this theta (0: off)",
    ),
];

pub const GENERATOR: Generator = Generator {
    name: "fio",
    summary: "jobs as fio describes them",
    params: PARAMS,
    ends_by: &[],
    build: Build::App(|params, seed| Ok(Box::new(Fio::from_params(params, seed)?))),
};

static SYNC_PARAMS: &[ParamSpec] = &[
    param("rw", Kind::Choice(RW), "read", "pattern"),
    param("bs", Kind::Size, "64KiB", "block size"),
    param("size", Kind::Size, "1GiB", "size of the file"),
    param("io_size", Kind::Size, "0", "what to move in all (0: the file once)"),
    param("thinktime", Kind::Duration, "0", "pause after each request"),
];

/// One synchronous O_DIRECT stream (the experiment `pregather-sync`).
pub const SYNC_GENERATOR: Generator = Generator {
    name: "sync",
    summary: "one process, one O_DIRECT request at a time",
    params: SYNC_PARAMS,
    ends_by: &[],
    build: Build::App(|params, seed| {
        let p = Params::defaults(PARAMS);
        let config = Config {
            rw: params.choice("rw"),
            block: params.size("bs").bytes(),
            bytes: params.size("size").bytes(),
            io_bytes: params.size("io_size").bytes(),
            thinktime: params.duration("thinktime"),
            direct: true,
            ..Config::from(&p)
        };
        Ok(Box::new(Fio::new("sync", config, seed)?))
    }),
};

/// A job's settings; sizes in bytes.
#[derive(Clone, Debug)]
struct Config {
    rw: &'static str,
    block: u64,
    depth: u32,
    jobs: u32,
    bytes: u64,
    offset: u64,
    io_bytes: u64,
    runtime: Nanos,
    time_based: bool,
    direct: bool,
    sync: bool,
    fsync: u64,
    /// Requests a second of a job; 0 = no limit.
    rate: u64,
    thinktime: Nanos,
    read_share: u64,
    repeat: bool,
    zipf: f64,
}

impl From<&Params> for Config {
    fn from(p: &Params) -> Config {
        Config {
            rw: p.choice("rw"),
            block: p.size("bs").bytes(),
            depth: p.count("iodepth") as u32,
            jobs: p.count("numjobs") as u32,
            bytes: p.size("size").bytes(),
            offset: p.size("offset").bytes(),
            io_bytes: p.size("io_size").bytes(),
            runtime: p.duration("runtime"),
            time_based: p.flag("time_based"),
            direct: p.flag("direct"),
            sync: p.flag("sync"),
            fsync: p.count("fsync"),
            rate: p.count("rate_iops"),
            thinktime: p.duration("thinktime"),
            read_share: p.count("rwmixread"),
            repeat: p.flag("norandommap"),
            zipf: p.number("zipf"),
        }
    }
}

/// A process of the job.
#[derive(Clone, Debug)]
struct Job {
    rng: Rng,
    order: Permutation,
    /// Reads and writes that the job has asked for.
    made: u64,
    writes: u64,
    /// Sequential patterns: the next block of reads and of writes.
    position: [u64; 2],
    started: Option<Instant>,
    pace: Option<Pace>,
}

/// Next action of a thread before it asks its job again.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    op: Option<Op>,
    think: bool,
}

/// Some processes with `iodepth` requests each.
#[derive(Clone, Debug)]
pub struct Fio {
    spec: AppSpec,
    config: Config,
    jobs: Vec<Job>,
    slots: Vec<Slot>,
    blocks: u64,
    limit: Option<u64>,
    zipf: Option<Zipf>,
}

impl Fio {
    /// From the parameters of [`GENERATOR`].
    pub fn from_params(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let config = Config::from(p);
        Fio::new(&format!("fio.{}", config.rw), config, seed)
    }

    fn new(name: &str, c: Config, seed: u64) -> Result<Self, ParamError> {
        let blocks = c.bytes.saturating_sub(c.offset).checked_div(c.block).unwrap_or(0);
        if blocks == 0 || c.block > u64::from(u32::MAX) {
            return Err(ParamError::new(format!(
                "{name}: no block of {} bytes fits between offset={} and size={} bytes",
                c.block, c.offset, c.bytes
            )));
        }
        if c.time_based && c.runtime == Nanos::ZERO {
            return Err(ParamError::new(format!(
                "{name}: time_based needs a runtime, as runtime=60s"
            )));
        }
        let wanted = if c.io_bytes > 0 { c.io_bytes.div_ceil(c.block) } else { blocks };
        let present = if c.rw != "write" || c.offset > 0 { c.bytes } else { 0 };
        let handle = |n| HandleSpec { file: n, direct: c.direct, sync: c.sync, process: n as u16 };
        let job = |n: u32| {
            let mut rng = Rng::new(split(seed, u64::from(n)));
            let order = Permutation::new(blocks, rng.bits());
            let pace = Pace::even(c.rate);
            Job { rng, order, made: 0, writes: 0, position: [0; 2], started: None, pace }
        };
        Ok(Fio {
            spec: AppSpec {
                name: name.into(),
                threads: c.jobs * c.depth,
                files: vec![FileSpec { bytes: c.bytes, present }; c.jobs as usize],
                handles: (0..c.jobs).map(handle).collect(),
            },
            jobs: (0..c.jobs).map(job).collect(),
            slots: vec![Slot::default(); (c.jobs * c.depth) as usize],
            blocks,
            limit: (!c.time_based).then_some(wanted),
            zipf: (c.zipf > 0.0).then(|| Zipf::new(blocks, c.zipf)),
            config: c,
        })
    }

    /// The job's next request, not looking at the clock.
    fn draw(&mut self, number: usize) -> Op {
        let (c, job) = (&self.config, &mut self.jobs[number]);
        let write = match c.rw {
            "read" | "randread" => false,
            "write" | "randwrite" => true,
            _ => !job.rng.percent(c.read_share),
        };
        let block = if !c.rw.starts_with("rand") {
            let position = &mut job.position[usize::from(write)];
            let block = *position;
            *position = (block + 1) % self.blocks;
            block
        } else if let Some(zipf) = &self.zipf {
            // Popular blocks lie anywhere, as fio's hash of the rank has it.
            split(number as u64, zipf.sample(&mut job.rng)) % self.blocks
        } else if c.repeat {
            job.rng.below(self.blocks)
        } else {
            job.order.at(job.made % self.blocks)
        };
        job.made += 1;
        job.writes += u64::from(write);
        Op::transfer(write, number as u32, c.offset + block * c.block, c.block as u32)
    }

    /// Is the job over at `now`?
    fn is_over(&self, now: Instant, number: usize) -> bool {
        let job = &self.jobs[number];
        let since = now.since(job.started.unwrap_or(now));
        self.limit.is_some_and(|limit| job.made >= limit)
            || (self.config.runtime > Nanos::ZERO && since >= self.config.runtime)
    }
}

impl App for Fio {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }

    fn next(&mut self, now: Instant, thread: u32) -> Op {
        let number = (thread / self.config.depth) as usize;
        let slot = &mut self.slots[thread as usize];
        if let Some(op) = slot.op.take() {
            return op; // slept until it was due, or fsynced before it
        }
        if std::mem::take(&mut slot.think) && self.config.thinktime > Nanos::ZERO {
            return Op::Sleep(self.config.thinktime);
        }
        self.jobs[number].started.get_or_insert(now);
        if self.is_over(now, number) {
            return Op::Done;
        }
        let op = self.draw(number);
        let slot = &mut self.slots[thread as usize];
        slot.think = true;
        let (c, job) = (&self.config, &mut self.jobs[number]);
        let write = matches!(op, Op::Write { .. });
        if write && c.fsync > 0 && job.writes > 1 && (job.writes - 1).is_multiple_of(c.fsync) {
            slot.op = Some(op);
            return Op::Fsync { handle: number as u32 };
        }
        match job.pace.as_mut().map(|pace| pace.wait(now, &mut job.rng)) {
            None | Some(Nanos::ZERO) => op,
            Some(wait) => {
                slot.op = Some(op);
                Op::Sleep(wait)
            }
        }
    }
}
