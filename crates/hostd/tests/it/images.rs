//! Images against the real kernel: files of this directory's file system, of
//! tmpfs, and loop devices (as root).

use crate::common;
mod locks;

use common::image;
use common::loops::{loop_device, output};
use seekway_core::request::Extent;
use seekway_core::units::{Lba, Sectors};
use seekway_hostd::images::{BlockSize, Image, ImageError, OpenOptions};
use seekway_stack::stack::Map;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const RW: OpenOptions = OpenOptions { direct: false, ..OpenOptions::writing() };
const RO: OpenOptions = OpenOptions { direct: false, ..OpenOptions::reading() };
const DIRECT: OpenOptions = OpenOptions::writing();

/// One test at a time: between fork and exec, a child that another test starts
/// has this process's images open too, and so their locks.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

fn error(path: &Path, options: &OpenOptions) -> String {
    Image::open(path, options).map(|_| ()).unwrap_err().to_string()
}

fn has_hole(map: &Map, at: u64, len: u64) -> bool {
    map.has_hole(Extent::new(Lba::new(at), Sectors::new(len)).unwrap())
}

#[test]
fn what_is_no_image_is_refused_with_what_to_do() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    assert!(error(&root.join("none"), &RW).contains("no such file; to make one: qemu-img create"));
    assert!(error(root, &RW).contains("is a directory; an image is a regular file"));
    assert!(error(Path::new("/dev/null"), &RW).contains("is a character device"));
    let odd = image(root, "odd.img", 1000);
    let text = error(&odd, &OpenOptions { block_size: Some(BlockSize::B4096), ..RW });
    assert!(text.contains("1000 bytes") && text.contains("truncate -s %4096 "), "{text}");
    // The hint helps.
    assert!(output("truncate", &["-s", "%4096", odd.to_str().unwrap()]).is_some());
    assert_eq!(Image::open(&odd, &RW).unwrap().limits().capacity_bytes, 4096);
    assert!(error(&image(root, "empty.img", 0), &RW).contains("truncate -s 10G"));
    let socket = root.join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(error(&socket, &RW).contains("is a socket"));
}

#[test]
fn rights_that_do_not_suffice_are_named() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 4096);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    let ordinary = std::thread::spawn(move || {
        seekway_testing::drop_capabilities();
        (error(&path, &RW), Image::open(&path, &RO).is_ok())
    });
    let (text, readable) = ordinary.join().unwrap();
    assert!(text.contains("read and write the image, or attach it read-only"), "{text}");
    assert!(readable);
}

#[test]
fn limits_of_a_file() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let image = Image::open(&path, &RW).unwrap();
    let limits = image.limits();
    assert_eq!((limits.capacity_bytes, limits.align_bytes), (1 << 20, 1));
    assert_eq!((limits.logical_block_bytes, limits.memory_align_bytes), (512, 1));
    assert!(limits.physical_block_bytes >= 4096 && !limits.read_only);
    assert!(!image.is_block() && !image.is_direct());
    assert_eq!((image.path(), image.warnings().all().len()), (&path, 0));
}

#[test]
fn guests_get_the_block_size_that_was_asked_for() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let options = OpenOptions { block_size: Some(BlockSize::B4096), ..RW };
    let limits = *Image::open(&path, &options).unwrap().limits();
    assert_eq!((limits.logical_block_bytes, limits.align_bytes), (4096, 1));
    writer(&path).set_len((1 << 20) + 512).unwrap();
    let text = error(&path, &options);
    assert!(text.contains("multiple of 4096") && text.contains("truncate -s %4096 "), "{text}");
}

#[test]
fn a_partition_table_for_other_blocks_is_warned_of() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    writer(&path).write_all_at(b"EFI PART", 512).unwrap();
    let larger = OpenOptions { block_size: Some(BlockSize::B4096), ..RW };
    assert_eq!(Image::open(&path, &RW).unwrap().warnings().all().len(), 0);
    let text = Image::open(&path, &larger).unwrap().warnings().all().concat();
    assert!(text.contains("for blocks of 512 bytes, and guests see blocks of 4096"), "{text}");
}

#[test]
fn a_file_has_the_blocks_that_it_was_partitioned_for() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let blocks = || Image::open(&path, &RW).unwrap().limits().logical_block_bytes;
    assert_eq!(blocks(), 512);
    writer(&path).write_all_at(b"EFI PART", 4096).unwrap();
    assert_eq!(blocks(), 4096);
    // No size for blocks of 4096.
    writer(&path).set_len((1 << 20) + 512).unwrap();
    assert_eq!(blocks(), 512);
}

