//! Which disk an image lies on, as sysfs tells.

use seekway_core::scheduler::Stripe;
use seekway_core::units::{Lba, Sectors};
use seekway_stack::dispatcher::Tags;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Devices below devices that are looked at.
const LAYERS_MAX: u32 = 8;
/// Least bytes that a segment of a command moves, on average: guests' pages may lie anywhere in the
/// host's memory, and begin and end inside one of its pages.
pub(crate) const SEGMENT_BYTES: u64 = 2048;

/// Facts about the device below an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Major and minor of the whole disk; of the file system where no disk is known.
    pub device: (u32, u32),
    /// Size of the whole disk.
    pub capacity: Option<Sectors>,
    /// Where the partition begins; the disk's first sector without partitions.
    pub start: Lba,
    /// Does it turn? False where nobody knows.
    pub rotational: bool,
    /// Its logical block size in bytes, at least 512.
    pub logical: u32,
    /// Its physical block size in bytes, at least 512.
    pub physical: u32,
    /// Layout of Linux's md with RAID 0 over drives of one size.
    pub stripe: Option<Stripe>,
    /// Tags of its queue, or of those of the drives below it.
    pub tags: Option<Tags>,
}

impl Place {
    /// The device of a number that `stat` tells.
    pub fn of(dev: u64) -> Place {
        let (major, minor) = (libc::major(dev), libc::minor(dev));
        Place::read(Path::new(&format!("/sys/dev/block/{major}:{minor}")), (major, minor))
    }

    fn read(link: &Path, device: (u32, u32)) -> Place {
        let mut place = Place {
            device,
            capacity: None,
            start: Lba::ZERO,
            rotational: false,
            logical: 512,
            physical: 512,
            stripe: None,
            tags: None,
        };
        // The link leads to the disk or, one level below it, to the partition.
        let Ok(mut folder) = fs::canonicalize(link) else { return place };
        if folder.join("partition").exists() {
            place.start = Lba::new(value(&folder, "start").unwrap_or(0));
            folder.pop();
            place.device = number(&folder).unwrap_or(device);
        }
        place.capacity = value(&folder, "size").filter(|&n| n > 0).map(Sectors::new);
        place.rotational = value(&folder, "queue/rotational") == Some(1u64) && !is_virtual(&folder);
        place.logical = value(&folder, "queue/logical_block_size").unwrap_or(512).max(512);
        place.physical = value(&folder, "queue/physical_block_size").unwrap_or(512).max(512);
        place.stripe = stripe(&folder);
        place.tags = tags(&folder, LAYERS_MAX);
        place
    }
}

/// A name of a block device that it keeps over a boot where it has one of its own, else where it
/// is attached.
pub(super) fn name(dev: u64) -> String {
    let link = format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev));
    fs::canonicalize(&link).map_or(link, |folder| name_of(&folder))
}

fn name_of(folder: &Path) -> String {
    if let (Some(number), Some(disk)) = (value::<u32>(folder, "partition"), folder.parent()) {
        return format!("{} partition {number}", name_of(disk));
    }
    let names = ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial"];
    let own = names.iter().find_map(|name| value::<String>(folder, name));
    if let Some(name) = own.filter(|name| !name.is_empty()) {
        return name;
    }
    match value::<String>(folder, "loop/backing_file") {
        // Which loop device it is, is chance.
        Some(file) => {
            let offset = value::<u64>(folder, "loop/offset").unwrap_or(0);
            format!("{file} from {offset}")
        }
        None => folder.display().to_string(),
    }
}

/// Layout of an md disk over its drives (`Documentation/admin-guide/md.rst`). Over drives of
/// different sizes its last part lies on fewer of them: that is left out.
fn stripe(folder: &Path) -> Option<Stripe> {
    let level: String = value(folder, "md/level")?;
    let members: u32 = value(folder, "md/raid_disks")?;
    let chunk_bytes: u64 = value(folder, "md/chunk_size")?;
    let drive = |n: u32| value::<u64>(folder, &format!("md/rd{n}/block/size"));
    let sizes: Option<Vec<u64>> = (0..members.min(Stripe::MEMBERS_MAX)).map(drive).collect();
    let are_alike = sizes?.windows(2).all(|pair| pair[0] == pair[1]);
    let stripe = Stripe::new(members, Sectors::from_bytes(chunk_bytes));
    stripe.filter(|_| level == "raid0" && are_alike)
}

