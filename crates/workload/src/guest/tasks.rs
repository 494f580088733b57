//! A guest whose vCPUs somebody else models: its threads are tasks of theirs.

use crate::guest::disk;
use crate::guest::journal::JOURNAL;
use crate::guest::vm::{Cpus, GuestVm};
use crate::tasks::{Need, TaskSource};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Nanos};

impl GuestVm {
    /// The guest on vCPUs that somebody else models. Nothing has run yet.
    pub fn on_modelled_vcpus(mut self: Box<Self>) -> Box<dyn TaskSource> {
        self.cpus = Cpus::Modelled { need: None };
        // They begin when they are executed for the first time.
        self.ready.clear();
        self
    }

    /// Runs the kernel's own work, on the vCPU that notices it.
    fn work_of_kernel(&mut self, now: Instant) {
        self.now = now;
        self.maybe_commit(now);
        self.flush(now);
    }
}

impl TaskSource for GuestVm {
    fn disks(&self) -> &[VmDisk] {
        &self.vm_disks
    }

    fn tasks(&self) -> Vec<String> {
        let name = |thread: &crate::guest::thread::Thread| {
            let running = &self.apps[thread.app as usize];
            match running.app.spec().threads {
                1 => running.name.clone(),
                _ => format!("{}/{}", running.name, thread.local + 1),
            }
        };
        self.threads.iter().map(name).collect()
    }

    fn run(&mut self, now: Instant, task: u32) -> Result<Need, SourceError> {
        self.run_thread(now, task);
        let Cpus::Modelled { need } = &mut self.cpus else {
            unreachable!("a guest on its own vCPUs is no task source")
        };
        // Whoever stops without a word waits for pages, requests, room or a commit.
        let need = need.take().unwrap_or(Need::Wait { until: None, io: true });
        self.work_of_kernel(now);
        Ok(need)
    }

    fn heard(&mut self, now: Instant, token: u64) {
        self.arrived(now, token);
        self.work_of_kernel(now);
    }

    fn waiting_for(&self, token: u64) -> Vec<u32> {
        let (disk, number) = disk::of_token(token);
        let waiters = self.disks[disk].block.io(number).waiters.iter().copied();
        let last = |&thread: &u32| thread != JOURNAL && self.threads[thread as usize].pending <= 1;
        waiters.filter(last).collect()
    }

    fn timer(&self) -> Option<Instant> {
        self.kernel_timer()
    }

    fn timer_due(&mut self, now: Instant) {
        self.work_of_kernel(now);
    }

    fn take(&mut self, woken: &mut Vec<u32>, issues: &mut Vec<Issue>) {
        woken.extend(self.ready.drain(..));
        self.issue(issues);
    }

    fn latency(&self) -> Nanos {
        self.params.latency
    }

    fn finished(&self) -> bool {
        Source::finished(self)
    }

    fn apps(&self) -> Vec<AppReport> {
        Source::apps(self)
    }

    fn lacks(&self, disk: usize) -> Vec<Extent> {
        Source::lacks(self, disk)
    }
}
