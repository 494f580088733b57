//! The personalities whose threads all do the same with the files of one set:
//! `fileserver.f`, `webserver.f`, `varmail.f` and `webproxy.f`.

use crate::generators::filebench::fileset::{FileSet, Shape};
use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::rng::{Rng, split};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, FileSpec, HandleSpec, Op};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::units::{Instant, Nanos};

/// A step of a thread's flow. Those that need a file are skipped when the set
/// had none to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Open,
    Create,
    ReadWhole,
    WriteWhole,
    Append,
    Fsync,
    Close,
    Delete,
    /// Append to the log that all threads share.
    AppendLog,
}

use Step::{Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, WriteWhole};

/// What sets one personality apart from another.
#[derive(Debug)]
struct Personality {
    name: &'static str,
    flow: &'static [Step],
    /// Of 100 files, so many exist at the start.
    prealloc_percent: u64,
    /// Room for so many of the longest appends behind each file.
    appends: u64,
}

const READ_ONE: [Step; 3] = [Open, ReadWhole, Close];

/// `n` times `READ_ONE` between `before` and `after`.
const fn with_reads<const N: usize>(before: &[Step], reads: usize, after: &[Step]) -> [Step; N] {
    assert!(N == before.len() + 3 * reads + after.len());
    let mut flow = [Close; N];
    let mut at = 0;
    while at < N {
        flow[at] = if at < before.len() {
            before[at]
        } else if at < before.len() + 3 * reads {
            READ_ONE[(at - before.len()) % 3]
        } else {
            after[at - before.len() - 3 * reads]
        };
        at += 1;
    }
    flow
}

static FILE_FLOW: [Step; 10] =
    [Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete];
static WEB_FLOW: [Step; 31] = with_reads(&[], 10, &[AppendLog]);
static MAIL_FLOW: [Step; 13] = with_reads(
    &[Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close],
    1,
    &[],
);
static PROXY_FLOW: [Step; 19] = with_reads(&[Delete, Create, Append, Close], 5, &[]);

static FILESERVER: Personality =
    Personality { name: "fileserver", flow: &FILE_FLOW, prealloc_percent: 80, appends: 4 };
static WEBSERVER: Personality =
    Personality { name: "webserver", flow: &WEB_FLOW, prealloc_percent: 100, appends: 0 };
static MAILSERVER: Personality =
    Personality { name: "mailserver", flow: &MAIL_FLOW, prealloc_percent: 80, appends: 4 };
static PROXY: Personality =
    Personality { name: "proxy", flow: &PROXY_FLOW, prealloc_percent: 80, appends: 1 };

const fn files(default: &'static str) -> ParamSpec {
    param("files", Kind::Count(1, 1_000_000), default, "files of the set")
}
const fn size(default: &'static str) -> ParamSpec {
    param("size", Kind::Size, default, "mean size of a file, gamma-distributed")
}
const fn threads(default: &'static str) -> ParamSpec {
    param("threads", Kind::Count(1, 4096), default, "threads")
}
const IOSIZE: ParamSpec =
    param("iosize", Kind::Size, "1MiB", "a system call of a whole file at most");
const APPEND: ParamSpec = param("append", Kind::Size, "16KiB", "appends are shorter than this");

static FILE_PARAMS: &[ParamSpec] =
    &[files("10000"), size("128KiB"), threads("50"), IOSIZE, APPEND, RUNTIME, OPERATIONS, BYTES];
static WEB_PARAMS: &[ParamSpec] =
    &[files("50000"), size("16KiB"), threads("100"), IOSIZE, APPEND, RUNTIME, OPERATIONS, BYTES];
static MAIL_PARAMS: &[ParamSpec] =
    &[files("32000"), size("16KiB"), threads("16"), IOSIZE, APPEND, RUNTIME, OPERATIONS, BYTES];
static PROXY_PARAMS: &[ParamSpec] =
    &[files("64000"), size("16KiB"), threads("100"), IOSIZE, APPEND, RUNTIME, OPERATIONS, BYTES];

/// `fileserver.f`; files as in Filebench, 1.3 GB.
pub const FILE_GENERATOR: Generator = Generator {
    name: "fileserver",
    summary: "Filebench's file server: threads create, append to, read and remove files",
    params: FILE_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Server::new(&FILESERVER, params, seed)?))),
};
/// `webserver.f`; files 50 times as many, 0.8 GB.
pub const WEB_GENERATOR: Generator = Generator {
    name: "webserver",
    summary: "Filebench's web server: threads read ten files, then append to one log",
    params: WEB_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Server::new(&WEBSERVER, params, seed)?))),
};
/// `varmail.f`; files 32 times as many, 0.5 GB.
pub const MAIL_GENERATOR: Generator = Generator {
    name: "mailserver",
    summary: "Filebench's varmail: threads remove, create, append, fsync and read mails",
    params: MAIL_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Server::new(&MAILSERVER, params, seed)?))),
};
/// `webproxy.f`; files 6.4 times as many, 1 GB.
pub const PROXY_GENERATOR: Generator = Generator {
    name: "proxy",
    summary: "Filebench's web proxy: threads replace one file, then read five",
    params: PROXY_PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Server::new(&PROXY, params, seed)?))),
};

