//! Tasks that wait for I/O go to vCPUs that run, before theirs is taken away.
//!
//! Source: vMigrater (USENIX ATC 2018), section 3; algorithms.md, section 7. `literal=true` is the
//! paper's form. `except` takes one part the other way: `literal=true,except=park` is the paper's
//! form with one change of ours, `except=park` ours without it. (Section 5.3's "not started when there is no sharing" is up to the caller: the
//! literal form works whenever it runs.) Our changes:
//!
//! - `park`: when no running vCPU qualifies, the task goes to the one that will be back first,
//!   before its own is taken away. From there it can be pulled; from its old vCPU it could not,
//!   because its I/O completes on a vCPU that is away.
//! - `fresh`: a task whose vCPU's slice began unseen goes to one whose slice was seen to begin; and
//!   where slices are cut short, to one that has just come back, if the gain is more than a move
//!   costs (`plan.rs`). algorithms.md asks for a move to each vCPU that has just come back. A task
//!   that leaves in time gains nothing by that, so it is not done.
//! - `leave`: two periods and the typical time of the task's I/Os, at most half a slice: an I/O
//!   that is under way still completes where it was asked for.
//! - `predict`: the next slice is the least of the last eight, not the last, see `monitor.rs`; and
//!   `keep`, see `detector.rs`.
//! - `budget`: the cost of moves bounds their number, see `vmigrater/budget.rs`.
//! - `beats`: sparse, and inert where nothing is shared: see `vmigrater/beats.rs`.

mod beats;
mod budget;
mod plan;

use super::detector::{self, Detector};
use super::monitor::{self, Monitor, News, Predict};
use super::{
    Action, Entry, Outcome, Sign, TaskId, TaskLoad, Urgent, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use beats::SharingEstimate;
use budget::Budget;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

pub(super) const ENTRY: Entry = Entry {
    name: "vmigrater",
    summary: "I/O-bound tasks go to vCPUs that run before theirs is taken away",
    source: "vMigrater (USENIX ATC 2018), section 3; park, fresh, min8, leave are ours",
    params: PARAMS,
    build: |params| Ok(Box::new(VMigrater::new(Settings::new(params)?))),
};

#[rustfmt::skip]
const PARAMS: &[ParamSpec] = &[
    param("period", Kind::Duration, "300us",
        "from beat to beat of a vCPU's monitor at the densest, 50us to 10ms"),
    param("window", Kind::Duration, "5ms",
        "over which a task's waiting for I/O is taken, 1ms to 1s"),
    param("threshold", Kind::Number(0.01, 1.0), "0.5",
        "share of a window from which a task that waits for I/O is I/O-bound"),
    param("budget", Kind::Number(0.0, 1.0), "0.03",
        "nobody is moved while the agent takes more of the vCPUs' time; literal: 1 (ours)"),
    param("literal", Kind::Flag, "false",
        "the paper's letter: its ranking, and nothing of ours but a budget that is given"),
    param("except", Kind::Choice(&["none", "keep", "predict", "park", "fresh", "leave", "beats"]),
        "none", "one part of ours that is taken the other way than 'literal' says"),
];

/// Time after the last window in which it waited for I/O for which a task is I/O-bound.
const KEEP: Nanos = Nanos::from_millis(20);

/// Values of the parameters; `literal` has replaced the defaults of some.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    monitor: monitor::Settings,
    detector: detector::Settings,
    park: bool,
    fresh: bool,
    /// `None`: by the task's I/Os.
    leave: Option<Nanos>,
    sparse: bool,
    budget_permille: u64,
}

impl Settings {
    fn new(params: &Params) -> Result<Settings, ParamError> {
        let (us, ms) = (Nanos::from_micros, Nanos::from_millis);
        let period = params.duration_within("period", us(50), ms(10))?;
        let literal = params.flag("literal");
        let except = params.choice("except");
        let ours = |part: &str| literal == (part == except);
        let permille = |key| (params.number(key) * 1000.0).round() as u64;
        let predict = if ours("predict") { Predict::Min8 } else { Predict::Last };
        // In the paper's form any absence ends a slice.
        let absence = if literal { Nanos::ZERO } else { period.scaled(2, 1) };
        Ok(Settings {
            monitor: monitor::Settings { period, predict, absence, literal },
            detector: detector::Settings {
                window: params.duration_within("window", ms(1), Nanos::from_secs(1))?,
                threshold_permille: permille("threshold"),
                keep: if ours("keep") { KEEP } else { Nanos::ZERO },
                corrected: !literal,
            },
            park: ours("park"),
            fresh: ours("fresh"),
            leave: (!ours("leave")).then(|| period.scaled(2, 1)),
            sparse: ours("beats"),
            budget_permille: match literal && !params.is_given("budget") {
                true => 1000,
                false => permille("budget"),
            },
        })
    }
}

