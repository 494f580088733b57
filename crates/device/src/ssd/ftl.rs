//! The flash translation layer: the physical unit of each logical one, the free blocks, and greedy
//! garbage collection. No time passes here; the dies' work is handed back.
//!
//! Logical units that were never written are in order, striped over all dies, and on a drive that
//! begins in the middle of its life with gaps between them ([`Start`]): a formula, no memory. The
//! tables are zeroed when built and cost memory only where they were touched (4 bytes a logical
//! unit written, 4 a physical unit programmed): a fresh drive of any size is built in no time.

#[cfg(test)]
mod tests;

use super::{Pending, Ssd};
use seekway_core::units::SECTOR_BYTES;
use serde::Deserialize;
use std::collections::VecDeque;

/// State of a solid-state drive at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StateFile"))]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    // Data in order, everything else erased.
    #[default]
    InOrder,
    // As after random writes without end: all blocks but a few have the units that those have left,
    // and the first write begins to collect garbage.
    #[serde(rename = "gc")]
    Collecting,
}

/// The drive's shape in mapping units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Dies, at least 1.
    pub dies: u32,
    /// Blocks of each die, spare ones included.
    pub blocks: u32,
    /// Pages of a block, which are erased together, in all planes.
    pub block_pages: u32,
    /// Planes of a die, at least 1: page p of a block lies in plane p mod this, and the pages of
    /// a row, one in each plane, are read, programmed and erased in the time of one.
    pub planes: u32,
    /// Mapping units of a page, which are programmed together.
    pub page_units: u32,
    /// Logical units: the host's, and behind them pages of the map.
    pub units: u32,
    /// Units of the map among them; 0 if the drive's memory holds all of it.
    pub map_units: u32,
    /// Logical units, from the first on, that hold data when the drive is built.
    pub filled_units: u32,
    /// Layout of the filled units.
    pub start: Start,
}

/// Blocks of each die that the host's data never gets: one to collect into.
pub(super) const RESERVED_BLOCKS: u32 = 1;

/// Collection of a die begins when this many blocks are free.
const COLLECT_BELOW: u32 = 4;

/// Free blocks of each die of a drive that begins with its collection under way.
const FREE_AT_START: u32 = COLLECT_BELOW - 1;

/// Blocks of a die beside those that the logical units fill: two open ones, the reserved one, and
/// one to begin the collection with.
pub const SPARE_BLOCKS_MIN: u32 = 4;

impl Layout {
    /// Units of a block.
    pub fn block_units(&self) -> u32 {
        self.block_pages * self.page_units
    }

    /// Physical units of the drive.
    pub fn physical_units(&self) -> u64 {
        u64::from(self.dies) * u64::from(self.blocks) * u64::from(self.block_units())
    }

    /// Where unit `unit` lies as laid out in order: page after page over the dies.
    fn in_order(&self, unit: u32) -> u32 {
        let (page, slot) = (unit / self.page_units, unit % self.page_units);
        let (die, row) = (page % self.dies, page / self.dies);
        self.die_start(die) + row * self.page_units + slot
    }

    /// The die that holds unit `unit` as laid out in order.
    pub(super) fn home_die(&self, unit: u32) -> u32 {
        unit / self.page_units % self.dies
    }

    /// The logical unit that physical unit `at` holds as laid out in order.
    fn unit_in_order(&self, at: u32) -> u64 {
        let (die, inner) = (at / self.die_units(), at % self.die_units());
        let (row, slot) = (inner / self.page_units, inner % self.page_units);
        let page = u64::from(row) * u64::from(self.dies) + u64::from(die);
        page * u64::from(self.page_units) + u64::from(slot)
    }

    /// Of the first `units` logical units, how many lie on `die` in order.
    fn in_order_on(&self, die: u32, units: u32) -> u32 {
        let (pages, rest) = (units / self.page_units, units % self.page_units);
        let whole = pages / self.dies + u32::from(die < pages % self.dies);
        whole * self.page_units + if die == pages % self.dies { rest } else { 0 }
    }

    fn die_units(&self) -> u32 {
        self.blocks * self.block_units()
    }

    fn die_start(&self, die: u32) -> u32 {
        die * self.die_units()
    }

    /// The die that holds physical unit `at`.
    pub(super) fn die_of(&self, at: u32) -> u32 {
        at / self.die_units()
    }
}

