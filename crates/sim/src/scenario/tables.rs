//! Outcomes as typed tables: a column is one list, ready for Arrow. Each table begins with the
//! number of the run, its name, policy and seed. Times in nanoseconds and exact, amounts in bytes
//! or sectors; derived figures are left to the reader.

use super::{Outcome, Scenario};
use crate::metrics::{OpResult, SeekDistances, Times, VmResult};
use crate::vcpu::{TaskResult, VmCpu};
use seekway_core::units::{Instant, Nanos};
use seekway_stack::cache::Usage;
use std::collections::HashMap;
use std::sync::Arc;

/// A table: of one run, or of several that were joined.
pub struct Table {
    pub name: &'static str,
    pub columns: Vec<Column>,
}

pub struct Column {
    pub name: &'static str,
    pub values: Values,
}

/// A column's values by row; `None` where there is none.
pub enum Values {
    Text(Words),
    Count(Vec<Option<u64>>),
    Number(Vec<Option<f64>>),
    Flag(Vec<Option<bool>>),
}

/// Texts, most of which come again and again: each is kept once.
#[derive(Default)]
pub struct Words {
    known: HashMap<Arc<str>, u32>,
    words: Vec<Arc<str>>,
    rows: Vec<Option<u32>>,
}

impl Words {
    fn push(&mut self, text: Option<&str>) {
        let row = text.map(|text| match self.known.get(text) {
            Some(at) => *at,
            None => {
                let (at, word) = (self.words.len() as u32, Arc::<str>::from(text));
                self.known.insert(word.clone(), at);
                self.words.push(word);
                at
            }
        });
        self.rows.push(row);
    }

    /// The texts by row.
    pub fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        self.rows.iter().map(|at| at.map(|at| &*self.words[at as usize]))
    }
}

impl<'a> FromIterator<Option<&'a str>> for Words {
    fn from_iter<I: IntoIterator<Item = Option<&'a str>>>(texts: I) -> Words {
        let mut words = Words::default();
        texts.into_iter().for_each(|text| words.push(text));
        words
    }
}

impl Table {
    /// Adds the rows of the same table of another run.
    pub fn join(&mut self, other: Table) {
        for (column, more) in self.columns.iter_mut().zip(other.columns) {
            match (&mut column.values, more.values) {
                (Values::Text(all), Values::Text(more)) => more.iter().for_each(|t| all.push(t)),
                (Values::Count(all), Values::Count(more)) => all.extend(more),
                (Values::Number(all), Values::Number(more)) => all.extend(more),
                (Values::Flag(all), Values::Flag(more)) => all.extend(more),
                _ => unreachable!("a table's columns have one type in all runs"),
            }
        }
    }

    /// A figure of the run itself, in its only row.
    pub fn add(&mut self, name: &'static str, value: Option<u64>) {
        self.columns.push(Column { name, values: Values::Count(vec![value]) });
    }
}

/// Makes a table of a run with this number.
type Make = fn(usize, &Outcome) -> Table;

/// All tables by their names; `requests` and `journals` have rows only where they were asked for.
const TABLES: &[(&str, Make)] = &[
    ("runs", runs),
    ("vms", vms),
    ("apps", apps),
    ("holds", holds),
    ("metrics", metrics),
    ("cache", cache),
    ("streams", streams),
    ("vcpus", vcpus),
    ("pcpus", pcpus),
    ("tasks", tasks),
    ("blocks", blocks),
    ("histograms", histograms),
    ("seeks", seeks),
    ("series", series),
    ("places", places),
    ("requests", requests),
    ("journals", journals),
];

/// The names of all tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, _)| *name)
}

/// The tables of a run with this number that its scenario wants: all if it names none.
pub fn tables(number: usize, outcome: &Outcome) -> Vec<Table> {
    let wanted = &outcome.scenario.outcome.tables;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    let made = TABLES.iter().filter(|(name, _)| is_wanted(name));
    made.map(|(_, make)| make(number, outcome)).collect()
}

