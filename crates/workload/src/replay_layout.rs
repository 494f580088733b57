//! Which VM gets a volume's requests, and where on its disk.

use super::{Layout, Overrun, REPLAY_VMS_MAX, ReplayOptions};
use crate::VmDisk;
use crate::traces::{Record, SECTORS_MAX, Scan, TraceError, stem};
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Lba, Sectors};
use std::collections::HashMap;

/// Volumes that share a disk begin at multiples of this (1 MiB).
const VOLUME_ALIGN: u64 = 2048;
/// The most processes that get a tag, over all VMs.
const TAGS_MAX: usize = 1 << 16;

/// Maps volumes to VMs.
pub(super) struct Placement {
    /// By volume: the VM and the volume's first sector there.
    seats: Vec<Option<Seat>>,
    capacities: Vec<u64>,
    overrun: Overrun,
}

#[derive(Clone, Copy)]
struct Seat {
    vm: u16,
    base: u64,
}

/// Where a request has gone.
pub(super) enum Mapped {
    /// To this VM; its extent has been rewritten.
    To {
        vm: u16,
        /// It had to be moved to fit.
        wrapped: bool,
    },
    /// Its volume is no VM.
    Dropped,
}

/// The VMs' disks, and the way there.
pub(super) fn place(
    path: &str,
    scanned: Option<&Scan>,
    options: &ReplayOptions,
) -> Result<(Vec<VmDisk>, Placement), TraceError> {
    let placed = match (scanned, options.layout) {
        (Some(scan), Layout::OneVm) => one_vm(path, scan, options),
        (Some(scan), Layout::Split { vms_max }) => Ok(split(scan, vms_max, options)),
        (None, Layout::OneVm) => stream(path, options),
        (None, Layout::Split { .. }) => {
            Err("a stream cannot be split by volumes, for they are not known beforehand: save it to a file first".into())
        }
    };
    placed.map_err(|problem| TraceError::Replay { path: path.into(), problem })
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

/// Without a scan: the first volume is the VM, a second one an error.
fn stream(path: &str, options: &ReplayOptions) -> Result<Placed, String> {
    let Some(capacity) = options.capacity else {
        return Err("a stream cannot be scanned for the disk's size: give a capacity".into());
    };
    let disk = VmDisk { name: stem(path), capacity };
    Ok(assemble(vec![Some(Seat { vm: 0, base: 0 })], vec![disk], options))
}

fn assemble(seats: Vec<Option<Seat>>, disks: Vec<VmDisk>, options: &ReplayOptions) -> Placed {
    let capacities = disks.iter().map(|disk| disk.capacity.get()).collect();
    (disks, Placement { seats, capacities, overrun: options.overrun })
}

impl Placement {
    /// Requests that VM `vm` will get, by the scan.
    pub(super) fn requests_of(&self, vm: usize, scan: &Scan) -> u64 {
        let seated = self.seats.iter().zip(&scan.volumes);
        let own = seated.filter(|(seat, _)| seat.is_some_and(|s| usize::from(s.vm) == vm));
        own.map(|(_, volume)| volume.stats.ops.total()).sum()
    }

    /// Rewrite `record`'s extent for its VM's disk.
    pub(super) fn map(&self, record: &mut Record) -> Result<Mapped, String> {
        let Some(seat) = self.seats.get(record.volume as usize) else {
            return Err("the trace has a volume more than expected: a stream can have only one, \
                        and a file must not change between scan and replay"
                .into());
        };
        let Some(Seat { vm, base }) = *seat else { return Ok(Mapped::Dropped) };
        if record.op == Op::Flush {
            return Ok(Mapped::To { vm, wrapped: false });
        }
        let capacity = self.capacities[usize::from(vm)];
        let (start, len) = (record.start.get() + base, record.len.get());
        record.start = Lba::new(start);
        if start + len <= capacity {
            return Ok(Mapped::To { vm, wrapped: false });
        }
        if self.overrun == Overrun::Fail || capacity == 0 {
            return Err(format!(
                "a request ends at sector {} of a disk of {capacity}: give a larger capacity, or wrap",
                start + len
            ));
        }
        let len = len.min(capacity);
        record.start = Lba::new(start % (capacity - len + 1));
        record.len = Sectors::new(len);
        Ok(Mapped::To { vm, wrapped: true })
    }
}

/// Gives each process of a VM a tag, in the order of their first requests.
pub(super) struct Tags {
    tags: HashMap<(u16, u32), ProcessTag>,
    /// By VM: tags given.
    given: Vec<u16>,
}

impl Tags {
    /// With no tags given yet, for a replay of `vms` VMs.
    pub(super) fn new(vms: usize) -> Self {
        Tags { tags: HashMap::new(), given: vec![0; vms] }
    }

    /// The tag of `process`; `None` for process zero ("unknown"), and when
    /// all tags are given away.
    pub(super) fn tag(&mut self, vm: u16, process: u32) -> Option<ProcessTag> {
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
