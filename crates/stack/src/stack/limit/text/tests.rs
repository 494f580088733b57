//! Limits as text: what is read, what is refused and how.

use super::*;
use proptest::prelude::*;

fn check(text: &str, shown: &str) {
    let parsed = DiskLimits::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(parsed.to_string(), shown, "{text}");
    assert_eq!(DiskLimits::parse(shown).as_ref(), Ok(&parsed), "{shown}");
}

#[test]
fn limits_are_read_and_printed() {
    check("iops=2000", "iops=2000");
    check(
        "iops=2000,iops_burst=8000,burst_length=10s,bandwidth=100MiB",
        "iops=2000,iops_burst=8000,iops_burst_length=10s,bandwidth=100MiB",
    );
    check("bandwidth=104857600,group=tenant1", "bandwidth=100MiB,group=tenant1");
    check(
        "read_bandwidth=1000,write_iops=5,iops_size=4096",
        "write_iops=5,read_bandwidth=1000,iops_size=4KiB",
    );
    // A burst's own length is before the common one.
    check(
        "read_iops=1,read_iops_burst=2,read_iops_burst_length=500ms,write_iops=1,write_iops_burst=2,burst_length=10s",
        "read_iops=1,read_iops_burst=2,read_iops_burst_length=500ms,write_iops=1,write_iops_burst=2,write_iops_burst_length=10s",
    );
    check("iops=5,iops_burst=5,burst_length=1s", "iops=5,iops_burst=5");
    // Of counts k is 1000, of bytes 1024.
    check("iops=1k,reserve_iops=0.5k,bandwidth=1k", "iops=1000,bandwidth=1KiB,reserve_iops=500");
    check("group=tenant1", "group=tenant1");
    check(
        "latency=2ms,reserve_bandwidth=52428800,reserve_iops=500,iops=500",
        "iops=500,reserve_iops=500,reserve_bandwidth=50MiB,latency=2ms",
    );
    check("latency=1500us,group=a", "latency=1500us,group=a");
    check("none", "none");
    let (name, limits) = parse_group("tenant1:bandwidth=300MiB").unwrap();
    assert_eq!((name.as_str(), limits.to_string()), ("tenant1", "bandwidth=300MiB".into()));
    let (_, limits) = parse_group("tenant1:weight=4,iops=9").unwrap();
    assert_eq!(limits.to_string(), "iops=9,weight=4");
}

