//! The loads under which a drive is measured.

use std::fmt;

const SIZES_KIB: [u32; 3] = [4, 64, 1024];
const WRITES_PERCENT: [u32; 4] = [0, 30, 70, 100];
const DEPTHS: [u32; 4] = [1, 8, 32, 128];
/// The ends, an odd number of steps apart: each half of the matrix has both.
const DEPTHS_QUICK: [u32; 2] = [1, 128];

/// One load: a closed loop, with a quiet reader of 4 KiB at depth 1 beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Size of each command of the loop.
    pub kib: u32,
    /// Share of writes in the loop, 0 to 100.
    pub writes_percent: u32,
    /// Commands of the loop in flight.
    pub depth: u32,
}

impl Cell {
    /// Tells whether it is in the fitted half. Of two neighbours in the matrix one is, and the
    /// other one is held out. Small reads at the largest depth are fitted, because only they show
    /// the cost of a command.
    pub fn is_fitted(&self) -> bool {
        let place = |all: &[u32], value| all.iter().position(|&v| v == value).unwrap_or(0);
        let places = place(&SIZES_KIB, self.kib)
            + place(&WRITES_PERCENT, self.writes_percent)
            + place(&DEPTHS, self.depth);
        !places.is_multiple_of(2)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { kib, writes_percent, depth } = self;
        write!(f, "{kib} KiB, {writes_percent} % writes, depth {depth}")
    }
}

/// All cells in the order of measurement: reads first, so that earlier writes do not disturb them.
/// `writes`: also those that write. `quick`: with writes, only the smallest and the largest depth.
pub fn matrix(writes: bool, quick: bool) -> Vec<Cell> {
    let shares = if writes { &WRITES_PERCENT[..] } else { &WRITES_PERCENT[..1] };
    let depths = if writes && quick { &DEPTHS_QUICK[..] } else { &DEPTHS[..] };
    let mut cells = Vec::new();
    for &writes_percent in shares {
        for kib in SIZES_KIB {
            cells.extend(depths.iter().map(|&depth| Cell { kib, writes_percent, depth }));
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_fitted_and_has_every_size_share_and_depth() {
        for (writes, quick, cells) in
            [(true, false, 48), (true, true, 24), (false, false, 12), (false, true, 12)]
        {
            let all = matrix(writes, quick);
            assert_eq!(all.len(), cells);
            let (fitted, held): (Vec<_>, Vec<_>) = all.iter().partition(|c| c.is_fitted());
            assert_eq!(fitted.len(), held.len());
            for half in [fitted, held] {
                let has = |of: fn(&Cell) -> u32| {
                    let mut values: Vec<u32> = half.iter().map(&of).collect();
                    values.sort_unstable();
                    values.dedup();
                    values
                };
                assert_eq!(has(|c| c.kib), SIZES_KIB);
                assert_eq!(has(|c| c.writes_percent).len(), if writes { 4 } else { 1 });
                assert_eq!(has(|c| c.depth).len(), if writes && quick { 2 } else { 4 });
            }
        }
    }
}
