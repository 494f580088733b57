//! `seekway serve` and `seekway ctl` as a user runs them: what is refused and
//! how, sockets that come and go, changes while it runs.

use crate::common::{Folder, command, json, root, seekway, started};
use crate::daemon::{PATIENCE, Served, image};
use crate::process::wait_until;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

#[test]
fn wrong_arguments_are_refused() {
    let folder = Folder::new();
    let (good, absent) = (image(&folder, "a.img"), folder.arg("absent.img"));
    let listen = folder.arg("run");
    let slash = format!("a/b={good}");
    let disk = format!("a={good}");
    let other = format!("b={good}");
    let gone = format!("a={absent}");
    let (both, member) = (format!("{disk},iops=1,read_iops=1"), format!("{disk},group=t1"));
    let small = folder.file("small.img", "");
    let small = format!("a={small}");
    let long = folder.arg(&"x".repeat(200));
    let serve = |args: &[&str]| seekway(&[&["serve"], args].concat());
    for (args, part) in [
        (&["--listen", &listen, "--disk", "a"][..], "expected NAME=PATH"),
        (&["--listen", &listen, "--disk", &slash], "cannot be a disk's name"),
        (&["--listen", &listen, "--disk", &disk, "--disk", &disk], "names differ"),
        (&["--listen", &listen, "--disk", &gone], "absent.img"),
        (&["--listen", &listen, "--disk", &small], "small.img"),
        (&["--listen", &listen, "--disk", &disk, "--disk", &other], "a.img"),
        (&["--listen", &listen, "--policy", "wfq"], "no policy 'wfq'; there are fairway"),
        (&["--listen", &listen, "--policy", "cfq:quantun=1"], "no parameter 'quantun'; it has"),
        (&["--listen", &listen, "--emulate", "floppy"], "cheetah-15k5"),
        (&["--listen", &listen, "--depth", "0"], "--depth: 0: expected a number"),
        (&["--listen", &listen, "--poll", "5"], "--poll: 5: expected auto, or a time"),
        (&["--listen", &listen, "--threads", "3"], "--threads: 3: expected 1, or 2"),
        (&["--listen", &listen, "--metrics", "x"], "ADDRESS:PORT"),
        (&["--listen", &listen, "--allow-host", "http://kvm1"], "without http:// and port"),
        (&["--listen", &listen, "--allow-host", "*"], "--allow-host: *: expected a host's whole"),
        (&["--listen", &listen, "--tls-required"], "needs a certificate"),
        (&["--listen", &long, "--disk", &disk], "at most 107"),
        (&["--nbd", "127.0.0.1:0"], "nothing to serve"),
        (&["--socket-path", "s", "--disk", &disk, "--disk", &other], "serve one disk: 2"),
        (&["--socket-path", "s", "--fd", "5"], "cannot be used with"),
        (&["--fd", "900", "--disk", &disk], "not open"),
        (&["--read-only"], "--blk-file"),
        (&["--blk-file", &good, "--disk", &disk], "cannot be used with"),
        (&["--config", "absent.toml"], "absent.toml"),
        (
            &["--listen", &listen, "--disk", &both],
            "disk a: iops and read_iops contradict: limit reads and writes together",
        ),
        (&["--listen", &listen, "--disk", &member], "disk a: no group 't1'; give it its limits"),
        (&["--listen", &listen, "--group", "t1:iops_burst=5"], "iops_burst needs iops"),
    ] {
        let ran = serve(args);
        assert!(!ran.err.contains("panicked"), "{args:?}: {}", ran.err);
        assert_eq!(ran.code, Some(2), "{args:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(part), "{args:?}: no {part:?} in {}", ran.err);
    }
    for (args, part) in [
        (&["status"][..], "is `seekway serve` running"),
        (&["weight", "a", "0"], "invalid value"),
        (&["resize", "a", "20Q"], "20GiB"),
        (&["attach", "a/b=x"], "cannot be a disk's name"),
    ] {
        let ran = seekway(&[&["ctl", "--socket", &absent], args].concat());
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(part), "{args:?}: no {part:?} in {}", ran.err);
    }
}

