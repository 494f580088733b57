//! Load of an array's members.
//!
//! The governor's bound is what keeps the whole device busy. Requests at random places fill one
//! member and leave another idle: then a light VM waits for the one, and the other does nothing. So
//! the next request is one for the member that has least to do, and of equal ones the oldest. A
//! request that is passed over goes when its member has run dry, or when all that are looked at are
//! for this member. Another VM may keep that member busy: then it may be long, up to the
//! dispatcher's hard limit. Linux's md chooses in the same way between the mirrors of RAID 1
//! (`read_balance`), where a request may go to either.

use seekway_core::request::{Extent, Request};
use seekway_core::scheduler::Stripe;

/// Cost in flight by member; nothing while the stripe is not known.
#[derive(Default)]
pub struct Members {
    stripe: Option<Stripe>,
    in_flight: Vec<u64>,
}

impl Members {
    /// The device is such an array, or none.
    pub fn set(&mut self, stripe: Option<Stripe>) {
        if self.stripe != stripe {
            self.stripe = stripe;
            self.in_flight = vec![0; stripe.map_or(0, |stripe| stripe.members() as usize)];
        }
    }

    pub fn are_known(&self) -> bool {
        self.stripe.is_some()
    }

    /// Load of the member on which a command begins. It may reach others: they do not count.
    fn of(&mut self, extent: Extent) -> Option<&mut u64> {
        let member = self.stripe?.member(extent.start());
        self.in_flight.get_mut(member)
    }

    pub fn sent(&mut self, extent: Extent, cost: u64) {
        if let Some(in_flight) = self.of(extent) {
            *in_flight += cost;
        }
    }

    /// Commands that went before the stripe was known count as nothing.
    pub fn done(&mut self, extent: Extent, cost: u64) {
        if let Some(in_flight) = self.of(extent) {
            *in_flight = in_flight.saturating_sub(cost);
        }
    }

    /// The first of these requests among those for the member that has least to do.
    pub fn idlest<'a>(&self, requests: impl Iterator<Item = &'a Request>) -> Option<&'a Request> {
        let stripe = self.stripe?;
        requests.min_by_key(|request| self.in_flight[stripe.member(request.extent.start())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers;
    use seekway_core::request::{Completion, Op, RequestId, VmId};
    use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, VmSpec};
    use seekway_core::units::{Instant, Lba, Nanos, Sectors};
    use std::collections::BTreeSet;

    fn read(id: u32, vm: u16, chunk: u64) -> Request {
        let extent = Extent::new(Lba::new(128 * chunk), Sectors::new(8)).unwrap();
        let (id, vm, arrived) = (RequestId::new(id), VmId::new(vm), Instant::ZERO);
        Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived }
    }

    /// Of 5,000 reads.
    struct Found {
        /// Number of the second VM's.
        of_second: u32,
        /// Time of all, over that with both drives at work.
        took: f64,
        /// Number of the first VM's that went after a younger one.
        overtaken: u32,
    }

    /// Two drives that take 100 µs for a read, and two VMs that read at random places, one with 64
    /// reads outstanding, promised `first`, and one with a single one.
    fn of_5000(stripe: Option<Stripe>, first: VmSpec) -> Found {
        let mut policy = schedulers::build("fairway").unwrap();
        let profile = DeviceProfile::unknown(Sectors::new(1 << 20), false);
        let profile = DeviceProfile { stripe, ..profile };
        let (mut now, mut random) = (Instant::ZERO, 1_u64);
        let mut place = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 52
        };
        let vm_of = |id: u32| u16::from(id == 64);
        policy.attach(now, VmId::new(0), first);
        policy.attach(now, VmId::new(1), VmSpec::default());
        let mut chunks: Vec<u64> = (0..65).map(|_| place()).collect();
        (0..65).for_each(|id| policy.arrived(now, read(id, vm_of(id), chunks[id as usize])));
        let (mut free, mut under_way) = ([now; 2], BTreeSet::new());
        let (mut done, mut of_second) = (0, 0);
        let (mut arrived, mut last, mut overtaken) = ([now; 65], now, 0);
        while done < 5_000 {
            let commands = under_way.len() as u32;
            let view = DeviceView { depth: 128, commands, ..DeviceView::idle(Lba::ZERO, &profile) };
            if let Decision::Dispatch(id) = policy.decide(now, &view) {
                if id.slot() < 64 {
                    overtaken += u32::from(arrived[id.slot()] < last);
                    last = last.max(arrived[id.slot()]);
                }
                let drive = &mut free[chunks[id.slot()] as usize % 2];
                *drive = now.max(*drive) + Nanos::from_micros(100);
                under_way.insert((*drive, id.slot() as u32, now));
                continue;
            }
            let (at, id, dispatched) = under_way.pop_first().expect("something is under way");
            now = at;
            let request = read(id, vm_of(id), chunks[id as usize]);
            let completion = Completion::alone(request, dispatched, Nanos::from_micros(100));
            policy.completed(now, &completion);
            done += 1;
            of_second += u32::from(vm_of(id));
            (chunks[id as usize], arrived[id as usize]) = (place(), now);
            policy
                .arrived(now, Request { arrived: now, ..read(id, vm_of(id), chunks[id as usize]) });
        }
        Found { of_second, took: now.as_secs_f64() / (100e-6 * 5_000.0 / 2.0), overtaken }
    }

    #[test]
    fn a_quiet_vm_waits_less_and_the_drives_do_as_much() {
        let stripe = Stripe::new(2, Sectors::new(128));
        let [known, unknown] = [stripe, None].map(|stripe| of_5000(stripe, VmSpec::default()));
        let reads = (known.of_second, unknown.of_second);
        assert!(f64::from(reads.0) > 1.2 * f64::from(reads.1), "{reads:?} reads");
        assert!(known.took < 1.05 * unknown.took, "{} and {}", known.took, unknown.took);
        assert!(known.overtaken > 100 && unknown.overtaken == 0, "{}", known.overtaken);
    }

    /// Else what its oldest request brings it goes to another.
    #[test]
    fn a_vm_with_a_promise_sends_its_oldest_request() {
        let latency = Some(Nanos::from_millis(5));
        let spec = VmSpec { latency, ..VmSpec::default() };
        assert_eq!(of_5000(Stripe::new(2, Sectors::new(128)), spec).overtaken, 0);
    }

    #[test]
    fn what_is_done_is_no_longer_counted_and_nothing_goes_below_zero() {
        let mut members = Members::default();
        let (first, second) = (read(0, 0, 0), read(1, 0, 1));
        members.done(first.extent, 8192);
        assert!(members.idlest([&first].into_iter()).is_none() && !members.are_known());
        members.set(Stripe::new(2, Sectors::new(128)));
        members.done(first.extent, 8192);
        members.sent(first.extent, 8192);
        let idlest = |members: &Members| members.idlest([&first, &second].into_iter()).unwrap().id;
        assert_eq!(idlest(&members), second.id);
        members.done(first.extent, 8192);
        assert_eq!(idlest(&members), first.id);
    }
}
