//! Web applications over a database and a set of files, in the manner of two
//! that the VIO-prefetching paper uses (section 4.1, table 2): **cloudstone**,
//! a social site with pictures (Olio), and **wiki**, an encyclopedia.
//!
//! From the paper: eight workers; Cloudstone "interactive update and read",
//! 20 GB; Wiki "similar to but less updates than" a web server, 60 GB, with the
//! requests of real users. The rest is a guess. A request looks some database
//! blocks of 16 KiB up (InnoDB's size), popular ones more often than others (a
//! Zipf law), reads a file whole where the page has one, and computes. An update
//! reads blocks too, appends to the database's log, waits for that (fsync), and
//! writes one block; an upload replaces a file. Cloudstone's requests that
//! change something are its workload's share of added persons and events, some
//! 4 % (from memory, unverified), each with an upload; Wikipedia's 1 %.

use crate::generators::dist::gamma;
use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::rng::{Rng, Zipf, split};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, FileSpec, HandleSpec, Op};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::units::{Instant, Nanos};

const fn percent(key: &'static str, default: &'static str, help: &'static str) -> ParamSpec {
    param(key, Kind::Count(0, 100), default, help)
}
const fn count(key: &'static str, default: &'static str, help: &'static str) -> ParamSpec {
    param(key, Kind::Count(1, 1_000_000), default, help)
}
const fn size(key: &'static str, default: &'static str, help: &'static str) -> ParamSpec {
    param(key, Kind::Size, default, help)
}
const WORKERS: ParamSpec = param("workers", Kind::Count(1, 256), "8", "processes that serve");
const ZIPF: ParamSpec =
    param("zipf", Kind::Number(0.01, 10.0), "0.8", "how popular the popular blocks and files are");
const COMPUTE: ParamSpec =
    param("compute", Kind::Duration, "500us", "CPU time of a request beside its calls");
const IOSIZE: ParamSpec = size("iosize", "64KiB", "a system call of a file at most");
const DATABASE: &str = "size of the database";
const FILES: &str = "files";
const FILE: &str = "mean size of a file, gamma-distributed";
const LOOKUPS: &str = "database blocks of a request";
const WITH_FILE: &str = "% of requests that read a file";
const UPDATES: &str = "% of requests that update";
const UPLOADS: &str = "% of the updates that replace a file";

static CLOUDSTONE_PARAMS: &[ParamSpec] = &[
    size("database", "1GiB", DATABASE),
    count("files", "4000", FILES),
    size("size", "768KiB", FILE),
    count("lookups", "4", LOOKUPS),
    percent("with_file", "60", WITH_FILE),
    percent("updates", "4", UPDATES),
    percent("uploads", "100", UPLOADS),
    WORKERS,
    ZIPF,
    COMPUTE,
    IOSIZE,
    RUNTIME,
    OPERATIONS,
    BYTES,
];
static WIKI_PARAMS: &[ParamSpec] = &[
    size("database", "8GiB", DATABASE),
    count("files", "8000", FILES),
    size("size", "48KiB", FILE),
    count("lookups", "4", LOOKUPS),
    percent("with_file", "20", WITH_FILE),
    percent("updates", "1", UPDATES),
    percent("uploads", "0", UPLOADS),
    WORKERS,
    ZIPF,
    COMPUTE,
    IOSIZE,
    RUNTIME,
    OPERATIONS,
    BYTES,
];

/// A social site: pictures and a database, updated now and then.
pub const CLOUDSTONE_GENERATOR: Generator = Generator {
    name: "cloudstone",
    summary: "a social site: database lookups, pictures, updates with uploads",
    params: CLOUDSTONE_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Web::new("cloudstone", params, seed)?))),
};
/// An encyclopedia: database lookups, hardly an update.
pub const WIKI_GENERATOR: Generator = Generator {
    name: "wiki",
    summary: "an encyclopedia: database lookups by popularity, few files and updates",
    params: WIKI_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Web::new("wiki", params, seed)?))),
};

/// Bytes of a database block, and of a record in its log.
const BLOCK_BYTES: u64 = 16 << 10;
const LOG_RECORD_BYTES: u64 = 4 << 10;
/// Room of the log; it starts over when that is full.
const LOG_BYTES: u64 = 64 << 20;
/// The database and its log are the first two files.
const DATABASE_FILE: u32 = 0;
const LOG_FILE: u32 = 1;
const FIRST_FILE: u32 = 2;
/// Each worker's handles: the database, its log, and the file that it has open.
const HANDLES: u32 = 3;

/// What is left to do of a request, last first.
#[derive(Clone, Copy, Debug)]
enum Step {
    Lookup,
    Open(u32),
    Get { file: u32, done: u64 },
    Put { file: u32, done: u64 },
    Log,
    Commit,
    Change,
    Compute,
}

#[derive(Clone, Debug)]
struct Worker {
    rng: Rng,
    steps: Vec<Step>,
}

/// The site.
#[derive(Clone, Debug)]
pub struct Web {
    name: &'static str,
    files: Vec<FileSpec>,
    handles: Vec<HandleSpec>,
    workers: Vec<Worker>,
    limit: Limit,
    lookups: u64,
    with_file: u64,
    updates: u64,
    uploads: u64,
    compute: Nanos,
    iosize: u64,
    blocks: Zipf,
    popular: Zipf,
    seed: u64,
    log_end: u64,
}

