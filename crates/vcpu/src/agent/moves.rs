//! The steps of a move: first the task's mask is set to the destination alone, then to all vCPUs
//! that the policy named.
//!
//! The kernel does not move a task that sleeps: it places the task when it wakes, and only a
//! mask of one vCPU says where. So such a task keeps that mask until it was seen there.

use super::super::{VcpuId, VcpuSet};

/// Workers of one vCPU, which is how many moves may be blocked there at a time.
pub const WORKERS_MAX: usize = 4;

/// Remaining steps of a move after the first change of the mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing: the task may run on its destination only.
    Nothing,
    /// Widen the mask now: the task is there.
    Widen,
    /// Widen the mask when the task was seen there.
    WidenWhenSeen,
}

/// The rest of a move to `to`, from where the task may run `within`. `on`: where it is now, if
/// that is known.
pub fn rest_of_move(to: VcpuId, within: &VcpuSet, on: Option<VcpuId>) -> Rest {
    if *within == VcpuSet::only(to) {
        Rest::Nothing
    } else if on == Some(to) {
        Rest::Widen
    } else {
        Rest::WidenWhenSeen
    }
}
