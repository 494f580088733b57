//! In which order what waits goes on: alarms by time, and rings in which the
//! disks of a group take turns. Both are plain tables by number, which grow
//! with the highest number and allocate nothing after that.

use seekway_core::queues::{ExpiryQueue, KeyedHeap, Links};
use seekway_core::request::RequestId;
use seekway_core::units::Instant;

/// Times by number, the earliest first; the lower number first among equal times.
pub(super) type Alarms = KeyedHeap<Instant>;

/// A ring of lanes, the one whose turn is next in front. A lane has the place in it that a
/// request of its number would have.
pub(super) type Ring = ExpiryQueue;

/// State that all rings share; a lane is in one ring at most.
#[derive(Default, Debug)]
pub(super) struct Rings {
    links: Links,
    /// By lane: when it joined its ring, among all; `None` while it is in none.
    turns: Vec<Option<u64>>,
}

impl Rings {
    /// Is the lane in a ring?
    pub(super) fn holds(&self, lane: u32) -> bool {
        self.turns.get(lane as usize).is_some_and(Option::is_some)
    }

    /// The lane whose turn it is, with when it joined.
    pub(super) fn front(&self, ring: &Ring) -> Option<(u64, u32)> {
        let lane = ring.head()?.slot();
        Some((self.turns[lane]?, lane as u32))
    }

    /// Let a lane join at the back; it is in no ring.
    pub(super) fn push(&mut self, ring: &mut Ring, lane: u32, turn: u64) {
        let index = lane as usize;
        if index >= self.turns.len() {
            self.turns.resize(index + 1, None);
        }
        debug_assert!(self.turns[index].is_none(), "lane {lane} is in a ring");
        self.turns[index] = Some(turn);
        ring.push(&mut self.links, RequestId::new(lane));
    }

    /// Take a lane out of its ring, if it is in one.
    pub(super) fn remove(&mut self, ring: &mut Ring, lane: u32) {
        if self.turns.get_mut(lane as usize).is_some_and(|turn| turn.take().is_some()) {
            ring.remove(&mut self.links, RequestId::new(lane));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn alarms_are_a_sorted_set(steps in prop::collection::vec((0u32..20, prop::option::of(0u64..50)), 0..200)) {
            let mut alarms = Alarms::default();
            let mut sorted: BTreeSet<(Instant, u32)> = BTreeSet::new();
            for (number, at) in steps {
                let at = at.map(Instant::from_nanos);
                alarms.set(number, at);
                sorted.retain(|(_, n)| *n != number);
                sorted.extend(at.map(|at| (at, number)));
                prop_assert_eq!(alarms.first(), sorted.first().copied());
            }
        }

        #[test]
        fn rings_are_queues(steps in prop::collection::vec((0u32..6, 0usize..2), 0..200)) {
            let (mut rings, mut ring) = (Rings::default(), [Ring::default(); 2]);
            let mut queues = [VecDeque::new(), VecDeque::new()];
            for (turn, (lane, at)) in steps.into_iter().enumerate() {
                match queues.iter().position(|q: &VecDeque<(u64, u32)>| q.iter().any(|(_, l)| *l == lane)) {
                    Some(at) => {
                        rings.remove(&mut ring[at], lane);
                        queues[at].retain(|(_, l)| *l != lane);
                    }
                    None => {
                        rings.push(&mut ring[at], lane, turn as u64);
                        queues[at].push_back((turn as u64, lane));
                    }
                }
                for at in 0..2 {
                    prop_assert_eq!(rings.front(&ring[at]), queues[at].front().copied());
                    prop_assert_eq!(ring[at].is_empty(), queues[at].is_empty());
                }
            }
        }
    }
}
