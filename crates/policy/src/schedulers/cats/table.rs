//! The order of the pending reads that has the least sum of completion times,
//! by dynamic programming (Geist and Ross; algorithms.md, section 3.2).
//!
//! The cost of going from one request to another is the distance between their
//! first sectors. What is served at any time lies around the head, so what is
//! left is an interval of the cyclic order "all above the head ascending, then
//! all below it ascending": `a` requests above and `b` below have been served,
//! and the head stands on the last of one side. With n requests, m = n - a - b
//! left, and u(i), d(i) the distance from the head's first place to the i-th
//! request above and below, the recurrences of section 3.2 are
//!
//! ```text
//! T_u(a,b) = min( m·(u(a+1) - u(a)) + T_u(a+1,b),  m·(u(a) + d(b+1)) + T_d(a,b+1) )
//! T_d(a,b) = min( m·(d(b+1) - d(b)) + T_d(a,b+1),  m·(d(b) + u(a+1)) + T_u(a+1,b) )
//! ```
//!
//! Every order pays u(i) or d(i) once for each request; what it pays beyond is
//! 2·m·u(a) or 2·m·d(b) for each *turn*: the m that are left wait while the head
//! goes back to where it began. With that sum taken out and halved,
//! X(a,b) = (T(a,b) + m·u(a) - what every order pays) / 2, they become
//!
//! ```text
//! X_u(a,b) = min( X_u(a+1,b),  m·u(a) + X_d(a,b+1) )     0 with nothing left below
//! X_d(a,b) = min( X_d(a,b+1),  m·d(b) + X_u(a+1,b) )     0 with nothing left above
//! ```
//!
//! which is an addition, a multiplication and a comparison. A row (one `a`, all
//! `b`) needs only the X_u of the row before, in place, and one X_d: so a few
//! kilobytes, and time in proportion to the requests above times those below.
//!
//! On ties the head goes on the way it was going, at first up. Optimal among
//! all orders for linear distance; with a seek curve, only nearly.

/// One side of the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Above,
    Below,
}

/// Distances count up to this (two exbibytes); longer ones are all scaled down
/// alike, since sums of [`REQUESTS_MAX`] products have to fit 64 bits.
const DISTANCE_BITS: u32 = 52;
/// Most requests in a table.
pub const REQUESTS_MAX: usize = 1 << 10;

/// The table's memory, kept from one use to the next.
#[derive(Default)]
pub struct Table {
    /// u(0..=p) and d(0..=q), first of all the 0 of the head itself.
    up: Vec<u64>,
    down: Vec<u64>,
    /// X_u of the row in work.
    row: Vec<u64>,
    /// For each row and 64 values of b, whether to turn: standing above, below.
    turns: Vec<[u64; 2]>,
}

impl Table {
    /// Begin a table: nothing pending.
    pub fn clear(&mut self) {
        self.up.clear();
        self.down.clear();
        self.up.push(0);
        self.down.push(0);
    }

    /// A request `distance` sectors away; on each side in order of distance.
    pub fn push(&mut self, side: Side, distance: u64) {
        match side {
            Side::Above => self.up.push(distance),
            Side::Below => self.down.push(distance),
        }
    }

    /// Hand out the sides in the best order: each stands for the next request there.
    pub fn solve(&mut self, mut visit: impl FnMut(Side)) {
        let (p, q) = (self.up.len() - 1, self.down.len() - 1);
        assert!(p + q <= REQUESTS_MAX, "{} requests in a table", p + q);
        self.scale();
        self.fill();
        let words = q.div_ceil(64);
        let (mut a, mut b, mut side) = (0, 0, Side::Above);
        while a < p || b < q {
            let turn = a < p && b < q && {
                let word = self.turns[a * words + b / 64][side as usize];
                word >> (b % 64) & 1 == 1
            };
            side = match (side, turn) {
                _ if a == p => Side::Below,
                _ if b == q => Side::Above,
                (Side::Above, true) => Side::Below,
                (Side::Below, true) => Side::Above,
                (same, false) => same,
            };
            match side {
                Side::Above => a += 1,
                Side::Below => b += 1,
            }
            visit(side);
        }
    }

    /// Bring the distances into range.
    fn scale(&mut self) {
        let furthest = self.up.last().max(self.down.last()).copied().unwrap_or(0);
        let excess = (u64::BITS - furthest.leading_zeros()).saturating_sub(DISTANCE_BITS);
        if excess > 0 {
            self.up.iter_mut().chain(&mut self.down).for_each(|d| *d >>= excess);
        }
    }

    /// The rows from the last to the first, with the choice at each place.
    fn fill(&mut self) {
        let (p, q) = (self.up.len() - 1, self.down.len() - 1);
        let words = q.div_ceil(64);
        self.turns.clear();
        self.turns.resize(p * words, [0; 2]);
        // With nothing left above: the turn at the topmost request.
        let (top, bottom) = (self.up[p], self.down[q]);
        self.row.clear();
        self.row.extend((0..q).map(|b| (q - b) as u64 * top));
        for a in (0..p).rev() {
            let above = (p - a) as u64;
            let mut below = above * bottom;
            let turns = &mut self.turns[a * words..(a + 1) * words];
            let blocks = self.row.chunks_mut(64).zip(self.down[..q].chunks(64)).zip(turns);
            for (n, ((row, down), turns)) in blocks.enumerate().rev() {
                let left = above + (q - 64 * n) as u64;
                (*turns, below) = block(row, down, self.up[a], left, below);
            }
        }
    }
}

