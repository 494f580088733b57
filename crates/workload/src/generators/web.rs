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

use crate::generators::filebench::{
    BYTES, FileSet, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes,
};
use crate::generators::flow::{Flows, Order, Popular, Region, Step};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use crate::rng::{Rng, gamma, split};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

const fn percent(key: &'static str, default: &'static str, help: &'static str) -> ParamSpec {
    param(key, Kind::Count(0, 100), default, help)
}

/// Parameters; these are the defaults of the first seven.
const fn params(defaults: [&'static str; 7]) -> [ParamSpec; 14] {
    let [database, files, size, lookups, with_file, updates, uploads] = defaults;
    let count = Kind::Count(1, 1_000_000);
    [
        param("database", Kind::Size, database, "size of the database"),
        param("files", count, files, "files"),
        param("size", Kind::Size, size, "mean size of a file, gamma-distributed"),
        param("lookups", count, lookups, "database blocks of a request"),
        percent("with_file", with_file, "% of requests that read a file"),
        percent("updates", updates, "% of requests that update"),
        percent("uploads", uploads, "% of the updates that replace a file"),
        param("workers", Kind::Count(1, 256), "8", "processes that serve"),
        param(
            "zipf",
            Kind::Number(0.01, 10.0),
            "0.8",
            "how popular the popular blocks and files are",
        ),
        param("compute", Kind::Duration, "500us", "CPU time of a request beside its calls"),
        param("iosize", Kind::Size, "64KiB", "a system call of a file at most"),
        RUNTIME,
        OPERATIONS,
        BYTES,
    ]
}

static CLOUDSTONE_PARAMS: [ParamSpec; 14] =
    params(["1GiB", "4000", "768KiB", "4", "60", "4", "100"]);
static WIKI_PARAMS: [ParamSpec; 14] = params(["8GiB", "8000", "48KiB", "4", "20", "1", "0"]);

/// A social site: pictures and a database, updated now and then.
pub const CLOUDSTONE_GENERATOR: Generator = Generator {
    name: "cloudstone",
    summary: "a social site: database lookups, pictures, updates with uploads",
    params: &CLOUDSTONE_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(site("cloudstone", params, seed)?))),
};
/// An encyclopedia: database lookups, hardly an update.
pub const WIKI_GENERATOR: Generator = Generator {
    name: "wiki",
    summary: "an encyclopedia: database lookups by popularity, few files and updates",
    params: &WIKI_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(site("wiki", params, seed)?))),
};

/// Bytes of a database block, and of a record in its log.
const BLOCK_BYTES: u64 = 16 << 10;
const LOG_RECORD_BYTES: u64 = 4 << 10;
/// Room of the log; it starts over when that is full.
const LOG_BYTES: u64 = 64 << 20;
/// The database and its log are the first two files and regions.
const DATABASE_FILE: usize = 0;
const LOG_FILE: usize = 1;
const FIRST_FILE: u32 = 2;
/// Each worker's handles: the database, its log, and the file that it has open.
const HANDLES: u32 = 3;
/// Flags for the actions of a request: update the database, replace a file, read one.
const UPDATE: u8 = 0;
const UPLOAD: u8 = 1;
const READ_FILE: u8 = 2;

/// Steps of a worker for one request.
fn request(p: &Params) -> Vec<Step> {
    use Step::{Choose, Close, Compute, OpenChosen, Read, ReadWhole, Sync, Toss, Unless};
    use Step::{Write, WriteWhole};
    let mut flow = vec![
        Choose,
        Toss(UPDATE, p.count("updates")),
        Unless(UPDATE, 1),
        Toss(UPLOAD, p.count("uploads")),
        Toss(READ_FILE, p.count("with_file")),
    ];
    flow.extend((0..p.count("lookups")).map(|_| Read(DATABASE_FILE)));
    flow.extend([Unless(READ_FILE, 3), OpenChosen, ReadWhole, Close]);
    flow.push(Compute(p.duration("compute")));
    flow.extend([Unless(UPLOAD, 3), OpenChosen, WriteWhole, Close]);
    flow.extend([Unless(UPDATE, 3), Write(LOG_FILE), Sync(LOG_FILE), Write(DATABASE_FILE)]);
    flow
}

fn site(name: &'static str, p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let (database, mean) = (p.size("database").bytes(), p.size("size").bytes());
    if database < BLOCK_BYTES || mean == 0 {
        return Err(ParamError::new(format!(
            "{name}: database must hold a block of {BLOCK_BYTES} bytes, and size must not be 0"
        )));
    }
    let mut rng = Rng::new(split(seed, 0));
    // A few times the mean is the longest that the law gives in practice.
    let file = |_| gamma(&mut rng, 1.5, mean as f64).clamp(1.0, 32.0 * mean as f64) as u64;
    let sizes: Vec<u64> = (0..p.count("files")).map(file).collect();
    let mut files = vec![FileSpec::full(database), FileSpec::full(LOG_BYTES)];
    files.extend(sizes.iter().copied().map(FileSpec::full));
    let workers = p.count("workers") as u32;
    let handle = |n: u32| HandleSpec::of(n % HANDLES, n / HANDLES);
    let (zipf, blocks) = (p.number("zipf"), database / BLOCK_BYTES);
    let popular = Order::Popular(Popular::new(blocks, zipf, seed ^ 1));
    let records = LOG_BYTES / LOG_RECORD_BYTES;
    Ok(Flows {
        limit: Limit::new(p),
        set: FileSet::full(&sizes, FIRST_FILE),
        handle: (FIRST_FILE, HANDLES),
        call_bytes: call_bytes(name, p, "iosize")?,
        popular: Some(Popular::new(p.count("files"), zipf, seed)),
        regions: vec![
            Region::new((DATABASE_FILE as u32, HANDLES), BLOCK_BYTES, blocks, popular),
            Region::new((LOG_FILE as u32, HANDLES), LOG_RECORD_BYTES, records, Order::Next(0)),
        ],
        ..Flows::new(
            name,
            (files, (0..workers * HANDLES).map(handle).collect()),
            vec![request(p)],
            vec![0; workers as usize],
            (0..workers).map(|n| Rng::new(split(seed, 1 + u64::from(n)))).collect(),
        )
    })
}
