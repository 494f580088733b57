//! The daemon as its clients find it: who holds up whom, and what is left
//! after its end.

use crate::common;
use crate::nbd::client as nbd;

use common::daemon::{Running, loopback};
use common::{PATIENCE, dir, image};
use seekway_hostd::config::{CacheSize, Config, DiskConfig, PREFETCHER_DEFAULT, SocketConfig};
use seekway_hostd::control::{ClientError, Request};
use seekway_hostd::daemon::{Daemon, Listener, StartOptions};
use seekway_hostd::images::{Image, OpenOptions};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Most clients of the control socket, and of metrics.
const CLIENTS_MAX: usize = 64;

fn with_cache(size: CacheSize) -> Config {
    Config { cache: Some(size), ..Config::default() }
}

#[test]
fn the_prefetcher_changes_while_it_serves() {
    let cached = with_cache(CacheSize::Bytes(4 << 20));
    let daemon = Running::start(cached);
    let disks = [daemon.disk("web"), DiskConfig { cache: false, ..daemon.disk("db") }];
    for disk in disks {
        daemon.ask(&Request::Attach(Box::new(disk))).unwrap();
    }
    let status = || daemon.ask(&Request::Status {}).unwrap();
    let text = |status: &serde_json::Value| {
        status.pointer("/devices/0/cache/prefetcher").unwrap().as_str().unwrap().to_string()
    };
    assert_eq!(text(&status()), PREFETCHER_DEFAULT);
    let set = |prefetcher: &str, device: Option<&str>| {
        let device = device.map(str::to_string);
        daemon.ask(&Request::Prefetch { prefetcher: prefetcher.into(), device })
    };
    set("vio:interval=continuous,threshold=auto", None).unwrap();
    let after = status();
    assert_eq!(text(&after), "vio:interval=continuous,threshold=auto");
    assert_eq!(after.pointer("/devices/0/cache/capacity_bytes").unwrap(), 4 << 20);
    for (prefetcher, device, part) in [
        ("psychic", None, "no prefetcher 'psychic'; there are none"),
        ("vio:speed=9", None, "speed"),
        ("none", Some("sdz"), "no device 'sdz'"),
    ] {
        let error = set(prefetcher, device).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(text(&status()), "vio:interval=continuous,threshold=auto");

    let plain = Running::start(with_cache(CacheSize::Off));
    let prefetch = Request::Prefetch { prefetcher: "none".into(), device: None };
    let error = plain.ask(&prefetch).unwrap_err().to_string();
    assert!(error.contains("start it with --cache auto"), "{error}");
}

#[test]
fn bandwidth_is_measured_before_anything_is_served_and_not_later() {
    let bandwidth = |names: [&str; 2], first_cached: bool| {
        let cached = with_cache(CacheSize::Bytes(4 << 20));
        let daemon = Running::start(cached);
        for name in names {
            let mut disk = daemon.disk(name);
            disk.cache = first_cached || name != names[0];
            if name == "full" {
                std::fs::write(daemon.path("full.img"), vec![1; 8 << 20]).unwrap();
            }
            daemon.ask(&Request::Attach(Box::new(disk))).unwrap();
        }
        let status = daemon.ask(&Request::Status {}).unwrap();
        status.pointer("/devices/0/cache/bandwidth_bytes_per_s").and_then(|b| b.as_u64())
    };
    assert!(bandwidth(["full", "sparse"], true).is_some());
    assert_eq!(bandwidth(["sparse", "full"], true), None);
    // It is the device's, whether or not its first disk is cached.
    assert!(bandwidth(["full", "sparse"], false).is_some());
}

/// Wait until the daemon has hung up on this connection. It is accepted after
/// those that were made before it at the same address.
fn wait_for_end(mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("expected the connection's end, got {other:?}"),
    }
}

