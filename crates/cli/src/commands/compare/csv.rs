//! A comparison as CSV.

use super::prefetching;
use super::tables::has_private;
use crate::caching::NO_PREFETCH;
use crate::json::{CompareReport, PrivateRun, PrivateVm, Response, Run, Usage, Vm};
use seekway_report::table::Table;

/// A run, or a VM of it.
struct Line<'a> {
    /// The scenario that it is of.
    scenario: Option<&'a str>,
    run: &'a Run,
    vm: Option<&'a Vm>,
}

impl<'a> Line<'a> {
    /// A figure that both have.
    fn of<T>(&self, run: fn(&'a Run) -> T, vm: fn(&'a Vm) -> T) -> T {
        self.vm.map_or_else(|| run(self.run), vm)
    }

    /// A figure of the whole run.
    fn whole<T>(&self, figure: fn(&'a Run) -> T) -> Option<T> {
        self.vm.is_none().then(|| figure(self.run))
    }

    fn response(&self) -> &'a Response {
        self.of(|run| &run.response_ms, |vm| &vm.response_ms)
    }

    fn usage(&self) -> Option<&'a Usage> {
        self.of(|run| Some(&run.host.as_ref()?.usage), |vm| Some(&vm.cache.as_ref()?.usage))
    }

    fn private_vm(&self) -> Option<&'a PrivateVm> {
        self.vm?.private.as_ref()
    }

    fn private_run(&self) -> Option<&'a PrivateRun> {
        self.whole(|run| run.private.as_ref()).flatten()
    }
}

/// One line for each run and VM.
pub fn flat(all: &[&CompareReport]) -> Table {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for compared in all {
        let scenario = compared.scenario.as_deref();
        for run in &compared.runs {
            lines.push(Line { scenario, run, vm: None });
            lines.extend(run.vms.iter().map(|vm| Line { scenario, run, vm: Some(vm) }));
        }
    }
    let has_cache = lines.iter().any(|line| line.run.host.is_some());
    let has_private = all.iter().any(|compared| has_private(compared));
    Table::of("", &lines)
        .text("policy", |line| &line.run.stack.policy)
        .text("vm", |line| line.of(|_| "all", |vm| &vm.name))
        .number("seed", "", |line| line.run.seed)
        .number("requests", "", |line| line.of(|run| run.requests, |vm| vm.requests))
        .number("iops", "", |line| line.of(|run| run.iops, |vm| vm.iops))
        .number("mib_s", "", |line| line.of(|run| run.mib_s, |vm| vm.mib_s))
        .number("mean_ms", "", |line| line.response().mean)
        .number("p50_ms", "", |line| line.response().p50)
        .number("p99_ms", "", |line| line.response().p99)
        .number("p999_ms", "", |line| line.response().p999)
        .number("max_ms", "", |line| line.response().max)
        .number("service_mean_ms", "", |line| line.whole(|run| run.service_ms.mean))
        .number("zero_seek_share", "", |line| line.whole(|run| run.zero_seek_share))
        .number("waits_tried", "", |line| line.whole(|run| run.waits.tried))
        .number("waits_paid", "", |line| line.whole(|run| run.waits.paid))
        .number("phi", "", |line| line.whole(|run| run.phi))
        .number("jain", "", |line| line.whole(|run| run.jain))
        .number("max_min_share", "", |line| line.whole(|run| run.max_min_share))
        .number("ended_s", "", |line| line.of(|_| None, |vm| vm.ended_s))
        .text("prefetch", |line| line.run.stack.cache.prefetch.as_deref().unwrap_or(NO_PREFETCH))
        .each(prefetching::FIGURES.into_iter().filter(|_| has_cache), |table, figure| {
            let (_, _, name, figure) = figure;
            table.number(name, "", |line| line.usage().map(figure))
        })
        // What a run chose besides its policy and prefetcher, what it did not choose too.
        .number("cache_mib", "", |line| line.run.stack.cache.cache_mib.unwrap_or(0.0))
        .text("limits", |line| line.run.stack.limits)
        .text("shared_cpus", |line| line.run.stack.shared_cpus.as_deref().unwrap_or("none"))
        .text("vcpu", |line| &line.run.stack.vcpu)
        .when(has_private, |table| {
            table
                .number("progress", "", |line| line.private_vm()?.progress)
                .number("p99_over_private", "", |line| line.private_vm()?.p99_over_private)
                .number("least_progress", "", |line| line.private_run()?.least_progress)
                .number("mean_progress", "", |line| line.private_run()?.mean_progress)
                .text("least_progress_vm", |line| line.private_run()?.least_progress_vm.as_ref())
        })
        .when(all.iter().any(|compared| compared.scenario.is_some()), |table| {
            table.text("scenario", |line| line.scenario)
        })
        .done()
}
