//! The solid-state drives against what their makers say of them.

use seekway_device::{profile, published};
use seekway_policy::units::SECTOR_BYTES;

#[test]
fn every_published_figure_is_met_within_the_tolerance() {
    let mut checked = 0;
    for name in profile::names() {
        let profile = profile::load(name).unwrap();
        let Some(figures) = profile.published() else { continue };
        assert!(figures.span_sectors * SECTOR_BYTES > 7_000_000_000, "{name}");
        for figure in published::run(&figures, |begin| profile.build_for(begin)) {
            assert!(figure.holds(), "{name}: {figure:?}, error {:?}", figure.error());
            checked += u32::from(figure.published.is_some());
        }
    }
    assert_eq!(checked, 4 + 4 + 6);
}

#[test]
fn a_figure_that_is_off_is_told() {
    // Slower flash: half of what is published for writes, a little less for reads.
    let profile = profile::load("intel-320:program_us=3500").unwrap();
    let figures = published::run(&profile.published().unwrap(), |begin| profile.build_for(begin));
    let off: Vec<&str> = figures.iter().filter(|f| !f.holds()).map(|f| f.test.as_str()).collect();
    assert_eq!(off, ["sequential write 128 KiB, depth 32", "random write 4 KiB, depth 32"]);
}