/// The tags of a disk's queue (`Documentation/ABI/stable/sysfs-block`). A device of md or the device
/// mapper has no queue of its own: what it is given goes on at once to those below it. Of several
/// the fewest count, but md's drives work side by side.
fn tags(folder: &Path, layers: u32) -> Option<Tags> {
    if folder.join("mq").exists() {
        let longest: u64 = value(folder, "queue/max_sectors_kb")?;
        let segments: u64 = value(folder, "queue/max_segments")?;
        let sectors = Sectors::from_bytes((longest << 10).min(segments * SEGMENT_BYTES));
        return Some(Tags { count: value(folder, "queue/nr_requests")?, sectors });
    }
    let below = fs::read_dir(folder.join("slaves")).ok().filter(|_| layers > 0)?;
    let below = below.filter_map(|entry| {
        let mut folder = fs::canonicalize(entry.ok()?.path()).ok()?;
        if folder.join("partition").exists() {
            folder.pop();
        }
        tags(&folder, layers - 1)
    });
    let below: Vec<Tags> = below.collect();
    let sectors = below.iter().map(|tags| tags.sectors).min()?;
    let fewest = below.iter().map(|tags| tags.count).min()?;
    let alike = if folder.join("md").exists() { below.len() as u32 } else { 1 };
    Some(Tags { count: fewest.saturating_mul(alike), sectors })
}

/// A disk of a hypervisor or a network. Linux calls them rotational unless told
/// otherwise, and nobody tells it (`virtio_blk.c` has no such feature bit): it
/// says nothing about what lies behind.
pub(crate) fn is_virtual(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or("");
    ["vd", "xvd", "nbd", "rbd", "loop"].iter().any(|prefix| name.starts_with(prefix))
}