/// Room of the log; it starts over when that is full.
const LOG_BYTES: u64 = 256 << 20;
/// A thread that finds nothing to do in its whole flow looks again after this.
const NOTHING_TO_DO: Nanos = Nanos::from_millis(1);

#[derive(Clone, Debug)]
struct Thread {
    rng: Rng,
    /// Which step of the flow comes next.
    step: usize,
    /// The file that it has open.
    open: Option<u32>,
    /// Bytes of the present step that are done.
    done: u64,
    /// The file that its last call removed.
    removing: Option<u32>,
}

/// A server and its threads.
#[derive(Clone, Debug)]
pub struct Server {
    name: &'static str,
    flow: &'static [Step],
    set: FileSet,
    files: Vec<FileSpec>,
    handles: Vec<HandleSpec>,
    threads: Vec<Thread>,
    limit: Limit,
    iosize: u64,
    append: u64,
    log_end: u64,
}

impl Server {
    fn new(kind: &'static Personality, p: &Params, seed: u64) -> Result<Self, ParamError> {
        let name = kind.name;
        let mean_bytes = p.size("size").bytes();
        if mean_bytes == 0 {
            return Err(ParamError::new(format!("{name}: size must not be 0")));
        }
        let (iosize, append) = (call_bytes(name, p, "iosize")?, call_bytes(name, p, "append")?);
        let shape = Shape {
            count: p.count("files") as u32,
            mean_bytes,
            gamma: true,
            prealloc_percent: kind.prealloc_percent,
            room_bytes: kind.appends * append,
        };
        let (set, mut files) = FileSet::new(shape, 0, &mut Rng::new(split(seed, 0)));
        let count = p.count("threads") as u32;
        let process = |n: u32| n as u16;
        let handle = |n| HandleSpec { process: process(n), ..HandleSpec::default() };
        let mut handles: Vec<HandleSpec> = (0..count).map(handle).collect();
        if kind.flow.contains(&AppendLog) {
            let file = files.len() as u32;
            files.push(FileSpec { bytes: LOG_BYTES, present: mean_bytes.min(LOG_BYTES) });
            handles.extend((0..count).map(|n| HandleSpec { file, ..handle(n) }));
        }
        let thread = |n: u32| Thread {
            rng: Rng::new(split(seed, 1 + u64::from(n))),
            step: 0,
            open: None,
            done: 0,
            removing: None,
        };
        Ok(Server {
            name,
            flow: kind.flow,
            set,
            files,
            handles,
            threads: (0..count).map(thread).collect(),
            limit: Limit::new(p),
            iosize,
            append,
            log_end: mean_bytes,
        })
    }

    /// The call that the thread's present step makes next; `None` when the step
    /// is done, or has nothing to do, and the next one has been chosen.
    fn advance(&mut self, thread: u32) -> Option<Op> {
        let t = &mut self.threads[thread as usize];
        let (step, handle) = (self.flow[t.step], thread);
        let op = match (step, t.open) {
            (Open | Create, None) => {
                t.open = if step == Open { self.set.open() } else { self.set.create() };
                t.open.map(|entry| Op::Open { handle, file: self.set.file(entry) })
            }
            (Close, Some(entry)) => {
                self.set.close(entry);
                t.open = None;
                None
            }
            (ReadWhole, Some(entry)) => {
                let len = self.iosize.min(self.set.bytes(entry).saturating_sub(t.done));
                if len > 0 {
                    let offset = t.done;
                    t.done += len;
                    return Some(Op::Read { handle, offset, len: len as u32 });
                }
                None
            }
            (WriteWhole, Some(entry)) => {
                let len = self.iosize.min(self.set.whole(entry).saturating_sub(t.done));
                if len > 0 {
                    let offset = t.done;
                    t.done += len;
                    self.set.write(entry, offset, len);
                    return Some(Op::Write { handle, offset, len: len as u32 });
                }
                None
            }
            (Append, Some(entry)) => {
                let offset = self.set.bytes(entry);
                let len = self.set.write(entry, offset, t.rng.below(self.append));
                (len > 0).then_some(Op::Write { handle, offset, len: len as u32 })
            }
            (Fsync, Some(_)) => Some(Op::Fsync { handle }),
            (Delete, _) => {
                t.removing = self.set.remove();
                t.removing.map(|entry| Op::Delete { file: self.set.file(entry) })
            }
            (AppendLog, _) => {
                let len = t.rng.below(self.append).min(LOG_BYTES);
                if self.log_end + len > LOG_BYTES {
                    self.log_end = 0;
                }
                let (handle, offset) = (self.threads.len() as u32 + thread, self.log_end);
                self.log_end += len;
                (len > 0).then_some(Op::Write { handle, offset, len: len as u32 })
            }
            // No file was to be had.
            _ => None,
        };
        let t = &mut self.threads[thread as usize];
        t.step = (t.step + 1) % self.flow.len();
        t.done = 0;
        op
    }
}

impl App for Server {
    fn name(&self) -> &str {
        self.name
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
        if let Some(entry) = self.threads[thread as usize].removing.take() {
            self.set.removed(entry);
        }
        if self.limit.is_over(now) {
            return Op::Done;
        }
        for _ in 0..=self.flow.len() {
            if let Some(op) = self.advance(thread) {
                self.limit.count(&op);
                return op;
            }
        }
        self.limit.sleep(now, NOTHING_TO_DO)
    }
}
