use super::*;

fn error(what: &str) -> String {
    load(what).err().map(|e| e.to_string()).unwrap_or_default()
}

fn assert_told(wrong: &[(&str, &str)]) {
    for (what, said) in wrong {
        assert!(error(what).contains(said), "{what}: {}", error(what));
    }
}

#[test]
fn every_embedded_profile_loads_under_its_name() {
    for name in names() {
        let p = load(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(p.name(), name);
        assert!(!p.summary().is_empty());
        assert_eq!(p.build().profile().capacity.get(), p.capacity_sectors());
    }
}

#[test]
fn overrides_reach_the_device() {
    assert_eq!(load("linear-15k4:queue_depth=7").unwrap().build().queue_depth(), 7);
    assert_eq!(
        load("cheetah-15k5:queue_depth=9,queue_order=sptf").unwrap().build().queue_depth(),
        9
    );
    assert_eq!(
        load("intel-320:queue_depth=8,write_buffer_kib=64").unwrap().build().queue_depth(),
        8
    );
    // Keys that are not the array's go to its members: half the drives, a third of the size.
    let array = "raid0-8x-x25m-g2:members=4,capacity_sectors=78147216,chunk_kib=128";
    assert_eq!(load(array).unwrap().capacity_sectors(), 4 * (78_147_216 / 256 * 256));
    assert_eq!(load("aws-gp3:queue_depth=5,seed=3").unwrap().build().queue_depth(), 5);
    assert_eq!(load("cloud-flash:queue_depth=6").unwrap().build().queue_depth(), 6);
    assert!(
        load(
            "seagate-1tb-7200:read_ahead_max=1,read_ahead_min=0,resume_below=0,segment_sectors=64"
        )
        .is_ok()
    );
}

/// Base IOPS and MiB/s of a volume, and what it may exceed them to.
fn rates(what: &str) -> [u64; 4] {
    let cloud = load(what).unwrap_or_else(|e| panic!("{what}: {e}"));
    let cloud = check::cloud(cloud.file.cloud.as_ref().expect("a cloud volume")).expect("checked");
    let mib = |bytes: u64| bytes >> 20;
    [cloud.ios.base, mib(cloud.bytes.base), cloud.ios.burst, mib(cloud.bytes.burst)]
}

#[test]
fn a_volume_s_rates_follow_from_its_size_by_the_provider_s_rule() {
    for (what, expected) in [
        // EBS user guide, "gp2 volume performance", table of volume sizes.
        ("aws-gp2:capacity=1GiB", [100, 128, 3_000, 128]),
        ("aws-gp2:capacity=33GiB", [100, 128, 3_000, 128]),
        ("aws-gp2", [300, 128, 3_000, 128]),
        ("aws-gp2:capacity=334GiB", [1_002, 250, 3_000, 250]),
        ("aws-gp2:capacity=500GiB", [1_500, 250, 3_000, 250]),
        ("aws-gp2:capacity=750GiB", [2_250, 250, 3_000, 250]),
        ("aws-gp2:capacity=1000GiB", [3_000, 250, 3_000, 250]),
        ("aws-gp2:capacity=5334GiB", [16_000, 250, 16_000, 250]),
        ("aws-gp2:capacity=16TiB", [16_000, 250, 16_000, 250]),
        // The order of the changes does not matter; a rate that the user gives stays.
        ("aws-gp3:capacity=1GiB", [3_000, 125, 3_000, 125]),
        ("aws-gp3:iops=16000,mib_s=1000,capacity=1TiB", [16_000, 1_000, 16_000, 1_000]),
        ("aws-gp3:capacity=160GiB,iops=80000,mib_s=2000", [80_000, 2_000, 80_000, 2_000]),
        ("aws-io2:capacity=4GiB", [4_000, 1_024, 4_000, 1_024]),
        ("aws-io2:capacity=1TiB,iops=256000", [256_000, 4_000, 256_000, 4_000]),
        ("aws-io2:iops=2000", [2_000, 512, 2_000, 512]),
        // A size between two is as fast as the larger.
        ("azure-premium-ssd", [500, 95, 3_500, 162]),
        ("azure-premium-ssd:capacity=129GiB", [1_100, 119, 3_500, 162]),
        // A tier of a larger size; without credit.
        ("azure-premium-ssd:iops=5000", [5_000, 190, 5_000, 190]),
        ("azure-p10:mib_s=143", [2_300, 143, 3_500, 162]),
        ("azure-p10:iops=500,burst_iops=500,io_credit=0", [500, 95, 500, 162]),
        ("azure-premium-ssd:capacity=1TiB", [5_000, 190, 5_000, 190]),
        ("azure-premium-ssd:capacity=32767GiB", [20_000, 858, 20_000, 858]),
        ("gcp-pd-balanced:capacity=500GiB", [6_000, 280, 6_000, 280]),
        ("gcp-pd-ssd:capacity=500GiB", [21_000, 480, 21_000, 480]),
        ("gcp-pd-ssd:capacity=10TiB", [100_000, 1_200, 100_000, 1_200]),
    ] {
        assert_eq!(rates(what), expected, "{what}");
    }
    // Published figures are of one size.
    let has_figures = |what: &str| load(what).unwrap().published().is_some();
    assert!(has_figures("aws-gp2") && !has_figures("aws-gp2:capacity=500GiB"));
    // The names of volumes of one size.
    assert_eq!(rates("aws-gp2-100gib"), rates("aws-gp2:capacity=100GiB"));
    assert_eq!(rates("azure-p10"), rates("azure-premium-ssd:capacity=128GiB"));
    assert_told(&[
        (
            "aws-gp3:capacity=32GiB,iops=20000",
            "cloud.iops: expected 3000 to 16000, as is sold (Amazon EBS user guide, volume types), found 20000",
        ),
        ("aws-gp3:mib_s=1000", "cloud.mib_s: expected 125 to 750, as is sold (Amazon"),
        (
            "aws-gp2:iops=5000",
            "cloud.iops: expected 300, as volumes of its size are sold (capacity=1667GiB has as much), \
             found 5000",
        ),
        ("aws-gp2:iops=20000", "(no size has as much)"),
        ("aws-gp2:mib_s=250", "expected 128, as volumes of its size are sold (capacity=171GiB"),
        (
            "gcp-pd-ssd:iops=15000",
            "expected 9000, as volumes of its size are sold (capacity=300GiB",
        ),
        ("gcp-pd-balanced:mib_s=200", "cloud.mib_s: expected 168"),
        (
            "azure-p10:iops=16000",
            "expected 500 or 1100 or 2300 or 5000 or 7500, as volumes of its size are sold \
             (capacity=4097GiB has as much)",
        ),
        ("azure-p10:iops=600", "capacity=129GiB has as much"),
        ("azure-p10:iops=5000,mib_s=95", "cloud.mib_s: expected 190"),
        ("azure-premium-ssd:capacity=5TiB,iops=7500", "expected 16000 or 18000 or 20000"),
        ("azure-p10:burst_iops=9000", "cloud.burst_iops: expected 0 to 3500, found 9000"),
        (
            "aws-gp3:capacity=65TiB",
            "cloud.capacity_sectors: expected 1 to 65536 GiB, as is sold (Amazon EBS user guide, volume types), found 66560 GiB",
        ),
        ("aws-gp3:capacity=100GB", "expected a size: GB are powers of 1000"),
    ]);
}

#[test]
fn a_size_changes_a_device_s_size_alone() {
    let size = |what: &str| load(what).unwrap().capacity_sectors();
    for name in ["linear-7200", "intel-320", "cloud-flash", "samsung-pm9a3", "seagate-exos-x24"] {
        assert_eq!(size(&format!("{name}:capacity=100GiB")), 100 << 21, "{name}");
    }
    // A quarter of the platters, at the same rates.
    let quarter = load("seagate-exos-x24:capacity=5587GiB").unwrap().build_disk().unwrap();
    let whole = load("seagate-exos-x24").unwrap().build_disk().unwrap();
    let [part, all] = [&quarter, &whole].map(|disk| &disk.mechanics().geometry);
    assert_eq!((part.cylinders(), part.locate(0).zone), (all.cylinders(), all.locate(0).zone));
    let last = part.locate(part.capacity() - 1);
    assert!(last.zone + 3 > all.locate(all.capacity() - 1).zone, "the platters are in use");
    assert_told(&[
        ("seagate-exos-x24:capacity=30TiB", "expected at most 22352GiB, which its platters hold"),
        (
            "raid10-8x-exos-x18:capacity=1TiB",
            "expected capacity_sectors (of each member) or members",
        ),
        ("intel-320:capacity=lots", "capacity=lots: expected bytes with a unit"),
    ]);
}

#[test]
fn a_derived_profile_is_its_original_with_changes() {
    let derived = load("cloud-flash").unwrap();
    let original = load("samsung-970-pro:host_mb_s=924,read_latency_us=58").unwrap();
    assert_eq!(derived.capacity_sectors(), original.capacity_sectors());
    assert_eq!(derived.build_ssd().unwrap().spec(), original.build_ssd().unwrap().spec());
    // The maker's figures are the original's.
    assert!(derived.published().is_none() && original.published().is_some());
}

#[test]
fn keys_with_their_defaults_are_no_keys() {
    for name in ["intel-320", "samsung-970-pro-gc"] {
        let spelt = load(&format!(
            "{name}:separate_paths=false,power_loss_protection=false,program_spread_us=0,seed=0,overlap=true,\
             planes=1,write_place=idlest,reads_first=0,program_suspends=0,program_suspend_us=0,\
             program_resume_us=0,program_keep_us=0,erase_suspends=0,erase_suspend_us=0,\
             erase_resume_us=0,erase_keep_us=0,resume_min_us=0"
        ));
        let plain = load(name).unwrap().build_ssd().unwrap().spec();
        assert_eq!(spelt.unwrap().build_ssd().unwrap().spec(), plain);
    }
}

#[test]
fn files_are_told_from_names() {
    for (what, expected) in [
        ("linear-15k4:queue_depth=2", None),
        ("a.toml", Some(("a.toml", ""))),
        ("/x/a.toml:segments=0,queue_depth=2", Some(("/x/a.toml", "segments=0,queue_depth=2"))),
        ("./disk", Some(("./disk", ""))),
    ] {
        assert_eq!(path_of(what), expected);
    }
    let text = text("linear-15k4").unwrap();
    assert_eq!(Profile::parse_with(text, "queue_depth=7").unwrap().build().queue_depth(), 7);
    assert!(Profile::parse_with(text, "queue_depth=0").is_err());
}

#[test]
fn a_key_that_would_do_nothing_is_refused() {
    assert_told(&[
        ("intel-320:seed=3", "expected 0, or ssd.program_spread_us above 0"),
        (
            "intel-320:program_spread_us=1501",
            "ssd.program_spread_us: expected 0 to 1500, found 1501",
        ),
        ("intel-320:planes=17", "ssd.planes: expected 1 to 16, found 17"),
        (
            "intel-320:program_suspends=1",
            "ssd.reads_first: expected above 0 with ssd.program_suspends or ssd.erase_suspends \
             above 0, found 0",
        ),
        (
            "intel-320:erase_suspends=1001,reads_first=1",
            "ssd.erase_suspends: expected 0 to 1000, found 1001",
        ),
        (
            "intel-320:program_keep_us=5",
            "ssd.program_keep_us: expected 0, or ssd.program_suspends above 0, found 5",
        ),
        (
            "intel-320:reads_first=1,erase_suspends=1,resume_min_us=5",
            "ssd.resume_min_us: expected 0, or ssd.program_suspends or",
        ),
        (
            "intel-320:map_entry_bytes=8",
            "ssd.map_entry_bytes: expected ssd.map_cache_kib beside it, found 8",
        ),
        ("intel-320:map_cache_kib=7", "ssd.map_cache_kib: expected 8 to"),
        ("intel-320:map_cache_kib=8,map_entry_bytes=3", "expected 4 to 64"),
        ("intel-320:reads_first=1.1", "ssd.reads_first: expected 0 to 1"),
        ("intel-320:write_place=here", "expected idlest or home"),
    ]);
}

#[test]
fn a_wrong_mix_is_refused_by_key() {
    let text = text("intel-320").unwrap();
    let mix = |keys: &str| error(&format!("{text}\n[[ssd.published.mix]]\n{keys}"));
    for (keys, said) in [
        ("iops = 1000.0", "ssd.published.mix[0]: expected depth, or reads_per_s above 0"),
        ("depth = 8\niops = 9.0", "mix[0].reads: expected 0 to 1 with depth, found none"),
        ("depth = 8\nreads = 2.0\niops = 9.0", "mix[0].reads: expected 0 to 1, found 2"),
        ("depth = 8\nreads = 0.5", "expected one of iops, read_mean_us"),
        ("reads_per_s = 5.0\niops = 9.0", "mix[0].iops: expected with depth"),
        ("reads_per_s = 5.0\nreads = 0.5\nread_p99_us = 9.0", "mix[0].reads: expected with depth"),
        ("depth = 999\nreads = 0.5\niops = 9.0", "mix[0].depth: expected 1 to 256, found 999"),
        ("reads_per_s = 0.001\nread_p99_us = 9.0", "mix[0].reads_per_s: expected 1 to 1"),
        ("reads_per_s = 5.0\nread_kib = 0.1\nread_p99_us = 9.0", "mix[0].read_kib: expected 0.5"),
        ("reads_per_s = 5.0\nread_p98_us = 9.0", "unknown field `read_p98_us`"),
    ] {
        assert!(mix(keys).contains(said), "{keys}: {}", mix(keys));
    }
    assert_eq!(mix("reads_per_s = 5.0\nread_p99_us = 9.0"), "");
    let derived = "name = 'x'\nsummary = 'y'\n[derived]\nfrom = 'linear-15k4'\n\
                   [derived.published]\nrandom_queue_depth = 1\nspan_gib = 1.0\nhost_us = 0.0\n";
    assert!(error(derived).contains("derived.published: expected derived.from not to be"));
}

#[test]
fn errors_say_what_and_where() {
    assert_told(&[
        ("cheetah", "known are: linear-15k4"),
        ("cheetah-15k5:replacement=random", "expected fifo or lru"),
        ("cheetah-15k5:colour=red", "expected one of"),
        ("cheetah-15k5:queue_depth=0", "disk.queue_depth: expected 1 to 256, found 0"),
        ("linear-15k4:read_ahead_idle=true", "read_ahead_idle"),
        ("a = 1\n", "line 1"),
        ("name = 'x'\nsummary = 'y'\n", "exactly one of"),
        ("intel-320:filled=2", "ssd.filled: expected 0 to 1, found 2"),
        ("intel-320:write_buffer_kib=4", "expected 8 to"),
        ("intel-320:channels=0", "ssd.channels"),
        ("intel-320:capacity_sectors=99999999999", "physical units"),
        ("raid0-8x-x25m-g2:colour=red", "or of its members one of"),
        ("raid0-8x-x25m-g2:read_us=-1", "ssd.read_us"),
        ("intel-320:state=gc,filled=0.2", "expected 0.5 to 1 with ssd.state"),
        ("intel-320:state=old", "expected in-order or gc"),
        ("aws-gp3:iops=1", "cloud.iops: expected 3000 to 50000"),
        ("aws-gp3:mib_s=1", "cloud.mib_s: expected 125 to 750"),
        ("aws-io2:iops=5", "cloud.iops: expected 100 to 100000"),
        (
            "aws-io2:capacity=3GiB",
            "expected 4 to 65536 GiB, as is sold (Amazon EBS user guide, volume types), found 3 GiB",
        ),
        (
            "gcp-pd-ssd:capacity=5GiB",
            "10 to 65536 GiB, as is sold (cloud.google.com/compute/docs/disks/persistent-disks), found 5 GiB",
        ),
        ("gcp-pd-balanced:capacity=65TiB", "found 66560 GiB"),
        (
            "azure-premium-ssd:capacity=1MiB",
            "expected 1 to 32767 GiB, as is sold (learn.microsoft.com, Azure managed disk types), found 0.001 GiB",
        ),
        ("aws-gp3:burst_iops=2000", "cloud.burst_iops: expected 3000 to"),
        ("aws-gp3:burst_iops=9000", "cloud.burst_iops: expected 0 to 3000, found 9000"),
        ("azure-p10:credit_mib=0", "cloud.burst_mib_s: expected with"),
        ("azure-p10:rpm=1", "expected one of iops"),
        ("cloud-flash:read_latency_us=x", "a time in µs"),
        ("cloud-flash:slow=0", "slow: expected 1 to 1024, found 0"),
        ("aws-gp3:slow=x", "a whole number"),
        (
            "name = 'x'\nsummary = 'y'\n[derived]\nfrom = 'nothing'\n",
            "no device profile is called `nothing`",
        ),
    ]);
    for (name, from, to, said) in [
        ("raid0-8x-x25m-g2", "intel-x25m-g2:", "raid0-8x-x25m-g2:", "a drive's profile"),
        ("intel-320", "mapping_kib = 8", "mapping_kib = 3", "ssd.mapping_kib: expected a divisor"),
        (
            "intel-320",
            "block_pages = 256",
            "planes = 2\nblock_pages = 9000",
            "ssd.block_pages: expected 1 to 8192",
        ),
        ("cheetah-15k4", "surfaces = ", "surfaces = 9", "disk.layout.surfaces: expected 1 to 64"),
    ] {
        let changed = text(name).unwrap().replacen(from, to, 1);
        assert!(error(&changed).contains(said), "{to}: {}", error(&changed));
    }
}
