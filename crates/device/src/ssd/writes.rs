//! The way of a write: into the buffer, which may have to make room, and from there to the flash.

use super::buffer::Pending;
use super::ftl::{Place, Work};
use super::{Ssd, WritePlace};
use seekway_policy::units::SECTOR_BYTES;

impl Ssd {
    pub(super) fn write(&mut self, now_ns: u64, start: u64, end: u64) -> u64 {
        self.counts.writes += 1;
        self.counts.written_bytes += (end - start) * SECTOR_BYTES;
        let mut ready = self.write_command(now_ns);
        for (unit, from, to) in self.units(start, end) {
            ready = self.write_unit(ready, unit, from, to);
        }
        ready + self.spec.write_latency_ns
    }

    /// Takes part of a unit into the buffer; when it is there.
    fn write_unit(&mut self, ready_ns: u64, unit: u32, from: u32, to: u32) -> u64 {
        let sectors = u64::from(to - from);
        if let Place::Buffered(ticket) = self.ftl.place(unit) {
            let arrived = self.fetch(ready_ns, sectors);
            if let Some(waiting) = self.buffer.get_mut(ticket) {
                self.counts.write_hits += 1;
                waiting.ready_ns = waiting.ready_ns.max(arrived);
                // Sectors between the two runs count as written only when the rest was
                // read; close enough, and the unit stays one program either way.
                if from <= waiting.to && waiting.from <= to {
                    waiting.from = waiting.from.min(from);
                    waiting.to = waiting.to.max(to);
                }
            }
            return arrived;
        }
        let admitted = self.wait_for_room(ready_ns);
        let arrived = self.fetch(admitted, sectors);
        let rest = self.ftl.buffer(unit, self.buffer.ticket());
        self.buffer.push(Pending { unit: Some(unit), from, to, rest, ready_ns: arrived });
        arrived
    }

    /// When the buffer has room for a unit, from `ready_ns` on.
    fn wait_for_room(&mut self, ready_ns: u64) -> u64 {
        let mut at = ready_ns;
        self.buffer.release(at);
        while self.buffer.is_full() {
            let end = match self.buffer.next_end() {
                Some(end) => {
                    self.drain(end);
                    self.buffer.next_end().unwrap_or(end)
                }
                None => {
                    // All of it waits: a page goes out now, whole or not.
                    if !self.program_page(u64::MAX) {
                        break;
                    }
                    continue;
                }
            };
            at = at.max(end);
            self.buffer.release(at);
        }
        if at > ready_ns {
            self.counts.stalls += 1;
            self.counts.stall_ns += at - ready_ns;
        }
        at
    }

    /// Begins every program that begins before `until_ns`.
    pub(super) fn drain(&mut self, until_ns: u64) {
        let page_units = self.spec.layout.page_units as usize;
        let unit_sectors = self.spec.unit_sectors;
        while self.buffer.queued() >= page_units {
            let whole = |p: &Pending| p.unit.is_none() || p.to - p.from == unit_sectors;
            let due = self.buffer.is_pressed() || self.buffer.front(page_units).all(whole);
            if !due || !self.program_page(until_ns) {
                break;
            }
        }
    }

    /// Programs a page of what has waited longest, or the little that there is,
    /// if that begins before `until_ns`.
    fn program_page(&mut self, until_ns: u64) -> bool {
        let count = self.spec.layout.page_units as usize;
        let ready = self.buffer.front(count).map(|p| p.ready_ns).max();
        let Some(ready) = ready.map(|ready| ready.max(self.past_ns)) else { return false };
        let mut full = Vec::new();
        let die = loop {
            let home = if full.is_empty() { self.home() } else { None };
            let Some(die) = home.or_else(|| self.flash.idlest(&full)) else { return false };
            if home.is_none() && self.flash.program_begin(ready, die) >= until_ns {
                return false;
            }
            let mut work = Work::default();
            let room = self.ftl.make_room(die, &mut work);
            self.flash.collect(self.past_ns, die, work);
            if room {
                break die;
            }
            // Nothing to gain there: all its blocks are full of valid data.
            full.push(die);
        };
        self.flash.next_turn(die);
        let (units, ready) = self.take_page(ready);
        // The buffer keeps `page` as scratch space.
        let page = std::mem::take(&mut self.page);
        if page.is_empty() {
            self.buffer.program(ready, units);
        } else {
            let mut work = Work::default();
            if let Some(number) = self.ftl.program(die, &page, &mut work) {
                let begin = self.flash.program_begin(ready, die);
                let end = self.flash.program(self.past_ns, begin, die, number);
                self.programmed_ns = self.programmed_ns.max(end);
                self.buffer.program(end, units);
                self.flash.collect(self.past_ns, die, work);
            }
        }
        self.page = page;
        true
    }

    /// The die that the address of the first unit to be programmed names, if addresses decide.
    fn home(&self) -> Option<u32> {
        if self.spec.write_place == WritePlace::Idlest {
            return None;
        }
        self.buffer.front(1).next()?.unit.map(|unit| self.ftl.layout.home_die(unit))
    }

    /// Takes a page's worth of units from the buffer into `page`, discarded
    /// ones left out, and reads what completes those that were written in part.
    /// How many were taken, and when all is there.
    fn take_page(&mut self, ready_ns: u64) -> (u32, u64) {
        self.page.clear();
        let (mut units, mut ready) = (0, ready_ns);
        while units < self.spec.layout.page_units {
            let Some(pending) = self.buffer.pop() else { break };
            units += 1;
            let Some(unit) = pending.unit else { continue };
            self.page.push(unit);
            let missing = self.spec.unit_sectors - (pending.to - pending.from);
            if let Some(at) = pending.rest.filter(|_| missing > 0) {
                self.counts.rest_reads += 1;
                let from = self.ftl.layout.die_of(at);
                let bytes = u64::from(missing) * SECTOR_BYTES;
                ready = ready.max(self.flash.read(self.past_ns, ready_ns, from, bytes));
            }
        }
        (units, ready)
    }

    /// Everything in the buffer reaches the flash; when it has.
    pub(super) fn flush(&mut self, now_ns: u64) -> u64 {
        let ready = self.write_command(now_ns);
        while self.program_page(u64::MAX) {}
        ready.max(self.programmed_ns) + self.spec.write_latency_ns
    }
}
