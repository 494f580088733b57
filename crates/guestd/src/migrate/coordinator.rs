//! The policy behind a try-lock. [`seekway_vcpu::agent`] orders its news and the monitors'
//! wake-ups; this file makes that safe among threads.
//!
//! A thread leaves its news in a list ([`Coordinator::tell`], [`Coordinator::ended`],
//! [`Coordinator::observe`]) and then tries the lock ([`Coordinator::turn`]). If it gets the lock,
//! it takes all threads' news, and asks the policy for actions. If not, it can go to sleep: the
//! thread with the lock looks for news once more before it unlocks.
//!
//! Only urgent threads that are pinned to a vCPU come here. A thread that the guest's scheduler
//! took off its vCPU would keep the lock for as long.

#[cfg(test)]
mod tests;

use super::loads::{Loads, ThreadLoad};
use super::preemption::{Alarms, Waker};
use super::selection::Selection;
use super::tasks::Tasks;
use super::waited_for;
use crate::system::System;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::agent::{Agent, News, Seen, Timetable, is_sooner};
use seekway_vcpu::{
    Action, Outcome, TaskId, TaskLoad, VCPUS_MAX, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

/// The most signs of one vCPU that wait for the policy. More come only if the thread that holds
/// the lock is away for long: then the older signs tell nothing that the newer do not.
const SIGNS_MAX: usize = 256;

/// A thread that is awake within this part of a window before its end reads the loads at once,
/// and so does one that is awake once a window is as long as the policy asks. The simulator does
/// not model that.
const EARLY: u64 = 5;

/// Windows take at most this part of a vCPU (a two-hundredth), ...
const WINDOWS_PART: u64 = 200;

/// More than this is no CPU time of a wake-up, but an absence of its vCPU that the guest, without
/// a steal clock, takes for it.
const USED_MAX: Nanos = Nanos::from_millis(2);

/// ... up to this factor over the length that the policy asks for.
const LONGER_MAX: u64 = 4;

/// Time by which an event is overdue when no vCPU can have had anything to run.
const FORGOTTEN: Nanos = Nanos::from_millis(500);

/// Time without a request of the policy after which the detector of waiting for I/O rests.
const REST_AFTER: Nanos = Nanos::from_secs(1);

/// The policy, and the news that wait for it.
pub struct Coordinator<S> {
    core: Mutex<Core>,
    /// Some list has news.
    left: AtomicBool,
    /// Signs of each vCPU.
    signs: Vec<Mutex<Vec<Seen>>>,
    /// Actions that came to their end.
    ended: Mutex<Vec<(TaskId, Outcome)>>,
    /// The vCPUs that are on line, if that has changed.
    online: Mutex<Option<VcpuSet>>,
    watching: Mutex<Watching<S>>,
    published: Published,
    /// Cost of a monitor's wake-up.
    cost: Cost,
    /// CPU time of all threads, in nanoseconds.
    used: AtomicU64,
    /// `status` asks for a view.
    asked: AtomicBool,
    view: Mutex<Option<View>>,
    /// Wakes the thread that asked.
    answered: Waker,
    tasks: Arc<Tasks<S>>,
    /// Where the detector tells of edges by itself, and the kernel keeps alarms: monitors set no
    /// timers then, and do not beat.
    alarms: Option<Arc<dyn Alarms>>,
    clock: fn() -> Instant,
}

/// The policy's part of `status`.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct View {
    pub vcpus: Vec<VcpuView>,
    /// Metrics that only the policy knows.
    pub metrics: Vec<(&'static str, f64)>,
    /// The length of windows, if the policy asks for loads.
    pub windows: Option<Nanos>,
}

/// State under the lock.
struct Core {
    agent: Agent,
    news: News,
    /// To wake monitors with, by vCPU.
    wakers: Vec<Option<Waker>>,
}

/// Sees which tasks wait for I/O.
struct Watching<S> {
    loads: Box<dyn Loads>,
    selection: Selection<S>,
    seen: Vec<ThreadLoad>,
    /// The end of the last window.
    last: Instant,
    /// End of the window of `tasks`, if the policy has not been told yet.
    ready: Option<Instant>,
    tasks: Vec<TaskLoad>,
    /// When the policy last asked for windows.
    asked: Instant,
}

impl<S: System> Coordinator<S> {
    /// Makes the coordinator before the first thread starts. `alarms`: of a detector that tells
    /// edges by itself. `watching`: the detector of waiting for I/O, and the tasks that count.
    /// `clock` reads CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(
        policy: Box<dyn VcpuPolicy>,
        alarms: Option<Arc<dyn Alarms>>,
        (loads, selection): (Box<dyn Loads>, Selection<S>),
        tasks: Arc<Tasks<S>>,
        (online, clock): (VcpuSet, fn() -> Instant),
    ) -> io::Result<Coordinator<S>> {
        let (now, answered) = (clock(), Waker::new()?);
        let mut agent = Agent::new(policy);
        agent.attach(now, online);
        let wakers = (0..VCPUS_MAX).map(|_| None).collect();
        let watching = Watching {
            loads,
            selection,
            seen: Vec::new(),
            last: now,
            ready: None,
            tasks: Vec::new(),
            asked: now,
        };
        let coordinator = Coordinator {
            core: Mutex::new(Core { agent, news: News::default(), wakers }),
            left: AtomicBool::new(false),
            signs: (0..VCPUS_MAX).map(|_| Mutex::default()).collect(),
            ended: Mutex::default(),
            online: Mutex::default(),
            watching: Mutex::new(watching),
            published: Published::new(),
            cost: Cost::default(),
            used: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            view: Mutex::default(),
            answered,
            tasks,
            alarms,
            clock,
        };
        coordinator.plan(&mut waited_for(&coordinator.core), now, (VcpuId::new(0), true));
        Ok(coordinator)
    }

    /// The times until which this vCPU's monitor sleeps, and of its next beat. Where the kernel
    /// keeps alarms, it gets this one, and the monitor sleeps until it is woken. Only a decision
    /// needs a timer: an alarm may be a tick late, and then the task's vCPU has gone. Due events
    /// are not tried before `pause`, if given: another thread is at them.
    pub fn due(&self, vcpu: VcpuId, pause: Option<Instant>) -> (Option<Instant>, Option<Instant>) {
        let later = |at: Instant| pause.map_or(at, |pause| at.max(pause));
        if let Some(alarms) = &self.alarms {
            loop {
                let before = self.published.timetable();
                alarms.set_alarm(vcpu, before.alarm(vcpu, None).or(pause).map(later));
                // Another thread may have set it meanwhile, for a newer timetable.
                if self.published.timetable() == before {
                    let decides = before.lead == vcpu;
                    return (before.decision.filter(|_| decides).map(later), None);
                }
            }
        }
        let beat = time(self.published.beats[vcpu.index()].load(SeqCst));
        (self.published.timetable().alarm(vcpu, beat).map(later), beat)
    }

    /// Does the kernel keep alarms?
    pub fn has_alarms(&self) -> bool {
        self.alarms.is_some()
    }

    /// A monitor has woken. If the lead is overdue, this one leads from now on.
    pub fn woke(&self, vcpu: VcpuId, now: Instant) {
        self.published.update(|timetable| timetable.woke(vcpu, now));
    }

    /// The lead, if an event is long overdue: no vCPU was busy enough to notice.
    pub fn forgets(&self, now: Instant) -> Option<VcpuId> {
        let timetable = self.published.timetable();
        let due = timetable.due().filter(|_| self.alarms.is_some())?;
        (now > due + FORGOTTEN).then_some(timetable.lead)
    }

    /// Reports the CPU time of a monitor's last wake-up.
    pub fn spent(&self, time: Nanos) {
        self.cost.spent(time);
        self.used(time);
    }

    /// Reports the CPU time of a thread's last wake-up.
    pub fn used(&self, time: Nanos) {
        self.used.fetch_add(time.min(USED_MAX).get(), SeqCst);
    }

    /// Tells what is due at `now`: the end of a window, and a decision.
    pub fn is_due(&self, now: Instant) -> (bool, bool) {
        let timetable = self.published.timetable();
        (timetable.window_is_due(now, Nanos::ZERO), timetable.decision_is_due(now))
    }

    /// Leaves a monitor's signs for the policy. Signs that cannot be left now stay in `seen`.
    /// Without `news` the policy gets them with the next news.
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

    /// An action came to its end. Waits for the list: for workers.
    pub fn ended(&self, task: TaskId, outcome: Outcome) {
        waited_for(&self.ended).push((task, outcome));
        self.left.store(true, SeqCst);
    }

    /// Leaves ended actions for the policy. Does not wait: those that cannot be left now stay in
    /// `ended`.
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

    /// vCPUs have come or gone. The caller wakes a monitor after that.
    pub fn set_online(&self, online: VcpuSet) {
        *waited_for(&self.online) = Some(online);
        self.left.store(true, SeqCst);
    }

    /// Sets the waker of this vCPU's monitor. Called before its thread starts; waits for the lock.
    pub fn add_waker(&self, vcpu: VcpuId, waker: Option<Waker>) {
        waited_for(&self.core).wakers[vcpu.index()] = waker;
    }

    /// Asks for a view. It is there after the next turn: then the descriptor can be read.
    pub fn ask(&self) -> RawFd {
        self.answered.take();
        self.asked.store(true, SeqCst);
        self.left.store(true, SeqCst);
        self.answered.fd()
    }

    /// The view that was asked for.
    pub fn answer(&self) -> Option<View> {
        waited_for(&self.view).take()
    }

    /// Reads loads if a window is due, or nearly. Returns false if it is, and another thread is
    /// at it.
    ///
    /// # Errors
    /// Nothing can be seen any more.
    pub fn observe(&self) -> io::Result<bool> {
        let now = (self.clock)();
        let length = self.published.windows.load(SeqCst);
        if length == NEVER {
            return Ok(true);
        }
        let long = self.cost.windows(length);
        let early = Nanos::new((length / EARLY).max(long - length));
        let is_due = || self.published.timetable().window_is_due(now, early);
        if !is_due() {
            return Ok(true);
        }
        let Ok(mut watching) = self.watching.try_lock() else { return Ok(false) };
        if !is_due() {
            return Ok(true);
        }
        if watching.ready.is_some() {
            // The policy was not told of the last window: the next one covers both.
            drop(watching);
            self.left.store(true, SeqCst);
            return Ok(false);
        }
        let Watching { loads, selection, seen, last, ready, tasks, .. } = &mut *watching;
        seen.clear();
        loads.window(now, seen)?;
        seen.retain(|load| selection.has(load.pid, now));
        tasks.clear();
        // If another thread has the tasks just now, the policy does without this window.
        let admitted = self.tasks.admit(seen, (now, now.since(*last)), tasks);
        (*last, *ready) = (now, admitted.then_some(now));
        let next = Nanos::new(self.cost.windows(length));
        self.published.update(|timetable| timetable.next_window(now, Some(next)));
        // The lock is free before the flag says that something was left.
        drop(watching);
        self.left.store(true, SeqCst);
        Ok(true)
    }

    /// Stops reading loads while the policy has long asked for none. For a thread that may wait.
    ///
    /// # Errors
    /// Nothing can be seen any more.
    pub fn rest(&self, now: Instant) -> io::Result<()> {
        let asked = self.published.windows.load(SeqCst) != NEVER;
        let mut watching = waited_for(&self.watching);
        if asked {
            watching.asked = now;
        }
        let rests = now.since(watching.asked) >= REST_AFTER;
        watching.loads.rest(rests)
    }

    /// Gives the policy a turn if there are news or a decision is due. Returns false if so, and
    /// another thread has the policy.
    ///
    /// `awake`: the caller is the monitor of the vCPU `here`, and calls [`Coordinator::due`] before it
    /// sleeps.
    pub fn turn(&self, here: VcpuId, awake: bool, actions: &mut Vec<Action>) -> bool {
        let mut is_due = self.is_due((self.clock)()).1;
        while self.left.load(SeqCst) || is_due {
            // The thread that has the lock looks at `left` once more.
            let Ok(mut core) = self.core.try_lock() else { return false };
            self.left.store(false, SeqCst);
            let now = (self.clock)();
            self.collect(&mut core);
            let Core { agent, news, .. } = &mut *core;
            agent.turn(now, news, actions);
            self.plan(&mut core, now, (here, awake));
            self.show(&core, now);
            is_due = false;
        }
        true
    }

    /// Takes all news that were left, as far as their lists are free.
    fn collect(&self, core: &mut Core) {
        let Core { agent, news, .. } = core;
        if let Ok(mut online) = self.online.try_lock() {
            news.online = online.take();
        }
        for vcpu in news.online.as_ref().unwrap_or(agent.online()).iter() {
            if let Ok(mut signs) = self.signs[vcpu.index()].try_lock() {
                news.signs.append(&mut signs);
            }
        }
        if let Ok(mut ended) = self.ended.try_lock() {
            news.ended.append(&mut ended);
        }
        if let Ok(mut watching) = self.watching.try_lock() {
            news.window = watching.ready.take();
            if news.window.is_some() {
                news.used = Some(Nanos::new(self.used.load(SeqCst)));
                std::mem::swap(&mut news.loads, &mut watching.tasks);
            }
        }
    }

    /// Publishes the policy's next times, and then wakes the monitors that sleep too long for them.
    fn plan(&self, core: &mut Core, now: Instant, here: (VcpuId, bool)) {
        let mut beat = |vcpu: VcpuId, at: Option<Instant>| {
            // A monitor reads this before it sleeps, so it sleeps until the old value.
            let before = self.published.beats[vcpu.index()].swap(raw(at), SeqCst);
            is_sooner(at, time(before))
        };
        let sleeps =
            self.published.update(|timetable| core.agent.plan(now, here, timetable, &mut beat));
        let windows = core.agent.windows().map_or(NEVER, Nanos::get);
        let before = self.published.windows.swap(windows, SeqCst);
        if before == NEVER && windows != NEVER {
            // The detector may rest, and the thread that ends that may sleep.
            self.tasks.stir();
        }
        if let Some(alarms) = &self.alarms {
            let timetable = self.published.timetable();
            for vcpu in core.agent.online().iter() {
                alarms.set_alarm(vcpu, timetable.alarm(vcpu, None));
                alarms.set_urgent(vcpu, core.agent.urgent(vcpu));
            }
            return;
        }
        for waker in sleeps.iter().filter_map(|vcpu| core.wakers[vcpu.index()].as_ref()) {
            waker.wake();
        }
    }

    /// The view, if one is asked for.
    fn show(&self, core: &Core, now: Instant) {
        if self.asked.swap(false, SeqCst)
            && let Ok(mut view) = self.view.try_lock()
        {
            let policy = &core.agent.policy;
            let mut metrics = Vec::new();
            policy.metrics(&mut |name, value| metrics.push((name, value)));
            *view = Some(View { vcpus: policy.vcpus(now), metrics, windows: policy.windows() });
            self.answered.wake();
        }
    }
}

