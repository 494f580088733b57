//! Where each VM's disk lies on the device.

use crate::host_fs::HostFs;
use seekway_core::request::Extent;
use seekway_core::units::{Lba, Sectors};
use seekway_stack::stack::Map;
use seekway_workload::VmDisk;

/// Placement of the VMs' disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// One after the other from this sector on, as a host's file system lays
    /// out images on a fresh disk.
    Packed(Lba),
    /// As files of an ext3 over the whole device, one after the other from this sector on, with
    /// the journal in the middle of the device. The file system asks for writes of its own.
    Ext3(Lba),
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
    places: Vec<Place>,
    /// The file system that the VMs' images are files of, if they are.
    host_fs: Option<HostFs>,
}

/// Where one VM's disk lies.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    /// From its first sector on the device to its last, with everything between them.
    region: Extent,
    capacity: Sectors,
    map: Map,
}

impl Place {
    fn linear(region: Extent) -> Place {
        let map = Map::linear(region.start(), region.len());
        Place { region, capacity: region.len(), map }
    }
}

/// A placement that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A VM would reach past the end of the device.
    #[error(
        "VM {vm}: its disk would end at {}, the device has {}; \
         place it elsewhere, choose a larger device, or give traces a smaller --capacity (compare, \
         predict)",
        gib(*end),
        gib(*capacity)
    )]
    TooLarge {
        vm: String,
        /// Where its disk would end, in sectors.
        end: u64,
        /// Sectors of the device.
        capacity: u64,
    },
    /// The host's file system is full before a VM's image is whole.
    #[error(
        "VM {vm}: the file system on the device of {} has no room for its image of {}; choose a \
         larger device, or give traces a smaller --capacity (compare, predict)",
        gib(*capacity),
        gib(*len)
    )]
    Full {
        vm: String,
        /// Sectors of the image.
        len: u64,
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
    /// The number of offsets is not that of the VMs.
    #[error("{places} places were given for {vms} VMs")]
    Count {
        /// Number of offsets in [`Placement::At`].
        places: usize,
        /// Number of VMs whose disks are to be placed.
        vms: usize,
    },
}

/// A size in sectors, as people give it; small ones to the sector.
fn gib(sectors: u64) -> String {
    const GIB_SECTORS: u64 = 1 << 21;
    match sectors {
        0..GIB_SECTORS => format!("{sectors} sectors"),
        _ => format!("{:.1} GiB", sectors as f64 / GIB_SECTORS as f64),
    }
}

impl Layout {
    /// Places `disks` on a device of `capacity` sectors. Only [`Placement::Identity`] may overlap.
    pub fn place(
        disks: &[VmDisk],
        capacity: Sectors,
        placement: &Placement,
    ) -> Result<Layout, LayoutError> {
        if let Placement::Ext3(from) = placement {
            return on_ext3(disks, capacity, *from);
        }
        let too_large = |disk: &VmDisk, end| LayoutError::TooLarge {
            vm: disk.name.clone(),
            end,
            capacity: capacity.get(),
        };
        let starts = starts(disks, capacity, placement)?;
        let mut places = Vec::with_capacity(disks.len());
        for (disk, start) in disks.iter().zip(starts) {
            let region = Extent::new(start, Sectors::new(disk.capacity.get().max(1)));
            let end = region.map_or(u64::MAX, |r| r.end().get());
            let fits = region.filter(|_| end <= capacity.get());
            places.push(Place::linear(fits.ok_or_else(|| too_large(disk, end))?));
        }
        if *placement != Placement::Identity {
            check_disjoint(disks, &places)?;
        }
        Ok(Layout { places, host_fs: None })
    }

    /// The region of VM `vm`, with everything between the parts of its image, if it is in parts.
    pub fn region(&self, vm: usize) -> Extent {
        self.places[vm].region
    }

    /// Sectors of the disk of VM `vm`.
    pub fn capacity(&self, vm: usize) -> Sectors {
        self.places[vm].capacity
    }

    /// Where the sectors of the disk of VM `vm` lie.
    pub fn device_map(&self, vm: usize) -> &Map {
        &self.places[vm].map
    }

    /// The layout of some of the VMs, where they lie among the others.
    pub fn slice(&self, vms: std::ops::Range<usize>) -> Layout {
        Layout { places: self.places[vms].to_vec(), host_fs: self.host_fs.clone() }
    }

    /// `copies` of each VM, all where the first is.
    pub(crate) fn repeated(self, copies: usize) -> Layout {
        let places = vec![self.places; copies].concat();
        Layout { places, ..self }
    }

    /// Adds `count` VMs that never do any I/O behind the others.
    pub fn with_idle(mut self, count: usize) -> Layout {
        let Some(first) = self.places.first().cloned() else { return self };
        self.places.resize(self.places.len() + count, first);
        self
    }

    /// The file system that the VMs' images are files of, if they are.
    pub(crate) fn host_fs(&self) -> Option<&HostFs> {
        self.host_fs.as_ref()
    }

    /// Adds the whole device as one more disk, for the host's own requests.
    pub(crate) fn with_host(mut self, capacity: Sectors) -> Layout {
        let whole = Extent::new(Lba::ZERO, capacity).expect("a device has sectors");
        self.places.push(Place::linear(whole));
        self
    }

    /// Number of VMs that have a region, idle ones included.
    pub fn len(&self) -> usize {
        self.places.len()
    }
    /// No VM is placed.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The first part of an extent of a VM's disk, on the device. `None` when the extent lies
    /// outside the disk.
    pub fn map(&self, vm: usize, start: Lba, len: Sectors) -> Option<Extent> {
        let place = self.places.get(vm)?;
        let end = start.get().checked_add(len.get())?;
        (end <= place.capacity.get() && len > Sectors::new(0)).then(|| place.map.piece(start, len))
    }
}

/// Images as files of the host's ext3, one after the other.
fn on_ext3(disks: &[VmDisk], capacity: Sectors, from: Lba) -> Result<Layout, LayoutError> {
    let mut fs = HostFs::new(capacity, from.get());
    let mut places = Vec::with_capacity(disks.len());
    for disk in disks {
        let len = disk.capacity.get().max(1);
        let place = fs.write(len).and_then(|image| {
            let (start, end) = (image.span.start, image.span.end);
            Some(Place {
                region: Extent::new(Lba::new(start), Sectors::new(end - start))?,
                capacity: Sectors::new(len),
                map: Map::of_extents(&image.extents, Lba::ZERO, Sectors::new(len), capacity)?,
            })
        });
        let full = || LayoutError::Full { vm: disk.name.clone(), len, capacity: capacity.get() };
        places.push(place.ok_or_else(full)?);
    }
    Ok(Layout { places, host_fs: Some(fs) })
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
        Placement::Ext3(_) => unreachable!("a file system places them"),
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

fn check_disjoint(disks: &[VmDisk], places: &[Place]) -> Result<(), LayoutError> {
    let regions: Vec<Extent> = places.iter().map(|place| place.region).collect();
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
        let starts = |l: Layout| l.places.iter().map(|p| p.region.start().get()).collect();
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
