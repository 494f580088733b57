//! One worker of Iometer: an access specification (block size, share of reads,
//! share of random accesses) on one file, with requests outstanding.
//!
//! - A random access goes to any block of the file, and may repeat; a
//!   sequential one goes behind the access before it, random or not, and from
//!   the end of the file back to its start.
//! - `iops=0` is Iometer's closed loop: `depth` requests are always
//!   outstanding. With a target, requests arrive at that mean rate whatever the
//!   disk does (open loop), at most `depth` are outstanding, and one that comes
//!   while all are is late: `late=queue` makes up for it as soon as it can (the
//!   backlog has no bound), `late=drop` never makes it.
//! - Iometer opens files with O_DIRECT and disks raw, so `direct=true` is the
//!   default: a block of 512 bytes is a request of one sector. There is a file
//!   system all the same: writes change the file's mtime, once a second, and so
//!   reach the journal.
//! - Left out: mixes of several specifications, bursts, delays between replies,
//!   the network workers.

use crate::generators::pace::Pace;
use crate::generators::rng::Rng;
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};

static PARAMS: &[ParamSpec] = &[
    param("block", Kind::Size, "4KiB", "size of a request, a multiple of 512 bytes"),
    param("read", Kind::Count(0, 100), "100", "% of reads"),
    param("random", Kind::Count(0, 100), "0", "% of random accesses, the rest in sequence"),
    param("depth", Kind::Count(1, 4096), "1", "requests outstanding; with iops, at most"),
    param("iops", Kind::Count(0, 10_000_000), "0", "requests a second (0: as fast as it goes)"),
    param("arrival", Kind::Choice(&["fixed", "exponential"]), "fixed", "intervals with iops"),
    param("late", Kind::Choice(&["queue", "drop"]), "queue", "with iops: what comes at full depth"),
    param("size", Kind::Size, "4GiB", "size of the file"),
    param("requests", Kind::Count(0, u64::MAX), "0", "how many in all (0: until the run ends)"),
    param("runtime", Kind::Duration, "0", "ends after this time (0: never)"),
    param("direct", Kind::Flag, "true", "O_DIRECT"),
];

pub const GENERATOR: Generator = Generator {
    name: "iometer",
    summary: "an Iometer worker: block size, shares of reads and random accesses, depth or rate",
    params: PARAMS,
    ends_by: &["requests", "runtime"],
    build: Build::App(|params, seed| Ok(Box::new(Iometer::new(params, seed)?))),
};

/// What a thread does when it is asked next.
#[derive(Clone, Copy, Debug)]
enum Slot {
    /// It takes the next arrival, and sleeps until that is due.
    Free,
    /// Slept until its arrival: make the request.
    Due,
    /// Slept until the end.
    Over,
}

#[derive(Clone, Debug)]
pub struct Iometer {
    spec: AppSpec,
    block: u64,
    blocks: u64,
    read_share: u64,
    random_share: u64,
    pace: Option<Pace>,
    /// Requests that it may still make; `None` without a limit.
    left: Option<u64>,
    runtime: Option<Nanos>,
    started: Option<Instant>,
    /// The block behind the last access.
    next_block: u64,
    slots: Vec<Slot>,
    rng: Rng,
}

impl Iometer {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let (block, bytes) = (p.size("block").bytes(), p.size("size").bytes());
        let blocks = bytes.checked_div(block).unwrap_or(0);
        if blocks == 0 || block > u64::from(u32::MAX) {
            return Err(ParamError::new(format!(
                "iometer: no block of {block} bytes fits in size={bytes} bytes"
            )));
        }
        let (requests, runtime) = (p.count("requests"), p.duration("runtime"));
        let (read_share, random_share) = (p.count("read"), p.count("random"));
        let pace = Pace::even(p.count("iops")).map(|pace| {
            pace.exponential(p.choice("arrival") == "exponential")
                .dropping(p.choice("late") == "drop")
        });
        let direct = p.flag("direct");
        Ok(Iometer {
            spec: AppSpec {
                name: format!("iometer.{block}.r{read_share}.x{random_share}"),
                threads: p.count("depth") as u32,
                files: vec![FileSpec::full(bytes)],
                handles: vec![HandleSpec { direct, ..HandleSpec::default() }],
            },
            block,
            blocks,
            read_share,
            random_share,
            pace,
            left: (requests > 0).then_some(requests),
            runtime: (runtime > Nanos::ZERO).then_some(runtime),
            started: None,
            next_block: 0,
            slots: vec![Slot::Free; p.count("depth") as usize],
            rng: Rng::new(seed),
        })
    }

    fn draw(&mut self) -> Op {
        let read = self.rng.percent(self.read_share);
        let random = self.rng.percent(self.random_share);
        let block = if random { self.rng.below(self.blocks) } else { self.next_block };
        self.next_block = (block + 1) % self.blocks;
        Op::transfer(!read, 0, block * self.block, self.block as u32)
    }

    /// Until the end of the run, `None` without one.
    fn time_left(&mut self, now: Instant) -> Option<Nanos> {
        let started = *self.started.get_or_insert(now);
        self.runtime.map(|runtime| runtime.saturating_sub(now.since(started)))
    }
}

impl App for Iometer {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }

    fn next(&mut self, now: Instant, thread: u32) -> Op {
        let time_left = self.time_left(now);
        match self.slots[thread as usize] {
            Slot::Due => {
                self.slots[thread as usize] = Slot::Free;
                return self.draw();
            }
            Slot::Over => return Op::Done,
            Slot::Free => {}
        }
        if self.left == Some(0) || time_left == Some(Nanos::ZERO) {
            return Op::Done;
        }
        let wait = match &mut self.pace {
            Some(pace) => pace.wait(now, &mut self.rng),
            None => Nanos::ZERO,
        };
        if let Some(rest) = time_left.filter(|rest| *rest <= wait) {
            self.slots[thread as usize] = Slot::Over;
            return Op::Sleep(rest);
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        if wait > Nanos::ZERO {
            self.slots[thread as usize] = Slot::Due;
            return Op::Sleep(wait);
        }
        self.draw()
    }
}