#[test]
fn clients_of_metrics_take_no_room_of_control() {
    let daemon = Running::start(Config { metrics: loopback(), ..Config::default() });
    let address = daemon.tcp("metrics");
    let connect = |_| TcpStream::connect(address).unwrap();
    let mut silent: Vec<TcpStream> = (0..CLIENTS_MAX).map(connect).collect();
    daemon.ask(&Request::Status {}).unwrap();
    // Nor of who asks for metrics: one of them loses its place.
    let mut asking = connect(0);
    asking.set_read_timeout(Some(PATIENCE)).unwrap();
    asking.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    asking.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    wait_for_end(silent.remove(0));
}

#[test]
fn a_client_without_room_is_told() {
    let daemon = Running::start(Config::default());
    let connect = |_| UnixStream::connect(daemon.path("control.sock")).unwrap();
    let silent: Vec<UnixStream> = (0..CLIENTS_MAX).map(connect).collect();
    let error = daemon.ask(&Request::Status {}).unwrap_err();
    assert!(matches!(&error, ClientError::Refused(text) if text.contains("64")), "{error}");
    drop(silent);
}

#[test]
fn what_is_to_be_known_of_an_image_is_told_when_it_is_attached_and_later() {
    let daemon = Running::start(Config::default());
    let disk = DiskConfig { buffered: true, ..daemon.disk("odd") };
    std::fs::write(&disk.path, [&b"QFI\xfb"[..], &[0; 4092]].concat()).unwrap();
    let other = DiskConfig { buffered: true, ..daemon.disk("plain") };
    let answer = daemon.ask(&Request::Attach(Box::new(disk))).unwrap();
    assert!(answer["warnings"][0].as_str().unwrap().contains("qcow2"), "{answer}");
    assert_eq!(daemon.ask(&Request::Attach(Box::new(other))).unwrap().get("warnings"), None);
    let status = daemon.ask(&Request::Status {}).unwrap();
    let disks = status.pointer("/devices/0/disks").unwrap();
    assert!(disks[0]["warnings"][0].as_str().unwrap().contains("qcow2"), "{disks}");
    assert_eq!((disks[0]["direct"].as_bool(), disks[1].get("warnings")), (Some(false), None));
}

#[test]
fn nothing_is_attached_after_the_end() {
    let mut daemon = Running::start(Config::default());
    let disk = daemon.disk("late");
    daemon.end();
    let error = daemon.host.attach(&disk).unwrap_err().to_string();
    assert!(error.contains("ending"), "{error}");
    assert!(!daemon.path("late.nbd").exists());
}

#[test]
fn clients_that_have_not_said_which_disk_take_no_room_of_disks() {
    seekway_hostd::daemon::prepare_process(); // for as many descriptors
    let daemon = Running::start(Config { nbd: loopback(), ..Config::default() });
    daemon.host.attach(&daemon.disk("web")).unwrap();
    let address = daemon.tcp("nbd");
    let connect = |_| TcpStream::connect(address).unwrap();
    let greeted = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read(&mut [0; 18]).is_ok_and(|len| len > 0).then_some(stream)
    };
    // More than are let in: the last ones are, and the first are hung up on.
    let mut silent: Vec<TcpStream> = (0..400).map(connect).map(|s| greeted(s).unwrap()).collect();
    wait_for_end(silent.remove(0));
    assert!(nbd_client(address, "web").is_some());
    let mut own = UnixStream::connect(daemon.path("web.nbd")).unwrap();
    own.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 18];
    own.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"NBDMAGIC"));
}

#[test]
fn a_file_is_not_grown_where_its_disk_may_not_grow() {
    let emulate = Some("seagate-1tb-7200".to_string());
    let daemon = Running::start(Config { emulate, ..Config::default() });
    let first = DiskConfig { lba: Some(0), ..daemon.disk("first") };
    let next = DiskConfig { lba: Some(2048), ..daemon.disk("next") };
    daemon.host.attach(&first).unwrap();
    daemon.host.attach(&next).unwrap();
    daemon.host.resize("first", Some(2 << 20), false).unwrap_err();
    assert_eq!(std::fs::metadata(&first.path).unwrap().len(), 1 << 20);
    assert_eq!(daemon.host.resize("next", Some(2 << 20), false).unwrap(), 2 << 20);
}

