//! Two queries of TPC-H as a buffered database reads for them, with pages of
//! 8 KiB: **q2** looks suppliers up through indexes (small random reads over
//! part, partsupp, supplier and their indexes), **q19** scans lineitem in
//! sequence and looks parts up now and then.
//!
//! Table sizes follow the specification's row counts and row widths: of the
//! database, lineitem is 70 %, partsupp 11 %, part 3 %, supplier 1 %.

use crate::generators::flow::{Flows, Order, Region, Step};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{FileSpec, HandleSpec};
use crate::rng::Rng;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};

static PARAMS: &[ParamSpec] = &[
    param("query", Kind::Choice(&["q2", "q19"]), "q19", "which query"),
    param("size", Kind::Size, "1GiB", "size of the database"),
    param("lookups", Kind::Count(1, u64::MAX), "8000", "q2: parts that are looked up"),
    param("lookup_every", Kind::Count(1, u64::MAX), "64", "q19: pages scanned for each lookup"),
    param("cpu_page", Kind::Duration, "40us", "CPU time for each page of 8 KiB"),
    param("workers", Kind::Count(1, 64), "1", "processes that share the query's work"),
];

pub const GENERATOR: Generator = Generator {
    name: "tpch",
    summary: "TPC-H-like: q2 (index lookups) or q19 (scan with lookups)",
    params: PARAMS,
    ends_by: &[],
    build: Build::App(|params, seed| Ok(Box::new(query(params, seed)?))),
};

const PAGE: u64 = 8192;
/// Share of the database in thousandths, in the order of the files: lineitem,
/// partsupp, its index, part, its index, supplier.
const SHARES: [u64; 6] = [700, 110, 20, 30, 10, 10];
const LINEITEM: usize = 0;
/// The files of which a lookup of q2 reads a page each, and those of q19.
const Q2_LOOKUP: [usize; 5] = [4, 3, 2, 1, 5];
const Q19_LOOKUP: [usize; 2] = [4, 3];

/// The flag of a page of the scan that a lookup follows.
const LOOKS_UP: u8 = 0;

fn query(p: &Params, seed: u64) -> Result<Flows, ParamError> {
    let size = p.size("size").bytes();
    let bytes = |share: u64| (size / 1000 * share).next_multiple_of(PAGE);
    if bytes(10) < 16 * PAGE {
        return Err(ParamError::new("tpch: size must be 16MiB at least"));
    }
    let files = SHARES.map(|share| FileSpec::full(bytes(share))).to_vec();
    let (count, workers) = (files.len() as u32, p.count("workers") as u32);
    let handle = |n: u32| HandleSpec::of(n % count, n / count);
    let pages: Vec<u64> = files.iter().map(|file| file.bytes / PAGE).collect();
    let region = |n: usize| {
        let order = if n == LINEITEM { Order::Next(0) } else { Order::Random };
        Region::new((n as u32, count), PAGE, pages[n], order)
    };
    let page = |file: usize| [Step::Read(file), Step::Compute(p.duration("cpu_page"))];
    let (query, mut flow) = (p.choice("query"), vec![Step::Take]);
    if query == "q2" {
        flow.extend(Q2_LOOKUP.into_iter().flat_map(page));
    } else {
        flow.push(Step::Every(LOOKS_UP, LINEITEM, p.count("lookup_every")));
        flow.extend(page(LINEITEM));
        let lookup = Q19_LOOKUP.into_iter().flat_map(page);
        flow.push(Step::Unless(LOOKS_UP, 2 * Q19_LOOKUP.len()));
        flow.extend(lookup);
    }
    let handles = (0..workers * count).map(handle).collect();
    let threads = vec![0; workers as usize];
    Ok(Flows {
        regions: (0..files.len()).map(region).collect(),
        left: if query == "q2" { p.count("lookups") } else { pages[LINEITEM] },
        ..Flows::new(query, (files, handles), vec![flow], threads, vec![Rng::new(seed)])
    })
}
