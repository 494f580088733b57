//! Two queries of TPC-H as a buffered database reads for them, with pages of
//! 8 KiB: **q2** looks suppliers up through indexes (small random reads over
//! part, partsupp, supplier and their indexes), **q19** scans lineitem in
//! sequence and looks parts up now and then.
//!
//! Table sizes follow the specification's row counts and row widths: of the
//! database, lineitem is 70 %, partsupp 11 %, part 3 %, supplier 1 %.

use crate::generators::rng::Rng;
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, FileSpec, HandleSpec, Op};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::units::{Instant, Nanos};

static PARAMS: &[ParamSpec] = &[
    param("query", Kind::Choice(&["q2", "q19"]), "q19", "which query"),
    param("size", Kind::Size, "1GiB", "size of the database"),
    param("lookups", Kind::Count(1, u64::MAX), "8000", "q2: parts that are looked up"),
    param("lookup_every", Kind::Count(1, u64::MAX), "64", "q19: pages scanned for each lookup"),
    param("cpu_page", Kind::Duration, "40us", "CPU time for each page of 8 KiB"),
    param("workers", Kind::Count(1, 64), "1", "processes that share the query's work"),
];

/// The registry's entry.
pub const GENERATOR: Generator = Generator {
    name: "tpch",
    summary: "TPC-H-like: q2 (index lookups) or q19 (scan with lookups)",
    params: PARAMS,
    ends_by: &[],
    build: Build::App(|params, seed| Ok(Box::new(Tpch::new(params, seed)?))),
};

const PAGE: u64 = 8192;
/// Share of the database in thousandths, in the order of the files: lineitem,
/// partsupp, its index, part, its index, supplier.
const SHARES: [u64; 6] = [700, 110, 20, 30, 10, 10];
const LINEITEM: usize = 0;
/// What a lookup of q2 reads, and of q19.
const Q2_STEPS: [usize; 5] = [4, 3, 2, 1, 5];
const Q19_STEPS: [usize; 2] = [4, 3];

/// One query.
#[derive(Clone, Debug)]
pub struct Tpch {
    query: &'static str,
    files: Vec<FileSpec>,
    handles: Vec<HandleSpec>,
    workers: u32,
    cpu_page: Nanos,
    lookup_every: u64,
    /// Lookups (q2) or pages of the scan (q19) that nobody has taken yet.
    left: u64,
    scanned: u64,
    rng: Rng,
    /// Per worker: steps left of its lookup, and whether it has computed.
    lookups: Vec<Vec<usize>>,
    computed: Vec<bool>,
}

impl Tpch {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let size = p.size("size").bytes();
        let bytes = |share: u64| (size / 1000 * share).next_multiple_of(PAGE);
        if bytes(10) < 16 * PAGE {
            return Err(ParamError::new("tpch: size must be 16MiB at least"));
        }
        let query = p.choice("query");
        let files = SHARES.map(|s| FileSpec::full(bytes(s))).to_vec();
        let workers = p.count("workers") as u32;
        let handle = |n: u32| HandleSpec {
            file: n % SHARES.len() as u32,
            process: (n / SHARES.len() as u32) as u16,
            ..HandleSpec::default()
        };
        Ok(Tpch {
            query,
            handles: (0..workers * SHARES.len() as u32).map(handle).collect(),
            workers,
            cpu_page: p.duration("cpu_page"),
            lookup_every: p.count("lookup_every"),
            left: if query == "q2" { p.count("lookups") } else { files[LINEITEM].bytes / PAGE },
            files,
            scanned: 0,
            rng: Rng::new(seed),
            lookups: vec![Vec::new(); workers as usize],
            computed: vec![true; workers as usize],
        })
    }

    fn read(&self, worker: u32, file: usize, page: u64) -> Op {
        let handle = worker * SHARES.len() as u32 + file as u32;
        Op::Read { handle, offset: page * PAGE, len: PAGE as u32 }
    }
}

impl App for Tpch {
    fn name(&self) -> &str {
        self.query
    }
    fn threads(&self) -> u32 {
        self.workers
    }
    fn files(&self) -> &[FileSpec] {
        &self.files
    }
    fn handles(&self) -> &[HandleSpec] {
        &self.handles
    }

    fn next(&mut self, _now: Instant, worker: u32) -> Op {
        let computed = &mut self.computed[worker as usize];
        if !std::mem::replace(computed, true) && self.cpu_page > Nanos::ZERO {
            return Op::Compute(self.cpu_page);
        }
        if let Some(file) = self.lookups[worker as usize].pop() {
            self.computed[worker as usize] = false;
            let page = self.rng.below(self.files[file].bytes / PAGE);
            return self.read(worker, file, page);
        }
        if self.left == 0 {
            return Op::Done;
        }
        self.left -= 1;
        if self.query == "q2" {
            self.lookups[worker as usize].extend(Q2_STEPS.iter().rev());
            return self.next(_now, worker);
        }
        self.computed[worker as usize] = false;
        let page = self.scanned;
        self.scanned += 1;
        if self.scanned.is_multiple_of(self.lookup_every) {
            self.lookups[worker as usize].extend(Q19_STEPS.iter().rev());
        }
        self.read(worker, LINEITEM, page)
    }
}
