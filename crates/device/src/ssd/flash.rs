//! Dies and the channels to them, in time. A die has an array, which does one
//! thing at a time, and a register, so that the transfer of one page overlaps
//! the array's work on the next.

#[cfg(test)]
mod tasks_tests;

use super::ftl::Work;
use super::{Lane, SsdSpec};
use crate::in_flight::Moved;
use seekway_core::mix::nth;
use std::collections::VecDeque;

/// Times of the flash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashTimes {
    /// From the array to the register.
    pub read_ns: u64,
    /// From the register to the array; the mean of all programs.
    pub program_ns: u64,
    /// Largest deviation of a program from the mean, to either side.
    pub program_spread_ns: u64,
    /// Where the sequence of these differences begins.
    pub seed: u64,
    pub erase_ns: u64,
    /// Millions of bytes in a second over a channel, at least 1.
    pub channel_mb_s: u64,
    /// Does a die's register send or take a page while its array works? MQSim (Tavakkol et al.,
    /// FAST 2018) has dies that do one thing at a time.
    pub overlap: bool,
}

impl FlashTimes {
    /// Duration of program `number`. The differences are spread evenly: vendors publish a typical
    /// and a longest time, and no distribution.
    fn program_ns(&self, number: u64) -> u64 {
        let spread_ns = self.program_spread_ns;
        if spread_ns == 0 {
            return self.program_ns;
        }
        let random = u128::from(nth(nth(self.seed).wrapping_add(number)));
        let part = (random * (2 * u128::from(spread_ns) + 1)) >> 64;
        self.program_ns - spread_ns + part as u64
    }
}

/// Time of `bytes` at `mb_s` million bytes in a second.
pub(super) fn transfer_ns(bytes: u64, mb_s: u64) -> u64 {
    bytes * 1_000 / mb_s
}

#[derive(Clone, Copy, Default)]
struct Die {
    array_ns: u64,
    register_ns: u64,
    /// The last two programs: until they end, their data is in the buffer too.
    programming: [Programming; 2],
    /// The row that was read last, with the begin of its read and the time when it is in the
    /// registers. Reads of its other planes before that begin are read along.
    row: (u32, u64, u64),
    /// Pages of a row that garbage collection has sent and not programmed.
    copied: u32,
    /// When the last page that a read which went first had in its register was sent.
    sent_ns: u64,
}

/// Pages that are being programmed, from `first` on.
#[derive(Clone, Copy, Default)]
struct Programming {
    first: u32,
    pages: u32,
    job: u64,
    end_ns: u64,
}

/// Rank of a read among its die's work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Before all that has not begun.
    First,
    /// Behind all that is reserved.
    Last,
    /// Behind all that is reserved, and reads that go first go before it.
    Background,
}

/// No row of a die.
const NO_ROW: (u32, u64, u64) = (u32::MAX, 0, 0);

pub(super) struct Flash {
    times: FlashTimes,
    planes: u32,
    page_bytes: u64,
    /// Time of a page on a channel.
    page_ns: u64,
    channels: Vec<Lane>,
    dies: Vec<Die>,
    /// Start of the search for an idle die, so that equals take turns.
    turn: u32,
    /// Number of programs; each has its number.
    programs: u64,
    rules: ReadRules,
    /// Tasks of each die, if reads may go before them; otherwise none.
    tasks: Vec<Tasks>,
    /// Programs whose end the last command has moved.
    pub(super) moved: Vec<Moved>,
    /// Numbers of suspended programs and erases.
    pub(super) suspensions: [u64; 2],
}

impl Flash {
    /// Die d hangs on channel d mod `channels`.
    pub(super) fn new(spec: &SsdSpec, page_bytes: u64) -> Flash {
        let SsdSpec { flash: times, channels, layout, rules, .. } = *spec;
        let movable = rules != ReadRules::default();
        let movable_dies = if movable { layout.dies } else { 0 };
        Flash {
            times,
            planes: layout.planes,
            page_bytes,
            page_ns: transfer_ns(page_bytes, times.channel_mb_s),
            channels: (0..channels).map(|_| Lane::default()).collect(),
            dies: vec![Die { row: NO_ROW, ..Die::default() }; layout.dies as usize],
            turn: 0,
            programs: 0,
            rules,
            tasks: (0..movable_dies).map(|_| Tasks::default()).collect(),
            moved: Vec::new(),
            suspensions: [0; 2],
        }
    }

