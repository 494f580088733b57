//! **mclock**: for each VM a reservation that is met first, a weight for what
//! is left, and a limit.
//!
//! Sources: Gulati, Merchant and Varman, "mClock: Handling Throughput
//! Variability for Hypervisor IO Scheduling", OSDI 2010, section 3; and its
//! implementation in Ceph, `dmclock/src/dmclock_server.h` (commit d9204e2, March
//! 2025), in the form that Ceph's OSDs use: pull mode, tags computed when a
//! request becomes its VM's first, one server (ρ = δ = 0).
//!
//! The first request of each VM carries three tags, which are points in time:
//!
//! - reservation `R = max(arrival, previous R + cost / reserve_iops)`,
//! - proportion `P = max(arrival, previous P + cost / weight)`,
//! - limit `L = max(arrival, previous L + cost / limit_iops)`.
//!
//! If some `R` has come, the request with the least `R` goes: the reservations
//! are behind. Otherwise, of the VMs whose `L` has come the one with the least
//! `P` goes, and because this request did not use up a reservation, the VM's `R`
//! moves back by `cost / reserve_iops`. If no `L` has come, the policy holds until
//! the next `R` or `L`.
//!
//! `P` counts seconds but is not tied to the clock: a busy VM's moves ahead by a
//! second for each request over its weight. A VM without a request for five
//! minutes (and one that is new) therefore begins at the least `P` of the others. A VM
//! that was idle for less keeps its old `P`, and goes first until it has caught
//! up: with Ceph's five minutes that can be long. The paper levels a VM whenever
//! it has had no request.
//!
//! The policy does not limit what is in the device.
//!
//! Where Seekway differs:
//! - The limit is a parameter for all VMs alike, and so is the reservation of a VM
//!   that has no `reserve_iops` of its own.
//! - A request costs 1, or more when it is longer than [`IO_UNIT`]: as many as it
//!   is such units long. Ceph takes `max(bytes, bandwidth / IOPS)`, which is the
//!   same; the unit is that quotient of Ceph's defaults for solid-state drives
//!   (1,200 MiB/s, 21,500 IOPS). The paper's cost is `1 + bytes / (5 ms · bandwidth)`.
//! - In the source, the difference to the others is added to the tags of a VM that
//!   was idle, and its own last `P` stays besides: a VM that was busy before its
//!   pause begins behind the others by as much as it was ahead of the clock. Here
//!   the last `P` is forgotten, so that the VM begins level, as in the paper.
//! - Ceph looks for idle VMs once a minute, so that they are idle after 5 to 6
//!   minutes; here it is exact, decided when the VM's next request arrives.
//! - Requests that no policy sees (barriers, forced ones) are charged to nobody.

use crate::entry::Entry;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, KeyedHeap, Links, Pool};
use seekway_core::request::{Request, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Promise, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};
use std::cmp::Ordering;

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("reserve_iops", Kind::Count(0, 100_000_000), "0",
        "requests a second that each VM gets first; 0: none"),
    param("limit_iops", Kind::Count(0, 100_000_000), "0",
        "requests a second that a VM gets at most; 0: unlimited"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "mclock",
    summary: "reservations first, then weights, within limits, by tags in time",
    source: "Gulati et al., OSDI 2010; Ceph dmclock, src/dmclock_server.h",
    params: PARAMS,
    holds: &[LIMIT],
    keeps: &[Promise::Iops],
    starves: &[],
    build: |params| Ok(Box::new(MClock::new(params)?)),
};

/// A longer request counts as more than one: Ceph's default for solid-state drives, 57 KiB.
const IO_UNIT: Sectors = Sectors::new(114);
/// A VM that was idle for this time begins level with the others: Ceph's five minutes.
const IDLE: Nanos = Nanos::from_secs(300);

/// Every VM that has requests is at its limit.
const LIMIT: &str = "limit";

/// A point in time, in nanoseconds. A float: proportion tags leave the clock far
/// behind, and a rate need not divide a second.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Tag(f64);