#[test]
fn contradictions_name_both() {
    for (text, part) in [
        ("iops=1,read_iops=1", "iops and read_iops contradict: limit reads and writes together"),
        ("write_bandwidth=1,bandwidth=1", "bandwidth and write_bandwidth contradict"),
        ("iops=1,iops_burst=2,read_iops_burst=2", "iops_burst and read_iops_burst contradict"),
        ("iops_burst=2", "iops_burst needs iops"),
        ("iops=1,read_iops_burst=2", "read_iops_burst needs read_iops"),
        ("bandwidth=1,iops_burst=2", "iops_burst needs iops"),
        ("iops=3,iops_burst=2", "iops_burst=2 is below iops=3"),
        ("iops=3,iops_burst_length=2s", "iops_burst_length needs iops_burst"),
        ("iops=3,burst_length=2s", "burst_length needs a burst, such as iops_burst"),
        ("read_bandwidth=3,burst_length=2s", "such as read_bandwidth_burst"),
        ("group=a,burst_length=2s", "such as iops_burst"),
        ("bandwidth=3,iops_size=4k", "iops_size needs a limit of IOPS"),
        ("iops=300,reserve_iops=500", "reserve_iops=500 is above iops=300: it could never be had"),
        ("reserve_bandwidth=1025,bandwidth=1024", "reserve_bandwidth=1025 is above bandwidth=1024"),
        ("iops=1,iops=2", "iops is given twice"),
        ("group=a,group=b", "group is given twice"),
        (
            "iops=1,iops_burst=1000000000000,burst_length=1h",
            "burst_length=3600s is too long for iops_burst=1000000000000",
        ),
    ] {
        let error = DiskLimits::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    for (text, part) in [
        ("iops=0", "iops=0: at least 1; leave it out for no limit"),
        ("bandwidth=0", "leave it out for no limit"),
        ("iops=-1", "expected a whole number"),
        ("iops=1ki", "expected a whole number, in which k is 1000"),
        ("iops=1.5", "expected a whole number"),
        ("iops=1e3", "expected a whole number"),
        ("iops=1000000000000001", "iops=1000000000000001: at most 1000000000000000"),
        ("iops=99999999999999999999", "too large"),
        ("bandwidth=fast", "bandwidth=fast: expected bytes with a unit"),
        ("bandwidth=100MB", "bandwidth=100MB: MB are powers of 1000 for some programs"),
        ("bandwidth=1000TiB", "at most 900TiB"),
        ("iops=1,iops_burst=2,burst_length=0", "expected a time such as 10s"),
        ("iops=1,iops_burst=2,burst_length=10", "burst_length=10: expected a time such as 10s"),
        ("iops=1,iops_burst=2,burst_length=10x", "expected a time such as 10s"),
        ("iops=1,iops_burst=2,burst_length=1001h", "from 1ms to 1000h"),
        ("iops=1,iops_size=0", "iops_size=0: at least 1"),
        ("reserve_iops=0", "reserve_iops=0: at least 1"),
        ("reserve_bandwidth=5ms", "reserve_bandwidth=5ms: expected bytes"),
        ("latency=0", "latency=0: expected a time from 1us to 60s, such as 2ms"),
        ("latency=2", "latency=2: expected a time"),
        ("latency=61s", "from 1us to 60s"),
        ("weight=0", "weight=0: expected a whole number from 1"),
        ("weight=4294967296", "expected a whole number from 1"),
        ("group=../a", "cannot be a group's name"),
        ("group=", "cannot be a group's name"),
        ("ro", "'ro' is not key=value, as in iops=2000"),
        ("iops=5, ro", "'ro' is not key=value"),
        ("", "no limit is given; there are iops, bandwidth"),
        ("oips=1", "no limit 'oips'; there are iops, bandwidth"),
    ] {
        let error = DiskLimits::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    for (text, part) in [
        ("a:iops=1,group=b", "group: a group cannot be in a group"),
        ("a", "group a has no limit and no weight: give it bandwidth, iops or weight"),
        ("a:reserve_iops=5", "reserve_iops: a group has none; give it to its disks"),
        ("a:latency=5ms", "latency: a group has none"),
        ("a:weight=0", "weight=0: expected a whole number from 1"),
        ("a b:iops=1", "cannot be a group's name"),
        (":iops=1", "no name"),
        ("a:oips=1", "no limit 'oips'"),
    ] {
        let error = parse_group(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(Limits::parse("group=a").unwrap_err().to_string().contains("cannot be in a group"));
}

/// docs/limits.md has each key with the names that it has elsewhere, and an error says ours.
#[test]
fn names_of_libvirt_and_qemu_are_translated() {
    let docs = include_str!("../../../../../../docs/limits.md");
    let has_row = |[ours, libvirt, qemu, qmp]: Names, end: &str| {
        let row = match ours == libvirt {
            true => format!("| `{ours}` | | | |"),
            false => format!("| `{end}{ours}` | `{end}{libvirt}` | `{end}{qemu}` | `{end}{qmp}` |"),
        };
        assert!(docs.contains(&row), "docs/limits.md: no row {row}");
    };
    RATES.iter().for_each(|(.., names)| has_row(*names, ""));
    PARTS[1..].iter().for_each(|(_, ends)| has_row(*ends, "…"));
    OTHERS.iter().for_each(|(_, names)| has_row(*names, ""));
    for (text, part) in [
        ("total_iops_sec=5", "no limit 'total_iops_sec' (libvirt's name): write iops"),
        ("write_bytes_sec_max_length=5", "(libvirt's name): write write_bandwidth_burst_length"),
        ("iops=5,bps-read-max=5", "no limit 'bps-read-max' (QEMU's name): write read_bandwidth_bu"),
        ("size_iops_sec=5", "(libvirt's name): write iops_size"),
        ("group_name=a", "(libvirt's name): write group"),
        ("throttling.iops-total=5", "no limit 'throttling.iops-total' (QEMU's name): write iops"),
        ("throttling-bps-write-max-length=5", "(QEMU's name): write write_bandwidth_burst_length"),
        ("throttling.iops=5", "no limit 'throttling.iops' (QEMU's name): write iops"),
        ("throttling.group=a", "(QEMU's name): write group"),
        ("bps=5", "no limit 'bps' (QEMU's name): write bandwidth"),
        ("bps_rd=5", "(QEMU's name): write read_bandwidth"),
        ("iops_rd=5", "(QEMU's name): write read_iops"),
        ("bps_max=5", "(QEMU's name): write bandwidth_burst"),
        ("iops_wr_max_length=5", "(QEMU's name): write write_iops_burst_length"),
        ("throttling.total_iops_sec=5", "no limit 'throttling.total_iops_sec'; there are iops"),
    ] {
        let error = DiskLimits::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert_eq!((is_limit("iops_burst"), is_limit("weight")), (Ok(true), Ok(true)));
    assert_eq!((is_limit("throttling"), is_limit("")), (Ok(false), Ok(false)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is accepted prints as something that is read as the same.
    #[test]
    fn what_is_printed_is_read(pairs in prop::collection::vec((0usize..24, 0u64..3000), 0..8)) {
        let rates = RATES.iter().flat_map(|(.., names)| PARTS.map(|(_, ends)| [names[0], ends[0]].concat()));
        let keys: Vec<_> = rates.chain(OTHERS.iter().map(|(_, names)| names[0].to_string())).collect();
        let texts: Vec<String> = pairs
            .iter()
            .map(|(key, value)| match keys[*key].ends_with("length") {
                true => format!("{}={value}s", keys[*key]),
                false => format!("{}={value}", keys[*key]),
            })
            .collect();
        if let Ok(limits) = DiskLimits::parse(&texts.join(",")) {
            prop_assert_eq!(DiskLimits::parse(&limits.to_string()), Ok(limits));
        }
    }

    /// No text of up to 80 characters makes a parser panic.
    #[test]
    fn any_text_is_answered(text in "\\PC{0,80}") {
        let _ = (DiskLimits::parse(&text), parse_group(&text), Limits::parse(&text));
    }
}