/// The least CPU time of a monitor's recent wake-ups, in nanoseconds. Other wake-ups cost more for
/// their work, or because the vCPU was away meanwhile.
#[derive(Default)]
struct Cost(AtomicU64);

impl Cost {
    /// Records the cost of a wake-up. The least falls at once, and rises by a sixteenth at most. If
    /// two threads record at the same time, one of the two counts.
    fn spent(&self, time: Nanos) {
        let before = self.0.load(SeqCst);
        let risen = before + before / 16 + 1;
        self.0.store(if before == 0 { time.get() } else { time.get().min(risen) }, SeqCst);
    }

    /// Length of windows where the policy asks for `asked`: long enough that wake-ups for windows
    /// take little of a vCPU ([`WINDOWS_PART`], [`LONGER_MAX`]). In an emulated guest a wake-up
    /// takes 0.1 ms and more; else some microseconds.
    fn windows(&self, asked: u64) -> u64 {
        let affordable = self.0.load(SeqCst).saturating_mul(WINDOWS_PART);
        affordable.clamp(asked, asked.saturating_mul(LONGER_MAX))
    }
}

// The timetable that the policy publishes for threads that do not have its lock.

/// "Never", in an atomic.
const NEVER: u64 = u64::MAX;

/// "No vCPU", in an atomic.
const NONE: usize = usize::MAX;