#[test]
fn a_configuration_is_checked_and_described() {
    let folder = Folder::new();
    image(&folder, "web.img");
    let text = "policy = \"cfq\"\nlisten = \"run\"\nmetrics = \"127.0.0.1:9187\"\n\
                [[disk]]\nname = \"web\"\npath = \"web.img\"\nweight = 3\n";
    let good = folder.file("good.toml", text);
    let told = seekway(&["serve", "--config", &good, "--check-config", "--depth", "7"]).ok();
    for part in ["web.img, weight 3", "run/web.vhost", "policy: cfq", "depth: 7", "control.sock"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    assert!(!folder.path("run").exists(), "a check leaves nothing behind");
    let limited = format!("db={},guest_memory=1GiB,iops=5,group=t1", folder.arg("web.img"));
    let group = ["--group", "t1:bandwidth=300MiB", "--disk", &limited];
    let told = seekway(&[&["serve", "--check-config"], &group[..]].concat()).ok();
    let memory = "at most 1073741824 bytes of its guest's memory";
    for part in [memory, "limits iops=5,group=t1", "group t1: limits bandwidth=300MiB"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let bad = folder.file("bad.toml", &format!("{text}[[disk]]\nname = \"x\"\npth = \"y\"\n"));
    seekway(&["serve", "--config", &bad, "--check-config"]).refused(&["bad.toml:8", "path"]);
    let bad = folder.file("bad.toml", &text.replace("web.img", "gone.img"));
    seekway(&["serve", "--config", &bad, "--check-config"]).refused(&["gone.img", "disk web"]);
    let bad = folder.file("bad.toml", &text.replace("cfq", "cfk"));
    seekway(&["serve", "--config", &bad, "--check-config"]).refused(&["bad.toml:1", "'cfk'"]);
}

#[test]
fn it_is_a_back_end_by_the_conventions() {
    let capabilities = json(&seekway(&["serve", "--print-capabilities"]).ok());
    assert_eq!(capabilities["type"], "block");
    assert_eq!(capabilities["features"], serde_json::json!(["read-only", "blk-file"]));
    let descriptor = root().join("share/qemu/vhost-user/50-seekway.json");
    let descriptor = json(&std::fs::read_to_string(descriptor).expect("it is there"));
    assert_eq!(descriptor["type"], "block");
    // By the name that the conventions give, as a link.
    let folder = Folder::new();
    let link = folder.path("vhost-user-blk");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_seekway"), &link).expect("a link");
    let output = std::process::Command::new(&link).arg("--print-capabilities").output();
    assert!(output.expect("it starts").status.success());
    // And it serves the one file.
    let (image, socket) = (image(&folder, "a.img"), folder.arg("a.sock"));
    let args = ["serve", "--blk-file", &image, "--read-only", "--socket-path", &socket];
    let served = Served::with(&args, String::new());
    drop(UnixStream::connect(&socket).expect("it listens"));
    assert_eq!(served.end(), Some(0));
    assert!(!folder.path("a.sock").exists());
}

/// The program under a service manager that gives it `socket`, for the process `pid` as the
/// shell writes it, and hears of it at `notify`.
fn managed(args: &[&str], socket: UnixListener, pid: &str, notify: &str) -> Served {
    // The shell moves the socket to where it belongs, descriptor 3.
    let script = format!("export LISTEN_PID={pid}; exec \"$0\" \"$@\" 3<&0 0</dev/null");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_seekway"), "serve"]).args(args);
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "web.nbd").env("NOTIFY_SOCKET", notify);
    command.stdin(OwnedFd::from(socket)).env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    Served::run(command, String::new())
}

#[test]
fn a_service_manager_opens_its_sockets_and_hears_of_it() {
    let folder = Folder::new();
    let notify = UnixDatagram::bind(folder.path("notify")).expect("a socket");
    notify.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let heard = || {
        let mut text = [0; 64];
        let len = notify.recv(&mut text).expect("word of the daemon");
        String::from_utf8_lossy(&text[..len]).trim().to_string()
    };
    let disk = format!("web={}", image(&folder, "web.img"));
    let socket = UnixListener::bind(folder.path("web.sock")).expect("a socket");
    let served = managed(&["--disk", &disk], socket, "$$", &folder.arg("notify"));
    assert_eq!(heard(), "READY=1");
    let mut client = UnixStream::connect(folder.path("web.sock")).expect("it listens");
    let mut greeting = [0; 8];
    client.read_exact(&mut greeting).expect("NBD's greeting");
    assert_eq!(&greeting, b"NBDMAGIC");
    drop(client);
    assert_eq!(served.end(), Some(0));
    assert_eq!(heard(), "STOPPING=1");

    // Sockets that were meant for another process are not taken.
    let socket = UnixListener::bind(folder.path("other.sock")).expect("a socket");
    let run = folder.arg("run");
    let args = ["--disk", &disk, "--listen", &run];
    let served = managed(&args, socket, "1", &folder.arg("notify"));
    assert_eq!(heard(), "READY=1");
    drop(UnixStream::connect(folder.path("run/web.nbd")).expect("a socket of its own"));
    assert_eq!(served.end(), Some(0));
}

#[test]
fn a_service_managers_watchdog_hears_of_it_while_its_reactors_turn() {
    let folder = Folder::new();
    let notify = UnixDatagram::bind(folder.path("notify")).expect("a socket");
    notify.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut command = Command::new(env!("CARGO_BIN_EXE_seekway"));
    let (disk, run) = (format!("web={}", image(&folder, "web.img")), folder.arg("run"));
    command.args(["serve", "--disk", &disk, "--listen", &run]);
    command.env("NOTIFY_SOCKET", folder.arg("notify")).env("WATCHDOG_USEC", "200000");
    command.env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    let served = Served::run(command, String::new());
    let mut text = [0; 64];
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let len = notify.recv(&mut text).expect("word of the daemon");
        assert_eq!(String::from_utf8_lossy(&text[..len]).trim(), expected);
    }
    assert_eq!(served.end(), Some(0));
}