/// Where a logical unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the write buffer, under this ticket.
    Buffered(u32),
    /// At a physical unit; `held` is false for a unit that was never written, whose position is
    /// only nominal.
    Flash { at: u32, held: bool },
    /// Discarded, and not written since.
    Nowhere,
}

/// Map entries: 0 as laid out in order, 1 discarded, 2 + n physical unit n, or
/// with this bit the ticket of the write buffer.
const BUFFERED: u32 = 1 << 31;

const DISCARDED: u32 = 1;

/// Entries of the map that fill 4 KiB.
const STRETCH: u32 = 1_024;

const FIRST: u32 = 2;

/// No drive maps more units, so that entries fit in 32 bits.
pub const UNITS_MAX: u64 = (BUFFERED - FIRST) as u64;

/// Owner of a slot that was programmed with nothing.
const PADDING: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// As when the drive was built: laid out in order, or never used.
    #[default]
    Original,
    Free,
    Open,
    Closed,
}

/// A block that is being filled.
#[derive(Clone, Copy)]
struct Open {
    block: u32,
    /// Units of it that are taken.
    used: u32,
}

/// The block that is being collected.
#[derive(Clone, Copy)]
struct Victim {
    block: u32,
    /// Units of it that were looked at.
    next: u32,
    /// Units to move for each `gain` units that the host programs.
    valid: u32,
    gain: u32,
    /// Host units whose share of moves is still owed.
    owed: u32,
}

#[derive(Default)]
struct Die {
    /// Blocks from here on were never used.
    untouched: u32,
    /// Blocks below this hold data as laid out in order unless erased since.
    in_order: u32,
    /// Erased blocks, oldest first.
    erased: VecDeque<u32>,
    host: Option<Open>,
    moved: Option<Open>,
    victim: Option<Victim>,
    /// A search found no block with anything to gain, and nothing was lost since.
    full: bool,
}

/// Work of a die for garbage collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Work {
    pub pages_read: u32,
    /// Rows of planes that these pages lie in.
    pub rows_read: u32,
    pub pages_programmed: u32,
    pub blocks_erased: u32,
}

/// Counts since the drive was built, in units unless they say otherwise.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub host: u64,
    pub map: u64,
    pub padding: u64,
    pub collected: u64,
    pub pages_collected: u64,
    pub erases: u64,
}

pub(super) struct Ftl {
    pub(super) layout: Layout,
    pub(super) counts: Counts,
    map: Vec<u32>,
    /// For each [`STRETCH`] of the map, whether any entry was ever set: a look at an unset one
    /// would make the operating system provide it.
    touched: Vec<bool>,
    /// The logical unit that each programmed physical unit was written for.
    owners: Vec<u32>,
    /// Where units that were never written lie on a drive that begins with garbage.
    holes: Option<Holes>,
    /// Of each block: units that are taken but not valid any more.
    lost: Vec<u32>,
    states: Vec<State>,
    dies: Vec<Die>,
}

impl Ftl {
    /// A drive as `layout` says, which `check` has found to fit: the logical
    /// units leave [`SPARE_BLOCKS_MIN`] blocks of each die, and there are at
    /// most [`UNITS_MAX`] physical units.
    pub(super) fn new(layout: Layout) -> Ftl {
        let blocks = layout.dies as usize * layout.blocks as usize;
        let holes = match layout.start {
            Start::InOrder => None,
            Start::Collecting => {
                let units = layout.in_order_on(0, layout.filled_units);
                Some(Holes::new(units, layout.blocks - FREE_AT_START, layout.block_units()))
            }
        };
        let mut ftl = Ftl {
            layout,
            holes,
            counts: Counts::default(),
            map: vec![0; layout.units as usize],
            touched: vec![false; layout.units.div_ceil(STRETCH) as usize],
            owners: vec![0; layout.physical_units() as usize],
            lost: vec![0; blocks],
            states: vec![State::Original; blocks],
            dies: Vec::with_capacity(layout.dies as usize),
        };
        for die in 0..layout.dies {
            let in_order = ftl.fill(die);
            ftl.dies.push(Die { untouched: in_order, in_order, ..Die::default() });
        }
        ftl
    }

