//! A disk that takes the same time for every request, any number at once.
#![allow(dead_code)]

use seekway_policy::request::Op;
use seekway_policy::units::{Instant, Nanos};
use seekway_workload::{AppReport, Issue, Source};
use std::collections::{BTreeSet, VecDeque};

/// What a source did.
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
