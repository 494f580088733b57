//! Finds the tasks that are bound by I/O, from window to window.
//!
//! Source: vMigrater, section 3.3. A task is I/O-bound when it waited for I/O for more
//! than a share of a window (5 ms, half of it). Where this differs from the paper
//! (`literal` switches both off):
//!
//! - The time for which its vCPU was away does not count in the window. A completion during an
//!   absence is heard late, and a computing task would look like one that waits. A window with
//!   little remaining time says nothing. A long window (of an agent with costly wake-ups) counts if
//!   its remaining time is as long as a short one's; then the vCPU's whole absence counts as
//!   waiting.
//! - A task stays I/O-bound for `keep` after the last such window. A phase that ends unseen costs
//!   some moves; one that is given up too soon costs a whole absence. That time stops while its
//!   vCPU is away, because the task can do no I/O then.

use super::monitor::{Monitor, Recent};
use super::{TaskId, TaskLoad, VcpuId, VcpuSet};
use seekway_core::units::{Instant, Nanos};

/// Tasks that are followed at a time; more are left alone.
pub(super) const TASKS_MAX: usize = 1024;
/// Time from a vCPU's return within which an I/O is heard that ended during the absence.
const HEARD_AFTER: Nanos = Nanos::from_millis(1);
/// Factor over the requested length at which a window is a long one.
const LONG: u64 = 2;

/// Settings of the detector of I/O-bound tasks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    pub window: Nanos,
    /// Share of the window in thousandths.
    pub threshold_permille: u64,
    /// Time for which a task remains I/O-bound.
    pub keep: Nanos,
    /// Time for which its vCPU was away is left out.
    pub corrected: bool,
}

/// A task that is I/O-bound, or was moved.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub id: TaskId,
    /// Where the last load showed it, or where it was moved since.
    pub vcpu: VcpuId,
    /// The CPUs that its owner allows.
    pub allowed: VcpuSet,
    /// Share of the last valid window, in thousandths.
    pub load_permille: u64,
    /// Remaining time as an I/O-bound task.
    left: Nanos,
    latencies: Recent,
    /// Where it asked for the I/O that it waits for, as far as is known.
    pub asked_on: VcpuId,
    /// Its mask is not its owner's.
    pub moved: bool,
    /// When it was moved last.
    pub moved_at: Instant,
    /// For how long its vCPU had been away by then.
    away_before: Nanos,
    /// Where it would be without moves, and where it is; each with its total absence when the time
    /// that moves save was last settled.
    home: (VcpuId, Nanos),
    here: (VcpuId, Nanos),
    /// Its move is under way.
    pub going: Option<VcpuId>,
    /// A release is under way.
    pub releasing: bool,
    /// Moving it was refused.
    pub refused: bool,
    /// Its I/Os take longer than a slice: wherever it asks, its vCPU is taken away before the
    /// answer. To move it gains nothing.
    pub outlasts: bool,
    /// Nothing of it was seen since it was moved: its completion is pending where it was.
    pub silent: bool,
}

impl Task {
    /// Is it I/O-bound, and free to be moved?
    pub fn is_movable(&self) -> bool {
        self.is_wanted() && self.going.is_none() && !self.releasing
    }

    pub fn is_bound(&self) -> bool {
        self.left > Nanos::ZERO
    }

    /// Is it I/O-bound, and is it of use to move it?
    pub fn is_wanted(&self) -> bool {
        self.is_bound() && !self.refused && !self.outlasts
    }

    /// Typical time of its I/Os.
    pub fn latency(&self) -> Nanos {
        self.latencies.median().unwrap_or(Nanos::ZERO)
    }
}

/// The tasks that matter.
#[derive(Clone, Debug, Default)]
pub(super) struct Detector {
    settings: Settings,
    /// The tasks in ascending order of their ids, for binary search.
    pub tasks: Vec<Task>,
    last: Option<Instant>,
    /// Each vCPU's total absence at the last window.
    away: Vec<Nanos>,
    /// Asked for often: as of the last window.
    any_bound: bool,
}

impl Detector {
    pub fn new(settings: Settings) -> Detector {
        Detector { settings, ..Detector::default() }
    }

