//! Tasks that wait for I/O go to vCPUs that run, before theirs is taken away.
//!
//! Source: vMigrater (USENIX ATC 2018), section 3; algorithms.md, section 7. `literal=true` is the
//! text's letter, `published=true` the authors' program (`published.rs`). `except` takes one part
//! the other way: `literal=true,except=park` is the letter with one change of ours, `except=park`
//! ours without it. (Section 5.3's "not started when there is no sharing" is up to the caller: both
//! forms of the paper's work whenever they run.) Our changes to the letter:
//!
//! - `park`: when no running vCPU qualifies, the task goes to the one that will be back first,
//!   before its own is taken away. From there it can be pulled; from its old vCPU it could not,
//!   because its I/O completes on a vCPU that is away. The authors' program parks too, on the vCPU
//!   that has been away for longest.
//! - `fresh`: a task whose vCPU's slice began unseen goes to one whose slice was seen to begin; and
//!   where slices are cut short, to one that has just come back, if the gain is more than a move
//!   costs. algorithms.md asks for a move to each vCPU that has just come back. A task
//!   that leaves in time gains nothing by that, so it is not done.
//! - `leave`: two periods and the typical time of the task's I/Os, at most half a slice: an I/O
//!   that is under way still completes where it was asked for.
//! - `predict`: the next slice is the least of the last eight, not the last, see `monitor.rs`; and
//!   `keep`, see `detector.rs`.
//! - `budget`: the cost of moves bounds their number, see [`Budget`].
//! - `beats`: sparse, and inert where nothing is shared: see [`SharingEstimate`].
//! - `rest`: it rests where moves save less than they cost, see `worth.rs`.

mod published;
#[cfg(test)]
mod tests;
mod worth;

use super::detector::{Detector, Task};
use super::monitor::{Monitor, News, Predict, State, Watch};
use super::{
    Action, Entry, Means, Outcome, Sign, TaskId, TaskLoad, Urgent, VcpuId, VcpuPolicy, VcpuSet,
    VcpuView, detector, monitor,
};
use published::Published;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;
use std::collections::VecDeque;
use worth::Worth;

pub(super) const ENTRY: Entry = Entry {
    name: "vmigrater",
    summary: "I/O-bound tasks go to vCPUs that run before theirs is taken away",
    source: "vMigrater (USENIX ATC 2018), section 3; published: github.com/hku-systems/vMigrater",
    params: PARAMS,
    build: |params| {
        let settings = Settings::new(params)?;
        if !params.flag("published") {
            return Ok(Box::new(VMigrater::new(settings)));
        }
        if let Some(key) = ["literal", "except", "budget"].iter().find(|key| params.is_given(key)) {
            return Err(ParamError::new(format!("published=true: it has no {key}")));
        }
        let (period, window) = (settings.monitor.period, settings.detector.window);
        let threshold_permille = settings.detector.threshold_permille;
        Ok(Box::new(Published::new(published::Settings { period, window, threshold_permille })))
    },
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
    param("published", Kind::Flag, "false",
        "the rules of the authors' program instead of the text's"),
    param("except", Kind::Choice(&["none", "predict", "park", "fresh", "leave", "beats", "rest"]),
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
    rests: bool,
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
                keep: if literal { Nanos::ZERO } else { KEEP },
                corrected: !literal,
            },
            park: ours("park"),
            fresh: ours("fresh"),
            leave: (!ours("leave")).then(|| period.scaled(2, 1)),
            sparse: ours("beats"),
            rests: ours("rest"),
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
    worth: Worth,
    budget: Budget,
    /// The agent's total use at the last report, and when that was.
    used: (Instant, Nanos),
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
        let (at, before) = std::mem::replace(&mut self.used, (now, used));
        self.settle(now);
        if self.settings.rests && self.detector.tasks.iter().any(Task::is_wanted) {
            let taken = used.saturating_sub(before);
            self.dirty |= self.worth.spent(now, now.since(at), taken);
        }
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        self.detector.window(now, loads, &self.monitor);
        self.dirty = true;
    }

    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        let Some(task) = self.detector.get(task) else { return };
        let to = task.going.take();
        let away = |vcpu| self.monitor.get(vcpu).map_or(Nanos::ZERO, |watch| watch.away(now));
        if outcome == Outcome::Done {
            self.worth.saved(task.settle(away));
        }
        match (outcome, to) {
            (Outcome::Dropped, _) => {}
            (Outcome::Done, Some(to)) => task.arrive(now, to, away),
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
        self.dirty |= self.sharing.look(now) | self.worth.look(now);
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
        let ends = [self.sharing.until(), self.worth.until()];
        [self.decide_at, self.missing_at].into_iter().chain(ends).flatten().min()
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
        let works = self.works();
        // The budget also bounds windows.
        let longer = if self.budget.allows() { 1 } else { LONGER };
        works.then_some(self.settings.detector.window.scaled(longer, 1))
    }

    fn vcpus(&self, now: Instant) -> Vec<VcpuView> {
        self.monitor.view(now)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("io_bound", self.detector.tasks.iter().filter(|task| task.is_bound()).count() as f64);
        sink("followed", self.detector.tasks.len() as f64);
        sink("moves", self.moves as f64);
        let literal = self.settings.monitor.literal;
        sink("shared", f64::from(u8::from(literal || self.sharing.is_shared())));
        sink("rests", f64::from(u8::from(self.worth.rests())));
    }
}

