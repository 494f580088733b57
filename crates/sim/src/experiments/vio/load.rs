//! What the VIO experiments run: loads of several VMs on the paper's array,
//! each under several ways of reading ahead.

use super::super::{Cell, HostSetup, Options, Scenario};
use crate::engine::HostCosts;
use seekway_policy::units::Nanos;
use std::sync::Arc;

/// The paper's array, as far as it names it.
pub(super) const ARRAY: &str = "raid0-8x-x25m-g2";
/// Two of the paper's intervals pass before anything is measured: the interval
/// form cannot prefetch in the first, and finds its pace in the second.
const SETTLE_MS: u64 = 1_000;
/// How much longer than others a load of whole files is measured.
const WHOLE_FILES_TIMES: u64 = 4;
/// What is measured is at least this long, however much a run is shrunk.
const MEASURED_MIN_MS: u64 = 50;

/// The prefetchers by their specification: the paper's interval and threshold with
/// our corrections (the bound on the lead, patience, what losses do), and the self-tuning form.
pub(super) const VIO: &str = "vio";
/// The paper's rules and no others.
pub(super) const PAPER_VIO: &str = "vio:literal=true";
pub(super) const PAPER_FLASHY: &str = "flashy:literal=true";
pub(super) const OURS: &str = "vio:interval=continuous,threshold=auto";

/// How the applications of a guest read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guest {
    /// Through the page cache, with this window of Linux's read-ahead in KiB.
    Window(u32),
    /// Past it, O_DIRECT: the paper's protocol, which turns the guest's
    /// read-ahead off. Only for loads of fio's.
    Direct,
}

/// A way of reading ahead: the guests' and the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Column {
    /// In tables and figures.
    pub name: &'static str,
    pub guest: Guest,
    /// The prefetcher over the host's cache; without the cache if none.
    pub prefetch: Option<&'static str>,
}

impl Column {
    /// Does it read ahead by a paper's rules and no others? Only such a column is
    /// set beside the paper's figures.
    pub fn is_literal(self) -> bool {
        self.is_vio_literal() || self.prefetch == Some(PAPER_FLASHY)
    }

    /// The same of VIO's rules, with whatever interval.
    pub fn is_vio_literal(self) -> bool {
        self.prefetch.is_some_and(|p| p.starts_with(PAPER_VIO))
    }

    /// What it is, for the rows' reasons.
    pub fn form(self) -> String {
        match self.prefetch {
            None => "no cache".into(),
            Some(spec) if self.is_literal() => format!("{spec}, the paper's rules and no others"),
            Some(VIO) => format!("{VIO}: 0.5 s and 0.60 with our corrections"),
            Some(spec) => spec.into(),
        }
    }
}

const fn host(name: &'static str, prefetch: &'static str) -> Column {
    Column { name, guest: Guest::Window(128), prefetch: Some(prefetch) }
}

/// What everything is set beside: Linux's own read-ahead in the guest, and a
/// host cache that fetches nothing ahead.
pub(super) const BASE: Column = host("none", "none");
pub(super) const PAPER_ON: Column = host("vio as in the paper", PAPER_VIO);
pub(super) const VIO_ON: Column = host("vio", VIO);
pub(super) const OURS_ON: Column = host("vio, continuous", OURS);
/// What the guest's owner can do without a host: a larger window.
pub(super) const WINDOW_512: Column =
    Column { name: "guest's window 512 KiB", guest: Guest::Window(512), ..BASE };
/// No host cache at all.
pub(super) const BARE: Column = Column { name: "no host cache", prefetch: None, ..BASE };
/// The paper's protocol: the guest's read-ahead off.
pub(super) const PROTOCOL_FLASHY: Column = Column {
    name: "flashy as in the paper, guest's read-ahead off",
    guest: Guest::Direct,
    prefetch: Some(PAPER_FLASHY),
};
pub(super) const PROTOCOL_VIO: Column = Column {
    name: "vio as in the paper, guest's read-ahead off",
    guest: Guest::Direct,
    ..PAPER_ON
};

