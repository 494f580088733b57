//! Replaying a trace as a [`Source`].
//!
//! **Open loop** ([`Pace::Timed`]): every request is issued at its own time,
//! whether earlier ones are done or not, as the trace's users did. **Closed
//! loop** ([`Pace::Outstanding`]): times are ignored; each VM keeps a fixed number of requests
//! outstanding, the next one issued as soon as one is done.
//!
//! The trace is streamed, or in memory already. In the closed loop with several VMs, requests of
//! VMs that have enough outstanding wait in memory, at most
//! [`HELD_RECORDS_MAX`] of them; when that is full, VMs whose requests lie
//! further on in the trace wait too.

use crate::traces::{Kept, Record, SECTORS_MAX, Scan, TraceError, TraceOptions, TraceReader, stem};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

/// Requests that wait in memory in the closed loop (10 MiB).
pub const HELD_RECORDS_MAX: usize = 1 << 18;
/// The most VMs that one trace is split into.
pub const REPLAY_VMS_MAX: usize = 4096;
/// Requests that one poll issues at most; the rest is due at once again.
const POLL_ISSUES_MAX: usize = 4096;

/// Factor by which time passes more slowly than in the trace: 2 is half the speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeScale {
    millionths: u64,
}

impl TimeScale {
    /// As fast as in the trace.
    pub const ONE: TimeScale = TimeScale { millionths: 1_000_000 };

    /// `factor` from 0.000001 to 1,000,000, else `None`.
    pub fn new(factor: f64) -> Option<TimeScale> {
        let millionths = (factor * 1e6).round();
        (1.0..=1e12).contains(&millionths).then_some(TimeScale { millionths: millionths as u64 })
    }

    /// 2 is half the speed.
    pub fn factor(self) -> f64 {
        self.millionths as f64 / 1e6
    }

    /// A time of the trace as it is in the replay.
    pub const fn apply(self, at: Nanos) -> Nanos {
        at.scaled(self.millionths, 1_000_000)
    }
}

/// When requests are issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Open loop, at the trace's own times multiplied by the scale.
    Timed {
        /// Two is twice as slow as the trace.
        time_scale: TimeScale,
        /// Most requests outstanding of all VMs; the clock's requests wait for a slot, as in a
        /// guest whose queues are full.
        outstanding_max: u32,
    },
    /// Closed loop: the next request is issued as soon as one is done.
    Outstanding {
        /// Per VM; zero counts as one.
        per_vm: u32,
    },
}

/// Mapping of a trace's volumes to VMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One VM, its disk the volumes one after the other.
    OneVm,
    /// A VM for each volume.
    Split {
        /// Number of VMs: the volumes with the most requests are kept, and requests of the others
        /// are dropped. At most [`REPLAY_VMS_MAX`].
        vms_max: usize,
    },
}

/// Options for replaying a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayOptions {
    /// Options for reading it, limits included.
    pub trace: TraceOptions,
    /// When requests are issued.
    pub pace: Pace,
    /// Which VMs there are.
    pub layout: Layout,
    /// The VM's capacity, if the disk has a size of its own. With [`Layout::Split`]: of every
    /// VM. Requests that end behind it are moved into the disk (start modulo capacity).
    pub capacity: Option<Sectors>,
    /// Millionths of the trace's time and of each disk's addresses by which the replay begins
    /// later; what lies before follows at the end. Only of a trace that is in memory.
    pub turn_millionths: u32,
}

impl Default for ReplayOptions {
    /// Open loop at the trace's speed, one VM.
    fn default() -> Self {
        ReplayOptions {
            trace: TraceOptions::default(),
            pace: Pace::Timed { time_scale: TimeScale::ONE, outstanding_max: 16_384 },
            layout: Layout::OneVm,
            capacity: None,
            turn_millionths: 0,
        }
    }
}

/// A trace as a load on VMs.
pub struct TraceSource {
    records: Records,
    pace: Pace,
    disks: Vec<VmDisk>,
    placement: Placement,
    tags: Tags,
    vms: Vec<Vm>,
    /// The request that the open loop issues next.
    next: Option<Due>,
    /// Nothing more is wanted from the reader.
    drained: bool,
    started: bool,
    outstanding: u64,
    /// Requests that the VMs will still get.
    left: u64,
    /// VMs that may issue, want to and have nothing held (closed loop).
    hungry: usize,
    held: usize,
    /// VMs with new credit since the last poll.
    ready: Vec<u16>,
    /// Requests handed to the engine, of all VMs together.
    issued: u64,
}

