//! The rules of the authors' program, where the paper's text has others or none.
//!
//! Source: github.com/hku-systems/vMigrater at 49302a6, `src/main.c`. There the calls that move
//! tasks are compiled out; `apps/micro_benchmarks/8io/main.c` is the same file with them. By its
//! functions:
//!
//! - `thread_func`: a vCPU's thread sleeps for 300 µs. A sleep of more than 9 ms is an absence. The
//!   slice before it counts from the return before to the last sleep, and one outside 9 to 18 ms
//!   is taken as 11 ms. A vCPU that runs for 18 ms begins a slice anew. After each sleep:
//! - `tune_low_threshold`: for 20 slices of 11 ms each, the threshold less 1 ms, itself, and 1 ms
//!   more are tried; the one with the most I/O is the next. It begins with 5 ms; outside 2 to
//!   11 ms it becomes 6 ms.
//! - `migrate_blocked_io`: a task whose vCPU has not moved for three sleeps is pulled to the vCPU
//!   of the thread, if this has the threshold left.
//! - `distribute_io`: if that vCPU has no task, it takes those beyond the first of another.
//! - `do_migration`: tasks on vCPUs with no more than the threshold left go to those with more, in
//!   the order of what is left, an even number to each. If no vCPU has more,
//!   `do_migration_no_recipient`: a task whose vCPU has 1 ms or less goes to the vCPU that has the
//!   most left, if that is 2 ms; else to the one that has been away for longest
//!   (`predict_one_vcpu`), which is the next to come back.
//!
//! A registered task stays until it ends: nothing drops one whose vCPU is away.
//!
//! Read as meant: `migrate_blocked_io` compares with the last look of any thread, where the vCPU's
//! last move is meant; `do_migration_no_recipient` compares a variable instead of setting it;
//! `do_migration` subtracts below zero and offers a moved task again. Tasks are registered by hand
//! or by a filter that is not in the repository: here the text's detector registers one, in a
//! window in which its vCPU ran, and a task without I/O for a second has ended. I/O is counted, not
//! its bytes. Not here: threads that keep idle vCPUs spinning (`_thread_func`), the reserved vCPUs
//! 0, 1 and 11, and the other copies under `apps/`, which pull every task to each vCPU that
//! returns.

use super::super::{
    Action, Means, Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use super::detector::TASKS_MAX;
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// `DIFF_USEC`: a longer sleep is an absence.
const ABSENT: Nanos = Nanos::from_millis(9);
/// `TIME_SLICE_INIT`.
const SLICE: Nanos = Nanos::from_millis(11);
/// Time for which each threshold is tried.
const TRY: Nanos = SLICE.scaled(20, 1);
/// Difference of two thresholds that are tried.
const STEP: Nanos = Nanos::from_millis(1);
/// Time without I/O after which a task has ended.
const ENDED: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub period: Nanos,
    pub window: Nanos,
    /// Share of a window, in thousandths, from which a task is registered.
    pub threshold_permille: u64,
}

/// A vCPU, as its thread sees it.
#[derive(Clone, Copy, Debug)]
struct Vcpu {
    /// When it came back last.
    back: Instant,
    /// When its slice began.
    began: Instant,
    /// When its thread slept last.
    seen: Instant,
    slice: Nanos,
    /// Remainder of its slice at that time.
    left: Nanos,
    /// Told by an edge: it is away.
    gone: bool,
    slices: u64,
    away: Nanos,
}

impl Vcpu {
    fn new(now: Instant) -> Vcpu {
        let (slice, left) = (SLICE, Nanos::ZERO);
        let (back, began, seen, away) = (now, now, now, Nanos::ZERO);
        Vcpu { back, began, seen, slice, left, gone: false, slices: 0, away }
    }

    /// Its thread wakes.
    fn wakes(&mut self, at: Instant, period: Nanos) {
        let slept = at.since(self.seen);
        let ran = self.seen.since(self.began);
        if slept > ABSENT {
            let slice = ran + period;
            let is_likely = slice >= ABSENT && slice < ABSENT.scaled(2, 1);
            self.slice = if is_likely { slice } else { SLICE };
            (self.back, self.began, self.left) = (at, at, self.slice);
            (self.slices, self.away) = (self.slices + 1, self.away + slept);
        } else if ran >= ABSENT.scaled(2, 1) {
            (self.began, self.left) = (at, self.slice);
        } else {
            self.left = self.slice.saturating_sub(ran);
        }
        (self.seen, self.gone) = (self.seen.max(at), false);
    }
}

