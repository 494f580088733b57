//! Bounds of what the device holds at once, beside the number of commands. The next command waits
//! for all of it, so it is bounded in bytes, also while one VM is alone. And a device's own queue
//! has a number of tags: an engine that sends more than there are sleeps in the kernel.

use super::Tags;
use seekway_core::request::Op;
use seekway_core::scheduler::Stripe;
use seekway_core::units::Sectors;

/// Most that one drive holds before it takes nothing more: 16 MiB. A drive of 7 GB/s has 2 ms of
/// work then, and one of 250 MB/s has 67 ms.
const DRIVE_MAX: Sectors = Sectors::new(16 << 11);
/// The longest command where tags do not bound it: 1 MiB.
const COMMAND_MAX: Sectors = Sectors::new(1 << 11);

/// Sectors and tags on the device, and their bounds.
pub(super) struct Room {
    sectors: u64,
    sectors_max: u64,
    tags: u64,
    tags_max: u64,
    /// Sectors that one tag is for.
    of_tag: u64,
}

impl Room {
    pub(super) fn new(tags: Option<Tags>, stripe: Option<Stripe>) -> Room {
        let drives = stripe.map_or(1, Stripe::members);
        let of_tag = tags.map_or(u64::MAX, |tags| tags.sectors.get().max(1));
        // The last command may take several at once.
        let most = |tags: Tags| {
            let longest = tags.command_max().min(COMMAND_MAX).get().div_ceil(of_tag);
            (tags.ours() + 1).saturating_sub(longest).max(1)
        };
        Room {
            sectors: 0,
            sectors_max: DRIVE_MAX.get() * u64::from(drives),
            tags: 0,
            tags_max: tags.map_or(u64::MAX, most),
            of_tag,
        }
    }

    /// No more may go now.
    pub(super) fn is_full(&self) -> bool {
        self.sectors >= self.sectors_max || self.tags >= self.tags_max
    }

    /// A command goes to the device.
    pub(super) fn enter(&mut self, op: Op, len: Sectors) {
        let (sectors, tags) = self.needs(op, len);
        (self.sectors, self.tags) = (self.sectors + sectors, self.tags + tags);
    }

    /// The device is done with it.
    pub(super) fn leave(&mut self, op: Op, len: Sectors) {
        let (sectors, tags) = self.needs(op, len);
        (self.sectors, self.tags) = (self.sectors - sectors, self.tags - tags);
    }

    /// Room that a command takes. A flush, discard or write-zeroes moves no data here; the kernel's
    /// own threads wait for it.
    fn needs(&self, op: Op, len: Sectors) -> (u64, u64) {
        let len = len.get();
        match op.is_data() {
            false => (0, 1),
            true if len <= self.of_tag => (len, 1),
            true => (len, len.div_ceil(self.of_tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of commands of this length that go before the room is full, and the tags that they
    /// take.
    fn fill(room: &mut Room, op: Op, kib: u64) -> (u32, u64) {
        let (len, mut commands) = (Sectors::new(kib * 2), 0);
        while !room.is_full() && commands < 1000 {
            room.enter(op, len);
            commands += 1;
        }
        let tags = room.tags;
        (0..commands).for_each(|_| room.leave(op, len));
        assert_eq!((room.sectors, room.tags), (0, 0));
        (commands, tags)
    }

    #[test]
    fn bytes_are_bounded_for_each_drive() {
        let mut one = Room::new(None, None);
        assert_eq!(fill(&mut one, Op::Read, 1024).0, 16);
        assert_eq!(fill(&mut one, Op::Write, 4).0, 1000, "short ones by their number alone");
        let stripe = Stripe::new(4, Sectors::new(128));
        assert_eq!(fill(&mut Room::new(None, stripe), Op::Read, 1024).0, 64);
    }

    #[test]
    fn three_quarters_of_the_tags_are_never_exceeded() {
        let most =
            [(64, 128, 6), (64, 1280, 16), (32, 512, 12), (2, 128, 1), (4, 64, 1), (1, 4, 1)];
        for (count, kib, commands_max) in most {
            let tags = Tags { count, sectors: Sectors::new(kib * 2) };
            let mut room = Room::new(Some(tags), None);
            let longest = tags.command_max().min(COMMAND_MAX);
            let (commands, taken) = fill(&mut room, Op::Read, longest.bytes() >> 10);
            assert_eq!(commands, commands_max, "{count} tags of {kib} KiB");
            assert!(taken <= (u64::from(count) * 3 / 4).max(1), "{taken} of {count}");
            let (_, taken) = fill(&mut room, Op::Read, 4);
            assert!(taken <= (u64::from(count) * 3 / 4).max(1), "{taken} of {count}");
        }
    }
}
