//! Settings from files and flags, and what is said about wrong ones.

use super::*;
use crate::images::BlockSize;
use crate::reactor::{Poll, Submitter};
use expect_test::{Expect, expect};
use seekway_core::units::Sectors;
use seekway_policy::schedulers;
use std::num::NonZeroU32;
use std::path::Path;

fn shown(settings: Settings) -> String {
    match settings.resolve() {
        Ok(config) => format!("{config:#?}\n"),
        Err(errors) => format!("{errors}\n"),
    }
}

/// Compares the result of `text`, with "(every policy)" for the policies' names, so that a new
/// policy changes no text.
fn check(text: &str, expected: Expect) {
    let policies = schedulers::REGISTRY.names().collect::<Vec<_>>().join(", ");
    let settings = file::parse(Path::new("/etc/seekway/serve.toml"), text);
    expected.assert_eq(&shown(settings).replace(&policies, "(every policy)"));
}

#[test]
fn a_whole_file() {
    let text = r#"
policy = "cfq:quantum=4"
listen = "/run/seekway"
control = "ctl.sock"
metrics = "127.0.0.1:9100"
web = "127.0.0.1:9188"
web_control = "web.token"
allow_host = ["kvm1.example.org.", "kvm1"]
nbd = "[::1]:10809"
depth = 0x20
coalesce = "64KiB"
merge = true
hard_limit = "5s"
poll = "50us"
threads = 2
journal = "../journals"
sandbox = "off"
images = ["more", "/images"]

[tls]
cert = "cert.pem"
key = "key.pem"
client_ca = "ca.pem"
required = true

[[disk]]
name = "web"
path = "/images/web.img"
weight = 4
allow = ["backup", "vm1.example.org"]

[[disk]]
name = "db"
path = "db.img"
read_only = true
buffered = true
lba = "1GiB"
block_size = 4096
serial = "WD-1234"
on = "db.qcow2"
"#;
    let settings = file::parse(Path::new("/etc/seekway/serve.toml"), text);
    let here = |name: &str| Some(Path::new("/etc/seekway").join(name));
    let web = DiskConfig {
        weight: NonZeroU32::new(4).unwrap(),
        allow: vec!["backup".into(), "vm1.example.org".into()],
        ..DiskConfig::new("web", "/images/web.img")
    };
    let db = DiskConfig {
        read_only: true,
        buffered: true,
        lba: Some((1 << 30) / 512),
        block_size: Some(BlockSize::B4096),
        serial: Some("WD-1234".into()),
        on: here("db.qcow2"),
        ..DiskConfig::new("db", "/etc/seekway/db.img")
    };
    let expected = Config {
        disks: vec![web, db],
        policy: Some("cfq:quantum=4".into()),
        listen: Some("/run/seekway".into()),
        control: here("ctl.sock"),
        metrics: Some(([127, 0, 0, 1], 9100).into()),
        web: Some(([127, 0, 0, 1], 9188).into()),
        web_control: here("web.token"),
        allow_host: vec!["kvm1.example.org".into(), "kvm1".into()],
        nbd: Some(([0, 0, 0, 0, 0, 0, 0, 1], 10_809).into()),
        tls: TlsConfig {
            cert: here("cert.pem"),
            key: here("key.pem"),
            client_ca: here("ca.pem"),
            required: true,
        },
        tuning: Tuning {
            depth: Some(32),
            coalesce: Sectors::new(128),
            merge: true,
            hard_limit: Nanos::from_secs(5),
            poll: Poll::fixed(Nanos::from_micros(50)),
            submitter: Submitter::Kernel,
        },
        journal: here("../journals"),
        unconfined: true,
        images: vec!["/etc/seekway/more".into(), "/images".into()],
        ..Config::default()
    };
    assert_eq!(settings.resolve(), Ok(expected));
}

#[test]
fn serial_numbers_differ_where_names_do() {
    let serial = |name: &str| DiskConfig::new(name, "a.img").serial_number();
    assert_eq!(serial("web"), "web");
    assert_eq!(serial("a-name-of-20-letters"), "a-name-of-20-letters");
    let long = ["customer4711-db-data-volume", "customer4711-db-data-vault"].map(serial);
    // The same in all versions: guests find their disks by it.
    assert_eq!(long, ["customer471-759af383", "customer471-676f7d6b"]);
    let asked = |text: &str| DiskConfig::parse(&format!("web=a.img,serial={text}"));
    assert_eq!(asked("WD-1234").unwrap().serial_number(), "WD-1234");
    for wrong in ["", "a b", "21-letters-are-too-ma", "é"] {
        let error = asked(wrong).unwrap_err();
        assert!(error.contains("expected at most 20 letters"), "{error}");
    }
}