/// Names of a histogram's figures, with the measure's name in front.
macro_rules! times_names {
    ($of:literal) => {
        [
            concat!($of, "_mean_ns"),
            concat!($of, "_deviation_ns"),
            concat!($of, "_p50_ns"),
            concat!($of, "_p90_ns"),
            concat!($of, "_p99_ns"),
            concat!($of, "_p999_ns"),
            concat!($of, "_max_ns"),
        ]
    };
}

/// A table while its columns are added.
struct Rows<R> {
    rows: Vec<R>,
    table: Table,
}

impl<R> Rows<R> {
    fn of(
        name: &'static str,
        (number, outcome): (usize, &Outcome),
        rows: impl IntoIterator<Item = R>,
    ) -> Rows<R> {
        let rows = rows.into_iter().collect();
        let Scenario { name: of, policy, seed, .. } = &outcome.scenario;
        Rows { rows, table: Table { name, columns: Vec::new() } }
            .count("run", |_| number as u64)
            .same_text("name", of)
            .same_text("policy", policy)
            .count("seed", |_| *seed)
    }

    fn with(mut self, name: &'static str, values: Values) -> Self {
        self.table.columns.push(Column { name, values });
        self
    }

    fn text(self, name: &'static str, of: impl Fn(&R) -> &str) -> Self {
        self.maybe_text(name, |row| Some(of(row)))
    }

    fn maybe_text(self, name: &'static str, of: impl Fn(&R) -> Option<&str>) -> Self {
        let mut words = Words::default();
        self.rows.iter().for_each(|row| words.push(of(row)));
        self.with(name, Values::Text(words))
    }

    /// A text that all rows have.
    fn same_text(self, name: &'static str, text: &str) -> Self {
        let mut words = Words::default();
        self.rows.iter().for_each(|_| words.push(Some(text)));
        self.with(name, Values::Text(words))
    }