    /// Reads page `page` and brings `bytes` of it over the channel; when they are there.
    pub(super) fn read(
        &mut self,
        past_ns: u64,
        ready_ns: u64,
        die: u32,
        page: u32,
        bytes: u64,
        turn: Turn,
    ) -> u64 {
        let d = &mut self.dies[die as usize];
        if self.planes > 1 {
            let (row, begin_ns, loaded_ns) = d.row;
            if row == page / self.planes && ready_ns <= begin_ns {
                return self.send(past_ns, loaded_ns, die, bytes);
            }
        }
        let (begin_ns, loaded_ns, sent_ns) = if turn == Turn::First && self.is_movable() {
            self.load_first(past_ns, ready_ns, die, bytes)
        } else {
            self.load(past_ns, ready_ns, die, bytes, turn)
        };
        if self.planes > 1 {
            self.dies[die as usize].row = (page / self.planes, begin_ns, loaded_ns);
        }
        sent_ns
    }

    /// The number of the last program.
    pub(super) fn last_job(&self) -> u64 {
        self.programs
    }

    /// Do reads go before the background's work?
    pub(super) fn is_movable(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Brings a page to the register and `bytes` of it over the channel, behind all that is
    /// reserved. When that begins, when it is in the register, and when the bytes are there.
    fn load(
        &mut self,
        past_ns: u64,
        ready_ns: u64,
        die: u32,
        bytes: u64,
        turn: Turn,
    ) -> (u64, u64, u64) {
        let d = &mut self.dies[die as usize];
        let begin_ns = ready_ns.max(d.array_ns);
        // The array waits until the register has sent its page.
        let loaded_ns = (begin_ns + self.times.read_ns).max(d.register_ns);
        d.array_ns = loaded_ns;
        let sent_ns = self.send(past_ns, loaded_ns, die, bytes);
        if let Some(tasks) = self.tasks.get_mut(die as usize) {
            let end_ns = self.dies[die as usize].array_ns;
            match turn {
                Turn::Background => {
                    let array_ns = begin_ns;
                    let kind = Kind::Read;
                    tasks.push(
                        past_ns,
                        Task { kind, job: 0, begin_ns, array_ns, end_ns, suspended: 0 },
                    );
                }
                Turn::First | Turn::Last => {
                    tasks.read_last(end_ns);
                    self.dies[die as usize].sent_ns = sent_ns;
                }
            }
        }
        (begin_ns, loaded_ns, sent_ns)
    }

    /// [`Flash::load`] before all work that has not begun. Such reads have a register of their own:
    /// the other has the page to be programmed.
    fn load_first(&mut self, past_ns: u64, ready_ns: u64, die: u32, bytes: u64) -> (u64, u64, u64) {
        let (begin_ns, suspended) = self.tasks[die as usize].admit(&self.rules, ready_ns);
        if let Some(kind) = suspended {
            self.suspensions[usize::from(kind == Kind::Erase)] += 1;
        }
        let d = &mut self.dies[die as usize];
        let loaded_ns = (begin_ns + self.times.read_ns).max(d.sent_ns);
        let length = transfer_ns(bytes, self.times.channel_mb_s);
        let lane = die as usize % self.channels.len();
        d.sent_ns = self.channels[lane].reserve(past_ns, loaded_ns, length);
        let until_ns = if self.times.overlap { loaded_ns } else { d.sent_ns };
        d.array_ns = d.array_ns.max(until_ns);
        let known = self.moved.len();
        if let Some(last) =
            self.tasks[die as usize].move_behind(begin_ns, until_ns, &mut self.moved)
        {
            d.array_ns = d.array_ns.max(last.end_ns);
            if last.kind == Kind::Program {
                d.register_ns = d.register_ns.max(last.array_ns);
            }
        }
        for moved in &self.moved[known..] {
            for programming in d.programming.iter_mut().filter(|p| p.job == moved.job) {
                programming.end_ns = moved.to_ns;
            }
        }
        (begin_ns, loaded_ns, d.sent_ns)
    }

    /// Sends `bytes` that are in a register of `die` at `loaded_ns`; when they are there.
    fn send(&mut self, past_ns: u64, loaded_ns: u64, die: u32, bytes: u64) -> u64 {
        let lane = die as usize % self.channels.len();
        let length = transfer_ns(bytes, self.times.channel_mb_s);
        let sent = self.channels[lane].reserve(past_ns, loaded_ns, length);
        let d = &mut self.dies[die as usize];
        d.register_ns = d.register_ns.max(sent);
        if !self.times.overlap {
            d.array_ns = d.array_ns.max(sent);
        }
        sent
    }

    /// Time when `die` could take a row to program that is there at `ready_ns`: not before the
    /// array is about to be free, so that reads can still go first.
    pub(super) fn program_begin(&self, ready_ns: u64, die: u32) -> u64 {
        let d = &self.dies[die as usize];
        let row_ns = u64::from(self.planes) * self.page_ns;
        let ahead = if self.times.overlap { row_ns } else { 0 };
        ready_ns.max(d.register_ns).max(d.array_ns.saturating_sub(ahead))
    }

    /// Sends `pages` pages of a row to `die` from `begin_ns` on and programs them as physical pages
    /// `page` and those behind it; returns the program's number and end.
    pub(super) fn program(
        &mut self,
        past_ns: u64,
        begin_ns: u64,
        die: u32,
        page: u32,
        pages: u32,
    ) -> (u64, u64) {
        let lane = die as usize % self.channels.len();
        let mut sent = begin_ns;
        for _ in 0..pages {
            sent = self.channels[lane].reserve(past_ns, sent, self.page_ns);
        }
        let end_ns = self.program_array(past_ns, die, sent, true);
        let job = self.programs;
        let d = &mut self.dies[die as usize];
        d.programming = [Programming { first: page, pages, job, end_ns }, d.programming[0]];
        d.row = NO_ROW;
        (job, end_ns)
    }

    /// Programs the row that `die` was sent by `sent_ns`; returns the end.
    fn program_array(&mut self, past_ns: u64, die: u32, sent_ns: u64, waited_for: bool) -> u64 {
        self.programs += 1;
        let length = self.times.program_ns(self.programs);
        let d = &mut self.dies[die as usize];
        let array_ns = sent_ns.max(d.array_ns);
        d.register_ns = array_ns;
        d.array_ns = array_ns + length;
        if let Some(tasks) = self.tasks.get_mut(die as usize) {
            // Without overlap the die has been busy since the transfer began.
            let sending = if self.times.overlap { 0 } else { self.page_ns };
            let task = Task {
                kind: Kind::Program,
                job: if waited_for { self.programs } else { 0 },
                begin_ns: array_ns - sending,
                array_ns,
                end_ns: d.array_ns,
                suspended: 0,
            };
            tasks.push(past_ns, task);
        }
        d.array_ns
    }

    /// Collects garbage: all of its work goes through array and channel, and delays later work on
    /// this die.
    pub(super) fn collect(&mut self, past_ns: u64, die: u32, work: Work) {
        for page in 0..work.pages_read {
            let d = &self.dies[die as usize];
            if page < work.rows_read {
                let ready = d.array_ns.max(past_ns);
                self.load(past_ns, ready, die, self.page_bytes, Turn::Background);
            } else {
                self.send(past_ns, d.register_ns.max(past_ns), die, self.page_bytes);
            }
        }
        for _ in 0..work.pages_programmed {
            self.copy_back(past_ns, die);
        }
        for _ in 0..work.blocks_erased {
            let d = &mut self.dies[die as usize];
            let array_ns = d.array_ns;
            d.array_ns += self.times.erase_ns;
            if let Some(tasks) = self.tasks.get_mut(die as usize) {
                let (kind, end_ns) = (Kind::Erase, d.array_ns);
                let begin_ns = array_ns;
                tasks
                    .push(past_ns, Task { kind, job: 0, begin_ns, array_ns, end_ns, suspended: 0 });
            }
        }
        if work != Work::default() {
            self.dies[die as usize].row = NO_ROW;
        }
    }

    /// Sends a page that garbage collection has gathered to `die`, and programs the row when it
    /// is the last of it.
    fn copy_back(&mut self, past_ns: u64, die: u32) {
        let lane = die as usize % self.channels.len();
        let ready = self.register_free_ns(die).max(past_ns);
        let sent = self.channels[lane].reserve(past_ns, ready, self.page_ns);
        let d = &mut self.dies[die as usize];
        d.copied += 1;
        if d.copied < self.planes {
            d.register_ns = sent;
            return;
        }
        d.copied = 0;
        self.program_array(past_ns, die, sent, false);
    }

    /// When `die` can take a page.
    fn register_free_ns(&self, die: u32) -> u64 {
        let d = &self.dies[die as usize];
        if self.times.overlap { d.register_ns } else { d.register_ns.max(d.array_ns) }
    }

    /// Is physical page `page` of `die` still being programmed at `at_ns`?
    pub(super) fn programs(&self, at_ns: u64, die: u32, page: u32) -> bool {
        let is_in = |p: &Programming| page.wrapping_sub(p.first) < p.pages && p.end_ns > at_ns;
        self.dies[die as usize].programming.iter().any(is_in)
    }

    /// The die whose array is free first, except those in `skip`; equals take turns.
    pub(super) fn idlest(&self, skip: &[u32]) -> Option<u32> {
        let (before, from) = self.dies.split_at(self.turn as usize);
        let mut best: Option<(u64, u32)> = None;
        for (first, dies) in [(self.turn, from), (0, before)] {
            for (number, die) in (first..).zip(dies) {
                // The cheap question first: most dies are no better than the best one found.
                let is_better = best.is_none_or(|(least_ns, _)| die.array_ns < least_ns);
                if is_better && !skip.contains(&number) {
                    best = Some((die.array_ns, number));
                }
            }
        }
        best.map(|(_, number)| number)
    }

    /// `die` had its turn.
    pub(super) fn next_turn(&mut self, die: u32) {
        self.turn = (die + 1) % self.dies.len() as u32;
    }
}

// Background work of a die, which reads may precede or suspend: programs, erases, and the reads of
// garbage collection and of partly written units.
//
// Suspension is that of Wu and He ("Reducing SSD read latency via NAND flash program and erase
// suspension", FAST 2012): the die interrupts a program or an erase, reads, and goes on with the
// rest. Between the wish and the read the work stands still, and the rest becomes longer each
// time. Reads that come until it goes on need no suspension of their own. A read waits where
// suspension is not allowed yet, and to the end where it is not allowed any more.
//
// Tasks are reserved ahead of time, and a read moves those behind it. Commands that wait for the
// end of a program are told (`Moved`). Not moved: transfers of moved tasks (their data waits in
// the die's register), and the channel's time for them.

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
mod tests {
    use super::*;

    fn times(seed: u64) -> FlashTimes {
        FlashTimes {
            read_ns: 0,
            program_ns: 600_000,
            program_spread_ns: 200_000,
            seed,
            erase_ns: 0,
            channel_mb_s: 1,
            overlap: true,
        }
    }

    #[test]
    fn program_times_vary_about_their_mean_and_alike_twice() {
        let all: Vec<u64> = (0..20_000).map(|number| times(7).program_ns(number)).collect();
        assert!(all.iter().all(|ns| (400_000..=800_000).contains(ns)));
        let mean = all.iter().sum::<u64>() / all.len() as u64;
        assert!((594_000..=606_000).contains(&mean), "{mean}");
        // Spread evenly: half of them differ by less than half of the most.
        let near = all.iter().filter(|ns| (500_000..=700_000).contains(*ns)).count();
        assert!((9_700..=10_300).contains(&near), "{near}");
        assert_eq!(times(7).program_ns(3), all[3]);
        assert_ne!(times(8).program_ns(3), all[3]);
        let wide = FlashTimes { program_spread_ns: 600_000, ..times(7) };
        assert!((0..1_000).all(|number| wide.program_ns(number) <= 1_200_000));
    }
}