/// A registered task.
#[derive(Clone, Copy, Debug)]
struct Task {
    id: TaskId,
    /// Where it was put, or before that was seen.
    vcpu: VcpuId,
    allowed: VcpuSet,
    /// When it was last said to do I/O.
    told: Instant,
    moved: bool,
    going: Option<VcpuId>,
    releasing: bool,
    refused: bool,
}

impl Task {
    fn is_free(&self) -> bool {
        self.going.is_none() && !self.releasing && !self.refused
    }

    /// Where it is or goes.
    fn at(&self) -> VcpuId {
        self.going.unwrap_or(self.vcpu)
    }
}

/// Climbs to the threshold with the most I/O.
#[derive(Clone, Copy, Debug)]
struct Tuner {
    middle: Nanos,
    since: Option<Instant>,
    /// I/Os under the present threshold.
    ios: u64,
    /// Those of the thresholds that were tried, and their number.
    tried: [u64; 3],
    number: usize,
}

impl Tuner {
    fn new() -> Tuner {
        let middle = Nanos::from_millis(5);
        Tuner { middle, since: None, ios: 0, tried: [0; 3], number: 0 }
    }

    fn threshold(&self) -> Nanos {
        self.middle.saturating_sub(STEP) + STEP.scaled(self.number as u64, 1)
    }

    fn look(&mut self, now: Instant) {
        if now.since(*self.since.get_or_insert(now)) < TRY {
            return;
        }
        self.since = None;
        self.tried[self.number] = std::mem::take(&mut self.ios);
        self.number += 1;
        if self.number < self.tried.len() {
            return;
        }
        // Of equals the largest.
        let best = (0..self.tried.len()).max_by_key(|n| (self.tried[*n], *n)).unwrap_or(1);
        self.number = best;
        let next = self.threshold();
        let bounds = Nanos::from_millis(2)..=Nanos::from_millis(11);
        self.middle = if bounds.contains(&next) { next } else { Nanos::from_millis(6) };
        self.number = 0;
    }
}

pub(super) struct Published {
    settings: Settings,
    vcpus: Vec<Option<Vcpu>>,
    /// In ascending order of their ids.
    tasks: Vec<Task>,
    tuner: Tuner,
    /// vCPUs whose threads have woken since the last decision.
    woken: VcpuSet,
    /// The present window's beginning.
    window_from: Instant,
    actions: VecDeque<Action>,
    /// Edges are told; there are no beats.
    exact: bool,
    decided: Instant,
    moves: u64,
}

impl Published {
    pub fn new(settings: Settings) -> Published {
        Published {
            settings,
            vcpus: Vec::new(),
            tasks: Vec::new(),
            tuner: Tuner::new(),
            woken: VcpuSet::EMPTY,
            window_from: Instant::ZERO,
            actions: VecDeque::new(),
            exact: false,
            decided: Instant::ZERO,
            moves: 0,
        }
    }

    fn all(&self) -> impl Iterator<Item = (VcpuId, &Vcpu)> {
        let all = self.vcpus.iter().enumerate();
        all.filter_map(|(n, vcpu)| Some((VcpuId::new(n as u16), vcpu.as_ref()?)))
    }

    fn get(&self, vcpu: VcpuId) -> Option<&Vcpu> {
        self.vcpus.get(vcpu.index())?.as_ref()
    }

    /// Remainder of a vCPU's slice when it last ran. One off line has none.
    fn left(&self, vcpu: VcpuId) -> Nanos {
        self.get(vcpu).map_or(Nanos::ZERO, |vcpu| vcpu.left)
    }

    /// Three sleeps have passed without a move of the vCPU.
    fn is_away(&self, now: Instant, vcpu: VcpuId) -> bool {
        let rests = self.settings.period.scaled(3, 1);
        self.get(vcpu).is_none_or(|v| (v.gone || !self.exact) && now.since(v.seen) >= rests)
    }

    fn find(&self, id: TaskId) -> Option<usize> {
        self.tasks.binary_search_by_key(&id, |task| task.id).ok()
    }

    /// Number of the registered tasks that are on this vCPU.
    fn hosted(&self, vcpu: VcpuId) -> usize {
        self.tasks.iter().filter(|task| task.at() == vcpu).count()
    }

    fn put(&mut self, now: Instant, at: usize, to: VcpuId) {
        let by = if self.is_away(now, self.tasks[at].vcpu) { Means::Pull } else { Means::Push };
        let task = &mut self.tasks[at];
        task.going = Some(to);
        let (task, within) = (task.id, VcpuSet::only(to));
        self.actions.push_back(Action::Move { task, to, within, by });
        self.moves += 1;
    }

