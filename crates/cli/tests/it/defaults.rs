//! `seekway serve` with nothing but disks, the cache that it has then, and the files that users
//! begin with.

use crate::common::{Folder, Ran, command, root, seekway};
use crate::daemon::{Served, as_user, image};
use crate::process::{status_kib, wait_until};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const MIB: u64 = 1 << 20;

#[test]
fn a_disk_is_all_that_it_needs() {
    let folder = Folder::new();
    let web = image(&folder, "web.img");
    std::fs::set_permissions(&web, std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("ours");
    let disk = format!("web={web}");
    let mut try_it = as_user(command(&["serve", "--disk", &disk, "--check-config"]), &folder);
    let tried = Ran::new(match try_it.output() {
        Ok(output) => output,
        Err(e) => return seekway_testing::skip(format!("a program that all may start: {e}")),
    });
    let told = tried.ok();
    for part in ["fairway (default)", "cache: auto (default)", "prefetch: vio:interval=continuous"]
    {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let served = Served::run(
        as_user(command(&["serve", "--disk", &disk]), &folder),
        folder.arg("seekway/control.sock"),
    );
    assert!(folder.path("seekway/web.vhost").exists() && folder.path("seekway/web.nbd").exists());
    // The same default leads `ctl` there.
    let status = as_user(command(&["ctl", "status", "--format", "json"]), &folder).output();
    let status = crate::common::json(&Ran::new(status.expect("it starts")).ok());
    let cache = &status["devices"][0]["cache"];
    assert_eq!(cache["auto"], true);
    assert_eq!(cache["prefetcher"], "vio:interval=continuous");
    let (size, room) = (&cache["capacity_bytes"], &cache["room_bytes"]);
    let (size, room) = (size.as_u64().expect("a number"), room.as_u64().expect("a number"));
    assert!(0 < size && size <= room && room <= memory_total() / 10, "{size} {room}");
    let mut homeless = as_user(command(&["ctl", "status"]), &folder);
    homeless.env_remove("XDG_RUNTIME_DIR");
    let homeless = Ran::new(homeless.output().expect("it starts"));
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        assert!(homeless.err.contains("give --socket PATH"), "{}", homeless.err);
    }
    assert_eq!(homeless.code, Some(2));
    assert_eq!(served.end(), Some(0));
}

#[test]
fn what_a_default_depends_on() {
    let folder = Folder::new();
    let (web, listen) = (image(&folder, "web.img"), folder.arg("run"));
    let disk = format!("web={web}");
    let told = |args: &[&str]| {
        seekway(&[&["serve", "--check-config", "--listen", &listen], args].concat()).ok()
    };
    let emulated = told(&["--disk", &disk, "--emulate", "seagate-1tb-7200"]);
    assert!(emulated.contains("cache: off (default with --emulate"), "{emulated}");
    assert!(!emulated.contains("prefetch:"), "{emulated}");
    let back_end = ["serve", "--check-config", "--blk-file", &web, "--socket-path", "s"];
    let back_end = seekway(&back_end).ok();
    assert!(back_end.contains("cache: off\n"), "{back_end}");
    let sized = told(&["--disk", &disk, "--cache", "64MiB", "--prefetch", "none"]);
    assert!(sized.contains("cache: 64 MiB for each device\nprefetch: none\n"), "{sized}");
}

/// The memory of this computer, in bytes.
fn memory_total() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("it is there");
    line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).expect("a number") << 10
}

/// The memory that a process has, in bytes.
fn resident(pid: u32) -> u64 {
    status_kib(pid, "VmRSS") << 10
}

impl Served {
    fn cache(&self) -> Value {
        self.status()["devices"][0]["cache"].clone()
    }

    /// Wait until the cache's memory is as it should be.
    fn memory(&self, is_good: impl Fn(u64) -> bool) {
        let bytes = || self.cache()["memory_bytes"].as_u64().expect("a number");
        wait_until("the cache's memory is as it should be", || is_good(bytes()));
    }
}

