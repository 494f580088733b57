//! The real reactor on rings that tests play: in a simulated host (`swarm`), beside the simulator
//! (`parity`), with messages and completions in each order (`mailbox`, `taking`), with clients that
//! it replies to (`replies`), and at its end (`ending`).

mod ending;
mod mailbox;
pub(super) mod parity;
mod replies;
mod swarm;
pub(super) mod taking;

use super::{Poll, Setup, Submitter};
use crate::images::Limits;
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Nanos, Sectors};
use seekway_stack::dispatcher::COALESCE_DEFAULT;

/// Limits of a disk of 1 GiB.
pub(crate) const LIMITS: Limits = Limits {
    capacity_bytes: 1 << 30,
    logical_block_bytes: 512,
    physical_block_bytes: 4096,
    align_bytes: 512,
    memory_align_bytes: 512,
    read_only: false,
    rotational: false,
};

/// A reactor under noop, without a cache.
pub(crate) fn setup(name: &str) -> Setup {
    Setup {
        name: name.into(),
        policy: "noop".into(),
        depth: None,
        coalesce: COALESCE_DEFAULT,
        hard_limit: Nanos::from_secs(30),
        cache: None,
        throttle: None,
        profile: DeviceProfile::unknown(Sectors::new(1 << 32), false),
        tags: None,
        poll: Poll::OFF,
        submitter: Submitter::Own,
        journal: None,
        groups: Vec::new(),
    }
}
