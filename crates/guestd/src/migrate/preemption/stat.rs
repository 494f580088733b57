//! `/proc/stat`: how much of each vCPU's time the host has given to others (steal), in
//! steps of 10 ms. That is too late and too coarse to move a task by, so it is no
//! [`super::Preemption`]. `status` shows it beside what the detector has seen.
//!
//! A kernel without a steal clock shows zero for ever, so a zero is an answer only where
//! there is a clock. Any steal since boot proves one. Without any, KVM's on x86 is known
//! from the processor's words ([`has_clock`]).

use seekway_policy::units::Nanos;
use seekway_policy::vcpu::{VCPUS_MAX, VcpuId};
use std::fs::{self, File};
use std::io::{self, Read};

/// `cpu0` to `cpu1023` with ten numbers each; they come first.
const FILE_BYTES_MAX: u64 = 128 << 10;
/// The kernel shows times in hundredths of a second, whatever it counts in (USER_HZ).
const TICK: Nanos = Nanos::from_millis(10);

/// Time that was taken from each vCPU since boot, in ascending order.
///
/// # Errors
/// It cannot be read, or `/proc` is not mounted.
pub fn since_boot() -> io::Result<Vec<(VcpuId, Nanos)>> {
    let mut bytes = Vec::with_capacity(FILE_BYTES_MAX as usize);
    File::open("/proc/stat")?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(parse(&bytes))
}

/// `cpuN user nice system idle iowait irq softirq steal …`, in ticks.
fn parse(bytes: &[u8]) -> Vec<(VcpuId, Nanos)> {
    let of_line = |line: &[u8]| -> Option<(VcpuId, Nanos)> {
        let mut fields = str::from_utf8(line).ok()?.split_ascii_whitespace();
        let number: u16 = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: u64 = fields.nth(7)?.parse().ok()?;
        let known = usize::from(number) < VCPUS_MAX;
        known.then(|| (VcpuId::new(number), TICK.scaled(ticks, 1)))
    };
    // The sum of all comes first and has no number; the first other line ends them.
    let lines = bytes.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.take_while(|line| line.starts_with(b"cpu")).filter_map(of_line).collect()
}

/// Has this kernel a steal clock, as far as is known? `since_boot` is what it shows. Where it has
/// none, zero means nothing.
pub fn has_clock(since_boot: &[(VcpuId, Nanos)]) -> bool {
    since_boot.iter().any(|(_, taken)| *taken > Nanos::ZERO) || kvm_clock_ticks()
}

/// KVM offers steal time, and this kernel takes what KVM offers and was not told to leave it.
fn kvm_clock_ticks() -> bool {
    let clocks = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    let has_word = |path: &str, word: &str| {
        fs::read_to_string(path).is_ok_and(|text| text.split_ascii_whitespace().any(|w| w == word))
    };
    kvm_offers_steal_time() == Some(true)
        && has_word(clocks, "kvm-clock")
        && !has_word("/proc/cmdline", "no-steal-acc")
}

/// Whether KVM offers steal time, as the processor itself says and the kernel goes by
/// (arch/x86/kernel/kvm.c, Documentation/virt/kvm/x86/cpuid.rst). The kernel may still have been
/// told to do without. `None` where nothing is told to programs.
pub fn kvm_offers_steal_time() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, CpuidResult};
        const HYPERVISOR: u32 = 1 << 31;
        const STEAL_TIME: u32 = 1 << 5;
        // SAFETY: every x86-64 has the instruction, and it changes nothing. (Safe to call from
        // Rust 1.94 on.)
        #[allow(unused_unsafe)]
        let cpuid = |leaf: u32| -> CpuidResult { unsafe { __cpuid(leaf) } };
        let is_kvm = |leaf: &u32| {
            let words = cpuid(*leaf);
            [words.ebx, words.ecx, words.edx].map(u32::to_le_bytes).concat() == b"KVMKVMKVM\0\0\0"
        };
        // Beside another hypervisor's (Hyper-V) it may stand at any of these places.
        let mut bases = (0x4000_0000..0x4001_0000).step_by(0x100);
        let base = if cpuid(1).ecx & HYPERVISOR != 0 { bases.find(is_kvm) } else { None };
        Some(base.is_some_and(|base| cpuid(base + 1).eax & STEAL_TIME != 0))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n\
                          cpu2 1 2 3 4 5 6 7 0 0 0\nintr 1 2 3\ncpu3 1 2 3 4 5 6 7 8\n";

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn taken(ticks: u64) -> [(VcpuId, Nanos); 2] {
        [(VcpuId::new(0), Nanos::ZERO), (VcpuId::new(1), TICK.scaled(ticks, 1))]
    }

    #[test]
    fn steal_is_the_eighth_number_of_each_vcpu() {
        assert_eq!(parse(TEXT), [(VcpuId::new(0), ms(80)), (VcpuId::new(2), Nanos::ZERO)]);
        assert_eq!(parse(b"cpu1024 1 2 3 4 5 6 7 8\ncpu0 1 2\n"), []);
        assert_eq!(parse(b"cpu0 1 2 3 4 5 6 7 8"), [], "cut within the number, perhaps");
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"cpu0 ", &bytes[..], b"\n"].concat());
        }
    }

    #[test]
    fn this_kernel_shows_each_vcpu_and_steal_proves_a_clock() {
        let since_boot = since_boot().unwrap();
        assert!(!since_boot.is_empty());
        assert!(since_boot.is_sorted_by_key(|(vcpu, _)| *vcpu));
        assert!(has_clock(&taken(1)));
        let shown = since_boot.iter().any(|(_, taken)| *taken > Nanos::ZERO);
        // What a kernel shows is not denied, and the processor's words agree with it.
        println!("steal shown: {shown}, KVM offers it: {}", kvm_clock_ticks());
        assert!(!shown || has_clock(&since_boot));
    }
}