// Times of each vCPU monitor's beats, and the state without any work.
//
// Each beat costs, in an emulated guest a hundred times more than in others; most tell nothing. A
// monitor whose beat is due while its vCPU is away beats the moment it is back: so one beat in
// each absence shows returns to the microsecond. Only the time at which a vCPU is taken away needs
// dense beats, and that changes seldom. With sparse beats:
//
// - At rest none.
// - Inert, while no absence was seen (two within a second): some ten beats a second for each vCPU,
//   no windows, no actions. One that is away a tenth of its time is seen within a second; two
//   vCPUs that are away half of it within a tenth of one.
// - Shared, without an I/O-bound task: these beats, and windows.
// - With one: one beat a slice, just after its expected end. In one slice of four, and after one
//   that ended early, every period from two periods before that end. The longer a vCPU outlives
//   its longest known slice, the rarer its beats.
//
// The price: a slice that is cut short is noticed at its expected end. An earlier notice would
// help little, because its tasks' I/O completes on it.

/// Intervals of beats while nothing is expected, by turns. Equal intervals could meet a host's
/// round at the same point each time, and take an absent vCPU for one that runs.
const PROBES: [Nanos; 3] =
    [Nanos::from_millis(67), Nanos::from_millis(103), Nanos::from_millis(149)];

/// Time within which two absences show that somebody shares the processors.
const SHARED_WITHIN: Nanos = Nanos::from_secs(1);

/// Time for which that holds.
const SHARED_FOR: Nanos = Nanos::from_secs(2);

/// Does anybody take our vCPUs away?
#[derive(Clone, Copy, Default, Debug)]
struct SharingEstimate {
    /// When a vCPU last came back from an absence.
    last: Option<Instant>,
    /// Until when the vCPUs are taken to be shared; `None`: they are not.
    until: Option<Instant>,
    /// Edges are told; there are no beats.
    exact: bool,
}

impl SharingEstimate {
    pub fn heard(&mut self, at: Instant, sign: Sign, news: News) {
        self.exact = !matches!(sign, Sign::Beat { .. });
        if news != News::Returned {
            return;
        }
        if self.last.is_some_and(|last| at.since(last) <= SHARED_WITHIN) {
            self.until = Some(self.until.map_or(at, |until| until.max(at)).max(at + SHARED_FOR));
        }
        self.last = Some(self.last.map_or(at, |last| last.max(at)));
    }

    /// Time has come to here. Has it come to an end?
    pub fn look(&mut self, now: Instant) -> bool {
        let ended = self.until.is_some_and(|until| until <= now);
        if ended {
            self.until = None;
        }
        ended
    }