impl Eq for Tag {}
impl PartialOrd for Tag {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Tag {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The tags of a request; a reservation or limit that is not set stays zero.
#[derive(Clone, Copy, Default)]
struct Tags {
    reservation: f64,
    proportion: f64,
    limit: f64,
}

/// A VM's queue and tags.
#[derive(Default)]
struct Client {
    attached: bool,
    weight: f64,
    /// Its reservation a second, in what a request costs; zero without one.
    reserve: f64,
    fifo: ExpiryQueue,
    /// The tags of its first request, or of its last one when it has none.
    tags: Tags,
    /// The tags before these, for a first request that is taken back.
    before: Tags,
    /// Added to its proportion tags since it was last idle.
    offset: f64,
    /// When a request last got its tags; `None` of a new VM.
    tagged: Option<Instant>,
    /// Requests that went by the reservation.
    reserved: u64,
}

#[derive(Default)]
struct MClock {
    reserve_iops: f64,
    limit_iops: f64,
    queued: Pool,
    links: Links,
    clients: Vec<Client>,
    /// The VMs that have requests: by R, by P if within their limit, by L if not.
    reservations: KeyedHeap<Tag>,
    ready: KeyedHeap<Tag>,
    limited: KeyedHeap<Tag>,
    by_reservation: u64,
    by_weight: u64,
}

fn nanos(at: Instant) -> f64 {
    at.as_nanos() as f64
}

impl MClock {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let (reserve, limit) = (params.count("reserve_iops"), params.count("limit_iops"));
        if limit > 0 && reserve > limit {
            return Err(ParamError::new(format!(
                "reserve_iops={reserve} is above limit_iops={limit}: a VM may have no more than its limit"
            )));
        }
        Ok(MClock { reserve_iops: reserve as f64, limit_iops: limit as f64, ..MClock::default() })
    }

    /// Number of requests that one counts as.
    fn cost(request: &Request) -> f64 {
        (request.extent.len().get() as f64 / IO_UNIT.get() as f64).max(1.0)
    }

    /// `RequestTag`: the tags of a VM's first request, if it has one, after those of the one
    /// before.
    fn tag(&mut self, now: Instant, vm: usize) {
        let Some(head) = self.clients[vm].fifo.head() else { return self.place(vm, false) };
        let request = self.queued.get(head).expect("in a queue: queued");
        let (arrival, cost) = (nanos(request.arrived), Self::cost(request) * 1e9);
        let client = &mut self.clients[vm];
        client.before = client.tags;
        let next = |previous: f64, rate: f64| (previous + cost / rate).max(arrival);
        client.tags.proportion = next(client.tags.proportion, client.weight);
        if client.reserve > 0.0 {
            client.tags.reservation = next(client.tags.reservation, client.reserve);
        }
        if self.limit_iops > 0.0 {
            client.tags.limit = next(client.tags.limit, self.limit_iops);
        }
        client.tagged = Some(now);
        self.place(vm, false);
    }

    /// Put a VM where its tags belong: nowhere if it has no request.
    fn place(&mut self, vm: usize, within_limit: bool) {
        let client = &self.clients[vm];
        let has = !client.fifo.is_empty();
        let ready = has && (within_limit || self.limit_iops == 0.0);
        let proportion = Tag(client.tags.proportion + client.offset);
        let reservation = has && client.reserve > 0.0;
        let limited = has && !ready;
        let vm = vm as u32;
        self.reservations.set(vm, reservation.then_some(Tag(client.tags.reservation)));
        self.ready.set(vm, ready.then_some(proportion));
        self.limited.set(vm, limited.then_some(Tag(client.tags.limit)));
    }

    /// A VM that was idle begins at the least proportion tag of those that were not.
    fn wake(&mut self, now: Instant, vm: usize) {
        let since = |at: Instant| now.since(at) < IDLE;
        if self.clients[vm].tagged.is_some_and(since) {
            return;
        }
        let active = self.clients.iter().enumerate().filter(|&(other, client)| {
            other != vm
                && client.attached
                && (!client.fifo.is_empty() || client.tagged.is_some_and(since))
        });
        let tags = active.map(|(_, client)| Tag(client.tags.proportion + client.offset));
        if let Some(Tag(least)) = tags.min() {
            let client = &mut self.clients[vm];
            client.offset = least - nanos(now);
            client.tags.proportion = 0.0;
        }
    }

