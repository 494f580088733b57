//! Chooses this guest's detectors: with BPF where that works, else without. Either way they see
//! when vCPUs are taken away and which tasks wait for I/O.

use super::loads::{Loads, proc::Proc};
use super::preemption::{Preemption, heartbeat::Heartbeat};
use crate::agent::AgentError;
use std::io;

/// A detector, and its name in `status`.
type Named<T> = (&'static str, Box<T>);

/// The detectors of this guest.
pub struct Detectors {
    pub preemption: Named<dyn Preemption>,
    pub loads: Named<dyn Loads>,
    /// Better ones, and why they do not work here.
    pub passed_over: Vec<String>,
}

impl Detectors {
    /// Opens the best that work here, or those without BPF if `bpf` is false. The threads of this
    /// process are not looked at.
    ///
    /// # Errors
    /// The kernel does not count the I/O of threads, or their time.
    pub fn open(bpf: bool) -> Result<Detectors, AgentError> {
        let own = std::process::id().cast_signed();
        let mut passed_over = Vec::new();
        if bpf && let Some((preemption, loads)) = with_bpf(own, &mut passed_over) {
            return Ok(Detectors { preemption, loads, passed_over });
        }
        let cannot = |e: io::Error| {
            AgentError::Usage(format!("waits for I/O cannot be seen here: {e}; run as root"))
        };
        let loads = Box::new(Proc::open(own).map_err(cannot)?);
        let preemption = Box::new(Heartbeat);
        Ok(Detectors { preemption: ("heartbeat", preemption), loads: ("proc", loads), passed_over })
    }
}

/// Absences by KVM's steal time, or by ticks where KVM tells none.
#[cfg(feature = "bpf")]
fn with_bpf(
    own: i32,
    passed_over: &mut Vec<String>,
) -> Option<(Named<dyn Preemption>, Named<dyn Loads>)> {
    use super::bpf::BpfError;
    use super::loads::bpf::Bpf;
    use super::preemption::bpf::{steal, tick};
    let mut note = |name: &str, why: BpfError| passed_over.push(format!("{name}: {why}"));
    let (name, edges) = match steal::open() {
        Ok(edges) => ("steal-bpf", edges),
        Err(why) => {
            note("steal-bpf", why);
            ("tick-bpf", tick::open().map_err(|why| note("tick-bpf", why)).ok()?)
        }
    };
    let loads = Bpf::open(own).map_err(|why| note("bpf", why)).ok()?;
    Some(((name, Box::new(edges)), ("bpf", Box::new(loads))))
}

#[cfg(not(feature = "bpf"))]
fn with_bpf(
    _own: i32,
    _passed_over: &mut Vec<String>,
) -> Option<(Named<dyn Preemption>, Named<dyn Loads>)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_bpf_there_are_always_some_and_with_it_others_say_why_not() {
        let names = |detectors: &Detectors| (detectors.preemption.0, detectors.loads.0);
        let without = Detectors::open(false).unwrap();
        assert_eq!((names(&without), without.passed_over.len()), (("heartbeat", "proc"), 0));
        let best = Detectors::open(true).unwrap();
        match names(&best) {
            ("steal-bpf", "bpf") => assert!(best.passed_over.is_empty()),
            ("tick-bpf", "bpf") => assert_eq!(best.passed_over.len(), 1),
            ("heartbeat", "proc") => {
                assert!(!cfg!(feature = "bpf") || !best.passed_over.is_empty());
            }
            names => panic!("{names:?}"),
        }
    }
}
