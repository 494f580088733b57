//! Which dispatches an engine will coalesce. Linux's schedulers see requests
//! that have been merged, so where they count requests (a quantum, a batch of
//! writes) the policies here count runs of adjacent ones.

use seekway_core::request::{Op, Request, VmId};
use seekway_core::units::{Lba, Sectors};

/// Furthest that the choose rule lets the head go back: 16 MiB, as in Linux (`back_seek_max`).
pub const BACK_SEEK_MAX: Sectors = Sectors::new(32_768);
/// Cost of a way back over that of the same way forward, as in Linux (`back_seek_penalty`).
pub const BACK_SEEK_PENALTY: u64 = 2;

/// The longest run that counts as one: Linux's usual `max_sectors_kb`, 512 KiB.
const RUN_MAX: Sectors = Sectors::new(1024);

/// The run that the last dispatch belongs to: requests of one VM, dispatched
/// without an input in between, as a command is made.
#[derive(Default)]
pub struct Run {
    /// VM, operation, end and length of the run.
    last: Option<(VmId, Op, Lba, Sectors)>,
}

impl Run {
    /// Would a dispatch continue the run rather than begin one?
    pub fn continues(&self, request: &Request) -> bool {
        self.continues_within(request, RUN_MAX)
    }

    /// As [`Run::continues`], for runs of at most `most` sectors, where that is less than usual.
    pub fn continues_within(&self, request: &Request, most: Sectors) -> bool {
        let extent = request.extent;
        self.last.is_some_and(|(vm, op, end, len)| {
            (vm, op, end) == (request.vm, request.op, extent.start())
                && len + extent.len() <= most.min(RUN_MAX)
        })
    }

    /// The VM whose run it is; `None` if there is no run.
    pub fn vm(&self) -> Option<VmId> {
        self.last.map(|(vm, ..)| vm)
    }

    /// A request arrived or completed: what is dispatched next is a command of
    /// its own, wherever it begins.
    pub fn end(&mut self) {
        self.last = None;
    }

    /// Count a dispatch: does it continue the run?
    pub fn extend(&mut self, request: &Request) -> bool {
        let continues = self.continues(request);
        let before = match self.last {
            Some((.., len)) if continues => len,
            _ => Sectors::ZERO,
        };
        self.last =
            Some((request.vm, request.op, request.extent.end(), before + request.extent.len()));
        continues
    }
}
