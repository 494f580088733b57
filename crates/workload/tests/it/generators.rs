//! Generators through the guest model against a disk of constant latency.

use crate::device;

use device::{DATA, LATENCY, MIB, Run, vm};
use seekway_core::request::Op;
use seekway_core::units::Nanos;
use seekway_workload::generators::{REGISTRY, parse_vm};

#[test]
fn sequential_read_reads_each_byte_once_in_large_requests() {
    for kib in [48, 64, 128] {
        let done = vm(&format!("max_request_kib={kib},app=sysbench:mode=SR,size=256m"), 3);
        let mut reads = done.of(Op::Read);
        assert_eq!(reads.iter().map(|i| i.len.get()).sum::<u64>(), 256 * MIB);
        reads.sort_by_key(|i| i.start);
        assert!(reads.windows(2).all(|w| w[0].start.get() + w[0].len.get() <= w[1].start.get()));
        let full = reads.iter().filter(|i| i.len.get() == kib * 2).count() as u64;
        assert!(full * kib * 2 * 10 > 256 * MIB * 6, "{kib} KiB: {full} full requests");
        assert!(reads.iter().all(|i| i.len.get() <= kib * 2));
        assert_eq!(done.apps[0].bytes, 256 << 20);
        assert!(done.apps[0].finished.is_some());
    }
}

#[test]
fn two_windows_are_in_flight_in_sequential_reading() {
    let done = vm("app=sysbench:mode=SR,size=256m,threads=1,files=1", 3);
    assert_eq!(done.in_flight_max, 2);
    let one_by_one = LATENCY.scaled(done.issued.len() as u64, 1);
    let took = done.apps[0].finished.unwrap().as_nanos();
    assert!(took < one_by_one.scaled(6, 10).get(), "{took} ns against {one_by_one}");
}

#[test]
fn random_read_sends_blocks_from_all_threads() {
    let done = vm("ram=120m,app=sysbench:mode=RR,requests=4000", 9);
    let reads = done.of(Op::Read);
    let blocks = reads.iter().filter(|i| i.len.get() == 32).count();
    assert!(blocks * 100 >= reads.len() * 95, "{blocks} of {}", reads.len());
    let full = done.issued.iter().filter(|i| i.2 >= 12).count();
    assert!(full * 10 > reads.len() * 9, "{full} of {} join 12 or more", reads.len());
    // More where a random block happens to be a file's first: Linux reads ahead there.
    assert!((16..=18).contains(&done.in_flight_max), "{}", done.in_flight_max);
    assert!(reads.iter().all(|i| i.start.get() >= DATA));
    assert!(done.apps[0].bytes == 4000 * 16384);
}

#[test]
fn sequential_write_writes_each_page_once_and_the_journal_at_the_start() {
    let done = vm("app=sysbench:mode=SW,size=256m", 5);
    let mut data: Vec<_> =
        done.of(Op::Write).into_iter().filter(|i| i.start.get() >= DATA).collect();
    data.sort_by_key(|i| i.start);
    assert_eq!(data.iter().map(|i| i.len.get()).sum::<u64>(), 256 * MIB);
    assert!(data.windows(2).all(|w| w[0].start.get() + w[0].len.get() <= w[1].start.get()));
    let log = done.of(Op::Write).into_iter().filter(|i| i.start.get() < DATA).count();
    assert!(log > 2, "{log} requests below the data");
}

#[test]
fn random_write_reaches_the_disk_and_fsync_commits() {
    let done =
        vm("host_direct=false,mtime=4ms,app=sysbench:mode=RW,size=64m,files=16,requests=1000", 5);
    let writes = done.of(Op::Write);
    let data: u64 = writes.iter().filter(|i| i.start.get() >= DATA).map(|i| i.len.get()).sum();
    assert!((32 * 700..=32 * 1000).contains(&data), "{data} sectors for 1000 blocks of 32");
    let journal = writes.iter().filter(|i| (65 * MIB..DATA).contains(&i.start.get())).count();
    assert!(journal >= 6, "{journal} journal writes");
    assert!(writes.iter().filter(|i| i.start.get() >= DATA).any(|i| i.sync));
    assert_eq!(done.apps[0].bytes, 1000 * 16384);
}

#[test]
fn latency_delays_and_changes_nothing_else() {
    let text = "app=sysbench:mode=SR,size=64m";
    let (a, b) = (vm(text, 1), vm(&format!("latency=1ms,{text}"), 1));
    assert_eq!(a.of(Op::Read).len(), b.of(Op::Read).len());
    assert!(b.ended.since(a.ended) > Nanos::from_millis(100));
}

