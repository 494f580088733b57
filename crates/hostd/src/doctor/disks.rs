//! Images, and the disks below them.

use super::{Facts, Finding, Level, Root, text};
use crate::config::{Config, DiskConfig};
use crate::images::{self, ImageError, OpenOptions};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Devices on top of each other (partitions, LVM, RAID, loop) that are followed.
const LAYERS_MAX: usize = 16;
/// Disks that are looked at.
const DISKS_MAX: usize = 256;

/// Each disk of the configuration, and each disk that they lie on. Without a configuration, the
/// disks of the host.
pub(super) fn images(root: &Root, facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut below = BTreeSet::new();
    let mut are_seen = false;
    for disk in &config.disks {
        let (found, device) = image(facts, disk);
        findings.extend(found.into_iter().map(|finding| finding.about(&disk.name)));
        if let Some(device) = device {
            follow(root, device, LAYERS_MAX, &mut below);
            are_seen = true;
        }
    }
    if config.disks.is_empty() {
        below.extend(physical(root));
    }
    if are_seen && below.is_empty() {
        findings.push(Finding::ok(
            "scheduler",
            "the images' file systems name no disk (tmpfs, network, btrfs, a container)",
        ));
    }
    findings.extend(below.iter().take(DISKS_MAX).flat_map(|folder| disk(folder)));
    findings
}

/// An image, and the number of the device that it is or lies on.
fn image(facts: &Facts, disk: &DiskConfig) -> (Vec<Finding>, Option<u64>) {
    let DiskConfig { path, read_only, buffered, accept_lost_writes, incoming, .. } = disk;
    let is_served = fs::canonicalize(path).is_ok_and(|path| facts.served.contains(&path));
    let options = OpenOptions {
        read_only: *read_only,
        direct: !buffered,
        accept_lost_writes: *accept_lost_writes,
        incoming: *incoming || is_served,
        block_size: disk.block_size,
    };
    let shown = path.display();
    let look = match images::look(path, &options) {
        Ok(look) => look,
        Err(e) => {
            let problem = Finding::problem("image", e.to_string(), fix(&e));
            return (vec![problem], None);
        }
    };
    let mut findings = vec![Finding::ok(
        "image",
        match is_served {
            true => format!("{shown}: served by the daemon that runs now"),
            false => format!("{shown}: {} bytes, not in use", look.size_bytes),
        },
    )];
    let warned = look.warnings.iter().map(|warning| {
        let fix = "use a raw image on ext4, XFS or a block device, or say that it is meant: the \
                   disk's option buffered";
        Finding::warning("direct I/O", warning.clone(), fix)
    });
    findings.extend(warned);
    if look.is_direct && look.warnings.is_empty() {
        findings.push(Finding::ok("direct I/O", "O_DIRECT works"));
    }
    if look.is_in_memory {
        findings.push(Finding::warning(
            "direct I/O",
            format!("{shown} is in memory (tmpfs): its data is lost when the host restarts"),
            "put the image on a disk, unless this is a test",
        ));
    }
    // The operator may say on which device the data lie (option `on`).
    let device =
        disk.on.as_deref().and_then(|on| images::device_of(on).ok()).unwrap_or(look.device);
    (findings, Some(device))
}

/// Advice about an image that cannot be opened.
fn fix(error: &ImageError) -> String {
    match error {
        ImageError::Missing { path } => format!("qemu-img create -f raw {path} 10G"),
        ImageError::Kind { .. } => "give the path of a raw image or a block device".into(),
        ImageError::Denied { path, right, .. } => {
            let mode = if *right == "read" { "r" } else { "rw" };
            format!(
                "setfacl -m u:USER:{mode} {path}   (USER runs the daemon), or chown USER {path}"
            )
        }
        ImageError::Locked { path, .. } => {
            format!("end the program that has it open: fuser -v {path}; lslocks")
        }
        ImageError::Busy { path } => format!("lsblk {path}; umount it, or give another device"),
        ImageError::Size { hint, .. } => hint.clone(),
        ImageError::WriteProtected { path } => {
            format!("serve it read-only (option ro), or: blockdev --setrw {path}")
        }
        ImageError::Format { but, .. } => format!("convert or unpack it; {but}"),
        ImageError::LostWrites { .. } => {
            "check the image (fsck, a backup), then serve it once with accept-lost-writes".into()
        }
        ImageError::Shrunk { .. } => "see docs/serve.md, resize".into(), // of a disk that is served
        ImageError::Io { path, .. } => format!("see `dmesg` and `stat {path}`"),
    }
}

