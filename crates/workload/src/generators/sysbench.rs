//! sysbench's fileio test (0.4, `sb_fileio.c`), which the Pregather paper uses:
//! by default 16 threads over 128 files of 1 GiB in all, blocks of 16 KiB.
//!
//! - sequential modes: all threads draw the next block from one position, file
//!   after file; the whole set once. SW writes files that do not exist yet, and
//!   fsyncs each at the end.
//! - random modes: a uniform block of the set for each of `requests` requests
//!   (sysbench's own default: 10,000), or as many as make up `bytes`. RW fsyncs
//!   all files, one a request, each time 100 requests have been made, and at
//!   the end. RRW reads and writes 1.5 : 1.
//! - a file is opened once, by all threads: they share its read-ahead state.

use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use crate::rng::Rng;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::Instant;

const MODES: &[&str] = &["SR", "SW", "RR", "RW", "RRW"];

static PARAMS: &[ParamSpec] = &[
    param("mode", Kind::Choice(MODES), "SR", "sequential or random, read or write (RRW: both)"),
    param("threads", Kind::Count(1, 4096), "16", "threads"),
    param("files", Kind::Count(1, 100_000), "128", "files"),
    param("size", Kind::Size, "1GiB", "size of all files together"),
    param("block", Kind::Size, "16KiB", "size of a request"),
    param("requests", Kind::Count(1, u64::MAX), "10000", "random modes: how many requests"),
    param("bytes", Kind::Size, "0", "random modes: how much in all, instead of requests (0: not)"),
    param(
        "fsync_freq",
        Kind::Count(0, u64::MAX),
        "100",
        "random modes: requests between fsyncs of all files",
    ),
    param("fsync_end", Kind::Flag, "true", "writing modes: fsync all files at the end"),
    param("direct", Kind::Flag, "false", "O_DIRECT"),
    param("read_share", Kind::Count(0, 100), "60", "RRW: % of reads"),
];

pub const GENERATOR: Generator = Generator {
    name: "sysbench",
    summary: "sysbench fileio: threads reading or writing a set of files",
    params: PARAMS,
    ends_by: &[],
    build: Build::App(|params, seed| Ok(Box::new(Sysbench::new(params, seed)?))),
};

/// One run of sysbench fileio.
#[derive(Clone, Debug)]
pub struct Sysbench {
    mode: &'static str,
    spec: AppSpec,
    file_bytes: u64,
    block: u64,
    requests: u64,
    fsync_freq: u64,
    read_share: u64,
    rng: Rng,
    /// Sequential modes: where the next block is.
    file: u32,
    offset: u64,
    performed: u64,
    /// Files that the present round of fsyncs has done.
    synced: u32,
    /// Something was written since the last round of fsyncs ended.
    dirty: bool,
    /// Files that are still to be synced at the end.
    sync_at_end: u32,
}

impl Sysbench {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let count = p.count("files");
        let block = p.size("block").bytes();
        let file_bytes = p.size("size").bytes() / count;
        if block == 0 || block > file_bytes || block > u64::from(u32::MAX) {
            return Err(ParamError::new(format!(
                "sysbench: block of {block} bytes, but size / files makes {file_bytes} bytes a \
                 file: a block must fit in a file"
            )));
        }
        let mode = p.choice("mode");
        let writes = mode.ends_with('W');
        let direct = p.flag("direct");
        let bytes = p.size("bytes").bytes();
        let handle = |file| HandleSpec { file, direct, ..HandleSpec::default() };
        let present = if mode == "SW" { 0 } else { file_bytes };
        Ok(Sysbench {
            mode,
            spec: AppSpec {
                name: mode.into(),
                threads: p.count("threads") as u32,
                files: vec![FileSpec { bytes: file_bytes, present }; count as usize],
                handles: (0..count as u32).map(handle).collect(),
            },
            file_bytes,
            block,
            requests: if bytes > 0 { bytes.div_ceil(block) } else { p.count("requests") },
            fsync_freq: p.count("fsync_freq"),
            read_share: p.count("read_share"),
            rng: Rng::new(seed),
            file: 0,
            offset: 0,
            performed: 0,
            synced: 0,
            dirty: false,
            sync_at_end: if writes && p.flag("fsync_end") { count as u32 } else { 0 },
        })
    }

    fn next_sequential(&mut self) -> Op {
        if self.file as usize == self.spec.files.len() {
            return self.sync_or_end();
        }
        let len = self.block.min(self.file_bytes - self.offset) as u32;
        let (handle, offset) = (self.file, self.offset);
        self.offset += u64::from(len);
        if self.offset == self.file_bytes {
            self.file += 1;
            self.offset = 0;
        }
        Op::transfer(self.mode == "SW", handle, offset, len)
    }

    fn next_random(&mut self) -> Op {
        if self.performed >= self.requests {
            return self.sync_or_end();
        }
        let due = self.fsync_freq > 0 && self.performed.is_multiple_of(self.fsync_freq);
        if self.dirty && due {
            let handle = self.synced;
            self.synced += 1;
            if self.synced as usize == self.spec.files.len() {
                self.synced = 0;
                self.dirty = false;
            }
            return Op::Fsync { handle };
        }
        let write = match self.mode {
            "RR" => false,
            "RW" => true,
            _ => !self.rng.percent(self.read_share),
        };
        let at = self.rng.below(self.file_bytes * self.spec.files.len() as u64);
        let at = at - at % self.block;
        let offset = at % self.file_bytes;
        let len = self.block.min(self.file_bytes - offset) as u32;
        self.performed += 1;
        self.dirty |= write;
        Op::transfer(write, (at / self.file_bytes) as u32, offset, len)
    }

    fn sync_or_end(&mut self) -> Op {
        if self.sync_at_end == 0 {
            return Op::Done;
        }
        self.sync_at_end -= 1;
        Op::Fsync { handle: self.spec.files.len() as u32 - 1 - self.sync_at_end }
    }
}

impl App for Sysbench {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }
    fn next(&mut self, _now: Instant, _thread: u32) -> Op {
        match self.mode {
            "SR" | "SW" => self.next_sequential(),
            _ => self.next_random(),
        }
    }
}
