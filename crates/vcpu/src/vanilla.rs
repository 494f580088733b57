//! Nothing is done: host and guest schedule as they do.

use super::{Entry, VcpuPolicy};

pub(super) const ENTRY: Entry = Entry {
    name: "vanilla",
    summary: "nothing: tasks stay where the guest's scheduler has them",
    source: "vMigrater, section 2.3",
    params: &[],
    build: |_| Ok(Box::new(Vanilla)),
};

struct Vanilla;

impl VcpuPolicy for Vanilla {}
