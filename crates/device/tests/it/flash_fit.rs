//! Drives with known parameters, measured as models and fitted.
#![allow(clippy::disallowed_macros)] // a test may print

use seekway_device::flash_fit::{
    Beside, COUNT, Cell, Fit, FlashDrive, KEYS, Measured, Observed, Told, fit, judge, matrix,
    simulate,
};
use seekway_device::profile::Profile;
use std::thread;

/// The seed of the fitted run, which has other offsets and is shorter.
const SEED_MEASURED: u64 = 7;
const SEED_MODEL: u64 = 1;
const LONGER: u64 = 4;
/// Largest error of a parameter that counts as determined.
const OFF_MAX: f64 = 0.1;

fn drive(values: [f64; COUNT], beside: Beside) -> FlashDrive {
    FlashDrive { values, beside }
}

/// The drive as a profile of 64 GiB: larger than all writes.
fn profile(drive: &FlashDrive) -> Profile {
    let fit = Fit { drive: *drive, told: [Told::Not; COUNT], beside_told: false };
    Profile::parse(&fit.profile_toml("known", "nothing", &[], 128 << 20)).expect("a profile")
}

fn run(profile: &Profile, cells: &[Cell], seed: u64, longer: u64) -> Vec<Observed> {
    let part = |first: usize| {
        let own = cells.iter().skip(first).step_by(2);
        own.map(|&cell| simulate(profile, cell, seed, longer)).collect::<Vec<_>>()
    };
    let parts: [Vec<Observed>; 2] = thread::scope(|scope| {
        let other = scope.spawn(|| part(1));
        [part(0), other.join().expect("it ends")]
    });
    (0..cells.len()).map(|n| parts[n % 2][n / 2]).collect()
}

fn measure(drive: &FlashDrive, cells: &[Cell]) -> Vec<Measured> {
    let seen = run(&profile(drive), cells, SEED_MEASURED, LONGER);
    cells.iter().zip(seen).map(|(&cell, seen)| Measured { cell, seen }).collect()
}

/// Fits the measurement of a known drive, and prints both.
fn fitted(name: &str, known: &FlashDrive, writes: bool) -> Fit {
    let measured = measure(known, &matrix(writes, true));
    let mut runs = 0;
    let found = fit(&measured, &mut |profile, cells| {
        runs += 1;
        run(profile, cells, SEED_MODEL, 1)
    })
    .expect("a fit");
    eprintln!("{name}: {runs} runs of the fitted half; {:?}", found.drive.beside);
    for (n, key) in KEYS.iter().enumerate() {
        let (value, found_value) = (known.value(n), found.drive.value(n));
        let off = 100.0 * (found_value / value - 1.0);
        let told = found.told[n];
        eprintln!("  {:18} {value:9.3} {found_value:9.3} {off:+6.1} % {told:?}", key.name);
    }
    let cells: Vec<Cell> = measured.iter().map(|m| m.cell).collect();
    let models = run(&found.drive.model().expect("a profile"), &cells, SEED_MODEL, 1);
    let known = run(&known.model().expect("a profile"), &cells, SEED_MODEL, 1);
    eprintln!("  the known drive itself: {:?}", judge(&measured, &known, true));
    for half in [true, false] {
        eprintln!("  fitted: {half}: {:?}", judge(&measured, &models, half));
    }
    found
}

/// Asserts that every determined parameter is the known one.
fn assert_recovered(known: &FlashDrive, found: &Fit, told: &[&str]) {
    let names = (0..COUNT).filter(|&n| matches!(found.told[n], Told::Fitted(_)));
    let names: Vec<&str> = names.map(|n| KEYS[n].name).collect();
    assert_eq!(names, told);
    for n in (0..COUNT).filter(|&n| told.contains(&KEYS[n].name)) {
        let off = found.drive.value(n) / known.value(n) - 1.0;
        assert!(off.abs() <= OFF_MAX, "{}: {off:+.3}", KEYS[n].name);
    }
}

/// An NVMe drive with many dies, whose reads wait.
const NVME: [f64; COUNT] = [3.0, 60.0, 12.0, 2.5, 15.0, 600.0, 400.0, 3000.0, 32.0];

#[test]
#[ignore = "two minutes of processor time: cargo test -p seekway-device --test it flash_fit -- --ignored"]
fn an_nvme_drive_is_recovered() {
    let known = drive(NVME, Beside::Waits);
    let found = fitted("nvme", &known, true);
    assert_eq!(found.drive.beside, Beside::Waits);
    // Half as many dies whose programs and reads take half as long fit as well.
    assert_recovered(&known, &found, &["read_command_us", "host_mb_s"]);
}

#[test]
fn reads_alone_tell_nothing_of_writes() {
    let known = drive(NVME, Beside::Suspends);
    let found = fitted("nvme, reads only", &known, false);
    assert_eq!((found.drive.beside, found.beside_told), (Beside::Waits, false));
    for (n, key) in KEYS.iter().enumerate() {
        if key.name.starts_with("write") || key.name == "program_us" {
            assert_eq!((found.told[n], found.drive.values[n]), (Told::Not, key.default));
        }
    }
    // Small reads at the largest depth determine the commands, and long ones the link. Twice the
    // dies with twice the read time read as fast, and a little less time of the firmware's makes up
    // for the longer read.
    assert_recovered(&known, &found, &["read_command_us", "host_mb_s"]);
}
