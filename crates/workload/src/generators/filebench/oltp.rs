//! `oltp.f`, a database: shadow processes read random blocks and compute; a
//! thousand of their reads let each database writer write a hundred blocks, and
//! 3200 let the log writer write 256 KiB. The writers' semaphores have a high
//! water mark, at which the shadows wait for them.
//!
//! Departures: Filebench's writers hand their writes to the C library's helper
//! threads and wait for them after the semaphore; here a writer makes its writes
//! one after the other (the helper threads do so for each file). A loop of its
//! `hog` is taken for a nanosecond. Writes are O_SYNC, as `dsync` asks.

use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::rng::Rng;
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, FileSpec, HandleSpec, Op};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::units::{Instant, Nanos};

static PARAMS: &[ParamSpec] = &[
    param("files", Kind::Count(1, 1000), "10", "data files"),
    param("size", Kind::Size, "100MiB", "size of a data file (Filebench: 10m)"),
    param("log", Kind::Size, "10MiB", "size of the log"),
    param("iosize", Kind::Size, "2KiB", "size of a block"),
    param("threads", Kind::Count(1, 4096), "200", "shadow processes, the readers"),
    param("writers", Kind::Count(1, 256), "10", "database writers"),
    param("compute", Kind::Duration, "200us", "CPU time of a shadow after each read"),
    param("direct", Kind::Flag, "false", "O_DIRECT"),
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
    build: Build::App(|params, seed| Ok(Box::new(Oltp::new(params, seed)?))),
};

/// Bytes of a write to the log.
const LOG_WRITE_BYTES: u64 = 256 << 10;
/// Writes of a database writer in a row.
const BATCH: u32 = 100;
/// CPU time of a database writer after its writes (`hog` 10000).
const WRITER_COMPUTE: Nanos = Nanos::from_micros(10);
/// Reads that a database writer, and the log writer, wait for; and how many
/// the shadows may be ahead.
const WRITER_READS: u64 = 1000;
const WRITER_AHEAD: u64 = 2000;
const LOG_READS: u64 = 3200;
const LOG_AHEAD: u64 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// A shadow reads; a writer makes what is left of its writes.
    Work,
    Compute,
    /// Tell the others, then wait at the semaphore: a shadow to post, a writer
    /// until enough has been posted.
    Post,
    Wait,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Shadow,
    Writer,
    Log,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    role: Role,
    phase: Phase,
    /// Writes made of the present batch.
    made: u32,
    /// Writers: times that it has come to its semaphore.
    rounds: u64,
}

/// The database.
#[derive(Clone, Debug)]
pub struct Oltp {
    files: Vec<FileSpec>,
    handles: Vec<HandleSpec>,
    threads: Vec<Thread>,
    shadows: u32,
    rng: Rng,
    limit: Limit,
    block: u64,
    blocks: u64,
    log_blocks: u64,
    compute: Nanos,
    /// Reads posted so far.
    posts: u64,
    /// The data file that comes next, for readers and for writers.
    next_file: [u32; 2],
    over: bool,
}

impl Oltp {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
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
        let role = |n| match n {
            n if n < shadows => Role::Shadow,
            n if n < shadows + writers => Role::Writer,
            _ => Role::Log,
        };
        let thread = |n| Thread { role: role(n), phase: Phase::Work, made: 0, rounds: 0 };
        Ok(Oltp {
            files,
            handles,
            threads: (0..=shadows + writers).map(thread).collect(),
            shadows,
            rng: Rng::new(seed),
            limit: Limit::new(p),
            block,
            blocks: bytes / block,
            log_blocks: log_bytes / LOG_WRITE_BYTES,
            compute: p.duration("compute"),
            posts: 0,
            next_file: [0; 2],
            over: false,
        })
    }

    /// May a shadow post one more read without passing a writer's high water mark?
    fn may_post(&self) -> bool {
        let room = |t: &Thread| match t.role {
            Role::Shadow => true,
            Role::Writer => self.posts < WRITER_AHEAD + WRITER_READS * t.rounds,
            Role::Log => self.posts < LOG_AHEAD + LOG_READS * t.rounds,
        };
        self.threads[self.shadows as usize..].iter().all(room)
    }

    fn data_handle(&mut self, thread: u32, writes: bool) -> (u32, u64) {
        let count = self.files.len() as u32 - 1;
        let next = &mut self.next_file[usize::from(writes)];
        let file = *next;
        *next = (file + 1) % count;
        (thread * count + file, self.rng.below(self.blocks) * self.block)
    }

    fn shadow(&mut self, thread: u32) -> Option<Op> {
        let phase = self.threads[thread as usize].phase;
        let (op, next) = match phase {
            Phase::Work => {
                let (handle, offset) = self.data_handle(thread, false);
                (Some(Op::Read { handle, offset, len: self.block as u32 }), Phase::Compute)
            }
            Phase::Compute => {
                let op = (self.compute > Nanos::ZERO).then_some(Op::Compute(self.compute));
                (op, Phase::Post)
            }
            Phase::Post | Phase::Wait if !self.may_post() => (Some(Op::Park), Phase::Post),
            Phase::Post | Phase::Wait => {
                self.posts += 1;
                let full = |t: &Thread| match t.role {
                    Role::Shadow => false,
                    Role::Writer => self.posts == WRITER_READS * t.rounds,
                    Role::Log => self.posts == LOG_READS * t.rounds,
                };
                let wakes = self.threads[self.shadows as usize..].iter().any(full);
                (wakes.then_some(Op::Wake), Phase::Work)
            }
        };
        self.threads[thread as usize].phase = next;
        op
    }

    fn writer(&mut self, thread: u32) -> Option<Op> {
        let Thread { role, phase, made, rounds } = self.threads[thread as usize];
        let (batch, reads) = if role == Role::Log { (1, LOG_READS) } else { (BATCH, WRITER_READS) };
        let (op, next) = match phase {
            Phase::Work if made == batch => {
                self.threads[thread as usize].made = 0;
                (None, Phase::Compute)
            }
            Phase::Work => {
                self.threads[thread as usize].made += 1;
                let (handle, offset, len) = if role == Role::Log {
                    let offset = self.rng.below(self.log_blocks) * LOG_WRITE_BYTES;
                    (self.handles.len() as u32 - 1, offset, LOG_WRITE_BYTES)
                } else {
                    let (handle, offset) = self.data_handle(thread, true);
                    (handle, offset, self.block)
                };
                (Some(Op::Write { handle, offset, len: len as u32 }), Phase::Work)
            }
            Phase::Compute => {
                (Some(Op::Compute(WRITER_COMPUTE)).filter(|_| role == Role::Writer), Phase::Post)
            }
            Phase::Post => {
                // Shadows at the high water mark can go on.
                self.threads[thread as usize].rounds += 1;
                (Some(Op::Wake), Phase::Wait)
            }
            Phase::Wait if self.posts < reads * rounds => (Some(Op::Park), Phase::Wait),
            Phase::Wait => (None, Phase::Work),
        };
        self.threads[thread as usize].phase = next;
        op
    }
}

impl App for Oltp {
    fn name(&self) -> &str {
        "oltp"
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
        // The first that is done wakes those who are parked.
        self.over |= self.limit.is_over(now);
        while !self.over {
            let op = match self.threads[thread as usize].role {
                Role::Shadow => self.shadow(thread),
                Role::Writer | Role::Log => self.writer(thread),
            };
            if let Some(op) = op {
                self.limit.count(&op);
                return op;
            }
        }
        Op::Done
    }
}
