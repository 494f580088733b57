//! The load of "Predicting disk scheduling performance with virtual machines"
//! (Geist, Jones and Westall, section 5, figure 2), made after SURGE (Barford
//! and Crovella 1998): processes that read files of a fragmented file system
//! (below) page by page.
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

use crate::generators::{Build, Generator, param};
use crate::guest::PAGE_BYTES;
use crate::guest::app::{App, AppSpec, HandleSpec, Op};
use crate::guest::layout::{Extent, LaidFiles};
use crate::rng::{Permutation, Rng, Zipf, lognormal, pareto, split};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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

// The file system of the load `surge`: a million files of SURGE's sizes, half
// of which have been erased and replaced by others, which lie in the holes.
//
// Placement follows ext2 and ext3 in outline. The files are in directories of
// a thousand; the directories are spread evenly over block groups of 128 MiB. A
// file takes the first free blocks of its directory's group, in as many
// extents as that makes, and goes on in the groups behind when that one is full.
// All files are written first, directory by directory; then a random half is
// erased; then the same names are written once more in the same order, with
// sizes drawn anew. Left out: ext3's search for eight free blocks in a row
// before it takes fewer, its reservations, and indirect blocks.

/// Largest file of the lognormal part, and the scale of the tail: 133 KB.
const TAIL_FROM_BYTES: f64 = 133_000.0;
/// Files that would be larger are cut to this: 100 MB.
const FILE_BYTES_MAX: f64 = 100_000_000.0;
/// Pages of a block group: 128 MiB.
const GROUP_PAGES: u32 = 32_768;
/// Files of a directory.
const DIRECTORY_FILES: u32 = 1000;

/// Parameters that determine a file system: equal recipes give equal files.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recipe {
    /// The stream that it is drawn from.
    pub seed: u64,
    /// Files, at least one.
    pub files: u32,
    /// Files of the Pareto tail, in percent.
    pub tail_percent: f64,
    /// Share of the file system's blocks that are used when it is fullest, in percent; 1 to 100.
    pub fill_percent: u32,
}

/// Bytes of a file: lognormal(9.357, 1.318) below 133 KB, with a chance of
/// `tail_percent` Pareto(1.1, 133 KB), at most 100 MB.
pub fn file_bytes(rng: &mut Rng, tail_percent: f64) -> u64 {
    if rng.unit() * 100.0 < tail_percent {
        return pareto(rng, 1.1, TAIL_FROM_BYTES).min(FILE_BYTES_MAX) as u64;
    }
    loop {
        let bytes = lognormal(rng, 9.357, 1.318);
        if bytes < TAIL_FROM_BYTES {
            return (bytes as u64).max(1);
        }
    }
}

impl Recipe {
    fn draw_pages(&self, rng: &mut Rng, count: usize) -> Vec<u32> {
        let one = |_| file_bytes(rng, self.tail_percent).div_ceil(PAGE_BYTES) as u32;
        (0..count).map(one).collect()
    }

    /// Lay the file system out.
    pub fn lay_out(&self) -> LaidFiles {
        let mut sizes = Rng::new(split(self.seed, 0));
        let mut erased: Vec<u32> = (0..self.files).collect();
        Rng::new(split(self.seed, 1)).shuffle(&mut erased);
        erased.truncate(self.files as usize / 2);
        erased.sort_unstable();

        let first = self.draw_pages(&mut sizes, self.files as usize);
        let second = self.draw_pages(&mut sizes, erased.len());
        let sum = |pages: &[u32]| pages.iter().map(|p| u64::from(*p)).sum::<u64>();
        let gone: u64 = erased.iter().map(|f| u64::from(first[*f as usize])).sum();
        let used = sum(&first).max(sum(&first) - gone + sum(&second));
        let wanted = (used * 100).div_ceil(u64::from(self.fill_percent.clamp(1, 100)));
        let mut space = Space::new(wanted.div_ceil(u64::from(GROUP_PAGES)) as u32);

        let directories = self.files.div_ceil(DIRECTORY_FILES);
        let groups = space.free.len() as u64;
        let home = |file: u32| {
            (u64::from(file / DIRECTORY_FILES) * groups / u64::from(directories)) as u32
        };
        let mut laid = LaidFiles::new(space.free.len() as u32 * GROUP_PAGES, self.files);
        let mut extents = Vec::new();
        for (file, pages) in (0..).zip(&first) {
            space.allocate(home(file), *pages, &mut extents);
            laid.place(file, extents.drain(..));
        }
        for file in &erased {
            laid.extents(*file).iter().for_each(|e| space.release(*e));
        }
        for (file, pages) in erased.iter().zip(&second) {
            space.allocate(home(*file), *pages, &mut extents);
            laid.place(*file, extents.drain(..));
        }
        laid
    }

