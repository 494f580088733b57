//! The load of "Predicting disk scheduling performance with virtual machines"
//! (Geist, Jones and Westall, section 5, figure 2), made after SURGE (Barford
//! and Crovella 1998): processes that read files of a fragmented file system
//! ([`crate::generators::fragmented`]) page by page.
//!
//! Each process, for ever: draw a count n from Pareto(2.43, 1); n times: choose
//! a file by Zipf's law, read it from its first page to its last, 4 KiB at a
//! time, and sleep for Pareto(1.5, 2.0) milliseconds after each page. There is
//! no other pause in the paper, so its counts change nothing; SURGE has a pause
//! between two ON periods (`off`, Pareto(1.5) with this scale, there 1 s).
//!
//! What the paper leaves open, and what is taken here:
//! - the share of files above 133 KB. SURGE has 7 %, which makes a million files
//!   75 GB: more than the paper's disk of 73.4 GB holds. What fits is to replace
//!   what the lognormal distribution has above 133 KB, 3.2 %: 46 GB. That is the
//!   default of `tail`.
//! - which files are popular. By default ranks are scattered over all files as
//!   SURGE has it; with `popularity=ordered` the first files are the most
//!   popular ones, and half of all reads go to the first directory.
//! - what counts as one of the 50,000 requests: `requests` counts pages read by
//!   all processes together. With O_DIRECT each is a request to the disk; through
//!   the page cache, read-ahead makes fewer requests of them.
//!
//! A process keeps one handle; opening a file anew starts its read-ahead anew.
//! Above 64 processes share tags. A million files need about 58 GiB of image with
//! the default `fill`: `image=64g` does for any seed.

use crate::generators::dist::pareto;
use crate::generators::fragmented::Recipe;
use crate::generators::permutation::Permutation;
use crate::generators::rng::{Rng, Zipf, split};
use crate::generators::{Build, Generator, param};
use crate::guest::PAGE_BYTES;
use crate::guest::app::{App, AppSpec, HandleSpec, Op};
use crate::guest::laid::LaidFiles;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};
use std::sync::Arc;

static PARAMS: &[ParamSpec] = &[
    param("processes", Kind::Count(1, 1024), "50", "processes"),
    param("files", Kind::Count(1, 4_000_000), "1000000", "files"),
    param("requests", Kind::Count(1, u64::MAX), "50000", "pages that all processes read"),
    param("direct", Kind::Flag, "true", "O_DIRECT, else through the page cache"),
    param("think", Kind::Duration, "2ms", "scale of the sleep after each page, Pareto(1.5)"),
    param("off", Kind::Duration, "0", "scale of the pause after each ON period, Pareto(1.5)"),
    param("tail", Kind::Number(0.0, 100.0), "3.2", "% of files in the Pareto tail (SURGE: 7)"),
    param("fill", Kind::Count(25, 100), "75", "% of the file system that its files take"),
    param(
        "popularity",
        Kind::Choice(&["scattered", "ordered"]),
        "scattered",
        "popular files lie anywhere, or first",
    ),
];

pub const GENERATOR: Generator = Generator {
    name: "surge",
    summary: "processes reading popular files of a fragmented file system of a million",
    params: PARAMS,
    ends_by: &[],
    build: Build::App(|params, seed| Ok(Box::new(Surge::new(params, seed)?))),
};

/// Shape of the file counts.
const COUNT_SHAPE: f64 = 2.43;
/// Shape of sleeps and pauses.
const SLEEP_SHAPE: f64 = 1.5;

#[derive(Clone, Copy, Debug)]
enum State {
    /// Begin an ON period, or go on with it: open a file.
    Open,
    Read,
    Sleep,
}

#[derive(Clone, Debug)]
struct Process {
    rng: Rng,
    state: State,
    /// Files of this ON period that are still to be opened.
    files_left: u64,
    page: u32,
    /// Pages of the open file.
    pages: u32,
}

#[derive(Clone, Debug)]
pub struct Surge {
    recipe: Recipe,
    laid: Option<Arc<LaidFiles>>,
    spec: AppSpec,
    processes: Vec<Process>,
    zipf: Zipf,
    /// File of each rank; `None` for the rank itself.
    order: Option<Permutation>,
    think: Nanos,
    off: Nanos,
    left: u64,
}

impl Surge {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let files = p.count("files") as u32;
        let direct = p.flag("direct");
        let handle = |process| HandleSpec { direct, process, ..HandleSpec::default() };
        let process = |n| Process {
            rng: Rng::new(split(seed, 2 + n)),
            state: State::Open,
            files_left: 0,
            page: 0,
            pages: 0,
        };
        let count = p.count("processes");
        let scattered = p.choice("popularity") == "scattered";
        Ok(Surge {
            recipe: Recipe {
                seed: split(seed, 0),
                files,
                tail_percent: p.number("tail"),
                fill_percent: p.count("fill") as u32,
            },
            laid: None,
            spec: AppSpec {
                name: "surge".into(),
                threads: count as u32,
                files: Vec::new(),
                handles: (0..count as u16).map(handle).collect(),
            },
            processes: (0..count).map(process).collect(),
            zipf: Zipf::new(u64::from(files), 1.0),
            order: scattered.then(|| Permutation::new(u64::from(files), split(seed, 1))),
            think: p.duration("think"),
            off: p.duration("off"),
            left: p.count("requests"),
        })
    }

    fn open(&mut self, thread: u32) -> Op {
        let laid = self.laid.as_ref().expect("a guest asks for the files first");
        let process = &mut self.processes[thread as usize];
        if process.files_left == 0 {
            process.files_left = pareto(&mut process.rng, COUNT_SHAPE, 1.0) as u64;
        }
        process.files_left -= 1;
        let rank = self.zipf.sample(&mut process.rng);
        let file = self.order.map_or(rank, |order| order.at(rank)) as u32;
        process.page = 0;
        process.pages = laid.pages(file);
        process.state = State::Read;
        Op::Open { handle: thread, file }
    }

    fn sleep(&mut self, thread: u32) -> Nanos {
        let process = &mut self.processes[thread as usize];
        let mut draw = |scale: Nanos| {
            Nanos::new(pareto(&mut process.rng, SLEEP_SHAPE, scale.get() as f64) as u64)
        };
        let think = draw(self.think);
        if process.page < process.pages {
            process.state = State::Read;
            return think;
        }
        process.state = State::Open;
        if process.files_left > 0 { think } else { think + draw(self.off) }
    }
}

impl App for Surge {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }
    fn laid_files(&mut self) -> Option<Arc<LaidFiles>> {
        let laid = self.recipe.stored();
        self.laid = Some(laid.clone());
        Some(laid)
    }

    fn next(&mut self, _now: Instant, thread: u32) -> Op {
        if self.left == 0 {
            return Op::Done;
        }
        match self.processes[thread as usize].state {
            State::Open => self.open(thread),
            State::Read => {
                self.left -= 1;
                let process = &mut self.processes[thread as usize];
                let offset = u64::from(process.page) * PAGE_BYTES;
                process.page += 1;
                process.state = State::Sleep;
                Op::Read { handle: thread, offset, len: PAGE_BYTES as u32 }
            }
            State::Sleep => Op::Sleep(self.sleep(thread)),
        }
    }
}