    pub fn is_shared(&self) -> bool {
        self.until.is_some()
    }

    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    pub fn is_exact(&self) -> bool {
        self.exact
    }
}

impl VMigrater {
    /// Settles the time that moves have saved up to now.
    fn settle(&mut self, now: Instant) {
        let away = |vcpu| self.monitor.get(vcpu).map_or(Nanos::ZERO, |watch| watch.away(now));
        for task in &mut self.detector.tasks {
            self.worth.saved(task.settle(away));
        }
    }

    /// Are tasks looked at and moved?
    fn works(&self) -> bool {
        !self.worth.rests() && (self.settings.monitor.literal || self.sharing.is_shared())
    }

    /// Time of this vCPU monitor's next beat.
    fn beat(&self, vcpu: VcpuId) -> Option<Instant> {
        let watch = self.monitor.get(vcpu).filter(|_| !self.worth.rests())?;
        let rest = PROBES[((watch.beats + vcpu.index() as u64) % 3) as usize];
        let works = self.works() && self.detector.any_bound();
        match () {
            () if !works && !self.settings.monitor.literal => Some(watch.seen + rest),
            () if self.settings.sparse => Some(watch.next_beat(&self.monitor.settings, rest)),
            // Absolute times: a beat's duration does not delay the next ones.
            () => {
                let period = self.settings.monitor.period.get();
                let next = (watch.seen.as_nanos() / period).saturating_add(1);
                Some(Instant::from_nanos(next.saturating_mul(period)))
            }
        }
    }

    /// Beats that were due and have not come: those vCPUs are away.
    fn find_missing(&mut self, now: Instant) {
        if self.sharing.is_exact() || !self.detector.any_bound() {
            return;
        }
        let grace = self.monitor.settings.grace();
        let missing = |(vcpu, watch): (VcpuId, &Watch)| {
            let due = self.beat(vcpu)?;
            (watch.state == State::Runs && due + grace <= now).then_some((vcpu, due))
        };
        let missing: Vec<(VcpuId, Instant)> = self.monitor.all().filter_map(missing).collect();
        for (vcpu, due) in missing {
            self.dirty |= self.monitor.missed(vcpu, due);
        }
    }

    /// When this one's beat will be missing if it does not come.
    fn missing(&self, vcpu: VcpuId) -> Option<Instant> {
        let runs = self.monitor.get(vcpu).is_some_and(|watch| watch.state == State::Runs);
        let due = self.beat(vcpu).filter(|_| runs && !self.sharing.is_exact())?;
        Some(due + self.monitor.settings.grace())
    }

    /// Recomputes the times of missing beats, of all vCPUs that have a task which could be pulled
    /// away. Others' absence is found by the search for a destination.
    fn expect_all(&mut self) {
        let tasks = self.detector.tasks.iter().filter(|task| task.is_movable());
        let hosts: VcpuSet = tasks.map(|task| task.vcpu).collect();
        self.expected.clear();
        self.expected.resize(hosts.iter().last().map_or(0, |last| last.index() + 1), None);
        for vcpu in hosts.iter() {
            self.expected[vcpu.index()] = Some(self.missing(vcpu));
        }
        self.missing_at = self.expected.iter().copied().flatten().flatten().min();
    }

    /// Recomputes the time of this vCPU's missing beat, after a sign without other news.
    fn expect(&mut self, vcpu: VcpuId) {
        let missing = self.missing(vcpu);
        if let Some(Some(expected)) = self.expected.get_mut(vcpu.index()) {
            *expected = missing;
            self.missing_at = self.expected.iter().copied().flatten().flatten().min();
        }
    }
}

// The agent's budget of CPU time.
//
// A move costs some microseconds on hardware, and 0.3 to 0.5 ms in an emulated guest. Its gain is
// an I/O task's part of a slice; where moves are that costly, the guest's other tasks lose several
// times that. So the agent has a share of the time for which the guest's vCPUs run. While it has
// used more, it moves nobody and windows are longer. It can save or owe one second's share at
// most.

/// Factor for the length of windows while the budget is overspent.
const LONGER: u64 = 4;