    /// `do_next_request`: the VM whose turn it is and whether by its
    /// reservation; or when to ask again.
    fn next(&mut self, now: Instant) -> Result<(usize, bool), Instant> {
        let now_tag = Tag(nanos(now));
        if let Some((tag, vm)) = self.reservations.first()
            && tag <= now_tag
        {
            return Ok((vm as usize, true));
        }
        while let Some((tag, vm)) = self.limited.first()
            && tag <= now_tag
        {
            self.place(vm as usize, true);
        }
        if let Some((_, vm)) = self.ready.first() {
            return Ok((vm as usize, false));
        }
        let tags = [self.reservations.first(), self.limited.first()];
        let next = tags.into_iter().flatten().map(|(tag, _)| tag).min();
        let Tag(at) = next.expect("something is queued");
        // A float above the largest integer becomes that integer.
        Err(Instant::from_nanos(at.ceil() as u64))
    }

    /// The first request of a VM leaves: the next one gets its tags.
    fn pop(&mut self, now: Instant, vm: usize) -> Request {
        let client = &mut self.clients[vm];
        let head = client.fifo.head().expect("a VM whose turn it is has a request");
        client.fifo.remove(&mut self.links, head);
        let request = self.queued.take(head);
        self.tag(now, vm);
        request
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, now: Instant, request: &Request) {
        let vm = request.vm.index();
        let client = &mut self.clients[vm];
        let first = client.fifo.head() == Some(request.id);
        client.fifo.remove(&mut self.links, request.id);
        if first {
            client.tags = client.before;
            self.tag(now, vm);
        }
    }
}

impl Scheduler for MClock {
    fn attach(&mut self, _now: Instant, vm: VmId, spec: VmSpec) {
        if self.clients.len() <= vm.index() {
            self.clients.resize_with(vm.index() + 1, Client::default);
        }
        let weight = f64::from(spec.weight.get());
        let reserve = match spec.reserve.iops {
            0 => self.reserve_iops,
            own => own as f64,
        };
        self.clients[vm.index()] = Client { attached: true, weight, reserve, ..Client::default() };
    }

    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        let client = &mut self.clients[vm.index()];
        for request in &leaving {
            client.fifo.remove(&mut self.links, request.id);
        }
        client.attached = false;
        self.place(vm.index(), false);
        leaving
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(now, &request);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        let vm = request.vm.index();
        let first = self.clients[vm].fifo.is_empty();
        if first {
            self.wake(now, vm);
        }
        self.clients[vm].fifo.push(&mut self.links, request.id);
        self.queued.insert(request);
        if first {
            self.tag(now, vm);
        }
    }

    fn decide(&mut self, now: Instant, _device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        let (vm, by_reservation) = match self.next(now) {
            Ok(next) => next,
            Err(at) => {
                let until = at.max(now + Nanos::new(1)).min(now + HOLD_MAX);
                return Decision::Hold { until, why: LIMIT };
            }
        };
        let request = self.pop(now, vm);
        if by_reservation {
            self.by_reservation += 1;
            self.clients[vm].reserved += 1;
        } else {
            self.by_weight += 1;
            let reserve = self.clients[vm].reserve;
            if reserve > 0.0 {
                // Its place among the reservations is as if it had not gone.
                let unused = Self::cost(&request) * 1e9 / reserve;
                let client = &mut self.clients[vm];
                client.tags.reservation -= unused;
                client.before.reservation -= unused;
                let tag = Tag(client.tags.reservation);
                if self.reservations.get(vm as u32).is_some() {
                    self.reservations.set(vm as u32, Some(tag));
                }
            }
        }
        Decision::Dispatch(request.id)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("by_reservation", self.by_reservation as f64);
        sink("by_weight", self.by_weight as f64);
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        for (vm, client) in self.clients.iter().enumerate().filter(|(_, client)| client.attached) {
            sink("by_reservation", VmId::new(vm as u16), client.reserved as f64);
        }
    }
}

