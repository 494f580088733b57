//! Times that add up while something lasts, and the least number of moves.

use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{VcpuId, VcpuSet};

/// Total duration of a state that comes and goes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    sum: Nanos,
    since: Option<Instant>,
}

impl Tally {
    /// Begins the state; nothing if it has begun already.
    pub fn start(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    pub fn stop(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.sum += now - since;
        }
    }

    /// The sum up to `now`, with the stretch that still lasts.
    pub fn at(&self, now: Instant) -> Nanos {
        self.since.map_or(self.sum, |since| self.sum + (now - since))
    }

    /// Forgets the time up to now.
    pub fn restart(&mut self, now: Instant) {
        self.sum = Nanos::ZERO;
        self.since = self.since.map(|_| now);
    }
}

/// The least number of moves that keeps one task on a running vCPU all the time that one runs,
/// known afterwards: at each move it goes to the vCPU whose turn then ends last. Computed without
/// knowing the future, by following all vCPUs that it may be on: the last remaining one was right.
#[derive(Clone, Default, Debug)]
pub(super) struct LeastMoves {
    /// Where it may be, if it was wise.
    may: VcpuSet,
    /// Where it was when all were away.
    left_on: Option<VcpuId>,
    moves: u64,
}

impl LeastMoves {
    /// A vCPU runs from now on, and it alone if `first`.
    pub fn runs(&mut self, vcpu: VcpuId, first: bool) {
        if first {
            self.moves += u64::from(self.left_on.is_some_and(|on| on != vcpu));
            self.may = VcpuSet::only(vcpu);
        }
    }

    /// A vCPU does not run any more; `running` do.
    pub fn stops(&mut self, vcpu: VcpuId, running: &VcpuSet) {
        self.may.remove(vcpu);
        if !self.may.is_empty() {
            return;
        }
        if running.is_empty() {
            self.left_on = Some(vcpu);
        } else {
            self.may = *running;
            self.moves += 1;
        }
    }

    /// The least number of moves since the beginning or the last [`Self::restart`].
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Forget those up to now.
    pub fn restart(&mut self) {
        self.moves = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_workload::generators::rng::Rng;

    /// Knowing all spans: at each move to the vCPU that then runs for longest.
    fn naive(spans: &[(usize, u64, u64)], until: u64) -> u64 {
        let (mut on, mut moves, mut t) = (None, 0, 0);
        while t < until {
            let runs = spans.iter().filter(|(_, from, to)| *from <= t && t < *to);
            let Some(&(next, _, to)) = runs.max_by_key(|(_, _, to)| *to) else {
                t += 1;
                continue;
            };
            moves += u64::from(on.is_some_and(|on| on != next));
            (on, t) = (Some(next), to);
        }
        moves
    }

    #[test]
    fn the_least_moves_are_those_of_who_knows_the_future() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut edges: Vec<(u64, bool, usize)> = Vec::new();
            let mut spans = Vec::new();
            for vcpu in 0..1 + rng.below(5) as usize {
                let mut t = 0;
                // Times of a vCPU have a remainder of their own: no two are the same.
                while t < 2_000 {
                    let from = (t / 8 + 1 + rng.below(12)) * 8 + vcpu as u64;
                    let to = (from / 8 + 1 + rng.below(12)) * 8 + vcpu as u64;
                    spans.push((vcpu, from, to));
                    edges.extend([(from, true, vcpu), (to, false, vcpu)]);
                    t = to;
                }
            }
            edges.sort_unstable();
            let (mut least, mut running) = (LeastMoves::default(), VcpuSet::EMPTY);
            for (_, runs, vcpu) in edges {
                let id = VcpuId::new(vcpu as u16);
                if runs {
                    running.insert(id);
                    least.runs(id, running.len() == 1);
                } else {
                    running.remove(id);
                    least.stops(id, &running);
                }
            }
            assert_eq!(least.moves(), naive(&spans, 3_000), "seed {seed}");
        }
    }
}