#[test]
fn sockets_come_with_it_and_go_with_it() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "pregather"]);
    let run = folder.path("run");
    assert_eq!(std::fs::metadata(&run).expect("made").permissions().mode() & 0o777, 0o700);
    for name in ["web.vhost", "web.nbd", "db.vhost", "db.nbd", "control.sock"] {
        let about = std::fs::metadata(run.join(name)).expect(name);
        assert_eq!(about.permissions().mode() & 0o777, 0o600, "{name}");
        drop(UnixStream::connect(run.join(name)).expect(name));
    }
    let table = served.ctl(&["status"]).ok();
    for part in ["pregather", "web", "db", "weight"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let status = served.status();
    let device = &status["devices"][0];
    assert_eq!(device["policy"], "pregather");
    assert_eq!(device["disks"][1]["weight"], 4);
    assert_eq!(device["disks"][0]["capacity_bytes"], 16 << 20);
    assert_eq!(served.end(), Some(0));
    assert_eq!(std::fs::read_dir(&run).expect("it stays").count(), 0, "sockets are left");
}

#[test]
fn policies_and_weights_change_while_it_runs() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "noop"]);
    served.ctl(&["policy", "cfq:quantum=8"]).ok();
    let status = served.status();
    let device = status["devices"][0]["name"].as_str().expect("a name").to_string();
    assert_eq!(status["devices"][0]["policy"], "cfq:quantum=8");
    served.ctl(&["policy", "deadline", "--device", &device]).ok();
    served.ctl(&["policy", "wfq"]).refused(&["no policy 'wfq'; there are fairway"]);
    served.ctl(&["policy", "cfq:quantun=8"]).refused(&["no parameter 'quantun'"]);
    served.ctl(&["policy", "cfq", "--device", "floppy"]).refused(&["no device 'floppy'", &device]);
    assert_eq!(served.status()["devices"][0]["policy"], "deadline", "the old one stays");
    served.ctl(&["weight", "web", "7"]).ok();
    assert_eq!(served.status()["devices"][0]["disks"][0]["weight"], 7);
    served.ctl(&["weight", "wbe", "7"]).refused(&["no disk 'wbe'; there are db, web"]);
    assert_eq!(served.end(), Some(0));
}

