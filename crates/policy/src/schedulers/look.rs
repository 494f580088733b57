//! **look**: the elevator. Ascending until no request lies ahead, then
//! descending, and so on.
//!
//! Source: the textbook rule (Denning: "Effects of scheduling on file memory
//! operations", AFIPS 1967, names it SCAN; LOOK is SCAN that turns at the last
//! request). A policy that only orders requests cannot send the head to the
//! last cylinder for nothing, so SCAN and LOOK are one entry.
//!
//! Ascending, a request lies ahead when it starts at or after the head;
//! descending, when it starts below the last one dispatched. So each dispatch
//! moves the sweep by a sector at least, every sweep ends, and rewriting one
//! place for ever does not hold the head there.

use crate::entry::{Entry, Starves};
use seekway_core::queues::Sorted;
use seekway_core::request::{Extent, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::{Instant, Lba};

pub(super) const ENTRY: Entry = Entry {
    name: "look",
    summary: "elevator: ascending, then descending, turning at the last request",
    source: "textbook LOOK (SCAN that turns at the last request)",
    params: &[],
    holds: &[],
    keeps: &[],
    starves: &[Starves {
        with: "",
        why: "the sweep never passes a stream that goes on ahead of the head",
    }],
    build: |_| Ok(Box::new(Look::default())),
};

#[derive(Default)]
struct Look {
    queued: Sorted,
    descending: bool,
    /// Extent that was dispatched last.
    last: Option<Extent>,
    turns: u64,
}

impl Look {
    fn select(&mut self, head: Lba) -> Option<RequestId> {
        let ahead = match self.descending {
            false => self.queued.places().at_or_after(head),
            true => self.queued.places().before(self.below(head)),
        };
        if let Some((_, id)) = ahead {
            return Some(id);
        }
        if self.queued.places().is_empty() {
            return None;
        }
        self.turns += 1;
        self.descending = !self.descending;
        // After the turn downwards the head itself is the limit, for what starts
        // inside the last request has not been passed yet.
        let turned = match self.descending {
            false => self.queued.places().at_or_after(head),
            true => self.queued.places().before(head),
        };
        if let Some((_, id)) = turned {
            return Some(id);
        }
        // Upwards from the lowest place nothing lies ahead: what is left starts
        // inside the last request.
        self.descending = true;
        self.queued.places().before(head).map(|(_, id)| id)
    }

    /// Where a descending sweep stands.
    fn below(&self, head: Lba) -> Lba {
        match self.last {
            Some(last) if last.end() == head => last.start(),
            _ => head,
        }
    }
}

impl Scheduler for Look {
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
        let Some(id) = self.select(device.head) else { return Decision::Idle };
        self.last = Some(self.queued.take(id).extent);
        Decision::Dispatch(id)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("turns", self.turns as f64);
    }
}

#[cfg(test)]
mod tests {
    use crate::schedulers::tests::Rig;
    use seekway_core::units::Lba;

    #[test]
    fn turns_at_the_last_request() {
        let mut rig = Rig::new("look");
        rig.head = Lba::new(400);
        rig.reads(0, [500, 100, 900, 300]);
        assert_eq!(rig.serve_n(2), [500, 900]);
        rig.read(1, 950);
        assert_eq!(rig.serve_n(1), [950]);
        rig.read(1, 960);
        assert_eq!(rig.serve_n(3), [960, 300, 100]);
        rig.read(0, 50);
        rig.read(0, 200);
        assert_eq!(rig.serve_n(2), [50, 200]);
        assert_eq!(rig.metric("turns"), 2.0);
    }

    #[test]
    fn rewriting_one_place_starves_nobody_in_either_direction() {
        let mut rig = Rig::new("look");
        rig.head = Lba::new(1_000);
        rig.write(0, 500);
        rig.read(1, 100);
        assert_eq!(rig.serve(1), 500);
        rig.write(0, 500);
        assert_eq!(rig.serve(1), 100);
        rig.read(1, 9_000);
        assert_eq!(rig.serve(1), 500);
        rig.write(0, 500);
        assert_eq!(rig.serve_n(2), [9_000, 500]);
    }

    #[test]
    fn what_starts_inside_the_last_request_is_served_at_last() {
        let mut rig = Rig::new("look");
        rig.reads(0, [100, 100, 104]);
        assert_eq!(rig.serve_n(3), [100, 104, 100]);
        assert!(rig.is_idle());
    }
}
