//! The solid-state drives against their makers' figures.

use seekway_core::units::SECTOR_BYTES;
use seekway_device::{profile, published};

/// Figures that the models do not meet, with the models' values: docs/flash-evidence.md has the
/// reasons. A model that comes to meet one takes its line out.
const MISSED: [&str; 16] = [
    "samsung-970-pro-512gb: 18385 reads/s of 18.9 KiB beside 6073 writes/s of 7.5 KiB: p99 of reads",
    "samsung-970-pro-512gb: 49206 reads/s of 12.8 KiB beside 18923 writes/s of 11.9 KiB: p50 of reads",
    "samsung-970-pro-512gb: 49206 reads/s of 12.8 KiB beside 18923 writes/s of 11.9 KiB: p99 of reads",
    "samsung-970-pro-512gb: 85515 reads/s of 11.2 KiB beside 36928 writes/s of 6 KiB: p50 of reads",
    "samsung-970-pro-512gb: 85515 reads/s of 11.2 KiB beside 36928 writes/s of 6 KiB: p99 of reads",
    "samsung-860-250gb: random read 4 KiB, depth 32",
    "samsung-860-250gb: 6059 reads/s of 22.2 KiB beside 1819 writes/s of 16.1 KiB: p99 of reads",
    "samsung-860-250gb: 8907 reads/s of 21.8 KiB beside 2859 writes/s of 14.7 KiB: p50 of reads",
    "samsung-860-250gb: 8907 reads/s of 21.8 KiB beside 2859 writes/s of 14.7 KiB: p99 of reads",
    "samsung-860-250gb: 11849 reads/s of 21.3 KiB beside 4357 writes/s of 12.5 KiB: p50 of reads",
    "samsung-860-250gb: 11849 reads/s of 21.3 KiB beside 4357 writes/s of 12.5 KiB: p99 of reads",
    "intel-dc-p3700: 100 % reads, depth 16: p99 of reads",
    "aws-i3-nvme: 20631 reads/s of 0.5 KiB beside 610 writes/s of 128 KiB: p95 of reads",
    "aws-i3-nvme: 20631 reads/s of 0.5 KiB beside 3053 writes/s of 128 KiB: p50 of reads",
    "aws-i3-nvme: 20631 reads/s of 0.5 KiB beside 3053 writes/s of 128 KiB: p95 of reads",
    "aws-i3-nvme: 100 % reads, depth 256 beside 4580 writes/s of 128 KiB",
];

#[test]
fn every_published_figure_is_met_within_the_tolerance_or_is_known_to_be_missed() {
    let (mut checked, mut missed) = (0, Vec::new());
    for name in profile::names() {
        let profile = profile::load(name).unwrap();
        let Some(figures) = profile.published() else { continue };
        assert!(figures.span_sectors() * SECTOR_BYTES > 7_000_000_000, "{name}");
        for figure in published::run(&figures, |begin| profile.build_for(begin)) {
            checked += u32::from(figure.published.is_some());
            if !figure.holds() {
                missed.push(format!("{name}: {}", figure.test));
            }
        }
    }
    assert_eq!(missed, MISSED);
    assert!(checked > 14 + 30, "the makers' figures of four drives, and mixes: {checked}");
}

#[test]
fn a_figure_that_is_off_is_told() {
    // Slower flash: half of the published writes, a little less for reads.
    let profile = profile::load("intel-320:program_us=3500").unwrap();
    let figures = published::run(&profile.published().unwrap(), |begin| profile.build_for(begin));
    let off: Vec<&str> = figures.iter().filter(|f| !f.holds()).map(|f| f.test.as_str()).collect();
    assert_eq!(off, ["sequential write 128 KiB, depth 32", "random write 4 KiB, depth 32"]);
}