/// Most of the budget that can be saved or owed.
const SAVED: Nanos = Nanos::from_secs(1);

/// The agent's share, and its balance.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// In thousandths of the time for which vCPUs run.
    permille: u64,
    /// In nanoseconds of a vCPU; below 0 it owes them.
    left: i64,
    /// Time of the last report, and the agent's total use by then.
    last: Option<(Instant, Nanos)>,
}

impl Budget {
    pub fn new(permille: u64) -> Budget {
        Budget { permille, ..Budget::default() }
    }

    /// Reports the agent's total use `used`. In the time from the last report on, its `vcpus` were
    /// away for `away` together.
    pub fn spent(&mut self, now: Instant, used: Nanos, vcpus: usize, away: Nanos) {
        let Some((at, before)) = self.last.replace((now, used)) else { return };
        let ran = now.since(at).scaled(vcpus as u64, 1).saturating_sub(away);
        let signed = |span: Nanos| i64::try_from(span.get()).unwrap_or(i64::MAX);
        let most = signed(SAVED.scaled(self.permille, 1000));
        let earned = signed(ran.scaled(self.permille, 1000));
        let left = self.left.saturating_add(earned);
        self.left = left.saturating_sub(signed(used.saturating_sub(before))).clamp(-most, most);
    }

    /// Tells whether the budget has time to spend.
    pub fn allows(&self) -> bool {
        self.left >= 0
    }
}

// Chooses the vCPU for each task.
//
// A vCPU hears of an I/O that was asked for there, once it runs. So a vCPU's worth to a task is
// the time at which an I/O would be heard there:
//
// - on a vCPU with at least `leave` left of its slice: as soon as the disk is done;
// - on one with less: when that vCPU is back from its next absence;
// - on one that is away: as soon as the disk is done after it is back.
//
// A task that hears in time on its vCPU stays there. The paper's form and ours differ in the vCPUs
// that they consider: the first kind alone, or (`park`) the others too, if an I/O is heard sooner
// there than at home.

/// A vCPU, as of now.
#[derive(Clone, Copy)]
struct Destination {
    vcpu: VcpuId,
    runs: bool,
    /// For how long it has run.
    ran: Nanos,
    /// Remainder of its slice, if anything can be said.
    left: Option<Nanos>,
    slice: Option<Nanos>,
    absence: Nanos,
    /// When it is back, if it is away.
    back: Instant,
}

/// A vCPU's offer to a task.
#[derive(Clone, Copy)]
struct Prospect {
    /// Remainder of its slice.
    left: Nanos,
    /// An I/O that is asked for now is heard in this slice.
    in_time: bool,
    /// Time at which it is heard.
    heard: Instant,
}

/// A task that is not in time where it is, or may be better off elsewhere.
struct MoveCandidate {
    at: usize,
    load_permille: u64,
    /// Offer of the vCPU where it is. `None`: unknown.
    here: Option<Prospect>,
}

/// The vCPUs and their tasks, in one decision.
struct Map {
    /// By number; `None` for vCPUs that are off line.
    places: Vec<Option<Destination>>,
    /// I/O-bound tasks on each.
    hosted: Vec<u64>,
    /// Number of tasks that this plan sends away.
    sent: usize,
}

impl Map {
    fn get(&self, vcpu: VcpuId) -> Option<&Destination> {
        self.places.get(vcpu.index())?.as_ref()
    }

    fn runs(&self, vcpu: VcpuId) -> bool {
        self.get(vcpu).is_some_and(|place| place.runs)
    }
}