/// The disks at the bottom of a device: of a partition its disk, of LVM and RAID their members,
/// of a loop device what its file lies on.
fn follow(root: &Root, device: u64, layers: usize, found: &mut BTreeSet<PathBuf>) {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let Ok(folder) = fs::canonicalize(root.path(format!("/sys/dev/block/{major}:{minor}"))) else {
        return;
    };
    follow_folder(root, folder, layers, found);
}

fn follow_folder(root: &Root, mut folder: PathBuf, layers: usize, found: &mut BTreeSet<PathBuf>) {
    if layers == 0 {
        return;
    }
    if folder.join("partition").exists() {
        folder.pop();
    }
    if let Some(file) = text(&folder.join("loop/backing_file"))
        && let Ok(about) = fs::metadata(file)
    {
        return follow(root, about.dev(), layers - 1, found);
    }
    let members = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    let members: Vec<PathBuf> =
        members.filter_map(|member| fs::canonicalize(member.path()).ok()).collect();
    if members.is_empty() {
        found.insert(folder);
    }
    members.into_iter().for_each(|member| follow_folder(root, member, layers - 1, found));
}

/// The host's disks with hardware behind them.
fn physical(root: &Root) -> Vec<PathBuf> {
    let all = fs::read_dir(root.path("/sys/block")).into_iter().flatten().flatten();
    let folders = all.filter_map(|disk| fs::canonicalize(disk.path()).ok());
    folders.filter(|folder| folder.join("device").exists()).collect()
}

/// The scheduler of a disk, and what else the kernel says of it.
fn disk(folder: &Path) -> Vec<Finding> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let value = |file: &str| text(&folder.join("queue").join(file));
    let mut findings = vec![scheduler(&name, value("scheduler").as_deref())];
    let kind = match value("rotational").as_deref() {
        Some("1") if images::is_virtual(folder) => {
            "says that it rotates, as virtual disks do; seekway does not believe it"
        }
        Some("1") => "rotates: one command at a time, unless --depth says more",
        _ => "does not rotate",
    };
    let cache = match value("write_cache").as_deref() {
        Some("write back") => "; its write cache is on: guests' flushes reach it",
        Some("write through") => "; it has no volatile write cache",
        _ => "",
    };
    let is_read_only = text(&folder.join("ro")).as_deref() == Some("1");
    findings.push(match is_read_only {
        true => Finding::warning(
            "disk below",
            format!("{kind}{cache}; the kernel has it read-only"),
            format!("blockdev --setrw /dev/{name}, after `dmesg` says why"),
        ),
        false => Finding::ok("disk below", format!("{kind}{cache}")),
    });
    findings.into_iter().map(|finding| finding.about(&name)).collect()
}

/// A scheduler of the host's under ours would change the order that the policy decided.
fn scheduler(name: &str, text: Option<&str>) -> Finding {
    const CHECK: &str = "scheduler";
    let Some(text) = text else {
        return Finding::ok(CHECK, "none (the disk has no queue of requests)");
    };
    let chosen = text.split_whitespace().find(|word| word.starts_with('['));
    let chosen = chosen.unwrap_or(text).trim_matches(['[', ']']);
    if chosen == "none" {
        return Finding::ok(CHECK, "none");
    }
    Finding::new(
        CHECK,
        Level::Warning,
        format!("{chosen} orders requests again below seekway's policy"),
        Some(format!(
            "echo none > /sys/block/{name}/queue/scheduler; for good, a line in \
             /etc/udev/rules.d/60-seekway.rules: ACTION==\"add|change\", KERNEL==\"{name}\", \
             ATTR{{queue/scheduler}}=\"none\""
        )),
    )
}