#[test]
fn a_cache_that_shrinks_gives_its_memory_back_and_no_read_is_wrong() {
    if Command::new("nbdcopy").arg("--version").output().is_err() {
        return seekway_testing::skip("nbdcopy (libnbd-bin)");
    }
    let folder = Folder::new();
    // Every block of 4 KiB differs from all others.
    let mut data = vec![0; (48 * MIB) as usize];
    for (block, n) in data.chunks_exact_mut(4096).zip(1u64..) {
        block[..8].copy_from_slice(&n.to_le_bytes());
    }
    std::fs::write(folder.path("web.img"), &data).expect("room");
    let (disk, listen) = (format!("web={}", folder.arg("web.img")), folder.arg("run"));
    let journals = folder.arg("journals");
    let args = ["serve", "--disk", &disk, "--listen", &listen, "--cache", "48MiB"];
    let more = ["--prefetch", "none", "--journal", &journals];
    let served = Served::with(&[&args[..], &more].concat(), folder.arg("run/control.sock"));
    let pid = served.child.id();
    let read_all = || {
        let uri = format!("nbd+unix:///web?socket={}", folder.arg("run/web.nbd"));
        let copied = Command::new("nbdcopy").arg(uri).arg(folder.path("copy")).output();
        let copied = copied.expect("it starts");
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        assert!(std::fs::read(folder.path("copy")).expect("a copy") == data, "a read is wrong");
    };
    let before = resident(pid);
    read_all();
    served.memory(|bytes| bytes == 48 * MIB);
    let full = resident(pid);
    assert!(full > before + 40 * MIB, "{before} bytes before the reads, {full} after");

    served.ctl(&["cache", "4MiB"]).ok();
    served.memory(|bytes| bytes <= 4 * MIB);
    let small = resident(pid);
    assert!(small + 40 * MIB < full, "{full} bytes before, {small} after the cache shrank");
    assert_eq!(served.cache()["capacity_bytes"], 4 * MIB);
    let metrics = served.ctl(&["metrics"]).ok();
    assert!(metrics.contains("seekway_cache_memory_bytes{"), "{metrics}");
    read_all();
    served.memory(|bytes| bytes <= 4 * MIB);

    served.ctl(&["cache", "off"]).ok();
    served.memory(|bytes| bytes == 0);
    read_all();
    served.ctl(&["cache", "128MiB"]).refused(&["room for 50331648 bytes"]);
    served.ctl(&["cache", "much"]).refused(&["or auto, or off"]);
    served.ctl(&["cache", "32MiB"]).ok();
    read_all();
    served.memory(|bytes| bytes == 32 * MIB);
    served.ctl(&["cache", "auto"]).ok();
    assert_eq!(served.cache()["auto"], true);
    served.ctl(&["cache", "48MiB"]).ok();
    assert_eq!(served.cache()["auto"], false);
    assert_eq!(served.end(), Some(0));
    // The policy's core decides the same again, what it let go among it.
    let journals = std::fs::read_dir(&journals).expect("a folder");
    for journal in journals.map(|entry| entry.expect("an entry").path()) {
        let text = std::fs::read_to_string(&journal).expect("text");
        assert!(text.lines().any(|line| line.contains(" trim ")), "nothing was trimmed");
        seekway(&["replay", journal.to_str().expect("a path")]).ok();
    }
}

#[test]
fn the_example_of_a_configuration_is_one() {
    let folder = Folder::new();
    for disk in ["web.img", "db.img", "backup.img", "media.img"] {
        image(&folder, disk);
    }
    let token = folder.file("web.token", "0123456789abcdef");
    std::fs::set_permissions(token, Permissions::from_mode(0o600)).expect("it is ours");
    let example = root().join("share/examples/serve.toml");
    let example = std::fs::read_to_string(example).expect("it is there");
    let example = example.replace("/var/lib/seekway", &folder.arg("."));
    let check = |text: &str| {
        let file = folder.file("serve.toml", text);
        seekway(&["serve", "--config", &file, "--check-config"]).ok()
    };
    let told = check(&example);
    for part in ["weight 4", "reserve_iops=500", "group batch: limits iops=2000", "read-only"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    // What stands there as a comment is a setting too. Those of TLS need files.
    let (settings, _) = example.split_once("# [tls]").expect("TLS comes last");
    let is_setting = |line: &str| {
        let (key, value) = line.split_once(" = ").unwrap_or_default();
        !key.is_empty()
            && !value.is_empty()
            && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let mut found = 0;
    let all = settings.lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if is_setting(setting) => {
            found += 1;
            setting
        }
        _ => line,
    });
    let told = check(&all.collect::<Vec<_>>().join("\n"));
    assert_eq!(found, 28, "settings as comments");
    for part in
        ["policy: fairway", "depth: 128", "cache: auto", "9187", "9188", "web.token", "10809"]
    {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
}

#[test]
fn the_example_of_a_domain_says_what_the_daemon_needs() {
    let path = root().join("share/examples/domain.xml");
    let text = std::fs::read_to_string(path).expect("it is there");
    let document = roxmltree::Document::parse(&text).expect("XML");
    let find = |path: &[&str]| {
        path.iter().fold(document.root_element(), |at, name| {
            let child = at.children().find(|child| child.has_tag_name(*name));
            child.unwrap_or_else(|| panic!("no {name} in {path:?}"))
        })
    };
    // The daemon maps the guest's memory.
    assert_eq!(find(&["memoryBacking", "source"]).attribute("type"), Some("memfd"));
    assert_eq!(find(&["memoryBacking", "access"]).attribute("mode"), Some("shared"));
    let disk = find(&["devices", "disk"]);
    assert_eq!(disk.attribute("type"), Some("vhostuser"));
    let queues = find(&["devices", "disk", "driver"]).attribute("queues");
    assert_eq!(queues, find(&["vcpu"]).text(), "a queue for each vCPU");
    let source = find(&["devices", "disk", "source"]);
    assert_eq!(source.attribute("path"), Some("/run/seekway/web.vhost"));
}