/// Where requests come from.
enum Records {
    /// Boxed: far larger than the other.
    Read(Box<TraceReader>),
    Kept {
        path: String,
        kept: Arc<Kept>,
        next: usize,
        turn: Turn,
    },
}

/// Where the replay of a kept trace begins.
struct Turn {
    /// Number of the request.
    first: usize,
    /// Its time.
    from: Nanos,
    /// Time after which the trace begins again: its span and a mean gap.
    period: Nanos,
}

impl Turn {
    fn new(kept: &Kept, span: Nanos, millionths: u32) -> Turn {
        let gap = span.get() / (kept.len() as u64).saturating_sub(1).max(1);
        let period = span + Nanos::new(gap);
        let first = kept.first_at(period.scaled(millionths.into(), 1_000_000));
        // After the last request the trace begins as it is.
        let first = if first < kept.len() { first } else { 0 };
        Turn { first, from: kept.get(first).map_or(Nanos::ZERO, |record| record.at), period }
    }

    /// Request `n` from the beginning of the replay on.
    fn get(&self, kept: &Kept, n: usize) -> Option<Record> {
        if n >= kept.len() {
            return None;
        }
        let number = (self.first + n) % kept.len();
        let record = kept.get(number)?;
        let at = if number < self.first { record.at + self.period } else { record.at };
        Some(Record { at: at.saturating_sub(self.from), ..record })
    }
}

impl Records {
    fn path(&self) -> &str {
        match self {
            Records::Read(reader) => reader.path(),
            Records::Kept { path, .. } => path,
        }
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        match self {
            Records::Read(reader) => reader.next_record(),
            Records::Kept { kept, next, turn, .. } => {
                *next += 1;
                Ok(turn.get(kept, *next - 1))
            }
        }
    }
}

struct Due {
    at: Instant,
    vm: u16,
    record: Record,
}

/// One VM's side of the replay.
struct Vm {
    /// Requests not yet drawn from the trace.
    left: u64,
    /// Requests that it may issue now (closed loop).
    credit: u32,
    held: VecDeque<Record>,
    hungry: bool,
    outstanding: u64,
    bytes: u64,
    last_done: Option<Instant>,
}

impl Vm {
    fn wants_more(&self) -> bool {
        self.credit > 0 && self.held.is_empty() && self.left > 0
    }
}

impl TraceSource {
    /// Replays the trace at `path`, of which [`scan`] and [`keep`] under the same options found
    /// this.
    ///
    /// [`scan`]: crate::traces::scan
    /// [`keep`]: crate::traces::keep
    pub fn with_scan(
        path: &Path,
        scanned: &Scan,
        kept: Option<&Arc<Kept>>,
        options: &ReplayOptions,
    ) -> Result<TraceSource, TraceError> {
        let shown = path.display().to_string();
        let records = match kept {
            Some(kept) => {
                let turn = Turn::new(kept, scanned.stats.duration, options.turn_millionths);
                Records::Kept { path: shown, kept: kept.clone(), next: 0, turn }
            }
            None => Records::Read(Box::new(TraceReader::open(path, &options.trace)?)),
        };
        let (disks, placement) = place(records.path(), scanned, options)?;
        let credit = match options.pace {
            Pace::Outstanding { per_vm } => per_vm.max(1),
            Pace::Timed { .. } => 0,
        };
        let vm = |vm: usize| Vm {
            left: placement.requests_of(vm, scanned),
            credit,
            held: VecDeque::new(),
            hungry: false,
            outstanding: 0,
            bytes: 0,
            last_done: None,
        };
        let vms: Vec<Vm> = (0..disks.len()).map(vm).collect();
        if let Pace::Timed { .. } = options.pace
            && scanned.stats.duration == Nanos::ZERO
            && scanned.stats.requests() > 1
        {
            let problem =
                "all requests have the same time: replay it in a closed loop (--outstanding N)";
            return Err(TraceError::Replay {
                path: records.path().into(),
                problem: problem.into(),
            });
        }
        let mut source = TraceSource {
            records,
            pace: options.pace,
            left: vms.iter().map(|vm| vm.left).sum(),
            hungry: 0,
            tags: Tags::new(vms.len()),
            vms,
            disks,
            placement,
            next: None,
            drained: false,
            started: false,
            outstanding: 0,
            held: 0,
            ready: Vec::new(),
            issued: 0,
        };
        (0..source.vms.len()).for_each(|vm| source.count_hungry(vm));
        Ok(source)
    }

