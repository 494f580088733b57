//! Preemption as the guest's own ticks show it (`bpf/tick.bpf.c`), where no host tells it: the
//! return to the time of an interrupt, the loss to a tick.

use super::{EdgeParams, Edges, load, possible_vcpus};
use crate::migrate::bpf::BpfError;
use seekway_core::units::Nanos;
use std::fs;
use std::sync::Arc;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tick.bpf.o"));

/// Ticks without a look after which a vCPU was away: one could have come late.
const MISSED: u64 = 2;
/// vCPUs without ticks, as `nohz_full` on the kernel's command line names them.
const TICKLESS: &str = "/sys/devices/system/cpu/nohz_full";

/// Load the programs.
///
/// # Errors
/// Ticks do not come by timers here, some vCPUs have none, or BPF is not allowed.
pub fn open() -> Result<Arc<Edges>, BpfError> {
    with(tick()?, possible_vcpus()?)
}

fn with(tick: Nanos, vcpus: usize) -> Result<Arc<Edges>, BpfError> {
    let least = tick.scaled(MISSED, 1);
    // A vCPU that runs looks once a tick at least.
    let (look, blur) = (tick.scaled(1, 4), tick);
    let given = EdgeParams { least, look, vcpus, steal_from_rq: 0, blur };
    let mut edges = load("tick", OBJECT, given)?;
    edges.programs.attach()?;
    Ok(Arc::new(edges))
}

/// From tick to tick, where each busy vCPU has them and programs can see them.
fn tick() -> Result<Nanos, BpfError> {
    let absent = |why: String| Err(BpfError::Absent(why));
    // The file is not there where the kernel cannot do without ticks.
    let tickless = fs::read_to_string(TICKLESS).unwrap_or_default();
    if tickless.contains(|c: char| c.is_ascii_digit()) {
        return absent(format!("vCPUs {} have no ticks (nohz_full)", tickless.trim()));
    }
    // Coarse clocks go on with each tick; the others tell how exact timers are.
    let (tick, timer) =
        (resolution(libc::CLOCK_MONOTONIC_COARSE), resolution(libc::CLOCK_MONOTONIC));
    if timer >= tick {
        return absent("the kernel's ticks are not timers (highres=off)".into());
    }
    Ok(tick)
}

fn resolution(clock: libc::clockid_t) -> Nanos {
    let mut of = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is ours; Linux has both clocks, so that it cannot fail.
    unsafe { libc::clock_getres(clock, &raw mut of) };
    Nanos::from_secs(of.tv_sec as u64) + Nanos::new(of.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_vcpu::VCPUS_MAX;

    #[test]
    fn a_tick_is_as_long_as_some_kernel_has_it() {
        let tick = resolution(libc::CLOCK_MONOTONIC_COARSE);
        let hz = [100, 250, 300, 1000].map(|hz| 1_000_000_000 / hz);
        assert!(hz.iter().any(|&ns| tick.get().abs_diff(ns) < 1000), "{tick:?}");
    }

    /// The kernel's verifier follows each loop over the vCPUs, as for `steal`.
    #[test]
    fn the_programs_load_for_any_number_of_vcpus() {
        for vcpus in [1, 2, 4, 17, VCPUS_MAX] {
            match with(Nanos::from_millis(4), vcpus) {
                Ok(_) => {}
                Err(BpfError::Forbidden(why)) => return seekway_testing::skip(why),
                Err(e) => panic!("{vcpus} vCPUs: {e}"),
            }
        }
    }
}
