//! Garbage collection: which block it takes, and how much of it at a time.

use super::{COLLECT_BELOW, FIRST, Ftl, PADDING, State, Victim, Work};

impl Ftl {
    /// Collects garbage for one page of the host's data: moves as many units as it takes to erase
    /// the victim by the time that the host has programmed the space its erasure gains.
    pub(super) fn collect_in_step(&mut self, die: u32, work: &mut Work) {
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
    pub(super) fn choose_victim(&mut self, die: u32) -> bool {
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
    pub(super) fn collect(&mut self, die: u32, moves: u32, work: &mut Work) {
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
    pub(super) fn valid_unit(&self, at: u32) -> Option<u32> {
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