    /// Counts the lost units of the blocks of a new drive's `die`; returns the number of used
    /// blocks.
    fn fill(&mut self, die: u32) -> u32 {
        let layout = self.layout;
        let filled = layout.in_order_on(die, layout.filled_units);
        let first = (die * layout.blocks) as usize;
        if let Some(holes) = &self.holes {
            let blocks = layout.blocks - FREE_AT_START;
            for block in 0..blocks {
                let held = holes.held(block, filled);
                self.lost[first + block as usize] = layout.block_units() - held;
            }
            return blocks;
        }
        let blocks = filled.div_ceil(layout.block_units());
        if blocks > 0 {
            // The rest of the last block cannot be programmed before it is erased.
            self.lost[first + blocks as usize - 1] = blocks * layout.block_units() - filled;
        }
        blocks
    }

    /// Where `unit` lies if it was never written.
    fn at_start(&self, unit: u32) -> u32 {
        let at = self.layout.in_order(unit);
        let Some(holes) = &self.holes else { return at };
        let first = self.layout.die_start(self.layout.die_of(at));
        first + holes.place(at - first)
    }

    /// The logical unit that lies at `at` if nothing was ever written there.
    fn unit_at_start(&self, at: u32) -> Option<u32> {
        let at = match &self.holes {
            None => at,
            Some(holes) => {
                let first = self.layout.die_start(self.layout.die_of(at));
                first + holes.index(at - first)?
            }
        };
        u32::try_from(self.layout.unit_in_order(at)).ok()
    }

    fn entry(&self, unit: u32) -> u32 {
        if self.touched[(unit / STRETCH) as usize] { self.map[unit as usize] } else { 0 }
    }

    fn set(&mut self, unit: u32, entry: u32) {
        self.touched[(unit / STRETCH) as usize] = true;
        self.map[unit as usize] = entry;
    }

    pub(super) fn place(&self, unit: u32) -> Place {
        match self.entry(unit) {
            0 => Place::Flash { at: self.at_start(unit), held: unit < self.layout.filled_units },
            DISCARDED => Place::Nowhere,
            entry if entry & BUFFERED != 0 => Place::Buffered(entry & !BUFFERED),
            entry => Place::Flash { at: entry - FIRST, held: true },
        }
    }

    /// The unit's newest data is in the write buffer: its flash copy is lost.
    /// Says where that was.
    pub(super) fn buffer(&mut self, unit: u32, ticket: u32) -> Option<u32> {
        let old = self.lose(unit);
        self.set(unit, BUFFERED | (ticket & !BUFFERED));
        old
    }

    /// The unit holds nothing any more.
    pub(super) fn discard(&mut self, unit: u32) {
        self.lose(unit);
        self.set(unit, DISCARDED);
    }

    fn lose(&mut self, unit: u32) -> Option<u32> {
        let Place::Flash { at, held: true } = self.place(unit) else { return None };
        self.lost[(at / self.layout.block_units()) as usize] += 1;
        self.dies[self.layout.die_of(at) as usize].full = false;
        Some(at)
    }

    /// Erased or never used blocks of a die.
    fn free_blocks(&self, die: u32) -> u32 {
        let d = &self.dies[die as usize];
        self.layout.blocks - d.untouched + d.erased.len() as u32
    }

    fn take_free(&mut self, die: u32) -> Option<Open> {
        let d = &mut self.dies[die as usize];
        let block = if d.untouched < self.layout.blocks {
            d.untouched += 1;
            d.untouched - 1
        } else {
            d.erased.pop_front()?
        };
        let block = die * self.layout.blocks + block;
        self.states[block as usize] = State::Open;
        self.lost[block as usize] = 0;
        Some(Open { block, used: 0 })
    }

    /// Makes room for a page of the host's data on `die`, if that is possible; adds the work to
    /// `work`.
    pub(super) fn make_room(&mut self, die: u32, work: &mut Work) -> bool {
        loop {
            let d = &self.dies[die as usize];
            if d.host.is_some() || self.free_blocks(die) > RESERVED_BLOCKS {
                return true;
            }
            if d.victim.is_none() && !self.choose_victim(die) {
                return false;
            }
            self.collect(die, u32::MAX, work);
        }
    }