impl VMigrater {
    /// Decide for all tasks, as of now.
    fn decide(&mut self, now: Instant) {
        self.dirty = false;
        (self.decide_at, self.decide_on, self.seeks) = (None, None, false);
        self.actions.clear();
        let works = self.works();
        if works {
            self.detector.forget()
        } else {
            self.detector.rest()
        }
        self.find_outlasting();
        self.release();
        if !works || !self.budget.allows() {
            return;
        }
        let mut map = self.map(now);
        for leaving in self.leaving(now, &map) {
            let task = &self.detector.tasks[leaving.at];
            let (latency, home) = (task.latency(), map.get(task.vcpu).copied());
            let action = self.destination(now, task, &leaving, &map).or_else(|| {
                let here = leaving.here.filter(|here| !here.in_time)?;
                self.parking(now, task, here, &map)
            });
            let Some(action) = action else {
                self.look_again(now, home, leaving.here, latency);
                continue;
            };
            if let Action::Move { to, .. } = action {
                map.hosted[to.index()] += 1;
                map.sent += 1;
            }
            self.actions.push_back(action);
        }
    }

    /// Plans the next look for a task that found no destination or has to wait there: at its time
    /// to park, and at intervals, because a vCPU may run longer than predicted and nothing else
    /// would tell.
    fn look_again(
        &mut self,
        now: Instant,
        home: Option<Destination>,
        here: Option<Prospect>,
        latency: Nanos,
    ) {
        if here.is_some_and(|here| here.in_time) {
            return;
        }
        self.seeks = true;
        let slice = home.and_then(|home| home.slice).unwrap_or(Nanos::ZERO);
        // With edges, a return is noticed.
        let part = if self.sharing.is_exact() { 1 } else { 8 };
        let at_times = self.settings.monitor.period.max(slice.scaled(1, part));
        let parks = here.map(|here| here.left.saturating_sub(self.parks_with(latency)));
        let parks = parks.filter(|after| *after > Nanos::ZERO).map(|after| after + Nanos::new(1));
        let after = parks.map_or(at_times, |after| after.min(at_times));
        self.decide_at = earlier(self.decide_at, Some(now + after));
    }

    /// Which tasks' I/Os take longer than the slice of the vCPU on which they are.
    fn find_outlasting(&mut self) {
        let slice = |vcpu| self.monitor.get(vcpu).and_then(|watch| watch.predicted());
        for task in self.detector.tasks.iter_mut().filter(|_| !self.settings.monitor.literal) {
            task.outlasts = slice(task.vcpu).is_some_and(|slice| task.latency() > slice);
        }
    }

    /// Releases tasks that are not I/O-bound any more, or gain nothing by a move.
    fn release(&mut self) {
        let tasks = self.detector.tasks.iter();
        let tasks = tasks.filter(|task| !task.is_bound() || task.outlasts);
        let free = |task: &&Task| task.moved && task.going.is_none() && !task.releasing;
        self.actions.extend(tasks.filter(free).map(|task| Action::Release { task: task.id }));
    }

    fn map(&self, now: Instant) -> Map {
        let last = self.monitor.online.iter().last().map_or(0, |last| last.index() + 1);
        let mut map = Map { places: vec![None; last], hosted: vec![0; last], sent: 0 };
        for (vcpu, watch) in self.monitor.all() {
            map.places[vcpu.index()] = Some(Destination {
                vcpu,
                runs: watch.state != State::Away,
                ran: now.since(watch.runs_from()),
                left: watch.remaining(now, &self.monitor.settings),
                slice: watch.predicted(),
                absence: watch.absence(),
                back: watch.back_at(now),
            });
        }
        for task in self.detector.tasks.iter().filter(|task| task.is_bound()) {
            if let Some(count) = map.hosted.get_mut(task.going.unwrap_or(task.vcpu).index()) {
                *count += 1;
            }
        }
        map
    }

    /// Returns the tasks that leave now, the heaviest first; and the time of the next one.
    fn leaving(&mut self, now: Instant, map: &Map) -> Vec<MoveCandidate> {
        let mut leaving = Vec::new();
        let cuts = self.settings.fresh && self.monitor.cut_permille() > 0;
        for (at, task) in self.detector.tasks.iter().enumerate() {
            if !task.is_movable() || self.is_stuck(task, map) {
                continue;
            }
            let place = map.get(task.vcpu);
            let here = match place.and_then(|place| self.prospect(now, task, place)) {
                Some(here) if here.in_time => {
                    let leave = place.map_or(Nanos::ZERO, |place| self.leave(task, place));
                    let until = now + here.left.saturating_sub(leave) + Nanos::new(1);
                    if self.decide_at.is_none_or(|at| until < at) {
                        (self.decide_at, self.decide_on) = (Some(until), Some(task.vcpu));
                    }
                    if !cuts {
                        continue;
                    }
                    Some(here)
                }
                Some(here) => Some(here),
                // Nothing is known of it, or it is off line.
                None if self.settings.fresh || !map.runs(task.vcpu) => None,
                None => continue,
            };
            leaving.push(MoveCandidate { at, load_permille: task.load_permille, here });
        }
        leaving.sort_by_key(|leaving| (Reverse(leaving.load_permille), leaving.at));
        leaving
    }

