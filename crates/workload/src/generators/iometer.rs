//! One worker of Iometer: an access specification (block size, share of reads,
//! share of random accesses) on one file, with requests outstanding.
//!
//! - A random access goes to any block of the file, and may repeat; a
//!   sequential one goes behind the access before it, random or not, and from
//!   the end of the file back to its start.
//! - `iops=0` is Iometer's closed loop: `depth` requests are always
//!   outstanding. With a target, requests arrive at that mean rate whatever the
//!   disk does (open loop), at most `depth` are outstanding, and one that comes
//!   while all are is late: `late=queue` makes up for it as soon as it can (the
//!   backlog has no bound), `late=drop` never makes it.
//! - Iometer opens files with O_DIRECT and disks raw, so `direct=true` is the
//!   default: a block of 512 bytes is a request of one sector. There is a file
//!   system all the same: writes change the file's mtime, once a second, and so
//!   reach the journal.
//! - Left out: mixes of several specifications, bursts, delays between replies,
//!   the network workers.

use crate::generators::filebench::Limit;
use crate::generators::flow::{Flows, Order, Region, Step};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use crate::rng::{Pace, Rng};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

static PARAMS: &[ParamSpec] = &[
    param("block", Kind::Size, "4KiB", "size of a request, a multiple of 512 bytes"),
    param("read", Kind::Count(0, 100), "100", "% of reads"),
    param("random", Kind::Count(0, 100), "0", "% of random accesses, the rest in sequence"),
    param("depth", Kind::Count(1, 4096), "1", "requests outstanding; with iops, at most"),
    param("iops", Kind::Count(0, 10_000_000), "0", "requests a second (0: as fast as it goes)"),
    param("arrival", Kind::Choice(&["fixed", "exponential"]), "fixed", "intervals with iops"),
    param("late", Kind::Choice(&["queue", "drop"]), "queue", "with iops: what comes at full depth"),
    param("size", Kind::Size, "4GiB", "size of the file"),
    param("requests", Kind::Count(0, u64::MAX), "0", "how many in all (0: until the run ends)"),
    param("runtime", Kind::Duration, "0", "ends after this time (0: never)"),
    param("direct", Kind::Flag, "true", "O_DIRECT"),
];

pub const GENERATOR: Generator = Generator {
    name: "iometer",
    summary: "an Iometer worker: block size, shares of reads and random accesses, depth or rate",
    params: PARAMS,
    ends_by: &["requests", "runtime"],
    build: Build::App(|params, seed| Ok(Box::new(worker(params, seed)?))),
};

fn worker(p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let (block, bytes) = (p.size("block").bytes(), p.size("size").bytes());
    let blocks = bytes.checked_div(block).unwrap_or(0);
    if blocks == 0 || block > u64::from(u32::MAX) {
        return Err(ParamError::new(format!(
            "iometer: no block of {block} bytes fits in size={bytes} bytes"
        )));
    }
    let (requests, depth) = (p.count("requests"), p.count("depth") as usize);
    let (read, random) = (p.count("read"), p.count("random"));
    let pace = Pace::even(p.count("iops")).map(|pace| {
        pace.exponential(p.choice("arrival") == "exponential").dropping(p.choice("late") == "drop")
    });
    let taken = (requests > 0).then_some(Step::Take);
    let paced = pace.iter().map(|_| Step::Pace);
    let access = Step::Access { region: 0, read, random };
    let flow = taken.into_iter().chain(paced).chain([access]).collect();
    let handle = HandleSpec { direct: p.flag("direct"), ..HandleSpec::default() };
    Ok(Flows {
        limit: Limit::of_time(p),
        left: requests,
        pace,
        regions: vec![Region::new((0, 0), block, blocks, Order::Next(0))],
        ..Flows::new(
            &format!("iometer.{block}.r{read}.x{random}"),
            (vec![FileSpec::full(bytes)], vec![handle]),
            vec![flow],
            vec![0; depth],
            vec![Rng::new(seed)],
        )
    })
}
