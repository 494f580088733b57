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
//! Guests choose the numbers, so the hash is a keyed one: SipHash-1-3 (Aumasson
//! and Bernstein, INDOCRYPT 2012), once for sixteen blocks.

use super::ghosts::Ghost;
use crate::request::VmId;

/// Blocks with one home.
pub(super) const LANES: usize = 16;
/// The lines of a table that has fewer frames than that: where so few frames
/// share a lane that chance could fill it.
const LINES_SMALL: usize = 256;
/// No frame has this number.
const EMPTY: u64 = u64::MAX;

/// Where a group of neighbouring blocks lives.
#[derive(Clone, Copy)]
pub(super) struct Home {
    /// Stands beside the frame in the table; its low bits are the line.
    tag: u32,
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

/// One place for each lane.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    /// A tag above, a frame below.
    entries: [u64; LANES],
    /// What was let go of those whose home this is; nothing to do with the
    /// entries, but looked at together with them.
    ghosts: [Ghost; LANES],
}

/// Frames by the tags of their blocks.
pub(super) struct Index {
    table: Vec<Line>,
    /// Lines less one; their number is a power of two.
    mask: u32,
    /// Entries in each lane: one place stays empty, for a search to end at.
    filled: [u32; LANES],
    keys: (u64, u64),
}

impl Index {
    /// A table for so many frames, at most half full. A lane has room for
    /// all frames, or for twice its share of them and 256: that chance fills one
    /// is less likely than 10^-20, and then the block is not cached.
    pub(super) fn new(frames: u32, seed: u64) -> Self {
        let small = (frames as usize + 1).next_power_of_two().min(LINES_SMALL);
        let lines = (frames as usize).div_ceil(LANES / 2).next_power_of_two().max(small);
        let keys = (splitmix64(seed), splitmix64(!seed));
        Index {
            table: vec![Line { entries: [EMPTY; LANES], ghosts: [Ghost::NONE; LANES] }; lines],
            mask: (lines - 1) as u32,
            filled: [0; LANES],
            keys,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.table.len() * size_of::<Line>()) as u64
    }

    /// What was let go last of the blocks whose home is this one's.
    pub(super) fn ghost(&mut self, home: Home, block: u64) -> &mut Ghost {
        &mut self.table[(home.tag & self.mask) as usize].ghosts[home.lane(block)]
    }

    /// The home of a VM's group.
    pub(super) fn home(&self, vm: VmId, group: u64) -> Home {
        let hash = siphash13(self.keys, vm.index() as u64, group);
        Home { tag: hash as u32, mix: (hash >> 32) as u32 }
    }

    /// The frame at this home that `is` the block's.
    pub(super) fn find(&self, home: Home, block: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (lane, mut line) = (home.lane(block), home.tag & self.mask);
        loop {
            let entry = self.table[line as usize].entries[lane];
            if entry == EMPTY {
                return None;
            }
            if (entry >> 32) as u32 == home.tag && is(entry as u32) {
                return Some(entry as u32);
            }
            line = (line + 1) & self.mask;
        }
    }

    /// Enter a block that is not there. False, and nothing happens, when its
    /// lane is full.
    pub(super) fn insert(&mut self, home: Home, block: u64, frame: u32) -> bool {
        let (lane, mut line) = (home.lane(block), home.tag & self.mask);
        if self.filled[lane] >= self.mask {
            return false;
        }
        while self.table[line as usize].entries[lane] != EMPTY {
            line = (line + 1) & self.mask;
        }
        self.table[line as usize].entries[lane] = u64::from(home.tag) << 32 | u64::from(frame);
        self.filled[lane] += 1;
        true
    }

    /// Take out a block that is there, in this frame.
    pub(super) fn remove(&mut self, home: Home, block: u64, frame: u32) {
        let (lane, mut hole) = (home.lane(block), home.tag & self.mask);
        let wanted = u64::from(home.tag) << 32 | u64::from(frame);
        while self.table[hole as usize].entries[lane] != wanted {
            let entry = self.table[hole as usize].entries[lane];
            assert!(entry != EMPTY, "block {block} is not in the index");
            hole = (hole + 1) & self.mask;
        }
        // What was displaced past the hole, and may come back to it, does.
        let mut next = hole;
        loop {
            next = (next + 1) & self.mask;
            let entry = self.table[next as usize].entries[lane];
            if entry == EMPTY {
                break;
            }
            let displaced = next.wrapping_sub((entry >> 32) as u32) & self.mask;
            if displaced >= next.wrapping_sub(hole) & self.mask {
                self.table[hole as usize].entries[lane] = entry;
                hole = next;
            }
        }
        self.table[hole as usize].entries[lane] = EMPTY;
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
        let filled = entries.filter(|&(_, e)| e != EMPTY);
        filled.map(|(n, e)| n.wrapping_sub((e >> 32) as u32) & index.mask).max().unwrap_or(0)
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
                assert!(index.find(home, block, |f| f == n).is_none());
                assert!(index.insert(home, block, n), "{name}");
            }
            let (least, most) = (index.filled.iter().min(), index.filled.iter().max());
            let (least, most) = (*least.unwrap(), *most.unwrap());
            assert!(most - least < FRAMES / 16 / 8, "{name}: lanes hold {least} to {most}");
            assert!(longest(&index) < 64, "{name}: {} lines", longest(&index));
            // Half of it goes, and the other half is found.
            for (odd, n) in (0..FRAMES).map(|n| (n % 2 == 1, n)) {
                let (vm, block) = pattern(u64::from(n));
                if odd {
                    index.remove(index.home(vm, group(block)), block, n);
                }
            }
            for n in 0..FRAMES {
                let (vm, block) = pattern(u64::from(n));
                let found = index.find(index.home(vm, group(block)), block, |f| f == n);
                assert_eq!(found, (n % 2 == 0).then_some(n), "{name}");
            }
        }
    }

    #[test]
    fn a_full_lane_takes_no_more() {
        let mut index = Index::new(1, 1);
        let home = index.home(VmId::new(0), 0);
        assert!(index.insert(home, 0, 0));
        assert!(!index.insert(home, 0, 1));
        assert_eq!(index.find(home, 0, |f| f == 1), None);
    }
}
