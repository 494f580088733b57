//! One daemon for a long time: VMMs and NBD clients come, read and go, disks are attached and
//! detached, policies, weights, limits and the cache's size change, metrics are read. Descriptors
//! and threads stay what they were, and so does memory.
//!
//! `make soak` runs it for long: SOAK_ROUNDS rounds, and at least SOAK_SECONDS. `make test` runs
//! a few rounds, which show what is never let go of, but little of memory.

use crate::common::{Folder, command, json, policies};
use crate::daemon::{PATIENCE, Served};
use crate::nbd::Client as Nbd;
use crate::process::{descriptors, status_kib, threads, wait_until};
use seekway_client::{Client, Load, Span, Wait, write_image};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const ROUNDS_DEFAULT: u64 = 24;
/// Rounds before the first look: all that is made once has been made by then.
const WARM_UP: u64 = 8;
/// Most growth of memory from the middle of a long run to its end.
const GROWTH_KIB_MAX: u64 = 4 << 10;
/// Rounds from which on a run is long.
const LONG_ROUNDS: u64 = 500;
const SPAN: Span = Span { warm_up: Duration::ZERO, counted: Duration::from_millis(20) };

/// Resources of the daemon at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    rss_kib: u64,
    descriptors: usize,
    threads: usize,
}

struct Soak {
    folder: Folder,
    served: Served,
    policies: Vec<String>,
    connects: u64,
}

impl Soak {
    fn start() -> Soak {
        let folder = Folder::new();
        for name in ["web.img", "db.img", "more.img"] {
            write_image(&folder.path(name), 4 << 20).expect("an image");
        }
        let log = File::create(folder.path("log")).expect("a log");
        let (web, db) = (folder.arg("web.img"), folder.arg("db.img"));
        let (web, db, listen) = (format!("web={web}"), format!("db={db}"), folder.arg("run"));
        let images = folder.arg("");
        let args = ["serve", "--disk", &web, "--disk", &db, "--listen", &listen, "--cache", "8MiB"];
        let mut command = command(&[&args[..], &["--images", &images]].concat());
        command.stderr(log);
        let served = Served::run(command, folder.arg("run/control.sock"));
        Soak { folder, served, policies: policies(), connects: 0 }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path("run").join(name)
    }

    fn held(&self) -> Held {
        let pid = self.served.child.id();
        Held {
            rss_kib: status_kib(pid, "VmRSS"),
            descriptors: descriptors(pid).len(),
            threads: threads(pid).len(),
        }
    }

    /// A VMM comes, reads or writes, and goes.
    fn vmm(&mut self, disk: &str, write: bool) {
        let load = Load { block_bytes: 4096, depth: 8, sequential: false, write };
        let path = self.socket(&format!("{disk}.vhost"));
        let mut vmm = Client::connect(&path, 1 << 20).expect("a VMM");
        vmm.run(load, SPAN, Wait::Event, || ()).expect("its requests");
        self.connects += 1;
    }

    /// A client of NBD comes, reads, and goes without a word.
    fn client(&mut self, disk: &str) {
        let mut nbd = Nbd::connect(&self.socket(&format!("{disk}.nbd"))).expect("a client");
        assert_eq!(nbd.read(0, 1 << 20).expect("a reply").expect("data").len(), 1 << 20);
        self.connects += 1;
    }

    /// Some that come and do not say what they should.
    fn rude(&mut self) {
        for name in ["web.vhost", "web.nbd", "control.sock"] {
            let mut socket = UnixStream::connect(self.socket(name)).expect("it listens");
            let _ = socket.write_all(&[0xff; 100]); // it may hang up in the middle
            self.connects += 1;
        }
    }

    fn scrape(&mut self) {
        let mut socket = UnixStream::connect(self.socket("control.sock")).expect("it listens");
        socket.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("a request");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        assert!(text.contains("seekway_"), "{text}");
        self.connects += 1;
    }