#[test]
fn limits_change_while_it_runs() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--group", "t1:bandwidth=300MiB"]);
    let limits = || {
        let status = served.status();
        let disks = status["devices"][0]["disks"].as_array().expect("a list").clone();
        let of = |disk: &serde_json::Value| disk["limits"].as_str().expect("text").to_string();
        let group = status["groups"]["t1"].as_str().expect("text").to_string();
        [of(&disks[0]), of(&disks[1]), group]
    };
    assert_eq!(limits(), ["none", "none", "bandwidth=300MiB"]);
    served.ctl(&["limit", "web", "iops=2000,iops_burst=8000,group=t1"]).ok();
    served.ctl(&["limit", "--group", "t1", "iops=5"]).ok();
    let burst = "iops=2000,iops_burst=8000,group=t1";
    assert_eq!(limits(), [burst, "none", "iops=5"]);
    let table = served.ctl(&["status"]).ok();
    for part in ["Limits", burst, "group t1: iops=5"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    for (args, part) in [
        (&["web", "iops=1,group=t2"][..], "no group 't2'; there are t1"),
        (&["--group", "t2", "iops=1"], "no group 't2'; there are t1"),
        (&["wbe", "iops=1"], "no disk 'wbe'; there are db, web"),
        (&["web", "iops=1,write_iops=1"], "iops and write_iops contradict"),
        (&["--group", "t1", "iops=1,group=t1"], "cannot be in a group"),
        (&["web", "iops=1", "--group", "t1"], "cannot be used with"),
        (&["iops=1"], "<DISK>"),
        (&["web", ""], "write none to lift all"),
    ] {
        served.ctl(&[&["limit"], args].concat()).refused(&[part]);
    }
    assert_eq!(limits(), [burst, "none", "iops=5"], "the old ones stay");
    served.ctl(&["limit", "web", "none"]).ok();
    served.ctl(&["limit", "--group", "t1", "none"]).ok();
    assert_eq!(limits(), ["none", "none", "none"]);
    let path = image(&folder, "log.img");
    served.ctl(&["attach", &format!("log={path},group=t2")]).refused(&["no group 't2'"]);
    served.ctl(&["attach", &format!("log={path},group=t1,iops=3")]).ok();
    assert_eq!(served.end(), Some(0));
}

