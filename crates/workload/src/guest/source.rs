//! The event loop of a guest, as a [`Source`].

use crate::guest::block::Purpose;
use crate::guest::journal::JOURNAL;
use crate::guest::vm::{GuestVm, Running};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_policy::units::{Instant, Lba, Nanos, Sectors};
use std::cmp::Reverse;

impl GuestVm {
    /// Let everything happen that can at `now`.
    fn settle(&mut self, now: Instant) {
        loop {
            while let Some(thread) = self.ready.pop_front() {
                self.run_thread(now, thread);
            }
            self.maybe_commit(now);
            self.flush(now);
            match self.timers.peek() {
                Some(Reverse((at, _, _))) if *at <= now => {
                    let Some(Reverse((_, _, thread))) = self.timers.pop() else { return };
                    self.ready.push_back(thread);
                }
                _ if self.ready.is_empty() => return,
                _ => {}
            }
        }
    }

    /// Append the requests that may go to the disk now.
    pub(super) fn issue(&mut self, out: &mut Vec<Issue>) {
        while let Some(number) = self.block.issue() {
            let io = self.block.io(number);
            out.push(Issue {
                token: u64::from(number),
                vm: 0,
                tag: io.tag,
                op: io.op,
                sync: io.sync || self.params.host_direct,
                start: Lba::new(io.sector),
                len: Sectors::new(u64::from(io.sectors)),
            });
        }
    }

    /// The guest sees the completion of I/O `number`.
    pub(super) fn arrived(&mut self, now: Instant, number: u32) {
        self.block.complete(number);
        let io = self.block.io(number);
        match io.purpose {
            Purpose::Fill => self.filled(io.file, io.page, io.pages),
            Purpose::Clean { background } => self.cleaned(number, background),
            Purpose::Direct | Purpose::Journal | Purpose::Barrier => {}
        }
        let waiters = self.block.take_waiters(number);
        for waiter in &waiters {
            if *waiter == JOURNAL {
                self.journal_io_done(now);
            } else {
                let thread = &mut self.threads[*waiter as usize];
                thread.pending -= 1;
                if thread.pending == 0 {
                    self.ready.push_back(*waiter);
                }
            }
        }
        self.block.release(number, waiters);
    }
}

impl Source for GuestVm {
    fn vms(&self) -> &[VmDisk] {
        &self.disk
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while let Some((at, number)) = self.arriving.front().copied() {
            if at > now {
                break;
            }
            self.arriving.pop_front();
            self.arrived(now, number);
        }
        self.settle(now);
        self.issue(out);
        Ok(())
    }

    fn completed(&mut self, now: Instant, token: u64) {
        if self.params.latency == Nanos::ZERO {
            self.arrived(now, token as u32);
        } else {
            self.arriving.push_back((now + self.params.latency, token as u32));
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _, _))| *at);
        let arrival = self.arriving.front().map(|(at, _)| *at);
        let candidates = [timer, arrival, self.commit_due(), self.flusher.due()];
        candidates.into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.threads_left == 0
            && self.ready.is_empty()
            && self.arriving.is_empty()
            && self.block.is_idle()
            && (!self.params.sync_at_end || (self.flusher.dirty == 0 && self.journal.is_idle()))
    }

    fn apps(&self) -> Vec<AppReport> {
        let report = |a: &Running| AppReport {
            vm: 0,
            name: a.name.clone(),
            finished: a.finished,
            bytes: a.bytes,
        };
        self.apps.iter().map(report).collect()
    }
}
