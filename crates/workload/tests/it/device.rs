//! A disk that takes the same time for every request, any number at once.
#![allow(dead_code)]

use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use seekway_workload::generators::parse_vm;
use seekway_workload::guest::GuestVm;
use seekway_workload::guest::app::{self, App, AppSpec, FileSpec, HandleSpec};
use seekway_workload::{AppReport, Issue, Source};
use std::collections::{BTreeSet, VecDeque};

/// Latency of [`vm`]'s disk.
pub const LATENCY: Nanos = Nanos::from_micros(500);
/// Sectors of a MiB.
pub const MIB: u64 = 2048;
/// Where metadata ends on a 12 GiB image: 1 MiB, 64 MiB of inodes, 128 MiB of journal.
pub const DATA: u64 = 193 * MIB;

/// Actions of a source.
pub struct Run {
    /// (when, what, how many were outstanding already)
    pub issued: Vec<(Instant, Issue, usize)>,
    pub apps: Vec<AppReport>,
    pub in_flight_max: usize,
    pub ended: Instant,
}

impl Run {
    pub fn of(&self, op: Op) -> Vec<Issue> {
        self.issued.iter().map(|i| i.1).filter(|i| i.op == op).collect()
    }
}

/// Drive `source` to its end; `watch` sees it after each step.
pub fn run_watched<S: Source + ?Sized>(
    source: &mut S,
    latency: Nanos,
    mut watch: impl FnMut(&S, Instant),
) -> Run {
    let capacity: Vec<u64> = source.vms().iter().map(|v| v.capacity.get()).collect();
    let mut run =
        Run { issued: Vec::new(), apps: Vec::new(), in_flight_max: 0, ended: Instant::ZERO };
    let mut busy: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut tokens = BTreeSet::new();
    let (mut now, mut out) = (Instant::ZERO, Vec::new());
    loop {
        out.clear();
        source.poll(now, &mut out).unwrap();
        for issue in &out {
            assert!(tokens.insert(issue.token), "token {} is in use", issue.token);
            let end = issue.start.get() + issue.len.get();
            assert!(issue.len.get() > 0 && end <= capacity[issue.vm as usize], "{issue:?}");
            run.issued.push((now, *issue, busy.len()));
            busy.push_back((now + latency, issue.token));
        }
        run.in_flight_max = run.in_flight_max.max(busy.len());
        watch(source, now);
        if source.finished() {
            assert!(busy.is_empty(), "finished with {} in flight", busy.len());
            break;
        }
        let completion = busy.front().map(|b| b.0);
        let next = [completion, source.next_wake()].into_iter().flatten().min();
        let next = next.unwrap_or_else(|| panic!("stuck at {now}: nothing in flight, no wake-up"));
        assert!(next >= now, "woken in the past");
        assert!(run.issued.len() < 5_000_000, "does not end");
        now = next;
        while busy.front().is_some_and(|b| b.0 <= now) {
            let (_, token) = busy.pop_front().unwrap();
            tokens.remove(&token);
            source.completed(now, token);
        }
    }
    run.apps = source.apps();
    run.ended = now;
    run
}

pub fn run<S: Source + ?Sized>(source: &mut S, latency: Nanos) -> Run {
    run_watched(source, latency, |_, _| {})
}

/// The load of a VM as the command line describes it, to its end.
pub fn vm(text: &str, seed: u64) -> Run {
    run(&mut *parse_vm(text).unwrap().source(seed, 0).unwrap(), LATENCY)
}

/// Threads that each do their calls in order.
pub struct Script {
    spec: AppSpec,
    calls: Vec<VecDeque<app::Op>>,
}

impl Script {
    /// With files of 1 MiB.
    pub fn boxed(files: usize, handles: Vec<HandleSpec>, calls: Vec<Vec<app::Op>>) -> Box<dyn App> {
        let (name, threads) = ("script".into(), calls.len() as u32);
        let files = vec![FileSpec::full(1 << 20); files];
        let calls = calls.into_iter().map(VecDeque::from).collect();
        Box::new(Script { spec: AppSpec { name, threads, files, handles }, calls })
    }
}

impl App for Script {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }
    fn next(&mut self, _now: Instant, thread: u32) -> app::Op {
        self.calls[thread as usize].pop_front().unwrap_or(app::Op::Done)
    }
}

/// Runs a guest to its end, and collects the requests for its first file at the disk: operation,
/// first page, pages.
pub fn run_on_a_file(vm: &mut GuestVm, latency: Nanos) -> (Run, Vec<(Op, u64, u64)>) {
    let first = vm.sector_of(0, 0, 0).get();
    let run = run(vm, latency);
    let of_file = run.issued.iter().filter(|i| i.1.start.get() >= first);
    let seen = of_file.map(|(_, i, _)| (i.op, (i.start.get() - first) / 8, i.len.get() / 8));
    let seen = seen.collect();
    (run, seen)
}