#[test]
fn an_image_that_ends_inside_a_block_goes_through_the_page_cache() {
    let _alone = alone();
    // Where direct I/O works.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "odd.img", 1000);
    let opened = Image::open(&path, &DIRECT).unwrap();
    let limits = *opened.limits();
    assert!(!opened.is_direct());
    assert_eq!((limits.served_bytes(), limits.least_bytes(), limits.align_bytes), (1024, 1, 1));
    let warnings = opened.warnings().all().concat();
    assert!(warnings.contains("the host's page cache is used"), "{warnings}");
    assert_eq!(opened.allocation().unwrap().runs(0..1024, 9), [(1024, true)]);
    std::fs::write(&path, [7; 1000]).unwrap();
    assert_eq!(opened.allocation().unwrap().runs(0..1024, 9), [(1000, false), (24, true)]);
}

#[test]
fn an_archive_is_refused_by_its_name_or_its_size_and_else_warned_of() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let archive = |name: &str, len: u64| {
        let path = image(folder.path(), name, len);
        writer(&path).write_all_at(b"\x1f\x8b\x08", 0).unwrap();
        path
    };
    let text = error(&archive("web.img.gz", 1 << 20), &RW);
    assert!(text.contains("gzip -dc") && !text.contains("truncate"), "{text}");
    assert!(error(&archive("web.img", 1000), &RW).contains("looks packed (gzip)"));
    // What a guest may have written into its own disk.
    let opened = Image::open(&archive("web.img", 1 << 20), &RW).unwrap();
    assert!(opened.warnings().all().concat().contains("if a guest wrote them"));
}

#[test]
fn a_write_protected_device_is_served_read_only_or_not_at_all() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "disk", 8 << 20);
    let Some(device) = loop_device(&path, 512) else { return };
    let node = Path::new(&device.0);
    output("blockdev", &["--setro", &device.0]).unwrap();
    let text = error(node, &DIRECT);
    assert!(text.contains("write-protected") || text.contains("attach it read-only"), "{text}");
    assert!(Image::open(node, &OpenOptions::reading()).unwrap().limits().read_only);
    output("blockdev", &["--setrw", &device.0]).unwrap();
    Image::open(node, &DIRECT).unwrap();
}

#[test]
fn the_operator_knows_on_which_device_an_image_lies() {
    let _alone = alone();
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        seekway_testing::skip("a writable /dev/shm");
        return;
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let beside = image(folder.path(), "beside.img", 1 << 20);
    let path = image(elsewhere.path(), "a.img", 1 << 20);
    let image = Image::open(&path, &RW).unwrap().lies_on(&beside).unwrap();
    let expected = Image::open(&beside, &RW).unwrap();
    assert_eq!(image.device(), expected.device());
    assert_eq!(image.device_capacity(), expected.device_capacity());
    assert!(image.map().is_none() && image.mapper().unwrap().map().is_none());
    assert_eq!(image.measure_bandwidth(), None);
    drop(image);
    let missing = Image::open(&path, &RW).unwrap().lies_on(Path::new("/nowhere"));
    let text = missing.map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("/nowhere") && text.contains("(option on)"), "{text}");
}

#[test]
fn direct_io_works_as_it_says() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let image = Image::open(&path, &DIRECT).unwrap();
    let limits = *image.limits();
    if !image.is_direct() {
        assert!(image.warnings().all()[0].contains("page cache"), "{:?}", image.warnings());
        seekway_testing::skip("direct I/O on the file system of the target directory");
        return;
    }
    // SAFETY: plain system call.
    let flags = unsafe { libc::fcntl(image.file().as_raw_fd(), libc::F_GETFL) };
    assert_ne!(flags & libc::O_DIRECT, 0);
    // A block at the least alignment, in memory with no more than the least.
    let (block, memory) = (limits.align_bytes as usize, limits.memory_align_bytes as usize);
    let mut buffer = vec![7u8; block + 2 * 4096];
    let at = buffer.as_ptr().align_offset(4096) + memory % 4096;
    image.file().write_all_at(&buffer[at..at + block], block as u64).unwrap();
    buffer.fill(0);
    image.file().read_exact_at(&mut buffer[at..at + block], block as u64).unwrap();
    assert!(buffer[at..at + block].iter().all(|&b| b == 7));
}