    /// Its I/O is pending on a vCPU that is away: before that is back nothing happens.
    fn is_stuck(&self, task: &Task, map: &Map) -> bool {
        let away = |vcpu| map.get(vcpu).is_some_and(|place| !place.runs);
        !self.settings.monitor.literal && task.silent && away(task.asked_on)
    }

    /// Less than this is not worth a move, nor known.
    fn margin(&self) -> Nanos {
        self.settings.monitor.period.scaled(2, 1)
    }

    /// Remainder of a vCPU's slice at which this task leaves it.
    fn leave(&self, task: &Task, place: &Destination) -> Nanos {
        if let Some(leave) = self.settings.leave {
            return leave;
        }
        let needed = self.margin() + task.latency();
        place.slice.map_or(needed, |slice| needed.min(slice.scaled(1, 2)))
    }

    /// `None`: nothing can be said.
    fn prospect(&self, now: Instant, task: &Task, place: &Destination) -> Option<Prospect> {
        let (needed, done) = (self.leave(task, place), task.latency());
        if !place.runs {
            let heard = match place.slice {
                Some(slice) if slice < needed => place.back + slice + place.absence,
                _ => place.back + done,
            };
            return Some(Prospect { left: Nanos::ZERO, in_time: false, heard });
        }
        let left = place.left?;
        let in_time = left >= needed;
        let heard = if in_time { now + done } else { now + left + place.absence };
        Some(Prospect { left, in_time, heard: heard.max(now + done) })
    }

    /// Chooses the running vCPU with the longest remaining slice for each of its tasks; in the
    /// paper's form the next one round the ranking by remaining slice.
    ///
    /// The mask has those too that are as good, and empty. No others: a task that sleeps
    /// wakes on whichever of its mask the kernel comes to first, not on the best.
    fn destination(
        &self,
        now: Instant,
        task: &Task,
        leaving: &MoveCandidate,
        map: &Map,
    ) -> Option<Action> {
        let stays = leaving.here.filter(|here| here.in_time);
        let others = map
            .places
            .iter()
            .flatten()
            .filter(|place| place.vcpu != task.vcpu && task.allowed.contains(place.vcpu));
        let score = |place: &Destination| {
            let offers = self.prospect(now, task, place).filter(|offers| offers.in_time)?;
            let shared =
                if self.settings.monitor.literal { 0 } else { map.hosted[place.vcpu.index()] };
            Some((offers.left.scaled(1, 1 + shared), Reverse(place.vcpu)))
        };
        let mut scores: Vec<(Nanos, Reverse<VcpuId>)> = others.filter_map(score).collect();
        let by = if map.runs(task.vcpu) { Means::Push } else { Means::Pull };
        if self.settings.monitor.literal {
            scores.sort_unstable_by_key(|score| Reverse(*score));
            let Reverse(to) = scores.get(map.sent % scores.len().max(1))?.1;
            return Some(Action::Move { task: task.id, to, within: VcpuSet::only(to), by });
        }
        let (best, Reverse(to)) = scores.iter().max().copied()?;
        if stays.is_some_and(|here| !self.is_safer(here, map.get(task.vcpu), map.get(to))) {
            return None;
        }
        let least = best.saturating_sub(self.margin());
        let as_good = scores.iter().filter(|(score, Reverse(vcpu))| {
            *vcpu == to || *score >= least && map.hosted[vcpu.index()] == 0
        });
        let within = as_good.map(|(_, Reverse(vcpu))| *vcpu).collect();
        Some(Action::Move { task: task.id, to, within, by })
    }

