//! A solid-state drive (algorithms.md, section 9): channels with dies, a
//! controller, a link to the host, a write buffer and a page-mapped flash
//! translation layer with greedy garbage collection.
//!
//! A read costs the controller's time for a command, the firmware's latency, for each of its pages
//! the array's read time and the transfer over the channel, and the transfer to the host. A write
//! is done when its data is in the write buffer; the buffer drains to whichever die is free first,
//! and a full buffer delays writes. Commands overlap wherever they need different resources. Dies,
//! channels and link are reserved when a command comes, so later commands never delay it. The
//! background drain is computed when time has passed, so a read waits for the program that is under
//! way on its die and for none that has not begun. With a full buffer programs are reserved ahead
//! of time, and a read waits for those too, unless [`ReadRules`] lets it go first; then the
//! programs, and the commands that wait for them, are delayed.
//!
//! Mapping is by unit (4 or 8 KiB, in the profile). Part of a unit written: the
//! rest is read first, unless it follows while the unit waits in the buffer.
//!
//! Options of a profile (docs/flash-model.md), all off by default: planes, suspension of programs
//! and erases, a controller for reads alone, program times that vary, a mapping table that is not
//! all in memory.
//!
//! Left out: read-ahead inside the drive, wear levelling, bad blocks, reads of two planes for two
//! commands, planes that are collected alone, garbage collection in idle time. A write of several
//! units that waits for room follows the last program that it waited for, and a page that is
//! programmed ahead for a waiting write does not wait longer when that write does.
//!
//! Files: `ftl` the positions of data, `holes` those on an aged drive, `mapping` the part of the
//! map in memory, `flash` dies and channels, `tasks` work of a die that reads may delay, `buffer`
//! data that wait to be programmed, `lane` one bus, `writes` the path of a write; this one, that of
//! all other commands.

mod flash;
mod ftl;
#[cfg(test)]
mod tests;

use crate::DeviceModel;
use crate::in_flight::{Behind, InFlight, Moved, assert_inside};
pub use flash::FlashTimes;
use flash::{Flash, Turn, transfer_ns};
pub use flash::{ReadRules, Suspension};
pub use ftl::MapSpec;
use ftl::{Ftl, Mapping, Place, Work};
pub use ftl::{Layout, SPARE_BLOCKS_MIN, Start, UNITS_MAX};
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, SECTOR_BYTES, Sectors};
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Everything that a profile states of a solid-state drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SsdSpec {
    /// Sectors, at least 1.
    pub capacity: u64,
    /// Channels, at least 1; die d hangs on channel d mod this.
    pub channels: u32,
    /// Dies, blocks, pages and mapping units.
    pub layout: Layout,
    /// Sectors of a mapping unit.
    pub unit_sectors: u32,
    /// Dies and channels in time.
    pub flash: FlashTimes,
    /// Millions of bytes in a second between drive and host, at least 1.
    pub host_mb_s: u64,
    /// Do reads and writes have the link to themselves?
    pub full_duplex: bool,
    /// The controller's time for a command, one after the other: reads.
    pub read_command_ns: u64,
    /// As above, for all other commands.
    pub write_command_ns: u64,
    /// Time that the firmware adds to a read, however many are under way.
    pub read_latency_ns: u64,
    /// From the data's arrival in the buffer to the answer.
    pub write_latency_ns: u64,
    /// Units that the write buffer holds, at least a page.
    pub buffer_units: u32,
    /// Commands that the drive takes at once, at least 1.
    pub queue_depth: u32,
    /// Do reads have a controller to themselves? MQSim (FAST 2018) has such stages.
    pub separate_paths: bool,
    /// Is a flush answered at once, because the write buffer survives a loss of power?
    pub power_loss_protection: bool,
    pub write_place: WritePlace,
    /// Rules for reads beside programs and erases.
    pub rules: ReadRules,
    /// The mapping table, if the drive's memory does not hold it.
    pub map: Option<MapSpec>,
}

