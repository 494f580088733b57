//! The most urgent deadline of each channel: a tournament tree, in which the
//! first channel that is about to be late is found in the logarithm of their
//! number.

use seekway_core::units::Instant;

/// No deadline comes before this.
const NEVER: u64 = u64::MAX;

/// The deadlines by channel, in nanoseconds.
#[derive(Default)]
pub struct Deadlines {
    /// Node `n` has the least of nodes `2n` and `2n + 1`; channel `i` is node
    /// `len / 2 + i`. The length is zero or a power of two.
    nodes: Vec<u64>,
}

impl Deadlines {
    /// Sets the deadline of channel `at`; `None` removes it.
    pub fn set(&mut self, at: usize, deadline: Option<Instant>) {
        if at >= self.nodes.len() / 2 {
            self.grow(at + 1);
        }
        let mut node = self.nodes.len() / 2 + at;
        self.nodes[node] = deadline.map_or(NEVER, Instant::as_nanos);
        while node > 1 {
            let least = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if std::mem::replace(&mut self.nodes[node], least) == least {
                break;
            }
        }
    }

    /// The first channel, from `from` on, whose deadline comes before `limit`.
    pub fn first_before(&self, limit: Instant, from: usize) -> Option<usize> {
        let (limit, leaves) = (limit.as_nanos(), self.nodes.len() / 2);
        if from >= leaves {
            return None;
        }
        let mut node = leaves + from;
        while self.nodes[node] >= limit {
            // The next subtree to the right, as large as its place allows.
            node += 1;
            node >>= node.trailing_zeros();
            if node == 1 {
                return None;
            }
        }
        while node < leaves {
            node = 2 * node + usize::from(self.nodes[2 * node] >= limit);
        }
        Some(node - leaves)
    }

    fn grow(&mut self, channels: usize) {
        let leaves = channels.next_power_of_two();
        let old = &self.nodes[self.nodes.len() / 2..];
        let mut nodes = vec![NEVER; 2 * leaves];
        nodes[leaves..leaves + old.len()].copy_from_slice(old);
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node].min(nodes[2 * node + 1]);
        }
        self.nodes = nodes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::mix::Draws;

    #[test]
    fn deadlines_agree_with_a_list() {
        let (mut deadlines, mut list) = (Deadlines::default(), vec![NEVER; 90]);
        let mut random = Draws::new(3);
        for step in 0..20_000 {
            let at = random.below(90.min(1 + step / 50)) as usize;
            let deadline = Some(random.below(30)).filter(|&deadline| deadline < 20);
            list[at] = deadline.unwrap_or(NEVER);
            deadlines.set(at, deadline.map(Instant::from_nanos));
            let (limit, from) = (random.below(22), random.below(95) as usize);
            let expected = (from..90).find(|&at| list[at] < limit);
            let found = deadlines.first_before(Instant::from_nanos(limit), from);
            assert_eq!(found, expected, "step {step}: before {limit}, from {from}");
        }
    }
}