    /// Programs `units`, at most a page of them, as one page of `die`, on which [`Ftl::make_room`]
    /// has found room. Adds the due garbage collection to `work`; returns the physical page.
    pub(super) fn program(&mut self, die: u32, units: &[u32], work: &mut Work) -> Option<u32> {
        let mut open = match self.dies[die as usize].host.take() {
            Some(open) => open,
            None => self.take_free(die)?,
        };
        let first = open.block * self.layout.block_units() + open.used;
        for slot in 0..self.layout.page_units {
            let at = first + slot;
            match units.get(slot as usize) {
                Some(&unit) => {
                    if unit < self.layout.units - self.layout.map_units {
                        self.counts.host += 1;
                    } else {
                        self.counts.map += 1;
                    }
                    self.owners[at as usize] = unit;
                    self.set(unit, FIRST + at);
                }
                None => {
                    self.counts.padding += 1;
                    self.owners[at as usize] = PADDING;
                    self.lost[open.block as usize] += 1;
                }
            }
        }
        open.used += self.layout.page_units;
        if open.used == self.layout.block_units() {
            self.close(open.block);
        } else {
            self.dies[die as usize].host = Some(open);
        }
        self.collect_in_step(die, work);
        Some(first / self.layout.page_units)
    }

    fn close(&mut self, block: u32) {
        self.states[block as usize] = State::Closed;
        if self.lost[block as usize] > 0 {
            self.dies[(block / self.layout.blocks) as usize].full = false;
        }
    }
}

// Garbage collection: which block it takes, and how much of it at a time.

impl Ftl {
    /// Collects garbage for one page of the host's data: moves as many units as it takes to erase
    /// the victim by the time that the host has programmed the space its erasure gains.
    fn collect_in_step(&mut self, die: u32, work: &mut Work) {
        if self.dies[die as usize].victim.is_none()
            && (self.free_blocks(die) >= COLLECT_BELOW || !self.choose_victim(die))
        {
            return;
        }
        if let Some(victim) = &mut self.dies[die as usize].victim {
            victim.owed += self.layout.page_units;
            let moves = u64::from(victim.owed) * u64::from(victim.valid);
            let moves = (moves / u64::from(victim.gain)) as u32;
            if victim.valid > 0 {
                victim.owed -=
                    ((u64::from(moves) * u64::from(victim.gain)) / u64::from(victim.valid)) as u32;
            }
            self.collect(die, moves, work);
        }
    }

    /// The closed block of `die` with the fewest valid units becomes the victim,
    /// unless even that one is all valid.
    fn choose_victim(&mut self, die: u32) -> bool {
        if self.dies[die as usize].full {
            return false;
        }
        let first = die * self.layout.blocks;
        let used = self.dies[die as usize].untouched;
        let in_order = self.dies[die as usize].in_order;
        let size = self.layout.block_units();
        let mut best = None;
        let mut most = 0;
        for index in 0..used {
            let block = first + index;
            let closed = match self.states[block as usize] {
                State::Closed => true,
                State::Original => index < in_order,
                State::Free | State::Open => false,
            };
            if closed && self.lost[block as usize] > most {
                most = self.lost[block as usize];
                best = Some(block);
                if most == size {
                    break;
                }
            }
        }
        let Some(block) = best else {
            self.dies[die as usize].full = true;
            return false;
        };
        self.dies[die as usize].victim =
            Some(Victim { block, next: 0, valid: size - most, gain: most, owed: 0 });
        true
    }

    /// Moves up to `moves` valid units of the victim, if there is one, and
    /// erases it when none is left.
    fn collect(&mut self, die: u32, moves: u32, work: &mut Work) {
        let Some(mut victim) = self.dies[die as usize].victim.take() else { return };
        let size = self.layout.block_units();
        let first = victim.block * size;
        let mut moved = 0;
        let (mut page_read, mut row_read) = (None, None);
        while victim.next < size {
            let at = first + victim.next;
            if let Some(unit) = self.valid_unit(at) {
                if moved == moves {
                    break;
                }
                moved += 1;
                let page = at / self.layout.page_units;
                if page_read != Some(page) {
                    page_read = Some(page);
                    work.pages_read += 1;
                    let row = page / self.layout.planes;
                    work.rows_read += u32::from(row_read.replace(row) != Some(row));
                    self.counts.pages_collected += 1;
                }
                self.relocate(die, unit, work);
            }
            victim.next += 1;
        }
        if victim.next < size {
            self.dies[die as usize].victim = Some(victim);
            return;
        }
        self.states[victim.block as usize] = State::Free;
        self.lost[victim.block as usize] = 0;
        let d = &mut self.dies[die as usize];
        d.erased.push_back(victim.block % self.layout.blocks);
        work.blocks_erased += 1;
        self.counts.erases += 1;
    }