    /// Updates the number of VMs that want more requests after VM `index` has changed.
    fn count_hungry(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        let hungry = vm.wants_more();
        match (vm.hungry, hungry) {
            (false, true) => self.hungry += 1,
            (true, false) => self.hungry -= 1,
            _ => {}
        }
        vm.hungry = hungry;
    }

    /// The next request that belongs to a VM.
    fn draw(&mut self) -> Result<Option<(u16, Record)>, SourceError> {
        while !self.drained {
            let Some(mut record) =
                self.records.next_record().map_err(|e| SourceError(e.to_string()))?
            else {
                self.drained = true;
                break;
            };
            match self.placement.map(&mut record) {
                Ok(Some(vm)) => {
                    let side = &mut self.vms[usize::from(vm)];
                    side.left = side.left.saturating_sub(1);
                    self.left = self.left.saturating_sub(1);
                    self.drained = self.left == 0;
                    return Ok(Some((vm, record)));
                }
                Ok(None) => {}
                Err(problem) => {
                    return Err(SourceError(format!("{}: {problem}", self.records.path())));
                }
            }
        }
        Ok(None)
    }

    fn issue(&mut self, vm: u16, record: Record) -> Issue {
        let side = &mut self.vms[usize::from(vm)];
        side.outstanding += 1;
        if record.op.is_data() {
            side.bytes += record.len.bytes();
        }
        self.outstanding += 1;
        // Sixteen bits of VM above forty-eight of a serial number.
        let token = u64::from(vm) << 48 | self.issued & 0xffff_ffff_ffff;
        self.issued += 1;
        Issue {
            token,
            vm,
            tag: self.tags.tag(vm, record.process),
            op: record.op,
            sync: record.sync,
            start: record.start,
            len: if record.op == Op::Flush { Sectors::new(1) } else { record.len },
        }
    }

    fn poll_timed(
        &mut self,
        now: Instant,
        scale: TimeScale,
        outstanding_max: u32,
        out: &mut Vec<Issue>,
    ) -> Result<(), SourceError> {
        let mut issued = 0;
        loop {
            if self.next.is_none() {
                let due = |(vm, record): (u16, Record)| Due {
                    at: Instant::ZERO + scale.apply(record.at),
                    vm,
                    record,
                };
                self.next = self.draw()?.map(due);
            }
            let Some(due) = self.next.take_if(|due| due.at <= now && issued < POLL_ISSUES_MAX)
            else {
                return Ok(());
            };
            if self.outstanding >= u64::from(outstanding_max.max(1)) {
                self.next = Some(due);
                return Ok(());
            }
            let issue = self.issue(due.vm, due.record);
            out.push(issue);
            issued += 1;
        }
    }

    fn poll_closed(&mut self, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        for vm in std::mem::take(&mut self.ready) {
            let index = usize::from(vm);
            while self.vms[index].credit > 0
                && let Some(record) = self.vms[index].held.pop_front()
            {
                self.held -= 1;
                self.vms[index].credit -= 1;
                let issue = self.issue(vm, record);
                out.push(issue);
            }
            self.count_hungry(index);
        }
        while self.hungry > 0 {
            if self.held >= HELD_RECORDS_MAX {
                break;
            }
            let Some((vm, record)) = self.draw()? else { break };
            let index = usize::from(vm);
            let side = &mut self.vms[index];
            if side.credit > 0 && side.held.is_empty() {
                side.credit -= 1;
                let issue = self.issue(vm, record);
                out.push(issue);
            } else {
                side.held.push_back(record);
                self.held += 1;
            }
            self.count_hungry(index);
        }
        Ok(())
    }
}

