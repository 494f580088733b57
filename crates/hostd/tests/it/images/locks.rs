//! Locks on images: between two of ours, and between ours and QEMU's (where
//! qemu-io is installed).

use super::{RO, RW, alone};
use crate::common::image;
use seekway_hostd::images::{Image, ImageError};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

#[test]
fn one_writer_or_many_readers() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let error = |options| Image::open(&path, options).map(|_| ()).unwrap_err().to_string();
    let writer = Image::open(&path, &RW).unwrap();
    for options in [&RW, &RO] {
        let text = error(options);
        assert!(text.contains("a.img: locked by another program (QEMU, another"), "{text}");
        assert!(text.contains("this daemon itself has it open"), "{text}");
    }
    drop(writer);
    let readers = [Image::open(&path, &RO).unwrap(), Image::open(&path, &RO).unwrap()];
    assert!(error(&RW).contains("locked"));
    drop(readers);
    Image::open(&path, &RW).unwrap();
}

/// qemu-io with the image open, until it is dropped.
struct Qemu(Child);

impl Qemu {
    /// `None` when it could not open the image; the reason goes to stderr.
    fn open(path: &Path, read_only: bool) -> Option<Qemu> {
        let mut command = Command::new("qemu-io");
        let command = command.args(read_only.then_some("-r")).args(["-f", "raw"]).arg(path);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut qemu = Qemu(child);
        // Its prompt says that the image is open; an end, that it is not.
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !seen.ends_with(b"qemu-io>") {
            if qemu.0.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 0 {
                return None;
            }
            seen.push(byte[0]);
        }
        Some(qemu)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn has_qemu() -> bool {
    let has = Command::new("qemu-io").arg("--version").output().is_ok();
    if !has {
        seekway_testing::skip("qemu-io");
    }
    has
}

#[test]
fn qemu_and_we_keep_each_other_out() {
    let _alone = alone();
    if !has_qemu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let ours = |read_only| Image::open(&path, if read_only { &RO } else { &RW });
    // Does the first only read, and the second?
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        let together = first && second;
        {
            let qemu = Qemu::open(&path, first).unwrap();
            let named = format!("process {} (qemu-io)", qemu.0.id());
            match ours(second) {
                Ok(_) => assert!(together, "QEMU {first}, we {second}"),
                Err(ImageError::Locked { holder, .. }) => {
                    assert!(!together, "QEMU {first}, we {second}");
                    assert!(holder.contains(&named), "{holder}");
                }
                Err(e) => panic!("{e}"),
            }
        }
        let _image = ours(first).unwrap();
        let opened = Qemu::open(&path, second).is_some();
        assert_eq!(opened, together, "we {first}, QEMU {second}");
    }
}

#[test]
fn qemu_img_is_kept_out_while_we_write() {
    let _alone = alone();
    if !has_qemu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 1 << 20);
    let (file, copy) = (path.to_str().unwrap(), folder.path().join("b.img"));
    let run = |args: &[&str]| -> Output { Command::new("qemu-img").args(args).output().unwrap() };
    // (`qemu-img info` reads no data and takes no lock.)
    let commands: [&[&str]; 2] = [
        &["convert", "-f", "raw", "-O", "raw", file, copy.to_str().unwrap()],
        &["resize", "-f", "raw", file, "2M"],
    ];
    let image = Image::open(&path, &RW).unwrap();
    for command in commands {
        let refused = run(command);
        assert!(!refused.status.success(), "{command:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("lock"), "{refused:?}");
    }
    drop(image);
    for command in commands {
        assert!(run(command).status.success(), "{command:?}");
    }
}
