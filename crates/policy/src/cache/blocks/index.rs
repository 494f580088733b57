//! Where a block's frame is found: a hash table by open addressing.
//!
//! Sixteen neighbouring blocks (64 KiB) have one home, a line of sixteen
//! entries, so that a request of 64 KiB touches one place of the table. Each of
//! the sixteen has a lane of its own there: entry `(block ^ mix) % 16` of the
//! line. A lane is a table of its own, probed line after line, and deleted from
//! by shifting back (Knuth, vol. 3, 6.4, algorithm R), so that it never
//! fills with tombstones. Whichever blocks a guest chooses, only those with the
//! number modulo 16 that it likes among them, `mix` spreads them over all lanes.
//!
//! An entry has all that a hit needs: the block by its full name (a fingerprint
//! alone is never believed), its frame, and how often it was used. So a hit costs
//! one look at memory, however large the cache is.
//!
//! Guests choose the numbers, so the hash is a keyed one: SipHash-1-3 (Aumasson
//! and Bernstein, INDOCRYPT 2012), once for sixteen blocks.

use super::ghosts::Ghost;
use crate::request::VmId;
use std::hint::black_box;

/// Blocks with one home.
pub(super) const LANES: usize = 16;
/// The lines of a table that has fewer frames than that: where so few frames
/// share a lane that chance could fill it.
const LINES_SMALL: usize = 256;
/// Blocks from here on (at 1 EiB) are not cached: a name has 48 bits for them.
const BLOCKS_END: u64 = (1 << 48) - 1;
/// No block has this name.
const EMPTY: u64 = u64::MAX;
/// Uses are counted up to here; the bits that they take.
const USES_MAX: u8 = 3;

/// Where a group of neighbouring blocks lives.
#[derive(Clone, Copy)]
pub(super) struct Home {
    /// The line of the table.
    line: u32,
    /// Spreads blocks over lanes, and the rest of it is the group's fingerprint.
    mix: u32,
}

impl Home {
    fn lane(self, block: u64) -> usize {
        (block as usize ^ self.mix as usize) % LANES
    }
    /// Tells groups with one home from each other, most of the time.
    pub(super) fn fingerprint(self) -> u16 {
        (self.mix >> 16) as u16
    }
}

/// The group that a block belongs to.
pub(super) fn group(block: u64) -> u64 {
    block / LANES as u64
}

/// A block's full name.
fn name(vm: VmId, block: u64) -> u64 {
    (vm.index() as u64) << 48 | block
}

/// What a hit needs of a block: 16 bytes, four to a cache line.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    name: u64,
    pub frame: u32,
    /// When a use of it last counted: granules of its VM's clock. That it has 16
    /// bits only, and comes round, loses a use now and then.
    stamp: u16,
    /// Lines from its home to where it stands.
    displaced: u8,
    /// Uses since it was read for the first time, 0 to 3, and the bits below.
    state: u8,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// Its frame is being read into.
const FILLING: u8 = 4;
/// Prefetched, and no guest has read it yet.
const UNUSED: u8 = 8;
/// Not of the block but of the place where its entry stands: one that has its
/// home here or before may stand behind, so that a search must go on.
const PASSED: u8 = 16;

impl Entry {
    const EMPTY: Entry = Entry { name: EMPTY, frame: 0, stamp: 0, displaced: 0, state: 0 };

    /// A block that is to be read into a frame.
    pub(super) fn begin(&mut self, granule: u32, unused: bool) {
        self.stamp = granule as u16;
        self.state |= FILLING | if unused { UNUSED } else { 0 };
    }
    /// It has been. Uses count from the next granule on.
    pub(super) fn filled(&mut self, granule: u32) {
        self.stamp = granule as u16;
        self.state &= !FILLING;
    }
    /// The first use of what was prefetched.
    pub(super) fn first_use(&mut self, granule: u32) {
        self.stamp = granule as u16;
        self.state &= !UNUSED;
    }
    pub(super) fn is_filling(&self) -> bool {
        self.state & FILLING != 0
    }
    pub(super) fn is_unused(&self) -> bool {
        self.state & UNUSED != 0
    }
    pub(super) fn uses(&self) -> u8 {
        self.state & USES_MAX
    }
    pub(super) fn set_uses(&mut self, uses: u8) {
        self.state = self.state & !USES_MAX | uses;
    }

    /// A use in this granule counts, if none did in the same.
    pub(super) fn count(&mut self, granule: u32) {
        if self.stamp != granule as u16 {
            self.stamp = granule as u16;
            self.set_uses((self.uses() + 1).min(USES_MAX));
        }
    }
}

/// Where an entry stands, until the next one is entered or taken out.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    line: u32,
    lane: u32,
}

