//! A device whose clock runs slower: every time is a whole multiple of the original's.
//!
//! A VM that shares a device with others may expect the performance of a private device that is as
//! many times slower (insulation: Wachs et al., FAST 2007; the virtual performance throttle of the
//! CATS paper makes such a device of a real one).

use crate::DeviceModel;
use seekway_core::request::{Extent, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Nanos};
use std::num::NonZeroU32;

/// The slowest clock: 1/1024 of the original's.
pub const SLOW_MAX: u32 = 1024;

/// A model whose clock runs at 1/`factor` of the engine's.
pub struct Slowed {
    model: Box<dyn DeviceModel>,
    factor: u64,
}

impl Slowed {
    /// `model`, `factor` times slower.
    pub fn new(model: Box<dyn DeviceModel>, factor: NonZeroU32) -> Slowed {
        Slowed { model, factor: u64::from(factor.get()) }
    }

    /// The model's time at the engine's `now`. Between two of its nanoseconds it is the first.
    fn inside(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.as_nanos() / self.factor)
    }
}

impl DeviceModel for Slowed {
    /// A revolution and each seek take `factor` times as long.
    fn profile(&self) -> DeviceProfile {
        let slow = |time: Nanos| time.scaled(self.factor, 1);
        let profile = self.model.profile();
        DeviceProfile {
            rotation: profile.rotation.map(slow),
            seek: profile.seek.into_iter().map(|(distance, time)| (distance, slow(time))).collect(),
            ..profile
        }
    }

    fn queue_depth(&self) -> u32 {
        self.model.queue_depth()
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        self.model.submit(self.inside(now), command);
    }

    fn next_completion(&self) -> Option<Instant> {
        let next = self.model.next_completion()?;
        Some(Instant::from_nanos(next.as_nanos().saturating_mul(self.factor)))
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.model.pop_completed(self.inside(now))
    }

    fn bad_sectors(&self) -> &[Extent] {
        self.model.bad_sectors()
    }

    /// The original's own figures; times among them are by its own clock.
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.model.metrics(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;
    use crate::tests::request;
    use proptest::prelude::*;
    use seekway_core::request::Op;

    /// Completion times of `commands` (time in ns by the model's clock, offset, is it a read), in their
    /// order. At most the device's own depth is in flight: further ones are submitted when a command
    /// before them completes.
    fn completions(
        device: &mut dyn DeviceModel,
        commands: &[(u64, u64, bool)],
        k: u64,
    ) -> Vec<(u32, u64)> {
        let (mut done, mut in_flight, mut now_ns) = (Vec::new(), 0, 0);
        let pop = |device: &mut dyn DeviceModel, done: &mut Vec<(u32, u64)>| {
            let at = device.next_completion().expect("something is in flight");
            let id = device.pop_completed(at).expect("it completes at its time");
            done.push((id.slot() as u32, at.as_nanos()));
            at.as_nanos()
        };
        for (id, &(at_ns, place, reads)) in commands.iter().enumerate() {
            now_ns = now_ns.max(at_ns * k);
            while device.next_completion().is_some_and(|next| next.as_nanos() <= now_ns)
                || in_flight == device.queue_depth()
            {
                now_ns = now_ns.max(pop(device, &mut done));
                in_flight -= 1;
            }
            let op = if reads { Op::Read } else { Op::Write };
            let command = request(id as u32, op, place, 64);
            device.submit(Instant::from_nanos(now_ns), &command);
            in_flight += 1;
        }
        for _ in 0..in_flight {
            pop(device, &mut done);
        }
        done
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Commands complete in the original's order, at `k` times the original's times.
        #[test]
        fn order_stays_and_times_are_multiples(
            kind in prop::sample::select(vec![
                "seagate-1tb-7200", "cheetah-15k5:queue_depth=16,queue_order=sptf", "linear-7200",
                "intel-x25m-g2", "raid0-8x-x25m-g2", "aws-gp3",
                "intel-x25m-g2:reads_first=1,program_suspends=3,program_suspend_us=20",
            ]),
            k in 1..50_u32,
            gaps in prop::collection::vec((0..2_000_000_u64, 0..1_000_000_u64, any::<bool>()), 1..60),
        ) {
            let mut at_ns = 0;
            let commands: Vec<_> = gaps
                .into_iter()
                .map(|(gap, place, reads)| {
                    at_ns += gap;
                    (at_ns, place, reads)
                })
                .collect();
            let original = completions(&mut *profile::load(kind).unwrap().build(), &commands, 1);
            let slow = profile::load(&format!("{kind}{}slow={k}", if kind.contains(':') { ',' } else { ':' }));
            let slow = completions(&mut *slow.unwrap().build(), &commands, u64::from(k));
            let expected: Vec<_> =
                original.into_iter().map(|(id, at)| (id, at * u64::from(k))).collect();
            prop_assert_eq!(slow, expected);
        }
    }

    #[test]
    fn a_policy_sees_the_slow_device() {
        let build = |what: &str| profile::load(what).unwrap().build().profile();
        let (own, slow) = (build("seagate-1tb-7200"), build("seagate-1tb-7200:slow=8"));
        assert_eq!(slow.rotation, own.rotation.map(|time| time.scaled(8, 1)));
        assert_eq!(slow.capacity, own.capacity);
        let eight = own.seek.iter().map(|&(distance, time)| (distance, time.scaled(8, 1)));
        assert_eq!(slow.seek, eight.collect::<Vec<_>>());
    }
}
