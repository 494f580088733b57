//! The mapping table where the drive's memory does not hold all of it: as in DFTL (Gupta, Kim,
//! Urgaonkar, "DFTL: a flash translation layer employing demand-based selective caching of
//! page-level address mappings", ASPLOS 2009) it is in the flash, and the most recently used part
//! is in memory. Here whole pages of the map are cached, not single entries.
//!
//! A page of the map has the size of a mapping unit. It is in the units behind the host's, and is
//! buffered, programmed and collected like those. A command that needs one that is not in memory
//! reads it first; the least recently used one makes room, and is written if it changed.
//!
//! Left out: changes of the map by collection and discards, a journal of changes, writing changed
//! pages on a flush. The positions of the map's pages are in memory.

use super::Ssd;
use super::buffer::Pending;
use super::ftl::Place;
use seekway_core::units::SECTOR_BYTES;

/// A mapping table that is not all in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapSpec {
    /// Entries of a page of the map, at least 1.
    pub entries: u32,
    /// Pages that fit in memory, at least 1.
    pub cached_pages: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
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
    states: Vec<State>,
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
            states: vec![State::default(); pages as usize],
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
        if changes || state == State::Absent {
            self.states[page as usize] = if changes { State::Changed } else { State::Clean };
        }
        if state != State::Absent {
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
            written = Some(oldest).filter(|_| state == State::Changed);
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
mod tests {
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
