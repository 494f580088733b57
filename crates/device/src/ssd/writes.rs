//! The way of a write: into the buffer, which may have to make room, and from there to the flash.

use super::buffer::Pending;
use super::flash::Turn;
use super::ftl::{Place, Work};
use super::{Ssd, WritePlace};
use crate::in_flight::Behind;
use seekway_core::units::SECTOR_BYTES;

impl Ssd {
    pub(super) fn write(&mut self, now_ns: u64, start: u64, end: u64) -> u64 {
        self.counts.writes += 1;
        self.counts.written_bytes += (end - start) * SECTOR_BYTES;
        let command = self.write_command(now_ns);
        let mut ready = self.look_up(command, start, end, true);
        let mut waited_for = None;
        for (unit, from, to) in self.units(start, end) {
            ready = self.write_unit(ready, unit, from, to, &mut waited_for);
        }
        let done = ready + self.spec.write_latency_ns;
        // Of several programs that it waited for, the last counts.
        if let Some((job, end)) = waited_for.filter(|_| self.flash.is_movable()) {
            self.behind = Some(Behind { first_job: job, last_job: job, tail_ns: done - end });
        }
        done
    }

    /// Takes part of a unit into the buffer; when it is there.
    fn write_unit(
        &mut self,
        ready_ns: u64,
        unit: u32,
        from: u32,
        to: u32,
        waited_for: &mut Option<(u64, u64)>,
    ) -> u64 {
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
        let admitted = self.wait_for_room(ready_ns, waited_for);
        let arrived = self.fetch(admitted, sectors);
        let rest = self.ftl.buffer(unit, self.buffer.ticket());
        self.buffer.push(Pending { unit: Some(unit), from, to, rest, ready_ns: arrived });
        arrived
    }

    /// When the buffer has room for a unit, from `ready_ns` on. If it has to wait, sets for which
    /// program, and when that ends.
    pub(super) fn wait_for_room(
        &mut self,
        ready_ns: u64,
        waited_for: &mut Option<(u64, u64)>,
    ) -> u64 {
        let mut at = ready_ns;
        self.buffer.release(at);
        while self.buffer.is_full() {
            let (end, job) = match self.buffer.next_end() {
                Some((end, job)) => {
                    self.drain(end);
                    self.buffer.next_end().unwrap_or((end, job))
                }
                None => {
                    // All of it waits: a page goes out now, whole or not.
                    if !self.program_page(u64::MAX) {
                        break;
                    }
                    continue;
                }
            };
            if end > at {
                at = end;
                *waited_for = Some((job, end));
            }
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
        while self.is_due() && self.program_page(until_ns) {}
    }

    /// Programs a page of the longest waiting units, or fewer if there are fewer, if that begins
    /// before `until_ns`; with several planes, also the pages beside it.
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
        let (mut units, mut ready) = self.take_page(ready);
        let mut work = Work::default();
        if let Some(number) = self.place_page(die, &mut work) {
            let mut pages = 1;
            while (number + pages) % self.spec.layout.planes > 0 && self.joins(ready, die) {
                let (more, ready_too) = self.take_page(ready);
                units += more;
                ready = ready.max(ready_too);
                pages += u32::from(self.place_page(die, &mut work).is_some());
            }
            let begin = self.flash.program_begin(ready, die);
            let (job, end) = self.flash.program(self.past_ns, begin, die, number, pages);
            self.programmed_ns = self.programmed_ns.max(end);
            self.buffer.program(end, units, job);
            self.flash.collect(self.past_ns, die, work);
        } else {
            self.buffer.program(ready, units, 0);
        }
        true
    }

    /// Places the units of `page` on `die`; returns the number of the physical page, if there are
    /// units.
    fn place_page(&mut self, die: u32, work: &mut Work) -> Option<u32> {
        if self.page.is_empty() { None } else { self.ftl.program(die, &self.page, work) }
    }

    /// Is there one more page that can go into the row of planes that is about to be programmed
    /// on `die`? It must be whole, here by then, and for this die.
    fn joins(&self, ready_ns: u64, die: u32) -> bool {
        let begin_ns = self.flash.program_begin(ready_ns, die);
        let count = self.spec.layout.page_units as usize;
        self.is_due()
            && self.buffer.front(count).all(|p| p.ready_ns <= begin_ns)
            && self.home().is_none_or(|home| home == die)
    }

    /// Does a page wait that can be programmed: whole units, or too many for others to wait on?
    fn is_due(&self) -> bool {
        let page_units = self.spec.layout.page_units as usize;
        let whole = |p: &Pending| p.unit.is_none() || p.to - p.from == self.spec.unit_sectors;
        self.buffer.queued() >= page_units
            && (self.buffer.is_pressed() || self.buffer.front(page_units).all(whole))
    }

    /// The die that the address of the first unit to be programmed names, if addresses decide.
    fn home(&self) -> Option<u32> {
        if self.spec.write_place == WritePlace::Idlest {
            return None;
        }
        self.buffer.front(1).next()?.unit.map(|unit| self.ftl.layout.home_die(unit))
    }

    /// Takes a page's worth of units from the buffer into `page`, without discarded ones, and reads
    /// the rest of partly written ones. Returns their number, and the time when all is there.
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
                let page = at / self.spec.layout.page_units;
                let bytes = u64::from(missing) * SECTOR_BYTES;
                let turn = Turn::Background;
                let past = self.past_ns;
                ready = ready.max(self.flash.read(past, ready_ns, from, page, bytes, turn));
            }
        }
        (units, ready)
    }

    /// Everything in the buffer reaches the flash; when it has.
    pub(super) fn flush(&mut self, now_ns: u64) -> u64 {
        let ready = self.write_command(now_ns);
        while self.program_page(u64::MAX) {}
        let tail_ns = self.spec.write_latency_ns;
        if self.flash.is_movable() {
            let last_job = self.flash.last_job();
            self.behind = Some(Behind { first_job: 0, last_job, tail_ns });
        }
        ready.max(self.programmed_ns) + tail_ns
    }
}
