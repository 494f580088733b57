//! The confinement of `seekway serve`, on by default: what the kernel says of each thread, how images
//! come in that the daemon may not open, and what it says when it is off.

use crate::common::{Folder, command, json};
use crate::daemon::{PATIENCE, Served, as_user, image};
use crate::process::wait_until;
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

/// A field of each thread of a process, by the thread's name. Threads that end meanwhile are left
/// out: the one of the last `ctl` may.
fn threads(process: u32, field: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).ok();
    let of = |task: std::path::PathBuf| {
        let (status, name) = (read(task.join("status"))?, read(task.join("comm"))?);
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Some((name.trim().to_string(), value.unwrap_or("").trim().to_string()))
    };
    tasks.filter_map(|task| of(task.expect("a thread").path())).collect()
}

/// One line to the control socket, without a file: as a program in any language sends it.
fn ask(served: &Served, line: &str) -> Value {
    let stream = UnixStream::connect(&served.control).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    (&stream).write_all(format!("{line}\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).expect("it answers");
    json(&answer)
}

fn has_all(served: &Served) -> bool {
    let status = served.status();
    let problems = &status["sandbox"]["problems"];
    if !problems.is_null() {
        seekway_testing::skip(format!("a kernel with all of the confinement: {problems}"));
    }
    problems.is_null()
}

#[test]
fn every_thread_is_confined_and_status_says_how() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--metrics", "127.0.0.1:0", "--nbd", "127.0.0.1:0"]);
    // Threads of all kinds: a client that says nothing at each socket.
    let sockets = ["web.vhost", "web.nbd", "control.sock"];
    let open = sockets
        .map(|socket| UnixStream::connect(folder.path("run").join(socket)).expect("it listens"));
    let mut greeting = [0; 8];
    (&open[1]).read_exact(&mut greeting).expect("NBD's greeting");
    if !has_all(&served) {
        return;
    }
    let status = served.status();
    let sandbox = &status["sandbox"];
    assert_eq!(sandbox["mode"], "on");
    assert!(sandbox["landlock_abi"].as_u64() >= Some(1), "{sandbox}");
    assert_eq!(sandbox["io_uring_restricted"], true, "{sandbox}");
    assert_eq!(sandbox["dumps_without_guests"], true, "{sandbox}");
    for kind in ["control", "reactor", "front_end", "helper"] {
        let threads = &sandbox["threads"][kind];
        assert_eq!(threads["no_new_privs"], true, "{kind}: {sandbox}");
        assert_eq!(threads["seccomp"], true, "{kind}: {sandbox}");
        assert_ne!(threads["landlock"], "none", "{kind}: {sandbox}");
    }
    for (kind, most) in [("control", 4), ("reactor", 1), ("front_end", 0), ("helper", 0)] {
        let kept = sandbox["threads"][kind]["capabilities"].as_array().expect("a list").len();
        assert!(kept <= most, "{kind}: {sandbox}");
    }
    // What the kernel says of each thread: the workers of io_uring are the kernel's own.
    let process = served.child.id();
    let own = |(name, _): &(String, String)| !name.starts_with("iou-");
    for (field, expected) in [("Seccomp", "2"), ("NoNewPrivs", "1")] {
        let all: Vec<_> = threads(process, field).into_iter().filter(own).collect();
        assert!(all.len() >= 6, "{all:?}");
        assert!(all.iter().all(|(_, value)| value == expected), "{field}: {all:?}");
    }
    for (name, capabilities) in threads(process, "CapEff").into_iter().filter(own) {
        let left = u64::from_str_radix(&capabilities, 16).expect("a number");
        // CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_IPC_LOCK; of most threads none.
        let may_stay = match name.as_str() {
            "seekway" | "client" => 0b1011 | 1 << 14,
            "rings" => 1 << 14,
            name if name.starts_with("dev-") => 1 << 14,
            _ => 0,
        };
        assert_eq!(left & !may_stay, 0, "{name}: {capabilities}");
    }
    assert!(served.ctl(&["status"]).ok().contains("sandbox: on (landlock ABI"));
    assert_eq!(served.end(), Some(0));
}

#[test]
fn images_are_handed_over_and_others_cannot_be_opened() {
    let folder = Folder::new();
    let images = folder.path("images");
    std::fs::create_dir(&images).expect("room");
    let served = Served::start(&folder, &["--images", &folder.arg("images")]);
    if !has_all(&served) {
        return;
    }
    // By path alone: only where the daemon may open images.
    let attach = |name: &str, path: &str| {
        ask(&served, &format!(r#"{{"command":"attach","name":"{name}","path":"{path}"}}"#))
    };
    let (inside, outside) = (image(&folder, "images/in.img"), image(&folder, "out.img"));
    assert_eq!(attach("in", &inside)["result"]["capacity_bytes"], 16 << 20);
    let error = attach("out", &outside)["error"].to_string();
    for part in ["disk out", "out.img", "seekway ctl attach", "--images"] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    // `ctl attach` opens the image itself; the disk is as good as any.
    served.ctl(&["attach", &format!("out={outside}")]).ok();
    assert_eq!(served.ctl(&["resize", "out", "32MiB"]).ok(), "33554432 bytes\n");
    assert_eq!(std::fs::metadata(&outside).expect("there").len(), 32 << 20);
    served.ctl(&["attach", &format!("twice={outside}")]).refused(&["out.img", "locked"]);
    served.ctl(&["attach", &format!("none={outside}.gone")]).refused(&["there is no such file"]);
    assert_eq!(served.disks(), ["web", "db", "in", "out"]);
    // The lock goes with the disk, and an image that was replaced is another one.
    served.ctl(&["detach", "out"]).ok();
    std::fs::remove_file(&outside).expect("ours");
    image(&folder, "out.img");
    served.ctl(&["attach", &format!("out={outside},ro")]).ok();
    // Sockets come and go all the same.
    assert!(folder.path("run/out.vhost").exists());
    served.ctl(&["detach", "out"]).ok();
    assert!(!folder.path("run/out.vhost").exists());
    assert_eq!(served.end(), Some(0));
}

#[test]
fn an_image_that_was_missing_is_attached_by_its_name() {
    let folder = Folder::new();
    let late = format!("late={}", folder.arg("late.img"));
    let served = Served::start(&folder, &["--disk", &late]);
    served.ctl(&["attach", "late"]).refused(&["late.img", "no such file"]);
    image(&folder, "late.img");
    served.ctl(&["attach", "late"]).ok();
    assert_eq!(served.disks(), ["web", "db", "late"]);
    assert_eq!(served.end(), Some(0));
}

/// All that commands do, with threads that are started late.
#[test]
fn commands_work_in_the_sandbox() {
    let folder = Folder::new();
    let (listen, journal) = (folder.arg("run"), folder.arg("journal"));
    // No device yet: reactor, journal and cache come with the first disk.
    let args = ["serve", "--listen", &listen, "--journal", &journal, "--cache", "auto"];
    let served = Served::with(&args, folder.arg("run/control.sock"));
    let disk = format!("web={},iops=1000", image(&folder, "web.img"));
    served.ctl(&["attach", &disk]).ok();
    for args in [
        &["policy", "cfq"][..],
        &["cache", "8MiB"],
        &["cache", "auto"],
        &["prefetch", "none"],
        &["limit", "web", "none"],
        &["weight", "web", "3"],
        &["metrics"],
    ] {
        served.ctl(args).ok();
    }
    let written = std::fs::read_dir(folder.path("journal")).expect("made").count();
    assert_eq!(written, 1);
    assert_eq!(served.end(), Some(0));
}

/// Receives bytes, and finds the process that sent them.
fn sender(socket: &UnixStream, bytes: &mut [u8]) -> u32 {
    // SAFETY: the option reads an int, which is valid.
    let done = unsafe {
        let (on, len) = (1i32, size_of::<i32>() as libc::socklen_t);
        let option = libc::SO_PASSCRED;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const on).cast(), len)
    };
    assert_eq!(done, 0);
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    (&mut &*socket).write_all(&[1u32, 1, 0].map(u32::to_ne_bytes).concat()).expect("it reads");
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0usize; 16];
    // SAFETY: a header of zeroes is one of nothing, and then points to what lives here; the
    // kernel fills what is looked at.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        assert!(libc::recvmsg(socket.as_raw_fd(), &mut header, 0) > 0, "an answer");
        let message = libc::CMSG_FIRSTHDR(&header);
        assert!(!message.is_null());
        libc::CMSG_DATA(message).cast::<libc::ucred>().read_unaligned().pid as u32
    }
}

