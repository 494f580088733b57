//! The units in share/systemd are confined: systemd's own judge says how much is left open.

use std::path::PathBuf;
use std::process::Command;

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
