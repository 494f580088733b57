//! The policy, and the lock around it that nobody waits for.
//!
//! Whoever has something to tell puts it where it can be found ([`Brain::tell`],
//! [`Brain::ended`], [`Brain::observe`]) and then tries the lock ([`Brain::turn`]). Who gets it
//! takes all that was left there, by whomever, and asks the policy what to do; who does not
//! can go to sleep, because the holder looks once more before it goes.
//!
//! Only urgent threads that are pinned to a vCPU come here: one that the guest's own
//! scheduler took off its vCPU would keep the lock for as long.
//!
//! Each wake-up costs (in an emulated guest 0.1 to 0.2 ms), so one thread, the keeper's, wakes
//! for what is due: windows and decisions. It is the monitor of a vCPU that is expected to run
//! until then. The others wake for their own beats, and when the keeper is long overdue.

#[cfg(test)]
mod tests;

use super::book::Book;
use super::clock;
use super::loads::{Loads, ThreadLoad};
use super::preemption::{Seen, Waker};
use super::selection::Selection;
use crate::system::System;
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{
    Action, Outcome, TaskId, TaskLoad, VCPUS_MAX, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Signs of one vCPU that wait to be heard. More come only if the lock's holder is away for
/// long: then the older ones tell nothing that the newer do not.
const SIGNS_MAX: usize = 256;
/// The keeper has lost its vCPU if it is as late as this: then the next one takes its place,
/// and if that is not there, the next after as long again.
const PATIENCE: Nanos = Nanos::from_millis(20);
/// Who wakes for something else finds it late by as much, and so away.
const OVERDUE: Nanos = Nanos::from_millis(2);
/// Who wakes for something else as soon after the end of a window sees to that then.
const TOGETHER: Nanos = Nanos::from_micros(300);
/// And who is awake by this part of a window before its end does so at once.
const EARLY: u64 = 5;
/// Loads rest when the policy has asked for none for so long.
const REST_AFTER: Nanos = Nanos::from_secs(5);
/// "Never", in an atomic.
const NEVER: u64 = u64::MAX;

/// The policy and what is there for it.
pub struct Brain<S> {
    thinking: Mutex<Thinking>,
    /// Something was left for whoever has the lock.
    left: AtomicBool,
    /// What was seen of each vCPU.
    signs: Vec<Mutex<Vec<Seen>>>,
    /// Actions that came to their end.
    ended: Mutex<Vec<(TaskId, Outcome)>>,
    /// vCPUs have come or gone.
    online: Mutex<Option<VcpuSet>>,
    /// Who waits for I/O.
    watching: Mutex<Watching<S>>,
    /// What the engine has to observe.
    due: Due,
    /// A view is asked for.
    asked: AtomicBool,
    view: Mutex<Option<View>>,
    /// Wakes who asked.
    answered: Waker,
    book: Arc<Book<S>>,
    exact: bool,
}

/// As `status` shows it.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct View {
    /// The vCPUs.
    pub vcpus: Vec<VcpuView>,
    /// What the policy alone knows.
    pub metrics: Vec<(&'static str, f64)>,
    /// It asks for loads, this often.
    pub windows: Option<Nanos>,
}

struct Thinking {
    policy: Box<dyn VcpuPolicy>,
    online: VcpuSet,
    heard: Vec<Seen>,
    loads: Vec<TaskLoad>,
    /// To wake monitors with, by vCPU.
    wakers: Vec<Option<Waker>>,
}

struct Watching<S> {
    loads: Box<dyn Loads>,
    selection: Selection<S>,
    seen: Vec<ThreadLoad>,
    /// The end of the last window.
    last: Instant,
    /// The end of the window that `tasks` tells of, if the policy has not been told yet.
    ready: Option<Instant>,
    tasks: Vec<TaskLoad>,
    /// The policy asked for windows then.
    asked: Instant,
}

/// When threads are to wake, in nanoseconds, or [`NEVER`].
struct Due {
    beats: Vec<AtomicU64>,
    wake: AtomicU64,
    /// The end of the next window, and the time between two.
    window: AtomicU64,
    windows: AtomicU64,
    /// What a wake-up of a monitor costs.
    cost: Cost,
    /// The vCPU whose monitor wakes for what is due.
    keeper: AtomicUsize,
    /// A keeper that did not come when it was to: it is none until it has woken.
    lost: AtomicUsize,
    /// One more than the highest vCPU.
    vcpus: AtomicUsize,
}

impl<S: System> Brain<S> {
    /// Before the first thread comes.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(
        mut policy: Box<dyn VcpuPolicy>,
        exact: bool,
        (loads, selection): (Box<dyn Loads>, Selection<S>),
        book: Arc<Book<S>>,
        online: VcpuSet,
    ) -> io::Result<Brain<S>> {
        let (now, answered) = (clock::now(), Waker::new()?);
        policy.attach(now, &online);
        let each = || (0..VCPUS_MAX).map(|_| ());
        let never = || AtomicU64::new(NEVER);
        let thinking = Thinking {
            policy,
            online,
            heard: Vec::new(),
            loads: Vec::new(),
            wakers: each().map(|()| None).collect(),
        };
        let (seen, tasks) = (Vec::new(), Vec::new());
        let watching =
            Watching { loads, selection, seen, last: now, ready: None, tasks, asked: now };
        let brain = Brain {
            thinking: Mutex::new(thinking),
            left: AtomicBool::new(false),
            signs: each().map(|()| Mutex::default()).collect(),
            ended: Mutex::default(),
            online: Mutex::default(),
            watching: Mutex::new(watching),
            due: Due {
                beats: each().map(|()| never()).collect(),
                wake: never(),
                window: never(),
                windows: never(),
                cost: Cost::default(),
                keeper: AtomicUsize::new(0),
                lost: AtomicUsize::new(usize::MAX),
                vcpus: AtomicUsize::new(1),
            },
            asked: AtomicBool::new(false),
            view: Mutex::default(),
            answered,
            book,
            exact,
        };
        brain.publish(&mut waited_for(&brain.thinking), now, (VcpuId::new(0), true));
        Ok(brain)
    }

    /// Until when this vCPU's monitor is to sleep, and when it is to beat.
    pub fn due(&self, vcpu: VcpuId) -> (Option<Instant>, Option<Instant>) {
        let load = |due: &AtomicU64| due.load(SeqCst);
        let beat = if self.exact { NEVER } else { load(&self.due.beats[vcpu.index()]) };
        let (wake, mut window) = (load(&self.due.wake), load(&self.due.window));
        let vcpus = self.due.vcpus.load(SeqCst).max(vcpu.index() + 1);
        let rank = (vcpus + vcpu.index() - self.due.keeper.load(SeqCst) % vcpus) % vcpus;
        if rank == 0 {
            let together = window..=window.saturating_add(TOGETHER.get());
            let soon = [beat, wake].into_iter().filter(|at| together.contains(at)).min();
            window = soon.unwrap_or(window);
        }
        let patience = PATIENCE.get().saturating_mul(rank as u64);
        let until = wake.min(window).saturating_add(patience);
        let at = |at: u64| Some(at).filter(|at| *at != NEVER).map(Instant::from_nanos);
        (at(until), at(beat))
    }

    /// A monitor has woken. If the keeper has not long after it was to, this one takes its place.
    pub fn woke(&self, vcpu: VcpuId, now: Instant) {
        let lost = self.due.lost.load(SeqCst);
        if lost == vcpu.index() {
            self.due.lost.store(usize::MAX, SeqCst);
        }
        let keeper = self.due.keeper.load(SeqCst);
        let due = self.due.wake.load(SeqCst).min(self.due.window.load(SeqCst));
        if keeper != vcpu.index() && now.as_nanos() > due.saturating_add(OVERDUE.get()) {
            self.due.lost.store(keeper, SeqCst);
            self.due.keeper.store(vcpu.index(), SeqCst);
        }
    }

    /// A monitor had so much CPU time for its last wake-up and what it did then.
    pub fn spent(&self, time: Nanos) {
        self.due.cost.spent(time);
    }

    /// What is due at `now`: the end of a window, and a decision.
    pub fn is_due(&self, now: Instant) -> (bool, bool) {
        let due = |due: &AtomicU64| now.as_nanos() >= due.load(SeqCst);
        (due(&self.due.window), due(&self.due.wake))
    }

    /// A monitor saw this. What cannot be left now stays in `seen`. If it is no `news`, it is
    /// heard with what is.
    pub fn tell(&self, vcpu: VcpuId, seen: &mut Vec<Seen>, news: bool) {
        if seen.is_empty() {
            return;
        }
        if let Ok(mut signs) = self.signs[vcpu.index()].try_lock() {
            signs.append(seen);
            let over = signs.len().saturating_sub(SIGNS_MAX);
            signs.drain(..over);
        }
        if news {
            self.left.store(true, SeqCst);
        }
        let over = seen.len().saturating_sub(SIGNS_MAX);
        seen.drain(..over);
    }

    /// An action came to its end. Waits, if it has to: for workers.
    pub fn ended(&self, task: TaskId, outcome: Outcome) {
        waited_for(&self.ended).push((task, outcome));
        self.left.store(true, SeqCst);
    }

    /// The same of several, for those who wait for nothing. Those that cannot be left now stay
    /// in `ended`.
    pub fn ended_all(&self, ended: &mut Vec<(TaskId, Outcome)>) {
        if ended.is_empty() {
            return;
        }
        if let Ok(mut left) = self.ended.try_lock() {
            left.append(ended);
            drop(left);
            self.left.store(true, SeqCst);
        }
    }

    /// vCPUs have come or gone; a monitor has to be woken then.
    pub fn set_online(&self, online: VcpuSet) {
        *waited_for(&self.online) = Some(online);
        self.left.store(true, SeqCst);
    }

    /// This monitor can be woken by this. Before its thread comes here; waits.
    pub fn add_waker(&self, vcpu: VcpuId, waker: Option<Waker>) {
        waited_for(&self.thinking).wakers[vcpu.index()] = waker;
    }

    /// Ask for a view, which is there after the next turn: then what is returned can be
    /// read.
    pub fn ask(&self) -> RawFd {
        self.answered.take();
        self.asked.store(true, SeqCst);
        self.left.store(true, SeqCst);
        self.answered.as_fd().as_raw_fd()
    }

    /// The view that was asked for.
    pub fn answer(&self) -> Option<View> {
        waited_for(&self.view).take()
    }

    /// See who waited for I/O, if it is time for that. False if it is, and somebody else
    /// is at it.
    ///
    /// # Errors
    /// Nothing can be seen any more.
    pub fn observe(&self) -> io::Result<bool> {
        let now = clock::now();
        let windows = self.due.windows.load(SeqCst);
        if windows == NEVER {
            return Ok(true);
        }
        let is_due =
            || (now + Nanos::new(windows / EARLY)).as_nanos() >= self.due.window.load(SeqCst);
        if !is_due() {
            return Ok(true);
        }
        let Ok(mut watching) = self.watching.try_lock() else { return Ok(false) };
        if !is_due() {
            return Ok(true);
        }
        if watching.ready.is_some() {
            // The last one was not heard yet: the next tells of both.
            drop(watching);
            self.left.store(true, SeqCst);
            return Ok(false);
        }
        let Watching { loads, selection, seen, last, ready, tasks, .. } = &mut *watching;
        seen.clear();
        loads.window(now, seen)?;
        seen.retain(|load| selection.has(load.pid, now));
        tasks.clear();
        // If the book is somebody's just now, the policy does without this window.
        let admitted = self.book.admit(seen, (now, now.since(*last)), tasks);
        (*last, *ready) = (now, admitted.then_some(now));
        let next = self.due.cost.windows(windows);
        self.due.window.store(now.as_nanos().saturating_add(next), SeqCst);
        // Who hears that something was left can take it.
        drop(watching);
        self.left.store(true, SeqCst);
        Ok(true)
    }

    /// Loads rest while the policy has long asked for none. By a thread that may wait.
    ///
    /// # Errors
    /// Nothing can be seen any more.
    pub fn rest(&self, now: Instant) -> io::Result<()> {
        let asked = self.due.windows.load(SeqCst) != NEVER;
        let mut watching = waited_for(&self.watching);
        if asked {
            watching.asked = now;
        }
        let rests = now.since(watching.asked) >= REST_AFTER;
        watching.loads.rest(rests)
    }

    /// Let the policy hear what is there and say what to do, if there is anything. False if
    /// there is, and somebody else is at it.
    ///
    /// `awake`: the caller is the monitor of the vCPU `here`, and looks at [`Brain::due`] before
    /// it sleeps.
    pub fn turn(&self, here: VcpuId, awake: bool, actions: &mut Vec<Action>) -> bool {
        let mut is_due = clock::now().as_nanos() >= self.due.wake.load(SeqCst);
        while self.left.load(SeqCst) || is_due {
            // Its holder looks at `left` once more.
            let Ok(mut thinking) = self.thinking.try_lock() else { return false };
            self.left.store(false, SeqCst);
            let now = clock::now();
            self.hear(&mut thinking, now);
            while let Some(action) = thinking.policy.next(now) {
                actions.push(action);
            }
            self.publish(&mut thinking, now, (here, awake));
            is_due = false;
        }
        true
    }

    fn hear(&self, thinking: &mut Thinking, now: Instant) {
        let Thinking { policy, online, heard, loads, .. } = thinking;
        if let Some(changed) = self.online.try_lock().ok().and_then(|mut online| online.take()) {
            *online = changed;
            policy.attach(now, online);
        }
        heard.clear();
        for vcpu in online.iter() {
            if let Ok(mut signs) = self.signs[vcpu.index()].try_lock() {
                heard.append(&mut signs);
            }
        }
        // Each vCPU's are in order already, and stay so.
        heard.sort_by_key(|seen| seen.at);
        heard.iter().for_each(|seen| policy.heard(seen.at, seen.vcpu, seen.sign));
        if let Ok(mut ended) = self.ended.try_lock() {
            ended.drain(..).for_each(|(task, outcome)| policy.moved(now, task, outcome));
        }
        if let Ok(mut watching) = self.watching.try_lock()
            && let Some(at) = watching.ready.take()
        {
            std::mem::swap(loads, &mut watching.tasks);
            drop(watching);
            policy.window(at, loads);
        }
        if self.asked.swap(false, SeqCst)
            && let Ok(mut view) = self.view.try_lock()
        {
            let mut metrics = Vec::new();
            policy.metrics(&mut |name, value| metrics.push((name, value)));
            let (vcpus, windows) = (policy.vcpus(now), policy.windows());
            *view = Some(View { vcpus, metrics, windows });
            self.answered.wake();
        }
    }

    /// What is to be observed from now on; who sleeps too long for that is woken.
    fn publish(&self, thinking: &mut Thinking, now: Instant, (here, awake): (VcpuId, bool)) {
        let Thinking { policy, online, wakers, .. } = thinking;
        let raw = |at: Option<Instant>| at.map_or(NEVER, Instant::as_nanos);
        let wake = raw(policy.next_wake());
        let mut sooner = wake < self.due.wake.swap(wake, SeqCst);
        let windows = policy.windows().map_or(NEVER, Nanos::get);
        if windows != self.due.windows.swap(windows, SeqCst) {
            self.due.window.store(now.as_nanos().saturating_add(windows), SeqCst);
            sooner |= windows != NEVER;
        }
        let until = wake.min(self.due.window.load(SeqCst));
        if until != NEVER {
            let before = self.due.keeper.load(SeqCst);
            let left = Instant::from_nanos(until).since(now);
            let mut vcpus = policy.vcpus(now);
            let lost = self.due.lost.load(SeqCst);
            vcpus.retain(|view| view.active && view.vcpu.index() != lost);
            let keeper = keeper(&vcpus, left, (before, here));
            self.due.keeper.store(keeper, SeqCst);
            sooner |= keeper != before;
        }
        let keeper = self.due.keeper.load(SeqCst);
        self.due.vcpus.store(online.iter().last().map_or(1, |last| last.index() + 1), SeqCst);
        for vcpu in online.iter() {
            let beat = raw(policy.beat_at(vcpu));
            let before = self.due.beats[vcpu.index()].swap(beat, SeqCst);
            // A beat that is put off finds so when it comes, and one that comes a little
            // later than is wanted is not worth a wake-up more.
            let beats = beat.saturating_add(TOGETHER.get()) < before && !self.exact;
            let sleeps = beats || (sooner && vcpu.index() == keeper);
            if let (true, Some(waker)) = (sleeps && !(vcpu == here && awake), &wakers[vcpu.index()])
            {
                waker.wake();
            }
        }
    }
}