impl Source for TraceSource {
    fn vms(&self) -> &[VmDisk] {
        &self.disks
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        self.started = true;
        match self.pace {
            Pace::Timed { time_scale, outstanding_max } => {
                self.poll_timed(now, time_scale, outstanding_max, out)
            }
            Pace::Outstanding { .. } => self.poll_closed(out),
        }
    }

    fn completed(&mut self, now: Instant, token: u64) {
        let vm = (token >> 48) as u16;
        let Some(side) = self.vms.get_mut(usize::from(vm)) else {
            debug_assert!(false, "a token that this source never issued: {token:#x}");
            return;
        };
        debug_assert!(side.outstanding > 0, "more completions than requests");
        side.outstanding = side.outstanding.saturating_sub(1);
        side.last_done = Some(now);
        self.outstanding = self.outstanding.saturating_sub(1);
        if matches!(self.pace, Pace::Outstanding { .. }) {
            side.credit += 1;
            self.ready.push(vm);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        if !self.started {
            return Some(Instant::ZERO);
        }
        match self.pace {
            Pace::Timed { outstanding_max, .. }
                if self.outstanding >= u64::from(outstanding_max.max(1)) =>
            {
                None
            }
            _ => self.next.as_ref().map(|due| due.at),
        }
    }

    fn finished(&self) -> bool {
        self.drained && self.next.is_none() && self.held == 0 && self.outstanding == 0
    }

    fn apps(&self) -> Vec<AppReport> {
        let report = |(index, vm): (usize, &Vm)| {
            let due = self.next.as_ref().is_some_and(|due| usize::from(due.vm) == index);
            let all_drawn = self.drained || vm.left == 0;
            let done = all_drawn && vm.held.is_empty() && vm.outstanding == 0 && !due;
            let finished = if done { vm.last_done } else { None };
            AppReport { vm: index as u16, name: "trace".into(), finished, bytes: vm.bytes }
        };
        self.vms.iter().enumerate().map(report).collect()
    }
}

// Which VM gets a volume's requests, and where on its disk.

/// Volumes that share a disk begin at multiples of this (1 MiB), and turns are by these.
const VOLUME_ALIGN: u64 = 2048;
/// The most processes that get a tag, over all VMs.
const TAGS_MAX: usize = 1 << 16;

const CHANGED: &str = "a file must not change between scan and replay";

/// Maps volumes to VMs.
struct Placement {
    /// By volume: the VM and the volume's first sector there.
    seats: Vec<Option<Seat>>,
    capacities: Vec<u64>,
    /// Requests beyond the end of a disk wrap into it.
    wraps: bool,
    /// See [`ReplayOptions`].
    turn_millionths: u32,
}

#[derive(Clone, Copy)]
struct Seat {
    vm: u16,
    base: u64,
}

/// The VMs' disks, and the way there.
fn place(
    path: &str,
    scan: &Scan,
    options: &ReplayOptions,
) -> Result<(Vec<VmDisk>, Placement), TraceError> {
    match options.layout {
        Layout::OneVm => one_vm(path, scan, options)
            .map_err(|problem| TraceError::Replay { path: path.into(), problem }),
        Layout::Split { vms_max } => Ok(split(scan, vms_max, options)),
    }
}

type Placed = (Vec<VmDisk>, Placement);

fn one_vm(path: &str, scan: &Scan, options: &ReplayOptions) -> Result<Placed, String> {
    let mut seats = Vec::new();
    let mut end = 0u64;
    for volume in &scan.volumes {
        let base = end.next_multiple_of(VOLUME_ALIGN);
        seats.push(Some(Seat { vm: 0, base }));
        // Both are at most 2^55: no overflow before the check.
        end = base + volume.capacity().get();
        if end > SECTORS_MAX {
            return Err("the volumes together are larger than any disk: split them into VMs".into());
        }
    }
    let name = match &scan.volumes[..] {
        [only] => only.name.clone(),
        _ => stem(path),
    };
    let capacity = options.capacity.unwrap_or(Sectors::new(end));
    Ok(assemble(seats, vec![VmDisk { name, capacity }], options))
}

fn split(scan: &Scan, vms_max: usize, options: &ReplayOptions) -> Placed {
    let vms_max = vms_max.clamp(1, REPLAY_VMS_MAX);
    let mut busiest: Vec<usize> = (0..scan.volumes.len()).collect();
    // A stable sort: of equally busy volumes those that appear first are taken.
    busiest.sort_by_key(|i| std::cmp::Reverse(scan.volumes[*i].stats.ops.total()));
    busiest.truncate(vms_max);
    busiest.sort_unstable();
    let mut seats = vec![None; scan.volumes.len()];
    let mut disks = Vec::new();
    for volume in busiest {
        seats[volume] = Some(Seat { vm: disks.len() as u16, base: 0 });
        let found = &scan.volumes[volume];
        let capacity = options.capacity.unwrap_or(found.capacity());
        disks.push(VmDisk { name: found.name.clone(), capacity });
    }
    assemble(seats, disks, options)
}

fn assemble(seats: Vec<Option<Seat>>, disks: Vec<VmDisk>, options: &ReplayOptions) -> Placed {
    let capacities = disks.iter().map(|disk| disk.capacity.get()).collect();
    let (wraps, turn_millionths) = (options.capacity.is_some(), options.turn_millionths);
    (disks, Placement { seats, capacities, wraps, turn_millionths })
}

impl Placement {
    /// Requests that VM `vm` will get, by the scan.
    fn requests_of(&self, vm: usize, scan: &Scan) -> u64 {
        let seated = self.seats.iter().zip(&scan.volumes);
        let own = seated.filter(|(seat, _)| seat.is_some_and(|s| usize::from(s.vm) == vm));
        own.map(|(_, volume)| volume.stats.ops.total()).sum()
    }

