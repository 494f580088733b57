//! **sstf**: shortest seek time first, by distance from the head.
//!
//! Source: the textbook rule (Denning: "Effects of scheduling on file memory
//! operations", AFIPS 1967).
//!
//! Distance is counted in sectors between the head and the request's start;
//! forward wins a tie. It promises nobody anything: under steady load near the
//! head a distant request starves.

use crate::entry::{Entry, Starves};
use seekway_core::queues::Sorted;
use seekway_core::request::{Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::Instant;

pub(super) const ENTRY: Entry = Entry {
    name: "sstf",
    summary: "the request nearest to the head; starves distant ones",
    source: "textbook SSTF",
    params: &[],
    holds: &[],
    keeps: &[],
    starves: &[Starves { with: "", why: "the nearest request goes, however long others wait" }],
    build: |_| Ok(Box::new(Sstf::default())),
};

#[derive(Default)]
struct Sstf {
    queued: Sorted,
}

impl Scheduler for Sstf {
    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        self.queued.take_vm(vm)
    }

    fn arrived(&mut self, _now: Instant, request: Request) {
        self.queued.insert(request);
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        self.queued.take(id);
    }

    fn decide(&mut self, _now: Instant, device: &DeviceView<'_>) -> Decision {
        let Some((_, id)) = self.queued.places().nearest(device.head) else {
            return Decision::Idle;
        };
        self.queued.take(id);
        Decision::Dispatch(id)
    }
}

#[cfg(test)]
mod tests {
    use crate::schedulers::tests::Rig;
    use seekway_core::units::Lba;

    #[test]
    fn the_nearest_goes_first_and_forward_wins_a_tie() {
        let mut rig = Rig::new("sstf");
        rig.head = Lba::new(400);
        rig.reads(0, [500, 350, 300, 900]);
        // 350 is 50 back; from its end, 358, 300 is nearer than 500; from 308 then 500.
        assert_eq!(rig.serve_n(4), [350, 300, 500, 900]);
        rig.head = Lba::new(600);
        rig.read(0, 500);
        rig.read(0, 700);
        assert_eq!(rig.serve_n(2), [700, 500]);
    }
}