/// One number in a file of sysfs.
fn value<T: FromStr>(folder: &Path, name: &str) -> Option<T> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// The device number of a folder of sysfs.
fn number(folder: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of 1000 sectors with a partition at sector 64.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("sda/dev", "8:0\n"),
            ("sda/size", "1000\n"),
            ("sda/queue/rotational", "1\n"),
            ("sda/queue/logical_block_size", "512\n"),
            ("sda/queue/physical_block_size", "4096\n"),
            ("sda/sda1/dev", "8:1\n"),
            ("sda/sda1/partition", "1\n"),
            ("sda/sda1/start", "64\n"),
            ("sda/sda1/size", "900\n"),
        ] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_partition_leads_to_its_disk() {
        let root = sysfs();
        let disk = Place::read(&root.path().join("sda"), (8, 0));
        let expected = Place {
            device: (8, 0),
            capacity: Some(Sectors::new(1000)),
            start: Lba::ZERO,
            rotational: true,
            logical: 512,
            physical: 4096,
            stripe: None,
            tags: None,
        };
        assert_eq!(disk, expected);
        let partition = Place::read(&root.path().join("sda/sda1"), (8, 1));
        assert_eq!(partition, Place { start: Lba::new(64), ..expected });
    }

    #[test]
    fn a_device_is_known_by_what_outlasts_a_boot() {
        let root = sysfs();
        let named = |folder: &str| name_of(&root.path().join(folder));
        assert_eq!(named("sda"), root.path().join("sda").display().to_string());
        let at_place = named("sda/sda1");
        assert!(at_place.ends_with("sda partition 1"), "{at_place}");
        for (file, text) in [
            ("sda/device/wwid", "naa.5000\n"),
            ("vda/serial", "disk one\n"),
            ("vdb/serial", "\n"),
            ("loop3/loop/backing_file", "/images/a b.img\n"),
            ("loop3/loop/offset", "512\n"),
            ("dm-0/dm/uuid", "LVM-1\n"),
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!([named("sda"), named("sda/sda1")], ["naa.5000", "naa.5000 partition 1"]);
        assert_eq!([named("vda"), named("dm-0")], ["disk one", "LVM-1"]);
        assert!(named("vdb").ends_with("/vdb"));
        assert_eq!(named("loop3"), "/images/a b.img from 512");
    }

    #[test]
    fn what_a_virtual_disk_says_of_turning_is_not_believed() {
        let root = tempfile::tempdir().unwrap();
        for (name, turns) in [("vda", false), ("xvdb", false), ("sda", true), ("hda", true)] {
            let queue = root.path().join(name).join("queue");
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("rotational"), "1\n").unwrap();
            let place = Place::read(&root.path().join(name), (8, 0));
            assert_eq!(place.rotational, turns, "{name}");
        }
    }

    #[test]
    fn an_array_says_how_it_is_striped() {
        let root = tempfile::tempdir().unwrap();
        let of = |level: &str, sizes: [u64; 2]| {
            let md = root.path().join("md0/md");
            for (n, size) in sizes.iter().enumerate() {
                let drive = md.join(format!("rd{n}/block"));
                fs::create_dir_all(&drive).unwrap();
                fs::write(drive.join("size"), format!("{size}\n")).unwrap();
            }
            for (name, text) in [("level", level), ("raid_disks", "2\n"), ("chunk_size", "65536\n")]
            {
                fs::write(md.join(name), text).unwrap();
            }
            Place::read(&root.path().join("md0"), (9, 0)).stripe
        };
        assert_eq!(of("raid0\n", [900, 900]), Stripe::new(2, Sectors::new(128)));
        assert_eq!(of("raid0\n", [900, 901]), None, "the end lies on one drive");
        assert_eq!(of("raid5\n", [900, 900]), None);
    }

    #[test]
    fn tags_are_those_of_the_drives_below() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let drive = |name: &str, [count, kib, segments]: [u32; 3]| {
            put(&format!("{name}/mq/0/cpu_list"), "0\n");
            put(&format!("{name}/queue/nr_requests"), &format!("{count}\n"));
            put(&format!("{name}/queue/max_sectors_kb"), &format!("{kib}\n"));
            put(&format!("{name}/queue/max_segments"), &format!("{segments}\n"));
        };
        let lies_on = |name: &str, below: &str| {
            fs::create_dir_all(root.path().join(name).join("slaves")).unwrap();
            let link = root.path().join(name).join("slaves").join(below.replace('/', "-"));
            std::os::unix::fs::symlink(root.path().join(below), link).unwrap();
        };
        drive("sda", [64, 128, 168]);
        drive("sdb", [32, 1280, 16]);
        put("sda/sda1/partition", "1\n");
        lies_on("md0", "sda/sda1");
        lies_on("md0", "sdb");
        put("md0/md/level", "raid1\n");
        lies_on("dm-0", "md0");
        lies_on("dm-1", "sda");
        lies_on("dm-1", "sdb");
        lies_on("dm-2", "dm-2");
        fs::create_dir_all(root.path().join("ram0")).unwrap();
        for (name, expected) in [
            ("sda/sda1", Some((64, 128))),
            // Of 16 pieces of memory.
            ("sdb", Some((32, 32))),
            ("md0", Some((64, 32))),
            ("dm-0", Some((64, 32))),
            ("dm-1", Some((32, 32))),
            ("dm-2", None),
            ("ram0", None),
        ] {
            let tags = Place::read(&root.path().join(name), (8, 0)).tags;
            let expected =
                expected.map(|(count, kib)| Tags { count, sectors: Sectors::new(kib * 2) });
            assert_eq!(tags, expected, "{name}");
        }
    }

    #[test]
    fn without_a_disk_there_is_only_a_number() {
        let place = Place::read(Path::new("/nowhere/0:25"), (0, 25));
        assert_eq!((place.device, place.capacity, place.rotational), ((0, 25), None, false));
    }
}
