//! Shares of the processors, by owner.

use seekway_client::Result;
use std::fs;
use std::time::Instant;

/// Time for which somebody ran, and for which it could have run and had no processor.
#[derive(Clone, Copy, Default)]
struct Times {
    ran_s: f64,
    waited_s: f64,
}

/// Up to a moment.
pub struct Usage {
    at: Instant,
    reader: Times,
    daemon: Times,
    load_s: f64,
}

/// Processor time of each owner, and its time of waiting for a processor, between two moments.
pub struct Shares {
    /// Seconds for which the reader, and who serves it, waited for a processor.
    pub waited_s: f64,
    /// Parts of one processor's time.
    pub reader: f64,
    pub daemon: f64,
    pub load: f64,
    pub waited: f64,
}

impl Usage {
    /// Up to now. To be called by the reader's thread; what else runs in this process, and the
    /// process groups that it has started, are the load.
    pub fn now(daemon: u32) -> Result<Usage> {
        let reader = times("/proc/thread-self");
        let own_s = clock_s(libc::CLOCK_PROCESS_CPUTIME_ID)?;
        let mut clock = 0;
        // SAFETY: the call writes a number.
        if unsafe { libc::clock_getcpuclockid(daemon.cast_signed(), &raw mut clock) } != 0 {
            return Err("the daemon has ended".into());
        }
        let daemon = Times { ran_s: clock_s(clock)?, waited_s: served_waited_s(daemon) };
        let load_s = own_s - reader.ran_s + scripts_s();
        Ok(Usage { at: Instant::now(), reader, daemon, load_s })
    }

    pub fn since(&self, before: &Usage) -> Shares {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let waited = |times: fn(&Usage) -> Times| times(self).waited_s - times(before).waited_s;
        let waited_s = waited(|usage| usage.reader) + waited(|usage| usage.daemon);
        Shares {
            waited_s,
            reader: (self.reader.ran_s - before.reader.ran_s) / seconds,
            daemon: (self.daemon.ran_s - before.daemon.ran_s) / seconds,
            load: (self.load_s - before.load_s) / seconds,
            waited: waited_s / seconds,
        }
    }
}

fn clock_s(clock: libc::clockid_t) -> Result<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a plain struct.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9),
        _ => Err(format!("processor time: {}", std::io::Error::last_os_error())),
    }
}

/// Of a task in /proc; none where the kernel does not count (CONFIG_SCHED_INFO).
fn times(task: &str) -> Times {
    let text = fs::read_to_string(format!("{task}/schedstat")).unwrap_or_default();
    let mut seconds = text.split_whitespace().map(|ns| ns.parse::<u64>().unwrap_or(0) as f64 / 1e9);
    let mut next = || seconds.next().unwrap_or(0.0);
    Times { ran_s: next(), waited_s: next() }
}

/// Time that threads of the daemon on which the reader depends have waited: the reactor, the
/// kernel's workers of its ring, and the connection of the reader.
fn served_waited_s(daemon: u32) -> f64 {
    const THREADS: [&str; 3] = ["dev-", "iou-wrk-", "vhost-good"];
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).into_iter().flatten().flatten();
    let paths = tasks.map(|task| task.path().display().to_string());
    let serves = |task: &String| {
        let name = fs::read_to_string(format!("{task}/comm")).unwrap_or_default();
        THREADS.iter().any(|thread| name.starts_with(thread))
    };
    paths.filter(serves).map(|task| times(&task).waited_s).sum()
}

/// Processor time of the process groups whose leaders this process has started.
fn scripts_s() -> f64 {
    /// Of /proc/PID/stat, counted from the state behind the name.
    const PARENT: usize = 1;
    const GROUP: usize = 2;
    const USER: usize = 11;
    const SYSTEM: usize = 12;
    let stat = |pid: u32| -> Option<Vec<u64>> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = text.rsplit_once(") ")?;
        Some(rest.split(' ').map(|field| field.parse().unwrap_or(0)).collect())
    };
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let ticks: u64 = pids
        .filter_map(stat)
        .filter(|task| {
            let is_ours =
                |leader: Vec<u64>| leader[PARENT] == u64::from(own) && leader[GROUP] == task[GROUP];
            stat(task[GROUP] as u32).is_some_and(is_ours)
        })
        .map(|task| task[USER] + task[SYSTEM])
        .sum();
    // SAFETY: takes a number.
    ticks as f64 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}