/// Which die a page of a solid-state drive is programmed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WritePlaceFile"))]
#[serde(rename_all = "kebab-case")]
pub enum WritePlace {
    // The die whose array is free first; equals take turns.
    #[default]
    Idlest,
    // The die of the page's first unit, as data in order are laid out: static allocation, as in
    // MQSim. If that is full of valid data, the idlest one that is not. Such a page is reserved
    // when it is put together, so that a busy die delays no other.
    Home,
}

/// A page that a command reads; for units that were never written, the page that they would have,
/// which other data may have taken.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Page {
    number: u32,
    held: bool,
}

#[derive(Default)]
struct Counts {
    reads: u64,
    writes: u64,
    buffer_hits: u64,
    write_hits: u64,
    flash_reads: u64,
    rest_reads: u64,
    stalls: u64,
    stall_ns: u64,
    written_bytes: u64,
}

pub struct Ssd {
    spec: SsdSpec,
    ftl: Ftl,
    flash: Flash,
    buffer: Buffer,
    mapping: Option<Mapping>,
    /// To the host, and from it; without full duplex the first carries both.
    links: [Lane; 2],
    /// Times when the controllers will have taken all commands that arrived: reads, and all else.
    /// Without separate paths the first has both.
    controllers_ns: [u64; 2],
    /// Up to here the background is worked out: nothing is reserved before.
    past_ns: u64,
    /// When the last program that began will be done.
    programmed_ns: u64,
    in_flight: InFlight,
    /// Programs that the last command waits for, if their end may still move.
    behind: Option<Behind>,
    /// Units of the page that is being put together.
    page: Vec<u32>,
    counts: Counts,
}

impl Ssd {
    /// A drive at rest at time 0.
    pub fn new(spec: SsdSpec) -> Ssd {
        let unit_bytes = u64::from(spec.unit_sectors) * SECTOR_BYTES;
        let page_bytes = unit_bytes * u64::from(spec.layout.page_units);
        Ssd {
            ftl: Ftl::new(spec.layout),
            flash: Flash::new(&spec, page_bytes),
            buffer: Buffer::new(spec.buffer_units),
            mapping: spec.map.map(|map| Mapping::new(map, spec.layout.map_units)),
            links: [Lane::default(), Lane::default()],
            controllers_ns: [0; 2],
            past_ns: 0,
            programmed_ns: 0,
            in_flight: InFlight::new(spec.queue_depth),
            behind: None,
            page: Vec::with_capacity(spec.layout.page_units as usize),
            counts: Counts::default(),
            spec,
        }
    }

    /// The specification it was built from.
    #[cfg(test)]
    pub(crate) fn spec(&self) -> SsdSpec {
        self.spec
    }

    /// Takes a command on sectors [start, end), which are on the drive; returns its end by the
    /// present state, which later commands may change ([`Ssd::behind`], [`Ssd::moved`]). The caller
    /// checks that the queue has room.
    pub(crate) fn accept(&mut self, now_ns: u64, op: Op, start: u64, end: u64) -> u64 {
        self.behind = None;
        self.flash.moved.clear();
        self.drain(now_ns);
        self.past_ns = self.past_ns.max(now_ns);
        self.buffer.release(now_ns);
        let done_ns = match op {
            Op::Read => self.read(now_ns, start, end),
            Op::Write | Op::WriteZeroes => self.write(now_ns, start, end),
            Op::Flush => self.flush(now_ns),
            Op::Discard => self.discard(now_ns, start, end),
        };
        if let Some(last_ns) = self.flash.moved.iter().map(|moved| moved.to_ns).max() {
            self.programmed_ns = self.programmed_ns.max(last_ns);
            self.buffer.follow(&self.flash.moved);
        }
        done_ns
    }

    /// The job that the last command waits for, if that may still move.
    pub(crate) fn behind(&self) -> Option<Behind> {
        self.behind
    }