/// One place for each lane.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    entries: [Entry; LANES],
    /// What was let go of those whose home this is; nothing to do with the
    /// entries, but looked at together with them.
    ghosts: [Ghost; LANES],
}

/// Frames by the names of their blocks.
pub(super) struct Index {
    table: Vec<Line>,
    /// Entries in each lane: one place stays empty, for a search to end at.
    filled: [u32; LANES],
    keys: (u64, u64),
}

impl Index {
    /// A table for so many frames, at most a third full. A lane has room for
    /// all frames, or for three times its share of them and 256: that chance fills one,
    /// or displaces an entry by more than 255 lines, is less likely than 10^-20,
    /// and then the block is not cached.
    pub(super) fn new(frames: u32, seed: u64) -> Self {
        let small = (frames as usize + 1).next_power_of_two().min(LINES_SMALL);
        let lines = (3 * frames as usize).div_ceil(LANES).max(small);
        let keys = (splitmix64(seed), splitmix64(!seed));
        Index {
            table: vec![
                Line { entries: [Entry::EMPTY; LANES], ghosts: [Ghost::NONE; LANES] };
                lines
            ],
            filled: [0; LANES],
            keys,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.table.len() * size_of::<Line>()) as u64
    }

    /// What was let go last of the blocks whose home is this one's.
    pub(super) fn ghost(&mut self, home: Home, block: u64) -> &mut Ghost {
        &mut self.table[home.line as usize].ghosts[home.lane(block)]
    }

    /// The home of a VM's group.
    pub(super) fn home(&self, vm: VmId, group: u64) -> Home {
        let hash = siphash13(self.keys, vm.index() as u64, group);
        let line = (u64::from(hash as u32) * self.table.len() as u64) >> 32;
        Home { line: line as u32, mix: (hash >> 32) as u32 }
    }

    fn after(&self, line: u32) -> u32 {
        if line as usize + 1 == self.table.len() { 0 } else { line + 1 }
    }

    /// Lines from one to another.
    fn way(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + (self.table.len() as u32 - from) }
    }

    /// Have the processor fetch a home from memory while it does other work.
    #[inline]
    pub(super) fn warm(&self, home: Home) {
        let line = &self.table[home.line as usize];
        for lane in (0..LANES).step_by(64 / size_of::<Entry>()) {
            black_box(line.entries[lane].name);
        }
        black_box(line.ghosts[0]);
    }

    /// Where the block's entry stands.
    #[inline]
    pub(super) fn find(&self, home: Home, vm: VmId, block: u64) -> Option<Slot> {
        let (lane, mut line, name) = (home.lane(block), home.line, name(vm, block));
        if block >= BLOCKS_END {
            return None;
        }
        loop {
            let entry = &self.table[line as usize].entries[lane];
            if entry.name == name {
                return Some(Slot { line, lane: lane as u32 });
            }
            if entry.state & PASSED == 0 {
                return None;
            }
            line = self.after(line);
        }
    }

    pub(super) fn entry(&self, slot: Slot) -> &Entry {
        &self.table[slot.line as usize].entries[slot.lane as usize % LANES]
    }
    pub(super) fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.table[slot.line as usize].entries[slot.lane as usize % LANES]
    }

    /// Enter a block that is not there. `None`, and nothing happens, when its lane is full.
    #[inline]
    pub(super) fn insert(
        &mut self,
        home: Home,
        vm: VmId,
        block: u64,
        frame: u32,
    ) -> Option<&mut Entry> {
        let (lane, mut line) = (home.lane(block), home.line);
        if self.filled[lane] as usize + 1 >= self.table.len() || block >= BLOCKS_END {
            return None;
        }
        let mut displaced: u8 = 0;
        loop {
            let entry = &mut self.table[line as usize].entries[lane];
            if entry.name == EMPTY {
                break;
            }
            entry.state |= PASSED;
            line = self.after(line);
            displaced = displaced.checked_add(1)?;
        }
        self.filled[lane] += 1;
        let entry = &mut self.table[line as usize].entries[lane];
        *entry = Entry { name: name(vm, block), frame, displaced, ..Entry::EMPTY };
        Some(entry)
    }

    /// Take out an entry.
    #[inline(always)]
    pub(super) fn remove(&mut self, slot: Slot) {
        let (lane, mut hole) = (slot.lane as usize % LANES, slot.line);
        // What was displaced past the hole, and may come back to it, does.
        let mut next = hole;
        while self.table[next as usize].entries[lane].state & PASSED != 0 {
            next = self.after(next);
            let mut entry = self.table[next as usize].entries[lane];
            let back = self.way(hole, next);
            if u32::from(entry.displaced) >= back {
                entry.displaced -= back as u8;
                entry.state |= PASSED;
                self.table[hole as usize].entries[lane] = entry;
                hole = next;
            }
        }
        self.table[hole as usize].entries[lane] = Entry::EMPTY;
        self.filled[lane] -= 1;
    }
}