/// The rules of mclock, one by one.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::tests::Rig;

    /// Keep four reads of each VM queued and serve `n`, `us` each; how many of
    /// each VM.
    fn served(rig: &mut Rig, vms: &[u16], n: usize, us: u64) -> Vec<usize> {
        let mut counts = vec![0; 4];
        let mut next = 0;
        let mut read = |rig: &mut Rig, vm: u16| {
            next += 100;
            rig.read(vm, u64::from(vm) * 100_000_000 + next);
        };
        for &vm in vms {
            (0..4).for_each(|_| read(rig, vm));
        }
        for _ in 0..n {
            let vm = (rig.serve_late(us) / 100_000_000) as u16;
            counts[usize::from(vm)] += 1;
            read(rig, vm);
        }
        counts
    }

    #[test]
    fn backlogged_vms_share_by_weight() {
        let mut rig = Rig::with_weights("mclock", &[1, 2, 4]);
        let counts = served(&mut rig, &[0, 1, 2], 700, 1_000);
        for (vm, share) in [100, 200, 400].into_iter().enumerate() {
            assert!(counts[vm].abs_diff(share) <= 1, "{counts:?}");
        }
    }

    #[test]
    fn reservations_go_first_and_weights_share_the_rest() {
        // 1,000 requests a second in all; 100 of them each VM's own.
        let mut rig = Rig::with_weights("mclock:reserve_iops=100", &[1, 8]);
        let counts = served(&mut rig, &[0, 1], 1_000, 1_000);
        assert_eq!(counts.iter().sum::<usize>(), 1_000);
        // VM 0's share by weight is 111 anyway, and its reservation is a part of it.
        assert!((100..=125).contains(&counts[0]), "{counts:?}");
        let mut rig = Rig::with_weights("mclock:reserve_iops=300", &[1, 8]);
        let counts = served(&mut rig, &[0, 1], 1_000, 1_000);
        assert!((295..=310).contains(&counts[0]), "{counts:?}");
        assert!(rig.metric("by_reservation") >= 295.0);
    }

    #[test]
    fn requests_by_weight_do_not_use_up_the_reservation() {
        // Alone on a device that does 2,000 a second: it gets far more than 100.
        let mut rig = Rig::with_weights("mclock:reserve_iops=100", &[1, 1]);
        served(&mut rig, &[0], 2_000, 500);
        // Now the other floods: the first VM's reservation is not in the future.
        rig.reads(1, (0..50).map(|i| 900_000_000 + 100 * i));
        let before = rig.metric("by_reservation");
        rig.wait_ms(30);
        rig.serve(500);
        assert!(rig.metric("by_reservation") > before);
    }

    #[test]
    fn a_limit_holds_until_the_next_tag() {
        let mut rig = Rig::new("mclock:limit_iops=100");
        rig.wait_ms(1_000);
        rig.reads(0, [100, 300, 500]);
        rig.serve(1_000);
        assert_eq!(rig.hold_us(LIMIT), 9_000);
        // Another VM is not held by it.
        rig.read(1, 9_000);
        assert_eq!(rig.dispatch(), 9_000);
        rig.wait_us(9_000);
        assert_eq!(rig.dispatch(), 300);
    }

    #[test]
    fn long_requests_count_by_their_length() {
        let mut rig = Rig::new("mclock");
        for i in 0..40 {
            rig.read_long(0, 1_000 * i, 456);
            rig.read(1, 100_000_000 + 100 * i);
        }
        let lbas = rig.serve_n(40);
        let long = lbas.iter().filter(|&&lba| lba < 100_000_000).count();
        assert!((8..=9).contains(&long), "one of 228 KiB for four of 4 KiB: {lbas:?}");
    }

    #[test]
    fn a_new_vm_begins_level_with_the_others() {
        let mut rig = Rig::new("mclock");
        served(&mut rig, &[0], 1_000, 100);
        assert_eq!(served(&mut rig, &[1], 100, 100)[1], 50);
    }

    #[test]
    fn a_vm_that_paused_goes_first_until_it_has_caught_up() {
        let mut rig = Rig::new("mclock");
        rig.read(1, 900_000_000);
        rig.serve(100);
        served(&mut rig, &[0], 200, 100);
        // It has paused for 20 ms, not for five minutes: 200 requests are its due.
        assert_eq!(served(&mut rig, &[1], 150, 100), [0, 150, 0, 0]);
    }

    #[test]
    fn after_the_idle_time_it_is_level() {
        let mut rig = Rig::new("mclock");
        rig.read(1, 900_000_000);
        rig.serve(100);
        served(&mut rig, &[0], 310, 1_000_000);
        let counts = served(&mut rig, &[1], 100, 100);
        assert!((48..=52).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn a_first_request_that_is_taken_back_costs_nothing() {
        let mut rig = Rig::new("mclock:limit_iops=100");
        rig.wait_ms(1_000);
        let id = rig.read(0, 100);
        rig.withdraw(id);
        rig.read(0, 300);
        assert_eq!(rig.dispatch(), 300);
    }

    #[test]
    fn a_reservation_above_the_limit_is_refused() {
        let error = crate::schedulers::build("mclock:reserve_iops=200,limit_iops=100").err();
        assert!(error.unwrap().to_string().contains("above limit_iops=100"));
    }
}
