//! The targets, one file for each.

mod chain;
mod control;
mod guest;
mod inflight;
mod input;
mod journal;
mod nbd_options;
mod nbd_requests;
mod nbd_session;
mod served;
mod traces;
mod vhost_session;
mod vring;

use crate::Target;

/// All targets, in the order in which they are listed.
pub static TARGETS: &[Target] = &[
    chain::TARGET,
    vring::TARGET,
    vhost_session::TARGET,
    inflight::TARGET,
    nbd_options::TARGET,
    nbd_requests::TARGET,
    nbd_session::TARGET,
    traces::TARGET,
    control::TARGET,
    journal::TARGET,
];
