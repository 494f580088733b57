//! A policy that records its news, and does what a test says.

use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::*;
use std::sync::{Arc, Mutex};

/// News for the script's policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A sign: when it was made, by which vCPU.
    Sign(Instant, usize, Sign),
    Window(Vec<TaskLoad>),
    Moved(TaskId, Outcome),
    Acted,
    /// A decision at this time, for which it had asked.
    Asked(Instant),
}

/// The news and their times. Signs carry no time of telling: it is that of the next decision.
pub type Log = Arc<Mutex<Vec<(Instant, Told)>>>;

pub type Answer = Box<dyn Fn(&Told) -> Option<Action> + Send>;

pub struct Script {
    pub log: Log,
    /// From beat to beat of each vCPU.
    pub beats: Option<Nanos>,
    pub windows: Option<Nanos>,
    /// From asking to asking.
    pub wakes: Option<Nanos>,
    wake: Instant,
    /// The vCPU that it expects to run on; it knows nothing of others.
    pub lasts: Option<VcpuId>,
    pub slice: Option<Nanos>,
    /// Answer to each piece of news.
    pub answer: Answer,
    due: Vec<Instant>,
    untimed: Vec<Told>,
    wanted: Vec<Action>,
}

impl Script {
    pub fn new(log: &Log) -> Script {
        Script {
            log: log.clone(),
            beats: None,
            windows: None,
            wakes: None,
            wake: Instant::ZERO,
            lasts: None,
            slice: None,
            answer: Box::new(|_| None),
            due: Vec::new(),
            untimed: Vec::new(),
            wanted: Vec::new(),
        }
    }

    fn told(&mut self, now: Instant, told: Told) {
        self.wanted.extend((self.answer)(&told));
        self.log.lock().unwrap().push((now, told));
    }
}

/// Scripts with one log, each changed.
pub fn scripted(log: &Log, change: impl Fn(&mut Script)) -> impl Fn() -> Box<dyn VcpuPolicy> {
    move || {
        let mut script = Script::new(log);
        change(&mut script);
        Box::new(script)
    }
}

impl VcpuPolicy for Script {
    fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.due = vec![now; online.len()];
    }

    fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) {
        if let (Sign::Beat { .. }, Some(beats)) = (sign, self.beats) {
            self.due[vcpu.index()] = at + beats;
        }
        self.untimed.push(Told::Sign(at, vcpu.index(), sign));
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        self.told(now, Told::Window(loads.to_vec()));
    }

    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        self.told(now, Told::Moved(task, outcome));
    }

    fn next(&mut self, now: Instant) -> Option<Action> {
        for told in std::mem::take(&mut self.untimed) {
            self.told(now, told);
        }
        if let Some(wakes) = self.wakes.filter(|_| now >= self.wake) {
            self.told(now, Told::Asked(self.wake));
            self.wake = now + wakes;
        }
        let action = self.wanted.pop()?;
        self.log.lock().unwrap().push((now, Told::Acted));
        Some(action)
    }

    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        self.beats.map(|_| self.due[vcpu.index()])
    }

    fn windows(&self) -> Option<Nanos> {
        self.windows
    }

    fn vcpus(&self, _: Instant) -> Vec<VcpuView> {
        let view = |vcpu| VcpuView {
            vcpu,
            active: true,
            slice: None,
            remaining: Some(Nanos::from_secs(1)),
            slices: 0,
            away: Nanos::ZERO,
        };
        self.lasts.map(view).into_iter().collect()
    }

    fn next_wake(&self) -> Option<Instant> {
        self.wakes.map(|_| self.wake)
    }

    fn slice(&self, whole: Nanos) -> Nanos {
        self.slice.unwrap_or(whole)
    }
}

/// The spans for which a vCPU ran, as exact edges tell.
pub fn spans(log: &Log, vcpu: usize) -> Vec<(Instant, Instant)> {
    let (mut spans, mut from) = (Vec::new(), None);
    for (_, told) in log.lock().unwrap().iter() {
        match *told {
            Told::Sign(at, v, Sign::Resumed) if v == vcpu => from = Some(at),
            Told::Sign(at, v, _) if v == vcpu => spans.extend(from.take().map(|from| (from, at))),
            _ => {}
        }
    }
    spans
}
