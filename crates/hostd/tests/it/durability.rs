//! Data that is lost after it was acknowledged is never called durable afterwards: flushes that
//! fail, by faults that are injected and (as root) by a device that is full.

use crate::common;

use common::loops::{loop_device, mount, output};
use common::mounted::Mount;
use common::{Ask, Rig, RigSetup, dir, image, open_image, pattern};
use seekway_core::request::Op;
use seekway_hostd::images::fault::Fault;
use seekway_hostd::images::{Image, ImageError, OpenOptions, Warnings};
use seekway_hostd::port::{DiskId, Errno};
use seekway_hostd::reactor::{Disk, Message};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const EIO: Result<(), Errno> = Err(Errno(libc::EIO));
const BUFFERED: OpenOptions = OpenOptions { direct: false, ..OpenOptions::writing() };
const DIRECT: OpenOptions = OpenOptions::writing();

fn attach(rig: &Rig, path: &Path, options: &OpenOptions, fault: &str) -> (DiskId, Arc<Warnings>) {
    let image = open_image(path, options).unwrap();
    let warnings = image.warnings().clone();
    let fault = (!fault.is_empty()).then(|| Fault::parse(fault).unwrap());
    let disk = Disk { fault, ..Disk::new("disk", image) };
    (rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap(), warnings)
}

/// Results of these, one after another: a flush, a durable write, durable zeroes, a write, a read.
fn results(rig: &Rig, disk: DiskId) -> [Result<(), Errno>; 5] {
    let client = rig.open(disk);
    let zeroes = Ask::new(Op::WriteZeroes, 8192, 4096, Vec::new());
    let asks = [
        Ask::flush(),
        Ask { fua: true, ..Ask::write(4096, pattern(1, 4096)) },
        Ask { fua: true, ..zeroes },
        Ask::write(0, pattern(2, 4096)),
        Ask::read(0, 4096),
    ];
    let results = asks.map(|ask| client.do_one(ask).result);
    client.close();
    results
}

#[test]
fn a_sync_that_failed_fails_until_the_image_is_opened_again() {
    let durable = || Ask { fua: true, ..Ask::write(0, pattern(3, 4096)) };
    let range = |op| Ask { fua: true, ..Ask::new(op, 0, 4096, Vec::new()) };
    for (options, fault, errno, first) in [
        (BUFFERED, "eio:op=flush,count=1", libc::EIO, Ask::flush()),
        (BUFFERED, "eio:op=write,count=1", libc::EIO, durable()),
        // It may be what an earlier write-back met: to sync again would hide it.
        (BUFFERED, "again:op=flush,count=1", libc::EAGAIN, Ask::flush()),
        (BUFFERED, "again:op=flush,count=1", libc::EAGAIN, durable()),
        (BUFFERED, "enospc:op=flush,count=1", libc::ENOSPC, durable()),
        (DIRECT, "enospc:op=flush,count=1", libc::ENOSPC, Ask::flush()),
        // The device may have dropped its cache.
        (DIRECT, "eio:op=flush,count=1", libc::EIO, Ask::flush()),
        (DIRECT, "eio:op=write,count=1", libc::EIO, durable()),
        (DIRECT, "again:op=write,count=1", libc::EAGAIN, durable()),
        // What is allocated or written before its sync, and the sync.
        (DIRECT, "eio:op=discard,count=1", libc::EIO, range(Op::WriteZeroes)),
        (DIRECT, "eio:op=flush,count=1", libc::EIO, range(Op::WriteZeroes)),
        (DIRECT, "eio:op=discard,count=1", libc::EIO, range(Op::Discard)),
        (DIRECT, "eio:op=flush,count=1", libc::EIO, range(Op::Discard)),
        (BUFFERED, "eio:op=flush,count=1", libc::EIO, range(Op::WriteZeroes)),
    ] {
        let failed = Err(Errno(errno));
        let folder = dir();
        let path = image(folder.path(), "a.img", MIB);
        let rig = Rig::start(RigSetup::default());
        let (disk, warnings) = attach(&rig, &path, &options, fault);
        let before = warnings.all().len();
        assert_eq!(rig.open(disk).do_one(first).result, failed, "{fault}");
        // The fault is over, and what it may have lost is not.
        for _ in 0..2 {
            let expected = [failed, failed, failed, Ok(()), Ok(())];
            assert_eq!(results(&rig, disk), expected, "{fault}");
        }
        let told = warnings.all().split_off(before);
        assert!(told.len() == 1 && told[0].contains("a flush failed"), "{told:?}");
        rig.handle.ask(|r| Message::DetachDisk(disk, r)).unwrap().unwrap();
        let (disk, warnings) = attach(&rig, &path, &BUFFERED, "");
        assert_eq!(results(&rig, disk), [Ok(()); 5], "{fault}");
        assert_eq!(warnings.all(), [""; 0]);
    }
}

