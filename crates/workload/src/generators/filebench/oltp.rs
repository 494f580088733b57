//! `oltp.f`, a database: shadow processes read random blocks and compute; a
//! thousand of their reads let each database writer write a hundred blocks, and
//! 3200 let the log writer write 256 KiB. The writers' semaphores have a high
//! water mark, at which the shadows wait for them.
//!
//! Departures: Filebench's writers hand their writes to the C library's helper
//! threads and wait for them after the semaphore; here a writer makes its writes
//! one after the other (the helper threads do so for each file). A loop of its
//! `hog` is taken for a nanosecond. Writes are O_SYNC, as `dsync` asks.

use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RATE, RUNTIME, call_bytes};
use crate::generators::flow::{Flows, Gate, Order, Region, Step};
use crate::generators::pace::Pace;
use crate::generators::rng::Rng;
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::Nanos;

static PARAMS: &[ParamSpec] = &[
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
pub const GENERATOR: Generator = Generator {
    name: "oltp",
    summary: "Filebench's database: many readers, some writers and a log writer",
    params: PARAMS,
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
