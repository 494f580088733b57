//! QEMU's command line for a guest.

use super::{Accelerator, GuestSpec};
use crate::image::GuestImage;
use std::path::Path;
use std::process::Command;

pub(super) const QEMU: &str = "qemu-system-x86_64";
/// The guest's serial console, below the guest's directory.
pub(super) const CONSOLE: &str = "console.log";

/// The command that runs `spec` with its sockets and logs in `dir`.
pub(super) fn qemu(image: &GuestImage, spec: &GuestSpec, dir: &Path) -> Command {
    let mut command = Command::new(QEMU);
    let mut arg = |args: &[&str]| {
        command.args(args);
    };
    arg(&["-name", &format!("{},debug-threads=on", escape(&spec.name))]);
    // mitigations=off: nobody in these guests has secrets, and under TCG the
    // barriers cost time.
    let mut kernel =
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check".to_string();
    match spec.accelerator {
        Accelerator::Tcg | Accelerator::TcgOneThread => {
            let threads = match spec.accelerator {
                Accelerator::TcgOneThread => "single",
                _ => "multi",
            };
            // QEMU 7.2's cmpxchg16b breaks the flags now and then, and with them
            // the allocator of Linux 6.12: it does without where there is none.
            arg(&["-accel", &format!("tcg,thread={threads}"), "-cpu", "max,-cx16"]);
            // The clock of a busy host is no reason to look for another.
            kernel.push_str(" tsc=reliable");
        }
        Accelerator::Kvm => arg(&["-accel", "kvm", "-cpu", "host"]),
    }
    arg(&["-nodefaults", "-display", "none", "-machine", "pc,memory-backend=mem"]);
    arg(&["-smp", &spec.cpus.to_string()]);
    let size = format!("{}M", spec.memory_mb);
    // The server of a vhost-user disk maps the guest's memory.
    arg(&["-object", &format!("memory-backend-memfd,id=mem,size={size},share=on")]);
    arg(&["-m", &size]);
    arg(&["-serial", &format!("file:{}", below(dir, CONSOLE))]);
    arg(&["-chardev", &format!("socket,id=qmp,path={}", below(dir, "qmp"))]);
    arg(&["-mon", "chardev=qmp,mode=control"]);
    arg(&["-device", "virtio-serial-pci"]);
    for port in ["control", "events"] {
        arg(&["-chardev", &format!("socket,id={port},path={}", below(dir, port))]);
        arg(&["-device", &format!("virtserialport,chardev={port},name=seekway.{port}")]);
    }
    for (n, disk) in spec.disks.iter().enumerate() {
        let reconnect = if disk.reconnect { ",reconnect=1" } else { "" };
        let socket = escape(&disk.socket.to_string_lossy());
        arg(&["-chardev", &format!("socket,id=disk{n},path={socket}{reconnect}")]);
        let queues = disk.queues;
        arg(&["-device", &format!("vhost-user-blk-pci,chardev=disk{n},num-queues={queues}")]);
    }
    if !spec.reboots {
        arg(&["-no-reboot"]);
    }
    arg(&["-append", &kernel]);
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
    command.args(&spec.extra);
    command
}

fn below(dir: &Path, name: &str) -> String {
    escape(&dir.join(name).to_string_lossy())
}

/// In QEMU's option lists a comma within a value is written twice.
fn escape(value: &str) -> String {
    value.replace(',', ",,")
}
