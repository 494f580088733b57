//! Which dispatches an engine will coalesce. Linux's schedulers see requests
//! that have been merged, so where they count requests (a quantum, a batch of
//! writes) the policies here count runs of adjacent ones.

use crate::request::{Op, Request};
use crate::units::{Lba, Sectors};

/// The longest run that counts as one: Linux's usual `max_sectors_kb`, 512 KiB.
const RUN_MAX: Sectors = Sectors::new(1024);

/// The run that the last dispatch belongs to.
#[derive(Default)]
pub struct Run {
    last: Option<(Op, Lba, Sectors)>,
}

impl Run {
    /// Count a dispatch: does it continue the run rather than begin one?
    pub fn extend(&mut self, request: &Request) -> bool {
        let extent = request.extent;
        if let Some((op, end, len)) = &mut self.last
            && (*op, *end) == (request.op, extent.start())
            && *len + extent.len() <= RUN_MAX
        {
            *end = extent.end();
            *len += extent.len();
            return true;
        }
        self.last = Some((request.op, extent.end(), extent.len()));
        false
    }
}
