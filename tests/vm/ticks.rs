//! `seekway-guest` sees by the ticks of its guest when vCPUs are away (`tick-bpf`): compared with
//! what the host did, which holds the vCPUs and records when each ran.

use crate::apart::{self, FIND_DISK};
use crate::world::{PATIENCE, expect};
use seekway_live::schedule::{Recorder, Recording};
use seekway_live::turns::{Slices, Turns};
use seekway_live::{Guest, GuestSpec, Kernel, LiveError, Result, vcpus};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const VCPUS: usize = 4;
/// Two ticks of these kernels: who is away for longer is seen.
const SEEN_NS: i64 = 8_000_000;
const TICK_NS: i64 = 4_000_000;
/// The kernel has others run now and then, and goes on: no absence.
const HICCUP_NS: i64 = 1_000_000;
/// Who got the processor for less may not have come to do anything: no return.
const GLIMPSE_NS: i64 = 300_000;
/// The console tells the time no better than that.
const CONSOLE_NS: i64 = 400_000_000;
/// A return is told after it was, by so much at most, to be that return's.
const SAME_NS: i64 = 2_000_000;

/// A compute task on each vCPU, and a reader.
const LOAD: &str = "
for n in 0 1 2 3; do taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & done
fio --name=reader --filename=$disk --direct=1 --rw=randread --bs=4k --ioengine=psync \
	--thread --time_based --runtime=3600 >/dev/null 2>&1 &";

/// The agent looks, from now on.
const START: &str = "
seekway-guest migrate --probe=30s --preemption tick-bpf --loads none --format json >/tmp/said 2>&1 &
echo $! >/tmp/probe
n=0; until [ $(ls /proc/$!/task | wc -l) -gt 4 ]; do
	n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/said; exit 1; }; sleep 0.1
done";

/// What it has seen, when it ends.
const END: &str = "
n=0; while kill -0 $(cat /tmp/probe) 2>/dev/null; do
	n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.1
done; cat /tmp/said";

/// For so long vCPUs are held, a part of what the agent looks.
const HELD: Duration = Duration::from_secs(10);

/// A vCPU was away, from and until when, in nanoseconds of one clock.
#[derive(Clone, Copy, Debug)]
struct Absence {
    vcpu: usize,
    from: i64,
    until: i64,
    /// As the guest told first of it.
    told: i64,
}

/// Boot a kernel, take its vCPUs away, and have the agent look.
pub fn in_guest(kernel: Kernel, agent: &Path) -> Result<()> {
    let spec = GuestSpec { cpus: VCPUS as u32, ..GuestSpec::new("ticks") };
    let (mut guest, _dir) = apart::boot(kernel, agent, spec)?;
    guest.check(&format!("{FIND_DISK}{LOAD}"), PATIENCE)?;
    let tids = vcpus::threads(&guest)?;
    // vCPUs of two processors are away for a slice, those of one for three.
    for processors in [2, 1] {
        compare(&mut guest, &tids, processors)?;
    }
    Ok(())
}

fn compare(guest: &mut Guest, tids: &[i32], processors: usize) -> Result<()> {
    let available = vcpus::processors()?;
    let mut queues = vec![Vec::new(); processors.min(available.len())];
    for (n, &tid) in tids.iter().enumerate() {
        let place = n % queues.len();
        vcpus::pin(tid, available[place])?;
        queues[place].push(tid);
    }
    // Programs come and go with changes of the kernel's code, and QEMU 7.2 may run a part of it
    // as it was (Oops: int3) on vCPUs that stand still meanwhile: not in turns.
    guest.check(START, PATIENCE)?;
    let mut recorder = Recorder::new(tids)?;
    let (mean, jitter) = (Duration::from_millis(11), Duration::from_micros(300));
    let turns = Turns::hold(queues, Slices { mean, jitter, seed: 1 })?;
    recorder.start()?;
    let uptime = guest.check("cat /proc/uptime", PATIENCE)?;
    std::thread::sleep(HELD);
    let recording = recorder.stop()?;
    drop(turns);
    let said = guest.check(END, PATIENCE)?;
    let wrong = || LiveError::Measured(format!("{uptime}{said}"));
    let uptime: f64 =
        uptime.split_whitespace().next().and_then(|s| s.parse().ok()).ok_or_else(wrong)?;
    let way: Value = said.lines().find_map(|l| serde_json::from_str(l).ok()).ok_or_else(wrong)?;
    expect(way["missing"].is_null(), || said.clone())?;
    let truth = truth(&recording, tids);
    let seen = seen(&way);
    let (begin, end) = (nanos(recording.from), nanos(recording.to));
    let offset = offset(&truth, &seen, begin - (uptime * 1e9) as i64);
    // What was seen while vCPUs were held.
    let held = |it: &Absence| it.from + offset > begin && it.until + offset < end;
    let seen: Vec<Absence> = seen.into_iter().filter(held).collect();
    judge(&truth, &seen, offset, processors)
}

fn nanos(time: Duration) -> i64 {
    time.as_nanos() as i64
}

/// What the host did. Runs with hiccups between them are one.
fn truth(recording: &Recording, tids: &[i32]) -> Vec<Absence> {
    let mut absences = Vec::new();
    for (vcpu, &tid) in tids.iter().enumerate() {
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for run in recording.runs.iter().filter(|run| run.tid == tid) {
            let (from, to) = (nanos(run.from), nanos(run.to));
            match runs.last_mut() {
                Some(last) if from - last.1 <= HICCUP_NS => last.1 = to,
                _ => runs.push((from, to)),
            }
        }
        runs.retain(|(from, to)| to - from >= GLIMPSE_NS);
        absences.extend(runs.windows(2).map(|two| {
            let (from, until) = (two[0].1, two[1].0);
            Absence { vcpu, from, until, told: until }
        }));
    }
    absences
}