    /// Makes the files, or takes them from a small store of the process: an experiment runs the
    /// same file system under many policies and settings.
    pub fn stored(&self) -> Arc<LaidFiles> {
        /// Some 25 MB each for a million files.
        const STORED_MAX: usize = 8;
        type Cell = Arc<OnceLock<Arc<LaidFiles>>>;
        static STORE: Mutex<VecDeque<(Recipe, Cell)>> = Mutex::new(VecDeque::new());
        let cell = {
            let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
            let found = store.iter().position(|(recipe, _)| recipe == self);
            let entry = found.and_then(|at| store.remove(at));
            let entry = entry.unwrap_or_else(|| (*self, Cell::default()));
            let cell = entry.1.clone();
            store.push_back(entry); // the one used last is dropped last
            if store.len() > STORED_MAX {
                store.pop_front();
            }
            cell
        };
        // Not under the lock: two seeds may be laid out at once.
        cell.get_or_init(|| Arc::new(self.lay_out())).clone()
    }
}

/// Which pages are in use, by block group.
struct Space {
    used: Vec<u64>,
    /// Free pages of each group.
    free: Vec<u32>,
    /// In each group, no page before this one is free.
    from: Vec<u32>,
}

impl Space {
    fn new(groups: u32) -> Self {
        Space {
            used: vec![0; (groups * (GROUP_PAGES / 64)) as usize],
            free: vec![GROUP_PAGES; groups as usize],
            from: vec![0; groups as usize],
        }
    }

    /// Takes the first `pages` free pages from group `home` on, as extents. At least `pages` must
    /// be free.
    fn allocate(&mut self, home: u32, mut pages: u32, extents: &mut Vec<Extent>) {
        let groups = self.free.len() as u32;
        for group in (home..groups).chain(0..home) {
            let number = group as usize;
            while pages > 0 && self.free[number] > 0 {
                let first = group * GROUP_PAGES;
                let end = first + GROUP_PAGES;
                let start = self.next(first + self.from[number], end, false);
                let run = (self.next(start, end.min(start + pages), true)) - start;
                self.mark(start, run, true);
                self.free[number] -= run;
                self.from[number] = start + run - first;
                pages -= run;
                match extents.last_mut() {
                    Some(last) if last.start + last.pages == start => last.pages += run,
                    _ => extents.push(Extent { start, pages: run }),
                }
            }
            if pages == 0 {
                return;
            }
        }
        unreachable!("the file system was made as large as its files need");
    }

    fn release(&mut self, extent: Extent) {
        self.mark(extent.start, extent.pages, false);
        let (mut at, end) = (extent.start, extent.start + extent.pages);
        while at < end {
            let group = (at / GROUP_PAGES) as usize;
            let next = end.min((group as u32 + 1) * GROUP_PAGES);
            self.free[group] += next - at;
            self.from[group] = self.from[group].min(at % GROUP_PAGES);
            at = next;
        }
    }

    /// The first page in `at..end` that is used, or that is free; else `end`.
    fn next(&self, mut at: u32, end: u32, used: bool) -> u32 {
        while at < end {
            let word = self.used[at as usize / 64];
            let word = if used { word } else { !word } >> (at % 64);
            if word != 0 {
                return end.min(at + word.trailing_zeros());
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    fn mark(&mut self, start: u32, pages: u32, used: bool) {
        let (mut at, end) = (start, start + pages);
        while at < end {
            let next = end.min((at / 64 + 1) * 64);
            let bits = (u64::MAX >> (64 - (next - at))) << (at % 64);
            let word = &mut self.used[at as usize / 64];
            *word = if used { *word | bits } else { *word & !bits };
            at = next;
        }
    }
}