    /// In place of beats, where edges are told: what runs has run without a long sleep.
    fn wake_all(&mut self, now: Instant) {
        for (n, v) in self.vcpus.iter_mut().enumerate() {
            if let Some(v) = v.as_mut().filter(|v| !v.gone) {
                v.seen = v.seen.max(now);
                v.wakes(now, self.settings.period);
                self.woken.insert(VcpuId::new(n as u16));
            }
        }
    }

    fn decide(&mut self, now: Instant) {
        let woken = std::mem::take(&mut self.woken);
        self.decided = now;
        self.release(now);
        if self.tasks.is_empty() {
            return;
        }
        for vcpu in woken.iter().filter(|vcpu| self.get(*vcpu).is_some()).collect::<Vec<_>>() {
            self.tuner.look(now);
            if self.left(vcpu) >= self.tuner.threshold() {
                self.pull(now, vcpu);
                self.distribute(now, vcpu);
            }
        }
        self.migrate(now);
    }

    /// Releases the tasks that have ended.
    fn release(&mut self, now: Instant) {
        let ended = |task: &Task| now.since(task.told) >= ENDED && task.going.is_none();
        self.tasks.retain(|task| !ended(task) || task.moved || task.releasing);
        for task in self.tasks.iter_mut().filter(|task| ended(task) && !task.releasing) {
            task.releasing = true;
            self.actions.push_back(Action::Release { task: task.id });
        }
    }

    /// `migrate_blocked_io`.
    fn pull(&mut self, now: Instant, to: VcpuId) {
        for at in 0..self.tasks.len() {
            let task = &self.tasks[at];
            let may = task.is_free() && task.vcpu != to && task.allowed.contains(to);
            if may && self.is_away(now, task.vcpu) {
                self.put(now, at, to);
            }
        }
    }

    /// `distribute_io`.
    fn distribute(&mut self, now: Instant, to: VcpuId) {
        if self.hosted(to) > 0 {
            return;
        }
        let crowded: Vec<(VcpuId, usize)> = self.all().map(|(v, _)| (v, self.hosted(v))).collect();
        for (from, count) in crowded.into_iter().filter(|(_, count)| *count > 1) {
            let here = |task: &Task| task.is_free() && task.vcpu == from;
            let of = (0..self.tasks.len())
                .filter(|at| here(&self.tasks[*at]) && self.tasks[*at].allowed.contains(to));
            for at in of.take(count - 1).collect::<Vec<_>>() {
                self.put(now, at, to);
            }
        }
    }

    /// `do_migration`.
    fn migrate(&mut self, now: Instant) {
        let threshold = self.tuner.threshold();
        let leaves = |at: &usize| {
            let task = &self.tasks[*at];
            task.is_free() && self.left(task.vcpu) <= threshold
        };
        let mut movable: Vec<usize> = (0..self.tasks.len()).filter(leaves).collect();
        let mut ranked: Vec<(Reverse<Nanos>, VcpuId)> =
            self.all().map(|(vcpu, v)| (Reverse(v.left), vcpu)).collect();
        ranked.retain(|(left, _)| left.0 > threshold);
        ranked.sort_unstable();
        if ranked.is_empty() {
            movable.into_iter().for_each(|at| self.move_without_recipient(now, at));
            return;
        }
        let each = (self.tasks.len() / ranked.len()).max(1);
        for (_, to) in ranked {
            for _ in self.hosted(to)..each {
                let fits = movable.iter().position(|at| self.tasks[*at].allowed.contains(to));
                let Some(next) = fits else { break };
                self.put(now, movable.remove(next), to);
            }
        }
    }

    /// `do_migration_no_recipient`.
    fn move_without_recipient(&mut self, now: Instant, at: usize) {
        let task = self.tasks[at];
        if self.left(task.vcpu) > Nanos::from_millis(1) {
            return;
        }
        let others = || self.all().filter(|(vcpu, _)| task.allowed.contains(*vcpu));
        let most = others().max_by_key(|(vcpu, v)| (v.left, Reverse(*vcpu)));
        let most = most.filter(|(_, v)| v.left >= Nanos::from_millis(2));
        let to = most.or_else(|| others().min_by_key(|(vcpu, v)| (v.seen, *vcpu)));
        if let Some(to) = to.map(|(to, _)| to).filter(|to| *to != task.vcpu) {
            self.put(now, at, to);
        }
    }

