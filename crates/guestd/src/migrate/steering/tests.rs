//! Steering, with a kernel of the test's.

use super::*;
use crate::state::Stored;
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;

const INTERRUPTS: &str = "           CPU0       CPU1
  4:          0          2   IO-APIC   4-edge      ttyS0
 11:          5          0   IO-APIC  11-fasteoi   virtio1, virtio4
 24:          0          0   PCI-MSI 32768-edge      virtio0-config
 25:          0          4   PCI-MSI 32769-edge      virtio0-virtqueues
 26:          0          0   PCI-MSI 49152-edge      virtio10-config
 27:          1          0   PCI-MSI 49153-edge      virtio10-req.0
 28:          0          9   PCI-MSI 49154-edge      virtio10-req.1
LOC:        478        710   Local timer interrupts
";

/// Settings by their names; those of managed interrupts cannot be set.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<BTreeMap<String, String>>>);

impl Fake {
    fn with(settings: &[(&str, &str)]) -> Fake {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Fake(Arc::new(Mutex::new(settings.collect())))
    }

    fn value(&self, name: &str) -> String {
        self.0.lock().unwrap()[name].clone()
    }

    fn somebody_sets(&self, name: &str, value: &str) {
        self.0.lock().unwrap().insert(name.into(), value.into());
    }
}

impl Interrupts for Fake {
    fn disks(&self) -> Vec<Disk> {
        let disk = |name: &str, device: &str, queues| Disk {
            name: name.into(),
            device: device.into(),
            queues,
        };
        vec![disk("vda", "virtio0", 1), disk("vdb", "virtio10", 2), disk("vdc", "virtio4", 4)]
    }
    fn interrupts(&self) -> io::Result<String> {
        Ok(INTERRUPTS.into())
    }
    fn get(&self, setting: &Setting) -> io::Result<String> {
        let found = self.0.lock().unwrap().get(&setting.to_string()).cloned();
        found.ok_or(io::ErrorKind::NotFound.into())
    }
    fn set(&self, setting: &Setting, value: &str) -> io::Result<()> {
        if matches!(setting, Setting::Interrupt(27 | 28)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.somebody_sets(&setting.to_string(), value);
        Ok(())
    }
}

fn kernel() -> Fake {
    Fake::with(&[
        ("irq 25", "0-3"),
        ("irq 27", "0-1"),
        ("irq 28", "2-3"),
        ("irq 11", "0-3"),
        ("rq_affinity vda", "1"),
        ("rq_affinity vdb", "1"),
    ])
}

fn file(dir: &TempDir) -> StateFile {
    StateFile::lock(&dir.path().join("interrupts")).unwrap()
}

fn vcpu(number: u16) -> VcpuId {
    VcpuId::new(number)
}

#[test]
fn interrupts_are_found_by_the_device_that_has_them() {
    assert_eq!(irqs_of(INTERRUPTS, "virtio0"), [25]);
    assert_eq!(irqs_of(INTERRUPTS, "virtio1"), [11], "not those of virtio10");
    assert_eq!(irqs_of(INTERRUPTS, "virtio4"), [11]);
    assert_eq!(irqs_of(INTERRUPTS, "virtio10"), [27, 28]);
    assert!(irqs_of(INTERRUPTS, "virtio7").is_empty());
    assert!(irqs_of("no interrupts\n: x virtio0\n", "virtio0").is_empty());
}

#[test]
fn disks_with_fewer_queues_are_named_and_why_they_stay() {
    let narrow = narrow_disks(&kernel(), 4, &[]).unwrap();
    let named = |n: usize| (&*narrow[n].disk.name, narrow[n].fixed.clone());
    assert_eq!((narrow.len(), named(0)), (2, ("vda", None)));
    assert_eq!(named(1), ("vdb", Some("interrupt 27 is managed by the kernel".into())));
    assert_eq!(narrow_disks(&kernel(), 2, &[]).unwrap().len(), 1);
    assert_eq!(narrow_disks(&Fake::with(&[]), 4, &narrow).unwrap(), narrow, "they are known");
    let gone = Fake::with(&[]);
    let fixed = narrow_disks(&gone, 2, &[]).unwrap()[0].fixed.clone().unwrap();
    assert!(fixed.contains("interrupt 25"), "{fixed}");
}

#[test]
fn completions_follow_a_task_and_are_put_back_at_the_end() {
    let (dir, kernel) = (tempfile::tempdir().unwrap(), kernel());
    let steering = Steering::new(kernel.clone(), file(&dir)).unwrap();
    steering.follow(vcpu(2));
    assert_eq!(kernel.value("irq 25"), "0-3", "nobody has looked");
    steering.look(4).unwrap();
    for to in [2, 3, 3] {
        steering.follow(vcpu(to));
        assert_eq!(kernel.value("irq 25"), to.to_string());
    }
    assert_eq!(kernel.value("rq_affinity vda"), "0");
    assert_eq!(
        (kernel.value("irq 27"), kernel.value("rq_affinity vdb")),
        ("0-1".into(), "1".into())
    );
    assert_eq!(steering.take_error(), None);
    assert_eq!(steering.end().unwrap(), 0);
    assert_eq!(
        (kernel.value("irq 25"), kernel.value("rq_affinity vda")),
        ("0-3".into(), "1".into())
    );
    assert!(!dir.path().join("interrupts").exists());
}

#[test]
fn what_a_killed_agent_has_left_is_put_back_and_what_others_set_is_not() {
    let (dir, kernel) = (tempfile::tempdir().unwrap(), kernel());
    let steering = Steering::new(kernel.clone(), file(&dir)).unwrap();
    steering.look(4).unwrap();
    steering.follow(vcpu(1));
    drop(steering);
    // irqbalance comes.
    kernel.somebody_sets("irq 25", "0-1");
    let left = put_back(&kernel, &file(&dir)).unwrap();
    assert_eq!(left.map(|left| left.len()), Some(0));
    assert_eq!(
        (kernel.value("irq 25"), kernel.value("rq_affinity vda")),
        ("0-1".into(), "1".into())
    );
    assert_eq!(put_back(&kernel, &file(&dir)).unwrap(), None);
}

#[test]
fn what_somebody_else_set_is_the_original_from_then_on() {
    let (dir, kernel) = (tempfile::tempdir().unwrap(), kernel());
    let steering = Steering::new(kernel.clone(), file(&dir)).unwrap();
    steering.look(4).unwrap();
    steering.follow(vcpu(1));
    kernel.somebody_sets("irq 25", "0,2");
    steering.follow(vcpu(3));
    assert_eq!(kernel.value("irq 25"), "3");
    steering.end().unwrap();
    assert_eq!(kernel.value("irq 25"), "0,2");
}

#[test]
fn a_record_is_read_as_it_is_written_and_no_other() {
    let mut steered = Steered::default();
    steered.plan(&Setting::Interrupt(25), "0-3", "2");
    steered.plan(&Setting::Sends("vda".into()), "1", "0");
    assert_eq!(Steered::from_bytes(&steered.to_bytes()).unwrap(), steered);
    let first = "seekway-guest interrupts 1 b\n";
    for bad in [
        "",
        "seekway-guest migrate 1 b\n",
        &format!("{first}irq 5\t0\t1\n"),
        &format!("{first}irq x\t0\t1\t1\n"),
        &format!("{first}rq_affinity ../../x\t0\t1\t1\n"),
        &format!("{first}irq 5\t0\t1\tx\n"),
        &format!("{first}irq 5\t\t1\t1\n"),
    ] {
        assert!(Steered::from_bytes(bad.as_bytes()).is_err(), "{bad}");
    }
}
