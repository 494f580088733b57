//! Filebench's personalities. First those whose threads all do the same with the files of one set:
//! `fileserver.f`, `webserver.f`, `varmail.f` and `webproxy.f`.

use crate::generators::filebench::{
    BYTES, FILE_BYTES_MAX, FileSet, LIMITS, Limit, OPERATIONS, RATE, RUNTIME, Shape, call_bytes,
};
use crate::generators::flow::Step::{
    self, Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, WriteWhole,
};
use crate::generators::flow::{Flows, Gate, LOG_BYTES, Order, Region};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use crate::rng::{Pace, Rng, Zipf, split};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::Nanos;

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

// `oltp.f`, a database: shadow processes read random blocks and compute; a
// thousand of their reads let each database writer write a hundred blocks, and
// 3200 let the log writer write 256 KiB. The writers' semaphores have a high
// water mark, at which the shadows wait for them.
//
// Departures: Filebench's writers hand their writes to the C library's helper
// threads and wait for them after the semaphore; here a writer makes its writes
// one after the other (the helper threads do so for each file). A loop of its
// `hog` is taken for a nanosecond. Writes are O_SYNC, as `dsync` asks.

static OLTP_PARAMS: &[ParamSpec] = &[
    param("files", Kind::Count(1, 1000), "10", "data files"),
    param("size", Kind::Size, "100MiB", "size of a data file (Filebench: 10m)"),
    param("log", Kind::Size, "10MiB", "size of the log"),
    param("iosize", Kind::Size, "2KiB", "size of a block"),
    param("threads", Kind::Count(1, 4096), "200", "shadow processes, the readers"),
    param("writers", Kind::Count(1, 256), "10", "database writers"),
    param("compute", Kind::Duration, "200us", "CPU time of a shadow after each read"),
    param("direct", Kind::Flag, "false", "O_DIRECT"),
    RATE,
    RUNTIME,
    OPERATIONS,
    BYTES,
];

/// `oltp.f`; data files ten times as large, 1 GB in all.
pub const OLTP_GENERATOR: Generator = Generator {
    name: "oltp",
    summary: "Filebench's database: many readers, some writers and a log writer",
    params: OLTP_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(database(params, seed)?))),
};

/// Bytes of a write to the log.
const LOG_WRITE_BYTES: u64 = 256 << 10;
/// Writes of a database writer in a row.
const BATCH: usize = 100;
/// CPU time of a database writer after its writes (`hog` 10000).
const WRITER_COMPUTE: Nanos = Nanos::from_micros(10);
/// Reads that a database writer, and the log writer, wait for; and how many
/// the shadows may be ahead.
const WRITER_READS: u64 = 1000;
const WRITER_AHEAD: u64 = 2000;
const LOG_READS: u64 = 3200;
const LOG_AHEAD: u64 = 1000;

/// Regions: data blocks for readers, data blocks for writers, the log.
const READS: usize = 0;
const WRITES: usize = 1;
const LOG: usize = 2;

fn database(p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let block = call_bytes("oltp", p, "iosize")?;
    let (bytes, log_bytes) = (p.size("size").bytes(), p.size("log").bytes());
    if bytes < block || log_bytes < LOG_WRITE_BYTES {
        return Err(ParamError::new(format!(
            "oltp: size must hold a block of {block} bytes, and log 256 KiB"
        )));
    }
    let count = p.count("files") as u32;
    let (shadows, writers) = (p.count("threads") as u32, p.count("writers") as u32);
    let mut files = vec![FileSpec::full(bytes); count as usize];
    files.push(FileSpec::full(log_bytes));
    let direct = p.flag("direct");
    let handle = |thread: u32, file| HandleSpec {
        file,
        direct,
        sync: thread >= shadows,
        process: thread as u16,
    };
    // Every thread opens every data file, and the log writer the log.
    let data = (0..shadows + writers).flat_map(|t| (0..count).map(move |f| (t, f)));
    let mut handles: Vec<HandleSpec> = data.map(|(t, f)| handle(t, f)).collect();
    handles.push(handle(shadows + writers, count));
    // Readers and writers take the data files in turn, each for themselves.
    let data = Region::new((0, count), block, bytes / block, Order::Random);
    let data = Region { files: count, ..data };
    let log_handle = handles.len() as u32 - 1;
    let log_blocks = log_bytes / LOG_WRITE_BYTES;
    let log = Region::new((log_handle, 0), LOG_WRITE_BYTES, log_blocks, Order::Random);
    let pace = Pace::even(p.count("rate")).map(|pace| pace.exponential(true));
    let compute = Step::Compute(p.duration("compute"));
    let paced = pace.iter().map(|_| Step::Pace);
    let shadow = paced.chain([Step::Read(READS), compute, Step::Post]).collect();
    // Shadows at the high water mark can go on when a writer has come to its gate.
    let mut writer = vec![Step::Write(WRITES); BATCH];
    writer.extend([Step::Compute(WRITER_COMPUTE), Step::Arrive, Step::Await]);
    let log_writer = vec![Step::Write(LOG), Step::Arrive, Step::Await];
    let role = |n| usize::from(n >= shadows) + usize::from(n >= shadows + writers);
    let gate = |posts, ahead| Gate { posts, ahead, rounds: 0 };
    let mut gates = vec![gate(WRITER_READS, WRITER_AHEAD); writers as usize];
    gates.push(gate(LOG_READS, LOG_AHEAD));
    Ok(Flows {
        limit: Limit::new(p),
        regions: vec![data, data, log],
        gates,
        pace,
        ..Flows::new(
            "oltp",
            (files, handles),
            vec![shadow, writer, log_writer],
            (0..=shadows + writers).map(role).collect(),
            vec![Rng::new(seed)],
        )
    })
}