#[test]
fn what_fails_before_it_is_written_loses_nothing() {
    let folder = dir();
    let path = image(folder.path(), "a.img", MIB);
    let rig = Rig::start(RigSetup::default());
    let durable = |ask| Ask { fua: true, ..ask };
    let write = || Ask::write(0, pattern(3, 4096));
    let range = |op| Ask::new(op, 0, 4096, Vec::new());
    const ENOSPC: Result<(), Errno> = Err(Errno(libc::ENOSPC));
    for options in [BUFFERED, DIRECT] {
        for (fault, failed, ask) in [
            ("eio:op=write,count=1", EIO, write()),
            ("eio:op=discard,count=1", EIO, range(Op::WriteZeroes)),
            // Those that need to be durable, on a file system that is full.
            ("enospc:op=write,count=1", ENOSPC, durable(write())),
            ("enospc:op=discard,count=1", ENOSPC, durable(range(Op::WriteZeroes))),
            ("enospc:op=discard,count=1", ENOSPC, durable(range(Op::Discard))),
        ] {
            let (disk, warnings) = attach(&rig, &path, &options, fault);
            let before = warnings.all().len();
            assert_eq!(rig.open(disk).do_one(ask).result, failed, "{fault}");
            assert_eq!(results(&rig, disk), [Ok(()); 5]);
            rig.handle.ask(|r| Message::DetachDisk(disk, r)).unwrap().unwrap();
            assert_eq!(warnings.all().len(), before, "{fault}");
        }
    }
}

#[test]
fn no_errno_of_a_sync_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", MIB);
    let errnos =
        [libc::EINVAL, libc::EOPNOTSUPP, libc::EFAULT, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
    for errno in errnos {
        let mut image = open_image(&path, &BUFFERED).unwrap();
        image.sync_failed(errno);
        assert_eq!(image.lost_writes(), Some(errno));
    }
}

/// Write a file until its file system is full.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for len in [64 << 10, 4096, 1] {
        while file.write(&vec![7; len]).is_ok() {}
    }
}

/// A folder of 16 MiB of memory, and in it the file of a disk that is to have 64.
fn small(folder: &Path) -> Option<(Mount, PathBuf)> {
    let mount = mount(&["-t", "tmpfs", "-o", "size=16m", "none"], folder.join("small"))?;
    let path = image(&mount.0, "disk", 64 * MIB);
    Some((mount, path))
}

#[test]
fn a_device_that_is_full_fails_every_flush() {
    let folder = tempfile::tempdir().unwrap();
    let Some((mount, path)) = small(folder.path()) else { return };
    let Some(device) = loop_device(&path, 512) else { return };
    fill(&mount.0.join("filler"));
    let rig = Rig::start(RigSetup::default());
    let (disk, _) = attach(&rig, Path::new(&device.0), &BUFFERED, "");
    let client = rig.open(disk);
    assert_eq!(client.do_one(Ask::write(0, pattern(4, MIB as usize))).result, Ok(()));
    for round in 0..4 {
        assert!(client.do_one(Ask::flush()).result.is_err(), "flush {round}");
    }
}

#[test]
fn an_image_whose_write_back_failed_unseen_is_refused_until_that_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let Some((outer, path)) = small(folder.path()) else { return };
    let Some(device) = loop_device(&path, 512) else { return };
    let mkfs = ["-q", "-O", "^has_journal", "-E", "nodiscard", &device.0];
    if output("mkfs.ext4", &mkfs).is_none() {
        return seekway_testing::skip("mkfs.ext4");
    }
    let Some(inner) = mount(&[&device.0], folder.path().join("fs")) else { return };
    // Blocks of the file system that the disk under it has no room for.
    let path = inner.0.join("a.img");
    let file = File::create(&path).unwrap();
    // SAFETY: plain system call on a descriptor that is open.
    let error =
        unsafe { libc::posix_fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 24 << 20) };
    assert_eq!(error, 0);
    file.sync_all().unwrap();
    fill(&outer.0.join("filler"));
    // A daemon writes, says that it did, and is killed.
    file.write_all_at(&pattern(5, MIB as usize), 0).unwrap();
    drop(file);
    for round in 0..3 {
        // The kernel says it in the first round only.
        let error = Image::open(&path, &BUFFERED).map(|_| ()).unwrap_err();
        assert!(matches!(error, ImageError::LostWrites { .. }), "{round}: {error}");
        let text = error.to_string();
        assert!(text.contains("accept-lost-writes") && !text.contains("will succeed"), "{text}");
    }
    let accepted = OpenOptions { accept_lost_writes: true, ..BUFFERED };
    let told = Image::open(&path, &accepted).unwrap().warnings().all();
    assert!(told.len() == 1 && told[0].contains("accepted"), "{told:?}");
    assert_eq!(Image::open(&path, &BUFFERED).unwrap().warnings().all(), [""; 0]);
}

#[test]
fn a_file_system_without_direct_io_is_served_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("ramfs");
    let Some(mount) = mount(&["-t", "ramfs", "none"], at) else { return };
    let path = image(&mount.0, "a.img", MIB);
    let opened = open_image(&path, &OpenOptions::writing()).unwrap();
    let told = opened.warnings().all();
    assert!(!opened.is_direct() && told.len() == 1 && told[0].contains("O_DIRECT"), "{told:?}");
    drop(opened);
    // Who asks for the page cache is not warned of it.
    assert_eq!(open_image(&path, &BUFFERED).unwrap().warnings().all(), [""; 0]);
}
