//! A bus that carries one transfer at a time: a channel to the dies, or the
//! link to the host. Transfers are reserved ahead of time, and a later one that
//! is ready earlier takes a gap that is long enough.

use std::collections::VecDeque;

/// The reserved times of one bus.
#[derive(Default)]
pub(super) struct Lane {
    /// [from, to) in ns, ascending, with gaps between them.
    busy: VecDeque<(u64, u64)>,
}

impl Lane {
    /// Reserves `length_ns` in one piece from `ready_ns` on; says when it ends.
    /// Nothing before `past_ns` is asked for ever again: `ready_ns >= past_ns`.
    pub(super) fn reserve(&mut self, past_ns: u64, ready_ns: u64, length_ns: u64) -> u64 {
        while self.busy.front().is_some_and(|&(_, to)| to <= past_ns) {
            self.busy.pop_front();
        }
        if length_ns == 0 {
            return ready_ns;
        }
        let mut at = ready_ns;
        // Most transfers come last: look from the back for where `at` may lie.
        let mut index = self.busy.len();
        while index > 0 && self.busy[index - 1].1 > at {
            index -= 1;
        }
        while let Some(&(from, to)) = self.busy.get(index) {
            if at + length_ns <= from {
                break;
            }
            at = at.max(to);
            index += 1;
        }
        self.enter(index, at, at + length_ns);
        at + length_ns
    }

    /// Enters [from, to) before `index`, joined with adjacent reservations.
    fn enter(&mut self, index: usize, from: u64, to: u64) {
        let joins_next = self.busy.get(index).is_some_and(|&(next, _)| next == to);
        let joins_last = index > 0 && self.busy[index - 1].1 == from;
        match (joins_last, joins_next) {
            (true, true) => {
                if let Some((_, end)) = self.busy.remove(index) {
                    self.busy[index - 1].1 = end;
                }
            }
            (true, false) => self.busy[index - 1].1 = to,
            (false, true) => self.busy[index].0 = from,
            (false, false) => self.busy.insert(index, (from, to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_transfer_takes_the_first_gap_that_holds_it() {
        let mut lane = Lane::default();
        assert_eq!(lane.reserve(0, 100, 50), 150);
        assert_eq!(lane.reserve(0, 200, 50), 250);
        // 50 to 100 is free, 150 to 200 too, and 30 more only behind 250.
        assert_eq!(lane.reserve(0, 40, 50), 90);
        assert_eq!(lane.reserve(0, 120, 50), 200);
        assert_eq!(lane.reserve(0, 0, 60), 310);
        assert_eq!(lane.busy, [(40, 90), (100, 310)]);
        assert_eq!(lane.reserve(310, 310, 1), 311);
        assert_eq!(lane.busy.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn transfers_never_overlap_and_gaps_are_used(
            asked in prop::collection::vec((0..2_000_u64, 1..100_u64), 1..80),
        ) {
            let mut lane = Lane::default();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (ready, length) in asked {
                let end = lane.reserve(0, ready, length);
                let begin = end - length;
                prop_assert!(begin >= ready);
                let free = |at: u64| taken.iter().all(|&(f, t)| at + length <= f || t <= at);
                prop_assert!(free(begin), "overlap at {}", begin);
                let earlier = (ready..begin).find(|&at| free(at));
                prop_assert_eq!(earlier, None, "there was room before {}", begin);
                taken.push((begin, end));
            }
        }
    }
}