#[test]
fn formats_are_warned_of_and_served() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    writer(&path).write_all(b"QFI\xfb").unwrap();
    for options in [RW, RO, DIRECT] {
        let image = Image::open(&path, &options).unwrap();
        let text = image.warnings().all().concat();
        assert!(text.contains("qemu-img convert -f qcow2 -O raw"), "{text}");
    }
    // Of another size it is refused, and not to be rounded up.
    writer(&path).set_len(1000).unwrap();
    let text = error(&path, &RW);
    assert!(text.contains("-f qcow2") && !text.contains("truncate"), "{text}");
}

#[test]
fn sizes_are_looked_at_again() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let mut image = Image::open(&path, &RW).unwrap();
    for bytes in [1 << 21, 1 << 19, 512, 1 << 20] {
        writer(&path).set_len(bytes).unwrap();
        assert_eq!(image.refresh(true).unwrap(), bytes);
        assert_eq!(image.limits().capacity_bytes, bytes);
    }
    writer(&path).set_len(1000).unwrap();
    assert_eq!((image.refresh(true).unwrap(), image.limits().served_bytes()), (1000, 1024));
    writer(&path).set_len(0).unwrap();
    assert!(matches!(image.refresh(true), Err(ImageError::Size { .. })));
    assert_eq!(image.limits().capacity_bytes, 1000, "stays");
    // Smaller only for who says so.
    writer(&path).set_len(512).unwrap();
    assert!(matches!(image.refresh(false), Err(ImageError::Shrunk { .. })));
    assert_eq!(image.limits().capacity_bytes, 1000, "stays");
    writer(&path).set_len(1 << 21).unwrap();
    assert_eq!(image.refresh(false).unwrap(), 1 << 21);
    // Direct I/O could not write its end.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = self::image(folder.path(), "a.img", 1 << 20);
    let mut image = Image::open(&path, &DIRECT).unwrap();
    writer(&path).set_len(1000).unwrap();
    assert_eq!(image.refresh(true).is_err(), image.is_direct());
}

#[test]
fn runs_of_a_sparse_file() {
    let _alone = alone();
    const M: u64 = 1 << 20;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "a.img", 16 * M);
    for at in [2, 3, 8] {
        writer(&path).write_all_at(&vec![1; M as usize], at * M).unwrap();
    }
    let image = Image::open(&path, &RW).unwrap();
    let all = [(2 * M, true), (2 * M, false), (4 * M, true), (M, false), (7 * M, true)];
    let check = |offset: u64, len: u64, max: usize, expected: &[(u64, bool)]| {
        assert_eq!(
            image.allocation().unwrap().runs(offset..offset + len, max),
            expected,
            "{offset}+{len}, {max}"
        );
    };
    check(0, 16 * M, 100, &all);
    check(0, 16 * M, 3, &all[..3]);
    check(0, 16 * M, 1, &all[..1]);
    check(3 * M, 2 * M, 100, &[(M, false), (M, true)]);
    check(M, M, 100, &[(M, true)]);
    check(2 * M, M, 100, &[(M, false)]);
    check(10 * M, 6 * M, 100, &[(6 * M, true)]);
    check(0, 0, 100, &[]);
    check(0, M, 0, &[]);
}

/// A line of `filefrag -v`: first and last block in the file, first on the device.
fn filefrag_extent(line: &str) -> Option<(u64, u64, u64)> {
    let mut words = line.split([':', '.', ' ']).filter(|w| !w.is_empty());
    let mut next = || words.next()?.parse::<u64>().ok();
    let _index = next()?;
    Some((next()?, next()?, next()?))
}

/// Compare the map with what filefrag says; how many extents it says there are.
fn compare_with_filefrag(path: &Path, map: &Map, partition: u64) -> Option<usize> {
    let Some(text) = output("filefrag", &["-v", "-b512", path.to_str().unwrap()]) else {
        seekway_testing::skip("filefrag");
        return None;
    };
    let extents: Vec<_> = text.lines().filter_map(filefrag_extent).collect();
    for &(from, to, place) in &extents {
        for at in [from, (from + to) / 2, to] {
            let piece = map.piece(Lba::new(at), Sectors::new(1));
            assert_eq!(piece.start().get(), partition + place + (at - from), "sector {at}\n{text}");
        }
        assert!(!has_hole(map, from, to - from + 1));
    }
    Some(extents.len())
}

/// Where the partition of a file's file system begins on its disk.
fn partition_start(path: &Path) -> u64 {
    let dev = std::fs::metadata(path).unwrap().dev();
    let sysfs = format!("/sys/dev/block/{}:{}/start", libc::major(dev), libc::minor(dev));
    std::fs::read_to_string(sysfs).map_or(0, |text| text.trim().parse().unwrap())
}