/// The timetable, for threads that do not have the lock: nanoseconds, or [`NEVER`].
struct Published {
    beats: Vec<AtomicU64>,
    decision: AtomicU64,
    window: AtomicU64,
    /// The length of windows.
    windows: AtomicU64,
    lead: AtomicUsize,
    absent: AtomicUsize,
    vcpus: AtomicUsize,
}

impl Published {
    fn new() -> Published {
        let never = || AtomicU64::new(NEVER);
        Published {
            beats: (0..VCPUS_MAX).map(|_| never()).collect(),
            decision: never(),
            window: never(),
            windows: never(),
            lead: AtomicUsize::new(0),
            absent: AtomicUsize::new(NONE),
            vcpus: AtomicUsize::new(1),
        }
    }

    /// The present timetable. While the policy wants no windows none is due, even if `window` is
    /// set: a thread that read loads while the policy gave them up may have set it. Nobody clears
    /// it, because the policy's own thread sets it before the windows' length.
    fn timetable(&self) -> Timetable {
        let has_windows = self.windows.load(SeqCst) != NEVER;
        let absent = Some(self.absent.load(SeqCst)).filter(|absent| *absent != NONE);
        Timetable {
            decision: time(self.decision.load(SeqCst)),
            window: time(self.window.load(SeqCst)).filter(|_| has_windows),
            lead: VcpuId::new(self.lead.load(SeqCst) as u16),
            absent: absent.map(|absent| VcpuId::new(absent as u16)),
            vcpus: self.vcpus.load(SeqCst),
        }
    }

    /// Applies `change`. Other threads may change the timetable at the same time: only the
    /// fields that are different afterwards are stored.
    fn update<T>(&self, change: impl FnOnce(&mut Timetable) -> T) -> T {
        let before = self.timetable();
        let mut after = before;
        let result = change(&mut after);
        if after.decision != before.decision {
            self.decision.store(raw(after.decision), SeqCst);
        }
        if after.window != before.window {
            self.window.store(raw(after.window), SeqCst);
        }
        if after.absent != before.absent {
            self.absent.store(after.absent.map_or(NONE, VcpuId::index), SeqCst);
        }
        if after.lead != before.lead {
            self.lead.store(after.lead.index(), SeqCst);
        }
        if after.vcpus != before.vcpus {
            self.vcpus.store(after.vcpus, SeqCst);
        }
        result
    }
}

fn raw(at: Option<Instant>) -> u64 {
    at.map_or(NEVER, Instant::as_nanos)
}

fn time(raw: u64) -> Option<Instant> {
    Some(raw).filter(|raw| *raw != NEVER).map(Instant::from_nanos)
}
