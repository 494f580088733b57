//! `migrate --probe` itself: when it ends, and what it refuses where it would see wrong.

mod common;

use common::{Killed, PROGRAM, until};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

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
    command.args(["migrate", "--probe=1h", "--preemption", "heartbeat", "--loads", "proc"]);
    let mut probe = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    until("the probe handles Ctrl-C", || handles_sigint(probe.pid()));
    probe.signal(libc::SIGINT);
    assert!(probe.ended().success());
    let mut text = String::new();
    probe.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("preemption: heartbeat: yes\n"), "{text}");
    assert!(text.contains("loads: proc: yes\n"), "{text}");
}

/// BPF programs see the numbers that threads have in the initial PID namespace. In another,
/// the agent would move threads that it does not mean.
#[cfg(feature = "bpf")]
#[test]
fn waits_are_not_seen_by_bpf_in_another_pid_namespace() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", PROGRAM]);
    let output = command.args(["migrate", "--probe", "--loads", "bpf"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("unshare") {
        return seekway_testing::skip(format_args!("a PID namespace: {}", error.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let refused = text.lines().find(|line| line.starts_with("loads: bpf: no"));
    assert!(refused.is_some_and(|line| line.contains("initial PID namespace")), "{text}{error}");
}
