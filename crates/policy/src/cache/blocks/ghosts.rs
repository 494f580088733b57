//! What was let go not long ago, by fingerprints: a block that comes back soon
//! is worth more than its first reading told.
//!
//! The ghost queue of S3-FIFO, kept as its paper advises (section 4.2): a hash
//! table of fingerprints with the time at which each was entered, that is
//! never swept. An entry goes when another wants its place or when it is too
//! old. A block's place is its home of the [index](super::index), so that
//! neighbours are found in one line here too. It only ever guesses: a wrong
//! answer costs a little hit rate and nothing else.

use super::index::{Home, LANES};

pub(super) struct Ghosts {
    /// Above the fingerprint, below when it was entered.
    table: Vec<u32>,
    mask: u32,
    /// The clock of entries counts in units of `2^shift` blocks: it has 16 bits,
    /// and must not come round while an entry is young.
    shift: u32,
}

impl Ghosts {
    /// As many places as the index has, by its mask, for a cache of `frames`.
    pub(super) fn new(mask: u32, frames: u32) -> Self {
        let shift = (frames >> 12).checked_ilog2().map_or(0, |bits| bits + 1);
        Ghosts { table: vec![0; (mask as usize + 1) * LANES], mask, shift }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.table.len() * size_of::<u32>()) as u64
    }

    fn time(&self, entered: u64) -> u16 {
        (entered >> self.shift) as u16
    }

    /// Enter a block as its VM's entry number `entered`.
    pub(super) fn remember(&mut self, home: Home, block: u64, entered: u64) {
        let time = self.time(entered);
        self.table[home.slot(block, self.mask)] =
            u32::from(home.fingerprint()) << 16 | u32::from(time);
    }

    /// Was the block entered among its VM's last `recent` entries, of `entered`
    /// in all?
    pub(super) fn remembers(&self, home: Home, block: u64, entered: u64, recent: u64) -> bool {
        let entry = self.table[home.slot(block, self.mask)];
        let age = self.time(entered).wrapping_sub(entry as u16);
        entry >> 16 == u32::from(home.fingerprint())
            && entry != 0
            && u64::from(age) <= recent >> self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::{Index, group};
    use super::*;
    use crate::request::VmId;

    #[test]
    fn what_is_too_old_is_forgotten() {
        let index = Index::new(1 << 16, 1);
        let mut ghosts = Ghosts::new(index.mask(), 1 << 16);
        let home = |block| index.home(VmId::new(3), group(block));
        for block in 0..1000 {
            ghosts.remember(home(block), block, block + 1);
        }
        let remembered = |recent| {
            let is = |&block: &u64| ghosts.remembers(home(block), block, 1000, recent);
            (0..1000).filter(is).count()
        };
        assert!((90..=150).contains(&remembered(100)), "{}", remembered(100));
        assert!(remembered(1000) >= 980, "{}", remembered(1000));
        assert!(!ghosts.remembers(home(5000), 5000, 1000, 1000));
    }
}