    /// Does this window register a task? Its vCPU ran in all of it.
    fn registers(&self, now: Instant, load: &TaskLoad) -> bool {
        let ran = self.get(load.vcpu).is_some_and(|v| v.back <= self.window_from);
        let share = now.since(self.window_from).scaled(self.settings.threshold_permille, 1000);
        ran && !self.is_away(now, load.vcpu) && load.waited >= share
    }
}

impl VcpuPolicy for Published {
    fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.vcpus.resize(online.iter().last().map_or(0, |last| last.index() + 1), None);
        for (n, vcpu) in self.vcpus.iter_mut().enumerate() {
            let here = online.contains(VcpuId::new(n as u16));
            *vcpu = here.then(|| vcpu.unwrap_or_else(|| Vcpu::new(now)));
        }
    }

    fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) {
        self.exact = !matches!(sign, Sign::Beat { .. });
        let period = self.settings.period;
        let Some(v) = self.vcpus.get_mut(vcpu.index()).and_then(Option::as_mut) else { return };
        match sign {
            Sign::Beat { .. } | Sign::Resumed => v.wakes(at, period),
            Sign::Idle => (v.seen, v.gone) = (v.seen.max(at), false),
            Sign::Preempted | Sign::Lost { .. } => (v.seen, v.gone) = (v.seen.max(at), true),
        }
        if !v.gone {
            self.woken.insert(vcpu);
        }
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        for load in loads {
            match self.tasks.binary_search_by_key(&load.task, |task| task.id) {
                Ok(at) => {
                    let task = &mut self.tasks[at];
                    (task.allowed, task.told) = (load.allowed, now);
                    if !task.moved && task.going.is_none() {
                        task.vcpu = load.vcpu;
                    }
                    self.tuner.ios += u64::from(load.ios);
                }
                Err(at) if self.tasks.len() < TASKS_MAX && self.registers(now, load) => {
                    let TaskLoad { task: id, vcpu, allowed, .. } = *load;
                    let (moved, going) = (false, None);
                    let (releasing, refused) = (false, false);
                    let told = now;
                    let task = Task { id, vcpu, allowed, told, moved, going, releasing, refused };
                    self.tasks.insert(at, task);
                }
                Err(_) => {}
            }
        }
        self.window_from = now;
    }

    fn moved(&mut self, _now: Instant, task: TaskId, outcome: Outcome) {
        let Some(at) = self.find(task) else { return };
        let task = &mut self.tasks[at];
        let to = task.going.take();
        let releases = std::mem::take(&mut task.releasing);
        match (outcome, to) {
            (Outcome::Dropped, _) => {}
            (Outcome::Done, Some(to)) => (task.vcpu, task.moved) = (to, true),
            (Outcome::Refused, Some(_)) => task.refused = true,
            (_, None) if releases => task.moved = false,
            (_, None) => {}
        }
    }

    fn next(&mut self, now: Instant) -> Option<Action> {
        let due = self.next_wake().is_some_and(|at| at <= now);
        if due {
            self.wake_all(now);
        }
        if due || !self.woken.is_empty() {
            self.decide(now);
        }
        self.actions.pop_front()
    }

    fn next_wake(&self) -> Option<Instant> {
        (self.exact && !self.tasks.is_empty()).then(|| self.decided + self.settings.period)
    }

    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        Some(self.get(vcpu)?.seen + self.settings.period)
    }

    fn windows(&self) -> Option<Nanos> {
        Some(self.settings.window)
    }

    fn vcpus(&self, now: Instant) -> Vec<VcpuView> {
        let view = |(vcpu, v): (VcpuId, &Vcpu)| {
            let active = !self.is_away(now, vcpu);
            VcpuView {
                vcpu,
                active,
                slice: Some(v.slice),
                remaining: active.then_some(v.left),
                slices: v.slices,
                away: v.away,
            }
        };
        self.all().map(view).collect()
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("io_bound", self.tasks.len() as f64);
        sink("moves", self.moves as f64);
        sink("leave_ms", self.tuner.threshold().as_millis_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn at(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    fn vcpu(n: u16) -> VcpuId {
        VcpuId::new(n)
    }

    fn reader(on: u16) -> TaskLoad {
        TaskLoad {
            task: TaskId(1),
            vcpu: vcpu(on),
            allowed: VcpuSet::first(3),
            waited: ms(4),
            ran: ms(1),
            ios: 40,
            io_time: ms(4),
            last: None,
        }
    }

    /// Three vCPUs that beat every 300 µs while they run, and a reader on the first.
    struct Guest {
        policy: Published,
        now: u64,
    }

    impl Guest {
        fn new() -> Guest {
            let threshold_permille = 500;
            let settings =
                Settings { period: Nanos::from_micros(300), window: ms(5), threshold_permille };
            let mut policy = Published::new(settings);
            policy.attach(at(0), &VcpuSet::first(3));
            Guest { policy, now: 0 }
        }

        /// These vCPUs run until `end`; the moves, done at once.
        fn run(&mut self, end: u64, running: &[u16]) -> Vec<(u64, u16)> {
            let mut moves = Vec::new();
            while self.now < end {
                self.now += 100;
                for vcpu in running.iter().map(|n| vcpu(*n)) {
                    let due = self.policy.beat_at(vcpu).filter(|due| *due <= at(self.now));
                    if due.is_some() {
                        self.policy.heard(at(self.now), vcpu, Sign::Beat { due });
                    }
                }
                if self.now.is_multiple_of(5_000) {
                    self.policy.window(at(self.now), &[reader(0)]);
                }
                while let Some(action) = self.policy.next(at(self.now)) {
                    if let Action::Move { to, .. } = action {
                        moves.push((self.now / 1000, to.index() as u16));
                    }
                    self.policy.moved(at(self.now), action.task(), Outcome::Done);
                }
            }
            moves
        }
    }

    #[test]
    fn absences_count_from_9_ms_and_unlikely_slices_are_11() {
        let mut v = Vcpu::new(at(0));
        let period = Nanos::from_micros(300);
        for n in 1..100 {
            v.wakes(at(300 * n), period);
        }
        v.wakes(at(38_700), period);
        assert_eq!((v.slices, v.left), (0, Nanos::ZERO), "9 ms are none");
        v.wakes(at(60_000), period);
        assert_eq!((v.slices, v.slice), (1, SLICE), "20.7 ms are not likely");
        (1..41).for_each(|n| v.wakes(at(60_000 + 300 * n), period));
        v.wakes(at(90_000), period);
        assert_eq!((v.slices, v.slice, v.left), (2, at(12_300) - at(0), at(12_300) - at(0)));
    }

    /// No detector drops a task whose vCPU is away: one that comes back pulls it.
    #[test]
    fn a_registered_task_is_pulled_by_the_first_vcpu_that_is_back() {
        let mut guest = Guest::new();
        guest.run(20_000, &[0]);
        assert_eq!(guest.policy.tasks.len(), 1);
        assert_eq!(guest.run(97_000, &[]), [], "nobody runs");
        assert_eq!(guest.run(98_000, &[2]), [(97, 2)]);
    }

    /// With nothing left anywhere the task goes to the vCPU that was away for longest.
    #[test]
    fn who_finds_no_recipient_parks_on_the_vcpu_that_is_back_next() {
        let mut guest = Guest::new();
        guest.run(10_200, &[0, 1, 2]);
        guest.run(10_800, &[0, 2]);
        guest.run(25_000, &[]);
        let moves = guest.run(40_000, &[0]);
        assert_eq!(moves.last().map(|(_, to)| *to), Some(1), "{moves:?}");
    }

    #[test]
    fn the_threshold_climbs_to_the_most_io_and_stays_within_2_to_11_ms() {
        let mut tuner = Tuner::new();
        let mut now = at(0);
        let mut try_all = |best: u64, rounds: u64| {
            for _ in 0..rounds * 3 * 221 {
                tuner.look(now);
                let off = tuner.threshold().get().abs_diff(ms(best).get()) / 1_000_000;
                tuner.ios += 100 - off;
                now = now + ms(1);
            }
            tuner.middle
        };
        assert_eq!(try_all(9, 8), ms(9));
        assert_eq!(try_all(3, 10), ms(3));
        assert!((ms(2)..=ms(11)).contains(&try_all(40, 30)));
    }

    #[test]
    fn a_task_without_io_for_a_second_is_released() {
        let mut guest = Guest::new();
        guest.run(30_000, &[0, 1]);
        assert!(guest.policy.tasks[0].moved);
        guest.policy.tasks[0].told = Instant::ZERO;
        guest.now = 1_100_000;
        guest.run(1_104_000, &[0, 1]);
        assert!(guest.policy.tasks.is_empty());
    }

    #[test]
    fn it_is_not_mixed_with_the_other_forms() {
        for other in ["literal=true", "except=park", "budget=0.1"] {
            assert!(crate::build(&format!("vmigrater:published=true,{other}")).is_err(), "{other}");
        }
    }
}