/// Figure 5 of the paper. Its own forms have the guest's read-ahead off, as there. (With it
/// on they are `vio` to the third digit: its corrections have nothing to do.)
pub(super) const SEQUENTIAL: [Column; 6] =
    [BASE, VIO_ON, OURS_ON, WINDOW_512, PROTOCOL_FLASHY, PROTOCOL_VIO];
/// Applications, which the paper has under VIO only, and which read through the
/// page cache: its protocol would make them read page by page.
pub(super) const BUFFERED: [Column; 4] = [BASE, PAPER_ON, VIO_ON, OURS_ON];

/// What a guest's way to the host was like under Xen 4.1: a block ring of one page, which
/// holds 32 requests of 11 pages, and some time for each request. The paper gives none of
/// these; 100 to 200 µs are likely, and of these the end that leaves most room is taken.
pub(super) const RING: &str = ",max_request_kib=44,ring=32,latency=200us";
/// The room for prefetching that the paper's VMs may have had: the same, and of the 300 to
/// 400 MiB/s that one virtual disk may have carried again the end that leaves most.
/// vio-room measures the other ends.
pub(super) const ROOM: &str = ",max_request_kib=44,ring=32,latency=200us,bandwidth=400MiB";

/// One VM of a load.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Vm {
    /// Keys of the guest, as `parse_vm` reads them.
    pub keys: String,
    /// Its applications, each as behind `app=`.
    pub apps: Vec<String>,
}

impl Vm {
    fn spec(&self, number: usize, guest: Guest) -> String {
        let (window, direct) = match guest {
            Guest::Window(kib) => (kib, ""),
            Guest::Direct => (0, ",direct=true"),
        };
        let app = |app: &String| format!(",app={app}{direct}");
        let apps: String = self.apps.iter().map(app).collect();
        format!("name=vm{number},read_ahead_kb={window},{}{apps}", self.keys)
    }
}

/// Several VMs on an array for some time.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Load {
    /// Unique within the experiment.
    pub name: String,
    pub vms: Vec<Vm>,
    /// The applications whose names begin so are judged: all with an empty name.
    pub judged: &'static str,
    /// Do these read sequentially as fast as they can, all the time? Then a
    /// prefetcher is asked for a gain wherever there is room for one.
    pub sequential: bool,
    /// vCPUs of one VM.
    pub vcpus: u32,
    pub device: String,
    pub policy: &'static str,
    pub host: HostSetup,
    /// Do its threads write and read large files whole? Which of these a window has is
    /// chance: the baseline's next window differs by a tenth and more.
    pub whole_files: bool,
    /// Not measured, and after it what is.
    pub settle: Nanos,
    pub measured: Nanos,
}

impl Load {
    /// What the host's work costs: the defaults, without a pass over all reads at
    /// each poll. Ours counts a read when it comes, which is charged; the paper's
    /// parses its trace at each poll, which vio-interval charges.
    pub fn costs() -> HostCosts {
        HostCosts { poll_event: Nanos::ZERO, ..HostCosts::default() }
    }

    /// VMs on the paper's array under noop, measured for `millis` after two of the
    /// paper's intervals, unless the run is shrunk.
    pub fn new(name: impl Into<String>, vms: Vec<Vm>, millis: u64, options: &Options) -> Load {
        let shrunk = |millis: u64| millis / options.shrink.max(1);
        Load {
            name: name.into(),
            vms,
            judged: "",
            sequential: false,
            vcpus: 1,
            device: ARRAY.into(),
            policy: "noop",
            host: HostSetup { cache_bytes: 2 << 30, costs: Load::costs() },
            whole_files: false,
            settle: Nanos::from_millis(shrunk(SETTLE_MS)),
            measured: Nanos::from_millis(shrunk(millis).max(MEASURED_MIN_MS)),
        }
    }

