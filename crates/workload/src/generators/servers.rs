//! The personalities whose threads all do the same with the files of one set:
//! `fileserver.f`, `webserver.f`, `varmail.f` and `webproxy.f`.

use crate::generators::filebench::fileset::{FileSet, Shape};
use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RATE, RUNTIME, call_bytes};
use crate::generators::flow::Step::{
    self, Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, WriteWhole,
};
use crate::generators::flow::{Flows, LOG_BYTES};
use crate::generators::pace::Pace;
use crate::generators::rng::{Rng, split};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

/// Differences between personalities.
#[derive(Debug)]
struct Personality {
    name: &'static str,
    /// First steps of a thread, number of files that it then reads, and last steps.
    first: &'static [Step],
    reads: usize,
    last: &'static [Step],
    /// Files that exist at the start, in percent.
    prealloc_percent: u64,
    /// Room behind each file, in longest appends.
    appends: u64,
}

impl Personality {
    fn flow(&self) -> Vec<Step> {
        [self.first, &[Open, ReadWhole, Close].repeat(self.reads), self.last].concat()
    }
}

static FILESERVER: Personality = Personality {
    name: "fileserver",
    first: &[Create, WriteWhole, Close, Open, Append, Close],
    reads: 1,
    last: &[Delete],
    prealloc_percent: 80,
    appends: 4,
};
static WEBSERVER: Personality = Personality {
    name: "webserver",
    first: &[],
    reads: 10,
    last: &[AppendLog],
    prealloc_percent: 100,
    appends: 0,
};
static MAILSERVER: Personality = Personality {
    name: "mailserver",
    first: &[Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close],
    reads: 1,
    last: &[],
    prealloc_percent: 80,
    appends: 4,
};
static PROXY: Personality = Personality {
    name: "proxy",
    first: &[Delete, Create, Append, Close],
    reads: 5,
    last: &[],
    prealloc_percent: 80,
    appends: 1,
};

/// Parameters with these defaults.
const fn params(files: &'static str, size: &'static str, threads: &'static str) -> [ParamSpec; 9] {
    [
        param("files", Kind::Count(1, 1_000_000), files, "files of the set"),
        param("size", Kind::Size, size, "mean size of a file, gamma-distributed"),
        param("threads", Kind::Count(1, 4096), threads, "threads"),
        param("iosize", Kind::Size, "1MiB", "a system call of a whole file at most"),
        param("append", Kind::Size, "16KiB", "appends are shorter than this"),
        RATE,
        RUNTIME,
        OPERATIONS,
        BYTES,
    ]
}

static FILE_PARAMS: [ParamSpec; 9] = params("10000", "128KiB", "50");
static WEB_PARAMS: [ParamSpec; 9] = params("50000", "16KiB", "100");
static MAIL_PARAMS: [ParamSpec; 9] = params("32000", "16KiB", "16");
static PROXY_PARAMS: [ParamSpec; 9] = params("64000", "16KiB", "100");

/// `fileserver.f`; files as in Filebench, 1.3 GB.
pub const FILE_GENERATOR: Generator = Generator {
    name: "fileserver",
    summary: "Filebench's file server: threads create, append to, read and remove files",
    params: &FILE_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(server(&FILESERVER, params, seed)?))),
};
/// `webserver.f`; files 50 times as many, 0.8 GB.
pub const WEB_GENERATOR: Generator = Generator {
    name: "webserver",
    summary: "Filebench's web server: threads read ten files, then append to one log",
    params: &WEB_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(server(&WEBSERVER, params, seed)?))),
};
/// `varmail.f`; files 32 times as many, 0.5 GB.
pub const MAIL_GENERATOR: Generator = Generator {
    name: "mailserver",
    summary: "Filebench's varmail: threads remove, create, append, fsync and read mails",
    params: &MAIL_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(server(&MAILSERVER, params, seed)?))),
};
/// `webproxy.f`; files 6.4 times as many, 1 GB.
pub const PROXY_GENERATOR: Generator = Generator {
    name: "proxy",
    summary: "Filebench's web proxy: threads replace one file, then read five",
    params: &PROXY_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(server(&PROXY, params, seed)?))),
};

fn server(kind: &'static Personality, p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let name = kind.name;
    let mean_bytes = p.size("size").bytes();
    if mean_bytes == 0 {
        return Err(ParamError::new(format!("{name}: size must not be 0")));
    }
    let append_bytes = call_bytes(name, p, "append")?;
    let shape = Shape {
        count: p.count("files") as u32,
        mean_bytes,
        gamma: true,
        prealloc_percent: kind.prealloc_percent,
        room_bytes: kind.appends * append_bytes,
    };
    let (set, mut files) = FileSet::new(shape, 0, &mut Rng::new(split(seed, 0)));
    let count = p.count("threads") as u32;
    let mut handles: Vec<HandleSpec> = (0..count).map(|n| HandleSpec::of(0, n)).collect();
    let pace = Pace::even(p.count("rate")).map(|pace| pace.exponential(true));
    let paced = pace.iter().map(|_| Step::Pace);
    let flow: Vec<Step> = paced.chain(kind.flow()).collect();
    if flow.iter().any(|step| matches!(step, AppendLog)) {
        let file = files.len() as u32;
        files.push(FileSpec { bytes: LOG_BYTES, present: mean_bytes.min(LOG_BYTES) });
        handles.extend((0..count).map(|n| HandleSpec::of(file, n)));
    }
    let rngs = (0..count).map(|n| Rng::new(split(seed, 1 + u64::from(n)))).collect();
    let threads = vec![0; count as usize];
    Ok(Flows {
        limit: Limit::new(p),
        set,
        call_bytes: call_bytes(name, p, "iosize")?,
        append_bytes,
        log_end: mean_bytes,
        pace,
        ..Flows::new(name, (files, handles), vec![flow], threads, rngs)
    })
}
