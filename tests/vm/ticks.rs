//! `seekway-guest` sees by the ticks of its guest when vCPUs are away (`tick-bpf`): compared with
//! what the host did, which holds the vCPUs and records when each ran.

mod judge;

use crate::apart::{self, FIND_DISK};
use crate::world::{PATIENCE, expect};
use judge::{Absence, Clock, Truth, judge, on_host};
use seekway_live::schedule::{Recorder, Recording};
use seekway_live::turns::{Slices, Turns};
use seekway_live::{Guest, GuestSpec, Kernel, LiveError, Result, vcpus};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const VCPUS: usize = 4;
/// /proc/uptime has hundredths of a second.
const UPTIME_NS: i64 = 20_000_000;
/// The kernel has others run now and then, and goes on: no absence.
const HICCUP_NS: i64 = 1_000_000;
/// Who got the processor for less may not have come to do anything: no return.
const GLIMPSE_NS: i64 = 300_000;

/// A compute task on each vCPU, and a reader.
const LOAD: &str = "
for n in 0 1 2 3; do taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & done
fio --name=reader --filename=$disk --direct=1 --rw=randread --bs=4k --ioengine=psync \
	--thread --time_based --runtime=3600 >/dev/null 2>&1 &";

/// The agent looks, from now on.
const START: &str = "
seekway-guest migrate --probe=60s --format json >/tmp/said 2>&1 &
echo $! >/tmp/probe
n=0; until [ $(ls /proc/$!/task | wc -l) -gt 4 ]; do
	n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/said; exit 1; }; sleep 0.1
done";

/// The load has ended.
const REST: &str =
    "killall sha256sum fio; while pidof sha256sum fio >/dev/null; do sleep 0.1; done";

/// What it has seen, now that it shall end.
const END: &str = "
kill -INT $(cat /tmp/probe); n=0; while kill -0 $(cat /tmp/probe) 2>/dev/null; do
	n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.1
done; cat /tmp/said";

/// For so long vCPUs are held, while the agent looks.
const HELD: Duration = Duration::from_secs(5);

/// Boot a kernel, take its vCPUs away, and have the agent look.
pub fn in_guest(kernel: Kernel, agent: &Path) -> Result<()> {
    let spec = GuestSpec { cpus: VCPUS as u32, ..GuestSpec::new("ticks") };
    let (mut guest, _dir) = apart::boot(kernel, agent, spec)?;
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
    // as it was (Oops: int3) on vCPUs that stand still meanwhile: only while nothing else runs.
    guest.check(START, PATIENCE)?;
    guest.check(&format!("{FIND_DISK}{LOAD}"), PATIENCE)?;
    let main_loop = guest.pid().cast_signed();
    let mut recorder = Recorder::new(&[tids, &[main_loop]].concat())?;
    // Turns that are not alike: else the two clocks fit at any number of turns.
    let (mean, jitter) = (Duration::from_millis(11), Duration::from_millis(1));
    let turns = Turns::hold(queues, Slices { mean, jitter, seed: 1 })?;
    recorder.start()?;
    let started = Instant::now();
    let uptime = guest.check("cat /proc/uptime", PATIENCE)?;
    let answered = nanos(started.elapsed());
    std::thread::sleep(HELD);
    let recording = recorder.stop()?;
    drop(turns);
    guest.check(REST, PATIENCE)?;
    let said = guest.check(END, PATIENCE)?;
    let wrong = || LiveError::Measured(format!("{uptime}{said}"));
    let uptime: f64 =
        uptime.split_whitespace().next().and_then(|s| s.parse().ok()).ok_or_else(wrong)?;
    let way: Value = said.lines().find_map(|l| serde_json::from_str(l).ok()).ok_or_else(wrong)?;
    expect(way["preemption"] == "tick-bpf", || said.clone())?;
    let truth =
        Truth { absences: absences(&recording, tids), main_loop: runs(&recording, main_loop) };
    let seen = seen(&way);
    let (begin, end) = (nanos(recording.from), nanos(recording.to));
    // The guest has read its clock after the start and before the answer.
    let since_start = begin - (uptime * 1e9) as i64;
    let offsets = (since_start - UPTIME_NS, since_start + answered + UPTIME_NS);
    let clock = Clock::fit(&truth, &seen, offsets);
    // What was seen while vCPUs were held.
    let held = |it: &Absence| it.from > begin && it.until < end;
    let seen: Vec<Absence> = on_host(&seen, clock).into_iter().filter(held).collect();
    let verdict = judge(&truth, &seen, (begin, end));
    eprintln!("          {VCPUS} vCPUs on {processors}: {}", verdict.text);
    if !verdict.accepted? {
        let missing = "a processor for QEMU's main loop: too few absences to judge";
        seekway_testing::skip(format_args!("{missing}: {}", verdict.text));
    }
    Ok(())
}

fn nanos(time: Duration) -> i64 {
    time.as_nanos() as i64
}

/// When a thread ran.
fn runs(recording: &Recording, tid: i32) -> Vec<(i64, i64)> {
    let runs = recording.runs.iter().filter(|run| run.tid == tid);
    runs.map(|run| (nanos(run.from), nanos(run.to))).collect()
}

/// When each thread did not run. Runs with hiccups between them are one.
fn absences(recording: &Recording, tids: &[i32]) -> Vec<Vec<Absence>> {
    let of_thread = |(vcpu, &tid): (usize, &i32)| {
        let mut all: Vec<(i64, i64)> = Vec::new();
        for (from, to) in runs(recording, tid) {
            match all.last_mut() {
                Some(last) if from - last.1 <= HICCUP_NS => last.1 = to,
                _ => all.push((from, to)),
            }
        }
        all.retain(|(from, to)| to - from >= GLIMPSE_NS);
        let between = |two: &[(i64, i64)]| {
            let (from, until) = (two[0].1, two[1].0);
            Absence { vcpu, from, until, told: until }
        };
        all.windows(2).map(between).collect()
    };
    tids.iter().enumerate().map(of_thread).collect()
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
