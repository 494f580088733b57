//! Does the kernel have what the daemon needs?

use super::{Facts, Finding, Root};

/// The oldest Linux that the rings of the daemon work on.
const OLDEST: (u32, u32) = (5, 19);
/// The version of landlock that restricts all that the daemon wants restricted.
const LANDLOCK_FULL: u32 = 6;

pub(super) fn version(root: &Root) -> Finding {
    const CHECK: &str = "kernel";
    let release = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let (oldest_major, oldest_minor) = OLDEST;
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => {
            Finding::ok(CHECK, format!("Linux {release}"))
        }
        (Some(_), Some(_)) => Finding::problem(
            CHECK,
            format!("Linux {release}; needed: {oldest_major}.{oldest_minor} or later"),
            "install a newer kernel and restart the host, on Debian 11: apt-get install -t \
             bullseye-backports linux-image-amd64",
        ),
        _ => Finding::warning(
            CHECK,
            format!("/proc/sys/kernel/osrelease says '{release}'"),
            format!("check that `uname -r` is {oldest_major}.{oldest_minor} or later"),
        ),
    }
}

pub(super) fn io_uring(root: &Root, facts: &Facts) -> Finding {
    const CHECK: &str = "io_uring";
    let disabled: u32 = root.number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0);
    let (errno, error) = match &facts.ring {
        Ok(missing) if missing.is_empty() => {
            return Finding::ok(CHECK, "a ring works, with all operations");
        }
        Ok(missing) => {
            return Finding::problem(
                CHECK,
                format!("this kernel lacks the operations {}", missing.join(", ")),
                "install a newer kernel and restart the host",
            );
        }
        Err((errno, error)) => (*errno, error),
    };
    let found = format!("no ring: {error}; kernel.io_uring_disabled = {disabled}");
    let fix = match (disabled, errno) {
        (2, _) => {
            "sysctl -w kernel.io_uring_disabled=0   (for good: a file in /etc/sysctl.d)".into()
        }
        (1, _) => {
            let group = root.number::<i64>("/proc/sys/kernel/io_uring_group");
            match group.filter(|group| *group >= 0) {
                Some(group) => format!(
                    "add the daemon's user to group {group} (usermod -aG), or sysctl -w \
                     kernel.io_uring_disabled=0"
                ),
                None => "sysctl -w kernel.io_uring_disabled=0".into(),
            }
        }
        (_, libc::ENOMEM) => "raise LimitMEMLOCK= in the daemon's unit (ulimit -l), or give the \
                              host more memory"
            .into(),
        (_, libc::EMFILE | libc::ENFILE) => "raise LimitNOFILE= in the daemon's unit".into(),
        (_, libc::ENOSYS) => "use a kernel with CONFIG_IO_URING=y".into(),
        _ => "a filter of system calls refuses it: in a container allow io_uring_setup, \
              io_uring_enter and io_uring_register (docker run --security-opt \
              seccomp=PROFILE.json); in a unit SystemCallFilter="
            .to_string(),
    };
    Finding::problem(CHECK, found, fix)
}

pub(super) fn landlock(root: &Root, facts: &Facts) -> Finding {
    const CHECK: &str = "landlock";
    match facts.landlock_abi {
        Some(abi) if abi >= LANDLOCK_FULL => Finding::ok(CHECK, format!("ABI {abi}")),
        Some(abi) => Finding::warning(
            CHECK,
            format!("ABI {abi}: the sandbox of the daemon is weaker (serving works)"),
            format!("a kernel with landlock ABI {LANDLOCK_FULL} (Linux 6.12) or later"),
        ),
        None => {
            let modules = root.text("/sys/kernel/security/lsm");
            let modules = modules.map_or(String::new(), |lsm| format!(" (now: {lsm})"));
            Finding::warning(
                CHECK,
                "none: the daemon's access to files is not confined (serving works)",
                format!("add landlock to lsm= on the kernel's command line{modules}"),
            )
        }
    }
}

pub(super) fn seccomp(root: &Root) -> Finding {
    const CHECK: &str = "seccomp";
    let actions = root.text("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    match actions.split(' ').any(|action| action == "errno") {
        true => Finding::ok(CHECK, "filters work"),
        false => Finding::warning(
            CHECK,
            "none: the daemon's system calls are not confined (serving works)",
            "use a kernel with CONFIG_SECCOMP_FILTER=y",
        ),
    }
}
