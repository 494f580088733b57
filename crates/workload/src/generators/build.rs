//! A build: jobs that read sources, compute, and write objects.
//!
//! All figures are guesses of the order of a C or C++ project: a job reads a source and
//! eleven headers of 8 KiB on average, compiles for 80 ms, and writes an object; each object
//! replaces an old file, so that the tree keeps its size.

use crate::generators::filebench::{
    BYTES, FileSet, LIMITS, Limit, OPERATIONS, RUNTIME, Shape, call_bytes,
};
use crate::generators::flow::Flows;
use crate::generators::flow::Step::{Close, Compute, Create, Delete, Open, ReadWhole, WriteWhole};
use crate::generators::{Build, Generator, param};
use crate::guest::app::HandleSpec;
use crate::rng::{Rng, split};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

static PARAMS: &[ParamSpec] = &[
    param("files", Kind::Count(1, 1_000_000), "20000", "files of the tree"),
    param("size", Kind::Size, "8KiB", "mean size of a file, gamma-distributed"),
    param("jobs", Kind::Count(1, 256), "4", "compilers at a time"),
    param("reads", Kind::Count(1, 1_000), "12", "files that a job reads"),
    param("compute", Kind::Duration, "80ms", "CPU time of a job"),
    param("iosize", Kind::Size, "1MiB", "a system call of a whole file at most"),
    RUNTIME,
    OPERATIONS,
    BYTES,
];

pub const GENERATOR: Generator = Generator {
    name: "build",
    summary: "a build: jobs read small files, compute, and write another",
    params: PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(jobs(params, seed)?))),
};

fn jobs(p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let name = "build";
    let mean_bytes = p.size("size").bytes();
    if mean_bytes == 0 {
        return Err(ParamError::new(format!("{name}: size must not be 0")));
    }
    let shape = Shape {
        count: p.count("files") as u32,
        mean_bytes,
        gamma: true,
        prealloc_percent: 90,
        room_bytes: 0,
    };
    let (set, files) = FileSet::new(shape, 0, &mut Rng::new(split(seed, 0)));
    let count = p.count("jobs") as u32;
    let handles = (0..count).map(|n| HandleSpec::of(0, n)).collect();
    let reads = [Open, ReadWhole, Close].repeat(p.count("reads") as usize);
    let rest = [Compute(p.duration("compute")), Create, WriteWhole, Close, Delete];
    let flow = [reads, rest.to_vec()].concat();
    let rngs = (0..count).map(|n| Rng::new(split(seed, 1 + u64::from(n)))).collect();
    Ok(Flows {
        limit: Limit::new(p),
        set,
        call_bytes: call_bytes(name, p, "iosize")?,
        ..Flows::new(name, (files, handles), vec![flow], vec![0; count as usize], rngs)
    })
}