#[test]
fn every_error_has_its_line() {
    check(
        r#"policy = "wfq"
listen = ""
depth = 0
poll = "50"
colour = "red"
metrics = "9100"
hard_limit = [1]
coalesce = "many"
disk = 3

[tls]
certificate = "x"
required = "maybe"
"#,
        expect![[r#"
            /etc/seekway/serve.toml:1: policy: no policy 'wfq'; there are (every policy)
            /etc/seekway/serve.toml:2: listen: expected a path
            /etc/seekway/serve.toml:3: depth: 0: expected a number of commands from 1 to 4096
            /etc/seekway/serve.toml:4: poll: 50: expected auto, or a time with its unit, such as 50us, at most 1s
            /etc/seekway/serve.toml:5: no setting 'colour'; there are disk, group, policy, emulate, depth, coalesce, merge, hard_limit, poll, threads, journal, cache, prefetch, cache_lock, bandwidth, listen, control, metrics, web, web_control, allow_host, nbd, socket_owner, socket_group, socket_mode, tls.cert, tls.key, tls.client_ca, tls.required, sandbox, images
            /etc/seekway/serve.toml:6: metrics: 9100: expected ADDRESS:PORT, such as 127.0.0.1:10809 or [::1]:10809
            /etc/seekway/serve.toml:7: hard_limit: expected a text or a number
            /etc/seekway/serve.toml:8: coalesce: many: expected bytes with a unit (KiB, MiB, GiB, TiB), such as 20GiB, or a bare number of bytes
            /etc/seekway/serve.toml:9: write each disk as [[disk]]
            /etc/seekway/serve.toml:12: no setting 'tls.certificate'; there are disk, group, policy, emulate, depth, coalesce, merge, hard_limit, poll, threads, journal, cache, prefetch, cache_lock, bandwidth, listen, control, metrics, web, web_control, allow_host, nbd, socket_owner, socket_group, socket_mode, tls.cert, tls.key, tls.client_ca, tls.required, sandbox, images
            /etc/seekway/serve.toml:13: tls.required: maybe: expected on or off, or true or false
        "#]],
    );
    check(
        r#"
[[disk]]
name = "web"
path = "web.img"
weight = 0
colour = "red"
allow = ["someone"]

[[disk]]
name = "../web"
path = "web.img"
[[disk]]
name = "web"
path = "other.img"
allow = []
[[disk]]
path = "other.img"
"#,
        expect![[r#"
            /etc/seekway/serve.toml:2: disk web: allow goes by clients' certificates: give their authority, --tls-client-ca FILE, or client_ca under [tls] in the file
            /etc/seekway/serve.toml:5: weight=0: expected a whole number from 1
            /etc/seekway/serve.toml:6: a disk has no option 'colour'; it has weight, ro, lba, buffered, cache, accept-lost-writes, incoming, block_size, guest_memory, serial, on, nbd, allow, socket_owner, socket_group, socket_mode, fault, and limits: iops, bandwidth, iops_burst, bandwidth_burst, iops_burst_length, bandwidth_burst_length (each also with read_ or write_ in front), burst_length, iops_size, reserve_iops, reserve_bandwidth, latency, group
            /etc/seekway/serve.toml:9: '../web' cannot be a disk's name: letters, digits, '_', '-' and '.' (the last two not at the front), at most 64
            /etc/seekway/serve.toml:12: a disk 'web' is there already (/etc/seekway/serve.toml:2); names differ
            /etc/seekway/serve.toml:15: allow=: expected names in clients' certificates; without the option all clients may
            /etc/seekway/serve.toml:16: a disk needs name = "…" and path = "…"
        "#]],
    );
    check(
        "policy = \"cfq:quantun=4\"\n",
        expect![[r#"
            /etc/seekway/serve.toml:1: policy: cfq has no parameter 'quantun'; it has slice_idle, quantum, fifo_expire_sync, fifo_expire_async, low_latency, generation, sync_writes, share, issuer
        "#]],
    );
    check(
        "policy = \"noop\"\nlisten = \"/run\nx",
        expect![[r#"
            /etc/seekway/serve.toml:2: invalid basic string, expected `"`
            /etc/seekway/serve.toml:3: key with no value, expected `=`
        "#]],
    );
    check(
        "policy = \"noop\"\npolicy = \"cfq\"",
        expect![[r#"
        /etc/seekway/serve.toml:2: duplicate key
    "#]],
    );
    check(
        "[tls]\nkey = \"key.pem\"",
        expect![[r#"
            /etc/seekway/serve.toml:2: a certificate and its key go together: give cert and key
        "#]],
    );
}

#[test]
fn a_cache_has_a_size_and_what_is_said_of_it_needs_one() {
    let config = |text: &str| file::parse(Path::new("serve.toml"), text).resolve();
    let good = "cache = \"2GiB\"\ncache_lock = true\nprefetch = \"none\"\nbandwidth = \"550MiB\"";
    let found = config(good).unwrap();
    assert_eq!((found.cache_size(), found.cache_lock), (CacheSize::Bytes(2 << 30), true));
    assert_eq!(found.bandwidth_bytes_per_s, Some(550 << 20));
    let small = config("cache = \"1MiB\"").unwrap();
    assert_eq!(small.prefetcher(), PREFETCHER_DEFAULT);
    let size = |text: &str| config(text).unwrap().cache_size();
    assert_eq!(size(""), CacheSize::Auto);
    assert_eq!(size("cache = \"off\""), CacheSize::Off);
    assert_eq!(size("emulate = \"seagate-1tb-7200\""), CacheSize::Off);
    assert_eq!(size("emulate = \"seagate-1tb-7200\"\ncache = \"auto\""), CacheSize::Auto);
    for (text, expected) in [
        (
            "cache = \"off\"\nprefetch = \"none\"",
            "serve.toml:2: prefetch needs a cache, and it is off: give it a size, as in cache = \"2GiB\" or --cache auto",
        ),
        ("cache = \"off\"\ncache_lock = true", "serve.toml:2: cache_lock needs a cache"),
        (
            "emulate = \"seagate-1tb-7200\"\nbandwidth = \"1GiB\"",
            "serve.toml:2: bandwidth needs a cache, and emulate turns it off",
        ),
        ("cache = \"1k\"", "serve.toml:1: cache: 1k: expected auto, off, or 1MiB to 8TiB"),
        ("cache = \"9TiB\"", "expected auto, off, or 1MiB to 8TiB"),
        (
            "cache = \"2GiB\"\nprefetch = \"psychic\"",
            "serve.toml:2: prefetch: no prefetcher 'psychic'",
        ),
        ("cache = \"2GiB\"\nbandwidth = \"0\"", "what a device reads a second"),
        ("cache = 1e9", "1e9: expected bytes with a unit"),
        ("cache = -5", "-5: expected bytes with a unit"),
        ("bandwidth = \"550MB\"", "write MiB, or the number of bytes"),
    ] {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let mut flags = Settings::default();
    flags.flag("cache", "off");
    flags.flag("prefetch", "none");
    assert!(flags.resolve().unwrap_err().to_string().starts_with("--prefetch: prefetch needs"));
}

#[test]
fn flags_win_and_disks_add() {
    let text = "policy = \"cfq\"\ndepth = 4\n[[disk]]\nname = \"a\"\npath = \"a.img\"";
    let mut settings = file::parse(Path::new("serve.toml"), text);
    let mut flags = Settings::default();
    flags.flag("policy", "deadline");
    flags.disk_flag("b=b.img");
    settings.extend(flags);
    let config = settings.resolve().unwrap();
    assert_eq!((config.policy.as_deref(), config.tuning.depth), (Some("deadline"), Some(4)));
    let names: Vec<&str> = config.disks.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn disks_by_flag() {
    let text = "db=/x/a,,b.img,weight=4,ro,lba=2048,buffered,cache=off,guest_memory=8GiB";
    let disk = DiskConfig::parse(text).unwrap();
    let expected = DiskConfig {
        weight: NonZeroU32::new(4).unwrap(),
        read_only: true,
        lba: Some(2048),
        buffered: true,
        cache: false,
        guest_memory: Some(8 << 30),
        ..DiskConfig::new("db", "/x/a,b.img")
    };
    assert_eq!(disk, expected);
    let fault = DiskConfig::parse("db=x,ro=false,fault=eio:op=read,from=0").unwrap();
    assert_eq!(fault.fault.as_deref(), Some("eio:op=read,from=0"));
    for (text, part) in [
        ("web", "expected NAME=PATH"),
        ("web=", "no path"),
        ("=x.img", "cannot be a disk's name"),
        ("a/b=x.img", "cannot be a disk's name"),
        (".a=x.img", "cannot be a disk's name"),
        ("a=x,weight", "weight takes a value: weight=N"),
        ("a=x,weight=-1", "from 1"),
        ("a=x,weight=4294967296", "from 1"),
        ("a=x,lba=1.5", "lba=1.5: expected the number of a sector"),
        ("a=x,guest_memory=8GB", "write GiB"),
        ("a=x,ro=maybe", "true or false"),
        ("a=x,guest_memory=0", "a size such as 8GiB"),
        ("a=x,", "it has weight, ro"),
        ("a=x,colour=red", "it has weight, ro"),
    ] {
        let error = DiskConfig::parse(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    assert!(check_name(&long).is_err() && check_name(&long[1..]).is_ok());
}

#[test]
fn limits_and_groups() {
    let text = r#"
[[group]]
name = "tenant1"
bandwidth = "300MiB"
bandwidth_burst = "1GiB"
burst_length = "10s"

[[disk]]
name = "db"
path = "db.img"
iops = 2000
group = "tenant1"

[[disk]]
name = "log"
path = "log.img"
write_bandwidth = 1048576
"#;
    let mut settings = file::parse(Path::new("serve.toml"), text);
    let mut flags = Settings::default();
    flags.group_flag("tenant2:iops=5");
    flags.disk_flag("c=c.img,iops=2000,iops_burst=8000,burst_length=10s,group=tenant2,ro");
    settings.extend(flags);
    let config = settings.resolve().unwrap();
    let groups: Vec<String> =
        config.groups.iter().map(|g| format!("{}:{}", g.name, g.limits)).collect();
    let tenant1 = "tenant1:bandwidth=300MiB,bandwidth_burst=1GiB,bandwidth_burst_length=10s";
    assert_eq!(groups, [tenant1, "tenant2:iops=5"]);
    let disks: Vec<String> = config.disks.iter().map(|d| d.limits.to_string()).collect();
    let third = "iops=2000,iops_burst=8000,iops_burst_length=10s,group=tenant2";
    assert_eq!(disks, ["iops=2000,group=tenant1", "write_bandwidth=1MiB", third]);
    assert!(config.disks[2].read_only);
    // In the control protocol limits are one text.
    let json = serde_json::to_string(&config.disks[0]).unwrap();
    assert!(json.contains(r#""limits":"iops=2000,group=tenant1""#), "{json}");
    assert_eq!(serde_json::from_str::<DiskConfig>(&json).unwrap(), config.disks[0]);
}

#[test]
fn wrong_limits_have_their_place() {
    check(
        r#"
[[group]]
name = "a"
bandwith = "1MiB"
[[group]]
name = "a"
group = "b"
[[group]]
name = "../a"
iops = 1
[[group]]
iops = 1
[[group]]
name = "b"
iops = 1
[[group]]
name = "b"
iops = 1

[[disk]]
name = "db"
path = "db.img"
iops = 2000
read_iops = 5
iops_burst = 0
[[disk]]
name = "log"
path = "log.img"
group = "c"
iops = [1]
"#,
        expect![[r#"
            /etc/seekway/serve.toml:4: no limit 'bandwith'; there are iops, bandwidth, iops_burst, bandwidth_burst, iops_burst_length, bandwidth_burst_length (each also with read_ or write_ in front), burst_length, iops_size, reserve_iops, reserve_bandwidth, latency, group
            /etc/seekway/serve.toml:5: group a: group: a group cannot be in a group
            /etc/seekway/serve.toml:5: a group 'a' is there already (/etc/seekway/serve.toml:2); names differ
            /etc/seekway/serve.toml:8: '../a' cannot be a group's name: letters, digits, '_', '-' and '.' (the last two not at the front), at most 64
            /etc/seekway/serve.toml:11: write each group as [[group]] with name = "…" and its limits
            /etc/seekway/serve.toml:16: a group 'b' is there already (/etc/seekway/serve.toml:13); names differ
            /etc/seekway/serve.toml:20: disk db: iops and read_iops contradict: limit reads and writes together, or each apart
            /etc/seekway/serve.toml:25: iops_burst=0: at least 1; leave it out for no limit
            /etc/seekway/serve.toml:26: disk log: no group 'c'; give it its limits, as in --group c:bandwidth=300MiB or [[group]] in the file
            /etc/seekway/serve.toml:30: iops: expected a text or a number
        "#]],
    );
    check(
        "group = 1",
        expect![[r#"
        /etc/seekway/serve.toml:1: write each group as [[group]]
    "#]],
    );
    let mut flags = Settings::default();
    flags.disk_flag("a=x,iops=1,read_iops=1");
    flags.disk_flag("b=x,iops");
    flags.disk_flag("b=x,total_bytes_sec=5");
    flags.disk_flag("c=x,group=nobody");
    flags.group_flag("a:iops_burst=5");
    flags.group_flag("b");
    expect![[r#"
        --disk a=x,iops=1,read_iops=1: disk a: iops and read_iops contradict: limit reads and writes together, or each apart
        --disk b=x,iops: iops=: expected a whole number, in which k is 1000 and M is 1000000
        --disk b=x,total_bytes_sec=5: no limit 'total_bytes_sec' (libvirt's name): write bandwidth
        --disk c=x,group=nobody: disk c: no group 'nobody'; give it its limits, as in --group nobody:bandwidth=300MiB or [[group]] in the file
        --group a:iops_burst=5: group a: iops_burst needs iops
        --group b: group b has no limit and no weight: give it bandwidth, iops or weight, as in b:bandwidth=300MiB
    "#]].assert_eq(&shown(flags));
}

/// One error for each fault: neither a group with a wrong key nor its disks are told more.
#[test]
fn limits_of_qemu_are_named_and_nothing_false_is_said() {
    check(
        r#"
[[group]]
name = "t"
total_bytes_sec = 5
[[group]]
name = "u"
iops_burst = 5
[[group]]
name = "empty"

[[disk]]
name = "db"
path = "db.img"
group = "t"
[disk.throttling]
iops-total = 5
bps-read-max = 6
[[disk]]
name = "log"
path = "log.img"
group = "u"
throttling.colour = 5
bps_rd = 5
iops = {}
"#,
        expect![[r#"
            /etc/seekway/serve.toml:4: no limit 'total_bytes_sec' (libvirt's name): write bandwidth
            /etc/seekway/serve.toml:5: group u: iops_burst needs iops
            /etc/seekway/serve.toml:8: group empty has no limit and no weight: give it bandwidth, iops or weight, as in empty:bandwidth=300MiB
            /etc/seekway/serve.toml:16: no limit 'throttling.iops-total' (QEMU's name): write iops
            /etc/seekway/serve.toml:17: no limit 'throttling.bps-read-max' (QEMU's name): write read_bandwidth_burst
            /etc/seekway/serve.toml:22: a disk has no option 'throttling.colour'; it has weight, ro, lba, buffered, cache, accept-lost-writes, incoming, block_size, guest_memory, serial, on, nbd, allow, socket_owner, socket_group, socket_mode, fault, and limits: iops, bandwidth, iops_burst, bandwidth_burst, iops_burst_length, bandwidth_burst_length (each also with read_ or write_ in front), burst_length, iops_size, reserve_iops, reserve_bandwidth, latency, group
            /etc/seekway/serve.toml:23: no limit 'bps_rd' (QEMU's name): write read_bandwidth
            /etc/seekway/serve.toml:24: iops: expected a text or a number
        "#]],
    );
    let mut flags = Settings::default();
    flags.disk_flag("db=db.img,group=t");
    flags.group_flag("t:total_bytes_sec=5");
    expect![[r#"
        --group t:total_bytes_sec=5: no limit 'total_bytes_sec' (libvirt's name): write bandwidth
    "#]]
    .assert_eq(&shown(flags));
}

#[test]
fn flags_are_named_like_keys() {
    assert_eq!(flag("hard_limit"), "--hard-limit");
    assert_eq!(flag("tls.client_ca"), "--tls-client-ca");
    let mut settings = Settings::default();
    settings.flag("depth", "5000");
    let wrong = settings.resolve().unwrap_err().to_string();
    assert_eq!(wrong, "--depth: 5000: expected a number of commands from 1 to 4096");
}

/// The example has every setting, and docs/serve.md every option of a disk.
#[test]
fn every_setting_is_in_the_manual() {
    let example = include_str!("../../../../share/examples/serve.toml");
    for key in SETTINGS.iter().flat_map(|(_, keys)| *keys) {
        let line = format!("{} = ", key.name.trim_start_matches("tls."));
        assert!(example.contains(&line), "share/examples/serve.toml: no {}", key.name);
    }
    let docs = include_str!("../../../../docs/serve.md");
    for option in OPTIONS {
        let name = option.name;
        assert!(docs.contains(&format!("`{name}")), "docs/serve.md: no option {name}");
    }
}