    /// Programs that the last command has moved.
    pub(crate) fn moved(&self) -> &[Moved] {
        &self.flash.moved
    }

    /// The controller takes a read; when it has.
    fn read_command(&mut self, now_ns: u64) -> u64 {
        let taken = self.controllers_ns[0].max(now_ns) + self.spec.read_command_ns;
        self.controllers_ns[0] = taken;
        taken
    }

    /// The controller takes a command that is no read; when it has.
    fn write_command(&mut self, now_ns: u64) -> u64 {
        let controller_ns = &mut self.controllers_ns[usize::from(self.spec.separate_paths)];
        *controller_ns = (*controller_ns).max(now_ns) + self.spec.write_command_ns;
        *controller_ns
    }

    /// The units that [start, end) touches, each with its sectors [from, to).
    fn units(&self, start: u64, end: u64) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
        let size = u64::from(self.spec.unit_sectors);
        (start / size..end.div_ceil(size)).map(move |unit| {
            let first = unit * size;
            let from = start.max(first) - first;
            let to = end.min(first + size) - first;
            (unit as u32, from as u32, to as u32)
        })
    }

    /// Sends sectors to the host; when they are there.
    fn send(&mut self, ready_ns: u64, sectors: u64) -> u64 {
        let length = transfer_ns(sectors * SECTOR_BYTES, self.spec.host_mb_s);
        self.links[0].reserve(self.past_ns, ready_ns, length)
    }

    /// Fetches sectors from the host; when they are here.
    fn fetch(&mut self, ready_ns: u64, sectors: u64) -> u64 {
        let length = transfer_ns(sectors * SECTOR_BYTES, self.spec.host_mb_s);
        self.links[usize::from(self.spec.full_duplex)].reserve(self.past_ns, ready_ns, length)
    }

    fn read(&mut self, now_ns: u64, start: u64, end: u64) -> u64 {
        self.counts.reads += 1;
        let command = self.read_command(now_ns);
        let ready = self.look_up(command + self.spec.read_latency_ns, start, end, false);
        let mut done = ready;
        // The page whose units are being gathered, and the number of its sectors.
        let mut page: Option<(Page, u64)> = None;
        for (unit, from, to) in self.units(start, end) {
            let sectors = u64::from(to - from);
            let at = match self.ftl.place(unit) {
                Place::Flash { at, held } => {
                    Some(Page { number: at / self.spec.layout.page_units, held })
                }
                Place::Buffered(_) | Place::Nowhere => None,
            };
            match (&mut page, at) {
                (Some((last, gathered)), Some(at)) if *last == at => *gathered += sectors,
                _ => {
                    done = done.max(self.read_page(ready, page.take()));
                    match at {
                        Some(at) => page = Some((at, sectors)),
                        None => {
                            self.counts.buffer_hits += 1;
                            done = done.max(self.send(ready, sectors));
                        }
                    }
                }
            }
        }
        done.max(self.read_page(ready, page))
    }

    /// Rank of a read of the host.
    fn turn(&self) -> Turn {
        let is_first = self.buffer.held() < self.spec.rules.first_below_units;
        if is_first { Turn::First } else { Turn::Last }
    }

    /// Brings sectors of a page to the host; when they are there.
    fn read_page(&mut self, ready_ns: u64, page: Option<(Page, u64)>) -> u64 {
        let Some((page, sectors)) = page else { return ready_ns };
        let die = self.ftl.layout.die_of(page.number * self.spec.layout.page_units);
        if page.held && self.flash.programs(ready_ns, die, page.number) {
            self.counts.buffer_hits += 1;
            return self.send(ready_ns, sectors);
        }
        self.counts.flash_reads += 1;
        let bytes = sectors * SECTOR_BYTES;
        let turn = self.turn();
        let loaded = self.flash.read(self.past_ns, ready_ns, die, page.number, bytes, turn);
        self.send(loaded, sectors)
    }

    /// Units that lie wholly in [start, end) hold nothing any more.
    fn discard(&mut self, now_ns: u64, start: u64, end: u64) -> u64 {
        let whole = self.spec.unit_sectors;
        let end_of_drive = self.spec.capacity;
        for (unit, from, to) in self.units(start, end) {
            let last = end == end_of_drive && u64::from(unit) == (end - 1) / u64::from(whole);
            if from > 0 || (to < whole && !last) {
                continue;
            }
            if let Place::Buffered(ticket) = self.ftl.place(unit)
                && let Some(waiting) = self.buffer.get_mut(ticket)
            {
                waiting.unit = None;
            }
            self.ftl.discard(unit);
        }
        self.write_command(now_ns) + self.spec.write_latency_ns
    }
}

