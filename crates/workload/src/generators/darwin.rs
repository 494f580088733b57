//! A streaming server in the manner of Darwin, as the VIO-prefetching paper
//! uses it: many clients, each of which is sent one large video from some place
//! on, by a few workers.
//!
//! From the paper (section 4.1, table 2): heavy sequential reads of 36 GB by
//! eight workers. Everything else is a guess: 36 videos of 1 GB, eight clients
//! of each worker, reads of 64 KiB, and clients that take what they get (a rate
//! for each can be set; what is late is made up for).
//!
//! A worker is a process. It sends to its clients in turn, so that the reads of
//! one process are several streams, each in an open file of its own.

use crate::generators::filebench::{BYTES, LIMITS, Limit, OPERATIONS, RUNTIME, call_bytes};
use crate::generators::{Build, Generator, param};
use crate::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use crate::rng::Rng;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};

static PARAMS: &[ParamSpec] = &[
    param("videos", Kind::Count(1, 10_000), "36", "videos"),
    param("size", Kind::Size, "256MiB", "size of a video (the paper: 36 GB in all)"),
    param("workers", Kind::Count(1, 256), "8", "processes that serve"),
    param("clients", Kind::Count(1, 4096), "64", "streams, dealt out to the workers"),
    param("iosize", Kind::Size, "64KiB", "size of a read"),
    param("rate_kib", Kind::Count(0, 1 << 20), "0", "KiB a second of each client (0: no limit)"),
    RUNTIME,
    OPERATIONS,
    BYTES,
];

pub const GENERATOR: Generator = Generator {
    name: "darwin",
    summary: "a streaming server: workers that send large videos to many clients",
    params: PARAMS,
    ends_by: LIMITS,
    build: Build::App(|params, seed| Ok(Box::new(Darwin::new(params, seed)?))),
};

#[derive(Clone, Copy, Debug)]
struct Client {
    video: u32,
    offset: u64,
    /// The video has ended, and the next one is to be opened.
    ended: bool,
    /// When its next read is due; without a rate, how many it has had.
    due: u64,
}

#[derive(Clone, Debug)]
pub struct Darwin {
    /// A handle for each client, a thread for each worker.
    spec: AppSpec,
    clients: Vec<Client>,
    video_bytes: u64,
    read: u64,
    /// Between two reads of a client, ns; 0 = no rate.
    interval_ns: u64,
    rng: Rng,
    limit: Limit,
}

impl Darwin {
    /// From the parameters of [`GENERATOR`].
    pub fn new(p: &Params, seed: u64) -> Result<Self, ParamError> {
        let name = "darwin";
        let read = call_bytes(name, p, "iosize")?;
        let video_bytes = p.size("size").bytes();
        if video_bytes < read {
            return Err(ParamError::new(format!(
                "{name}: size={video_bytes} bytes, but a read has {read}: make videos larger"
            )));
        }
        let (videos, workers) = (p.count("videos") as u32, p.count("workers") as u32);
        let interval_ns = (read * 1_000_000_000).checked_div(p.count("rate_kib") << 10);
        let interval_ns = interval_ns.unwrap_or(0);
        let mut rng = Rng::new(seed);
        let client = |_| Client {
            video: rng.below(u64::from(videos)) as u32,
            offset: rng.below(video_bytes / read) * read,
            ended: false,
            // Not all at once.
            due: rng.below(interval_ns.max(1)),
        };
        let clients: Vec<Client> = (0..p.count("clients")).map(client).collect();
        let handle = |(n, client): (u32, &Client)| HandleSpec::of(client.video, n % workers);
        Ok(Darwin {
            spec: AppSpec {
                name: name.into(),
                threads: workers,
                files: vec![FileSpec::full(video_bytes); videos as usize],
                handles: (0..).zip(&clients).map(handle).collect(),
            },
            clients,
            video_bytes,
            read,
            interval_ns,
            rng,
            limit: Limit::new(p),
        })
    }

    /// The client of `worker` whose turn it is; `None` for a worker without any.
    fn next_client(&self, worker: u32) -> Option<usize> {
        let own = (worker as usize..self.clients.len()).step_by(self.spec.threads as usize);
        own.min_by_key(|&n| self.clients[n].due)
    }

    fn read(&mut self, number: usize) -> Op {
        let videos = self.spec.files.len() as u64;
        let client = &mut self.clients[number];
        let handle = number as u32;
        if std::mem::take(&mut client.ended) {
            client.video = self.rng.below(videos) as u32;
            return Op::Open { handle, file: client.video };
        }
        let offset = client.offset;
        let len = self.read.min(self.video_bytes - offset);
        client.due += self.interval_ns.max(1);
        client.offset += len;
        if client.offset >= self.video_bytes {
            (client.offset, client.ended) = (0, true);
        }
        Op::Read { handle, offset, len: len as u32 }
    }
}

impl App for Darwin {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }

    fn next(&mut self, now: Instant, worker: u32) -> Op {
        let Some(client) = self.next_client(worker).filter(|_| !self.limit.is_over(now)) else {
            return Op::Done;
        };
        let early_ns = self.clients[client].due.saturating_sub(now.as_nanos());
        if self.interval_ns > 0 && early_ns > 0 {
            return self.limit.sleep(now, Nanos::new(early_ns));
        }
        let op = self.read(client);
        self.limit.count(&op);
        op
    }
}