#[test]
fn jitter_is_about_the_latency_and_repeatable() {
    let text = "app=fio:rw=randread,size=64m,direct=true,iodepth=4,io_size=4m";
    let ended = |keys: &str| vm(&format!("{keys},{text}"), 1).ended;
    let (exact, varied) = (ended("latency=2ms"), ended("latency=2ms,jitter=1ms"));
    assert_ne!(exact, varied);
    assert_eq!(varied, ended("latency=2ms,jitter=1ms"));
    let (a, b) = (exact.as_nanos() as f64, varied.as_nanos() as f64);
    // The ring keeps its order, so that four in flight wait a little longer on average.
    assert!((0.9..1.5).contains(&(b / a)), "{exact} and {varied}");
}

#[test]
fn every_generator_ends_and_is_repeatable() {
    let texts = [
        "app=fio:rw=randrw,size=8m,iodepth=4,numjobs=2,fsync=7",
        "app=fio:rw=read,size=32m,direct=true,iodepth=8,bs=64k",
        "app=fio:rw=randread,size=64m,zipf=1.1,io_size=4m,rate_iops=2000",
        "app=fio:rw=rw,size=16m,time_based=true,runtime=2s,thinktime=1ms",
        "app=fio:rw=write,size=16m,sync=true,bs=32k",
        "app=sync:rw=read,size=16m",
        "app=sync:rw=randread,size=16m",
        "ram=256m,app=hadoop:bytes=128m,block=16m,spill=10m,maps=4",
        "app=tpch:query=q2,size=64m,lookups=500",
        "app=tpch:query=q19,size=64m,workers=2,app=sysbench:mode=RRW,size=16m,requests=500",
        "app=uniform:requests=5000,read=70",
        "app=fileserver:files=300,operations=900",
        "app=webserver:files=900,operations=900",
        "app=oltp:size=4m,operations=5000,threads=20",
        "app=mailserver:files=300,operations=900",
        "app=build:files=300,compute=1ms,operations=900",
        "app=proxy:files=300,operations=900",
        "app=videoserver:size=2m,operations=900,interval=1s",
        "app=darwin:videos=4,size=4m,clients=8,workers=3,operations=900",
        "app=cloudstone:database=32m,files=50,operations=2000",
        "app=wiki:database=32m,files=50,operations=2000",
        "app=ycsb:stores=4,size=4m,operations=900",
        "image=2g,app=surge:files=5000,requests=2000,processes=9,direct=false",
        "app=iometer:read=60,random=50,depth=4,requests=2000,size=64m,direct=false,runtime=1s",
        "tags=true,barrier=true,journal=none,pieces=4,app=sysbench:mode=RW,size=16m,requests=300",
    ];
    for name in REGISTRY.names() {
        assert!(texts.iter().any(|t| t.contains(&format!("app={name}:"))), "no text has {name}");
    }
    for text in texts {
        let (a, b) = (vm(text, 1), vm(text, 1));
        assert_eq!(a.issued, b.issued, "{text}");
        assert!(a.apps.iter().all(|app| app.finished.is_some() && app.bytes > 0), "{text}");
    }
}

#[test]
fn defaults_of_servers_and_services_fit_on_the_default_image() {
    let servers = ["fileserver", "webserver", "oltp", "mailserver", "proxy", "videoserver"];
    for app in servers.into_iter().chain(["darwin", "cloudstone", "wiki", "ycsb"]) {
        parse_vm(&format!("app={app}")).unwrap().source(1, 0).map(|_| ()).unwrap();
    }
}

