//! **none**: fetches nothing of its own accord. A cache with it keeps what
//! guests have read.

use super::Entry;
use crate::prefetcher::{Access, Prefetcher, Proposal};
use crate::request::VmId;
use crate::units::{Instant, Sectors};

pub(super) const ENTRY: Entry = Entry {
    name: "none",
    summary: "no prefetching",
    source: "the baseline",
    params: &[],
    build: |_| Ok(Box::new(Nothing)),
};

struct Nothing;

impl Prefetcher for Nothing {
    fn attach(&mut self, _now: Instant, _vm: VmId, _capacity: Sectors) {}
    fn detach(&mut self, _vm: VmId) {}
    fn accessed(&mut self, _now: Instant, _access: &Access) {}
    fn propose(&mut self, _now: Instant, _room: Sectors) -> Option<Proposal> {
        None
    }
}
