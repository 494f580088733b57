//! Where each VM's disk lies on the device.

use seekway_policy::request::Extent;
use seekway_policy::units::{Lba, Sectors};
use seekway_workload::VmDisk;

/// How the disks of several VMs are placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// One after the other from this sector on, as a host's file system lays
    /// out images on a fresh disk.
    Packed(Lba),
    /// At even distances over the whole device.
    Spread,
    /// Every VM at sector zero: its addresses are the device's own.
    Identity,
    /// Each VM at the sector given, in the order of the VMs.
    At(Vec<Lba>),
}

/// Images start at multiples of this: 1 MiB, as partitioning tools align.
const ALIGN_SECTORS: u64 = 2048;

/// The regions of all VMs on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    regions: Vec<Extent>,
}

/// A placement that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A VM would reach past the end of the device.
    #[error(
        "VM {vm}: its disk would end at sector {end}, the device has {capacity}; \
         place it elsewhere, choose a larger device, or give traces a smaller --capacity"
    )]
    TooLarge {
        vm: String,
        /// Where its disk would end.
        end: u64,
        /// Sectors of the device.
        capacity: u64,
    },
    /// Two VMs would share sectors.
    #[error("VM {a} and VM {b} would overlap on the device (sectors {from} to {to})")]
    Overlap {
        a: String,
        b: String,
        /// First sector of the device that both would have.
        from: u64,
        /// Sector after the last shared one.
        to: u64,
    },
    /// The number of places is not that of the VMs.
    #[error("{places} places were given for {vms} VMs")]
    Count {
        /// How many places [`Placement::At`] has.
        places: usize,
        /// How many VMs' disks are to be placed.
        vms: usize,
    },
}

impl Layout {
    /// Place `disks` on a device of `capacity` sectors. Only
    /// [`Placement::Identity`] may overlap.
    pub fn place(
        disks: &[VmDisk],
        capacity: Sectors,
        placement: &Placement,
    ) -> Result<Layout, LayoutError> {
        let starts = starts(disks, capacity, placement)?;
        let mut regions = Vec::with_capacity(disks.len());
        for (disk, start) in disks.iter().zip(starts) {
            let region = Extent::new(start, Sectors::new(disk.capacity.get().max(1)));
            let end = region.map_or(u64::MAX, |r| r.end().get());
            let fits = region.filter(|_| end <= capacity.get());
            regions.push(fits.ok_or_else(|| LayoutError::TooLarge {
                vm: disk.name.clone(),
                end,
                capacity: capacity.get(),
            })?);
        }
        if *placement != Placement::Identity {
            check_disjoint(disks, &regions)?;
        }
        Ok(Layout { regions })
    }

    /// The region of VM `vm`.
    pub fn region(&self, vm: usize) -> Extent {
        self.regions[vm]
    }

    /// The layout of some of the VMs, where they lie among the others.
    pub fn slice(&self, vms: std::ops::Range<usize>) -> Layout {
        Layout { regions: self.regions[vms].to_vec() }
    }

    /// With so many VMs that never do any I/O behind the others.
    pub fn with_idle(mut self, count: usize) -> Layout {
        let Some(first) = self.regions.first().copied() else { return self };
        self.regions.resize(self.regions.len() + count, first);
        self
    }

    /// Number of VMs that have a region, idle ones included.
    pub fn len(&self) -> usize {
        self.regions.len()
    }
    /// No VM is placed.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// A VM's own address on the device. `None` when it lies outside its disk.
    pub fn map(&self, vm: usize, start: Lba, len: Sectors) -> Option<Extent> {
        let region = self.regions.get(vm)?;
        let end = start.get().checked_add(len.get())?;
        if end > region.len().get() {
            return None;
        }
        Extent::new(region.start() + Sectors::new(start.get()), len)
    }

    /// The inverse of [`Layout::map`], for an extent of the VM's region.
    pub fn unmap(&self, vm: usize, extent: Extent) -> Extent {
        let start = extent.start().distance(self.regions[vm].start());
        Extent::new(Lba::new(start.get()), extent.len()).expect("it is as long as before")
    }
}

fn starts(
    disks: &[VmDisk],
    capacity: Sectors,
    placement: &Placement,
) -> Result<Vec<Lba>, LayoutError> {
    Ok(match placement {
        Placement::Packed(from) => {
            let mut next = from.get();
            let place = |disk: &VmDisk| {
                let start = next.next_multiple_of(ALIGN_SECTORS);
                next = start.saturating_add(disk.capacity.get());
                Lba::new(start)
            };
            disks.iter().map(place).collect()
        }
        Placement::Spread => {
            let share = capacity.get() / disks.len().max(1) as u64;
            let at = |n: usize| Lba::new(share * n as u64 / ALIGN_SECTORS * ALIGN_SECTORS);
            (0..disks.len()).map(at).collect()
        }
        Placement::Identity => vec![Lba::ZERO; disks.len()],
        Placement::At(places) if places.len() == disks.len() => places.clone(),
        Placement::At(places) => {
            return Err(LayoutError::Count { places: places.len(), vms: disks.len() });
        }
    })
}

fn check_disjoint(disks: &[VmDisk], regions: &[Extent]) -> Result<(), LayoutError> {
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_by_key(|&n| regions[n].start());
    for pair in order.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        if regions[a].overlaps(regions[b]) {
            return Err(LayoutError::Overlap {
                a: disks[a].name.clone(),
                b: disks[b].name.clone(),
                from: regions[b].start().get(),
                to: regions[a].end().min(regions[b].end()).get(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(sizes: &[u64]) -> Vec<VmDisk> {
        let disk = |(n, &size)| VmDisk { name: format!("vm{n}"), capacity: Sectors::new(size) };
        sizes.iter().enumerate().map(disk).collect()
    }

    fn check(sizes: &[u64], placement: Placement) -> Result<Vec<u64>, String> {
        let layout = Layout::place(&disks(sizes), Sectors::new(100_000), &placement);
        let starts = |l: Layout| l.regions.iter().map(|r| r.start().get()).collect();
        layout.map(starts).map_err(|e| e.to_string())
    }

    #[test]
    fn placements() {
        assert_eq!(check(&[5_000, 10], Placement::Packed(Lba::new(1))).unwrap(), [2048, 8192]);
        assert_eq!(check(&[5, 5], Placement::Spread).unwrap(), [0, 49_152]);
        assert_eq!(check(&[90_000, 90_000], Placement::Identity).unwrap(), [0, 0]);
        let at = |places: &[u64]| Placement::At(places.iter().map(|&p| Lba::new(p)).collect());
        assert!(check(&[50, 50], at(&[0, 49])).unwrap_err().contains("vm0 and VM vm1"));
        assert!(check(&[50, 50], at(&[0])).unwrap_err().contains("1 places"));
        assert!(
            check(&[99_999], Placement::Packed(Lba::new(9))).unwrap_err().contains("the device")
        );
    }

    #[test]
    fn requests_stay_inside_their_disk() {
        let layout =
            Layout::place(&disks(&[100, 100]), Sectors::new(100_000), &Placement::Spread).unwrap();
        let map = |start, len| layout.map(1, Lba::new(start), Sectors::new(len));
        assert_eq!(map(92, 8).unwrap().start().get(), 49_152 + 92);
        assert_eq!(map(93, 8), None);
        assert_eq!(map(u64::MAX, 8), None);
    }
}