impl DeviceModel for Ssd {
    /// No revolution and no seek: an offset's cost does not depend on the last one.
    fn profile(&self) -> DeviceProfile {
        DeviceProfile::unknown(Sectors::new(self.spec.capacity), false)
    }

    fn queue_depth(&self) -> u32 {
        self.spec.queue_depth
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        let (start, end) = (command.extent.start().get(), command.extent.end().get());
        assert_inside(command, self.spec.capacity);
        let now_ns = now.as_nanos();
        let done_ns = self.accept(now_ns, command.op, start, end);
        self.in_flight.follow(0, &self.flash.moved);
        self.in_flight.enter(done_ns, command.id);
        if let Some(behind) = self.behind {
            self.in_flight.stays_behind(0, behind);
        }
    }

    fn next_completion(&self) -> Option<Instant> {
        self.in_flight.next()
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.in_flight.pop(now)
    }

    /// `buffer_hits` counts reads, page by page, that needed no flash; `write_hits` writes to units
    /// that waited in the buffer; `rest_reads` reads for partly written units; `stalls` and
    /// `stall_ms` waits for room in the buffer; `gc_pages` pages read by garbage collection;
    /// `write_amplification` units programmed to units that left the buffer (1 while nothing was
    /// programmed). Where reads may go before programs, `program_suspensions` and
    /// `erase_suspensions` count suspensions. With a map that is not all in memory, `map_lookups`
    /// counts pages of it that commands needed, `map_misses` those that were not there, and
    /// `map_writes` those that were written to make room.
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        let (c, f) = (&self.counts, &self.ftl.counts);
        let programmed = f.host + f.map + f.padding + f.collected;
        let amplification = if f.host == 0 { 1.0 } else { programmed as f64 / f.host as f64 };
        sink("reads", c.reads as f64);
        sink("writes", c.writes as f64);
        sink("buffer_hits", c.buffer_hits as f64);
        sink("write_hits", c.write_hits as f64);
        sink("flash_reads", c.flash_reads as f64);
        sink("rest_reads", c.rest_reads as f64);
        sink("stalls", c.stalls as f64);
        sink("stall_ms", c.stall_ns as f64 / 1e6);
        sink("written_mib", c.written_bytes as f64 / f64::from(1 << 20));
        sink("units_programmed", programmed as f64);
        sink("gc_units", f.collected as f64);
        sink("gc_pages", f.pages_collected as f64);
        sink("erases", f.erases as f64);
        sink("write_amplification", amplification);
        if self.flash.is_movable() {
            let [programs, erases] = self.flash.suspensions;
            sink("program_suspensions", programs as f64);
            sink("erase_suspensions", erases as f64);
        }
        if let Some(mapping) = &self.mapping {
            sink("map_lookups", mapping.lookups as f64);
            sink("map_misses", mapping.misses as f64);
            sink("map_writes", mapping.written as f64);
        }
    }
}

// The way of a write: into the buffer, which may have to make room, and from there to the flash.