    /// Rewrites `record`'s extent for its VM's disk: the VM, `None` if its volume is none.
    fn map(&self, record: &mut Record) -> Result<Option<u16>, String> {
        let Some(seat) = self.seats.get(record.volume as usize) else {
            return Err(format!("the trace has a volume more than before: {CHANGED}"));
        };
        let Some(Seat { vm, base }) = *seat else { return Ok(None) };
        if record.op == Op::Flush {
            return Ok(Some(vm));
        }
        let capacity = self.capacities[usize::from(vm)];
        let (start, len) = (record.start.get() + base, record.len.get());
        if start + len <= capacity {
            record.start = Lba::new(self.turned(start, len, capacity));
            return Ok(Some(vm));
        }
        if !self.wraps || capacity == 0 {
            let end = start + len;
            return Err(format!(
                "a request ends at sector {end} of a disk of {capacity}: {CHANGED}"
            ));
        }
        let len = len.min(capacity);
        record.start = Lba::new(self.turned(start % (capacity - len + 1), len, capacity));
        record.len = Sectors::new(len);
        Ok(Some(vm))
    }

    /// The first sector of an extent inside a disk after the turn.
    fn turned(&self, start: u64, len: u64, capacity: u64) -> u64 {
        let units = capacity / VOLUME_ALIGN;
        if self.turn_millionths == 0 || units == 0 {
            return start;
        }
        let by = units * u64::from(self.turn_millionths) / 1_000_000 * VOLUME_ALIGN;
        ((start + by) % (units * VOLUME_ALIGN)).min(capacity - len)
    }
}

/// Gives each process of a VM a tag, in the order of their first requests.
struct Tags {
    tags: HashMap<(u16, u32), ProcessTag>,
    /// By VM: tags given.
    given: Vec<u16>,
}

impl Tags {
    /// With no tags given yet, for a replay of `vms` VMs.
    fn new(vms: usize) -> Self {
        Tags { tags: HashMap::new(), given: vec![0; vms] }
    }

    /// The tag of `process`; `None` for process zero ("unknown"), and when
    /// all tags are given away.
    fn tag(&mut self, vm: u16, process: u32) -> Option<ProcessTag> {
        if process == 0 {
            return None;
        }
        if let Some(tag) = self.tags.get(&(vm, process)) {
            return Some(*tag);
        }
        let given = self.given.get_mut(usize::from(vm))?;
        if self.tags.len() >= TAGS_MAX {
            return None;
        }
        let tag = ProcessTag::new(given.checked_add(1)?)?;
        *given += 1;
        self.tags.insert((vm, process), tag);
        Some(tag)
    }
}
