//! `videoserver.f`: readers stream the active videos at a rate that all share;
//! one writer replaces a passive video every ten seconds.
//!
//! A reader opens one active video, by rotation or by Zipf's law, and reads it again and again.
//! Filebench posts one event for each MiB that may be read; here one for each
//! read, at the same rate. What is late is made up for, there as here.

use crate::generators::filebench::fileset::{FILE_BYTES_MAX, FileSet, Shape};
use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::flow::{Flows, Step};
use crate::generators::pace::Pace;
use crate::generators::rng::{Rng, Zipf, split};
use crate::generators::{Build, Generator, param};
use crate::guest::app::HandleSpec;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

static PARAMS: &[ParamSpec] = &[
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

pub const GENERATOR: Generator = Generator {
    name: "videoserver",
    summary: "Filebench's video server: paced streams, and a writer that replaces videos",
    params: PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(server(params, seed)?))),
};

fn server(p: &Params, seed: u64) -> Result<Flows, ParamError> {
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
