//! A machine's future events: one heap, in order of time, then of scheduling.
//!
//! An event that may become obsolete has a generation; one whose generation has passed is stale and
//! does nothing.

use seekway_core::units::Instant;
use seekway_vcpu::Sign;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event. vCPUs, processors, VMs and tasks are numbers of the whole machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Event {
    /// A processor: its switch is done, its slice is over, or it has to choose.
    Processor { pcpu: usize, generation: u64 },
    /// The policy is told, before its slice's end, that a vCPU will be taken away.
    Foreseen { pcpu: usize, generation: u64 },
    /// A vCPU has finished what it executed.
    Executed { vcpu: usize, generation: u64 },
    /// A task's sleep is over; the timer is the vCPU's on which it fell asleep. `nap` counts its
    /// sleeps before.
    Slept { task: usize, vcpu: usize, nap: u64 },
    /// The interrupt of a request that is done reaches the guest.
    Interrupt { token: usize },
    /// The timer of a guest's kernel goes off.
    Kernel { vm: usize, generation: u64 },
    /// A vCPU that idles of its own accord has done so for long enough.
    Dozed { vcpu: usize, generation: u64 },
    /// A monitor's beat is due.
    Beat { vcpu: usize, generation: u64 },
    /// A detector learns of an edge that happened at `at`.
    Edge { vcpu: usize, at: Instant, sign: Sign },
    /// A monitor wakes for the policy's due work.
    Alarm { vcpu: usize, generation: u64 },
    /// From now on it is measured.
    Measured,
}

/// The events to come.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    asked: u64,
}

struct Entry {
    at: Instant,
    order: u64,
    event: Event,
}

impl Events {
    /// Schedules `event` for the time `at`, after those already asked for then.
    pub fn push(&mut self, at: Instant, event: Event) {
        self.asked += 1;
        self.heap.push(Reverse(Entry { at, order: self.asked, event }));
    }

    pub fn peek(&self) -> Option<(Instant, Event)> {
        self.heap.peek().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// Take the next one.
    pub fn pop(&mut self) {
        self.heap.pop();
    }
}

impl Entry {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