    /// The same, of which only the sequential readers are judged.
    pub fn readers(self, vcpus: u32) -> Load {
        Load { judged: "fio.read", sequential: true, vcpus, ..self }
    }

    /// The same, whose threads write and read large files whole: measured for longer.
    pub fn of_whole_files(self) -> Load {
        Load { whole_files: true, measured: self.measured.scaled(WHOLE_FILES_TIMES, 1), ..self }
    }

    /// The same a window later: beside it the baseline says how much is chance.
    pub fn later(&self) -> Load {
        let name = format!("{}, the next window", self.name);
        Load { name, settle: self.settle + self.measured, ..self.clone() }
    }

    /// The same with guests that have these keys too.
    pub fn with(mut self, keys: &str) -> Load {
        self.vms.iter_mut().for_each(|vm| vm.keys.push_str(keys));
        self
    }

    /// Name of its scenario with guests like that.
    pub fn scenario(&self, guest: Guest) -> String {
        match guest {
            Guest::Window(kib) => format!("{}, guest's window {kib} KiB", self.name),
            Guest::Direct => format!("{}, guest's read-ahead off", self.name),
        }
    }

    /// The load in one of the ways.
    pub fn cell(&self, column: Column) -> Cell {
        let vm = |(n, vm): (usize, &Vm)| vm.spec(n + 1, column.guest);
        let vms = self.vms.iter().enumerate().map(vm).collect();
        let scenario = Scenario::new(self.scenario(column.guest), vms, &self.device);
        let scenario =
            Scenario { host: self.host, ..scenario.measured(self.settle, self.measured) };
        let prefetch = column.prefetch.map(String::from);
        let cell = Cell::new(Arc::new(scenario), self.policy);
        Cell { bare: prefetch.is_none(), prefetch, ..cell }
    }
}

/// The loads in each of some ways, and the baseline once more of those of whole files.
pub(super) fn cells(loads: &[Load], columns: &[Column]) -> Vec<Cell> {
    let each = loads.iter().flat_map(|load| columns.iter().map(|&column| load.cell(column)));
    let later = loads.iter().filter(|load| load.whole_files).map(|load| load.later().cell(BASE));
    each.chain(later).collect()
}

/// A sequential reader's job: 64 KiB at a time, in `jobs` processes with a file
/// each. The paper's files have 1 GB and end; these are in one piece, and so
/// large that no run comes to read one twice, from a cache.
pub(super) fn sequential(jobs: usize) -> String {
    sequential_of("4GiB", jobs)
}

/// The same of files of this size.
pub(super) fn sequential_of(size: &str, jobs: usize) -> String {
    format!("fio:rw=read,bs=64KiB,size={size},io_size=1TiB,numjobs={jobs}")
}

/// Processes that read and write 64 KiB at random, half and half, in files of
/// 1 GB, as the paper's.
pub(super) fn random(jobs: usize) -> String {
    format!("fio:rw=randrw,rwmixread=50,bs=64KiB,size=1GiB,io_size=1TiB,numjobs={jobs}")
}

/// The paper's VM for one process: 1 vCPU, 512 MB.
pub(super) fn small_vm(app: String) -> Vm {
    Vm { keys: "image=8GiB,ram=512MiB,vcpus=1,tags=true".into(), apps: vec![app] }
}

/// The paper's VM for several processes: 12 vCPUs, 6 GB.
pub(super) fn large_vm(apps: Vec<String>) -> Vm {
    Vm { keys: "image=64GiB,ram=6GiB,vcpus=12,tags=true".into(), apps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_policy::prefetchers;

    #[test]
    fn what_is_called_the_papers_is_literal_and_nothing_else_is() {
        for column in SEQUENTIAL.iter().chain(&BUFFERED) {
            assert_eq!(column.name.contains("paper"), column.is_literal(), "{}", column.name);
            prefetchers::build(column.prefetch.expect("a cache")).expect("it can be built");
        }
    }
}
