//! Measurements of a run from the begin of the measuring on, and their results at its end.

use super::Engine;
use super::host::HostSide;
use crate::metrics::{HostResult, RunResult, VmHost};
use seekway_core::units::Instant;
use seekway_workload::AppReport;

/// Counts that only grow, at some time: they are taken from those of the end.
pub(super) struct CountsAtStart {
    at: Instant,
    apps: Vec<AppReport>,
    host: Option<(HostResult, Vec<VmHost>)>,
}

impl Engine<'_> {
    /// Forgets the measurements up to `at`.
    pub(super) fn begin_measuring(&mut self, at: Instant) {
        self.meter.restart(at);
        let host = self.host_result();
        self.settled = Some(CountsAtStart { at, apps: self.apps(), host });
    }

    /// The applications of all sources, with the VMs' numbers in the run.
    fn apps(&self) -> Vec<AppReport> {
        let sources = self.sources.iter().zip(&self.vm_base);
        let numbered = sources.flat_map(|(source, &base)| {
            source.apps().into_iter().map(move |app| AppReport { vm: app.vm + base, ..app })
        });
        numbered.collect()
    }

    /// Results of the host's cache until now, and each VM's share.
    fn host_result(&self) -> Option<(HostResult, Vec<VmHost>)> {
        Some(self.host.as_ref()?.result(&self.stack, self.layout.len()))
    }

    /// Marks the VMs whose load ended before the run did. A run whose sources have all ended lasts
    /// until `until`, or until its last request was done.
    fn mark_ended(&mut self, finished: bool, until: Option<Instant>) {
        let last = self.meter.vms.iter().map(|vm| vm.last).max().unwrap_or(self.now);
        let run_end = if finished { until.unwrap_or(last) } else { self.now };
        for (source, &base) in self.sources.iter().zip(&self.vm_base) {
            if source.finished() {
                let first = usize::from(base);
                self.meter.mark_ended(first..first + source.vms().len(), run_end);
            }
        }
    }

    pub(super) fn result(mut self, finished: bool, until: Option<Instant>) -> (RunResult, String) {
        let answered = self.host.iter().flat_map(HostSide::answered);
        let waiting = self.guests.iter().flatten().chain(answered);
        let waiting = waiting.map(|g| (usize::from(g.vm), g.arrived));
        self.meter.end(self.now, waiting);
        self.mark_ended(finished, until);
        let (mut policy_metrics, mut device_metrics) = (Vec::new(), Vec::new());
        self.stack.policy_metrics(&mut |name, value| policy_metrics.push((name, value)));
        let vms = &mut self.meter.vms;
        self.stack.vm_metrics(&mut |name, vm, value| {
            vms[vm.index()].policy_metrics.push((name, value));
        });
        self.device.metrics(&mut |name, value| device_metrics.push((name, value)));
        let (mut apps, mut host) = (self.apps(), self.host_result());
        if let Some(settled) = &self.settled {
            for (app, before) in apps.iter_mut().zip(&settled.apps) {
                app.bytes -= before.bytes;
            }
            if let (Some((host, vms)), Some((host_before, vms_before))) = (&mut host, &settled.host)
            {
                host.forget(host_before);
                vms.iter_mut().zip(vms_before).for_each(|(vm, before)| vm.forget(before));
            }
        }
        let host = host.map(|(host, vms)| {
            for (vm, host) in self.meter.vms.iter_mut().zip(vms) {
                vm.host = Some(host);
            }
            host
        });
        let began = self.settled.map_or(Instant::ZERO, |settled| settled.at);
        let journal = self.stack.take_journal();
        let mut meter = self.meter;
        let host_fs = self.layout.host_fs().and_then(|_| meter.vms.pop());
        let result = RunResult {
            began,
            simulated: self.now.since(began),
            vms: meter.vms,
            response: meter.response,
            service_from_dispatch: meter
                .service_from_dispatch
                .unwrap_or_else(|| meter.service.clone()),
            service: meter.service,
            seeks_per_command: meter.seeks_per_command,
            seeks_per_request: meter.seeks_per_request,
            barriers: meter.barriers,
            holds: self.stack.holds().clone(),
            stats: self.stack.stats(),
            apps,
            policy_metrics,
            device_metrics,
            host,
            host_fs,
            machine: None,
            outstanding_max: self.outstanding_max,
            finished,
        };
        (result, journal)
    }
}