    pub fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let at = self.tasks.binary_search_by_key(&id, |task| task.id).ok()?;
        Some(&mut self.tasks[at])
    }

    pub fn any_bound(&self) -> bool {
        self.any_bound
    }

    /// Reports tasks' loads of the window that ends now.
    pub fn window(&mut self, now: Instant, loads: &[TaskLoad], monitor: &Monitor) {
        let span = self.last.map_or(self.settings.window, |last| now.since(last));
        let began = self.last.replace(now);
        let lost = self.lost(now, span, monitor);
        let window = Window { now, span, began, lost, monitor, settings: self.settings };
        for task in &mut self.tasks {
            // A task without a load did no I/O.
            if loads.binary_search_by_key(&task.id, |load| load.task).is_err() {
                task.age(span, window.lost(task.vcpu));
            }
        }
        for load in loads {
            let found = self.tasks.binary_search_by_key(&load.task, |task| task.id);
            let (permille, usable) = window.share(load, found.ok().map(|at| &self.tasks[at]));
            let bound = permille.filter(|share| *share >= self.settings.threshold_permille);
            let at = match found {
                Ok(at) => at,
                Err(at) if bound.is_some() && self.tasks.len() < TASKS_MAX => {
                    self.tasks.insert(at, Task::new(load));
                    at
                }
                Err(_) => continue,
            };
            let task = &mut self.tasks[at];
            task.look(load, began, span);
            if let Some(latency) = window.latency(load) {
                task.latencies.push(latency);
            }
            if let Some(permille) = bound {
                task.load_permille = permille;
                task.left = self.settings.keep.max(Nanos::new(1));
            } else {
                task.age(span, span.saturating_sub(usable));
            }
        }
        self.any_bound = self.tasks.iter().any(Task::is_bound);
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

    /// Records that the host takes no vCPU away any more. Tasks' activity is unknown until the next
    /// window, which covers all of it.
    pub fn rest(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.left = Nanos::ZERO);
        self.any_bound = false;
        self.forget();
    }

    /// Forgets tasks that are not I/O-bound any more and need no release.
    pub fn forget(&mut self) {
        self.tasks
            .retain(|task| task.is_bound() || task.moved || task.going.is_some() || task.releasing);
    }
}

/// A window of loads that ends now.
struct Window<'a> {
    now: Instant,
    span: Nanos,
    /// `None`: it is the first.
    began: Option<Instant>,
    /// For how long each vCPU was away in it.
    lost: Vec<Nanos>,
    monitor: &'a Monitor,
    settings: Settings,
}

impl Window<'_> {
    /// Time for which this vCPU was away. A vCPU that is off line has lost nothing.
    fn lost(&self, vcpu: VcpuId) -> Nanos {
        let lost = self.lost.get(vcpu.index()).filter(|_| self.settings.corrected);
        lost.copied().unwrap_or(Nanos::ZERO)
    }

    /// Computes the share of the time for which a task waited, in thousandths, if the window is
    /// valid; and the time in which it could run. `task` is its record, if it is followed.
    fn share(&self, load: &TaskLoad, task: Option<&Task>) -> (Option<u64>, Nanos) {
        let permille =
            |waited: Nanos, of: Nanos| waited.get().saturating_mul(1000) / of.get().max(1);
        let usable = self.span.saturating_sub(self.lost(load.vcpu));
        if usable >= self.span.scaled(1, 2) {
            return (Some(permille(load.waited.min(usable), usable)), usable);
        }
        if self.span < self.settings.window.scaled(LONG, 1) {
            return (None, usable);
        }
        let arrived = task.filter(|task| {
            task.vcpu == load.vcpu && self.began.is_some_and(|began| task.moved_at > began)
        });
        // Absences before the task's arrival are not the task's loss.
        let lost = arrived.map_or(self.lost(load.vcpu), |task| {
            let away = self.monitor.get(load.vcpu).map(|watch| watch.away(self.now));
            away.unwrap_or(Nanos::ZERO).saturating_sub(task.away_before)
        });
        let usable = self.span.saturating_sub(lost);
        let tells = usable >= self.settings.window.scaled(1, 2);
        (tells.then(|| permille(load.waited.saturating_sub(lost), usable)), usable)
    }

    /// Computes the latency of a task's I/Os, if one ended whose vCPU was there to hear of it: it
    /// ran all the time, or had been back for a while. I/Os that ended during an absence say
    /// nothing, because they were heard late.
    fn latency(&self, load: &TaskLoad) -> Option<Nanos> {
        let ran_from = |vcpu| self.monitor.get(vcpu).map(|watch| watch.runs_from());
        if let Some(last) = load.last.filter(|_| self.settings.corrected) {
            let ended = self.began.is_none_or(|began| last.done > began);
            let from = ran_from(last.heard_on).filter(|_| ended)?;
            let in_time = from <= last.asked || last.done >= from + HEARD_AFTER;
            return in_time.then(|| last.done.since(last.asked));
        }
        if load.ios == 0 {
            return None;
        }
        let latency = load.io_time.scaled(1, u64::from(load.ios));
        let in_time = |from: Instant| {
            self.now.since(from) > latency || self.began.is_some_and(|began| from < began)
        };
        (!self.settings.corrected || ran_from(load.vcpu).is_some_and(in_time)).then_some(latency)
    }
}