    /// The logical unit that physical unit `at` of a closed block holds, if its
    /// data is the newest.
    fn valid_unit(&self, at: u32) -> Option<u32> {
        let block = at / self.layout.block_units();
        if self.states[block as usize] == State::Original {
            let unit = self.unit_at_start(at)?;
            let held = unit < self.layout.filled_units;
            return (held && self.entry(unit) == 0).then_some(unit);
        }
        let unit = self.owners[at as usize];
        (unit != PADDING && self.entry(unit) == FIRST + at).then_some(unit)
    }

    fn relocate(&mut self, die: u32, unit: u32, work: &mut Work) {
        // There is always room: the host's data leaves a free block, and a
        // victim has fewer valid units than a block holds.
        let open = self.dies[die as usize].moved.take().or_else(|| self.take_free(die));
        let Some(mut open) = open else { unreachable!("die {die} has no block to collect into") };
        let at = open.block * self.layout.block_units() + open.used;
        self.owners[at as usize] = unit;
        self.set(unit, FIRST + at);
        self.counts.collected += 1;
        open.used += 1;
        work.pages_programmed += u32::from(open.used % self.layout.page_units == 0);
        if open.used == self.layout.block_units() {
            self.close(open.block);
        } else {
            self.dies[die as usize].moved = Some(open);
        }
    }
}

// Where data lies in blocks that have been written at random for a long time.
// A formula, like the order of a fresh drive: no memory for each unit, and a
// drive of any size is built at once.
//
// Random writes make a block lose units in proportion to those it still has, so that of blocks
// ranked by age, from 0 for the newest to 1 for the one that is collected next, the one at r has
// e^(-λr) of its units. λ follows from the share of all blocks that holds data, (1 - e^-λ)/λ
// (Desnoyers, "Analytic modeling of SSD write performance", SYSTOR 2012, for the collection of the
// oldest block; greedy collection does a little better).
//
// Simplified: neighbouring logical units stay neighbours, only with gaps between them, so that
// sequential reads are faster than on a drive whose data was really written at random.

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

// The mapping table where the drive's memory does not hold all of it: as in DFTL (Gupta, Kim,
// Urgaonkar, "DFTL: a flash translation layer employing demand-based selective caching of
// page-level address mappings", ASPLOS 2009) it is in the flash, and the most recently used part
// is in memory. Here whole pages of the map are cached, not single entries.
//
// A page of the map has the size of a mapping unit. It is in the units behind the host's, and is
// buffered, programmed and collected like those. A command that needs one that is not in memory
// reads it first; the least recently used one makes room, and is written if it changed.
//
// Left out: changes of the map by collection and discards, a journal of changes, writing changed
// pages on a flush. The positions of the map's pages are in memory.

/// A mapping table that is not all in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapSpec {
    /// Entries of a page of the map, at least 1.
    pub entries: u32,
    /// Pages that fit in memory, at least 1.
    pub cached_pages: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum PageState {
    #[default]
    Absent,
    Clean,
    Changed,
}

/// A page that has to be read, and the one that has to be written before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Miss {
    written: Option<u32>,
}

/// Which pages of the map are in memory.
pub(super) struct Mapping {
    spec: MapSpec,
    states: Vec<PageState>,
    /// Links of each page in memory to its neighbours in the order of use, in a ring with one more
    /// for the end.
    ring: Vec<[u32; 2]>,
    cached: u32,
    pub(super) lookups: u64,
    pub(super) misses: u64,
    pub(super) written: u64,
}

impl Mapping {
    /// A map of `pages` pages, none of which is in memory.
    pub(super) fn new(spec: MapSpec, pages: u32) -> Mapping {
        let mut ring = vec![[0; 2]; pages as usize + 1];
        ring[pages as usize] = [pages; 2];
        Mapping {
            spec,
            states: vec![PageState::default(); pages as usize],
            ring,
            cached: 0,
            lookups: 0,
            misses: 0,
            written: 0,
        }
    }

    fn end(&self) -> u32 {
        self.states.len() as u32
    }

    fn take_out(&mut self, page: u32) {
        let [before, after] = self.ring[page as usize];
        self.ring[before as usize][1] = after;
        self.ring[after as usize][0] = before;
    }

