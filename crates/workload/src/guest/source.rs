//! The event loop of a guest, as a [`Source`].

use crate::guest::block::{Io, Purpose};
use crate::guest::disk::{self, GuestDisk};
use crate::guest::journal::JOURNAL;
use crate::guest::params::GuestParams;
use crate::guest::vm::{GuestVm, Running};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::cmp::Reverse;

impl GuestVm {
    /// Let everything happen that can at `now`.
    fn settle(&mut self, now: Instant) {
        self.now = now;
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

    /// Time that a completion takes to the guest.
    fn way_back(&mut self) -> Nanos {
        let GuestParams { latency, jitter, .. } = self.params;
        if jitter == Nanos::ZERO {
            return latency;
        }
        Nanos::new(latency.get() - jitter.get() + self.jitter.below(2 * jitter.get() + 1))
    }

    /// When the kernel does something of its own accord: the first commit, flusher or elevator
    /// that is due.
    pub(super) fn kernel_timer(&self) -> Option<Instant> {
        let due = |disk: &GuestDisk| {
            let GuestDisk { block, journal, flusher } = disk;
            [journal.due(self.params.commit), flusher.due(), block.next_wake()]
        };
        self.disks.iter().flat_map(due).flatten().min()
    }

    /// Append the requests that may go to the disks now.
    pub(super) fn issue(&mut self, out: &mut Vec<Issue>) {
        for (disk, GuestDisk { block, .. }) in self.disks.iter_mut().enumerate() {
            while let Some(number) = block.issue(self.now) {
                let io = block.io(number);
                out.push(Issue {
                    token: disk::token(disk, number),
                    vm: disk as u16,
                    tag: io.tag,
                    op: io.op,
                    sync: io.sync || self.params.host_direct,
                    start: Lba::new(io.sector),
                    len: Sectors::new(u64::from(io.sectors)),
                });
            }
        }
    }

    /// The guest sees the completion of the request with this token.
    pub(super) fn arrived(&mut self, now: Instant, token: u64) {
        let (disk, number) = disk::of_token(token);
        let block = &mut self.disks[disk].block;
        block.complete(now, number);
        let &Io { purpose, file, page, pages, .. } = block.io(number);
        match purpose {
            Purpose::Fill => self.filled(file, page, pages),
            Purpose::Clean { background } => self.cleaned(disk, number, background),
            Purpose::Direct | Purpose::Journal | Purpose::Barrier => {}
        }
        let waiters = self.disks[disk].block.take_waiters(number);
        for waiter in &waiters {
            if *waiter == JOURNAL {
                self.journal_io_done(now, disk);
            } else {
                let thread = &mut self.threads[*waiter as usize];
                thread.pending -= 1;
                if thread.pending == 0 {
                    self.ready.push_back(*waiter);
                }
            }
        }
        self.disks[disk].block.release(number, waiters);
    }
}

impl Source for GuestVm {
    fn vms(&self) -> &[VmDisk] {
        &self.vm_disks
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while let Some((at, token)) = self.arriving.front().copied() {
            if at > now {
                break;
            }
            self.arriving.pop_front();
            self.arrived(now, token);
        }
        self.settle(now);
        self.issue(out);
        Ok(())
    }

    fn completed(&mut self, now: Instant, token: u64) {
        if self.params.latency == Nanos::ZERO {
            self.arrived(now, token);
        } else {
            let at = now + self.way_back();
            // The ring keeps its order.
            let at = self.arriving.back().map_or(at, |&(last, _)| last.max(at));
            self.arriving.push_back((at, token));
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _, _))| *at);
        let arrival = self.arriving.front().map(|(at, _)| *at);
        let candidates = [timer, arrival, self.kernel_timer()];
        candidates.into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.threads_left == 0
            && self.ready.is_empty()
            && self.arriving.is_empty()
            && self.disks.iter().all(|disk| disk.is_finished(self.params.sync_at_end))
    }

    fn lacks(&self, vm: usize) -> Vec<Extent> {
        self.lacks_on(vm)
    }

    fn apps(&self) -> Vec<AppReport> {
        let report = |a: &Running| AppReport {
            vm: a.disk as u16,
            name: a.name.clone(),
            finished: a.finished,
            bytes: a.bytes,
        };
        self.apps.iter().map(report).collect()
    }
}