    fn count<T: Into<Option<u64>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|row| of(row).into()).collect();
        self.with(name, Values::Count(values))
    }

    fn number<T: Into<Option<f64>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|row| of(row).into()).collect();
        self.with(name, Values::Number(values))
    }

    fn flag<T: Into<Option<bool>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|row| of(row).into()).collect();
        self.with(name, Values::Flag(values))
    }

    fn time(self, name: &'static str, of: impl Fn(&R) -> Nanos) -> Self {
        self.count(name, |row| of(row).get())
    }

    /// Mean, deviation, percentiles and maximum of a histogram.
    fn times(self, names: [&'static str; 7], of: impl Fn(&R) -> &Times) -> Self {
        self.maybe_times(names, |row| Some((of(row), u64::MAX)))
    }

    /// As [`Rows::times`], with the longest time of all: no percentile is above that.
    fn maybe_times(
        self,
        names: [&'static str; 7],
        of: impl Fn(&R) -> Option<(&Times, u64)>,
    ) -> Self {
        let [mean, deviation, p50, p90, p99, p999, max] = names;
        let at = |row: &R, quantile| {
            let (times, longest) = of(row)?;
            Some(times.bucket_end_at_quantile(quantile).min(longest))
        };
        self.number(mean, |row| of(row).map(|(times, _)| times.mean()))
            .number(deviation, |row| of(row).map(|(times, _)| times.stdev()))
            .count(p50, |row| at(row, 0.5))
            .count(p90, |row| at(row, 0.9))
            .count(p99, |row| at(row, 0.99))
            .count(p999, |row| at(row, 0.999))
            .count(max, |row| at(row, 1.0))
    }

    /// Bytes and times of reads and of writes; no times where there are none.
    fn operations(self, reads: impl Fn(&R) -> &OpResult, writes: impl Fn(&R) -> &OpResult) -> Self {
        self.count("read_bytes", |row| reads(row).bytes)
            .maybe_times(times_names!("read_response"), |row| some(reads(row)).map(responses))
            .count("read_worst_ns", |row| Some(some(reads(row))?.worst_ns))
            .count("writes", |row| writes(row).requests)
            .count("write_bytes", |row| writes(row).bytes)
            .maybe_times(times_names!("write_response"), |row| some(writes(row)).map(responses))
            .count("write_worst_ns", |row| Some(some(writes(row))?.worst_ns))
    }

    /// Sectors and counts of a cache.
    fn usage(self, of: impl Fn(&R) -> &Usage) -> Self {
        self.count("reads", |row| of(row).reads)
            .count("read_sectors", |row| of(row).read)
            .count("cached_sectors", |row| of(row).cached)
            .count("late_sectors", |row| of(row).late)
            .count("missed_sectors", |row| of(row).missed)
            .count("prefetched_sectors", |row| of(row).prefetched)
            .count("used_sectors", |row| of(row).used)
            .count("wasted_sectors", |row| of(row).wasted)
            .count("dropped_sectors", |row| of(row).dropped)
            .count("promoted", |row| of(row).promoted)
    }

    fn done(self) -> Table {
        self.table
    }
}

/// Response times, and the longest of them.
fn responses(op: &OpResult) -> (&Times, u64) {
    (&op.response, op.worst_ns)
}

fn some(op: &OpResult) -> Option<&OpResult> {
    (!op.is_empty()).then_some(op)
}

fn runs(number: usize, o: &Outcome) -> Table {
    let (r, host) = (&o.result, o.result.host.as_ref());
    let shared = o.scenario.cpu.as_ref().map(ToString::to_string);
    let device = o.scenario.device.shown();
    Rows::of("runs", (number, o), [r])
        .same_text("device", &device)
        .count("cache_bytes", |_| o.scenario.cache.as_ref().map(|cache| cache.size))
        .maybe_text("prefetch", |_| o.scenario.prefetch())
        .same_text("limits", o.scenario.limits.name())
        .maybe_text("shared_cpus", |_| shared.as_deref())
        .same_text("vcpu", o.scenario.agent())
        .count("requests", |r| r.requests())
        .count("bytes", |r| r.bytes())
        .count("reads", |r| r.reads.requests)
        .time("simulated_ns", |r| r.simulated)
        .maybe_times(times_names!("response"), |r| Some((&r.response, r.worst_ns())))
        .count("worst_ns", |r| r.worst_ns())
        .operations(|r| &r.reads, |r| &r.writes)
        .times(times_names!("service"), |r| &r.service)
        .times(times_names!("service_from_dispatch"), |r| &r.service_from_dispatch)
        .count("commands", |r| r.stats.commands)
        .count("dispatched", |r| r.stats.requests)
        .count("forced", |r| r.stats.forced)
        .count("barriers", |r| r.barriers)
        .count("background_commands", |r| r.stats.background_commands)
        .count("background_bytes", |r| r.stats.background_bytes)
        .count("waits_tried", |r| r.holds.tried)
        .count("waits_paid", |r| r.holds.paid)
        .time("held_idle_ns", |r| r.holds.idle)
        .count("outstanding_max", |r| r.outstanding_max as u64)
        .flag("finished", |r| r.finished)
        .count("device_bytes_per_s", |_| host.map(|host| host.bandwidth))
        .count("host_busy_ns", |_| host.map(|host| host.busy.get()))
        .count("polls", |_| host.map(|host| host.polls))
        .count("cpu_events", |r| r.machine.as_ref().map(|machine| machine.events))
        .done()
}

/// The VMs' disks, and the host's file system where the images are its files.
fn disks(outcome: &Outcome) -> impl Iterator<Item = &VmResult> {
    outcome.result.vms.iter().chain(&outcome.result.host_fs)
}

fn vms(number: usize, o: &Outcome) -> Table {
    let count = o.result.vms.len();
    let place = |n: usize| o.places.get(n).filter(|_| n < count);
    Rows::of("vms", (number, o), disks(o).enumerate())
        .text("vm", |(_, vm)| &vm.name)
        .flag("host", |(n, _)| *n >= count)
        .count("requests", |(_, vm)| vm.requests)
        .count("reads", |(_, vm)| vm.reads.requests)
        .count("bytes", |(_, vm)| vm.bytes)
        .count("offered_bytes", |(_, vm)| vm.offered_bytes)
        .time("device_time_ns", |(_, vm)| vm.device_time)
        .time("span_ns", |(_, vm)| vm.span)
        .count("last_arrival_ns", |(_, vm)| vm.last_arrival.as_nanos())
        .count("last_ns", |(_, vm)| vm.last.as_nanos())
        .count("ended_ns", |(_, vm)| vm.ended.map(Instant::as_nanos))
        .count("unfinished", |(_, vm)| vm.unfinished)
        .time("oldest_ns", |(_, vm)| vm.oldest)
        .maybe_times(times_names!("response"), |(_, vm)| Some((&vm.response, vm.worst_ns())))
        .count("worst_ns", |(_, vm)| vm.worst_ns())
        .operations(|(_, vm)| &vm.reads, |(_, vm)| &vm.writes)
        .count("first_sector", |(n, _)| place(*n).map(|(first, _)| *first))
        .count("last_sector", |(n, _)| place(*n).map(|(_, last)| *last))
        .done()
}

fn apps(number: usize, o: &Outcome) -> Table {
    Rows::of("apps", (number, o), &o.result.apps)
        .text("vm", |app| &o.result.vms[usize::from(app.vm)].name)
        .text("app", |app| &app.name)
        .count("finished_ns", |app| app.finished.map(Instant::as_nanos))
        .count("bytes", |app| app.bytes)
        .done()
}

fn holds(number: usize, o: &Outcome) -> Table {
    Rows::of("holds", (number, o), o.result.holds.held.iter())
        .text("cause", |(cause, _)| cause)
        .time("time_ns", |(_, cause)| cause.time)
        .count("count", |(_, cause)| cause.count)
        .done()
}

/// Figures of policies, devices, prefetchers and agents themselves.
fn metrics(number: usize, o: &Outcome) -> Table {
    let r = &o.result;
    let of_vm = r.vms.iter().map(|vm| ("policy", Some(vm.name.as_str()), &vm.policy_metrics));
    let machine = r.machine.iter().flat_map(|machine| &machine.vms);
    let agents = machine.map(|vm| ("vcpu", Some(vm.name.as_str()), &vm.metrics));
    let all = [("policy", None, &r.policy_metrics), ("device", None, &r.device_metrics)]
        .into_iter()
        .chain(r.host.as_ref().map(|host| ("prefetcher", None, &host.metrics)))
        .chain(of_vm)
        .chain(agents);
    let rows = all.flat_map(|(of, vm, metrics)| metrics.iter().map(move |m| (of, vm, m.0, m.1)));
    Rows::of("metrics", (number, o), rows)
        .text("of", |(of, ..)| of)
        .maybe_text("vm", |(_, vm, ..)| *vm)
        .text("metric", |(.., metric, _)| metric)
        .number("value", |(.., value)| *value)
        .done()
}

/// A line of the host cache: of the run, of a VM, or of a process of it.
struct CacheLine<'o> {
    vm: Option<&'o str>,
    /// Absent where the line is of all processes.
    process: Option<Option<u16>>,
    usage: &'o Usage,
    resident: Option<u64>,
}

