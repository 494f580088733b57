//! Gain and cost of the host's cache: hits compared with the same image in memory without a cache,
//! and with QEMU's daemon; misses compared with no cache.

use crate::Options;
use crate::contest::in_turn;
use crate::image::Image;
use crate::load::Sample;
use crate::report::{Row, Samples, Target};
use crate::server::{NO_CACHE, Program, Protocol, Server};
use seekway_client::{Client, Load, Result, Span, Wait};
use serde_json::Value;
use std::time::Duration;

/// Bytes that are read, and are in the cache afterwards.
const WINDOW_BYTES: u64 = 64 << 20;
/// A cache that holds it, and one that holds next to nothing of the image.
const LARGE: &[&str] = &["--cache", "256MiB", "--prefetch", "none"];
const SMALL: &[&str] = &["--cache", "1MiB", "--prefetch", "none"];
/// The server polls for longer than any pause of the client's.
const POLL: [&str; 2] = ["--poll", "10ms"];
/// Hits with nobody asleep, in microseconds.
const POLLED_US: f64 = 15.0;
/// Guest memory for the client's data: 16 reads of 128 KiB.
const MEMORY_BYTES: usize = 2 << 20;

/// A server under one load.
struct Contender {
    name: &'static str,
    /// Arguments of ours; `None` for QEMU's daemon.
    more: Option<Vec<&'static str>>,
    wait: Wait,
    /// Read all of the window before it is measured; else over the whole image.
    warm: bool,
}

impl Contender {
    fn ours(name: &'static str, more: &[&'static str], wait: Wait, warm: bool) -> Contender {
        Contender { name, more: Some(more.to_vec()), wait, warm }
    }
}

/// All of it, on an image in memory.
pub fn run(options: &Options, image: &Image) -> Result<Vec<Row>> {
    let polled = [LARGE, &POLL].concat();
    let polled_past = [NO_CACHE, POLL].concat();
    let contenders = [
        Contender::ours("cache", LARGE, options.wait, true),
        Contender::ours("no cache", &NO_CACHE, options.wait, true),
        Contender { name: "qemu-storage-daemon", more: None, wait: options.wait, warm: true },
        Contender::ours("cache, polled", &polled, Wait::Spin, true),
        Contender::ours("no cache, polled", &polled_past, Wait::Spin, true),
        Contender::ours("cache", SMALL, options.wait, false),
        Contender::ours("no cache", &NO_CACHE, options.wait, false),
    ];
    let load = Load::random(1);
    let what = format!("cache {}", load.name());
    let samples = in_turn(options, &what, &contenders, |who| measure(options, image, load, who))?;
    let rows = |name: &str, ours: usize, peer: usize, target, p50_target| {
        let who = |n: usize| (contenders[n].name, samples[n].as_slice());
        let name = format!("{name} {}", load.name());
        let (ours, peer) = (who(ours), who(peer));
        let p99_target = Target::None;
        let samples = Samples { part: "cache", name, bytes: false, ours, peer, target, p99_target };
        let mut rows = samples.rows();
        let p50 = rows.iter_mut().find(|row| row.unit == "us").expect("half of them");
        p50.target = p50_target;
        rows
    };
    let no_worse = Target::RatioAtLeast(1.0, None);
    Ok([
        rows("hits", 0, 1, no_worse, Target::None),
        rows("hits", 0, 2, no_worse, Target::None),
        rows("hits, all poll", 3, 4, no_worse, Target::AtMost(POLLED_US)),
        rows("misses", 5, 6, Target::None, Target::None),
    ]
    .concat())
}

fn measure(options: &Options, image: &Image, load: Load, who: &Contender) -> Result<Sample> {
    let images = [image.path().to_path_buf()];
    let (server, socket) = match &who.more {
        Some(more) => {
            let server = Server::start_many(&options.seekway, &images, more)?;
            let socket = server.dir().join("d0.vhost");
            (server, socket)
        }
        None => {
            let program = Program::StorageDaemon;
            let server = Server::start(&program, Protocol::Vhost, image.path(), &options.seekway)?;
            let socket = server.socket().to_path_buf();
            (server, socket)
        }
    };
    let run = || {
        let mut client = Client::connect(&socket, MEMORY_BYTES)?;
        if who.warm {
            client.stay_below(WINDOW_BYTES);
            let once = Span { warm_up: Duration::ZERO, counted: options.span.counted / 2 };
            client.run(Load::sequential(16), once, Wait::Event, || ())?;
        }
        let missed = if who.warm { missed_bytes(&server, who)? } else { None };
        let sample = server.load(&mut client, load, options.span, who.wait)?;
        if who.warm && missed_bytes(&server, who)? != missed {
            return Err("what was to be hits were misses: more --seconds".into());
        }
        Ok(sample)
    };
    run().map_err(|error: String| server.complaint(&error))
}

/// Bytes that a server with a cache had to read for the guest of its only disk.
fn missed_bytes(server: &Server, who: &Contender) -> Result<Option<u64>> {
    if who.more.as_ref().is_none_or(|more| more.starts_with(&NO_CACHE)) {
        return Ok(None);
    }
    let status = server.status()?;
    let missed = status.pointer("/devices/0/disks/0/cache/missed_bytes").and_then(Value::as_u64);
    missed.map(Some).ok_or_else(|| format!("no cache in {status}"))
}
