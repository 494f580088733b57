//! Rate limits as guests find them: over all connections of a disk together,
//! after a reconnect, in groups, and while they change.
//!
//! Most tests limit to one byte a second: the first request passes, and the next
//! would pass an hour later, so that what waits is known exactly. Where a rate is
//! tested, it is as an upper bound over the test's own measured time, which a busy
//! machine makes longer.

use crate::common;
use crate::nbd::client;

use client::{READ, request};
use common::bench::{Bench, take};
use common::daemon::Running;
use common::{Ask, dir, image};
use seekway_core::units::Nanos;
use seekway_hostd::config::{Config, DiskConfig, GroupConfig};
use seekway_hostd::control::{LimitRequest, Request};
use seekway_hostd::reactor::Message;
use seekway_stack::stack::limit::{GroupName, Limits};
use std::time::Instant;
use tempfile::TempDir;

/// Bytes that a request of these tests reads.
const LEN: u64 = 4096;

fn set_group(bench: &Bench, name: &str, limits: &str) {
    let (name, limits) = (GroupName::new(name).unwrap(), Limits::parse(limits).unwrap());
    bench.rig.handle.ask(|reply| Message::SetGroup(name, limits, reply)).unwrap();
}

fn reads(count: u64) -> Vec<Ask> {
    (0..count).map(|n| Ask::read(n * LEN, LEN)).collect()
}

#[test]
fn a_rate_holds_over_all_ports_of_a_disk() {
    let bench = Bench::new();
    // Before the reactor reads the clock with which it counts the first request.
    let began = Instant::now();
    let disk = bench.limited_disk("a", "iops=100");
    let ports = [bench.rig.open(disk), bench.rig.open(disk)];
    ports.iter().for_each(|port| port.ask(reads(30)));
    ports.iter().for_each(|port| take(port, 30));
    let most = 100.0 * began.elapsed().as_secs_f64() + 10.0 + 1.0;
    // The bucket counts whole nanoseconds.
    assert!(60.0 <= most + 0.01, "60 requests passed where {most:.3} may");
}

#[test]
fn a_reconnect_brings_no_new_burst() {
    let bench = Bench::new();
    // Before the reactor reads the clock with which it counts the first request.
    let began = Instant::now();
    let disk = bench.limited_disk("a", "iops=100");
    for _ in 0..10 {
        let port = bench.rig.open(disk);
        port.ask(reads(5));
        take(&port, 5);
        port.close();
    }
    let most = 100.0 * began.elapsed().as_secs_f64() + 10.0 + 1.0;
    assert!(50.0 <= most, "50 requests passed where {most:.1} may");
}

#[test]
fn limits_change_while_requests_wait_and_flushes_never_do() {
    let bench = Bench::new();
    let disk = bench.limited_disk("a", "bandwidth=1");
    let port = bench.rig.open(disk);
    port.ask(reads(20));
    take(&port, 1);
    assert_eq!(bench.status(disk).limited, 19);
    port.ask(vec![Ask::flush()]);
    take(&port, 1);
    // Another limit lets one pass, since what was owed under the old one is not.
    bench.limit(disk, "bandwidth=2");
    take(&port, 1);
    let status = bench.status(disk);
    assert_eq!((status.limited, status.limits.to_string().as_str()), (18, "bandwidth=2"));
    assert!(status.limited_time > Nanos::ZERO);
    bench.limit(disk, "none");
    take(&port, 18);
    let status = bench.status(disk);
    assert_eq!((status.limited, status.outstanding), (0, 0));
}

#[test]
fn a_group_holds_over_its_disks_and_changes() {
    let bench = Bench::new();
    set_group(&bench, "t", "bandwidth=1");
    let disks = ["a", "b"].map(|name| bench.limited_disk(name, "group=t"));
    let other = bench.limited_disk("c", "none");
    let ports = disks.map(|disk| bench.rig.open(disk));
    ports[0].ask(reads(3));
    take(&ports[0], 1);
    ports[1].ask(reads(3));
    let free = bench.rig.open(other);
    free.ask(reads(3));
    take(&free, 3);
    assert_eq!(disks.map(|disk| bench.status(disk).limited), [2, 3]);
    // One disk leaves, the other stays.
    bench.limit(disks[1], "none");
    take(&ports[1], 3);
    assert_eq!(disks.map(|disk| bench.status(disk).limited), [2, 0]);
    set_group(&bench, "t", "none");
    take(&ports[0], 2);
}

#[test]
fn a_disk_whose_requests_wait_for_hours_can_be_detached() {
    let bench = Bench::new();
    let disk = bench.limited_disk("a", "bandwidth=1");
    let port = bench.rig.open(disk);
    port.ask(reads(20));
    take(&port, 1);
    assert_eq!(bench.status(disk).limited, 19);
    bench.rig.handle.ask(|reply| Message::DetachDisk(disk, reply)).unwrap().unwrap();
    assert!(bench.rig.status().disks.is_empty());
}

/// A daemon with groups.
fn with_groups(groups: &[&str]) -> Running {
    let groups = groups.iter().map(|g| GroupConfig::parse(g).unwrap()).collect();
    Running::start(Config { groups, ..Config::default() })
}