#[test]
fn maps_are_those_of_filefrag() {
    let _alone = alone();
    // Not /tmp, which may be a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "a.img", 64 << 20);
    assert!(Image::open(&path, &RW).unwrap().map().is_none(), "nothing has a place yet");
    // 400 extents: more than FIEMAP is asked for at once.
    for n in 0..400 {
        writer(&path).write_all_at(&[1; 4096], n * 131_072).unwrap();
    }
    let image = Image::open(&path, &RW).unwrap();
    let Some(map) = image.map() else {
        seekway_testing::skip(format_args!("FIEMAP on device {:?}", image.device()));
        return;
    };
    if let Some(extents) = compare_with_filefrag(&path, &map, partition_start(&path)) {
        assert!(extents >= 400, "{extents}");
    }
    assert!(has_hole(&map, 8, 1) && has_hole(&map, 0, 16) && !has_hole(&map, 256, 8));
    let capacity = image.device_capacity().unwrap();
    let region = map.region();
    assert!(region.windows(2).all(|w| w[0].end() < w[1].start()));
    assert!(region.iter().all(|e| e.end().get() <= capacity.get()));
    assert_eq!(region.iter().map(|e| e.len().get()).sum::<u64>(), 400 * 8);
}

#[test]
fn tmpfs_has_no_place() {
    let _alone = alone();
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        seekway_testing::skip("a writable /dev/shm");
        return;
    };
    let path = image(folder.path(), "a.img", 1 << 20);
    for options in [RW, DIRECT] {
        let image = Image::open(&path, &options).unwrap();
        assert_eq!((image.device().0, image.device_capacity()), (0, None));
        assert!(image.map().is_none());
        assert!(image.is_direct() || !options.direct || image.warnings().all().len() == 1);
        assert_eq!(image.allocation().unwrap().runs(0..1 << 20, 9), [(1 << 20, true)]);
    }
}

#[test]
fn block_sizes_of_block_devices() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let asked = |size, direct| OpenOptions { block_size: Some(size), direct, ..RW };
    let small = image(folder.path(), "small", (8 << 20) + 512);
    let large = image(folder.path(), "large", 8 << 20);
    let Some(device) = loop_device(&small, 512) else { return };
    let text = error(Path::new(&device.0), &asked(BlockSize::B4096, true));
    assert!(text.ends_with("or leave block_size out if it is given"), "{text}");
    drop(device);
    let Some(device) = loop_device(&large, 512) else { return };
    let image = Image::open(Path::new(&device.0), &asked(BlockSize::B4096, true)).unwrap();
    let limits = image.limits();
    assert_eq!((limits.logical_block_bytes, limits.physical_block_bytes), (4096, 4096));
    drop(image);
    drop(device);
    let Some(device) = loop_device(&large, 4096) else { return };
    for direct in [false, true] {
        let image = Image::open(Path::new(&device.0), &asked(BlockSize::B512, direct)).unwrap();
        let limits = image.limits();
        assert_eq!((limits.logical_block_bytes, limits.physical_block_bytes), (512, 4096));
        assert_eq!(limits.align_bytes, 4096);
        let warnings = image.warnings().all().concat();
        assert!(warnings.contains("guests see blocks of 512 bytes"), "{warnings}");
        drop(image);
        Image::open(Path::new(&device.0), &asked(BlockSize::B4096, direct)).unwrap();
    }
}

#[test]
fn block_devices() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for sector_bytes in [512, 4096] {
        let path = image(folder.path(), &format!("disk-{sector_bytes}"), 8 << 20);
        let Some(device) = loop_device(&path, sector_bytes) else { return };
        let node = Path::new(&device.0);
        let mut image = Image::open(node, &DIRECT).unwrap();
        assert!(image.is_block() && image.is_direct(), "{:?}", image.warnings());
        let limits = *image.limits();
        assert_eq!(limits.capacity_bytes, 8 << 20);
        assert_eq!((limits.logical_block_bytes, limits.align_bytes), (sector_bytes, sector_bytes));
        assert_eq!(image.device().0, 7);
        assert_eq!(image.device_capacity().map(|s| s.bytes()), Some(8 << 20));
        assert_eq!(image.map().unwrap().region().len(), 1);
        assert_eq!(image.map().unwrap().piece(Lba::new(16), Sectors::new(8)).to_string(), "16+8");
        assert_eq!(image.allocation().unwrap().runs(4096..12_288, 9), [(8192, false)]);
        // One writer, nobody beside.
        let second = Image::open(node, &RW).map(|_| ());
        assert!(matches!(second, Err(ImageError::Busy { .. } | ImageError::Locked { .. })));
        let reader = Image::open(node, &RO).map(|_| ());
        assert!(matches!(reader, Err(ImageError::Locked { .. })));
        writer(&path).set_len(16 << 20).unwrap();
        output("losetup", &["--set-capacity", &device.0]).unwrap();
        assert_eq!(image.refresh(true).unwrap(), 16 << 20);
        drop(image);
        let readers = (Image::open(node, &RO).unwrap(), Image::open(node, &RO).unwrap());
        assert!(readers.0.limits().read_only && readers.1.is_block());
    }
}