impl Ssd {
    fn write(&mut self, now_ns: u64, start: u64, end: u64) -> u64 {
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
    fn wait_for_room(&mut self, ready_ns: u64, waited_for: &mut Option<(u64, u64)>) -> u64 {
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
    fn drain(&mut self, until_ns: u64) {
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
    fn flush(&mut self, now_ns: u64) -> u64 {
        let ready = self.write_command(now_ns);
        let tail_ns = self.spec.write_latency_ns;
        if self.spec.power_loss_protection {
            return ready + tail_ns;
        }
        while self.program_page(u64::MAX) {}
        if self.flash.is_movable() {
            let last_job = self.flash.last_job();
            self.behind = Some(Behind { first_job: 0, last_job, tail_ns });
        }
        ready.max(self.programmed_ns) + tail_ns
    }
}

// A bus that carries one transfer at a time: a channel to the dies, or the
// link to the host. Transfers are reserved ahead of time, and a later one that
// is ready earlier takes a gap that is long enough.

/// The reserved times of one bus.
#[derive(Default)]
struct Lane {
    /// [from, to) in ns, ascending, with gaps between them.
    busy: VecDeque<(u64, u64)>,
}

impl Lane {
    /// Reserves `length_ns` in one piece from `ready_ns` on; says when it ends.
    /// Nothing before `past_ns` is asked for ever again: `ready_ns >= past_ns`.
    fn reserve(&mut self, past_ns: u64, ready_ns: u64, length_ns: u64) -> u64 {
        while self.busy.front().is_some_and(|&(_, to)| to <= past_ns) {
            self.busy.pop_front();
        }
        if length_ns == 0 {
            return ready_ns;
        }
        let mut at = ready_ns;
        // Most transfers come last: look from the back for where `at` may lie.
        let mut index = self.busy.len();
        while index > 0 && self.busy[index - 1].1 > at {
            index -= 1;
        }
        while let Some(&(from, to)) = self.busy.get(index) {
            if at + length_ns <= from {
                break;
            }
            at = at.max(to);
            index += 1;
        }
        self.enter(index, at, at + length_ns);
        at + length_ns
    }

    /// Enters [from, to) before `index`, joined with adjacent reservations.
    fn enter(&mut self, index: usize, from: u64, to: u64) {
        let joins_next = self.busy.get(index).is_some_and(|&(next, _)| next == to);
        let joins_last = index > 0 && self.busy[index - 1].1 == from;
        match (joins_last, joins_next) {
            (true, true) => {
                if let Some((_, end)) = self.busy.remove(index) {
                    self.busy[index - 1].1 = end;
                }
            }
            (true, false) => self.busy[index - 1].1 = to,
            (false, true) => self.busy[index].0 = from,
            (false, false) => self.busy.insert(index, (from, to)),
        }
    }
}

// The write buffer: units that were written and have not reached the flash, in
// the order in which they came. A unit that is written again while it waits
// stays where it is.

/// A unit in the buffer.
#[derive(Clone, Copy)]
struct Pending {
    /// `None` once it was discarded.
    pub unit: Option<u32>,
    /// Sectors of the unit that were written: [from, to).
    pub from: u32,
    pub to: u32,
    /// Where the rest of a unit that was written in part is on flash, to be
    /// read before the whole can be programmed.
    pub rest: Option<u32>,
    /// When its data was in the buffer.
    pub ready_ns: u64,
}

struct Buffer {
    capacity: u32,
    queue: VecDeque<Pending>,
    /// Ticket of the first in the queue; they count up and wrap.
    first: u32,
    /// Being programmed: when that ends, how many units it frees, and the program's number.
    programming: BinaryHeap<Reverse<(u64, u32, u64)>>,
    /// Units in `programming`, which still take room in the buffer.
    leaving: u32,
}

/// Tickets are one bit short: the map needs one.
const TICKETS: u32 = 1 << 31;

impl Buffer {
    /// A buffer of `capacity` units, at least one.
    fn new(capacity: u32) -> Buffer {
        Buffer {
            capacity,
            queue: VecDeque::with_capacity(capacity as usize),
            first: 0,
            programming: BinaryHeap::new(),
            leaving: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.held() >= self.capacity
    }

    /// Units that take room.
    fn held(&self) -> u32 {
        self.queue.len() as u32 + self.leaving
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Tells whether the queue is long enough that partly written units stop waiting for the rest.
    fn is_pressed(&self) -> bool {
        self.queue.len() as u32 > self.capacity / 4
    }

    /// The ticket that [`Buffer::push`] gives next.
    fn ticket(&self) -> u32 {
        (self.first + self.queue.len() as u32) % TICKETS
    }

    fn push(&mut self, pending: Pending) {
        self.queue.push_back(pending);
    }

    /// The unit with this ticket, which is still in the queue.
    fn get_mut(&mut self, ticket: u32) -> Option<&mut Pending> {
        let index = (ticket + TICKETS - self.first) % TICKETS;
        self.queue.get_mut(index as usize)
    }

    /// The first `count` units, or all that there are.
    fn front(&self, count: usize) -> impl Iterator<Item = &Pending> {
        self.queue.iter().take(count)
    }

    /// Takes the first unit.
    fn pop(&mut self) -> Option<Pending> {
        let pending = self.queue.pop_front()?;
        self.first = (self.first + 1) % TICKETS;
        Some(pending)
    }

    /// `units` that were taken are in the flash at `end_ns`, when program `job` ends.
    fn program(&mut self, end_ns: u64, units: u32, job: u64) {
        self.leaving += units;
        self.programming.push(Reverse((end_ns, units, job)));
    }

    /// The next end of a program, and the program's number.
    fn next_end(&self) -> Option<(u64, u64)> {
        self.programming.peek().map(|&Reverse((end, _, job))| (end, job))
    }

    /// Delays programs. Those whose room was given away already have left; the new owner of the
    /// room follows them.
    fn follow(&mut self, moved: &[Moved]) {
        let mut programming = std::mem::take(&mut self.programming).into_vec();
        for Reverse((end_ns, _, job)) in &mut programming {
            if let Some(moved) = moved.iter().rfind(|moved| moved.job == *job) {
                *end_ns = moved.to_ns;
            }
        }
        self.programming = programming.into();
    }

    /// Frees the units that are in the flash at `now_ns`.
    fn release(&mut self, now_ns: u64) {
        while let Some(&Reverse((end, units, _))) = self.programming.peek() {
            if end > now_ns {
                break;
            }
            self.leaving -= units;
            self.programming.pop();
        }
    }
}

#[cfg(test)]
mod lane_tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_transfer_takes_the_first_gap_that_holds_it() {
        let mut lane = Lane::default();
        assert_eq!(lane.reserve(0, 100, 50), 150);
        assert_eq!(lane.reserve(0, 200, 50), 250);
        // 50 to 100 is free, 150 to 200 too, and 30 more only behind 250.
        assert_eq!(lane.reserve(0, 40, 50), 90);
        assert_eq!(lane.reserve(0, 120, 50), 200);
        assert_eq!(lane.reserve(0, 0, 60), 310);
        assert_eq!(lane.busy, [(40, 90), (100, 310)]);
        assert_eq!(lane.reserve(310, 310, 1), 311);
        assert_eq!(lane.busy.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn transfers_never_overlap_and_gaps_are_used(
            asked in prop::collection::vec((0..2_000_u64, 1..100_u64), 1..80),
        ) {
            let mut lane = Lane::default();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (ready, length) in asked {
                let end = lane.reserve(0, ready, length);
                let begin = end - length;
                prop_assert!(begin >= ready);
                let free = |at: u64| taken.iter().all(|&(f, t)| at + length <= f || t <= at);
                prop_assert!(free(begin), "overlap at {}", begin);
                let earlier = (ready..begin).find(|&at| free(at));
                prop_assert_eq!(earlier, None, "there was room before {}", begin);
                taken.push((begin, end));
            }
        }
    }
}