// `videoserver.f`: readers stream the active videos at a rate that all share;
// one writer replaces a passive video every ten seconds.
//
// A reader opens one active video, by rotation or by Zipf's law, and reads it again and again.
// Filebench posts one event for each MiB that may be read; here one for each
// read, at the same rate. What is late is made up for, there as here.

static VIDEO_PARAMS: &[ParamSpec] = &[
    param("active", Kind::Count(1, 10_000), "32", "videos being served"),
    param("passive", Kind::Count(1, 10_000), "32", "others, half of them there (Filebench: 194)"),
    param("size", Kind::Size, "64MiB", "size of a video (Filebench: 10g)"),
    param("threads", Kind::Count(1, 4096), "48", "readers"),
    param("rate", Kind::Size, "96MiB", "what all readers have a second (0: no limit)"),
    param("iosize", Kind::Size, "256KiB", "size of a read"),
    param("write_iosize", Kind::Size, "1MiB", "size of a write"),
    param(
        "starts",
        Kind::Choice(&["even", "zipf"]),
        "even",
        "readers begin with one video each, or anywhere in popular ones (zipf, exponent 1)",
    ),
    param("interval", Kind::Duration, "10s", "pause before the next replacement"),
    RUNTIME,
    OPERATIONS,
    BYTES,
];

pub const VIDEO_GENERATOR: Generator = Generator {
    name: "videoserver",
    summary: "Filebench's video server: paced streams, and a writer that replaces videos",
    params: VIDEO_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(video_server(params, seed)?))),
};

fn video_server(p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let name = "videoserver";
    let read = call_bytes(name, p, "iosize")?;
    let mean_bytes = p.size("size").bytes();
    if mean_bytes < read {
        return Err(ParamError::new(format!(
            "{name}: size={mean_bytes} bytes, but a read has {read}: make videos larger"
        )));
    }
    let mut rng = Rng::new(split(seed, 0));
    let shape = |key: &str, prealloc_percent| Shape {
        count: p.count(key) as u32,
        mean_bytes,
        gamma: false,
        prealloc_percent,
        room_bytes: 0,
    };
    let (mut active, mut files) = FileSet::new(shape("active", 100), 0, &mut rng);
    let (passive, more) = FileSet::new(shape("passive", 50), files.len() as u32, &mut rng);
    files.extend(more);
    let readers = p.count("threads") as u16;
    let starts = starts(p, seed, read);
    let handle = |process: u16| {
        let in_turn = || active.open().filter(|_| process < readers).map(|e| active.file(e));
        let popular = starts.get(usize::from(process)).map(|&(video, _)| video);
        let file = popular.or_else(in_turn).unwrap_or(0);
        HandleSpec::of(file, process.into())
    };
    let handles = (0..=readers).map(handle).collect();
    let reader = vec![Step::Pace, Step::Rewind(0), Step::ReadOn];
    let pause = Step::Sleep(p.duration("interval"));
    let writer = vec![Step::Delete, Step::Create, Step::WriteWhole, Step::Close, pause];
    let threads = (0..=readers).map(|n| usize::from(n == readers)).collect();
    // At least one read a second, for Pace counts whole ones.
    let per_second = p.size("rate").bytes().div_ceil(read);
    let mut flows = Flows {
        limit: Limit::new(p),
        set: passive,
        call_bytes: call_bytes(name, p, "write_iosize")?,
        stream: (mean_bytes.min(FILE_BYTES_MAX), read),
        pace: Pace::even(per_second),
        ..Flows::new(name, (files, handles), vec![reader, writer], threads, vec![rng])
    };
    for (reader, (video, offset)) in starts.into_iter().enumerate() {
        flows.begin_at(reader, video, offset);
    }
    Ok(flows)
}

/// The video, and the place in it, with which each reader begins; none if they begin in turn.
fn starts(p: &Params, seed: u64, read: u64) -> Vec<(u32, u64)> {
    if p.choice("starts") != "zipf" {
        return Vec::new();
    }
    let mut rng = Rng::new(split(seed, 1));
    let ranks = Zipf::new(p.count("active"), 1.0);
    let reads = p.size("size").bytes() / read;
    let start = |_| (ranks.sample(&mut rng) as u32, rng.below(reads) * read);
    (0..p.count("threads")).map(start).collect()
}
