//! A key-value store over files of a distributed file system, after YCSB's
//! workload of point reads, which the VIO-prefetching paper calls "YCSB3, which
//! emulates Hadoop workloads" (section 4.4) and says no more of.
//!
//! Known: YCSB's third workload (C) only reads records by a Zipf distribution
//! (constant 0.99, YCSB's own). Guesses: a record is found in a block of 64 KiB
//! of a store file of 64 MB (HBase's and HDFS's defaults of the time) and the
//! block is read whole; beside the clients one compaction streams through store
//! files and writes what it has read to another.

use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::flow::{Flows, Popular, Step};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use crate::rng::{Rng, split};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

static PARAMS: &[ParamSpec] = &[
    param("stores", Kind::Count(1, 10_000), "64", "store files"),
    param("size", Kind::Size, "64MiB", "size of a store file"),
    param("clients", Kind::Count(1, 4096), "8", "threads that read records"),
    param("compactions", Kind::Count(0, 16), "1", "threads that read store files and write others"),
    param("block", Kind::Size, "64KiB", "size of a read"),
    param("zipf", Kind::Number(0.01, 10.0), "0.99", "how popular the popular records are"),
    param("compute", Kind::Duration, "100us", "CPU time of a client for each read"),
    RUNTIME,
    OPERATIONS,
    BYTES,
];

pub const GENERATOR: Generator = Generator {
    name: "ycsb",
    summary: "a key-value store: point reads by popularity, and a compaction that streams",
    params: PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(store(params, seed)?))),
};

fn store(p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let name = "ycsb";
    let (block, size) = (call_bytes(name, p, "block")?, p.size("size").bytes());
    if size < block {
        return Err(ParamError::new(format!(
            "{name}: size={size} bytes, but a block has {block}: make store files larger"
        )));
    }
    let (stores, clients) = (p.count("stores") as u32, p.count("clients") as u32);
    let compactions = p.count("compactions") as u32;
    let mut files = vec![FileSpec::full(size); stores as usize];
    files.extend(vec![FileSpec::absent(size); compactions as usize]);
    // Each thread reads by one handle and writes by the next: a client begins with the
    // first store, a compaction with its own.
    let begin = |n: u32| n.checked_sub(clients).map(|n| (n % stores, stores + n)).unwrap_or((0, 0));
    let handles = (0..clients + compactions)
        .flat_map(|n| [HandleSpec::of(begin(n).0, n), HandleSpec::of(begin(n).1, n)]);
    let client = vec![Step::Find, Step::ReadHere, Step::Compute(p.duration("compute"))];
    let compaction = vec![Step::Rewind(stores), Step::ReadHere, Step::WriteOn];
    let threads = 0..clients + compactions;
    let mut flows = Flows {
        limit: Limit::new(p),
        handle: (0, 2),
        popular: Some(Popular::new(size / block * u64::from(stores), p.number("zipf"), seed)),
        stream: (size, block),
        ..Flows::new(
            name,
            (files, handles.collect()),
            vec![client, compaction],
            threads.clone().map(|n| usize::from(n >= clients)).collect(),
            threads.clone().map(|n| Rng::new(split(seed, u64::from(n)))).collect(),
        )
    };
    threads.for_each(|n| flows.begin_at(n as usize, begin(n).0, 0));
    Ok(flows)
}
