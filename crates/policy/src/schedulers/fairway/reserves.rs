//! Reservations: what a VM is to have at least, before anybody has a share.
//!
//! Each VM with a reservation has a clock, as in mClock (Gulati, Merchant, Varman, OSDI 2010,
//! section 3): each request moves it on by the time in which the reservation grants one. A VM
//! with work whose clock is not ahead of the time is behind, and the one that is furthest
//! behind goes first. Unlike in mClock all that a VM sends counts, by share or by reservation:
//! it is to have the larger of the two.
//!
//! When the device cannot do what is reserved, all clocks would fall behind for ever. So the
//! reservations have a time of their own: when the VM that is furthest behind is [`BEHIND_MAX`]
//! late, that time stands still. All reservations shrink in the same proportion then, which
//! [`Reserves::met`] says.
//!
//! While a VM without a reservation has work, a tenth of the device is not reserved: after
//! [`RESERVED`] times a command's cost for reservations, it goes by share. (Linux leaves its
//! ordinary tasks 5 % beside real-time ones for the same reason: `sched_rt_runtime_us`.)

use seekway_core::queues::KeyedHeap;
use seekway_core::scheduler::Reserve;
use seekway_core::units::{Instant, Nanos, Sectors};

/// The reservations' time stands still when one is this far behind.
const BEHIND_MAX: Nanos = Nanos::from_millis(100);
/// Longest time for which a VM that had more than its reservation does without it, and most that
/// one that asked for less may catch up by.
const CREDIT: Nanos = Nanos::from_millis(10);
/// Highest ratio of the cost of commands for reservations to that of commands by share.
const RESERVED: u64 = 9;
/// Highest cost of a command that goes by share at once.
const CLAIM_MAX: u64 = 1 << 20;
/// Time over which the share of the reservations that is met is measured.
const WINDOW: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Default)]
struct Clock {
    reserve: Reserve,
    /// When the reservation grants the next request, and the next byte, in its own time.
    requests: u64,
    bytes: u64,
    has_work: bool,
}

impl Clock {
    /// When the reservation is behind.
    fn due(&self) -> u64 {
        let of = |rate: u64, at: u64| if rate > 0 { at } else { u64::MAX };
        of(self.reserve.iops, self.requests).min(of(self.reserve.bytes_per_s, self.bytes))
    }
}

/// The reservations on one device.
#[derive(Default)]
pub struct Reserves {
    clocks: Vec<Clock>,
    /// The VMs with a reservation and work, by when they are behind.
    waiting: KeyedHeap<u64>,
    /// For how long the reservations' time stood still.
    lost: u64,
    /// When the window began, what was lost then, and the part met in the window before.
    window: (Instant, u64),
    met: Option<f64>,
    /// Commands that went because a reservation was behind.
    pub served: u64,
    /// Cost of commands for reservations, less [`RESERVED`] times that of commands by share; at
    /// least 0.
    reserved: u64,
}

impl Reserves {
    /// The VM has this reservation, or none.
    pub fn attach(&mut self, vm: usize, reserve: Reserve) {
        if reserve.is_none() && vm >= self.clocks.len() {
            return;
        }
        if self.clocks.len() <= vm {
            self.clocks.resize(vm + 1, Clock::default());
        }
        self.waiting.set(vm as u32, None);
        self.clocks[vm] = Clock { reserve, ..Clock::default() };
    }

    /// The reservations' own time.
    fn time(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.lost)
    }

    fn known(&mut self, vm: usize) -> Option<&mut Clock> {
        self.clocks.get_mut(vm).filter(|clock| !clock.reserve.is_none())
    }

    /// Has the VM something queued?
    pub fn set_work(&mut self, now: Instant, vm: usize, has_work: bool) {
        // A VM that comes back begins with the clock that is furthest behind. With a later one, a VM
        // with one request at a time would wait for all others at each request.
        let furthest = self.waiting.first().map_or(u64::MAX, |(due, _)| due);
        let least = self.time(now).saturating_sub(CREDIT.get()).min(furthest);
        let Some(clock) = self.known(vm) else { return };
        if has_work && !std::mem::replace(&mut clock.has_work, has_work) {
            (clock.requests, clock.bytes) = (clock.requests.max(least), clock.bytes.max(least));
        }
        clock.has_work = has_work;
        let due = has_work.then(|| clock.due());
        self.waiting.set(vm as u32, due);
    }

    /// The VM whose reservation is furthest behind.
    pub fn behind(&mut self, now: Instant) -> Option<usize> {
        let (due, vm) = self.waiting.first()?;
        let time = self.time(now);
        if due > time {
            return None;
        }
        self.lost += (time - due).saturating_sub(BEHIND_MAX.get());
        Some(vm as usize)
    }

    /// Have reservations had nine tenths, so that a command of this cost goes by share?
    pub fn leaves(&self, cost: u64) -> bool {
        self.reserved >= RESERVED * cost.clamp(1, CLAIM_MAX)
    }

    /// The VM has sent `requests` of this length together, at this cost. Was its reservation behind?
    pub fn charge(
        &mut self,
        now: Instant,
        vm: usize,
        requests: u64,
        len: Sectors,
        cost: u64,
    ) -> bool {
        let time = self.time(now);
        let was_behind = self.known(vm).is_some_and(|clock| clock.has_work && clock.due() <= time);
        self.reserved = match was_behind {
            true => (self.reserved + cost).min(RESERVED * CLAIM_MAX),
            false => self.reserved.saturating_sub(RESERVED.saturating_mul(cost)),
        };
        let Some(clock) = self.known(vm) else { return false };
        let move_on = |at: u64, amount: u64, rate: u64| {
            let span = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
            let span = u64::try_from(span).unwrap_or(u64::MAX / 4);
            at.saturating_add(span).min(time.saturating_add(span.max(CREDIT.get())))
        };
        clock.requests = move_on(clock.requests, requests, clock.reserve.iops);
        clock.bytes = move_on(clock.bytes, len.bytes(), clock.reserve.bytes_per_s);
        let due = clock.has_work.then(|| clock.due());
        self.waiting.set(vm as u32, due);
        self.served += u64::from(was_behind);
        self.measure(now);
        was_behind
    }

    fn measure(&mut self, now: Instant) {
        let (since, lost) = self.window;
        let length = now.since(since);
        if length >= WINDOW {
            let stood = (self.lost - lost) as f64 / length.get() as f64;
            self.met = Some((1.0 - stood).clamp(0.0, 1.0));
            self.window = (now, self.lost);
        }
    }

    /// The share of the reservations that was met recently, 0 to 1.
    pub fn met(&self) -> f64 {
        self.met.unwrap_or(1.0)
    }

    /// Has this VM a reservation?
    pub fn has(&self, vm: usize) -> bool {
        self.clocks.get(vm).is_some_and(|clock| !clock.reserve.is_none())
    }
}