#[test]
fn promises_are_made_changed_and_shown() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--group", "t1:weight=3"]);
    served.ctl(&["limit", "web", "reserve_iops=500,latency=2ms,weight=5,group=t1"]).ok();
    let status = served.status();
    let disks = status["devices"][0]["disks"].as_array().expect("a list");
    let web = disks.iter().find(|disk| disk["name"] == "web").expect("web is served");
    assert_eq!(web["weight"], 5, "{web}");
    assert_eq!(web["limits"], "reserve_iops=500,latency=2ms,group=t1");
    assert_eq!(status["groups"]["t1"], "weight=3");
    let table = served.ctl(&["status"]).ok();
    for part in ["Reservations and latency", "reserve_iops=500", "latency=2ms", "yes"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let metrics = served.ctl(&["metrics"]).ok();
    assert!(metrics.contains("reservation_met"), "{metrics}");
    // Another policy keeps none of it, and the status says so.
    served.ctl(&["policy", "kyber"]).ok();
    let table = served.ctl(&["status"]).ok();
    assert!(table.contains("no: policy kyber does not"), "{table}");
    for (args, part) in [
        (&["web", "reserve_iops=0"][..], "leave it out for no limit"),
        (&["web", "iops=5,reserve_iops=6"], "reserve_iops=6 is above iops=5"),
        (&["web", "latency=0"], "expected a time from 1us to 60s"),
        (&["web", "weight=0"], "expected a whole number from 1"),
        (&["--group", "t1", "latency=2ms"], "a group has none; give it to its disks"),
        (&["--group", "t1", "reserve_iops=2"], "a group has none; give it to its disks"),
    ] {
        served.ctl(&[&["limit"], args].concat()).refused(&[part]);
    }
    served.ctl(&["limit", "web", "none"]).ok();
    assert!(!served.ctl(&["status"]).ok().contains("Reservations"), "they are lifted");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn disks_come_grow_and_go_while_it_runs() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    let path = image(&folder, "log.img");
    let out = served.ctl(&["attach", &format!("log={path},weight=2,ro")]).ok();
    assert!(out.contains("16777216 bytes") && out.contains("run/log.vhost"), "{out}");
    assert!(UnixStream::connect(folder.path("run/log.nbd")).is_ok());
    let again = format!("log={path}");
    served.ctl(&["attach", &again]).refused(&["log", "is there already"]);
    served.ctl(&["attach", &again.replace("log=", "other=")]).refused(&["log.img"]);
    served.ctl(&["resize", "log", "32MiB"]).refused(&["read-only"]);
    assert_eq!(served.disks(), ["web", "db", "log"]);
    let held = UnixStream::connect(folder.path("run/log.nbd")).expect("it listens");
    served.ctl(&["detach", "log"]).ok();
    assert!(!folder.path("run/log.vhost").exists());
    held.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut rest = Vec::new();
    let _ = (&held).read_to_end(&mut rest); // ends: it was hung up on
    served.ctl(&["detach", "log"]).refused(&["no disk 'log'; there are db, web"]);
    served.ctl(&["attach", &again]).ok();
    assert_eq!(served.disks(), ["web", "db", "log"]);

    let size = |text: &str| served.ctl(&["resize", "db", text]);
    // Bytes, as in limits and in JSON.
    assert_eq!(size("33554432").ok(), "33554432 bytes\n");
    assert_eq!(std::fs::metadata(folder.path("db.img")).expect("there").len(), 32 << 20);
    size("8MiB").refused(&["33554432 bytes", "--shrink"]);
    assert_eq!(served.ctl(&["resize", "db", "8MiB", "--shrink"]).ok(), "8388608 bytes\n");
    size("0").refused(&["not 0"]);
    size("99999999999999s").refused(&["db"]);
    let grown = std::fs::OpenOptions::new().write(true).open(folder.path("db.img")).expect("ours");
    grown.set_len(64 << 20).expect("room");
    assert_eq!(served.ctl(&["resize", "db"]).ok(), "67108864 bytes\n");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn a_disk_becomes_smaller_only_if_it_may() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    let cut = std::fs::OpenOptions::new().write(true).open(folder.path("db.img")).expect("ours");
    let size = || served.status()["devices"][0]["disks"][1]["capacity_bytes"].clone();
    let before = size();
    cut.set_len(8 << 20).expect("a file");
    // By `ctl`, and by a program that sends JSON.
    let told = ["8388608", "16777216", "--shrink", "\"shrink\": true"];
    served.ctl(&["resize", "db"]).refused(&told);
    served.ctl(&["resize", "db", "8388608"]).refused(&told);
    served.ctl(&["resize", "db", "12MiB"]).refused(&["16777216 bytes", "--shrink"]);
    let answer = ask(&served, r#"{"command":"resize","disk":"db"}"#);
    assert!(answer["error"].to_string().contains("--shrink"), "{answer}");
    assert_eq!((size(), cut.metadata().expect("a file").len()), (before, 8 << 20));
    assert_eq!(served.ctl(&["resize", "db", "--shrink"]).ok(), "8388608 bytes\n");
    assert_eq!(size(), 8 << 20);
    assert_eq!(served.end(), Some(0));
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let folder = Folder::new();
    let run = folder.path("run");
    std::fs::create_dir(&run).expect("room");
    drop(UnixListener::bind(run.join("web.vhost")).expect("a socket"));
    assert!(run.join("web.vhost").exists(), "stale");
    let served = Served::start(&folder, &[]);
    let other = format!("a={}", image(&folder, "a.img"));
    let args = ["serve", "--disk", &other, "--listen", &folder.arg("run")];
    seekway(&args).refused(&["control.sock", "in use"]);
    let control = folder.arg("other.sock");
    let taken = ["serve", "--disk", &other.replace("a=", "web="), "--listen", &folder.arg("run")];
    let ran = seekway(&[&taken[..], &["--control", &control]].concat());
    ran.refused(&["web.vhost", "in use"]);
    assert!(!folder.path("other.sock").exists(), "what was made before it failed is gone");
    assert!(UnixStream::connect(run.join("web.vhost")).is_ok(), "the first still serves");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn a_daemon_that_was_killed_starts_again() {
    let folder = Folder::new();
    let mut served = Served::start(&folder, &[]);
    served.signal(libc::SIGKILL);
    served.wait();
    assert!(folder.path("run/web.vhost").exists(), "nobody removed it");
    assert_eq!(Served::start(&folder, &[]).end(), Some(0));
}

#[test]
fn a_signal_while_it_waits_for_its_only_disk_ends_it_in_good_order() {
    let folder = Folder::new();
    let first = Served::start(&folder, &[]);
    let (disk, listen) = (format!("web={}", folder.arg("web.img")), folder.arg("other"));
    let control = folder.path("other/control.sock");
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let child = started(command(&["serve", "--disk", &disk, "--listen", &listen]));
        let mut served = Served { child, control: folder.arg("other/control.sock") };
        wait_until("it starts", || control.exists());
        served.signal(signal);
        assert_eq!(served.wait(), Some(0));
        assert!(!control.exists());
    }
    assert_eq!(first.end(), Some(0));
}

#[test]
fn nobody_reading_its_output_does_not_end_it() {
    let folder = Folder::new();
    let disk = format!("a={}", image(&folder, "a.img"));
    let listen = folder.arg("run");
    let mut child = started(command(&["serve", "--disk", &disk, "--listen", &listen]));
    drop((child.stdout.take(), child.stderr.take()));
    let served = Served { child, control: folder.arg("run/control.sock") };
    let socket = folder.path("run/a.vhost");
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    // A peer that breaks the protocol makes it write to the log.
    let mut peer = UnixStream::connect(folder.path("run/a.vhost")).expect("it listens");
    let _ = peer.write_all(&[0xff; 64]);
    drop(peer);
    assert_eq!(served.disks(), ["a"]);
    served.signal(libc::SIGHUP);
    assert_eq!(served.disks(), ["a"]);
    assert_eq!(served.end(), Some(0));
}

#[test]
fn what_a_policy_knows_of_each_disk_and_how_fair_it_was_are_told() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "vmcd"]);
    let device = &served.status()["devices"][0];
    for disk in device["disks"].as_array().expect("a list") {
        assert_eq!(disk["policy_metrics"]["queued"], 0.0, "{disk:#}");
        assert_eq!(disk["device_time_ms"], 0.0);
    }
    // Nobody has asked for anything yet: no index is defined.
    let fairness = serde_json::json!({"interval_s": 10.0, "busy_disks": 0});
    assert_eq!(device["fairness"], fairness);
    let metrics = served.ctl(&["metrics"]).ok();
    let known = "disk=\"web\",policy=\"vmcd\",metric=\"queued\"} 0";
    for part in ["seekway_policy_disk{", known, "seekway_fairness_busy_disks{"] {
        assert!(metrics.contains(part), "no {part:?} in {metrics}");
    }
    assert!(!metrics.contains("seekway_fairness_jain"), "{metrics}");
    let table = served.ctl(&["status"]).ok();
    assert!(table.contains("Fairness over the last whole 10 s"), "{table}");
    assert_eq!(served.end(), Some(0));
}