/// A disk with these options, its image in `folder`.
fn disk(folder: &TempDir, name: &str, options: &str) -> DiskConfig {
    let path = image(folder, &format!("{name}.img"), 1 << 20);
    DiskConfig::parse(&format!("{name}={}{options}", path.display())).unwrap()
}

fn limit(daemon: &Running, disk: &str, limits: &str) -> Result<(), String> {
    let request = LimitRequest::new(Some(disk), None, limits).unwrap();
    daemon.ask(&Request::Limit(Box::new(request))).map(drop).map_err(|e| e.to_string())
}

/// Status of a disk.
fn status(daemon: &Running, disk: &str) -> serde_json::Value {
    let status = daemon.ask(&Request::Status {}).unwrap();
    let devices = status["devices"].as_array().unwrap().iter();
    let mut disks = devices.flat_map(|d| d["disks"].as_array().unwrap());
    disks.find(|d| d["name"] == disk).unwrap().clone()
}

/// Waits until `count` requests of a disk wait for its limits.
fn wait_limited(daemon: &Running, disk: &str, count: u32) {
    let until = Instant::now() + common::PATIENCE;
    while status(daemon, disk)["limited"] != count {
        assert!(Instant::now() < until, "{}", status(daemon, disk));
        std::thread::yield_now();
    }
}

#[test]
fn a_limit_holds_over_nbd_connections_and_is_seen_and_lifted_by_control() {
    let daemon = with_groups(&[]);
    let disk = disk(&daemon.folder, "web", ",bandwidth=1");
    daemon.ask(&Request::Attach(Box::new(disk))).unwrap();
    let socket = daemon.path("web.nbd");
    let read = |cookie| request(READ, cookie, 0, LEN as u32);
    let mut first = client::Client::open(&socket);
    first.send(&read(1));
    assert_eq!(first.reply(), (0, 1));
    drop(first.data(LEN as usize));
    drop(first);
    // Two after a reconnect: for neither is anything left.
    let mut both = [client::Client::open(&socket), client::Client::open(&socket)];
    for connection in &mut both {
        connection.send(&read(2));
    }
    wait_limited(&daemon, "web", 2);
    assert_eq!(status(&daemon, "web")["limits"], "bandwidth=1");
    assert_eq!(status(&daemon, "web")["ops"]["read"]["requests"], 1);
    limit(&daemon, "web", "iops=100000").unwrap();
    for connection in &mut both {
        assert_eq!(connection.reply(), (0, 2));
    }
    let status = status(&daemon, "web");
    assert_eq!((&status["limits"], &status["limited"]), (&"iops=100000".into(), &0.into()));
    assert!(status["limited_ms"].as_f64().unwrap() > 0.0);
    let now = daemon.host.disk("web").unwrap().rate_limits();
    assert_eq!(now.to_string(), "iops=100000");
    let metrics = daemon.ask(&Request::Metrics {}).unwrap()["text"].to_string();
    assert!(metrics.contains("seekway_disk_limited_requests{"), "{metrics}");
}

/// `detach` hangs up on the clients first, and each of their threads waits for its requests.
#[test]
fn clients_whose_requests_wait_for_hours_do_not_keep_their_disk() {
    let daemon = with_groups(&["t:bandwidth=1"]);
    for limits in ["bandwidth=1", "group=t"] {
        let disk = disk(&daemon.folder, "web", &format!(",{limits}"));
        daemon.host.attach(&disk).unwrap();
        let mut client = client::Client::open(&daemon.path("web.nbd"));
        (0..3).for_each(|cookie| client.send(&request(READ, cookie, 0, LEN as u32)));
        wait_limited(&daemon, "web", 2);
        daemon.host.detach("web").unwrap();
    }
}

#[test]
fn a_group_is_there_and_lies_on_one_device() {
    use std::os::unix::fs::MetadataExt;
    let daemon = with_groups(&["t:iops=5"]);
    let here = dir();
    let attach = |disk| {
        let attached = daemon.ask(&Request::Attach(Box::new(disk)));
        attached.map(drop).map_err(|e| e.to_string())
    };
    attach(disk(&here, "a", ",group=t")).unwrap();
    let error = attach(disk(&here, "b", ",group=u")).unwrap_err();
    assert!(error.contains("no group 'u'; there are t"), "{error}");
    attach(disk(&here, "b", "")).unwrap();
    limit(&daemon, "b", "group=t").unwrap();
    let Ok(there) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let device = |folder: &TempDir| std::fs::metadata(folder.path()).unwrap().dev();
    if device(&here) == device(&there) {
        eprintln!("skipped: the build lies in /dev/shm");
        return;
    }
    let devices = daemon.host.devices().len();
    let error = attach(disk(&there, "c", ",group=t")).unwrap_err();
    assert!(error.contains("disk c: group 't' has disk a on"), "{error}");
    assert_eq!(daemon.host.devices().len(), devices, "no reactor is left of it");
    attach(disk(&there, "c", "")).unwrap();
    let error = limit(&daemon, "c", "group=t").unwrap_err();
    assert!(error.contains("make a group for each device"), "{error}");
    assert_eq!(status(&daemon, "c")["limits"], "none");
    // The group is free for another device once it has no disk.
    limit(&daemon, "a", "none").unwrap();
    limit(&daemon, "b", "iops=5").unwrap();
    limit(&daemon, "c", "group=t").unwrap();
}
