//! Discards and write-zeroes on their way to the dispatcher, which orders them among the
//! requests of their VM: a bounded number of each VM is there, the others wait here.

use super::Stack;
use crate::request::VmId;
use crate::units::Instant;

/// Discards and write-zeroes of one VM that the dispatcher has at once: it
/// compares each with all others, which a guest could make expensive for all.
const BARRIERS_MAX: u32 = 16;

impl Stack {
    /// Discards and write-zeroes reach the dispatcher, as many as there is room
    /// for. A guest that cares for their order among its own requests waits for
    /// them (virtio 1.2, 5.2.6; NBD likewise), so that others may overtake. The
    /// cache hears of each when it goes, and looks for no more at one time than a
    /// VM may have it look for; one is always under way, whose end brings the next.
    pub(super) fn unpark(&mut self, now: Instant, vm: VmId) {
        while let Some(Some(disk)) = self.disks.get_mut(vm.index())
            && disk.barriers < BARRIERS_MAX
            && (disk.barriers == 0 || disk.load.may_forget(now))
            && let Some(call) = disk.parked.pop_front()
        {
            disk.barriers += 1;
            if disk.cached {
                disk.load.forgot(now, self.calls[call].request.extent.len().bytes());
            }
            self.write_begins(now, call);
            self.arrive(now, call);
        }
    }
}