fn cache(number: usize, o: &Outcome) -> Table {
    let whole = o.result.host.iter().map(|host| &host.usage);
    let mut lines: Vec<CacheLine<'_>> =
        whole.map(|usage| CacheLine { vm: None, process: None, usage, resident: None }).collect();
    for vm in &o.result.vms {
        let Some(host) = &vm.host else { continue };
        let (name, resident) = (Some(vm.name.as_str()), Some(host.resident_bytes));
        lines.push(CacheLine { vm: name, process: None, usage: &host.usage, resident });
        lines.extend(host.processes.iter().map(|process| CacheLine {
            vm: name,
            process: Some(process.tag.map(|tag| tag.get())),
            usage: &process.usage,
            resident: None,
        }));
    }
    Rows::of("cache", (number, o), lines)
        .maybe_text("vm", |line| line.vm)
        .flag("by_process", |line| line.process.is_some())
        .count("process", |line| line.process.flatten().map(u64::from))
        .usage(|line| line.usage)
        .count("resident_bytes", |line| line.resident)
        .done()
}

fn streams(number: usize, o: &Outcome) -> Table {
    let of_vm = |vm: &'_ VmResult| vm.host.iter().flat_map(|host| &host.streams).count();
    let rows = o.result.vms.iter().filter(|vm| of_vm(vm) > 0).flat_map(|vm| {
        vm.host.iter().flat_map(|host| &host.streams).map(move |stream| (vm, stream))
    });
    Rows::of("streams", (number, o), rows)
        .text("vm", |(vm, _)| &vm.name)
        .count("process", |(_, s)| s.tag.map(|tag| u64::from(tag.get())))
        .flag("armed", |(_, s)| s.armed)
        .number("linear", |(_, s)| s.linear)
        .number("scale", |(_, s)| s.scale)
        .done()
}

