//! The plan of a seed: its load and its faults.

use super::kernel::Faults;
use super::random::Random;
use seekway_core::units::Nanos;
use seekway_policy::{prefetchers, schedulers};

/// Load and faults of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub policy: &'static str,
    pub prefetcher: Option<&'static str>,
    pub throttle: bool,
    pub depth: Option<u32>,
    pub hard_limit: Nanos,
    pub limits: bool,
    /// The daemon is killed, and the power fails, once in this number of steps.
    pub kills: u64,
    pub power_fails: u64,
    /// VMMs take memory away, and VMMs have used up what they may hold, once in this number of
    /// steps.
    pub cuts: u64,
    pub shortages: u64,
    /// Disks and guests' memory have room for requests that the device gets in pieces.
    pub is_long: bool,
    pub faults: Faults,
}

impl Plan {
    pub fn of(random: &mut Random) -> Plan {
        let policies: Vec<&'static str> = schedulers::REGISTRY.iter().map(|e| e.name).collect();
        let prefetchers: Vec<&'static str> = prefetchers::REGISTRY.iter().map(|e| e.name).collect();
        let prefetcher = random.one_of(&prefetchers);
        let faulty = random.once_in(2);
        let mut sometimes = |often: &[u64]| if faulty { random.one_of(often) } else { 0 };
        let faults = Faults {
            fails: sometimes(&[0, 10, 50]),
            short: sometimes(&[0, 4, 20]),
            again: sometimes(&[0, 10]),
            disarms: sometimes(&[0, 3]),
            no_holes: sometimes(&[0, 1]) == 1,
            hangs: sometimes(&[0, 0, 30]),
            sends: 0,
        };
        let mut apart = random.apart();
        Plan {
            cuts: apart.one_of(&[0, 0, 50]),
            // Few steps hold anything.
            shortages: apart.one_of(&[0, 0, 3]),
            is_long: apart.once_in(16),
            faults: Faults { sends: apart.one_of(&[0, 0, 0, 3, 20]), ..faults },
            policy: random.one_of(&policies),
            prefetcher: random.once_in(2).then_some(prefetcher),
            throttle: random.once_in(10),
            depth: random.one_of(&[None, Some(1), Some(4)]),
            hard_limit: Nanos::from_millis(random.one_of(&[5, 400, 30_000])),
            limits: random.once_in(6),
            kills: random.one_of(&[0, 40, 100]),
            power_fails: random.one_of(&[0, 0, 80]),
        }
    }
}