    fn put_newest(&mut self, page: u32) {
        let end = self.end();
        let newest = self.ring[end as usize][0];
        self.ring[page as usize] = [newest, end];
        self.ring[newest as usize][1] = page;
        self.ring[end as usize][0] = page;
    }

    /// `page` is used, and changed if `changes`; `None` if it is in memory.
    fn look_up(&mut self, page: u32, changes: bool) -> Option<Miss> {
        self.lookups += 1;
        let state = self.states[page as usize];
        if changes || state == PageState::Absent {
            self.states[page as usize] =
                if changes { PageState::Changed } else { PageState::Clean };
        }
        if state != PageState::Absent {
            self.take_out(page);
            self.put_newest(page);
            return None;
        }
        self.misses += 1;
        let mut written = None;
        if self.cached == self.spec.cached_pages {
            let oldest = self.ring[self.end() as usize][1];
            self.take_out(oldest);
            let state = std::mem::take(&mut self.states[oldest as usize]);
            written = Some(oldest).filter(|_| state == PageState::Changed);
            self.written += u64::from(written.is_some());
        } else {
            self.cached += 1;
        }
        self.put_newest(page);
        Some(Miss { written })
    }
}

impl Ssd {
    /// The map's entries of the units that [start, end) touches are needed, to be changed or only
    /// looked at; when they are in memory.
    pub(super) fn look_up(&mut self, ready_ns: u64, start: u64, end: u64, changes: bool) -> u64 {
        let Some(mapping) = &self.mapping else { return ready_ns };
        let sectors = u64::from(self.spec.unit_sectors) * u64::from(mapping.spec.entries);
        let mut ready = ready_ns;
        for page in start / sectors..end.div_ceil(sectors) {
            let page = page as u32;
            let miss = self.mapping.as_mut().and_then(|mapping| mapping.look_up(page, changes));
            let Some(miss) = miss else { continue };
            let mut admitted = ready_ns;
            if let Some(written) = miss.written {
                admitted = self.write_map_page(ready_ns, written);
            }
            ready = ready.max(self.read_map_page(admitted, page));
        }
        ready
    }

    fn map_unit(&self, page: u32) -> u32 {
        self.spec.layout.units - self.spec.layout.map_units + page
    }

    fn read_map_page(&mut self, ready_ns: u64, page: u32) -> u64 {
        let Place::Flash { at, .. } = self.ftl.place(self.map_unit(page)) else { return ready_ns };
        let die = self.ftl.layout.die_of(at);
        let number = at / self.spec.layout.page_units;
        let bytes = u64::from(self.spec.unit_sectors) * SECTOR_BYTES;
        let turn = self.turn();
        self.flash.read(self.past_ns, ready_ns, die, number, bytes, turn)
    }

    /// A changed page goes to the write buffer; when it is there.
    fn write_map_page(&mut self, ready_ns: u64, page: u32) -> u64 {
        let unit = self.map_unit(page);
        if let Place::Buffered(_) = self.ftl.place(unit) {
            return ready_ns;
        }
        let admitted = self.wait_for_room(ready_ns, &mut None);
        self.ftl.buffer(unit, self.buffer.ticket());
        let to = self.spec.unit_sectors;
        let unit = Some(unit);
        self.buffer.push(Pending { unit, from: 0, to, rest: None, ready_ns: admitted });
        admitted
    }
}

#[cfg(test)]
mod holes_tests {
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

#[cfg(test)]
mod mapping_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Against a list in order of use.
        #[test]
        fn the_page_used_least_recently_makes_room(
            cached_pages in 1..6_u32,
            uses in prop::collection::vec((0..9_u32, any::<bool>()), 1..80),
        ) {
            let mut mapping = Mapping::new(MapSpec { entries: 1, cached_pages }, 9);
            let mut list: Vec<(u32, bool)> = Vec::new();
            for (page, changes) in uses {
                let found = mapping.look_up(page, changes);
                let at = list.iter().position(|&(p, _)| p == page);
                let changed = at.map(|at| list.remove(at).1);
                let is_full = changed.is_none() && list.len() as u32 == cached_pages;
                let oldest = is_full.then(|| list.remove(0));
                list.push((page, changes || changed == Some(true)));
                let written = oldest.and_then(|(page, changed)| changed.then_some(page));
                prop_assert_eq!(found, changed.is_none().then_some(Miss { written }));
            }
        }
    }
}
