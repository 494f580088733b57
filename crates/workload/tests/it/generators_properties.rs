//! Invariants of the guest under all applications: random sequences of system calls, checked
//! against the requests at the disk.

use crate::device;

use device::{Run, run_watched};
use seekway_core::params::Params;
use seekway_core::request::Op as DiskOp;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_workload::VmDisk;
use seekway_workload::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use seekway_workload::guest::{GuestParams, GuestVm, params};
use seekway_workload::rng::Rng;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const LATENCY: Nanos = Nanos::from_micros(300);
const FILES: u32 = 4;
const FILE_PAGES: u64 = 600;
const THREADS: u32 = 5;

/// A system call: which, from when to when.
#[derive(Clone, Copy, Debug)]
struct Call {
    op: Op,
    start: Instant,
    end: Option<Instant>,
}

type Log = Arc<Mutex<Vec<Vec<Call>>>>;

/// Random calls on a few files, with a log of when each returned.
struct Script {
    spec: AppSpec,
    left: Vec<u32>,
    rng: Rng,
    writes: bool,
    /// Half of the reads and writes go past the page cache.
    direct: bool,
    log: Log,
}

impl Script {
    fn new(seed: u64, (writes, direct): (bool, bool), calls: u32, log: Log) -> Script {
        let exists = |n: u32| !writes || n.is_multiple_of(2);
        let present = |n| if exists(n) { FILE_PAGES * 4096 } else { 0 };
        let file = |n| FileSpec { bytes: FILE_PAGES * 4096, present: present(n) };
        let handle =
            |n| HandleSpec { file: n % FILES, direct: n >= FILES, ..HandleSpec::default() };
        Script {
            spec: AppSpec {
                name: "script".into(),
                threads: THREADS,
                files: (0..FILES).map(file).collect(),
                handles: (0..2 * FILES).map(handle).collect(),
            },
            left: vec![calls; THREADS as usize],
            rng: Rng::new(seed),
            writes,
            direct,
            log,
        }
    }

    fn draw(&mut self, now: Instant) -> Op {
        let mut handle = self.rng.below(u64::from(FILES)) as u32;
        if self.direct {
            handle += FILES * self.rng.below(2) as u32;
        }
        let len = 1 + self.rng.below(100_000) as u32;
        let offset = match self.rng.below(3) {
            0 => (now.as_nanos() / 1000 * 4096) % (FILE_PAGES * 4096), // roughly in sequence
            1 => self.rng.below(20_000),                               // where all threads meet
            _ => self.rng.below(FILE_PAGES * 4096),
        };
        match self.rng.below(10) {
            0 => Op::Sleep(Nanos::new(self.rng.below(20_000_000))),
            1..=2 if self.writes => Op::Fsync { handle },
            3..=6 if self.writes => Op::Write { handle, offset, len },
            _ => Op::Read { handle, offset, len },
        }
    }
}

impl App for Script {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }
    fn next(&mut self, now: Instant, thread: u32) -> Op {
        let log = self.log.clone();
        let calls = &mut log.lock().unwrap()[thread as usize];
        if let Some(last) = calls.last_mut() {
            last.end = Some(now);
        }
        if self.left[thread as usize] == 0 {
            return Op::Done;
        }
        self.left[thread as usize] -= 1;
        let op = self.draw(now);
        calls.push(Call { op, start: now, end: None });
        op
    }
}

/// Calls and requests of the application on one disk.
struct Outcome {
    seed: u64,
    run: Rc<Run>,
    calls: Vec<Call>,
    vm: Rc<GuestVm>,
    /// The number of the application, and that of its disk.
    app: usize,
}

fn simulate(seed: u64, given: &[(&str, &str)], what: (bool, bool), calls: u32) -> Outcome {
    simulate_on(1, seed, given, what, calls).remove(0)
}

/// Runs a guest with `disks` disks and an application on each.
fn simulate_on(
    disks: usize,
    seed: u64,
    given: &[(&str, &str)],
    what: (bool, bool),
    calls: u32,
) -> Vec<Outcome> {
    let mut logs: Vec<Log> = Vec::new();
    let mut apps: Vec<(usize, Box<dyn App>)> = Vec::new();
    for disk in 0..disks {
        let log: Log = Arc::new(Mutex::new(vec![Vec::new(); THREADS as usize]));
        logs.push(log.clone());
        apps.push((disk, Box::new(Script::new(seed + ((disk as u64) << 32), what, calls, log))));
    }
    let disk = |n| VmDisk { name: format!("t.{n}"), capacity: Sectors::new((1 + n) << 21) };
    let params = Params::with(params::SPECS, "a VM", given).unwrap();
    let disks = (0..disks as u64).map(disk).collect();
    let mut vm = GuestVm::with_disks(disks, GuestParams::from(&params), apps, seed).unwrap();
    let run = run_watched(&mut vm, LATENCY, |vm, now| {
        let (used, limit) = vm.cache_pages();
        assert!(used <= limit, "seed {seed} at {now}: {used} pages of {limit}");
    });
    assert_eq!(vm.dirty_pages(), 0, "seed {seed}");
    let (run, vm) = (Rc::new(run), Rc::new(vm));
    let outcome = |(app, log): (usize, &Log)| {
        let wanted = THREADS * calls;
        let calls: Vec<Call> = log.lock().unwrap().iter().flatten().copied().collect();
        assert!(calls.iter().all(|c| c.end.is_some()), "seed {seed}: a call never returned");
        assert_eq!(calls.len() as u32, wanted, "seed {seed}");
        Outcome { seed, run: run.clone(), calls, vm: vm.clone(), app }
    };
    logs.iter().enumerate().map(outcome).collect()
}