/// A file that comes with its messages may be one whose close waits for ever.
#[test]
fn what_a_vmm_sends_is_received_by_a_process_of_its_own() {
    let folder = Folder::new();
    let mut served = Served::start(&folder, &[]);
    let connect = || UnixStream::connect(folder.path("run/web.vhost")).expect("it listens");
    let is_there = |process: u32| std::path::Path::new(&format!("/proc/{process}")).exists();
    let vmm = connect();
    let mut features = [0; 20];
    let gate = sender(&vmm, &mut features);
    assert_eq!(features[..4], 1u32.to_ne_bytes(), "the answer to GET_FEATURES");
    assert_ne!(gate, served.child.id());
    drop(vmm);
    wait_until("the process ends with its connection", || !is_there(gate));
    // As one that waits in a close: the daemon ends, and nothing of it stays.
    let vmm = connect();
    let gate = sender(&vmm, &mut features);
    // SAFETY: plain system calls; the process is the daemon's.
    assert_eq!(unsafe { libc::kill(gate as i32, libc::SIGSTOP) }, 0);
    served.signal(libc::SIGKILL);
    served.wait();
    let args = ["serve", "--listen", &folder.arg("again"), "--disk"];
    let disk = format!("web={}", folder.arg("web.img"));
    let args: Vec<&str> = args.into_iter().chain([disk.as_str()]).collect();
    let again = Served::with(&args, folder.arg("again/control.sock"));
    assert_eq!(again.disks(), ["web"], "its image is not locked");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(gate as i32, libc::SIGCONT) }, 0);
    wait_until("the process ends with the daemon", || !is_there(gate));
    assert_eq!(again.end(), Some(0));
}