impl Web {
    fn new(name: &'static str, p: &Params, seed: u64) -> Result<Self, ParamError> {
        let (database, mean) = (p.size("database").bytes(), p.size("size").bytes());
        if database < BLOCK_BYTES || mean == 0 {
            return Err(ParamError::new(format!(
                "{name}: database must hold a block of {BLOCK_BYTES} bytes, and size must not be 0"
            )));
        }
        let mut files = vec![FileSpec::full(database), FileSpec::full(LOG_BYTES)];
        let mut rng = Rng::new(split(seed, 0));
        // A few times the mean is the longest that the law gives in practice.
        let file = |_| gamma(&mut rng, 1.5, mean as f64).clamp(1.0, 32.0 * mean as f64) as u64;
        files.extend((0..p.count("files")).map(file).map(FileSpec::full));
        let workers = p.count("workers") as u32;
        let handle = |n: u32| HandleSpec {
            file: [DATABASE_FILE, LOG_FILE, FIRST_FILE][(n % HANDLES) as usize],
            process: (n / HANDLES) as u16,
            ..HandleSpec::default()
        };
        let worker =
            |n: u32| Worker { rng: Rng::new(split(seed, 1 + u64::from(n))), steps: Vec::new() };
        Ok(Web {
            name,
            handles: (0..workers * HANDLES).map(handle).collect(),
            workers: (0..workers).map(worker).collect(),
            limit: Limit::new(p),
            lookups: p.count("lookups"),
            with_file: p.count("with_file"),
            updates: p.count("updates"),
            uploads: p.count("uploads"),
            compute: p.duration("compute"),
            iosize: call_bytes(name, p, "iosize")?,
            blocks: Zipf::new(database / BLOCK_BYTES, p.number("zipf")),
            popular: Zipf::new(p.count("files"), p.number("zipf")),
            files,
            seed,
            log_end: 0,
        })
    }

    /// The steps of a new request, last first.
    fn request(&mut self, worker: usize) {
        let files = self.files.len() as u64 - u64::from(FIRST_FILE);
        let seed = self.seed;
        let Worker { rng, steps } = &mut self.workers[worker];
        // Popular files lie anywhere.
        let rank = self.popular.sample(rng);
        let file = FIRST_FILE + (split(seed, rank) % files) as u32;
        if rng.percent(self.updates) {
            steps.extend([Step::Change, Step::Commit, Step::Log]);
            if rng.percent(self.uploads) {
                steps.extend([Step::Put { file, done: 0 }, Step::Open(file)]);
            }
        }
        steps.push(Step::Compute);
        if rng.percent(self.with_file) {
            steps.extend([Step::Get { file, done: 0 }, Step::Open(file)]);
        }
        steps.extend((0..self.lookups).map(|_| Step::Lookup));
    }

    /// A database block by its popularity.
    fn block(&mut self, worker: usize) -> u64 {
        let count = self.files[DATABASE_FILE as usize].bytes / BLOCK_BYTES;
        let rank = self.blocks.sample(&mut self.workers[worker].rng);
        split(self.seed ^ 1, rank) % count * BLOCK_BYTES
    }

    /// The next call of what a file's bytes still want; `None` at its end.
    fn part(&self, file: u32, done: u64) -> Option<u64> {
        let left = self.files[file as usize].bytes - done;
        (left > 0).then(|| left.min(self.iosize))
    }

    /// The call that this step makes; `None` when it makes none.
    fn call(&mut self, worker: usize, step: Step) -> Option<Op> {
        let first = worker as u32 * HANDLES;
        let (database, log, handle) = (first, first + 1, first + 2);
        match step {
            Step::Lookup => {
                let offset = self.block(worker);
                Some(Op::Read { handle: database, offset, len: BLOCK_BYTES as u32 })
            }
            Step::Open(file) => Some(Op::Open { handle, file }),
            Step::Get { file, done } => {
                let len = self.part(file, done)?;
                self.workers[worker].steps.push(Step::Get { file, done: done + len });
                Some(Op::Read { handle, offset: done, len: len as u32 })
            }
            Step::Put { file, done } => {
                let len = self.part(file, done)?;
                self.workers[worker].steps.push(Step::Put { file, done: done + len });
                Some(Op::Write { handle, offset: done, len: len as u32 })
            }
            Step::Log => {
                let offset = self.log_end;
                self.log_end = (offset + LOG_RECORD_BYTES) % LOG_BYTES;
                Some(Op::Write { handle: log, offset, len: LOG_RECORD_BYTES as u32 })
            }
            Step::Commit => Some(Op::Fsync { handle: log }),
            Step::Change => {
                let offset = self.block(worker);
                Some(Op::Write { handle: database, offset, len: BLOCK_BYTES as u32 })
            }
            Step::Compute => (self.compute > Nanos::ZERO).then_some(Op::Compute(self.compute)),
        }
    }
}

impl App for Web {
    fn name(&self) -> &str {
        self.name
    }
    fn threads(&self) -> u32 {
        self.workers.len() as u32
    }
    fn files(&self) -> &[FileSpec] {
        &self.files
    }
    fn handles(&self) -> &[HandleSpec] {
        &self.handles
    }

    fn next(&mut self, now: Instant, thread: u32) -> Op {
        let worker = thread as usize;
        while !self.limit.is_over(now) {
            let Some(step) = self.workers[worker].steps.pop() else {
                self.request(worker);
                continue;
            };
            if let Some(op) = self.call(worker, step) {
                self.limit.count(&op);
                return op;
            }
        }
        Op::Done
    }
}
