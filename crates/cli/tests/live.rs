//! `seekway experiment run NAME --live` starts `seekway-live`: found beside the
//! program or in PATH, with its arguments, output and exit status.

mod common;

use common::{Folder, Ran, root};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const RUN: [&str; 4] = ["experiment", "run", "pregather-read", "--live"];

/// Tests that write programs take turns. A child that another thread has just forked has each
/// file open that was being written then, until it runs its own program; a program that is open
/// for writing cannot start (ETXTBSY).
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program in a folder of its own, where no `seekway-live` is.
fn alone(folder: &Folder) -> Command {
    let place = folder.path("seekway");
    std::fs::copy(env!("CARGO_BIN_EXE_seekway"), &place).expect("a copy");
    let mut command = Command::new(place);
    command.env("PATH", folder.path("nowhere")).stdin(Stdio::null());
    command
}

/// A `seekway-live` that prints its arguments.
fn fake_lab(at: &Path) {
    std::fs::create_dir_all(at.parent().expect("a folder")).expect("made");
    let script =
        "#!/bin/sh\necho \"started by $SEEKWAY_COMMAND\" >&2\nprintf '%s\\n' \"$@\"\nexit 7\n";
    std::fs::write(at, script).expect("written");
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).expect("made executable");
}

#[test]
fn the_lab_gets_the_arguments_and_gives_output_and_status() {
    let _turn = turn();
    let folder = Folder::new();
    for place in ["nowhere/seekway-live", "seekway-live"] {
        let mut command = alone(&folder);
        fake_lab(&folder.path(place));
        command.args(RUN).args(["--quick", "--kvm", "--policy", "cfk", "--seed", "3"]);
        // A policy is checked before the lab starts.
        let ran = Ran::new(command.output().expect("it starts"));
        ran.refused(&["--policy", "'cfk'"]);
        let mut command = alone(&folder);
        command.args(RUN).args(["--quick", "--kvm", "--policy", "sstf", "--seed", "3"]);
        command.args(["--format", "json", "--report", "a b.html"]);
        let ran = Ran::new(command.output().expect("it starts"));
        let daemon = folder.arg("seekway");
        let expected = ["pregather-read", "--daemon", &*daemon, "--seed=3", "--format=json"];
        let expected = [&expected[..], &["--policy=sstf", "--quick", "--kvm"]].concat();
        let expected = [&expected[..], &["--report", "a b.html"]].concat();
        assert_eq!(ran.out.lines().collect::<Vec<_>>(), expected, "{place}");
        let command = "seekway experiment run pregather-read --live --quick --kvm --policy sstf \
                       --seed 3 --format json --report 'a b.html'";
        assert_eq!((ran.code, ran.err), (Some(7), format!("started by {command}\n")), "{place}");
    }
}

#[test]
fn noisys_own_arguments_reach_the_lab() {
    let _turn = turn();
    let folder = Folder::new();
    fake_lab(&folder.path("seekway-live"));
    let mut command = alone(&folder);
    command.args(["experiment", "run", "noisy", "--live", "--scenes", "disk/*", "--rounds=2"]);
    command.args(["--servers=noop,throttled", "--seconds", "0.5", "--work-dir", "a b"]);
    let ran = Ran::new(command.output().expect("it starts"));
    let lines: Vec<&str> = ran.out.lines().collect();
    let expected = ["--scenes=disk/*", "--servers", "noop,throttled", "--seconds", "0.5"];
    let expected = [&expected[..], &["--rounds", "2", "--work-dir", "a b"]].concat();
    assert_eq!(lines[lines.len() - expected.len()..], expected, "{}", ran.out);
}

#[test]
fn without_the_lab_the_error_says_how_to_build_it() {
    let _turn = turn();
    let folder = Folder::new();
    let ran = Ran::new(alone(&folder).args(RUN).output().expect("it starts"));
    ran.refused(&["no seekway-live beside", "cargo build --release --package seekway-lab"]);
}

#[test]
fn what_cannot_run_live_is_refused_before() {
    let _turn = turn();
    let folder = Folder::new();
    fake_lab(&folder.path("seekway-live"));
    for (args, part) in [
        (&["vio-*", "--live"][..], "no experiment 'vio-*' runs live; there are pregather-read, "),
        (&["inactivity"], "scripts/lab list"),
        (&["migrate-live"], "runs on real guests only: add --live"),
        (
            &["cats-direct"],
            "simulated it is a study of the laboratory: scripts/lab run cats-direct",
        ),
        (&["together"], "scripts/lab together"),
        (&["noisy"], "scripts/lab arena --scenes"),
        (&["noisy", "--live", "--vcpu", "vmigrater"], "for migrate-live only"),
        (&["pregather-read", "--live", "--rounds", "2"], "for noisy only"),
        (&["pregather-read", "--live", "--scenes", "nvme/*"], "for noisy and together only"),
        (&["migrate-live", "--live", "--vcpu", "vsmt"], "no vCPU policy 'vsmt'"),
        (&["migrate-live", "--live", "--vcpu", "vanilla:wake=1"], "--vcpu: "),
    ] {
        let run = [&["experiment", "run"], args].concat();
        Ran::new(alone(&folder).args(run).output().expect("it starts")).refused(&[part]);
    }
}

/// Real guests (downloads, ptrace, tracefs) are for tests and for the lab: the
/// program that serves disks as root does not link them.
#[test]
fn the_program_does_not_depend_on_real_guests() {
    let manifest =
        std::fs::read_to_string(root().join("crates/cli/Cargo.toml")).expect("it is there");
    let (program, tests) = manifest.split_once("[dev-dependencies]").expect("it has tests");
    assert!(tests.contains("seekway-live") && !program.contains("seekway-live"));
}