/// A key from a seed (Steele, Lea, Flood 2014).
fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// SipHash-1-3 of two words.
fn siphash13(keys: (u64, u64), a: u64, b: u64) -> u64 {
    let mut v = [
        keys.0 ^ 0x736f_6d65_7073_6575,
        keys.1 ^ 0x646f_7261_6e64_6f6d,
        keys.0 ^ 0x6c79_6765_6e65_7261,
        keys.1 ^ 0x7465_6462_7974_6573,
    ];
    // The last word is the message's length in bytes.
    for word in [a, b, 16 << 56] {
        v[3] ^= word;
        sipround(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for _ in 0..3 {
        sipround(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sipround(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hasher};

    #[test]
    fn the_hash_is_siphash() {
        for (a, b) in [(0, 0), (1, 2), (u64::MAX, 1 << 40)] {
            let mut reference = DefaultHasher::new();
            reference.write_u64(a);
            reference.write_u64(b);
            assert_eq!(siphash13((0, 0), a, b), reference.finish(), "{a} {b}");
        }
    }

    /// The longest way to an entry, over all lanes.
    fn longest(index: &Index) -> u32 {
        let lines = index.table.iter().enumerate();
        let entries = lines.flat_map(|(n, line)| line.entries.iter().map(move |&e| (n as u32, e)));
        let filled = entries.filter(|&(_, e)| e.name != EMPTY);
        let ways = filled.map(|(n, e)| {
            let (vm, block) = (VmId::new((e.name >> 48) as u16), e.name & BLOCKS_END);
            let way = index.way(index.home(vm, group(block)).line, n);
            assert_eq!(way, u32::from(e.displaced));
            way
        });
        ways.max().unwrap_or(0)
    }

    #[test]
    fn lopsided_blocks_fill_the_lanes_alike() {
        const FRAMES: u32 = 1 << 16;
        type Pattern = fn(u64) -> (VmId, u64);
        let patterns: [(&str, Pattern); 4] = [
            ("a run", |n| (VmId::new(0), n)),
            ("every sixteenth", |n| (VmId::new(0), n * 16)),
            ("every 2^20th", |n| (VmId::new(0), n << 20)),
            ("a block of each VM", |n| (VmId::new(n as u16), 0)),
        ];
        for (name, pattern) in patterns {
            let mut index = Index::new(FRAMES, 1);
            for n in 0..FRAMES {
                let (vm, block) = pattern(u64::from(n));
                let home = index.home(vm, group(block));
                assert!(index.find(home, vm, block).is_none());
                assert!(index.insert(home, vm, block, n).is_some(), "{name}");
            }
            let (least, most) = (index.filled.iter().min(), index.filled.iter().max());
            let (least, most) = (*least.unwrap(), *most.unwrap());
            assert!(most - least < FRAMES / 16 / 8, "{name}: lanes hold {least} to {most}");
            assert!(longest(&index) < 64, "{name}: {} lines", longest(&index));
            // Half of it goes, and the other half is found.
            for (odd, n) in (0..FRAMES).map(|n| (n % 2 == 1, n)) {
                let (vm, block) = pattern(u64::from(n));
                if odd {
                    let slot = index.find(index.home(vm, group(block)), vm, block);
                    index.remove(slot.expect("it was entered"));
                }
            }
            assert!(longest(&index) < 64, "{name}: {} lines", longest(&index));
            for n in 0..FRAMES {
                let (vm, block) = pattern(u64::from(n));
                let found = index.find(index.home(vm, group(block)), vm, block);
                let found = found.map(|slot| index.entry(slot).frame);
                assert_eq!(found, (n % 2 == 0).then_some(n), "{name}");
            }
        }
    }

    #[test]
    fn a_full_lane_takes_no_more() {
        let mut index = Index::new(1, 1);
        let (vm, home) = (VmId::new(0), index.home(VmId::new(0), 0));
        assert!(index.insert(home, vm, 0, 0).is_some());
        assert!(index.insert(home, vm, 0, 1).is_none());
    }

    #[test]
    fn a_block_beyond_all_names_is_not_entered() {
        let mut index = Index::new(64, 1);
        // As a name it would be block 5 of VM 1.
        let (vm, block) = (VmId::new(0), 1 << 48 | 5);
        let home = index.home(vm, group(block));
        assert!(index.insert(home, vm, block, 0).is_none());
        let other = index.home(VmId::new(1), group(5));
        assert!(index.insert(other, VmId::new(1), 5, 0).is_some());
        assert!(index.find(other, vm, block).is_none());
    }
}
