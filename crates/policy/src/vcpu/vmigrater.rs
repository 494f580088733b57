//! Tasks that wait for I/O go to vCPUs that run, before theirs is taken away.
//!
//! Source: vMigrater (USENIX ATC 2018), section 3; algorithms.md, section 7. `literal=true`
//! is the paper's form, all of it. What is ours, each by its own parameter:
//!
//! - `park`: when no vCPU that runs qualifies, the task goes to the one that will be back
//!   first, before its own is taken away. There it can be pulled from; where it was it
//!   could not, because its I/O completes on a vCPU that is away.
//! - `fresh`: a task whose vCPU's slice began unseen goes to one whose slice was seen to
//!   begin. To go to each vCPU that has just come back, whatever is left at home, was tried:
//!   it makes six times as many moves as are needed, and who leaves in time gains nothing.
//! - `leave`: two periods and the typical time of the task's I/Os, at most half a slice:
//!   an I/O that is under way still completes where it was asked for.
//! - `predict=min8`, see `monitor.rs`, and `keep`, see `detector.rs`.
//! - `beats=sparse`, and inert where nothing is shared: see `vmigrater/beats.rs`.

mod beats;
mod plan;

use super::detector::{self, Detector};
use super::monitor::{self, Monitor, News, Predict};
use super::{
    Action, Entry, Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use crate::params::{Kind, ParamError, ParamSpec, Params};
use crate::units::{Instant, Nanos};
use beats::Sharing;
use std::collections::VecDeque;

pub(super) const ENTRY: Entry = Entry {
    name: "vmigrater",
    summary: "I/O-bound tasks go to vCPUs that run before theirs is taken away",
    source: "vMigrater (USENIX ATC 2018), section 3; park, fresh, min8, leave are ours",
    params: PARAMS,
    build: |params| Ok(Box::new(VMigrater::new(Settings::new(params)?))),
};

const PARAMS: &[ParamSpec] = &[
    ParamSpec {
        key: "period",
        kind: Kind::Duration,
        default: "300us",
        help: "from beat to beat of a vCPU's monitor at the densest, 50us to 10ms",
    },
    ParamSpec {
        key: "window",
        kind: Kind::Duration,
        default: "5ms",
        help: "over which a task's waiting for I/O is taken, 1ms to 1s",
    },
    ParamSpec {
        key: "threshold",
        kind: Kind::Number(0.01, 1.0),
        default: "0.5",
        help: "share of a window from which a task that waits for I/O is I/O-bound",
    },
    ParamSpec {
        key: "keep",
        kind: Kind::Duration,
        default: "20ms",
        help: "for so long after its last such window a task is I/O-bound (ours)",
    },
    ParamSpec {
        key: "predict",
        kind: Kind::Choice(&["min8", "last"]),
        default: "min8",
        help: "a slice will be as the least of the last eight (ours), or as the last",
    },
    ParamSpec {
        key: "park",
        kind: Kind::Flag,
        default: "true",
        help: "if none that runs will do, go to the vCPU that will be back first (ours)",
    },
    ParamSpec {
        key: "fresh",
        kind: Kind::Flag,
        default: "true",
        help: "leave a vCPU whose slice began unseen for one that has just come back (ours)",
    },
    ParamSpec {
        key: "leave",
        kind: Kind::DurationOr("auto"),
        default: "auto",
        help: "with so much left of the slice; auto (ours): two periods and an I/O, half at most",
    },
    ParamSpec {
        key: "beats",
        kind: Kind::Choice(&["sparse", "dense"]),
        default: "sparse",
        help: "beat only where it tells something (ours), or every period on each vCPU",
    },
    ParamSpec {
        key: "literal",
        kind: Kind::Flag,
        default: "false",
        help: "the paper's letter: predict=last, leave=two periods, dense, no park, fresh, keep",
    },
];

/// The parameters.
#[derive(Clone, Copy, Debug)]
struct Settings {
    period: Nanos,
    window: Nanos,
    threshold_permille: u64,
    keep: Nanos,
    predict: Predict,
    park: bool,
    fresh: bool,
    /// `None`: by the task's I/Os.
    leave: Option<Nanos>,
    sparse: bool,
    literal: bool,
}

impl Settings {
    fn new(params: &Params) -> Result<Settings, ParamError> {
        let (us, ms) = (Nanos::from_micros, Nanos::from_millis);
        let period = params.duration_within("period", us(50), ms(10))?;
        let literal = params.flag("literal");
        let leave = match params.duration_or_word("leave") {
            _ if literal => Some(period.scaled(2, 1)),
            leave => leave,
        };
        Ok(Settings {
            period,
            window: params.duration_within("window", ms(1), Nanos::from_secs(1))?,
            threshold_permille: (params.number("threshold") * 1000.0).round() as u64,
            keep: params.duration_within("keep", Nanos::ZERO, Nanos::from_secs(10))?,
            predict: match params.choice("predict") {
                "min8" if !literal => Predict::Min8,
                _ => Predict::Last,
            },
            park: params.flag("park") && !literal,
            fresh: params.flag("fresh") && !literal,
            leave,
            sparse: params.choice("beats") == "sparse" && !literal,
            literal,
        })
    }
}

struct VMigrater {
    settings: Settings,
    monitor: Monitor,
    detector: Detector,
    sharing: Sharing,
    /// Decided and not yet asked for.
    actions: VecDeque<Action>,
    /// Something has changed: decide anew.
    dirty: bool,
    /// When to decide anew if nothing changes.
    decide_at: Option<Instant>,
    moves: u64,
}

impl VMigrater {
    fn new(settings: Settings) -> VMigrater {
        let Settings { period, predict, literal, window, threshold_permille, keep, .. } = settings;
        let detector = detector::Settings { window, threshold_permille, keep, literal };
        VMigrater {
            settings,
            monitor: Monitor::new(monitor::Settings { period, predict, literal }),
            detector: Detector::new(detector),
            sharing: Sharing::default(),
            actions: VecDeque::new(),
            dirty: false,
            decide_at: None,
            moves: 0,
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
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        self.detector.window(now, loads, &self.monitor);
        self.dirty = true;
    }

    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        let Some(task) = self.detector.get(task) else { return };
        let to = task.going.take();
        match (outcome, to) {
            (Outcome::Dropped, _) => {}
            (Outcome::Done, Some(to)) => task.arrive(now, to),
            (_, None) => task.moved = false,
            (Outcome::Refused, Some(_)) => task.refused = true,
        }
        task.releasing = false;
        self.detector.forget();
        if outcome == Outcome::Dropped {
            // Whoever is busy will be for a while.
            let retry = now + self.settings.period;
            self.decide_at = Some(self.decide_at.map_or(retry, |at| at.min(retry)));
        } else {
            self.dirty = true;
        }
    }

    fn next(&mut self, now: Instant) -> Option<Action> {
        self.dirty |= self.sharing.look(now);
        self.find_missing(now);
        let due = self.decide_at.is_some_and(|at| at <= now);
        if self.dirty || due {
            self.decide(now);
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
        [self.decide_at, self.missing_at(), self.sharing.until()].into_iter().flatten().min()
    }

    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        self.beat(vcpu)
    }

    fn windows(&self) -> Option<Nanos> {
        (self.settings.literal || self.sharing.is_shared()).then_some(self.settings.window)
    }

    fn vcpus(&self, now: Instant) -> Vec<VcpuView> {
        self.monitor.view(now)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("io_bound", self.detector.tasks.iter().filter(|task| task.is_bound()).count() as f64);
        sink("followed", self.detector.tasks.len() as f64);
        sink("moves", self.moves as f64);
        sink("shared", f64::from(u8::from(self.settings.literal || self.sharing.is_shared())));
    }
}

#[cfg(test)]
mod tests;
