//! Discards and write-zeroes on their way to the dispatcher, which orders them among the
//! requests of their VM: a bounded number of each VM is there, the others wait here. A long one
//! goes in pieces, one after the other, so that the device does other things in between: a guest
//! or client can ask for gigabytes in one request, and an image may have to write them.

use super::Stack;
use crate::request::{Extent, VmId};
use crate::units::{Instant, Sectors};

/// Discards and write-zeroes of one VM that the dispatcher has at once: it
/// compares each with all others, which a guest could make expensive for all.
const BARRIERS_MAX: u32 = 16;

/// The longest piece: 16 MiB.
const PIECE_MAX: Sectors = Sectors::new(16 << 11);

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
            let (whole, sent) = (self.calls[call].request.extent, self.calls[call].sent);
            if sent == Sectors::ZERO {
                if disk.cached {
                    disk.load.forgot(now, whole.len().bytes());
                }
                self.write_begins(now, call);
            }
            let len = PIECE_MAX.min(Sectors::new(whole.len().get() - sent.get()));
            let piece = Extent::new(whole.start() + sent, len).expect("a part of an extent");
            self.calls[call].sent = sent + len;
            self.arrive_part(now, call, piece);
        }
    }

    /// A piece of a discard or write-zeroes is done. True when the rest of it has to go, which
    /// then waits behind the VM's others.
    pub(super) fn parks_again(&mut self, index: u32) -> bool {
        let call = &self.calls[index];
        let more = call.error.is_none() && call.sent < call.request.extent.len();
        let disk = self.disk(self.calls[index].request.vm);
        disk.barriers -= 1;
        if more {
            disk.parked.push_back(index);
        }
        more
    }
}