#[test]
fn bad_parameters_are_told() {
    let mut bad: Vec<(String, &str)> = [
        ("iometer:block=8g", "no block of"),
        ("iometer:block=0", "no block of"),
        ("darwin:size=4k", "make videos larger"),
        ("cloudstone:database=4k", "must hold a block"),
        ("wiki:iosize=0", "iosize must not be 0"),
        ("ycsb:size=4k", "make store files larger"),
    ]
    .map(|(text, part)| (text.into(), part))
    .into();
    for app in ["fileserver", "webserver", "mailserver", "proxy"] {
        bad.push((format!("{app}:iosize=0"), "iosize must not be 0"));
        bad.push((format!("{app}:append=2g"), "at most 1 GiB"));
        bad.push((format!("{app}:size=0"), "size must not be 0"));
    }
    for (text, part) in bad {
        let error = parse_vm(&format!("app={text}")).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn fio_keeps_its_rate_and_its_depth() {
    let done = vm("app=fio:rw=randread,size=64m,io_size=4m,rate_iops=500,direct=true", 1);
    let took = done.apps[0].finished.unwrap().as_secs_f64();
    assert!((took - 1024.0 / 500.0).abs() < 0.05, "{took} s for 1024 requests at 500 a second");
    for direct in ["true", "false"] {
        let text = format!("app=fio:rw=randread,bs=4k,iodepth=16,size=64m,direct={direct}");
        let done = vm(&text, 1);
        assert!(done.in_flight_max >= 16, "direct={direct}: {}", done.in_flight_max);
        let read: u64 = done.of(Op::Read).iter().map(|i| i.len.get()).sum();
        assert_eq!(read, 64 * MIB, "each block once, direct={direct}");
    }
}

#[test]
fn a_synchronous_reader_has_one_request_outstanding() {
    let done = vm("app=sync:rw=read,size=16m", 1);
    let reads = done.of(Op::Read);
    assert_eq!((done.in_flight_max, reads.len()), (1, 256));
    assert!(reads.windows(2).all(|w| w[0].start + w[0].len == w[1].start));
}

#[test]
fn tags_tell_processes_apart_and_spare_the_flusher() {
    let text = "host_direct=false,tags=true,app=fio:rw=read,size=4m,numjobs=2,\
                app=sysbench:mode=SW,size=16m";
    let done = vm(text, 1);
    let mut tags: Vec<u16> = done.of(Op::Read).iter().map(|i| i.tag.unwrap().get()).collect();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags, [8, 9]);
    assert!(done.of(Op::Write).iter().all(|i| i.sync || i.tag.is_none()));
}

#[test]
fn an_image_opened_with_o_direct_makes_all_writes_synchronous() {
    let text = "dirty_background=1,app=sysbench:mode=SW,size=64m";
    let (default, with, without) = (
        vm(text, 1),
        vm(&format!("host_direct=true,{text}"), 1),
        vm(&format!("host_direct=false,{text}"), 1),
    );
    assert_eq!(default.issued, with.issued, "true is the default");
    assert!(with.issued.iter().all(|i| i.1.sync));
    // The flusher's are not waited for, those of the final fsyncs and of the journal are.
    let sync = without.of(Op::Write).iter().filter(|i| i.sync).count();
    let all = without.of(Op::Write).len();
    assert!(sync > 0 && sync < all, "{sync} of {all}");
    // Nothing else differs.
    let extents = |run: &Run| -> Vec<_> {
        run.issued.iter().map(|(at, i, _)| (*at, i.op, i.start, i.len)).collect()
    };
    assert_eq!(extents(&with), extents(&without));
}

#[test]
fn tpch_scans_lineitem_once_and_looks_up_now_and_then() {
    const PAGE: u64 = 8192;
    let lineitem = ((64u64 << 20) / 1000 * 700).div_ceil(PAGE);
    let done = vm("app=tpch:query=q19,size=64m", 1);
    // Every 64 pages a lookup of two: the index of part, and part.
    assert_eq!(done.apps[0].bytes, (lineitem + lineitem / 64 * 2) * PAGE);
    let read = done.of(Op::Read);
    let first = read.iter().map(|i| i.start).min().unwrap();
    let in_order: Vec<_> =
        read.iter().filter(|i| i.start.get() < first.get() + lineitem * 16).collect();
    assert!(in_order.windows(2).all(|w| w[0].start + w[0].len == w[1].start), "a gap in the scan");
    assert_eq!(in_order.iter().map(|i| i.len.get()).sum::<u64>(), lineitem * 16);
    // q2 reads five pages a part, all over its tables and never lineitem.
    let done = vm("app=tpch:query=q2,size=64m,lookups=300", 1);
    assert_eq!(done.apps[0].bytes, 300 * 5 * PAGE);
    assert!(done.of(Op::Read).iter().all(|i| i.start.get() >= first.get() + lineitem * 16));
}

#[test]
fn a_hadoop_node_moves_its_data_through_all_phases() {
    let done = vm("app=hadoop:bytes=256m,block=32m", 1);
    // Map: read and spill; reduce: fetch (read, write), merge (read, write).
    assert_eq!(done.apps[0].bytes, 6 * (256 << 20));
    let full = done.of(Op::Read).iter().map(|i| i.len.get()).sum::<u64>();
    assert!(full >= 256 * MIB, "{full} sectors read");
}