    /// Tells whether a vCPU that has run less is worth a move. Slices are cut short at times, at
    /// any point. A task that is caught waits until its vCPU is back, and a fair host gives a vCPU
    /// back the sooner the less it has used: one that has used all of its slice waits for all
    /// others', one that has just begun for hardly more than one. So in the time for which the task
    /// would stay, a vCPU that has run less saves: chance of a cut × the difference × absence /
    /// slice.
    fn is_safer(
        &self,
        here: Prospect,
        home: Option<&Destination>,
        there: Option<&Destination>,
    ) -> bool {
        let (Some(home), Some(there)) = (home, there) else { return false };
        let Some(slice) = home.slice.filter(|slice| *slice > Nanos::ZERO) else { return false };
        let less = home.ran.saturating_sub(there.ran);
        let waits = less.scaled(home.absence.get(), slice.get());
        let stays = here.left.min(slice).scaled(self.monitor.cut_permille(), 1000);
        waits.scaled(stays.get(), slice.get()) > self.settings.monitor.period.scaled(1, 3)
    }

    /// Remainder of the slice at which parking is still too early.
    fn parks_with(&self, latency: Nanos) -> Nanos {
        latency + self.settings.monitor.period
    }

    /// Finds the vCPU on which an I/O is heard first, if that is sooner than where the task is. To
    /// wait there costs the rest of the slice here: so not before one more I/O would be late, with
    /// a period for the uncertainty of the slice's end.
    fn parking(&self, now: Instant, task: &Task, here: Prospect, map: &Map) -> Option<Action> {
        let too_early = here.left > self.parks_with(task.latency());
        if !self.settings.park || !map.runs(task.vcpu) || too_early {
            return None;
        }
        let others = map
            .places
            .iter()
            .flatten()
            .filter(|place| place.vcpu != task.vcpu && task.allowed.contains(place.vcpu));
        let heard =
            |place: &Destination| Some((self.prospect(now, task, place)?.heard, place.vcpu));
        let (heard, to) = others.filter_map(heard).min()?;
        (heard + self.margin() < here.heard).then(|| Action::Move {
            task: task.id,
            to,
            within: VcpuSet::only(to),
            by: Means::Push,
        })
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

#[cfg(test)]
mod budget_tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    #[test]
    fn what_is_over_the_share_is_owed() {
        let mut budget = Budget::new(50);
        // Use before the first report does not count.
        budget.spent(at(0), Nanos::from_secs(7), 2, Nanos::ZERO);
        assert!(budget.allows());
        // Two vCPUs ran for 15 of 20 ms together: 0.75 ms of them.
        budget.spent(at(10), Nanos::from_secs(7) + us(750), 2, us(5_000));
        assert!(budget.allows());
        budget.spent(at(20), Nanos::from_secs(7) + us(1_500) + us(1), 2, us(5_000));
        assert!(!budget.allows());
        budget.spent(at(30), Nanos::from_secs(7) + us(1_501), 2, us(5_000));
        assert!(budget.allows());
    }

    #[test]
    fn no_more_than_a_second_is_saved_or_owed() {
        let mut budget = Budget::new(100);
        budget.spent(at(0), Nanos::ZERO, 1, Nanos::ZERO);
        // A minute without use saves 0.1 s, which is used up within half a second.
        budget.spent(at(60_000), Nanos::ZERO, 1, Nanos::ZERO);
        budget.spent(at(60_500), us(150_001), 1, Nanos::ZERO);
        assert!(!budget.allows());
        // A minute of spending is paid for in a second.
        budget.spent(at(120_500), Nanos::from_secs(60), 1, Nanos::ZERO);
        budget.spent(at(121_499), Nanos::from_secs(60), 1, Nanos::ZERO);
        assert!(!budget.allows());
        budget.spent(at(121_500), Nanos::from_secs(60), 1, Nanos::ZERO);
        assert!(budget.allows());
    }
}
