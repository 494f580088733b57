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
use crate::generators::rng::{Rng, Zipf, split};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, FileSpec, HandleSpec, Op};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::units::{Instant, Nanos};

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

/// The registry's entry.
pub const GENERATOR: Generator = Generator {
    name: "ycsb",
    summary: "a key-value store: point reads by popularity, and a compaction that streams",
    params: PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Ycsb::new(params, seed)?))),
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Read,
    Compute,
    Write,
}

#[derive(Clone, Debug)]
struct Thread {
    rng: Rng,
    half: Half,
    /// Compaction: store file and place in it.
    store: u32,
    offset: u64,
}

/// The store and its clients.
#[derive(Clone, Debug)]
pub struct Ycsb {
    /// Store files, then one of each compaction.
    files: Vec<FileSpec>,
    /// One of each client, then two of each compaction: what it reads, what it writes.
    handles: Vec<HandleSpec>,
    threads: Vec<Thread>,
    clients: u32,
    stores: u32,
    /// A client's handle leads to no fixed store: the stores by handle.
    open: Vec<u32>,
    /// The record that a client reads when its store file is open: its block.
    wanted: Vec<Option<u64>>,
    size: u64,
    block: u64,
    zipf: Zipf,
    compute: Nanos,
    seed: u64,
    limit: Limit,
}

impl Ycsb {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
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
        let client = |n: u32| HandleSpec { process: n as u16, ..HandleSpec::default() };
        let mut handles: Vec<HandleSpec> = (0..clients).map(client).collect();
        for n in 0..compactions {
            let process = (clients + n) as u16;
            handles.push(HandleSpec { file: n % stores, process, ..HandleSpec::default() });
            handles.push(HandleSpec { file: stores + n, process, ..HandleSpec::default() });
        }
        let thread = |n: u32| Thread {
            rng: Rng::new(split(seed, u64::from(n))),
            half: Half::Read,
            store: n.saturating_sub(clients) % stores,
            offset: 0,
        };
        Ok(Ycsb {
            files,
            handles,
            threads: (0..clients + compactions).map(thread).collect(),
            clients,
            stores,
            open: vec![0; clients as usize],
            wanted: vec![None; clients as usize],
            size,
            block,
            zipf: Zipf::new(size / block * u64::from(stores), p.number("zipf")),
            compute: p.duration("compute"),
            seed,
            limit: Limit::new(p),
        })
    }

    /// Draw a record, open its store file where another is open, read its block.
    fn client(&mut self, number: usize) -> Op {
        let thread = &mut self.threads[number];
        let per_store = self.size / self.block;
        if thread.half == Half::Compute && self.wanted[number].is_none() {
            thread.half = Half::Read;
            if self.compute > Nanos::ZERO {
                return Op::Compute(self.compute);
            }
        }
        let handle = number as u32;
        let block = match self.wanted[number].take() {
            Some(block) => block,
            None => {
                // Popular records lie anywhere, in the same places for all clients.
                let rank = self.zipf.sample(&mut thread.rng);
                let at = split(self.seed, rank) % (per_store * u64::from(self.stores));
                let store = (at / per_store) as u32;
                if std::mem::replace(&mut self.open[number], store) != store {
                    self.wanted[number] = Some(at % per_store);
                    return Op::Open { handle, file: store };
                }
                at % per_store
            }
        };
        thread.half = Half::Compute;
        Op::Read { handle, offset: block * self.block, len: self.block as u32 }
    }

    /// Read a block, write it; at a store file's end the next one, into the
    /// same place.
    fn compaction(&mut self, number: usize) -> Op {
        let first = self.clients + 2 * (number as u32 - self.clients);
        let thread = &mut self.threads[number];
        if thread.offset >= self.size && thread.half == Half::Read {
            thread.offset = 0;
            thread.store = (thread.store + 1) % self.stores;
            return Op::Open { handle: first, file: thread.store };
        }
        let offset = thread.offset;
        let len = self.block.min(self.size - offset) as u32;
        if thread.half == Half::Read {
            thread.half = Half::Write;
            return Op::Read { handle: first, offset, len };
        }
        thread.half = Half::Read;
        thread.offset += u64::from(len);
        Op::Write { handle: first + 1, offset, len }
    }
}

impl App for Ycsb {
    fn name(&self) -> &str {
        "ycsb"
    }
    fn threads(&self) -> u32 {
        self.threads.len() as u32
    }
    fn files(&self) -> &[FileSpec] {
        &self.files
    }
    fn handles(&self) -> &[HandleSpec] {
        &self.handles
    }

    fn next(&mut self, now: Instant, thread: u32) -> Op {
        if self.limit.is_over(now) {
            return Op::Done;
        }
        let op = match thread < self.clients {
            true => self.client(thread as usize),
            false => self.compaction(thread as usize),
        };
        self.limit.count(&op);
        op
    }
}