/// The VMs of a run's machine, in their order.
fn machine_vms(o: &Outcome) -> impl Iterator<Item = &VmCpu> {
    o.result.machine.iter().flat_map(|machine| &machine.vms)
}

fn vcpus(number: usize, o: &Outcome) -> Table {
    Rows::of("vcpus", (number, o), machine_vms(o).map(|vm| (vm, vm.waits())))
        .text("vm", |(vm, _)| &vm.name)
        .count("vcpus", |(vm, _)| u64::from(vm.vcpus))
        .time("ran_ns", |(vm, _)| vm.ran)
        .time("stolen_ns", |(vm, _)| vm.stolen)
        .time("any_ran_ns", |(vm, _)| vm.any_ran)
        .time("first_ran_ns", |(vm, _)| vm.first_ran)
        .time("agent_ns", |(vm, _)| vm.agent)
        .time("overhead_ns", |(vm, _)| vm.overhead)
        .count("moves", |(vm, _)| vm.moves)
        .count("moves_min", |(vm, _)| vm.moves_min)
        .count("blocked", |(vm, _)| vm.blocked)
        .count("releases", |(vm, _)| vm.releases)
        .times(times_names!("wait"), |(_, waits)| waits)
        .done()
}

fn pcpus(number: usize, o: &Outcome) -> Table {
    let pcpus = o.result.machine.iter().flat_map(|machine| &machine.pcpus);
    Rows::of("pcpus", (number, o), pcpus.enumerate())
        .count("pcpu", |(n, _)| *n as u64)
        .time("ran_ns", |(_, pcpu)| pcpu.ran)
        .time("switching_ns", |(_, pcpu)| pcpu.switching)
        .time("idle_ns", |(_, pcpu)| pcpu.idle)
        .count("switches", |(_, pcpu)| pcpu.switches)
        .count("slices", |(_, pcpu)| pcpu.slices)
        .done()
}

/// The tasks of a run's machine with their VMs.
fn tasks_of(o: &Outcome) -> impl Iterator<Item = (&VmCpu, &TaskResult)> {
    machine_vms(o).flat_map(|vm| vm.tasks.iter().map(move |task| (vm, task)))
}

fn tasks(number: usize, o: &Outcome) -> Table {
    Rows::of("tasks", (number, o), tasks_of(o))
        .text("vm", |(vm, _)| &vm.name)
        .text("task", |(_, task)| &task.name)
        .flag("io", |(_, task)| task.io)
        .time("ran_ns", |(_, task)| task.ran)
        .count("ios", |(_, task)| task.ios)
        .count("bytes", |(_, task)| task.bytes)
        .time("inactive_ns", |(_, task)| task.inactive)
        .count("moves", |(_, task)| task.moves)
        .times(times_names!("response"), |(_, task)| &task.response)
        .done()
}

/// Blocks of each task by quarters of a second.
fn blocks(number: usize, o: &Outcome) -> Table {
    let rows = tasks_of(o).flat_map(|(vm, task)| task.series.iter().map(move |b| (vm, task, b)));
    Rows::of("blocks", (number, o), rows)
        .text("vm", |(vm, ..)| &vm.name)
        .text("task", |(_, task, _)| &task.name)
        .count("from_ns", |(.., (from, _))| from.as_nanos())
        .count("blocks", |(.., (_, blocks))| *blocks)
        .done()
}