impl Task {
    /// The time that moves have saved this task from the last call on, in nanoseconds: the absence
    /// of its home less that of its vCPU. `away`: the total absence of a vCPU.
    pub fn settle(&mut self, away: impl Fn(VcpuId) -> Nanos) -> i64 {
        if !self.moved {
            return 0;
        }
        let since = |(vcpu, before): (VcpuId, Nanos)| {
            i64::try_from(away(vcpu).saturating_sub(before).get()).unwrap_or(i64::MAX)
        };
        let saved = since(self.home).saturating_sub(since(self.here));
        self.home.1 = away(self.home.0);
        self.here = (self.vcpu, away(self.vcpu));
        saved
    }

    /// Records a move to a vCPU. `away`: the total absence of a vCPU.
    pub fn arrive(&mut self, now: Instant, to: VcpuId, away: impl Fn(VcpuId) -> Nanos) {
        if !self.moved {
            self.home = (self.vcpu, away(self.vcpu));
        }
        self.here = (to, away(to));
        // The I/O that it waits for now was asked for before, and on that vCPU if the task lived
        // there.
        if !self.silent {
            self.asked_on = self.vcpu;
        }
        (self.moved, self.moved_at, self.vcpu) = (true, now, to);
        self.away_before = away(to);
    }

    fn new(load: &TaskLoad) -> Task {
        Task {
            id: load.task,
            vcpu: load.vcpu,
            allowed: load.allowed,
            load_permille: 0,
            left: Nanos::ZERO,
            latencies: Recent::default(),
            asked_on: load.vcpu,
            moved: false,
            moved_at: Instant::ZERO,
            away_before: Nanos::ZERO,
            home: (load.vcpu, Nanos::ZERO),
            here: (load.vcpu, Nanos::ZERO),
            going: None,
            releasing: false,
            refused: false,
            outlasts: false,
            silent: false,
        }
    }

    /// Records a window with little I/O, `lost` of which the vCPU was away.
    fn age(&mut self, span: Nanos, lost: Nanos) {
        self.left = self.left.saturating_sub(span.saturating_sub(lost));
    }

    /// Records that a move failed. It is not tried again until the task is I/O-bound anew; a task
    /// that we moved before is released.
    pub fn refuse(&mut self) {
        self.refused = true;
        if self.moved {
            self.left = Nanos::ZERO;
        }
    }

