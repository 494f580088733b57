//! Commands on a device: that they lie inside it, and when they are done where that is known
//! as they come. A command may stay behind work that moves ([`Behind`]), and then moves with it.

use seekway_core::request::{Request, RequestId};
use seekway_core::units::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Panics on a command past the end of a device of `capacity` sectors, which is a programmer error.
pub(crate) fn assert_inside(command: &Request, capacity: u64) {
    let extent = command.extent;
    let is_inside = extent.end().get() <= capacity;
    assert!(is_inside, "command {extent} ends past the device's {capacity} sectors");
}

/// Programs that a command is done after, by their numbers, and how long after each at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Behind {
    pub first_job: u64,
    pub last_job: u64,
    pub tail_ns: u64,
}

/// The end of a program that others may wait for, by its number, is later now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    pub job: u64,
    pub to_ns: u64,
}

/// By time of completion, then in the order in which they came.
pub(crate) struct InFlight {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    queue_depth: u32,
    submitted: u64,
    /// Commands that may still move: their number, their drive, and the job they are behind.
    waiting: Vec<(u64, usize, Behind)>,
}

impl InFlight {
    pub(crate) fn new(queue_depth: u32) -> InFlight {
        InFlight {
            heap: BinaryHeap::with_capacity(queue_depth as usize),
            queue_depth,
            submitted: 0,
            waiting: Vec::new(),
        }
    }

    /// A command that will be done at `done_ns`. More than the queue takes, and
    /// have not been popped, is a programmer error and panics.
    pub(crate) fn enter(&mut self, done_ns: u64, id: RequestId) {
        assert!(self.heap.len() < self.queue_depth as usize, "more commands than the queue takes");
        self.heap.push(Reverse((done_ns, self.submitted, id.slot())));
        self.submitted += 1;
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|&Reverse((done, ..))| Instant::from_nanos(done))
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<RequestId> {
        let &Reverse((done, number, slot)) = self.heap.peek()?;
        if done > now.as_nanos() {
            return None;
        }
        self.heap.pop();
        if !self.waiting.is_empty() {
            self.waiting.retain(|&(waiting, ..)| waiting != number);
        }
        Some(RequestId::new(slot as u32))
    }

    /// The command that entered last is done after programs of `drive`.
    pub(crate) fn stays_behind(&mut self, drive: usize, behind: Behind) {
        self.waiting.push((self.submitted - 1, drive, behind));
    }

    /// Programs of `drive` end later than they were to: so do the commands behind them. None of
    /// these was due, because no program that has ended moves.
    pub(crate) fn follow(&mut self, drive: usize, moved: &[Moved]) {
        if moved.is_empty() || self.waiting.is_empty() {
            return;
        }
        let mut commands = std::mem::take(&mut self.heap).into_vec();
        for &(number, _, behind) in self.waiting.iter().filter(|&&(_, on, _)| on == drive) {
            let jobs = behind.first_job..=behind.last_job;
            let ends = moved.iter().filter(|moved| jobs.contains(&moved.job));
            let Some(last_ns) = ends.map(|moved| moved.to_ns).max() else { continue };
            let command = commands.iter_mut().find(|command| command.0.1 == number);
            if let Some(Reverse((done_ns, ..))) = command {
                *done_ns = (*done_ns).max(last_ns + behind.tail_ns);
            }
        }
        self.heap = commands.into();
    }
}
