//! `videoserver.f`: readers stream the active videos at a rate that all share;
//! one writer replaces a passive video every ten seconds.
//!
//! A reader opens one active video, by rotation, and reads it again and again.
//! Filebench posts one event for each MiB that may be read; here one for each
//! read, at the same rate. What is late is made up for, there as here.

use crate::generators::filebench::fileset::{FileSet, Shape};
use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::pace::Pace;
use crate::generators::rng::{Rng, split};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, FileSpec, HandleSpec, Op};
use seekway_policy::params::{Kind, ParamError, ParamSpec, Params};
use seekway_policy::units::{Instant, Nanos};

static PARAMS: &[ParamSpec] = &[
    param("active", Kind::Count(1, 10_000), "32", "videos being served"),
    param("passive", Kind::Count(1, 10_000), "32", "others, half of them there (Filebench: 194)"),
    param("size", Kind::Size, "64MiB", "size of a video (Filebench: 10g)"),
    param("threads", Kind::Count(1, 4096), "48", "readers"),
    param("rate", Kind::Count(0, 100_000), "96", "MiB a second of all readers (0: no limit)"),
    param("iosize", Kind::Size, "256KiB", "size of a read"),
    param("write_iosize", Kind::Size, "1MiB", "size of a write"),
    param("interval", Kind::Duration, "10s", "pause before the next replacement"),
    RUNTIME,
    OPERATIONS,
    BYTES,
];

/// The registry's entry.
pub const GENERATOR: Generator = Generator {
    name: "videoserver",
    summary: "Filebench's video server: paced streams, and a writer that replaces videos",
    params: PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(VideoServer::new(params, seed)?))),
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    Remove,
    Create,
    Write { entry: u32, done: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    video_bytes: u64,
    offset: u64,
    /// It has slept until its read was due.
    due: bool,
}

/// The server.
#[derive(Clone, Debug)]
pub struct VideoServer {
    files: Vec<FileSpec>,
    /// One of each reader, then the writer's.
    handles: Vec<HandleSpec>,
    passive: FileSet,
    readers: Vec<Reader>,
    writer: Writer,
    removing: Option<u32>,
    pace: Option<Pace>,
    rng: Rng,
    limit: Limit,
    read: u64,
    write: u64,
    interval: Nanos,
}

impl VideoServer {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let name = "videoserver";
        let read = call_bytes(name, p, "iosize")?;
        let write = call_bytes(name, p, "write_iosize")?;
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
        let (mut handles, mut readers) = (Vec::new(), Vec::new());
        for process in 0..p.count("threads") as u16 {
            let Some(entry) = active.open() else { continue };
            let file = active.file(entry);
            handles.push(HandleSpec { file, process, ..HandleSpec::default() });
            readers.push(Reader { video_bytes: active.bytes(entry), offset: 0, due: false });
        }
        handles.push(HandleSpec { process: readers.len() as u16, ..HandleSpec::default() });
        // At least one read a second, for Pace counts whole ones.
        let per_second = (p.count("rate") << 20).div_ceil(read);
        Ok(VideoServer {
            files,
            handles,
            passive,
            readers,
            writer: Writer::Remove,
            removing: None,
            pace: Pace::even(per_second),
            rng,
            limit: Limit::new(p),
            read,
            write,
            interval: p.duration("interval"),
        })
    }

    fn next_read(&mut self, now: Instant, thread: u32) -> Op {
        let reader = &mut self.readers[thread as usize];
        if let Some(pace) = self.pace.as_mut().filter(|_| !reader.due) {
            let wait = pace.wait(now, &mut self.rng);
            if wait > Nanos::ZERO {
                reader.due = true;
                return self.limit.sleep(now, wait);
            }
        }
        reader.due = false;
        if reader.offset >= reader.video_bytes {
            reader.offset = 0;
        }
        let (handle, offset) = (thread, reader.offset);
        let len = self.read.min(reader.video_bytes - offset);
        reader.offset += len;
        Op::Read { handle, offset, len: len as u32 }
    }

    fn next_write(&mut self, now: Instant) -> Op {
        let handle = self.readers.len() as u32;
        if let Some(entry) = self.removing.take() {
            self.passive.removed(entry);
        }
        loop {
            match self.writer {
                Writer::Remove => {
                    self.writer = Writer::Create;
                    self.removing = self.passive.remove();
                    if let Some(entry) = self.removing {
                        return Op::Delete { file: self.passive.file(entry) };
                    }
                }
                Writer::Create => {
                    let Some(entry) = self.passive.create() else {
                        self.writer = Writer::Remove;
                        return self.limit.sleep(now, self.interval.max(Nanos::from_millis(1)));
                    };
                    self.writer = Writer::Write { entry, done: 0 };
                    return Op::Open { handle, file: self.passive.file(entry) };
                }
                Writer::Write { entry, done } => {
                    let len = self.write.min(self.passive.whole(entry) - done);
                    if len == 0 {
                        self.passive.close(entry);
                        self.writer = Writer::Remove;
                        return self.limit.sleep(now, self.interval);
                    }
                    self.passive.write(entry, done, len);
                    self.writer = Writer::Write { entry, done: done + len };
                    return Op::Write { handle, offset: done, len: len as u32 };
                }
            }
        }
    }
}

impl App for VideoServer {
    fn name(&self) -> &str {
        "videoserver"
    }
    fn threads(&self) -> u32 {
        self.handles.len() as u32
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
        let op = match thread as usize == self.readers.len() {
            true => self.next_write(now),
            false => self.next_read(now, thread),
        };
        self.limit.count(&op);
        op
    }
}