#[test]
fn a_block_device_that_is_served_by_another_node_is_told_of() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "disk", 8 << 20);
    let Some(device) = loop_device(&path, 512) else { return };
    let node = Path::new(&device.0);
    let number = std::fs::metadata(node).unwrap().rdev();
    let other = folder.path().join("other");
    let (major, minor) = (libc::major(number).to_string(), libc::minor(number).to_string());
    if output("mknod", &[other.to_str().unwrap(), "b", &major, &minor]).is_none()
        || File::open(&other).is_err()
    {
        return seekway_testing::skip("the right to make block devices and to open them");
    }
    let incoming = OpenOptions { incoming: true, ..RW };
    let told = |node: &Path| {
        let image = Image::open(node, &incoming).unwrap();
        image.warnings().all().iter().any(|warning| warning.contains("by another node"))
    };
    assert!(!told(&other), "nobody serves it");
    let image = Image::open(node, &RW).unwrap();
    assert!(!told(node) && told(&other));
    drop(image);
}

/// Put a table with one partition, from sector 2048 to the end, on a disk.
fn partition(path: &Path, sectors: u32) {
    let mut table = [0u8; 512];
    table[450] = 0x83;
    table[454..458].copy_from_slice(&2048u32.to_le_bytes());
    table[458..462].copy_from_slice(&(sectors - 2048).to_le_bytes());
    table[510..].copy_from_slice(b"\x55\xaa");
    writer(path).write_all(&table).unwrap();
}

#[test]
fn a_partition_lies_on_its_disk() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path(), "disk", 64 << 20);
    partition(&path, 131_072);
    let Some(device) = loop_device(&path, 512) else { return };
    let part = PathBuf::from(format!("{}p1", device.0));
    // partx tells the kernel whether or not the device was set up to scan.
    if output("partx", &["--add", &device.0]).is_none() || !part.exists() {
        seekway_testing::skip("partitions on loop devices (partx)");
        return;
    }
    {
        let image = Image::open(&part, &RW).unwrap();
        assert_eq!(image.limits().capacity_bytes, (64 << 20) - (1 << 20));
        assert_eq!(image.device_capacity().map(|s| s.bytes()), Some(64 << 20));
        assert_eq!(image.map().unwrap().piece(Lba::ZERO, Sectors::new(1)).to_string(), "2048+1");
        let whole = Image::open(Path::new(&device.0), &RO).unwrap();
        assert_eq!(whole.device(), image.device(), "one disk");
        a_file_on_a_partition(folder.path(), &part, image);
    }
    output("partx", &["--delete", &device.0]).unwrap();
}

/// The map of a file on a file system on the partition counts from the disk's start.
fn a_file_on_a_partition(folder: &Path, part: &Path, image: Image) {
    let disk = image.device();
    drop(image);
    let mount = folder.join("mount");
    std::fs::create_dir(&mount).unwrap();
    let (node, at) = (part.to_str().unwrap(), mount.to_str().unwrap());
    if output("mkfs.ext4", &["-q", node]).is_none() || output("mount", &[node, at]).is_none() {
        seekway_testing::skip("ext4 on a partition (mkfs.ext4, mount)");
        return;
    }
    let mounted = Image::open(part, &RW).map(|_| ());
    let path = mount.join("a.img");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let image = Image::open(&path, &RW).unwrap();
    let (device, map) = (image.device(), image.map().unwrap());
    let compared = compare_with_filefrag(&path, &map, 2048);
    drop(image);
    // First clean up, then judge.
    output("umount", &[at]).unwrap();
    assert!(matches!(mounted, Err(ImageError::Busy { .. })), "mounted, and open to us");
    assert_eq!(device, disk);
    assert_ne!(compared, Some(0));
}
