//! The requests that each application gives, as one checksum for each load and seed in
//! `tests/golden/generators.txt`: a generator that is written anew must give the same.
//! `UPDATE_EXPECT=1 cargo test -p seekway-workload --test it generators_golden` rewrites it.

use crate::device;

use device::run;
use expect_test::expect_file;
use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use seekway_workload::Issue;
use seekway_workload::generators::parse_vm;
use std::fmt::Write;

/// Latency of the disk.
const LATENCY: Nanos = Nanos::from_micros(300);
/// Requests that are looked at.
const REQUESTS: usize = 5000;

/// Each generator with its defaults where those are quick, and with each parameter that
/// leads another way through its code.
const LOADS: &[&str] = &[
    "app=sysbench:mode=RRW,size=64m,requests=3000",
    "app=fio:rw=randrw,size=8m,iodepth=4,numjobs=2,fsync=7",
    "image=2g,app=surge:files=5000,requests=2000,processes=9,direct=false",
    "app=iometer:read=60,random=50,depth=4,requests=2000,size=64m,direct=false",
    "app=iometer:read=40,random=70,depth=8,iops=2000,arrival=exponential,requests=1500,size=64m",
    "app=iometer:random=100,depth=2,iops=20000,arrival=exponential,late=drop,runtime=700ms,size=1g",
    "app=iometer:block=512b,depth=3,iops=700,requests=900,runtime=1s,size=1g",
    "app=iometer:depth=5,block=3000b,runtime=200ms,size=1m",
    "app=uniform:requests=5000,read=70",
    "ram=256m,app=hadoop:bytes=128m,block=16m,spill=10m,maps=4",
    "app=fileserver:operations=8000",
    "app=fileserver:files=40,threads=30,size=64k,iosize=16k,append=4k,operations=9000",
    "app=webserver:operations=9000",
    "ram=64m,app=webserver:files=900,threads=7,append=300k,operations=20000",
    "app=mailserver:operations=6000",
    "app=mailserver:files=5,threads=12,size=3k,operations=4000",
    "app=proxy:operations=9000",
    "ram=64m,app=proxy:files=300,threads=5,size=100k,iosize=8k,operations=9000",
    "app=oltp:operations=9000",
    "app=oltp:direct=true,files=3,size=20m,threads=20,writers=2,compute=0,operations=30000",
    "app=videoserver:operations=9000",
    "ram=128m,app=videoserver:size=3m,active=6,passive=4,threads=9,rate=0,interval=5ms,\
     iosize=96k,write_iosize=160k,operations=9000",
    "app=darwin:operations=9000",
    "ram=128m,app=darwin:videos=4,size=4m,clients=10,workers=3,rate_kib=2048,runtime=30s,\
     operations=4000",
    "app=cloudstone:operations=9000",
    "ram=64m,app=cloudstone:database=64m,files=30,size=200k,updates=50,uploads=40,compute=0,\
     zipf=1.2,operations=9000",
    "app=wiki:operations=9000",
    "ram=64m,app=wiki:database=64m,updates=30,uploads=20,with_file=0,workers=3,bytes=300m",
    "app=ycsb:operations=9000",
    "ram=64m,app=ycsb:stores=3,size=5m,clients=3,compactions=2,block=48k,compute=0,\
     operations=9000",
    "app=tpch:query=q19,size=128m,lookup_every=7",
    "ram=64m,app=tpch:query=q2,size=128m,lookups=1500,workers=3,cpu_page=0",
];

/// FNV-1a with 64 bits, over all fields of the requests.
fn checksum(issued: &[(Instant, Issue, usize)]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for (at, issue, _) in issued {
        let op = match issue.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 2,
            _ => 3,
        };
        let tag = issue.tag.map_or(0, |tag| u64::from(tag.get()));
        let (start, len) = (issue.start.get(), issue.len.get());
        let fields = [at.as_nanos(), u64::from(issue.vm), tag, op, issue.sync.into(), start, len];
        for byte in fields.into_iter().flat_map(u64::to_le_bytes) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    sum
}

#[test]
fn a_seed_gives_the_requests_that_it_always_gave() {
    let mut text = String::new();
    for load in LOADS {
        // A generator without a guest takes no tags.
        let tags = if load.contains("app=uniform") { "" } else { "tags=true," };
        let plan = parse_vm(&format!("{tags}{load}")).unwrap();
        let _ = writeln!(text, "{load}");
        for seed in [1, 2] {
            let done = run(&mut *plan.source(seed, 0).unwrap(), LATENCY);
            let issued = &done.issued[..done.issued.len().min(REQUESTS)];
            let (count, sum) = (issued.len(), checksum(issued));
            let last = issued.last().expect("a request").0.as_nanos();
            let bytes: u64 = done.apps.iter().map(|app| app.bytes).sum();
            let _ = writeln!(
                text,
                "  seed {seed}: {count} requests until {last} ns {sum:016x}, {bytes} bytes in all"
            );
        }
    }
    expect_file!["../golden/generators.txt"].assert_eq(&text);
}
