//! **flashy** (flashy prefetching, as the VIO-prefetching paper, 4.3, compares
//! itself with it): [vio](super::vio) without knowledge of who reads. Each
//! region of each VM's disk, by default all of it, is one state machine, which
//! compares every read with those before it. Two processes that read by turns
//! look like one that jumps. The rules are in [`super::following`]; they are the
//! paper's letter with `literal=true` only.

use super::Entry;
use super::following::{FEEDBACK, INTERVAL, Key, LEAD, LITERAL, StreamFollower, THRESHOLD};
use seekway_core::params::{Kind, ParamError, ParamSpec};

const REGION: ParamSpec = ParamSpec {
    key: "region",
    kind: Kind::Size,
    default: "0",
    help: "size of the regions that are told apart; 0: the whole disk is one",
};

pub(super) const ENTRY: Entry = Entry {
    name: "flashy",
    summary: "one stream for each VM's disk or region of it, blind to processes",
    source: "VIO-prefetching (IEEE TSC 2015), section 4.3",
    params: &[REGION, INTERVAL, THRESHOLD, FEEDBACK, LEAD, LITERAL],
    build: |params| match params.size("region").get() {
        0 => StreamFollower::build(params, Key::Region(u64::MAX)),
        sectors if sectors < 8 => {
            Err(ParamError::new(format!("region={sectors}: at least a block of 8 sectors, or 0")))
        }
        sectors => StreamFollower::build(params, Key::Region(sectors)),
    },
};
