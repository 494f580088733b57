//! **flashy** (flashy prefetching, as the VIO-prefetching paper, 4.3, compares
//! itself with it): [vio](super::vio) without knowledge of who reads. Each
//! region of each VM's disk, by default all of it, is one state machine, which
//! compares every read with those before it. Two processes that read by turns
//! look like one that jumps. The rules are in [`super::following`]; they are the
//! paper's letter with `literal=true` only.

use super::Entry;
use super::following::{INTERVAL, Key, StreamFollower, THRESHOLD};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::prefetcher::Prefetcher;
use seekway_core::units::Sectors;

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("region", Kind::Size, "0",
        "size of the regions that are told apart; 0: the whole disk is one"),
    param("literal", Kind::Flag, "false", "the paper's letter: as far ahead as a reader's pace says"),
];

/// Furthest ahead of a reader, as with vio.
const LEAD: Sectors = Sectors::from_bytes(4 << 20);

pub(super) const ENTRY: Entry = Entry {
    name: "flashy",
    summary: "one stream for each VM's disk or region of it, blind to processes",
    source: "VIO-prefetching (IEEE TSC 2015), section 4.3",
    params: PARAMS,
    build,
};

fn build(params: &Params) -> Result<Box<dyn Prefetcher>, ParamError> {
    let region = match params.size("region").get() {
        0 => u64::MAX,
        sectors if sectors < 8 => {
            let why = format!("region={sectors}: at least a block of 8 sectors, or 0");
            return Err(ParamError::new(why));
        }
        sectors => sectors,
    };
    let lead = (!params.flag("literal")).then_some(LEAD);
    let key = Key::Region(region);
    Ok(Box::new(StreamFollower::new(Some(INTERVAL), Some(THRESHOLD), lead, key)))
}
