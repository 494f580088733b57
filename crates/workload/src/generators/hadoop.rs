//! A node of a MapReduce sort (Hadoop 0.20): per VM some map slots, each of
//! which streams a 64 MB block of the input through the page cache, computes,
//! and writes what it has sorted to a spill file; several spills are merged
//! into one map output. When all maps are done, each reducer fetches its share
//! of every map output into a run of its own, then merges it into its output.
//!
//! Left out: the network (each node's reducers fetch this node's outputs, the
//! same amount as in a balanced cluster), replication of the output,
//! speculative tasks, and overlap of shuffle and map.

use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

static PARAMS: &[ParamSpec] = &[
    param("bytes", Kind::Size, "512MiB", "input of this VM"),
    param("block", Kind::Size, "64MiB", "HDFS block, the input of one map"),
    param("maps", Kind::Count(1, 256), "8", "map slots"),
    param("reducers", Kind::Count(1, 256), "2", "reducers"),
    param("spill", Kind::Size, "80MiB", "sort buffer: a map spills each time it is full"),
    param("buffer", Kind::Size, "64KiB", "size of a read or write"),
    param("cpu_mib", Kind::Duration, "10ms", "CPU time for each MiB that is read"),
];

pub const GENERATOR: Generator = Generator {
    name: "hadoop",
    summary: "a node of a MapReduce sort: streaming maps, spills, merging reducers",
    params: PARAMS,
    ends_by: &[],
    build: Build::App(|params, _seed| Ok(Box::new(Hadoop::new(params)?))),
};

/// Move `left` bytes from one file to another, or one end of that. Bytes.
#[derive(Clone, Copy, Debug)]
struct Stream {
    from: Option<(u32, u64)>,
    to: Option<(u32, u64)>,
    left: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Read,
    Compute,
    Write,
}

#[derive(Clone, Debug)]
struct Task {
    streams: VecDeque<Stream>,
    half: Half,
}

/// The sort on one VM.
#[derive(Clone, Debug)]
pub struct Hadoop {
    spec: AppSpec,
    map_slots: u32,
    reducers: u32,
    blocks: u32,
    next_map: u32,
    maps_running: u32,
    block: u64,
    spill: u64,
    buffer: u64,
    cpu_mib: Nanos,
    threads: Vec<Task>,
    reducer_started: Vec<bool>,
}

