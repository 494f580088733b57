//! **cscan**: the circular scan. Always ascending; at the end, back to the
//! lowest request without serving anything on the way.
//!
//! Source: the textbook rule (Seaman, Lind, Wilson: "On teleprocessing system
//! design, part IV", IBM Systems Journal 5(3), 1966), in the form that turns
//! at the last request instead of the last cylinder (C-LOOK), as all use it.
//!
//! Requests at the same sector go in slot order. Each dispatch moves the head
//! up, so a sweep ends and no request waits for more than the rest of the
//! sweep and the one after.

use crate::entry::{Entry, Starves};
use seekway_core::queues::Sorted;
use seekway_core::request::{Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::Instant;

pub(super) const ENTRY: Entry = Entry {
    name: "cscan",
    summary: "circular scan: ascending, then back to the lowest request",
    source: "textbook C-SCAN, turning at the last request (C-LOOK)",
    params: &[],
    holds: &[],
    keeps: &[],
    starves: &[Starves {
        with: "",
        why: "the sweep never passes a stream that goes on ahead of the head",
    }],
    build: |_| Ok(Box::new(Cscan::default())),
};

#[derive(Default)]
struct Cscan {
    queued: Sorted,
    sweeps: u64,
}

impl Scheduler for Cscan {
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
        let (lba, id) = match self.queued.places().at_or_after(device.head) {
            Some(ahead) => ahead,
            None => match self.queued.places().first() {
                Some(lowest) => lowest,
                None => return Decision::Idle,
            },
        };
        self.sweeps += (lba < device.head) as u64;
        self.queued.take(id);
        Decision::Dispatch(id)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("sweeps", self.sweeps as f64);
    }
}

#[cfg(test)]
mod tests {
    use crate::schedulers::tests::Rig;

    #[test]
    fn ascends_and_starts_again_at_the_lowest() {
        let mut rig = Rig::new("cscan");
        rig.head = seekway_core::units::Lba::new(400);
        rig.reads(0, [500, 100, 900, 300]);
        assert_eq!(rig.serve_n(2), [500, 900]);
        rig.read(1, 800);
        assert_eq!(rig.serve_n(3), [100, 300, 800]);
        assert!(rig.is_idle());
        assert_eq!(rig.metric("sweeps"), 1.0);
    }

    #[test]
    fn rewriting_one_place_starves_nobody() {
        let mut rig = Rig::new("cscan");
        rig.write(0, 100);
        rig.read(1, 50);
        assert_eq!(rig.serve(1), 50);
        rig.read(1, 5_000);
        assert_eq!(rig.serve(1), 100);
        rig.write(0, 100);
        assert_eq!(rig.serve_n(2), [5_000, 100]);
    }
}
