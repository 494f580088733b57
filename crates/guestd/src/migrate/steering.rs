//! Interrupts of disks with fewer queues than there are vCPUs follow the tasks that are moved.
//!
//! A request completes on the vCPU that its queue interrupts. Where that vCPU is fixed, a task
//! waits for it wherever the task is. So after each move the interrupts of such disks go to the
//! vCPU to which the task went: that one runs. The block layer would send the completion on to
//! the vCPU that asked (`rq_affinity`), which may be away by then: it is told not to.
//!
//! The kernel keeps the interrupts of a virtio disk with one vector for each queue to itself
//! (managed interrupts: a write fails with EIO). Then nothing can be done in the guest, and
//! `status` and `--probe` say so. Interrupts that can be moved: one vector for all queues
//! (`virtioN-virtqueues`), and no MSI at all.
//!
//! What is changed stands in a file of its own before it is changed, and is put back as masks
//! of tasks are. What somebody else has set in the meantime (irqbalance) is left.

mod record;
#[cfg(test)]
mod tests;

pub use record::{Setting, Steered};

use super::waited_for;
use crate::procfs;
use crate::state::StateFile;
use crate::system::Linux;
use seekway_policy::vcpu::{VcpuId, VcpuSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// The most settings that are changed: more disks are left alone.
const SETTINGS_MAX: usize = 256;

/// A virtio-blk disk of this guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Name of the block device, as `vda`.
    pub name: String,
    /// Name of the virtio device, as `virtio0`.
    pub device: String,
    pub queues: usize,
}

/// What steering needs of the kernel, so that tests can stand in for it.
pub trait Interrupts: Send + Sync {
    /// The guest's disks that are virtio devices.
    fn disks(&self) -> Vec<Disk>;
    /// `/proc/interrupts`.
    ///
    /// # Errors
    /// It cannot be read.
    fn interrupts(&self) -> io::Result<String>;
    /// A setting as it is now.
    ///
    /// # Errors
    /// The interrupt or the disk has gone, or its file cannot be read.
    fn get(&self, setting: &Setting) -> io::Result<String>;
    /// Changes a setting.
    ///
    /// # Errors
    /// It has gone, this is not allowed, or the kernel keeps it to itself (EIO).
    fn set(&self, setting: &Setting, value: &str) -> io::Result<()>;
}

impl Interrupts for Linux {
    fn disks(&self) -> Vec<Disk> {
        let disks = procfs::disk_queues().into_iter();
        let virtio = disks.filter_map(|(name, queues)| {
            let device = fs::canonicalize(format!("/sys/block/{name}/device")).ok()?;
            let device = device.file_name()?.to_str()?.to_string();
            device.starts_with("virtio").then_some(Disk { name, device, queues })
        });
        virtio.collect()
    }

    fn interrupts(&self) -> io::Result<String> {
        fs::read_to_string("/proc/interrupts")
    }

    fn get(&self, setting: &Setting) -> io::Result<String> {
        Ok(fs::read_to_string(path(setting))?.trim().to_string())
    }

    fn set(&self, setting: &Setting, value: &str) -> io::Result<()> {
        fs::write(path(setting), value)
    }
}

fn path(setting: &Setting) -> PathBuf {
    match setting {
        Setting::Interrupt(irq) => format!("/proc/irq/{irq}/smp_affinity_list").into(),
        Setting::Sends(disk) => format!("/sys/block/{disk}/queue/rq_affinity").into(),
    }
}

/// A disk whose completions may come to a vCPU that is away, and what can be done about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NarrowDisk {
    pub disk: Disk,
    /// Its interrupts, as `/proc/interrupts` numbers them.
    pub irqs: Vec<u32>,
    /// Why these cannot be moved.
    pub fixed: Option<String>,
}

/// Disks with fewer queues than `vcpus`, and whether their interrupts can be moved: each
/// interrupt is set to what it is, unless its disk is `known` from an earlier look.
///
/// # Errors
/// `/proc/interrupts` cannot be read.
pub fn narrow_disks(
    kernel: &impl Interrupts,
    vcpus: usize,
    known: &[NarrowDisk],
) -> io::Result<Vec<NarrowDisk>> {
    let disks: Vec<Disk> = kernel.disks().into_iter().filter(|d| d.queues < vcpus).collect();
    if disks.is_empty() {
        return Ok(Vec::new());
    }
    let interrupts = kernel.interrupts()?;
    let narrow = |disk: Disk| {
        let irqs = irqs_of(&interrupts, &disk.device);
        let before = known.iter().find(|before| before.disk == disk && before.irqs == irqs);
        if let Some(before) = before {
            return before.clone();
        }
        let refused = irqs.iter().find_map(|irq| {
            let setting = Setting::Interrupt(*irq);
            let same = kernel.get(&setting).and_then(|value| kernel.set(&setting, &value));
            same.err().map(|e| refusal(*irq, &e))
        });
        let none = || format!("{} has no interrupt of its own", disk.device);
        let fixed = if irqs.is_empty() { Some(none()) } else { refused };
        NarrowDisk { disk, irqs, fixed }
    };
    Ok(disks.into_iter().map(narrow).collect())
}