impl Hadoop {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params) -> Result<Self, ParamError> {
        let (bytes, block) = (p.size("bytes").bytes(), p.size("block").bytes());
        let (spill, buffer) = (p.size("spill").bytes(), p.size("buffer").bytes());
        if block == 0 || bytes < block || spill == 0 || buffer == 0 || buffer > 1 << 30 {
            return Err(ParamError::new(
                "hadoop: bytes must hold one block at least; block, spill and buffer must not be 0",
            ));
        }
        let blocks = bytes.div_ceil(block) as u32;
        let reducers = p.count("reducers") as u32;
        let share = u64::from(blocks) * (block / u64::from(reducers));
        let map_slots = p.count("maps") as u32;
        let mut files = vec![FileSpec::full(block); blocks as usize];
        files.extend(vec![FileSpec::absent(block); 2 * blocks as usize]);
        files.extend(vec![FileSpec::absent(share); 2 * reducers as usize]);
        // Every task is a process of its own; a file is only ever used by one at a time.
        let process = |file: u32| match file {
            f if f < 3 * blocks => f % blocks % map_slots,
            f => map_slots + (f - 3 * blocks) % reducers,
        };
        let handle = |file| HandleSpec::of(file, process(file));
        let idle = Task { streams: VecDeque::new(), half: Half::Read };
        Ok(Hadoop {
            spec: AppSpec {
                name: "sort".into(),
                threads: map_slots + reducers,
                handles: (0..files.len() as u32).map(handle).collect(),
                files,
            },
            map_slots,
            reducers,
            blocks,
            next_map: 0,
            maps_running: map_slots,
            block,
            spill,
            buffer,
            cpu_mib: p.duration("cpu_mib"),
            threads: vec![idle; (map_slots + reducers) as usize],
            reducer_started: vec![false; reducers as usize],
        })
    }

    fn spill_file(&self, map: u32) -> u32 {
        self.blocks + map
    }
    /// Where a map's result is in the end: the merged file if it spilled twice.
    fn map_output(&self, map: u32) -> u32 {
        if self.spill < self.block { 2 * self.blocks + map } else { self.spill_file(map) }
    }

    fn map_streams(&self, map: u32) -> VecDeque<Stream> {
        let mut streams = VecDeque::new();
        let mut at = 0;
        while at < self.block {
            let n = self.spill.min(self.block - at);
            streams.push_back(Stream { from: Some((map, at)), to: None, left: n });
            streams.push_back(Stream { from: None, to: Some((self.spill_file(map), at)), left: n });
            at += n;
        }
        if self.map_output(map) != self.spill_file(map) {
            let (from, to) = (Some((self.spill_file(map), 0)), Some((self.map_output(map), 0)));
            streams.push_back(Stream { from, to, left: self.block });
        }
        streams
    }

    fn reduce_streams(&self, reducer: u32) -> VecDeque<Stream> {
        let share = self.block / u64::from(self.reducers);
        let run = 3 * self.blocks + reducer;
        let output = run + self.reducers;
        let fetch = |map: u32| Stream {
            from: Some((self.map_output(map), u64::from(reducer) * share)),
            to: Some((run, u64::from(map) * share)),
            left: share,
        };
        let mut streams: VecDeque<Stream> = (0..self.blocks).map(fetch).collect();
        let left = share * u64::from(self.blocks);
        streams.push_back(Stream { from: Some((run, 0)), to: Some((output, 0)), left });
        streams
    }

    /// More work for a thread whose task is done, or why there is none.
    fn assign(&mut self, thread: u32) -> Option<Op> {
        let streams = if thread < self.map_slots {
            if self.next_map == self.blocks {
                self.maps_running -= 1;
                return Some(Op::Done);
            }
            self.next_map += 1;
            self.map_streams(self.next_map - 1)
        } else if self.maps_running > 0 {
            return Some(Op::Park);
        } else {
            let reducer = thread - self.map_slots;
            if std::mem::replace(&mut self.reducer_started[reducer as usize], true) {
                return Some(Op::Done);
            }
            self.reduce_streams(reducer)
        };
        self.threads[thread as usize].streams = streams;
        None
    }
}

impl App for Hadoop {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }

    fn next(&mut self, _now: Instant, thread: u32) -> Op {
        loop {
            let (buffer, cpu) = (self.buffer, self.cpu_mib);
            let task = &mut self.threads[thread as usize];
            let Some(stream) = task.streams.front_mut() else {
                match self.assign(thread) {
                    Some(op) => return op,
                    None => continue,
                }
            };
            let len = buffer.min(stream.left) as u32;
            match task.half {
                Half::Read => {
                    task.half = Half::Compute;
                    if let Some((handle, offset)) = &mut stream.from {
                        let op = Op::Read { handle: *handle, offset: *offset, len };
                        *offset += u64::from(len);
                        return op;
                    }
                }
                Half::Compute => {
                    task.half = Half::Write;
                    if stream.from.is_some() && cpu > Nanos::ZERO {
                        return Op::Compute(cpu.scaled(u64::from(len), 1 << 20));
                    }
                }
                Half::Write => {
                    task.half = Half::Read;
                    let to = stream.to;
                    if let Some((_, offset)) = &mut stream.to {
                        *offset += u64::from(len);
                    }
                    stream.left -= u64::from(len);
                    if stream.left == 0 {
                        task.streams.pop_front();
                    }
                    if let Some((handle, offset)) = to {
                        return Op::Write { handle, offset, len };
                    }
                }
            }
        }
    }
}