    /// Sends the requests on one connection; each has to succeed.
    fn control(&mut self, requests: &[String]) {
        let socket = UnixStream::connect(self.socket("control.sock")).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut answers = BufReader::new(&socket);
        for request in requests {
            (&socket).write_all(format!("{request}\n").as_bytes()).expect("the connection holds");
            let mut answer = String::new();
            answers.read_line(&mut answer).expect("an answer");
            assert!(json(&answer).get("result").is_some(), "{request}: {answer}");
        }
        self.connects += 1;
    }

    fn round(&mut self, n: u64) {
        let policy = &self.policies[n as usize % self.policies.len()];
        let path = self.folder.arg("more.img");
        let (iops, weight) = (100_000 + n % 7, 1 + n % 9);
        let cache = ["\"4MiB\"", "\"8MiB\""][n as usize % 2];
        self.control(&[
            format!("{{\"command\":\"policy\",\"policy\":\"{policy}\"}}"),
            format!("{{\"command\":\"weight\",\"disk\":\"web\",\"weight\":{weight}}}"),
            format!("{{\"command\":\"limit\",\"disk\":\"db\",\"limits\":\"iops={iops}\"}}"),
            format!("{{\"command\":\"cache\",\"size\":{cache}}}"),
            format!("{{\"command\":\"attach\",\"name\":\"more\",\"path\":\"{path}\"}}"),
        ]);
        self.vmm("web", n.is_multiple_of(2));
        self.vmm("more", n.is_multiple_of(3));
        self.client("db");
        self.client("more");
        self.rude();
        self.scrape();
        self.control(&[
            "{\"command\":\"status\"}".into(),
            "{\"command\":\"detach\",\"disk\":\"more\"}".into(),
        ]);
    }

    /// Resources when whoever came last has gone.
    fn settled(&self) -> Held {
        wait_until("no queue and no connection is left", || {
            let status = self.served.status();
            let ports = |disk: &Value| disk["ports"].as_u64().expect("a number");
            let devices = status["devices"].as_array().expect("devices").iter();
            devices.flat_map(|d| d["disks"].as_array().expect("disks")).all(|d| ports(d) == 0)
        });
        // Threads of connections, by their names; the last is that of the question above.
        wait_until("no thread of a connection is left", || {
            let is_of_connection =
                |name: &String| name.starts_with("vhost-") || name == "nbd" || name == "client";
            !threads(self.served.child.id()).iter().any(is_of_connection)
        });
        self.held()
    }
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn nothing_grows() {
    let (rounds, seconds) = (number("SOAK_ROUNDS", ROUNDS_DEFAULT), number("SOAK_SECONDS", 0));
    let mut soak = Soak::start();
    (0..WARM_UP).for_each(|n| soak.round(n));
    let began = Instant::now();
    // The same twice: the daemon has taken the last connections.
    let (mut start, mut again) = (soak.settled(), soak.settled());
    while (start.descriptors, start.threads) != (again.descriptors, again.threads) {
        (start, again) = (again, soak.settled());
    }
    let mut looks = vec![(0, start)];
    let mut done = 0;
    while done < rounds || began.elapsed().as_secs() < seconds {
        soak.round(WARM_UP + done);
        done += 1;
        // The daemon may not have taken the last connections yet.
        wait_until(&format!("round {done}: as at the start, {start:?}"), || {
            let now = soak.settled();
            (now.descriptors, now.threads) == (start.descriptors, start.threads)
        });
        let now = soak.held();
        // Ten lines for whoever waits, and enough for the middle.
        if done % rounds.div_ceil(10) == 0 {
            println!("round {done}, {} s: {now:?}", began.elapsed().as_secs());
        }
        looks.push((done, now));
    }
    let (middle, end) = (looks[looks.len() / 2], looks[looks.len() - 1]);
    println!("{} connections in {} s", soak.connects, began.elapsed().as_secs());
    for (when, (round, held)) in [("start", looks[0]), ("middle", middle), ("end", end)] {
        println!("{when}, round {round}: {held:?}");
    }
    if done >= LONG_ROUNDS {
        let growth_kib = end.1.rss_kib.saturating_sub(middle.1.rss_kib);
        assert!(growth_kib <= GROWTH_KIB_MAX, "{growth_kib} KiB more than in the middle");
    }
    assert_eq!(soak.served.end(), Some(0));
}