#[test]
fn one_bad_image_keeps_no_other_from_being_served() {
    let images = tempfile::tempdir().unwrap();
    let image = |name: &str| image(&images, name, 1 << 20);
    let good = DiskConfig::new("good", image("good.img"));
    let bad = DiskConfig::new("bad", images.path().join("bad.img"));
    let disks = vec![bad.clone(), good];
    let daemon = Running::start(Config { disks, ..Config::default() });
    let status = || daemon.ask(&Request::Status {}).unwrap();
    let names = |status: &serde_json::Value| {
        let disks = status.pointer("/devices/0/disks").unwrap().as_array().unwrap().clone();
        disks.iter().map(|d| d["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let before = status();
    assert_eq!(names(&before), ["good"]);
    assert_eq!(before["failed"][0]["name"], "bad");
    assert!(before["failed"][0]["error"].as_str().unwrap().contains("bad.img"), "{before}");
    assert!(!daemon.path("bad.vhost").exists());
    let metrics = || daemon.ask(&Request::Metrics {}).unwrap()["text"].to_string();
    assert!(metrics().contains("seekway_disk_failed{disk=\\\"bad\\\"} 1"), "{}", metrics());

    let retry = |disk: &str| daemon.ask(&Request::Retry { disk: disk.into() });
    retry("bad").unwrap_err();
    assert!(retry("good").unwrap_err().to_string().contains("give its path"));
    image("bad.img");
    assert_eq!(retry("bad").unwrap()["capacity_bytes"], 1 << 20);
    let after = status();
    assert_eq!(names(&after).len(), 2);
    assert_eq!(after.get("failed"), None);

    // With none that is good there is nothing to serve.
    let disks = vec![DiskConfig::new("none", images.path().join("none.img"))];
    let failed = Daemon::start(Config { disks, ..Config::default() }, StartOptions::default());
    assert!(failed.err().unwrap().to_string().contains("none.img"));
}

/// Waits for something that the daemon does in the background.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An image of which nobody can think that it is being copied.
fn old_image(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(1 << 20).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

#[test]
fn an_image_that_comes_late_is_served_without_a_command() {
    let images = tempfile::tempdir().unwrap();
    let disk = |name: &str| DiskConfig::new(name, images.path().join(format!("{name}.img")));
    old_image(&disk("good").path);
    std::fs::create_dir(&disk("folder").path).unwrap();
    let disks = ["late", "gone", "folder", "good"].map(disk).to_vec();
    let mut daemon = Running::start(Config { disks, ..Config::default() });
    let status = || daemon.ask(&Request::Status {}).unwrap();
    let waiting = || {
        let failed = daemon.host.failed().into_iter();
        failed.map(|f| (f.config.name, f.is_retried)).collect::<Vec<_>>()
    };
    let all = [("folder", false), ("gone", true), ("late", true)];
    assert_eq!(waiting(), all.map(|(name, retried)| (name.to_string(), retried)));
    assert_eq!(status()["failed"][1]["retried"], true);
    // One that is detached is not waited for.
    daemon.ask(&Request::Detach { disk: "gone".into() }).unwrap();
    assert!(daemon.ask(&Request::Detach { disk: "gone".into() }).is_err());
    assert!(daemon.host.disk("late").is_err() && !daemon.path("late.vhost").exists());
    old_image(&disk("gone").path);
    old_image(&disk("late").path);
    wait_until("it is served", || daemon.host.disk("late").is_ok());
    wait_until("its sockets are there", || daemon.path("late.nbd").exists());
    assert_eq!(flush(&daemon, "late"), 0);
    assert_eq!(waiting(), [("folder".to_string(), false)]);
    assert!(daemon.host.disk("gone").is_err());
    // To ask for it comes too late, and is no mistake; its disk is as good as any.
    let again = daemon.ask(&Request::Retry { disk: "late".into() }).unwrap();
    assert_eq!(again["capacity_bytes"], 1 << 20);
    daemon.ask(&Request::Detach { disk: "late".into() }).unwrap();
    daemon.ask(&Request::Attach(Box::new(disk("late")))).unwrap();
    daemon.end();
}

#[test]
fn a_file_that_somebody_writes_is_not_served_by_itself() {
    let images = tempfile::tempdir().unwrap();
    let disk = |name: &str| DiskConfig::new(name, images.path().join(format!("{name}.img")));
    old_image(&disk("good").path);
    let disks = ["copy", "good"].map(disk).to_vec();
    let daemon = Running::start(Config { disks, ..Config::default() });
    let file = File::create(&disk("copy").path).unwrap();
    file.set_len(1 << 20).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    let error = || daemon.host.failed()[0].error.clone();
    wait_until("it is seen", || error().contains("somebody writes to it"));
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    wait_until("it is served", || daemon.host.disk("copy").is_ok());
}

/// An image that another program has is waited for, though the daemon has no other.
#[test]
fn a_locked_image_is_served_when_it_is_free() {
    let images = tempfile::tempdir().unwrap();
    let path = images.path().join("web.img");
    old_image(&path);
    let other = Image::open(&path, &OpenOptions::writing()).unwrap();
    let disks = vec![DiskConfig::new("web", path)];
    // One whose socket is the service manager's: who connects meanwhile waits.
    let socket = images.path().join("web.nbd");
    let listener = Listener::unix(&socket).unwrap();
    let sockets = [("web.nbd".to_string(), listener)].into();
    let daemon = Daemon::start(
        Config { disks, control: None, ..Config::default() },
        StartOptions { sockets, ..StartOptions::default() },
    );
    let daemon = daemon.unwrap();
    let (host, stopper) = (daemon.host().clone(), daemon.stopper().unwrap());
    let failed = host.failed();
    assert!(failed[0].is_retried && failed[0].error.contains("locked"), "{failed:?}");
    let thread = std::thread::spawn(move || daemon.run().unwrap());
    let early = UnixStream::connect(&socket).unwrap();
    assert!(host.detach("else").is_err());
    drop(other);
    early.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 18];
    (&early).read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"NBDMAGIC"));
    stopper.stop();
    thread.join().unwrap();
}

/// All are taken, and would go on for long: they end with the pieces that are under way.
#[test]
fn discards_end_with_the_disk_and_with_the_daemon() {
    const TRIMS: u64 = 1000;
    const SHUTDOWN: u32 = 108;
    let disk = |daemon: &Running| DiskConfig::new("long", image(&daemon.folder, "long", 64 << 30));
    for is_detach in [true, false] {
        let mut daemon = Running::start(with_cache(CacheSize::Off));
        daemon.host.attach(&disk(&daemon)).unwrap();
        let mut client = nbd::Client::open(&daemon.path("long.nbd"));
        for cookie in 0..TRIMS {
            let place = (cookie % 15) << 32;
            client.send(&nbd::request(nbd::TRIM, cookie, place, !4095));
        }
        // It is taken after all of them, and waits for none.
        client.send(&nbd::request(nbd::READ, TRIMS, 63 << 30, 512));
        let mut answered = 0;
        loop {
            answered += 1;
            match client.reply() {
                (0, TRIMS) => break,
                (error, cookie) => assert_eq!(error, 0, "{cookie}"),
            }
        }
        client.data(512);
        if is_detach {
            daemon.host.detach("long").unwrap();
            // Nothing of it is left.
            daemon.host.attach(&disk(&daemon)).unwrap();
            continue;
        }
        daemon.end();
        let rest = client.rest();
        let errors: Vec<u32> =
            rest.chunks(16).map(|r| u32::from_be_bytes(r[4..8].try_into().unwrap())).collect();
        assert_eq!(errors.len() as u64 + answered - 1, TRIMS, "each has an answer");
        assert!(errors.iter().all(|error| [0, SHUTDOWN].contains(error)), "{errors:?}");
        assert!(errors.contains(&SHUTDOWN));
    }
}

#[test]
fn a_daemon_ends_while_an_image_is_waited_for() {
    let images = tempfile::tempdir().unwrap();
    let good = image(&images, "good.img", 1 << 20);
    let late = DiskConfig::new("late", images.path().join("late.img"));
    let disks = vec![late.clone(), DiskConfig::new("good", good.clone())];
    let mut daemon = Running::start(Config { disks, ..Config::default() });
    daemon.end();
    old_image(&late.path);
    assert!(daemon.host.retry("late", None).unwrap_err().to_string().contains("ending"));
    // Nothing of it is open any more, whatever the process does.
    Image::open(&good, &OpenOptions::writing()).unwrap();
}

/// The error of a flush by a client of NBD at the disk's own socket.
fn flush(daemon: &Running, disk: &str) -> u32 {
    let mut client = nbd::Client::open(&daemon.path(&format!("{disk}.nbd")));
    client.send(&nbd::request(nbd::FLUSH, 0, 0, 0));
    client.reply().0
}

#[test]
fn a_flush_that_failed_is_remembered_until_somebody_accepts_it() {
    let folder = dir();
    let disk = |name: &str, fault: Option<&str>| {
        let path = folder.path().join(format!("{name}.img"));
        File::options().create(true).append(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        DiskConfig { fault: fault.map(str::to_string), ..DiskConfig::new(name, path) }
    };
    let (bad, good) = (disk("bad", Some("eio:op=flush,count=1")), disk("good", None));
    let (sockets, disks) = (tempfile::tempdir().unwrap(), vec![bad, good.clone()]);
    let mut daemon = Running::start_in(sockets, Config { disks, ..Config::default() });
    assert_eq!([flush(&daemon, "bad"), flush(&daemon, "bad")], [5, 5]);
    assert_eq!(flush(&daemon, "good"), 0);
    // Not before it was marked, though nobody waits for that.
    daemon.host.detach("bad").unwrap();
    let again = disk("bad", None);
    let refused = daemon.host.attach(&again).unwrap_err().to_string();
    assert!(refused.contains("accept-lost-writes"), "{refused}");
    daemon.end();

    // The next daemon, as a service manager starts it.
    let sockets = std::mem::replace(&mut daemon.folder, tempfile::tempdir().unwrap());
    drop(daemon);
    let disks = vec![again.clone(), good];
    let daemon = Running::start_in(sockets, Config { disks, ..Config::default() });
    assert_eq!(daemon.host.failed().len(), 1);
    assert_eq!(flush(&daemon, "good"), 0);
    let accepting = DiskConfig { accept_lost_writes: true, ..again.clone() };
    let told = daemon.host.attach(&accepting).unwrap().warnings;
    assert!(told.iter().any(|warning| warning.contains("accepted")), "{told:?}");
    assert_eq!(flush(&daemon, "bad"), 0);
    daemon.host.detach("bad").unwrap();
    daemon.host.attach(&again).unwrap();
}

#[test]
fn disks_have_no_nbd_sockets_where_they_are_off() {
    let sockets = SocketConfig { nbd: Some(false), mode: Some(0o666), ..SocketConfig::default() };
    let daemon = Running::start(Config { sockets, ..Config::default() });
    daemon.host.attach(&daemon.disk("off")).unwrap();
    let mut on = daemon.disk("on");
    (on.sockets.nbd, on.sockets.mode) = (Some(true), Some(0o640));
    daemon.host.attach(&on).unwrap();
    let mode = |name: &str| {
        let about = std::fs::symlink_metadata(daemon.path(name)).ok()?;
        Some(about.permissions().mode() & 0o777)
    };
    assert_eq!((mode("off.vhost"), mode("off.nbd")), (Some(0o666), None));
    assert_eq!((mode("on.vhost"), mode("on.nbd")), (Some(0o640), Some(0o640)));
    assert_eq!(mode("control.sock"), Some(0o600), "never others'");
}

/// A client of NBD at the address of all disks that has asked for one; `None` when it may not.
fn nbd_client(address: SocketAddr, disk: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 18]).ok()?;
    let mut asked = vec![0, 0, 0, 3];
    asked.extend(b"IHAVEOPT\0\0\0\x01");
    asked.extend((disk.len() as u32).to_be_bytes());
    asked.extend(disk.as_bytes());
    stream.write_all(&asked).ok()?;
    stream.read_exact(&mut [0; 10]).ok()?;
    Some(stream)
}

