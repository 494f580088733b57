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

mod buffer;
mod flash;
mod ftl;
mod holes;
mod lane;
mod mapping;
mod tasks;
mod writes;

pub use flash::FlashTimes;
pub use ftl::{Layout, SPARE_BLOCKS_MIN, Start, UNITS_MAX};
pub use mapping::MapSpec;
pub use tasks::{ReadRules, Suspension};

use crate::DeviceModel;
use crate::in_flight::{Behind, InFlight, Moved, assert_inside};
use buffer::Buffer;
use flash::{Flash, Turn, transfer_ns};
use ftl::{Ftl, Place};
use lane::Lane;
use mapping::Mapping;
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, SECTOR_BYTES, Sectors};
use serde::Deserialize;

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

#[cfg(test)]
mod tests;
