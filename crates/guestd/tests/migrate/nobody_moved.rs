//! `migrate` with nobody to move: its refusals, its status and its probe.

use crate::common::{Killed, PROGRAM, until};
use crate::{CPUS, mask};
use std::fs;
use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::sync::PoisonError;
use tempfile::TempDir;

/// Without anybody to be moved.
fn migrate(dir: &TempDir) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["migrate", "--pid", "1", "--state"]).arg(dir.path().join("state"));
    command.arg("--status").arg(dir.path().join("status"));
    command
}

fn error_of(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], status: i32, why: &str| {
        let (code, error) = error_of(&migrate(&dir).args(args).output().unwrap());
        assert!(code == Some(status) && error.contains(why), "{args:?}: {code:?} {error}");
    };
    refused(&["--policy", "nothing"], 2, "no vCPU policy 'nothing'");
    refused(&["--policy", "vslicer"], 2, "it runs in the simulator only");
    let mut command = Command::new(PROGRAM);
    let (code, error) =
        error_of(&command.args(["migrate", "--state", "/proc/no/where"]).output().unwrap());
    assert!(code == Some(1) && error.contains("/proc/no/where"), "{code:?} {error}");
    let (code, error) = error_of(&migrate(&dir).arg("--status").arg("x").output().unwrap());
    assert!(code == Some(2) && error.contains("cannot be used multiple times"), "{error}");
}

#[test]
fn a_second_agent_ends_and_status_tells_whether_there_is_a_first() {
    let dir = tempfile::tempdir().unwrap();
    let status = || {
        let mut command = Command::new(PROGRAM);
        command.arg("status").arg("--status").arg(dir.path().join("status"));
        command
    };
    let (code, error) = error_of(&status().output().unwrap());
    assert!(code == Some(1) && error.contains("no agent is at work"), "{code:?} {error}");
    let mut first = Killed(migrate(&dir).spawn().unwrap());
    until("the first is at work", || dir.path().join("status").exists());
    let (code, error) = error_of(&migrate(&dir).output().unwrap());
    assert!(code == Some(2) && error.contains("another seekway-guest"), "{code:?} {error}");
    let shown = status().output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.contains("policy vmigrater"), "{text}");
    // Who reads has gone.
    let closed = || io::pipe().unwrap().1;
    assert_eq!(status().stdout(closed()).stderr(closed()).status().unwrap().code(), Some(0));
    first.signal(libc::SIGKILL);
    first.ended();
    let (code, error) = error_of(&status().output().unwrap());
    assert!(code == Some(1) && error.contains("has died"), "{code:?} {error}");
}

#[test]
fn an_agent_watches_the_cpus_that_it_may_use_and_no_other() {
    // Another test's agent takes the mask for one of its own, and gives all CPUs back: this process
    // starts both this agent and the readers that the other one moves.
    let _cpus = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let first = mask(0)[0];
    let mut command = Command::new("taskset");
    command.args(["-c", &first.to_string(), PROGRAM, "migrate", "--pid", "1", "--state"]);
    command.arg(dir.path().join("state")).arg("--status").arg(dir.path().join("status"));
    let mut agent = Killed(command.spawn().unwrap());
    until("the agent is at work", || dir.path().join("status").exists());
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--format", "json", "--status"]).arg(dir.path().join("status"));
    let status: serde_json::Value =
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let vcpus: Vec<_> = status["vcpus"].as_array().unwrap().iter().map(|v| &v["vcpu"]).collect();
    assert_eq!(vcpus, [first], "{status}");
    agent.ended_in_order();
}

#[test]
fn probe_says_what_there_is() {
    for (args, says) in
        [(&[][..], "preemption by "), (&["--no-bpf"], "by heartbeat, loads by proc")]
    {
        let output =
            Command::new(PROGRAM).args(["migrate", "--probe"]).args(args).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(says), "{text}");
    }
}

/// Does this process handle SIGINT, by a handler or a signalfd?
fn handles_sigint(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| {
        let mask = line.strip_prefix("SigBlk:").or_else(|| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (libc::SIGINT - 1) & 1 == 1)
    })
}

#[test]
fn ctrl_c_ends_a_probe_and_it_prints_what_it_saw() {
    let mut command = Command::new(PROGRAM);
    command.args(["migrate", "--probe=60s", "--no-bpf"]);
    command.args(["--format", "json"]).stdout(Stdio::piped());
    let mut probe = Killed(command.spawn().unwrap());
    until("the probe handles Ctrl-C", || handles_sigint(probe.pid()));
    probe.signal(libc::SIGINT);
    assert!(probe.ended().success());
    let mut text = String::new();
    probe.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [probed] = &lines[..] else { panic!("{text}") };
    assert_eq!((&probed["preemption"], &probed["loads"]), (&"heartbeat".into(), &"proc".into()));
    // It did not look as long as it was to.
    assert!(probed["looked_ms"].as_u64().unwrap() < 60_000, "{text}");
}

/// BPF programs see the numbers that threads have in the initial PID namespace. In another,
/// the agent would move threads that it does not mean.
#[cfg(feature = "bpf")]
#[test]
fn waits_are_not_seen_by_bpf_in_another_pid_namespace() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", PROGRAM]);
    let output = command.args(["migrate", "--probe"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("unshare") {
        return seekway_testing::skip(format_args!("a PID namespace: {}", error.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("preemption by heartbeat, loads by proc"), "{text}{error}");
    // Where this kernel has edges to tell.
    let said = text.contains("initial PID namespace") || text.contains("not by tick-bpf");
    assert!(said, "{text}{error}");
}