#[derive(Default)]
struct VMigrater {
    settings: Settings,
    monitor: Monitor,
    detector: Detector,
    sharing: SharingEstimate,
    budget: Budget,
    /// Total absence of the vCPUs at the last update of `budget`.
    away: Nanos,
    /// Decided and not yet asked for.
    actions: VecDeque<Action>,
    /// Something has changed: decide anew.
    dirty: bool,
    /// When to decide anew if nothing changes.
    decide_at: Option<Instant>,
    /// Where the task is for which that is.
    decide_on: Option<VcpuId>,
    /// A task has found no destination, and takes the first vCPU that comes back.
    seeks: bool,
    /// By vCPU, of those that have a task which could be pulled: the time at which a due beat
    /// counts as missing, if one is due.
    expected: Vec<Option<Option<Instant>>>,
    /// The earliest of these.
    missing_at: Option<Instant>,
    moves: u64,
}

impl VMigrater {
    fn new(settings: Settings) -> VMigrater {
        VMigrater {
            settings,
            monitor: Monitor::new(settings.monitor),
            detector: Detector::new(settings.detector),
            budget: Budget::new(settings.budget_permille),
            ..VMigrater::default()
        }
    }
}

impl VcpuPolicy for VMigrater {
    fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.monitor.attach(now, online);
        self.dirty = true;
    }

    fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) {
        let news = self.monitor.heard(at, vcpu, sign);
        self.sharing.heard(at, sign, news);
        self.dirty |= news != News::None;
        self.expect(vcpu);
    }

    fn spent(&mut self, now: Instant, used: Nanos) {
        let away = self.monitor.all().map(|(_, watch)| watch.away(now));
        let away = away.fold(Nanos::ZERO, |all, away| all + away);
        let lost = away.saturating_sub(std::mem::replace(&mut self.away, away));
        self.budget.spent(now, used, self.monitor.all().count(), lost);
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        self.detector.window(now, loads, &self.monitor);
        self.dirty = true;
    }

    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        let Some(task) = self.detector.get(task) else { return };
        let to = task.going.take();
        let away = |to| self.monitor.get(to).map_or(Nanos::ZERO, |watch| watch.away(now));
        match (outcome, to) {
            (Outcome::Dropped, _) => {}
            (Outcome::Done, Some(to)) => task.arrive(now, to, away(to)),
            (_, None) => task.moved = false,
            (Outcome::Refused, Some(_)) => task.refuse(),
        }
        task.releasing = false;
        self.detector.forget();
        if outcome == Outcome::Dropped {
            // A busy worker will be busy for a while.
            let retry = now + self.settings.monitor.period;
            self.decide_at = Some(self.decide_at.map_or(retry, |at| at.min(retry)));
        } else {
            self.dirty = true;
        }
    }

    fn next(&mut self, now: Instant) -> Option<Action> {
        self.dirty |= self.sharing.look(now);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.dirty || due(self.decide_at) || due(self.missing_at) {
            self.find_missing(now);
            self.decide(now);
            self.expect_all();
        }
        let action = self.actions.pop_front()?;
        // It was decided after the last call that changed anything: the task is still there.
        let task = self.detector.get(action.task())?;
        match action {
            Action::Move { to, .. } => {
                task.going = Some(to);
                self.moves += 1;
            }
            Action::Release { .. } => task.releasing = true,
        }
        Some(action)
    }

    fn next_wake(&self) -> Option<Instant> {
        [self.decide_at, self.missing_at, self.sharing.until()].into_iter().flatten().min()
    }

    fn wakes_on(&self) -> Option<VcpuId> {
        self.decide_on.filter(|_| self.sharing.is_exact())
    }

    /// Losses of vCPUs that have a task to move; returns of these, and any return if a task seeks a
    /// destination. The other edges only tell the length of slices, which can wait.
    fn urgent(&self, vcpu: VcpuId) -> Urgent {
        if self.settings.monitor.literal || !self.sharing.is_shared() {
            return Urgent::ALL;
        }
        let moves = self.budget.allows();
        let mut tasks = self.detector.tasks.iter().filter(|task| moves && task.is_wanted());
        let hosts = tasks.any(|task| [task.vcpu, task.asked_on].contains(&vcpu));
        Urgent { loss: hosts, back: hosts || self.seeks }
    }

    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        self.beat(vcpu)
    }

    fn windows(&self) -> Option<Nanos> {
        let works = self.settings.monitor.literal || self.sharing.is_shared();
        // The budget also bounds windows.
        let longer = if self.budget.allows() { 1 } else { budget::LONGER };
        works.then_some(self.settings.detector.window.scaled(longer, 1))
    }

    fn vcpus(&self, now: Instant) -> Vec<VcpuView> {
        self.monitor.view(now)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("io_bound", self.detector.tasks.iter().filter(|task| task.is_bound()).count() as f64);
        sink("followed", self.detector.tasks.len() as f64);
        sink("moves", self.moves as f64);
        sink(
            "shared",
            f64::from(u8::from(self.settings.monitor.literal || self.sharing.is_shared())),
        );
    }
}

#[cfg(test)]
mod tests;