/// What the guest saw.
fn seen(way: &Value) -> Vec<Absence> {
    let edges = way["edges"].as_array().map_or(&[][..], Vec::as_slice);
    let pairs = edges.windows(2).filter(|pair| {
        pair[0]["vcpu"] == pair[1]["vcpu"] && pair[0]["away"] == true && pair[1]["away"] == false
    });
    let ns = |value: &Value| value.as_i64().unwrap_or(0);
    let absence = |pair: &[Value]| Absence {
        vcpu: ns(&pair[0]["vcpu"]) as usize,
        from: ns(&pair[0]["at_ns"]),
        until: ns(&pair[1]["at_ns"]),
        told: ns(&pair[0]["told_ns"]),
    };
    pairs.map(absence).collect()
}

/// The return in `truth` that this one is, at this offset of the clocks.
fn same<'a>(truth: &'a [Absence], seen: &Absence, offset: i64) -> Option<&'a Absence> {
    let at = seen.until + offset;
    truth.iter().find(|it| it.vcpu == seen.vcpu && (it.until - at).abs() <= SAME_NS)
}

/// From the guest's clock to the host's: that at which most returns are the same.
fn offset(truth: &[Absence], seen: &[Absence], about: i64) -> i64 {
    let steps = (-CONSOLE_NS..CONSOLE_NS).step_by(200_000);
    let apart = |offset: i64| -> Vec<i64> {
        seen.iter()
            .filter_map(|it| Some(it.until + offset - same(truth, it, offset)?.until))
            .collect()
    };
    let spread = |offset: i64| {
        let apart = apart(offset);
        (apart.len(), -apart.iter().map(|ns| ns.abs()).sum::<i64>())
    };
    let best = about + steps.max_by_key(|step| spread(about + step)).unwrap_or(0);
    // The fastest of twenty is told when it was.
    let mut apart = apart(best);
    apart.sort_unstable();
    best - apart.get(apart.len() / 20).unwrap_or(&0)
}

/// What a share of all is not above, in order.
fn quantiles(mut all: Vec<i64>) -> [f64; 3] {
    all.sort_unstable();
    [10, 50, 90]
        .map(|percent| all.get(all.len() * percent / 100).map_or(0.0, |ns| *ns as f64 / 1e6))
}

fn judge(truth: &[Absence], seen: &[Absence], offset: i64, processors: usize) -> Result<()> {
    let ends =
        |all: &[Absence]| (all.iter().map(|it| it.from).min(), all.iter().map(|it| it.until).max());
    let (Some(from), Some(until)) = ends(seen) else {
        return Err(LiveError::Measured(format!("nothing of {} absences was seen", truth.len())));
    };
    let (from, until) = (from + offset, until + offset);
    let long = |it: &&Absence| it.until - it.from >= SEEN_NS && it.from > from && it.until < until;
    let due: Vec<&Absence> = truth.iter().filter(long).collect();
    let pairs: Vec<(&Absence, &Absence)> =
        seen.iter().filter_map(|it| Some((it, same(truth, it, offset)?))).collect();
    let found = due
        .iter()
        .filter(|it| pairs.iter().any(|(_, t)| t.vcpu == it.vcpu && t.until == it.until))
        .count();
    let overlaps = |it: &&Absence| {
        truth
            .iter()
            .any(|t| t.vcpu == it.vcpu && t.from < it.until + offset && it.from + offset < t.until)
    };
    let invented = seen.iter().filter(|it| !overlaps(it)).count();
    let off = |of: fn(&Absence, &Absence) -> i64| {
        quantiles(pairs.iter().map(|(seen, truth)| of(seen, truth)).collect())
    };
    let minutes = (until - from) as f64 / 60e9;
    let lost = pairs.iter().map(|(s, t)| s.from + offset - t.from).collect();
    let back = pairs.iter().map(|(s, t)| s.until + offset - t.until).collect();
    let told = pairs.iter().map(|(s, t)| s.told + offset - t.from).collect();
    let meanwhile = pairs.iter().filter(|(s, t)| s.told + offset < t.until).count();
    let absent = off(|_, truth| truth.until - truth.from);
    eprintln!(
        "          {VCPUS} vCPUs on {processors}: away for {absent:?} ms (10, 50, 90 %): seen \
         {found} of {}, {:.1} a minute that were none; loss off by {:?} ms, return by {:?} ms; \
         told {:?} ms after the loss, {meanwhile} while it lasted",
        due.len(),
        invented as f64 / minutes,
        quantiles(lost),
        quantiles(back),
        quantiles(told),
    );
    // Other tests hold vCPUs on the same processors meanwhile: then QEMU's main loop, which makes
    // ticks, waits too, and a vCPU that comes back for a moment has nothing to look at. How much is
    // seen on a quiet host is in docs/migrate.md; here it is that what is seen is so.
    expect(found * 10 >= due.len(), || format!("{found} of {}", due.len()))?;
    let late = pairs.iter().filter(|(s, t)| s.until + offset - t.until > TICK_NS).count();
    expect(late * 2 <= pairs.len(), || format!("{late} of {} returns late", pairs.len()))
}