/// Lines to the control socket, and the lines that come back.
fn talk(path: &str, text: &[u8]) -> Vec<String> {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let own = stream.try_clone().expect("a socket");
    let text = text.to_vec();
    // It may end the connection before it has read all.
    let feeder = std::thread::spawn(move || {
        let _ = stream.write_all(&text);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    });
    let lines = BufReader::new(own).lines().map_while(Result::ok).collect();
    feeder.join().expect("no panic");
    lines
}

/// The answer to one line of JSON.
pub fn ask(served: &Served, line: &str) -> serde_json::Value {
    json(&talk(&served.control, format!("{line}\n").as_bytes())[0])
}

#[test]
fn the_protocol_answers_line_by_line_whoever_else_is_there() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    // One who says nothing, one who stops in the middle, one who never reads.
    let _silent = UnixStream::connect(&served.control).expect("it listens");
    let mut half = UnixStream::connect(&served.control).expect("it listens");
    half.write_all(b"{\"command\":").expect("a socket");
    let deaf = UnixStream::connect(&served.control).expect("it listens");
    deaf.set_nonblocking(true).expect("a socket");
    while (&deaf).write(&b"{\"command\":\"status\"}\n".repeat(100)).is_ok() {}
    let answers = talk(
        &served.control,
        b"{\"command\":\"status\"}\n\n{\"command\":\"reboot\"}\n\
          {\"command\":\"weight\",\"disk\":\"web\",\"weight\":2}\n{\"command\":\"status\",\"x\":1}",
    );
    assert_eq!(answers.len(), 4, "{answers:?}");
    assert_eq!(json(&answers[0])["result"]["devices"][0]["disks"][0]["name"], "web");
    for (n, part) in [(1, "no command 'reboot'; there are status"), (3, "unknown field `x`")] {
        let error = json(&answers[n])["error"].to_string();
        assert!(error.contains(part), "{n}: {error}");
    }
    assert_eq!(json(&answers[2])["result"], serde_json::json!({}));
    let long = talk(&served.control, &[&b"{"[..], &vec![b' '; (1 << 20) + 10]].concat());
    assert!(long.len() == 1 && long[0].contains("more than 1048576 bytes"), "{long:?}");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn what_is_no_json_ends_a_control_connection() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    let weight = "{\"command\":\"weight\",\"disk\":\"web\",\"weight\":77}\n";
    // A browser sends this for a page of another host, which chooses method and body.
    let by_page = format!("x /x HTTP/1.1\r\nHost: evil.example\r\n\r\n{weight}");
    for (text, part) in [
        (by_page.as_bytes(), "an object of JSON"),
        (b"\n{\"command\":\"status\"}\n", "an object of JSON"),
        (b"[1]\n", "an object of JSON"),
        (format!("{{nonsense\n{weight}").as_bytes(), "not JSON"),
        (b"{\xff\xfe\n{\"command\":\"status\"}\n", "not JSON"),
    ] {
        let answers = talk(&served.control, text);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let error = json(&answers[0])["error"].to_string();
        assert!(error.contains(part) && error.contains("the connection ends"), "{error}");
    }
    assert_eq!(served.status()["devices"][0]["disks"][0]["weight"], 1);
    assert_eq!(served.end(), Some(0));
}

