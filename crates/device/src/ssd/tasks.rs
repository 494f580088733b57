//! Background work of a die, which reads may precede or suspend: programs, erases, and the reads of
//! garbage collection and of partly written units.
//!
//! Suspension is that of Wu and He ("Reducing SSD read latency via NAND flash program and erase
//! suspension", FAST 2012): the die interrupts a program or an erase, reads, and goes on with the
//! rest. Between the wish and the read the work stands still, and the rest becomes longer each
//! time. Reads that come until it goes on need no suspension of their own. A read waits where
//! suspension is not allowed yet, and to the end where it is not allowed any more.
//!
//! Tasks are reserved ahead of time, and a read moves those behind it. Commands that wait for the
//! end of a program are told ([`Moved`]). Not moved: transfers of moved tasks (their data waits in
//! the die's register), and the channel's time for them.

use crate::in_flight::Moved;
use std::collections::VecDeque;

/// Limit and cost of a program's or an erase's suspensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Suspension {
    /// 0: never.
    pub times: u32,
    /// From the wish to suspend until the die is free for the read.
    pub stop_ns: u64,
    /// Time by which each suspension lengthens the rest.
    pub resume_ns: u64,
    /// With no more than this left, it is not suspended.
    pub keep_ns: u64,
}

/// Effects of reads on the background work. By default none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadRules {
    /// Units in the write buffer below which reads go before work that has not begun, and may
    /// suspend work that has.
    pub first_below_units: u32,
    pub program: Suspension,
    pub erase: Suspension,
    /// Time that suspended work runs on before it may be suspended again.
    pub resume_min_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Program,
    Erase,
}

/// Work for which a die has reserved its array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Task {
    pub kind: Kind,
    /// The program's number; 0 if nobody waits for its end.
    pub job: u64,
    pub begin_ns: u64,
    /// Time when its array begins to work, or goes on.
    pub array_ns: u64,
    pub end_ns: u64,
    /// So often it was suspended.
    pub suspended: u32,
}

/// The tasks of one die.
#[derive(Default)]
pub(super) struct Tasks {
    /// Ascending, and no two at once.
    queue: VecDeque<Task>,
    /// Until then the array is reserved for reads.
    reads_ns: u64,
}

impl Tasks {
    /// A task behind all others. `past_ns`: nothing before is asked for again.
    pub(super) fn push(&mut self, past_ns: u64, task: Task) {
        while self.queue.front().is_some_and(|first| first.end_ns <= past_ns) {
            self.queue.pop_front();
        }
        self.queue.push_back(task);
    }

    /// The array is reserved for a read behind all tasks.
    pub(super) fn read_last(&mut self, until_ns: u64) {
        self.reads_ns = self.reads_ns.max(until_ns);
    }

    /// Returns the time when a read that is there at `ready_ns` may begin, and the work that it
    /// suspends, if that is allowed. [`Tasks::move_behind`] has to follow.
    pub(super) fn admit(&mut self, rules: &ReadRules, ready_ns: u64) -> (u64, Option<Kind>) {
        let at = ready_ns.max(self.reads_ns);
        let Some(task) = self.queue.iter_mut().find(|task| task.end_ns > at) else {
            return (at, None);
        };
        if task.begin_ns >= at {
            return (at, None);
        }
        let rule = match task.kind {
            Kind::Read => Suspension::default(),
            Kind::Program => rules.program,
            Kind::Erase => rules.erase,
        };
        let runs_ns = if task.suspended > 0 { rules.resume_min_ns } else { 0 };
        let stop_ns = at.max(task.array_ns + runs_ns);
        let rest_ns = task.end_ns.saturating_sub(stop_ns);
        if task.suspended == rule.times || rest_ns <= rule.keep_ns {
            return (task.end_ns, None);
        }
        task.suspended += 1;
        task.begin_ns = stop_ns + rule.stop_ns;
        task.array_ns = task.begin_ns;
        task.end_ns = task.begin_ns + rest_ns + rule.resume_ns;
        (task.begin_ns, Some(task.kind))
    }

    /// Reserves the array for an admitted read in [begin, until): tasks in its way move behind it,
    /// each by as little as possible. Reports the programs that end later, and returns the last
    /// task.
    pub(super) fn move_behind(
        &mut self,
        begin_ns: u64,
        until_ns: u64,
        moved: &mut Vec<Moved>,
    ) -> Option<Task> {
        self.reads_ns = until_ns;
        let mut free_ns = until_ns;
        for task in self.queue.iter_mut().skip_while(|task| task.end_ns <= begin_ns) {
            if task.begin_ns > free_ns {
                break;
            }
            let by_ns = free_ns - task.begin_ns;
            task.begin_ns += by_ns;
            task.array_ns += by_ns;
            task.end_ns += by_ns;
            free_ns = task.end_ns;
            if task.job > 0 {
                moved.push(Moved { job: task.job, to_ns: task.end_ns });
            }
        }
        self.queue.back().copied()
    }
}

#[cfg(test)]
mod tests;
