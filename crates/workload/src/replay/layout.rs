//! Which VM gets a volume's requests, and where on its disk.

use super::{Layout, REPLAY_VMS_MAX, ReplayOptions};
use crate::VmDisk;
use crate::traces::{Record, SECTORS_MAX, Scan, TraceError, stem};
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Lba, Sectors};
use std::collections::HashMap;

/// Volumes that share a disk begin at multiples of this (1 MiB).
const VOLUME_ALIGN: u64 = 2048;
/// The most processes that get a tag, over all VMs.
const TAGS_MAX: usize = 1 << 16;

const CHANGED: &str = "a file must not change between scan and replay";

/// Maps volumes to VMs.
pub(super) struct Placement {
    /// By volume: the VM and the volume's first sector there.
    seats: Vec<Option<Seat>>,
    capacities: Vec<u64>,
    /// Requests beyond the end of a disk wrap into it.
    wraps: bool,
}

#[derive(Clone, Copy)]
struct Seat {
    vm: u16,
    base: u64,
}

/// The VMs' disks, and the way there.
pub(super) fn place(
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
    (disks, Placement { seats, capacities, wraps: options.capacity.is_some() })
}

impl Placement {
    /// Requests that VM `vm` will get, by the scan.
    pub(super) fn requests_of(&self, vm: usize, scan: &Scan) -> u64 {
        let seated = self.seats.iter().zip(&scan.volumes);
        let own = seated.filter(|(seat, _)| seat.is_some_and(|s| usize::from(s.vm) == vm));
        own.map(|(_, volume)| volume.stats.ops.total()).sum()
    }

    /// Rewrites `record`'s extent for its VM's disk: the VM, `None` if its volume is none.
    pub(super) fn map(&self, record: &mut Record) -> Result<Option<u16>, String> {
        let Some(seat) = self.seats.get(record.volume as usize) else {
            return Err(format!("the trace has a volume more than before: {CHANGED}"));
        };
        let Some(Seat { vm, base }) = *seat else { return Ok(None) };
        if record.op == Op::Flush {
            return Ok(Some(vm));
        }
        let capacity = self.capacities[usize::from(vm)];
        let (start, len) = (record.start.get() + base, record.len.get());
        record.start = Lba::new(start);
        if start + len <= capacity {
            return Ok(Some(vm));
        }
        if !self.wraps || capacity == 0 {
            let end = start + len;
            return Err(format!(
                "a request ends at sector {end} of a disk of {capacity}: {CHANGED}"
            ));
        }
        let len = len.min(capacity);
        record.start = Lba::new(start % (capacity - len + 1));
        record.len = Sectors::new(len);
        Ok(Some(vm))
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
