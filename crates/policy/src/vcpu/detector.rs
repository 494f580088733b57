//! Which tasks are bound by I/O, from window to window.
//!
//! Source: vMigrater, section 3.3. A task is I/O-bound when it waited for I/O for more
//! than a share of a window (5 ms, half of it). Where this differs from the paper
//! (`literal` switches it off):
//!
//! - Time for which its vCPU was away is left out of the window: a completion that came
//!   meanwhile is heard late, and a task that computes would be taken for one that waits.
//!   A window of which little is left says nothing.
//! - It stays I/O-bound for `keep` after the last such window. A phase that ends unseen
//!   costs some moves; one that is given up too soon costs a whole absence. While its vCPU
//!   is away that time stands still: it can do no I/O then, whatever it is.

use super::monitor::{Monitor, Recent};
use super::{TaskId, TaskLoad, VcpuId, VcpuSet};
use crate::units::{Instant, Nanos};

/// Tasks that are followed at a time; more are left alone.
pub(super) const TASKS_MAX: usize = 1024;

/// What makes a task I/O-bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub window: Nanos,
    /// Share of the window in thousandths.
    pub threshold_permille: u64,
    /// For so long after.
    pub keep: Nanos,
    /// As the paper has it.
    pub literal: bool,
}

/// A task that is I/O-bound, or was moved.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub id: TaskId,
    /// Where it is.
    pub vcpu: VcpuId,
    /// Where its owner lets it run.
    pub allowed: VcpuSet,
    /// Share of the last window that told, in thousandths.
    pub load_permille: u64,
    /// How long it is still taken to be I/O-bound.
    left: Nanos,
    latencies: Recent,
    /// Where it ran last, as far as was told.
    pub ran_on: VcpuId,
    /// It does not have its owner's mask.
    pub moved: bool,
    /// When it was moved last.
    pub moved_at: Instant,
    /// Its move is under way.
    pub going: Option<VcpuId>,
    /// It is being released.
    pub releasing: bool,
    /// It may not be moved.
    pub refused: bool,
    /// Nothing of it was seen since it was moved: its completion is pending where it was.
    pub silent: bool,
}

impl Task {
    /// Is it I/O-bound, and free to be moved?
    pub fn is_movable(&self) -> bool {
        self.is_bound() && !self.refused && self.going.is_none() && !self.releasing
    }

    pub fn is_bound(&self) -> bool {
        self.left > Nanos::ZERO
    }

    /// Typical time of its I/Os.
    pub fn latency(&self) -> Nanos {
        self.latencies.median().unwrap_or(Nanos::ZERO)
    }
}

/// The tasks that matter.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    settings: Settings,
    /// In ascending order.
    pub tasks: Vec<Task>,
    last: Option<Instant>,
    /// What each vCPU had been away at the last window.
    away: Vec<Nanos>,
}

impl Detector {
    pub fn new(settings: Settings) -> Detector {
        Detector { settings, tasks: Vec::new(), last: None, away: Vec::new() }
    }

    pub fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let at = self.tasks.binary_search_by_key(&id, |task| task.id).ok()?;
        Some(&mut self.tasks[at])
    }

    pub fn any_bound(&self) -> bool {
        self.tasks.iter().any(Task::is_bound)
    }

    /// What tasks did up to now.
    pub fn window(&mut self, now: Instant, loads: &[TaskLoad], monitor: &Monitor) {
        let span = self.last.map_or(self.settings.window, |last| now.since(last));
        let began = self.last.replace(now);
        let lost = self.lost(now, span, monitor);
        let lost = |vcpu: VcpuId| lost.get(vcpu.index()).copied().unwrap_or(span);
        for task in &mut self.tasks {
            // Those of whom nothing is told did no I/O.
            if loads.binary_search_by_key(&task.id, |load| load.task).is_err() {
                task.age(span, lost(task.vcpu), &self.settings);
            }
        }
        for load in loads {
            let usable = match self.settings.literal {
                true => span,
                false => span.saturating_sub(lost(load.vcpu)),
            };
            let tells = usable >= span.scaled(1, 2);
            let waited = load.waited.get().min(usable.get());
            let permille = waited.saturating_mul(1000) / usable.get().max(1);
            let bound = tells && permille >= self.settings.threshold_permille;
            let at = match self.tasks.binary_search_by_key(&load.task, |task| task.id) {
                Ok(at) => at,
                Err(at) if bound && self.tasks.len() < TASKS_MAX => {
                    self.tasks.insert(at, Task::new(load));
                    at
                }
                Err(_) => continue,
            };
            let task = &mut self.tasks[at];
            task.look(load, began, span);
            if load.ios > 0 {
                let latency = load.io_time.scaled(1, u64::from(load.ios));
                // What came while its vCPU was away was heard late: it says nothing.
                let ran_from = monitor.get(load.vcpu).map(|watch| watch.runs_from());
                if self.settings.literal || ran_from.is_some_and(|from| now.since(from) > latency) {
                    task.latencies.push(latency);
                }
            }
            if bound {
                task.load_permille = permille;
                task.left = self.settings.keep.max(Nanos::new(1));
            } else {
                task.age(span, span.saturating_sub(usable), &self.settings);
            }
        }
    }

    /// For how long each vCPU was away in the window that ends now.
    fn lost(&mut self, now: Instant, span: Nanos, monitor: &Monitor) -> Vec<Nanos> {
        let last = monitor.all().last().map_or(0, |(vcpu, _)| vcpu.index() + 1);
        let mut lost = vec![Nanos::ZERO; last];
        self.away.resize(last, Nanos::ZERO);
        for (vcpu, watch) in monitor.all() {
            let away = watch.away(now);
            let before = std::mem::replace(&mut self.away[vcpu.index()], away);
            lost[vcpu.index()] = away.saturating_sub(before).min(span);
        }
        lost
    }

    /// Forget those that are not I/O-bound any more and need not be released.
    pub fn forget(&mut self) {
        self.tasks
            .retain(|task| task.is_bound() || task.moved || task.going.is_some() || task.releasing);
    }
}

impl Task {
    fn new(load: &TaskLoad) -> Task {
        Task {
            id: load.task,
            vcpu: load.vcpu,
            allowed: load.allowed,
            load_permille: 0,
            left: Nanos::ZERO,
            latencies: Recent::default(),
            ran_on: load.vcpu,
            moved: false,
            moved_at: Instant::ZERO,
            going: None,
            releasing: false,
            refused: false,
            silent: false,
        }
    }

    /// It did no I/O to speak of in a window of which so much was lost.
    fn age(&mut self, span: Nanos, lost: Nanos, settings: &Settings) {
        self.left = match settings.literal {
            true => Nanos::ZERO,
            false => self.left.saturating_sub(span.saturating_sub(lost)),
        };
    }

    /// Where it is and what its I/Os take, of a window that began then.
    fn look(&mut self, load: &TaskLoad, began: Option<Instant>, span: Nanos) {
        (self.allowed, self.ran_on) = (load.allowed, load.vcpu);
        let lives = load.ran > Nanos::ZERO || load.ios > 0;
        self.silent = !lives && load.waited >= span.scaled(9, 10);
        // Before it has run since it was moved, it is told of where it was before.
        let settled = !self.moved || lives && began.is_some_and(|began| began >= self.moved_at);
        if settled && self.going.is_none() {
            self.vcpu = load.vcpu;
        }
    }
}