/// Up to 64 places of a row, from the last to the first. `below` is X_d after
/// the last; `left` are the requests left at the first. The turns, and X_d at the first.
#[inline]
fn block(row: &mut [u64], down: &[u64], up: u64, left: u64, mut below: u64) -> ([u64; 2], u64) {
    let mut turns = [0; 2];
    for (b, (above, &down)) in row.iter_mut().zip(down).enumerate().rev() {
        let left = left - b as u64;
        let turn = [left * up + below, left * down + *above];
        turns[0] = turns[0] << 1 | u64::from(turn[0] < *above);
        turns[1] = turns[1] << 1 | u64::from(turn[1] < below);
        (*above, below) = (turn[0].min(*above), turn[1].min(below));
    }
    (turns, below)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of a table of requests at these places, and its sum of completion times.
    fn order(head: u64, places: &[u64]) -> (Vec<u64>, u64) {
        let mut above: Vec<u64> = places.iter().copied().filter(|&p| p >= head).collect();
        let mut below: Vec<u64> = places.iter().copied().filter(|&p| p < head).collect();
        above.sort_unstable();
        below.sort_unstable_by(|a, b| b.cmp(a));
        let mut table = Table::default();
        table.clear();
        above.iter().for_each(|p| table.push(Side::Above, p - head));
        below.iter().for_each(|p| table.push(Side::Below, head - p));
        let (mut above, mut below, mut order) = (above.into_iter(), below.into_iter(), vec![]);
        table.solve(|side| {
            order.extend(if side == Side::Above { above.next() } else { below.next() })
        });
        let sum = cost(head, &order);
        (order, sum)
    }

    fn cost(head: u64, order: &[u64]) -> u64 {
        let (mut at, mut time, mut sum) = (head, 0, 0);
        for &place in order {
            time += place.abs_diff(at);
            (at, sum) = (place, sum + time);
        }
        sum
    }

    /// The least sum over all orders.
    fn brute(at: u64, time: u64, left: &mut Vec<u64>) -> u64 {
        let mut best = if left.is_empty() { 0 } else { u64::MAX };
        for n in 0..left.len() {
            let place = left.swap_remove(n);
            let done = time + place.abs_diff(at);
            best = best.min(done + brute(place, done, left));
            left.push(place);
            let last = left.len() - 1;
            left.swap(n, last);
        }
        best
    }

    #[test]
    fn the_worked_example_of_the_paper() {
        let (order, sum) = order(100, &[20, 82, 120, 200]);
        assert_eq!(order, [120, 82, 20, 200]);
        assert_eq!(sum as f64 / 4.0, 124.5);
        assert_eq!(cost(100, &[82, 120, 200, 20]) as f64 / 4.0, 131.5, "greedy");
    }

    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) % below
    }

    #[test]
    fn equals_brute_force_over_all_orders() {
        let mut state = 1;
        // Few places make ties and requests at the head and at one place.
        for (n, range, cases) in
            [(3, 6, 300), (5, 12, 300), (6, 1_000, 200), (8, 40, 40), (9, 1_000, 8)]
        {
            for _ in 0..cases {
                let head = random(&mut state, range);
                let mut places: Vec<u64> = (0..n).map(|_| random(&mut state, range)).collect();
                let (order, sum) = order(head, &places);
                assert_eq!(order.len(), n);
                let best = brute(head, 0, &mut places);
                assert_eq!(sum, best, "head {head}, places {places:?}, order {order:?}");
            }
        }
    }

    /// Section 3.2's recurrence on the whole grid, as written there.
    fn plain(head: u64, above: &[u64], below: &[u64]) -> u64 {
        let (p, q) = (above.len(), below.len());
        let at = |side: Side, n: usize| match (side, n) {
            (_, 0) => head,
            (Side::Above, n) => above[n - 1],
            (Side::Below, n) => below[n - 1],
        };
        let mut t = vec![[0u64; 2]; (p + 1) * (q + 1)];
        for a in (0..=p).rev() {
            for b in (0..=q).rev() {
                let left = (p - a + q - b) as u64;
                for (side, from) in
                    [(Side::Above, at(Side::Above, a)), (Side::Below, at(Side::Below, b))]
                {
                    let up = (a < p)
                        .then(|| left * from.abs_diff(above[a]) + t[(a + 1) * (q + 1) + b][0]);
                    let down =
                        (b < q).then(|| left * from.abs_diff(below[b]) + t[a * (q + 1) + b + 1][1]);
                    t[a * (q + 1) + b][side as usize] =
                        up.into_iter().chain(down).min().unwrap_or(0);
                }
            }
        }
        t[0][0]
    }

    #[test]
    fn large_tables_equal_the_recurrence_as_written() {
        let mut state = 7;
        for (n, range) in [(64, 1 << 31), (129, 5_000), (200, 1 << 33), (256, 1 << 31), (256, 100)]
        {
            for head in [0, range / 20, range / 2, range] {
                let mut places: Vec<u64> = (0..n).map(|_| random(&mut state, range)).collect();
                places.sort_unstable();
                let above: Vec<u64> = places.iter().copied().filter(|&p| p >= head).collect();
                let below: Vec<u64> = places.iter().rev().copied().filter(|&p| p < head).collect();
                assert_eq!(order(head, &places).1, plain(head, &above, &below));
            }
        }
    }

    #[test]
    fn distances_beyond_all_disks_do_not_overflow() {
        let mut table = Table::default();
        table.clear();
        for n in 0..REQUESTS_MAX as u64 / 2 {
            table.push(Side::Above, u64::MAX / 2 + n);
            table.push(Side::Below, u64::MAX / 2 + n);
        }
        let mut order = Vec::new();
        table.solve(|side| order.push(side));
        assert_eq!(order.len(), REQUESTS_MAX);
        assert!(order[..REQUESTS_MAX / 2].iter().all(|&side| side == Side::Above));
    }
}
