//! May the daemon, and the VMs, use what they need?

use super::facts::may;
use super::{Facts, Finding, Root};
use crate::config::{CONTROL_NAME, Config};
use crate::host::PATH_BYTES_MAX;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Ends the name of the longer socket of a disk.
const LONGEST_SUFFIX: &str = ".vhost";
/// Permission of users who are neither owner nor in the group to pass through a folder.
const PASS_OTHERS: u32 = 0o001;

/// Without KVM, QEMU emulates the guests' processors. The daemon does not care.
pub(super) fn kvm(root: &Root, facts: &Facts) -> Finding {
    const CHECK: &str = "KVM";
    let opened = File::options().read(true).write(true).open(root.path("/dev/kvm"));
    let error = match opened {
        Ok(_) => return Finding::ok(CHECK, "/dev/kvm can be opened"),
        Err(e) => e,
    };
    let slow = "guests run emulated and slow";
    if error.kind() != io::ErrorKind::NotFound {
        let user = facts.user.split(' ').next().unwrap_or_default();
        let fix = format!("usermod -aG kvm {user}, and log in again (QEMU's user needs it too)");
        return Finding::warning(CHECK, format!("/dev/kvm: {error}: {slow}"), fix);
    }
    let cpus = root.text("/proc/cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    let fix = match (has("vmx"), has("svm")) {
        (true, _) => "modprobe kvm_intel",
        (_, true) => "modprobe kvm_amd",
        _ => {
            "turn virtualisation on in the firmware; in a VM, nested virtualisation on its host \
             (QEMU: -cpu host)"
        }
    };
    Finding::warning(CHECK, format!("no /dev/kvm: {slow}"), fix)
}

/// Can the daemon make its sockets, and can others reach them?
pub(super) fn sockets(root: &Root, facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "sockets";
    let folder = match (&config.listen, &facts.folder) {
        (Some(folder), _) | (None, Ok(folder)) => folder.clone(),
        (None, Err(_)) if config.nbd.is_some() => {
            return Finding::ok(CHECK, "none: the disks are reached by NBD over TCP");
        }
        (None, Err(why)) => {
            let fix = "seekway serve --listen DIR, or log in so that XDG_RUNTIME_DIR is set";
            return Finding::problem(CHECK, why.clone(), fix);
        }
    };
    let shown = folder.display();
    let longest = config.disks.iter().map(|disk| disk.name.len() + LONGEST_SUFFIX.len());
    let longest = longest.chain([CONTROL_NAME.len()]).max().unwrap_or_default();
    let bytes = folder.as_os_str().len() + 1 + longest;
    if bytes > PATH_BYTES_MAX {
        return Finding::problem(
            CHECK,
            format!("{shown}: paths of {bytes} bytes; a socket's has at most {PATH_BYTES_MAX}"),
            "use a folder with a shorter path: --listen DIR",
        );
    }
    if facts.daemon_runs {
        return Finding::ok(CHECK, format!("{shown}: a daemon serves there now"));
    }
    let at = root.path(&folder);
    match fs::metadata(&at) {
        Ok(about) if !about.is_dir() => Finding::problem(
            CHECK,
            format!("{shown} is not a folder"),
            format!("rm {shown}, or choose another one: --listen DIR"),
        ),
        Ok(about) => existing(&at, about.permissions().mode(), facts, config),
        Err(_) => missing(root, &folder, facts),
    }
    .in_folder(&folder)
}

impl Finding {
    /// Says the folder where `{}` stands.
    fn in_folder(self, folder: &Path) -> Finding {
        let fill = |text: String| text.replace("{}", &folder.display().to_string());
        Finding { found: fill(self.found), fix: self.fix.map(fill), ..self }
    }
}

/// A folder that is there.
fn existing(at: &Path, mode: u32, facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "sockets";
    if !may(at, libc::W_OK | libc::X_OK) {
        let user = facts.user.split(' ').next().unwrap_or_default();
        let found = format!("{{}}: user {} may not make files there", facts.user);
        return Finding::problem(CHECK, found, format!("chown {user} {{}}, or --listen DIR"));
    }
    let others = [&config.sockets].into_iter().chain(config.disks.iter().map(|d| &d.sockets));
    let for_others = others.into_iter().any(|s| s.owner.is_some() || s.group.is_some());
    if for_others && mode & PASS_OTHERS == 0 {
        let found = format!(
            "{{}} has mode {:o}: other users, such as QEMU's, cannot reach the sockets in it",
            mode & 0o777
        );
        return Finding::warning(CHECK, found, "chmod 711 {}");
    }
    Finding::ok(CHECK, "{} can be written")
}

/// A folder that the daemon will make.
fn missing(root: &Root, folder: &Path, facts: &Facts) -> Finding {
    const CHECK: &str = "sockets";
    let above = folder.ancestors().skip(1).find(|above| root.path(above).exists());
    let above = above.unwrap_or(Path::new("/"));
    let at = root.path(above);
    if at.is_dir() && may(&at, libc::W_OK | libc::X_OK) {
        return Finding::ok(CHECK, "{} will be made");
    }
    let user = facts.user.split(' ').next().unwrap_or_default();
    Finding::problem(
        CHECK,
        format!("{{}} cannot be made: user {} may not write {}", facts.user, above.display()),
        format!("install -d -m 711 -o {user} {{}}   (as root), or --listen DIR"),
    )
}

/// Do the users and groups of the sockets exist?
pub(super) fn owners(facts: &Facts, config: &Config) -> Vec<Finding> {
    const CHECK: &str = "socket owners";
    let unknown = facts.unknown_owners.iter();
    let mut found: Vec<Finding> = unknown
        .map(|what| {
            Finding::problem(
                CHECK,
                what.clone(),
                "create it (groupadd --system NAME, useradd --system NAME), or correct \
                 socket_owner or socket_group",
            )
        })
        .collect();
    let disks = config.disks.iter().map(|disk| &disk.sockets);
    let has_owner =
        [&config.sockets].into_iter().chain(disks).any(|s| s.owner.is_some() || s.group.is_some());
    if found.is_empty() && has_owner {
        found.push(Finding::ok(CHECK, "they exist"));
    }
    found
}