    /// Updates the task's vCPU and its I/Os' latency, from a window that began at `began`.
    fn look(&mut self, load: &TaskLoad, began: Option<Instant>, span: Nanos) {
        self.allowed = load.allowed;
        let lives = load.ran > Nanos::ZERO || load.ios > 0;
        self.silent = !lives && load.waited >= span.scaled(9, 10);
        // Until it has run after a move, reports name its old or its new vCPU, depending on the
        // detector.
        let settled = lives && began.is_some_and(|began| began >= self.moved_at);
        if (settled || !self.moved) && self.going.is_none() {
            (self.vcpu, self.asked_on) = (load.vcpu, load.vcpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::monitor::{Predict, Settings as Slices};
    use super::super::{LastIo, Sign};
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn at(t: u64) -> Instant {
        Instant::ZERO + ms(t)
    }

    fn load(waited: Nanos, ios: u32) -> TaskLoad {
        TaskLoad {
            task: TaskId(1),
            vcpu: VcpuId::new(0),
            allowed: VcpuSet::first(1),
            waited,
            ran: Nanos::from_micros(100),
            ios,
            io_time: waited,
            last: None,
        }
    }

    /// With a vCPU that is away from 20 to 40 ms.
    fn monitor(now: Instant) -> Monitor {
        let period = Nanos::from_micros(300);
        let mut monitor = Monitor::new(Slices {
            period,
            predict: Predict::Min8,
            absence: period.scaled(2, 1),
            literal: false,
        });
        monitor.attach(at(0), &VcpuSet::first(1));
        for (when, sign) in [(at(20), Sign::Preempted), (at(40), Sign::Resumed)] {
            if when <= now {
                monitor.heard(when, VcpuId::new(0), sign);
            }
        }
        monitor
    }

    fn detector(literal: bool) -> Detector {
        let keep = if literal { Nanos::ZERO } else { ms(20) };
        let window = ms(5);
        Detector::new(Settings { window, threshold_permille: 500, keep, corrected: !literal })
    }

    fn bound_after(detector: &mut Detector, t: u64, loads: &[TaskLoad]) -> bool {
        detector.window(at(t), loads, &monitor(at(t)));
        detector.any_bound()
    }

    #[test]
    fn half_a_window_is_enough_also_without_an_io_that_ended() {
        assert!(!bound_after(&mut detector(false), 5, &[load(Nanos::from_micros(2_400), 9)]));
        assert!(bound_after(&mut detector(false), 5, &[load(Nanos::from_micros(2_500), 9)]));
        // A slow disk.
        assert!(bound_after(&mut detector(false), 5, &[load(ms(5), 0)]));
        // A window that came late is as long as it was.
        let mut late = detector(false);
        bound_after(&mut late, 5, &[]);
        assert!(!bound_after(&mut late, 15, &[load(ms(4), 9)]));
    }

    #[test]
    fn who_was_kept_waiting_by_an_absent_vcpu_is_not_io_bound() {
        for (literal, bound) in [(false, false), (true, true)] {
            let mut detector = detector(literal);
            bound_after(&mut detector, 20, &[]);
            assert_eq!(bound_after(&mut detector, 45, &[load(ms(21), 1)]), bound, "{literal}");
        }
    }

    #[test]
    fn it_stays_so_for_a_while_in_which_its_vcpu_runs() {
        let mut kept = detector(false);
        assert!(bound_after(&mut kept, 5, &[load(ms(4), 9)]));
        assert!(bound_after(&mut kept, 20, &[]), "15 ms later");
        assert!(bound_after(&mut kept, 40, &[]), "these 20 ms do not count");
        assert!(!bound_after(&mut kept, 45, &[]), "these do");
        let mut literal = detector(true);
        assert!(bound_after(&mut literal, 5, &[load(ms(4), 9)]));
        assert!(!bound_after(&mut literal, 10, &[]));
    }

    /// An agent for which wake-ups are dear has windows of 20 ms, and slices are shorter.
    #[test]
    fn a_long_window_with_an_absence_tells_of_who_waits_but_not_of_who_was_kept_waiting() {
        let long = |waited| {
            let mut detector = detector(false);
            bound_after(&mut detector, 17, &[]);
            bound_after(&mut detector, 43, &[load(waited, 3)])
        };
        // Of 26 ms, 20 were lost.
        assert!(long(ms(24)));
        assert!(!long(ms(22)), "two of six");
        assert!(!long(ms(6)), "it may have waited while its vCPU was away");
        let mut short = detector(false);
        bound_after(&mut short, 19, &[]);
        assert!(!bound_after(&mut short, 41, &[load(ms(22), 3)]), "2 ms of 22 are few");
    }

    #[test]
    fn who_was_moved_in_a_long_window_has_lost_what_was_lost_since() {
        let mut detector = detector(false);
        bound_after(&mut detector, 15, &[load(ms(15), 3)]);
        detector.tasks[0].arrive(at(39), VcpuId::new(0), |_| ms(19));
        detector.tasks[0].left = Nanos::ZERO;
        // It was elsewhere until 39 ms, where it waited.
        assert!(bound_after(&mut detector, 42, &[load(ms(20), 3)]));
    }

    #[test]
    fn an_io_that_is_told_by_its_times_counts_if_its_vcpu_was_there_to_hear() {
        let told = |asked, done| {
            let mut detector = detector(false);
            bound_after(&mut detector, 30, &[]);
            let last = LastIo { asked: at(asked), done: at(done), heard_on: VcpuId::new(0) };
            let load = TaskLoad { last: Some(last), ..load(ms(20), 1) };
            bound_after(&mut detector, 50, &[load]);
            detector.tasks[0].latency()
        };
        assert_eq!(told(41, 43), ms(2), "it ran all the time");
        assert_eq!(told(15, 44), ms(29), "it had been back for a while: that is what it takes");
        assert_eq!(told(18, 40), Nanos::ZERO, "heard when the vCPU came back");
        assert_eq!(told(15, 29), Nanos::ZERO, "of an earlier window");
    }

    #[test]
    fn latency_is_of_those_that_were_heard_in_time() {
        let mut detector = detector(false);
        bound_after(&mut detector, 20, &[load(ms(20), 4)]);
        assert_eq!(detector.tasks[0].latency(), ms(5));
        bound_after(&mut detector, 45, &[load(ms(21), 1)]);
        assert_eq!(detector.tasks[0].latency(), ms(5), "21 ms were the vCPU's doing");
    }

    #[test]
    fn memory_is_bounded_however_many_there_are() {
        let mut detector = detector(false);
        let many = |n| TaskLoad { task: TaskId(n), ..load(ms(5), 1) };
        let loads: Vec<TaskLoad> = (0..3 * TASKS_MAX as u64).map(many).collect();
        bound_after(&mut detector, 5, &loads);
        assert_eq!(detector.tasks.len(), TASKS_MAX);
        bound_after(&mut detector, 15, &[]);
        bound_after(&mut detector, 100, &[]);
        detector.forget();
        assert!(detector.tasks.is_empty());
    }
}