/// Who is to wake for what is due when so much time is `left`: the keeper so far, if its vCPU
/// is expected to run until then. Else who is awake. Else the one with most left; and if none
/// is expected to last, who is awake: that one runs.
fn keeper(vcpus: &[VcpuView], left: Nanos, (before, here): (usize, VcpuId)) -> usize {
    let lasting = || vcpus.iter().filter(|view| view.remaining > Some(left));
    let lasts = |number: &usize| lasting().any(|view| view.vcpu.index() == *number);
    let most = lasting().max_by_key(|view| view.remaining).map(|view| view.vcpu.index());
    [before, here.index()].into_iter().find(lasts).or(most).unwrap_or(here.index())
}

/// The least that a monitor's wake-up took lately, in nanoseconds of CPU time. Others are dearer
/// for what was done then, or because the vCPU was away meanwhile.
#[derive(Default)]
struct Cost(AtomicU64);

impl Cost {
    /// A wake-up took so much. The least is followed down at once and up by a sixteenth. Two
    /// threads may do so at a time: one of the two is as good as the other.
    fn spent(&self, time: Nanos) {
        let before = self.0.load(SeqCst);
        let risen = before + before / 16 + 1;
        self.0.store(if before == 0 { time.get() } else { time.get().min(risen) }, SeqCst);
    }

    /// From window to window, where the policy asks for `asked`: wake-ups for windows shall
    /// take no more than a hundredth of a vCPU, but for one in four that are asked for. In an
    /// emulated guest a wake-up takes 0.1 ms and more; else some microseconds.
    fn windows(&self, asked: u64) -> u64 {
        let affordable = self.0.load(SeqCst).saturating_mul(100);
        affordable.clamp(asked, asked.saturating_mul(4))
    }
}

/// For threads that may wait.
fn waited_for<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