/// The process of a daemon's that forks those that receive for VMMs.
fn keeper(daemon: u32) -> u32 {
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let children = std::fs::read_to_string(children).expect("it runs");
    children.split_whitespace().next().expect("a child").parse().expect("a number")
}

/// Whatever they do, and however many tasks there are: the daemon itself receives nothing of VMMs.
#[test]
fn a_vmm_waits_while_no_process_can_be_forked_for_it() {
    let folder = Folder::new();
    // No limit of processes is one of root's.
    if let Err(e) = as_user(command(&["--version"]), &folder).output() {
        return seekway_testing::skip(format!("a program that all may start: {e}"));
    }
    let web = image(&folder, "web.img");
    std::fs::set_permissions(&web, Permissions::from_mode(0o666)).expect("ours");
    let disk = format!("web={web}");
    let start = command(&["serve", "--disk", &disk, "--listen", &folder.arg("run")]);
    let served = Served::run(as_user(start, &folder), folder.arg("run/control.sock"));
    let keeper = keeper(served.child.id());
    // Another's limits are out of reach even of some roots: by a program of its own user.
    let limits = std::fs::read_to_string(format!("/proc/{keeper}/limits")).expect("it runs");
    let most = limits.lines().find_map(|line| line.strip_prefix("Max processes"));
    let most = most.and_then(|line| line.split_whitespace().nth(1)).expect("a limit").to_string();
    let limit = |processes: &str| {
        let mut prlimit = as_user(Command::new("prlimit"), &folder);
        prlimit.args(["--pid", &keeper.to_string(), &format!("--nproc={processes}:")]);
        assert!(prlimit.status().expect("util-linux is there").success());
    };
    limit("0");
    let vmm = UnixStream::connect(folder.path("run/web.vhost")).expect("it listens");
    let sleeps =
        || threads(keeper, "voluntary_ctxt_switches")[0].1.parse::<u64>().expect("it runs");
    let before = sleeps();
    wait_until("it has tried again", || sleeps() > before + 2);
    limit(&most);
    let mut features = [0; 20];
    let gate = sender(&vmm, &mut features);
    assert_eq!(features[..4], 1u32.to_ne_bytes(), "the answer to GET_FEATURES");
    assert_ne!(gate, served.child.id());
    assert_eq!(served.end(), Some(0));
}

/// Its process tells of the end of a connection a moment after it.
#[test]
fn a_vmm_that_comes_again_at_once_is_served() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    for round in 0..100 {
        let vmm = UnixStream::connect(folder.path("run/web.vhost")).expect("it listens");
        let mut features = [0; 20];
        sender(&vmm, &mut features);
        assert_eq!(features[..4], 1u32.to_ne_bytes(), "the answer to GET_FEATURES, round {round}");
    }
    assert_eq!(served.end(), Some(0));
}

#[test]
fn it_can_be_switched_off() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--sandbox", "off"]);
    let sandbox = &served.status()["sandbox"];
    assert_eq!(sandbox["mode"], "off");
    assert!(sandbox["problems"][0].as_str().expect("a text").contains("--sandbox off"));
    assert!(threads(served.child.id(), "Seccomp").iter().all(|(_, value)| value == "0"));
    assert!(served.ctl(&["status"]).ok().contains("sandbox: off (--sandbox off)"));
    assert_eq!(served.end(), Some(0));
}

/// Grade that `systemd-analyze security` gives a unit: 0 is closed, 10 is open.
fn exposure(unit: &str) -> Option<f64> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../share/systemd").join(unit);
    let mut analyze = Command::new("systemd-analyze");
    let output = analyze.args(["security", "--offline=true", "--no-pager"]).arg(&path).output();
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("Overall exposure level"))?;
    let words = line.split(": ").nth(1)?;
    words.split_whitespace().next()?.parse().ok()
}

#[test]
fn units_leave_little_open() {
    // Version 250 has --offline.
    if exposure("seekway.service").is_none() {
        seekway_testing::skip("systemd-analyze, version 250 or later");
        return;
    }
    for (unit, most) in [
        ("seekway.service", 2.0),
        ("seekway-guest-tag.service", 3.0),
        ("seekway-guest-migrate.service", 3.0),
    ] {
        let exposure = exposure(unit).expect("a judgement");
        assert!(exposure <= most, "{unit}: {exposure}, at most {most}: systemd-analyze security");
    }
}
