//! Two policies fail: one that starves a VM, and one that says so although it does not.

use seekway_conformance::{Policy, check, keeps_contract, starves_as_said};
use seekway_core::request::{Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::Instant;
use seekway_policy::schedulers::{self, Entry, Starves};

/// Serves the VM with the lowest number as long as it has requests.
#[derive(Default)]
struct LowestFirst(Vec<Request>);

const LOWEST_FIRST: Entry = Entry {
    name: "lowest-first",
    summary: "the VM with the lowest number goes first",
    source: "these tests",
    params: &[],
    holds: &[],
    keeps: &[],
    starves: &[],
    build: |_| Ok(Box::new(LowestFirst::default())),
};
const STARVES: &[Starves] = &[Starves { with: "", why: "a VM goes before all above it" }];

impl Scheduler for LowestFirst {
    fn detach(&mut self, _: Instant, vm: VmId) -> Vec<Request> {
        self.0.extract_if(.., |queued| queued.vm == vm).collect()
    }
    fn arrived(&mut self, _: Instant, request: Request) {
        self.0.push(request);
    }
    fn withdraw(&mut self, _: Instant, id: RequestId) {
        self.0.retain(|queued| queued.id != id);
    }
    fn decide(&mut self, _: Instant, _: &DeviceView<'_>) -> Decision {
        let Some(lowest) = (0..self.0.len()).min_by_key(|&n| self.0[n].vm) else {
            return Decision::Idle;
        };
        Decision::Dispatch(self.0.remove(lowest).id)
    }
}

#[test]
#[should_panic = "lowest-first: a random reader waited for a disk for 30s"]
fn a_policy_that_starves_a_vm_fails() {
    keeps_contract(&Policy::new(&LOWEST_FIRST, ""));
    starves_as_said(&Policy::new(&LOWEST_FIRST, ""));
}

#[test]
fn a_policy_may_say_that_it_starves() {
    check(&Policy::new(&Entry { starves: STARVES, ..LOWEST_FIRST }, ""));
}

#[test]
#[should_panic = "lowest-first starves nobody, and should: a VM goes before all above it"]
fn a_policy_that_says_so_has_to() {
    const FAIR: Entry =
        Entry { starves: STARVES, build: |_| schedulers::build("noop"), ..LOWEST_FIRST };
    starves_as_said(&Policy::new(&FAIR, ""));
}
