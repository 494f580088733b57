//! Are descriptors and memory enough?

use super::{Facts, Finding, Root};
use crate::config::{CacheSize, Config};
use crate::host::MemorySource;

/// Descriptors of the daemon itself: rings, control, metrics, journals.
const OWN: u64 = 64;
/// Descriptors of a disk with a guest that has eight queues: image, listeners, connection, memory
/// regions, and three for each queue; some more for NBD clients.
const EACH_DISK: u64 = 64;
/// Limit that a host for many guests should allow. The unit allows 65,536.
const MANY: u64 = 4096;

pub(super) fn descriptors(facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "descriptors";
    let (limit, disks) = (facts.descriptors, config.disks.len() as u64);
    let needed = OWN + EACH_DISK * disks.max(1);
    let fix = |needed: u64| {
        format!(
            "LimitNOFILE={} in the daemon's unit; in a shell: ulimit -Hn {0}",
            needed.max(65536)
        )
    };
    if limit == u64::MAX {
        return Finding::ok(CHECK, "no limit");
    }
    if limit < needed {
        let found = format!("{limit} open files at most; {disks} disks need about {needed}");
        return Finding::problem(CHECK, found, fix(needed));
    }
    if limit < MANY.max(needed) {
        let guests = (limit - OWN) / EACH_DISK;
        let found = format!("{limit} open files at most: enough for about {guests} guests' disks");
        return Finding::warning(CHECK, found, fix(needed));
    }
    Finding::ok(CHECK, format!("{limit} open files at most"))
}

/// Rings of Linux 5.12 and later need no locked memory; `--cache-lock` does.
pub(super) fn memlock(facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "memlock";
    let Some(limit) = facts.memlock_bytes else {
        return Finding::ok(CHECK, "no limit");
    };
    let fix = "LimitMEMLOCK=infinity in the daemon's unit; in a shell: ulimit -l unlimited";
    let needed = match config.cache_size() {
        _ if !config.cache_lock => {
            return Finding::ok(CHECK, format!("{limit} bytes; only --cache-lock needs more"));
        }
        CacheSize::Bytes(bytes) => bytes,
        CacheSize::Auto => {
            let found = format!("{limit} bytes; --cache-lock with --cache auto needs more");
            return Finding::warning(CHECK, found, fix);
        }
        CacheSize::Off => 0,
    };
    if limit < needed {
        let found = format!("{limit} bytes; --cache-lock needs {needed} for each device");
        return Finding::problem(CHECK, found, fix);
    }
    Finding::ok(CHECK, format!("{limit} bytes"))
}

/// Can `--cache auto` follow the memory?
pub(super) fn cache(root: &Root, config: &Config) -> Vec<Finding> {
    const CHECK: &str = "memory";
    if config.cache_size() != CacheSize::Auto {
        return Vec::new();
    }
    let source = MemorySource::at(&root.path("/proc"), &root.path("/sys/fs/cgroup"));
    let memory = match source.reading(0) {
        Some(reading) => {
            let mebibytes = |bytes: u64| bytes >> 20;
            Finding::ok(
                CHECK,
                format!(
                    "{} of {} MiB available to this process (with its control groups)",
                    mebibytes(reading.available),
                    mebibytes(reading.total)
                ),
            )
        }
        None => Finding::problem(
            CHECK,
            "/proc/meminfo does not say how much memory is available",
            "give the cache a size: --cache 512MiB",
        ),
    };
    let pressure = match root.text("/proc/pressure/memory") {
        Some(_) => Finding::ok("pressure", "the kernel tells of memory pressure"),
        None => Finding::warning(
            "pressure",
            "no /proc/pressure/memory: --cache auto looks at the memory several times a second",
            "psi=1 on the kernel's command line (CONFIG_PSI), or give the cache a size: --cache \
             512MiB",
        ),
    };
    vec![memory, pressure]
}