/// The answer to a GET by TCP, at the address of metrics or of the web page.
fn get_by_tcp(served: &Served, kind: &str, path: &str, host: &str) -> String {
    let status = served.status();
    let sockets = status["sockets"].as_array().expect("a list");
    let address = sockets.iter().find(|s| s[0] == kind).expect("it is served");
    let mut stream = TcpStream::connect(address[1].as_str().expect("text")).expect("listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("a socket");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn metrics_by_http_and_by_ctl() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--metrics", "127.0.0.1:0", "--policy", "cfq"]);
    let get = |path: &str, host: &str| get_by_tcp(&served, "metrics", path, host);
    let answer = get("/metrics", "127.0.0.1:9187");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("disk=\"web\",policy=\"cfq\",op=\"read\"} 0\n"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert!(get("/secrets", "localhost").starts_with("HTTP/1.1 404"));
    // A page of another host whose name leads here.
    let foreign = get("/metrics", "evil.example:9187");
    assert!(foreign.starts_with("HTTP/1.1 403"), "{foreign}");
    let by_unix = talk(&served.control, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(by_unix.first().map(String::as_str), Some("HTTP/1.1 403 Forbidden"));
    let by_unix = talk(&served.control, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(by_unix.first().map(String::as_str), Some("HTTP/1.1 200 OK"));
    assert_eq!(by_unix.last().map(String::as_str), Some("# EOF"));
    let by_ctl = served.ctl(&["metrics"]).ok();
    assert!(by_ctl.contains("seekway_capacity_bytes{") && by_ctl.ends_with("# EOF\n"));
    assert_eq!(served.end(), Some(0));
}

#[test]
fn allowed_names_reach_metrics_and_the_page() {
    let folder = Folder::new();
    let both = ["--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0"];
    let names = ["--allow-host", "kvm1.example.org", "--allow-host", "kvm1"];
    let served = Served::start(&folder, &[&both[..], &names].concat());
    for (kind, path) in [("metrics", "/metrics"), ("web", "/"), ("web", "/app.js")] {
        for host in ["kvm1.example.org:9187", "KVM1", "127.0.0.1:9187", "localhost"] {
            let answer = get_by_tcp(&served, kind, path, host);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path} by {host}: {answer}");
        }
        let refused = get_by_tcp(&served, kind, path, "kvm2.example.org:9187");
        for part in ["HTTP/1.1 403", "DNS rebinding", "--allow-host kvm2.example.org"] {
            assert!(refused.contains(part), "{path}: no {part:?} in {refused}");
        }
    }
    let by_unix = talk(&served.control, b"GET /metrics HTTP/1.1\r\nHost: kvm1\r\n\r\n");
    assert_eq!(by_unix.first().map(String::as_str), Some("HTTP/1.1 200 OK"));
    assert_eq!(served.end(), Some(0));
}