impl Outcome {
    /// Requests of `op` that cover the page: (issued, done).
    fn on_page(&self, op: DiskOp, file: u32, page: u32) -> Vec<(Instant, Instant)> {
        let sector = self.vm.sector_of(self.app, file, page).get();
        let covers = |i: &&(Instant, seekway_workload::Issue, usize)| {
            let start = i.1.start.get();
            let is_here = usize::from(i.1.vm) == self.app;
            is_here && i.1.op == op && start <= sector && sector < start + i.1.len.get()
        };
        self.run.issued.iter().filter(covers).map(|i| (i.0, i.0 + LATENCY)).collect()
    }
}

fn pages(offset: u64, len: u32) -> std::ops::Range<u32> {
    let end = (offset + u64::from(len)).div_ceil(4096).min(FILE_PAGES);
    (offset / 4096) as u32..end as u32
}

#[test]
fn a_read_returns_when_its_pages_have_arrived_and_no_page_is_read_twice() {
    for seed in 0..60 {
        let kib = ["16", "48", "128"][seed as usize % 3];
        let window = ["0", "128", "512"][seed as usize / 3 % 3];
        let given = [("max_request_kib", kib), ("read_ahead_kb", window), ("latency", "0")];
        let outcome = simulate(seed, &given, (false, false), 40);
        for call in &outcome.calls {
            let Op::Read { handle, offset, len } = call.op else { continue };
            for page in pages(offset, len) {
                let reads = outcome.on_page(DiskOp::Read, handle, page);
                assert_eq!(reads.len(), 1, "seed {seed}: page {page} of file {handle}");
                assert!(reads[0].1 <= call.end.unwrap(), "seed {seed}: {call:?} returned early");
            }
        }
        for file in 0..FILES {
            for page in 0..FILE_PAGES as u32 {
                assert!(outcome.on_page(DiskOp::Read, file, page).len() <= 1, "seed {seed}");
            }
        }
    }
}

#[test]
fn what_is_written_reaches_the_disk_and_fsync_waits_for_it() {
    for seed in 100..160 {
        let ram = ["104MiB", "1GiB"][seed as usize % 2]; // 4 MiB of page cache, or plenty
        let mode = ["ordered", "writeback", "none"][seed as usize % 3];
        let barrier = if seed % 5 == 0 { "true" } else { "false" };
        let given = [("ram", ram), ("journal", mode), ("mtime", "4ms"), ("barrier", barrier)];
        let outcome = simulate(seed, &given, (true, false), 40);
        check_durable(&outcome);
        check_fsyncs(&outcome);
    }
}

/// An application on each of several disks, in one page cache: the requests at each disk, and the
/// time at which an fsync returns, satisfy what holds for one disk.
#[test]
fn each_of_several_disks_gets_what_is_written_to_its_files() {
    for seed in 300..330 {
        let ram = ["104MiB", "1GiB"][seed as usize % 2];
        let mode = ["ordered", "writeback", "none"][seed as usize % 3];
        let barrier = if seed % 5 == 0 { "true" } else { "false" };
        let given = [("ram", ram), ("journal", mode), ("mtime", "4ms"), ("barrier", barrier)];
        let outcomes = simulate_on(2 + seed as usize % 2, seed, &given, (true, false), 30);
        for outcome in &outcomes {
            check_durable(outcome);
            check_fsyncs(outcome);
        }
    }
}

/// Each page written has a request to the disk that began after its last write did.
fn check_durable(outcome: &Outcome) {
    for file in 0..FILES {
        for page in 0..FILE_PAGES as u32 {
            let wrote = |c: &&Call| match c.op {
                Op::Write { handle, offset, len } => {
                    handle == file && pages(offset, len).contains(&page)
                }
                _ => false,
            };
            let writes: Vec<&Call> = outcome.calls.iter().filter(wrote).collect();
            let cleaned = outcome.on_page(DiskOp::Write, file, page);
            let seed = outcome.seed;
            assert!(cleaned.len() <= writes.len(), "seed {seed}: page {page} written too often");
            if let Some(last) = writes.iter().map(|c| c.start).max() {
                let newest = cleaned.iter().map(|c| c.0).max();
                assert!(newest >= Some(last), "seed {seed}: page {page} of {file} is lost");
            }
        }
    }
}

/// When an fsync returns, all that was written before it began is on the disk.
fn check_fsyncs(outcome: &Outcome) {
    for sync in &outcome.calls {
        let Op::Fsync { handle: synced } = sync.op else { continue };
        for write in &outcome.calls {
            let Op::Write { handle, offset, len } = write.op else { continue };
            if handle != synced || write.end.unwrap() > sync.start {
                continue;
            }
            for page in pages(offset, len) {
                let cleaned = outcome.on_page(DiskOp::Write, handle, page);
                let in_time =
                    |c: &(Instant, Instant)| c.0 >= write.start && c.1 <= sync.end.unwrap();
                let seed = outcome.seed;
                assert!(
                    cleaned.iter().any(in_time),
                    "seed {seed}: {sync:?} returned before page {page} of {write:?} was safe"
                );
            }
        }
    }
}

#[test]
fn a_full_cache_of_a_small_guest_never_stalls() {
    for seed in 200..240 {
        let given = [
            ("ram", "104MiB"),
            ("read_ahead_kb", "4096"),
            ("dirty", "100"),
            ("dirty_background", "100"),
            ("latency", "1ms"),
            ("ring", "4"),
            ("nr_requests", "4"),
        ];
        simulate_on(1 + seed as usize % 3, seed, &given, (seed % 2 == 0, seed % 4 < 2), 60);
    }
}
