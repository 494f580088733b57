//! **none**: fetches nothing of its own accord. A cache with it keeps what
//! guests have read.

use super::Entry;
use seekway_core::prefetcher::Prefetcher;

pub(super) const ENTRY: Entry = Entry {
    name: "none",
    summary: "no prefetching",
    source: "the baseline",
    params: &[],
    build: |_| Ok(Box::new(Nothing)),
};

struct Nothing;

impl Prefetcher for Nothing {}
