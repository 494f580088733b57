//! Where data lies in blocks that have been written at random for a long time.
//! A formula, like the order of a fresh drive: no memory for each unit, and a
//! drive of any size is built at once.
//!
//! Random writes make a block lose units in proportion to those it still has, so that of blocks
//! ranked by age, from 0 for the newest to 1 for the one that is collected next, the one at r has
//! e^(-λr) of its units. λ follows from the share of all blocks that holds data, (1 - e^-λ)/λ
//! (Desnoyers, "Analytic modeling of SSD write performance", SYSTOR 2012, for the collection of the
//! oldest block; greedy collection does a little better).
//!
//! Simplified: neighbouring logical units stay neighbours, only with gaps between them, so that
//! sequential reads are faster than on a drive whose data was really written at random.

/// The blocks of a die, all dies alike.
pub(super) struct Holes {
    block_units: u32,
    /// Units of each block that hold data, spread evenly over it.
    held: Vec<u32>,
    /// Units that the blocks before it hold; the last entry is the sum of all.
    before: Vec<u32>,
}

impl Holes {
    /// `units` in `blocks` blocks of `block_units`, which have room for more.
    pub(super) fn new(units: u32, blocks: u32, block_units: u32) -> Holes {
        let room = u64::from(blocks) * u64::from(block_units);
        let decay = decay(f64::from(units) / room as f64);
        let stride = stride(blocks);
        let share = |block: u32| {
            // Blocks of one age lie all over the die.
            let rank = u64::from(block) * u64::from(stride) % u64::from(blocks);
            (-decay * (rank as f64 + 0.5) / f64::from(blocks)).exp()
        };
        let mut held: Vec<u32> = (0..blocks)
            .map(|block| (share(block) * f64::from(block_units)).round() as u32)
            .map(|held| held.min(block_units))
            .collect();
        settle(&mut held, u64::from(units), block_units);
        let mut before = vec![0];
        before.extend(held.iter().scan(0, |sum, held| {
            *sum += held;
            Some(*sum)
        }));
        Holes { block_units, held, before }
    }

    /// Position of the die's `index`-th unit; the last one's if it has fewer, and one of the last
    /// block if it has none at all.
    pub(super) fn place(&self, index: u32) -> u32 {
        let last = self.before[self.held.len()].saturating_sub(1);
        let index = index.min(last);
        let block = self.before.partition_point(|&before| before <= index).min(self.held.len()) - 1;
        let number = u64::from(index - self.before[block]);
        let slot = number * u64::from(self.block_units) / u64::from(self.held[block].max(1));
        block as u32 * self.block_units + slot as u32
    }

    /// Which unit of the die lies at `place` of it, if any does.
    pub(super) fn index(&self, place: u32) -> Option<u32> {
        let (block, slot) = ((place / self.block_units) as usize, place % self.block_units);
        let (held, units) = (u64::from(*self.held.get(block)?), u64::from(self.block_units));
        let number = (u64::from(slot) * held).div_ceil(units);
        let there = number < held && number * units / held == u64::from(slot);
        there.then(|| self.before[block] + number as u32)
    }

    /// Number of the die's first `units` units in `block`.
    pub(super) fn held(&self, block: u32, units: u32) -> u32 {
        let block = block as usize;
        self.before[block + 1].min(units) - self.before[block].min(units)
    }
}

/// λ, for blocks of which so large a share holds data.
fn decay(share: f64) -> f64 {
    let (mut low, mut high) = (1e-9_f64, 50.0_f64);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if (1.0 - (-middle).exp()) / middle > share {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// A step through `blocks` blocks that comes by every one: near the golden section.
fn stride(blocks: u32) -> u32 {
    let divisor = |mut a: u32, mut b: u32| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = (f64::from(blocks) * 0.618) as u32;
    (first.max(1)..blocks).find(|&stride| divisor(stride, blocks) == 1).unwrap_or(1)
}

/// Gives and takes units one by one until all blocks hold `units` together.
fn settle(held: &mut [u32], units: u64, block_units: u32) {
    let mut sum: u64 = held.iter().map(|&held| u64::from(held)).sum();
    while sum != units {
        for held in held.iter_mut() {
            if sum < units && *held < block_units {
                *held += 1;
                sum += 1;
            } else if sum > units && *held > 0 {
                *held -= 1;
                sum -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_unit_has_a_place_and_every_place_its_unit(
            blocks in 1..40_u32,
            block_units in 1..70_u32,
            share in 0.0..1.0_f64,
        ) {
            let units = (f64::from(blocks * block_units) * share) as u32;
            let holes = Holes::new(units, blocks, block_units);
            let places: Vec<u32> = (0..units).map(|index| holes.place(index)).collect();
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(places.last().is_none_or(|&last| last < blocks * block_units));
            for place in 0..blocks * block_units {
                let expected = places.binary_search(&place).ok().map(|index| index as u32);
                prop_assert_eq!(holes.index(place), expected);
            }
            let held: u32 = (0..blocks).map(|block| holes.held(block, units)).sum();
            prop_assert_eq!(held, units);
        }
    }

    #[test]
    fn a_die_without_units_has_places_too() {
        let holes = Holes::new(0, 9, 8);
        assert!(holes.place(3) < 9 * 8);
        assert_eq!((holes.index(holes.place(3)), holes.held(8, 0)), (None, 0));
    }

    #[test]
    fn what_is_held_falls_with_age_as_analysis_has_it() {
        // 93.5 % full: λ = 0.137, and the oldest block holds e^-λ = 87.2 %.
        let holes = Holes::new(93_458, 100, 1_000);
        let (least, most) = (holes.held.iter().min().unwrap(), holes.held.iter().max().unwrap());
        assert!((870..=874).contains(least) && (998..=1_000).contains(most), "{least} {most}");
    }
}