fn histograms(number: usize, o: &Outcome) -> Table {
    let r = &o.result;
    let whole = [
        ("response", &r.response),
        ("service", &r.service),
        ("service_from_dispatch", &r.service_from_dispatch),
    ];
    let all = whole.map(|(of, times)| (of, None, None, times)).into_iter();
    let vms = disks(o).map(|vm| ("response", Some(&*vm.name), None, &vm.response));
    let tasks =
        tasks_of(o).map(|(vm, task)| ("wait", Some(&*vm.name), Some(&*task.name), &task.response));
    let rows = all.chain(vms).chain(tasks).flat_map(|(of, vm, task, times)| {
        times.counts().map(move |(ns, count)| (of, vm, task, ns, count))
    });
    Rows::of("histograms", (number, o), rows)
        .text("of", |(of, ..)| of)
        .maybe_text("vm", |(_, vm, ..)| *vm)
        .maybe_text("task", |(_, _, task, ..)| *task)
        .count("up_to_ns", |(.., up_to, _)| *up_to)
        .count("count", |(.., count)| *count)
        .done()
}

/// Seek distances by powers of two, the longest backward first.
fn seeks(number: usize, o: &Outcome) -> Table {
    fn side(
        direction: &'static str,
        bins: &[u64; 64],
    ) -> impl DoubleEndedIterator<Item = (&'static str, u64, u64)> {
        let bins = bins.iter().enumerate().filter(|(_, count)| **count > 0);
        bins.map(move |(n, count)| (direction, 1 << n, *count))
    }
    let both = [("command", &o.result.seeks_per_command), ("request", &o.result.seeks_per_request)];
    let rows = both.into_iter().flat_map(|(by, seeks): (_, &SeekDistances)| {
        let zero = std::iter::once(("zero", 0, seeks.zero));
        let all = side("backward", &seeks.backward).rev().chain(zero);
        all.chain(side("forward", &seeks.forward)).map(move |bin| (by, bin))
    });
    Rows::of("seeks", (number, o), rows)
        .text("by", |(by, _)| by)
        .text("direction", |(_, (direction, ..))| direction)
        .count("from_sectors", |(_, (_, from, _))| *from)
        .count("count", |(_, (.., count))| *count)
        .done()
}

fn series(number: usize, o: &Outcome) -> Table {
    let rows = disks(o)
        .flat_map(|vm| vm.bandwidth.bytes.iter().enumerate().map(move |(n, bytes)| (vm, n, bytes)));
    Rows::of("series", (number, o), rows)
        .text("vm", |(vm, ..)| &vm.name)
        .count("from_ns", |(vm, n, _)| *n as u64 * vm.bandwidth.bin.get())
        .count("bin_ns", |(vm, ..)| vm.bandwidth.bin.get())
        .count("bytes", |(.., bytes)| **bytes)
        .done()
}

fn places(number: usize, o: &Outcome) -> Table {
    let rows = disks(o).flat_map(|vm| vm.scatter.points.iter().map(move |point| (vm, point)));
    Rows::of("places", (number, o), rows)
        .text("vm", |(vm, _)| &vm.name)
        .count("arrived_ns", |(_, (at, ..))| at.as_nanos())
        .count("sector", |(_, (_, sector, _))| sector.get())
        .flag("read", |(_, (.., read))| *read)
        .done()
}

fn requests(number: usize, o: &Outcome) -> Table {
    Rows::of("requests", (number, o), &o.requests)
        .text("vm", |r| &o.result.vms[usize::from(r.vm)].name)
        .count("process", |r| r.process.map(u64::from))
        .text("op", |r| r.op.word())
        .flag("sync", |r| r.sync)
        .count("start_sector", |r| r.start.get())
        .count("sectors", |r| r.len.get())
        .count("submitted_ns", |r| r.submitted.as_nanos())
        .count("completed_ns", |r| r.completed.as_nanos())
        .done()
}

/// Journals as `seekway replay` reads them.
fn journals(number: usize, o: &Outcome) -> Table {
    let journal = Some(&o.journal).filter(|journal| !journal.is_empty());
    Rows::of("journals", (number, o), journal).text("journal", |journal| journal).done()
}