#[test]
fn clients_of_a_disk_take_no_room_of_its_vmm() {
    seekway_hostd::daemon::prepare_process(); // for as many descriptors
    let daemon = Running::start(Config { nbd: loopback(), ..Config::default() });
    daemon.host.attach(&daemon.disk("web")).unwrap();
    daemon.host.attach(&daemon.disk("db")).unwrap();
    let address = daemon.tcp("nbd");
    let idle: Vec<TcpStream> =
        (0..200).map(|_| nbd_client(address, "web")).map_while(|client| client).collect();
    assert!((1..200).contains(&idle.len()), "{} clients", idle.len());
    assert!(nbd_client(address, "db").is_some(), "another disk has places of its own");
    // GET_FEATURES of vhost-user: request 1, version 1, no payload; and its reply.
    let mut vmm = UnixStream::connect(daemon.path("web.vhost")).unwrap();
    vmm.set_read_timeout(Some(PATIENCE)).unwrap();
    vmm.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    vmm.read_exact(&mut [0; 20]).unwrap();
}

/// The answer to a line with a file beside it.
fn hand_over(daemon: &Running, line: &str, file: Option<&File>) -> serde_json::Value {
    let stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let line = format!("{line}\n");
    match file {
        Some(file) => _ = stream.send_with_fd(line.as_bytes(), file.as_raw_fd()).unwrap(),
        None => (&stream).write_all(line.as_bytes()).unwrap(),
    }
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn an_image_that_is_handed_over_is_open_for_what_is_done_with_it() {
    let daemon = Running::start(with_cache(CacheSize::Off));
    let path = daemon.disk("a").path;
    let attach = |options: &str, file: Option<&File>| {
        let line = format!(r#"{{"command":"attach","name":"a","path":"anything"{options}}}"#);
        hand_over(&daemon, &line, file)
    };
    let open = |options: &mut std::fs::OpenOptions| options.open(&path).unwrap();
    let reading = open(File::options().read(true));
    let writing = open(File::options().read(true).write(true));
    let appending = open(File::options().read(true).append(true));
    let folder = File::open(daemon.folder.path()).unwrap();
    for (file, part) in [
        (&reading, "open for reading and writing"),
        (&appending, "open for reading and writing, not for appending"),
        (&folder, "is a directory"),
    ] {
        let error = attach("", Some(file))["error"].to_string();
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    let size = |answer: serde_json::Value| answer["result"]["capacity_bytes"].as_u64();
    assert_eq!(size(attach(r#","read_only":true"#, Some(&reading))), Some(1 << 20));
    daemon.ask(&Request::Detach { disk: "a".into() }).unwrap();
    drop(reading); // the lock stays as long as the file is open anywhere
    // One that comes with another line is closed, and not kept for the next.
    let stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
    let status = &b"{\"command\":\"status\"}\n"[..];
    stream.send_with_fd(status, writing.as_raw_fd()).unwrap();
    (&stream)
        .write_all(b"{\"command\":\"attach\",\"name\":\"a\",\"path\":\"anything\"}\n")
        .unwrap();
    let answers: Vec<String> =
        BufReader::new(&stream).lines().take(2).map(Result::unwrap).collect();
    assert!(answers[0].contains("result") && answers[1].contains("no such file"), "{answers:?}");
    assert_eq!(size(attach("", Some(&writing))), Some(1 << 20));
}

#[test]
fn a_confined_daemon_opens_no_other_images_by_their_path() {
    let daemon = Running::start(with_cache(CacheSize::Off));
    if seekway_hostd::sandbox::abi().is_none() {
        return seekway_testing::skip("a kernel with landlock");
    }
    let path = daemon.disk("a").path;
    let line = format!(r#"{{"command":"attach","name":"a","path":"{}"}}"#, path.display());
    let error = hand_over(&daemon, &line, None)["error"].to_string();
    for part in ["disk a", "Permission denied", "seekway ctl attach", "--images"] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
}