fn refusal(irq: u32, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EIO) => format!("interrupt {irq} is managed by the kernel"),
        _ => format!("interrupt {irq}: {error}"),
    }
}

/// The interrupts with which a virtio device tells of requests. Several devices may share one.
fn irqs_of(interrupts: &str, device: &str) -> Vec<u32> {
    let tells = |name: &str| {
        let rest = name.trim_end_matches(',').strip_prefix(device);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest == "-virtqueues" || rest.starts_with("-req.")
        })
    };
    let lines = interrupts.lines().filter_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let irq = number.trim().parse().ok()?;
        rest.split_ascii_whitespace().any(tells).then_some(irq)
    });
    lines.collect()
}

/// The disks that are steered.
pub struct Steering<K> {
    kernel: K,
    table: Mutex<Table>,
}

struct Table {
    file: StateFile,
    steered: Steered,
    /// As of the last look.
    disks: Vec<NarrowDisk>,
    /// Why the file could not be written: nothing is changed then.
    failed: Option<String>,
}

impl<K: Interrupts> Steering<K> {
    /// Nothing is steered yet. Puts back what an agent that was killed has left in `file`.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn new(kernel: K, file: StateFile) -> crate::state::Result<Steering<K>> {
        let left = put_back(&kernel, &file)?.unwrap_or_default();
        let table = Table { file, steered: left, disks: Vec::new(), failed: None };
        Ok(Steering { kernel, table: Mutex::new(table) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        waited_for(&self.table)
    }

    /// Looks which disks there are. Once a second, while tasks are moved.
    ///
    /// # Errors
    /// `/proc/interrupts` cannot be read.
    pub fn look(&self, vcpus: usize) -> io::Result<()> {
        let known = self.disks();
        let disks = narrow_disks(&self.kernel, vcpus, &known)?;
        self.table().disks = disks;
        Ok(())
    }

    /// The disks of the last look.
    pub fn disks(&self) -> Vec<NarrowDisk> {
        self.table().disks.clone()
    }

    /// A task has gone to this vCPU: completions go there too. Does not wait: if another thread
    /// is at it, its task's vCPU runs too.
    pub fn follow(&self, to: VcpuId) {
        let Ok(mut table) = self.table.try_lock() else { return };
        let Table { file, steered, disks, failed } = &mut *table;
        let there = VcpuSet::only(to).to_string();
        for disk in disks.iter().filter(|disk| disk.fixed.is_none()) {
            let interrupts = disk.irqs.iter().map(|irq| (Setting::Interrupt(*irq), &*there));
            let sends = (Setting::Sends(disk.disk.name.clone()), "0");
            for (setting, value) in interrupts.chain([sends]) {
                if let Err(e) = change(&self.kernel, file, steered, setting, value) {
                    *failed = Some(e);
                }
            }
        }
    }

    /// Why something could not be changed; once.
    pub fn take_error(&self) -> Option<String> {
        self.table().failed.take()
    }

    /// Puts all back. Returns how many settings could not be.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub fn end(&self) -> crate::state::Result<usize> {
        let mut table = self.table();
        table.disks.clear();
        let left = put_back(&self.kernel, &table.file)?;
        table.steered = left.unwrap_or_default();
        Ok(table.steered.len())
    }
}

/// Writes down the value that a setting has, and changes it.
fn change(
    kernel: &impl Interrupts,
    file: &StateFile,
    steered: &mut Steered,
    setting: Setting,
    value: &str,
) -> Result<(), String> {
    if steered.is_set_to(&setting, value) {
        return Ok(());
    }
    if !steered.has(&setting) && steered.len() >= SETTINGS_MAX {
        return Ok(());
    }
    let failed = |what: &str, e: &dyn std::fmt::Display| format!("{what} {setting}: {e}");
    let now = kernel.get(&setting).map_err(|e| failed("read", &e))?;
    if now == value && !steered.has(&setting) {
        return Ok(());
    }
    let before = steered.clone();
    steered.plan(&setting, &now, value);
    if let Err(e) = file.save(steered) {
        *steered = before;
        return Err(failed("write down", &e));
    }
    kernel.set(&setting, value).map_err(|e| failed("change", &e))
}

/// Puts back what `file` says was changed, unless somebody else has changed it since. What could
/// not be put back stays in the file and is returned; `None` if there was nothing.
///
/// # Errors
/// The file cannot be read, written or removed.
pub fn put_back(
    kernel: &impl Interrupts,
    file: &StateFile,
) -> crate::state::Result<Option<Steered>> {
    let Some(mut left) = file.load::<Steered>()?.filter(|left| left.boot == procfs::boot_id())
    else {
        file.remove()?;
        return Ok(None);
    };
    left.retain(|setting, original, ours| {
        let Ok(now) = kernel.get(setting) else { return false };
        ours.contains(&now) && now != original && kernel.set(setting, original).is_err()
    });
    file.keep(Some(&left).filter(|left| left.len() > 0))?;
    Ok(Some(left))
}
