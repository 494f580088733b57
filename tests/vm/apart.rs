//! A guest without the daemon: it has the agent, and a disk of QEMU's own to read from.

use seekway_live::{Guest, GuestImage, GuestSpec, Kernel, LiveError, Result, Shipped};
use std::fs::File;
use std::path::Path;
use tempfile::TempDir;

const DISK_BYTES: u64 = 64 << 20;

/// In a guest's shell: `$disk` is its disk, which has this serial number.
pub const FIND_DISK: &str =
    "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = apart ] && disk=/dev/${d##*/}; done\n";

/// Boot a kernel. The folder has the disk.
pub fn boot(kernel: Kernel, agent: &Path, spec: GuestSpec) -> Result<(Guest, TempDir)> {
    let image = GuestImage::prepare_with(kernel)?;
    let dir = tempfile::tempdir().expect("a directory");
    let disk = dir.path().join("disk.img");
    File::create(&disk).and_then(|f| f.set_len(DISK_BYTES)).expect("an image");
    let shipped = Shipped::new(agent, "seekway-guest", dir.path())?;
    let mut extra = shipped.args().to_vec();
    let drive = format!("file={},format=raw,if=none,id=apart", disk.display());
    extra.extend(["-drive".into(), drive, "-device".into()]);
    extra.push("virtio-blk-pci,drive=apart,serial=apart".into());
    let mut guest = Guest::start(&image, &GuestSpec { extra, ..spec })?;
    guest.wait_ready()?;
    shipped.install(&mut guest)?;
    Ok((guest, dir))
}

/// What a test does with a guest of its own, for each kernel. If the kernel ends with an oops it
/// does it once more, and says so: QEMU 7.2 with several threads breaks an emulated kernel now
/// and then (seen: int3, a list of Debian's 6.12 in `percpu_counter_destroy_many`), and nothing
/// of the daemon's is in these guests. Panics if that fails too.
pub fn for_each(kernels: &[Kernel], mut test: impl FnMut(Kernel) -> Result<()>) {
    for &kernel in kernels {
        let result = match test(kernel) {
            Err(e) if is_oops(&e) => {
                eprintln!("{kernel:?}: {e}; once more");
                test(kernel)
            }
            result => result,
        };
        result.unwrap_or_else(|e| panic!("{kernel:?}: {e}"));
    }
}

/// Did the guest's kernel end by a fault of its own code?
fn is_oops(error: &LiveError) -> bool {
    matches!(error, LiveError::Gone { console, .. } if console.contains("---[ end trace "))
}

#[test]
fn a_kernel_that_oopses_is_asked_once_more_and_nothing_else_is() {
    let gone = |console: &str| LiveError::Gone {
        guest: "a".into(),
        status: "exit status: 0".into(),
        stderr: String::new(),
        console: console.into(),
    };
    let mut tries = 0;
    for_each(&[Kernel::Current], |_| {
        tries += 1;
        if tries == 1 {
            Err(gone("[    6.878023] ---[ end trace 0000000000000000 ]---"))
        } else {
            Ok(())
        }
    });
    assert_eq!(tries, 2);
    assert!(!is_oops(&gone("reboot: Restarting system")));
    assert!(!is_oops(&LiveError::Measured("---[ end trace 0 ]---".into())));
}
