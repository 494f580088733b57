//! Outcomes as typed tables: a column is one list, ready for Arrow. Each table begins with the
//! number of the run, its name, policy and seed. Times in nanoseconds and exact, amounts in bytes or
//! sectors; what is computed of several figures is left to the reader.

use super::Outcome;
use crate::metrics::{SeekDistances, Times, VmResult};
use crate::vcpu::{TaskResult, VmCpu};
use anyhow::{Result, bail};
use seekway_policy::cache::Usage;
use seekway_policy::request::Op;
use seekway_policy::units::{Instant, Nanos};

/// A table of all runs.
pub struct Table {
    pub name: &'static str,
    pub columns: Vec<Column>,
    pub rows: usize,
}

pub struct Column {
    pub name: &'static str,
    pub values: Values,
}

/// A column's values by row; `None` where there is none.
pub enum Values {
    Text(Vec<Option<String>>),
    Count(Vec<Option<u64>>),
    Number(Vec<Option<f64>>),
    Flag(Vec<Option<bool>>),
}

/// Makes one table of the outcomes.
type Make = fn(&[Outcome]) -> Table;

/// All tables by their names; `requests` has rows only where they were asked for.
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
];

/// The names of all tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, _)| *name)
}

/// Refuses a name that is no table's.
///
/// # Errors
/// Names the tables there are.
pub fn check(wanted: &[String]) -> Result<()> {
    match wanted.iter().find(|name| !names().any(|known| known == *name)) {
        None => Ok(()),
        Some(name) => {
            bail!(
                "outcome.tables: no table '{name}'; there are {}",
                names().collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// The tables that the first of the outcomes wants: all if it names none.
pub fn tables(outcomes: &[Outcome]) -> Vec<Table> {
    let wanted = outcomes.first().map(|o| o.scenario.outcome.tables.as_slice()).unwrap_or(&[]);
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    TABLES.iter().filter(|(name, _)| is_wanted(name)).map(|(_, make)| make(outcomes)).collect()
}

/// A table while its columns are added: the rows with their runs' numbers.
struct Rows<'o, R> {
    outcomes: &'o [Outcome],
    rows: Vec<(usize, R)>,
    table: Table,
}

impl<'o, R> Rows<'o, R> {
    fn of<I: IntoIterator<Item = R>>(
        name: &'static str,
        outcomes: &'o [Outcome],
        of_run: impl Fn(&'o Outcome) -> I,
    ) -> Rows<'o, R> {
        let of_run = |(n, o): (usize, &'o Outcome)| of_run(o).into_iter().map(move |row| (n, row));
        let rows: Vec<(usize, R)> = outcomes.iter().enumerate().flat_map(of_run).collect();
        let count = rows.len();
        let numbers = rows.iter().map(|(n, _)| Some(*n as u64)).collect();
        let run = Column { name: "run", values: Values::Count(numbers) };
        let table = Table { name, columns: vec![run], rows: count };
        Rows { outcomes, rows, table }
            .run_text("name", |o| o.scenario.name.clone())
            .run_text("policy", |o| o.scenario.policy.clone())
            .run_count("seed", |o| o.scenario.seed)
    }

    fn run_text(self, name: &'static str, of: impl Fn(&Outcome) -> String) -> Self {
        let values = self.rows.iter().map(|(n, _)| Some(of(&self.outcomes[*n]))).collect();
        self.with(name, Values::Text(values))
    }

    fn run_count(self, name: &'static str, of: impl Fn(&Outcome) -> u64) -> Self {
        let values = self.rows.iter().map(|(n, _)| Some(of(&self.outcomes[*n]))).collect();
        self.with(name, Values::Count(values))
    }

    fn with(mut self, name: &'static str, values: Values) -> Self {
        self.table.columns.push(Column { name, values });
        self
    }

    fn text<T: Into<Option<String>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|(_, row)| of(row).into()).collect();
        self.with(name, Values::Text(values))
    }

    fn count<T: Into<Option<u64>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|(_, row)| of(row).into()).collect();
        self.with(name, Values::Count(values))
    }

    fn number<T: Into<Option<f64>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|(_, row)| of(row).into()).collect();
        self.with(name, Values::Number(values))
    }

    fn flag<T: Into<Option<bool>>>(self, name: &'static str, of: impl Fn(&R) -> T) -> Self {
        let values = self.rows.iter().map(|(_, row)| of(row).into()).collect();
        self.with(name, Values::Flag(values))
    }

    fn time(self, name: &'static str, of: impl Fn(&R) -> Nanos) -> Self {
        self.count(name, |row| of(row).get())
    }

    /// Mean, deviation, percentiles and the exact maximum of a histogram.
    fn times(self, names: [&'static str; 7], of: impl Fn(&R) -> &Times) -> Self {
        let [mean, deviation, p50, p90, p99, p999, max] = names;
        let at = |row: &R, quantile| of(row).value_at_quantile(quantile);
        self.number(mean, |row| of(row).mean())
            .number(deviation, |row| of(row).stdev())
            .count(p50, |row| at(row, 0.5))
            .count(p90, |row| at(row, 0.9))
            .count(p99, |row| at(row, 0.99))
            .count(p999, |row| at(row, 0.999))
            .count(max, |row| of(row).max())
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

/// Names of a histogram's figures, with what they are of in front.
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

fn nanos(at: Instant) -> u64 {
    at.as_nanos()
}

fn runs(outcomes: &[Outcome]) -> Table {
    Rows::of("runs", outcomes, |o| [o])
        .text("device", |o| o.scenario.device.shown())
        .count("cache_bytes", |o| o.scenario.cache.as_ref().map(|cache| cache.size))
        .text("prefetch", |o| o.scenario.prefetch().map(str::to_string))
        .text("limits", |o| o.scenario.limits.name().to_string())
        .text("shared_cpus", |o| o.scenario.cpu.as_ref().map(ToString::to_string))
        .text("vcpu", |o| o.scenario.agent().to_string())
        .count("requests", |o| o.result.requests())
        .count("bytes", |o| o.result.bytes())
        .count("reads", |o| o.result.vms.iter().map(|vm| vm.reads).sum::<u64>())
        .time("simulated_ns", |o| o.result.simulated)
        .times(times_names!("response"), |o| &o.result.response)
        .count("worst_ns", |o| o.result.worst_ns())
        .times(times_names!("service"), |o| &o.result.service)
        .times(times_names!("service_from_dispatch"), |o| &o.result.service_from_dispatch)
        .count("commands", |o| o.result.stats.commands)
        .count("dispatched", |o| o.result.stats.requests)
        .count("forced", |o| o.result.stats.forced)
        .count("barriers", |o| o.result.barriers)
        .count("background_commands", |o| o.result.stats.background_commands)
        .count("background_bytes", |o| o.result.stats.background_bytes)
        .count("waits_tried", |o| o.result.holds.tried)
        .count("waits_paid", |o| o.result.holds.paid)
        .time("held_idle_ns", |o| o.result.holds.idle)
        .count("outstanding_max", |o| o.result.outstanding_max as u64)
        .flag("finished", |o| o.result.finished)
        .count("device_bytes_per_s", |o| o.result.host.as_ref().map(|host| host.bandwidth))
        .count("host_busy_ns", |o| o.result.host.as_ref().map(|host| host.busy.get()))
        .count("polls", |o| o.result.host.as_ref().map(|host| host.polls))
        .count("cpu_events", |o| o.result.machine.as_ref().map(|machine| machine.events))
        .done()
}

/// The VMs' disks, and the host's file system where the images are its files.
fn disks(outcome: &Outcome) -> impl Iterator<Item = &VmResult> {
    outcome.result.vms.iter().chain(&outcome.result.host_fs)
}

fn vms(outcomes: &[Outcome]) -> Table {
    let of_run: fn(&Outcome) -> Vec<(&Outcome, (usize, &VmResult))> =
        |o| disks(o).enumerate().map(|row| (o, row)).collect();
    let place = |o: &Outcome, n: usize| o.places.get(n).copied();
    Rows::of("vms", outcomes, of_run)
        .text("vm", |(_, (_, vm))| vm.name.clone())
        .flag("host", |(o, (n, _))| *n >= o.result.vms.len())
        .count("requests", |(_, (_, vm))| vm.requests)
        .count("reads", |(_, (_, vm))| vm.reads)
        .count("bytes", |(_, (_, vm))| vm.bytes)
        .count("offered_bytes", |(_, (_, vm))| vm.offered_bytes)
        .time("device_time_ns", |(_, (_, vm))| vm.device_time)
        .time("span_ns", |(_, (_, vm))| vm.span)
        .count("last_arrival_ns", |(_, (_, vm))| nanos(vm.last_arrival))
        .count("last_ns", |(_, (_, vm))| nanos(vm.last))
        .count("ended_ns", |(_, (_, vm))| vm.ended.map(nanos))
        .count("unfinished", |(_, (_, vm))| vm.unfinished)
        .time("oldest_ns", |(_, (_, vm))| vm.oldest)
        .times(times_names!("response"), |(_, (_, vm))| &vm.response)
        .count("worst_ns", |(_, (_, vm))| vm.worst_ns())
        .count("first_sector", |(o, (n, _))| place(o, *n).map(|(first, _)| first))
        .count("last_sector", |(o, (n, _))| place(o, *n).map(|(_, last)| last))
        .done()
}

fn apps(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(String, String, Option<u64>, u64)> {
        let app = |app: &seekway_workload::AppReport| {
            let vm = o.result.vms[usize::from(app.vm)].name.clone();
            (vm, app.name.clone(), app.finished.map(nanos), app.bytes)
        };
        o.result.apps.iter().map(app).collect()
    };
    Rows::of("apps", outcomes, of_run)
        .text("vm", |(vm, ..)| vm.clone())
        .text("app", |(_, app, ..)| app.clone())
        .count("finished_ns", |(.., finished, _)| *finished)
        .count("bytes", |(.., bytes)| *bytes)
        .done()
}

fn holds(outcomes: &[Outcome]) -> Table {
    Rows::of("holds", outcomes, |o| o.result.holds.held.iter().collect::<Vec<_>>())
        .text("cause", |(cause, _)| cause.to_string())
        .time("time_ns", |(_, cause)| cause.time)
        .count("count", |(_, cause)| cause.count)
        .done()
}

/// Figures of policies, devices and prefetchers themselves.
fn metrics(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(&'static str, Option<String>, &'static str, f64)> {
        let result = &o.result;
        let of = |whose, vm: Option<String>, all: &[(&'static str, f64)]| -> Vec<_> {
            all.iter().map(|(name, value)| (whose, vm.clone(), *name, *value)).collect()
        };
        let mut all = of("policy", None, &result.policy_metrics);
        for vm in &result.vms {
            all.extend(of("policy", Some(vm.name.clone()), &vm.policy_metrics));
        }
        all.extend(of("device", None, &result.device_metrics));
        all.extend(result.host.iter().flat_map(|host| of("prefetcher", None, &host.metrics)));
        for vm in result.machine.iter().flat_map(|machine| &machine.vms) {
            all.extend(of("vcpu", Some(vm.name.clone()), &vm.metrics));
        }
        all
    };
    Rows::of("metrics", outcomes, of_run)
        .text("of", |(whose, ..)| whose.to_string())
        .text("vm", |(_, vm, ..)| vm.clone())
        .text("metric", |(.., metric, _)| metric.to_string())
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

fn cache(outcomes: &[Outcome]) -> Table {
    fn of_run(o: &Outcome) -> Vec<CacheLine<'_>> {
        let whole = o.result.host.iter().map(|host| &host.usage);
        let mut lines: Vec<CacheLine<'_>> = whole
            .map(|usage| CacheLine { vm: None, process: None, usage, resident: None })
            .collect();
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
        lines
    }
    Rows::of("cache", outcomes, of_run)
        .text("vm", |line| line.vm.map(str::to_string))
        .flag("by_process", |line| line.process.is_some())
        .count("process", |line| line.process.flatten().map(u64::from))
        .usage(|line| line.usage)
        .count("resident_bytes", |line| line.resident)
        .done()
}

fn streams(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(String, Option<u64>, bool, f64, f64)> {
        let of_vm = |vm: &VmResult| -> Vec<_> {
            let streams = vm.host.iter().flat_map(|host| &host.streams);
            let one = |s: &seekway_policy::prefetcher::Stream| {
                let tag = s.tag.map(|tag| u64::from(tag.get()));
                (vm.name.clone(), tag, s.armed, s.linear, s.scale)
            };
            streams.map(one).collect()
        };
        o.result.vms.iter().flat_map(of_vm).collect()
    };
    Rows::of("streams", outcomes, of_run)
        .text("vm", |(vm, ..)| vm.clone())
        .count("process", |(_, process, ..)| *process)
        .flag("armed", |(_, _, armed, ..)| *armed)
        .number("linear", |(.., linear, _)| *linear)
        .number("scale", |(.., scale)| *scale)
        .done()
}

/// The VMs of a run's machine, in their order.
fn machine_vms(o: &Outcome) -> Vec<&VmCpu> {
    o.result.machine.iter().flat_map(|machine| &machine.vms).collect()
}

fn vcpus(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &'_ Outcome| -> Vec<(VmCpu, Times)> {
        machine_vms(o).into_iter().map(|vm| (vm.clone(), vm.waits())).collect()
    };
    Rows::of("vcpus", outcomes, of_run)
        .text("vm", |(vm, _)| vm.name.clone())
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

fn pcpus(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| {
        let pcpus = o.result.machine.iter().flat_map(|machine| machine.pcpus.iter().copied());
        pcpus.enumerate().collect::<Vec<_>>()
    };
    Rows::of("pcpus", outcomes, of_run)
        .count("pcpu", |(n, _)| *n as u64)
        .time("ran_ns", |(_, pcpu)| pcpu.ran)
        .time("switching_ns", |(_, pcpu)| pcpu.switching)
        .time("idle_ns", |(_, pcpu)| pcpu.idle)
        .count("switches", |(_, pcpu)| pcpu.switches)
        .count("slices", |(_, pcpu)| pcpu.slices)
        .done()
}

/// The tasks of a run's machine with their VMs.
fn tasks_of(o: &Outcome) -> Vec<(&str, &TaskResult)> {
    let vms = machine_vms(o).into_iter();
    vms.flat_map(|vm| vm.tasks.iter().map(|task| (vm.name.as_str(), task))).collect()
}

fn tasks(outcomes: &[Outcome]) -> Table {
    Rows::of("tasks", outcomes, tasks_of)
        .text("vm", |(vm, _)| vm.to_string())
        .text("task", |(_, task)| task.name.clone())
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
fn blocks(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(String, String, u64, u64)> {
        let of_task = |(vm, task): (&str, &TaskResult)| -> Vec<_> {
            let bin = |(at, blocks): &(Instant, u64)| {
                (vm.to_string(), task.name.clone(), nanos(*at), *blocks)
            };
            task.series.iter().map(bin).collect()
        };
        tasks_of(o).into_iter().flat_map(of_task).collect()
    };
    Rows::of("blocks", outcomes, of_run)
        .text("vm", |(vm, ..)| vm.clone())
        .text("task", |(_, task, ..)| task.clone())
        .count("from_ns", |(.., from, _)| *from)
        .count("blocks", |(.., blocks)| *blocks)
        .done()
}

/// Of what a histogram is: the figure, the VM, the task.
type Whose = (&'static str, Option<String>, Option<String>);

fn histograms(outcomes: &[Outcome]) -> Table {
    fn bins(whose: &Whose, times: &Times) -> Vec<(Whose, u64, u64)> {
        let bin = |bin: hdrhistogram::iterators::IterationValue<u64>| {
            (whose.clone(), bin.value_iterated_to(), bin.count_at_value())
        };
        times.iter_recorded().map(bin).collect()
    }
    let of_run = |o: &Outcome| -> Vec<(Whose, u64, u64)> {
        let r = &o.result;
        let mut all = bins(&("response", None, None), &r.response);
        all.extend(bins(&("service", None, None), &r.service));
        all.extend(bins(&("service_from_dispatch", None, None), &r.service_from_dispatch));
        for vm in disks(o) {
            all.extend(bins(&("response", Some(vm.name.clone()), None), &vm.response));
        }
        for (vm, task) in tasks_of(o) {
            let whose = ("wait", Some(vm.to_string()), Some(task.name.clone()));
            all.extend(bins(&whose, &task.response));
        }
        all
    };
    Rows::of("histograms", outcomes, of_run)
        .text("of", |((of, ..), ..)| of.to_string())
        .text("vm", |((_, vm, _), ..)| vm.clone())
        .text("task", |((.., task), ..)| task.clone())
        .count("up_to_ns", |(_, up_to, _)| *up_to)
        .count("count", |(.., count)| *count)
        .done()
}

fn seeks(outcomes: &[Outcome]) -> Table {
    fn bins(by: &'static str, seeks: &SeekDistances) -> Vec<(&'static str, i64, u64)> {
        let side = |sign: i64, bins: &[u64; 64]| -> Vec<_> {
            let bins = bins.iter().enumerate().filter(|(_, count)| **count > 0);
            bins.map(|(n, count)| (by, sign * (n as i64 + 1), *count)).collect()
        };
        let mut all = side(-1, &seeks.backward);
        all.reverse();
        all.push((by, 0, seeks.zero));
        all.extend(side(1, &seeks.forward));
        all
    }
    let of_run = |o: &Outcome| -> Vec<(&'static str, i64, u64)> {
        let mut all = bins("command", &o.result.seeks_per_command);
        all.extend(bins("request", &o.result.seeks_per_request));
        all
    };
    let direction = |bin: i64| match bin {
        0 => "zero",
        1.. => "forward",
        _ => "backward",
    };
    Rows::of("seeks", outcomes, of_run)
        .text("by", |(by, ..)| by.to_string())
        .text("direction", |(_, bin, _)| direction(*bin).to_string())
        .count("from_sectors", |(_, bin, _)| match bin.unsigned_abs() {
            0 => 0,
            n => 1_u64 << (n - 1),
        })
        .count("count", |(.., count)| *count)
        .done()
}

fn series(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(String, u64, u64, u64)> {
        let of_vm = |vm: &VmResult| -> Vec<_> {
            let bin_ns = vm.bandwidth.bin.get();
            let bin =
                |(n, bytes): (usize, &u64)| (vm.name.clone(), n as u64 * bin_ns, bin_ns, *bytes);
            vm.bandwidth.bytes.iter().enumerate().map(bin).collect()
        };
        disks(o).flat_map(of_vm).collect()
    };
    Rows::of("series", outcomes, of_run)
        .text("vm", |(vm, ..)| vm.clone())
        .count("from_ns", |(_, from, ..)| *from)
        .count("bin_ns", |(.., bin, _)| *bin)
        .count("bytes", |(.., bytes)| *bytes)
        .done()
}

fn places(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(String, u64, u64, bool)> {
        let of_vm = |vm: &VmResult| -> Vec<_> {
            let point = |(at, lba, read): &(Instant, seekway_policy::units::Lba, bool)| {
                (vm.name.clone(), nanos(*at), lba.get(), *read)
            };
            vm.scatter.points.iter().map(point).collect()
        };
        disks(o).flat_map(of_vm).collect()
    };
    Rows::of("places", outcomes, of_run)
        .text("vm", |(vm, ..)| vm.clone())
        .count("arrived_ns", |(_, at, ..)| *at)
        .count("sector", |(.., sector, _)| *sector)
        .flag("read", |(.., read)| *read)
        .done()
}

fn requests(outcomes: &[Outcome]) -> Table {
    let of_run = |o: &Outcome| -> Vec<(String, seekway_workload::Recorded)> {
        let vm = |n: u16| o.result.vms[usize::from(n)].name.clone();
        o.requests.iter().map(|request| (vm(request.vm), *request)).collect()
    };
    let op = |op: Op| format!("{op:?}").to_lowercase();
    Rows::of("requests", outcomes, of_run)
        .text("vm", |(vm, _)| vm.clone())
        .count("process", |(_, r)| r.process.map(u64::from))
        .text("op", |(_, r)| op(r.op))
        .flag("sync", |(_, r)| r.sync)
        .count("start_sector", |(_, r)| r.start.get())
        .count("sectors", |(_, r)| r.len.get())
        .count("submitted_ns", |(_, r)| nanos(r.submitted))
        .count("completed_ns", |(_, r)| nanos(r.completed))
        .done()
}
