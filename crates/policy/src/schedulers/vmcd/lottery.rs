//! The lottery: tickets by channel, drawn and changed in the logarithm of their number.

/// Tickets of each channel: a Fenwick tree.
#[derive(Default)]
pub struct Tickets {
    held: Vec<u64>,
    /// Entry `i` is the sum of the `lowest set bit of i + 1` holders up to `i`.
    sums: Vec<u64>,
    total: u64,
}

impl Tickets {
    /// Of all channels together.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Give channel `at` that many, instead of what it has.
    pub fn set(&mut self, at: usize, tickets: u64) {
        if at >= self.held.len() {
            self.grow(at + 1);
        }
        let before = std::mem::replace(&mut self.held[at], tickets);
        if before == tickets {
            return;
        }
        // Sums are of what is held, so that wrapping differences come out right.
        let change = tickets.wrapping_sub(before);
        self.total = self.total.wrapping_add(change);
        let mut node = at;
        while let Some(sum) = self.sums.get_mut(node) {
            *sum = sum.wrapping_add(change);
            node |= node + 1;
        }
    }

    /// Replace what all of them have: `held[i]` for channel `i`.
    pub fn fill(&mut self, held: impl Iterator<Item = u64>) {
        self.held.clear();
        self.held.extend(held);
        self.sum_up();
    }

    /// The channel that holds ticket `number`, counted from channel 0 on.
    /// `None` when there are not that many.
    pub fn holder(&self, number: u64) -> Option<usize> {
        if number >= self.total {
            return None;
        }
        let (mut at, mut left) = (0, number);
        let mut step = self.sums.len().next_power_of_two();
        while step > 0 {
            // The sum of the `step` holders from `at` on.
            if let Some(&sum) = self.sums.get(at + step - 1)
                && sum <= left
            {
                left -= sum;
                at += step;
            }
            step /= 2;
        }
        Some(at)
    }

    fn grow(&mut self, len: usize) {
        self.held.resize(len, 0);
        self.sum_up();
    }

    fn sum_up(&mut self) {
        self.sums.clone_from(&self.held);
        self.total = self.held.iter().sum();
        for at in 0..self.sums.len() {
            let parent = at | (at + 1);
            if parent < self.sums.len() {
                self.sums[parent] += self.sums[at];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::mix::Draws;

    #[test]
    fn tickets_agree_with_a_list() {
        let (mut tickets, mut list) = (Tickets::default(), vec![0u64; 70]);
        let mut random = Draws::new(7);
        for step in 0..3_000 {
            let (at, n) = (random.below(70) as usize, random.below(5));
            if step % 100 == 99 {
                list.iter_mut().for_each(|held| *held = random.below(3));
                tickets.fill(list.iter().copied());
            } else {
                list[at] = n;
                tickets.set(at, n);
            }
            let all: Vec<usize> =
                list.iter().enumerate().flat_map(|(i, &n)| vec![i; n as usize]).collect();
            assert_eq!(tickets.total(), all.len() as u64);
            for (number, &holder) in all.iter().enumerate() {
                assert_eq!(tickets.holder(number as u64), Some(holder));
            }
            assert_eq!(tickets.holder(tickets.total()), None);
        }
    }
}
