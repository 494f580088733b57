//! Long requests go to the dispatcher in pieces, one after the other, so that the device does other
//! things in between: a guest can ask for a gibibyte in one request. Discards and write-zeroes go in
//! pieces on every device, since an image may have to write them; reads and writes on one with a
//! head, which does one thing at a time.
//!
//! The dispatcher orders discards and write-zeroes among the requests of their VM: a bounded number
//! of each VM is there, the others wait here.

use super::Stack;
use crate::request::{Extent, Op, VmId};
use crate::units::{Instant, Sectors};

/// Discards and write-zeroes of one VM that the dispatcher has at once: it
/// compares each with all others, which a guest could make expensive for all.
const BARRIERS_MAX: u32 = 16;

/// The longest piece of a discard or write-zeroes: 16 MiB.
const BARRIER_PIECE_MAX: Sectors = Sectors::new(16 << 11);
/// That of a read or write on a device with a head, 1 MiB: some 10 ms, a seek's time.
const DATA_PIECE_MAX: Sectors = Sectors::new(1 << 11);

impl Stack {
    /// Discards and write-zeroes reach the dispatcher, as many as there is room
    /// for. A guest that cares for their order among its own requests waits for
    /// them (virtio 1.2, 5.2.6; NBD likewise), so that others may overtake. The
    /// cache hears of each when it goes, and looks for no more at one time than a
    /// VM may have it look for; one is always under way, whose end brings the next.
    pub(super) fn unpark(&mut self, now: Instant, vm: VmId) {
        if self.disk(vm).leaving {
            return self.abandon_parked(now, vm);
        }
        while let Some(Some(disk)) = self.disks.get_mut(vm.index())
            && disk.barriers < BARRIERS_MAX
            && (disk.barriers == 0 || disk.load.may_forget(now))
            && let Some(call) = disk.parked.pop_front()
        {
            disk.barriers += 1;
            let (len, unsent) = (self.calls[call].request.extent.len(), self.calls[call].unsent);
            if unsent == len {
                if disk.cached {
                    disk.load.forgot(now, len.bytes());
                }
                self.write_begins(now, call);
            }
            self.send_piece(now, call, BARRIER_PIECE_MAX);
        }
    }

    /// A read or write reaches the dispatcher, the first piece of it where it goes in pieces.
    pub(super) fn arrive_data(&mut self, now: Instant, call: u32) {
        let (len, has_head) = (self.calls[call].request.extent.len(), self.profile().rotational());
        self.calls[call].unsent = len;
        self.send_piece(now, call, if has_head { DATA_PIECE_MAX } else { len });
    }

    /// The next pieces of reads and writes of which one is done.
    pub(super) fn send_rests(&mut self, now: Instant) {
        while let Some(call) = self.rests.pop_front() {
            self.send_piece(now, call, DATA_PIECE_MAX);
        }
    }

    /// What a call has not sent reaches the dispatcher, as much of it as a piece may have.
    fn send_piece(&mut self, now: Instant, call: u32, most: Sectors) {
        let (whole, unsent) = (self.calls[call].request.extent, self.calls[call].unsent);
        let sent = Sectors::new(whole.len().get() - unsent.get());
        let len = most.min(unsent);
        let piece = Extent::new(whole.start() + sent, len).expect("a part of an extent");
        self.calls[call].unsent = Sectors::new(unsent.get() - len.get());
        self.arrive_part(now, call, piece);
    }

    /// A piece of a call, or all of it, is done. True when the rest of it has to go; that of a
    /// discard or write-zeroes then waits behind the VM's others.
    pub(super) fn goes_on(&mut self, index: u32) -> bool {
        let call = &self.calls[index];
        let more = call.error.is_none() && call.unsent > Sectors::ZERO;
        let (vm, op) = (call.request.vm, call.request.op);
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            let disk = self.disk(vm);
            disk.barriers -= 1;
            if more {
                disk.parked.push_back(index);
            }
        } else if more {
            self.rests.push_back(index);
        }
        more
    }
}
