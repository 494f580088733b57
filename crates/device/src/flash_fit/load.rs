//! A cell's load as a state machine, which real disks and models are driven by alike.

use super::matrix::Cell;
use crate::closed_loop::command;
use crate::fit::Places;
use crate::profile::Profile;
use seekway_core::mix::nth;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Sectors};

const KIB_SECTORS: u64 = 2;
const READER_KIB: u32 = 4;
/// Bytes that a simulated cell writes before it counts: twice the write buffer of a fitted drive.
const WARM_UP_BYTES: u64 = 2 << 20;
const LONG_KIB: u32 = 1024;

/// Observations of a cell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Observed {
    /// Commands of the loop that completed.
    pub commands: u64,
    /// Commands a second. Counts half a command if none completed.
    pub iops: f64,
    /// Reads of the quiet reader that completed.
    pub reader_reads: u64,
    /// Their mean latency; if none completed, how long the last one has waited.
    pub reader_mean_us: f64,
}

/// The commands of a cell. Each has a slot: 0 to below the depth are the loop's, the last one is the
/// quiet reader's. A slot has one command at a time.
pub struct CellLoad {
    cell: Cell,
    /// Random numbers for the loop's offsets, the reader's, and the choice of writes.
    places: Places,
    reader_places: Places,
    percents: Places,
    /// When the command of each slot was issued.
    issued: Vec<Instant>,
    begin: Option<Instant>,
    last: Instant,
    commands: u64,
    reader_reads: u64,
    reader_ns: u64,
}

impl CellLoad {
    /// Of a drive's first `sectors` sectors, at least a command of the cell.
    pub fn new(cell: Cell, sectors: u64, seed: u64) -> CellLoad {
        let places =
            |n, kib| Places::new(nth(nth(seed).wrapping_add(n)), sectors / sectors_of(kib));
        CellLoad {
            cell,
            places: places(0, cell.kib),
            reader_places: places(1, READER_KIB),
            percents: Places::new(nth(nth(seed).wrapping_add(2)), 100),
            issued: vec![Instant::ZERO; cell.depth as usize + 1],
            begin: None,
            last: Instant::ZERO,
            commands: 0,
            reader_reads: 0,
            reader_ns: 0,
        }
    }

    /// Commands in flight: the loop's and the reader's.
    pub fn slots(&self) -> u32 {
        self.cell.depth + 1
    }

    /// The next command of a slot that has none.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn next(&mut self, now: Instant, slot: u32) -> (Op, Extent) {
        self.issued[slot as usize] = now;
        let is_reader = slot == self.cell.depth;
        let (places, kib) = match is_reader {
            true => (&mut self.reader_places, READER_KIB),
            false => (&mut self.places, self.cell.kib),
        };
        let (place, sectors) = (places.next().unwrap_or(0), sectors_of(kib));
        let extent = Extent::new(Lba::new(place * sectors), Sectors::new(sectors));
        let percent = u64::from(self.cell.writes_percent);
        let is_write = !is_reader && self.percents.next().is_some_and(|p| p < percent);
        let op = if is_write { Op::Write } else { Op::Read };
        (op, extent.expect("a place on the drive"))
    }

    /// Begins to count: all completions from now on, and of the reader the requests issued from now
    /// on.
    pub fn begin(&mut self, now: Instant) {
        self.begin = Some(now);
        self.last = now;
    }

    /// The command of a slot has completed.
    pub fn done(&mut self, now: Instant, slot: u32) {
        let Some(begin) = self.begin else { return };
        self.last = self.last.max(now);
        let issued = self.issued[slot as usize];
        if slot < self.cell.depth {
            self.commands += 1;
        } else if issued >= begin {
            self.reader_reads += 1;
            self.reader_ns += now.since(issued).get();
        }
    }

    /// Observations from the beginning until now.
    pub fn observed(&self) -> Observed {
        let begin = self.begin.unwrap_or(self.last);
        let seconds = self.last.since(begin).get().max(1) as f64 / 1e9;
        let waits =
            self.issued.last().map_or(0, |&at| self.last.as_nanos().saturating_sub(at.as_nanos()));
        let reader_ns = match self.reader_reads {
            0 => waits as f64,
            reads => self.reader_ns as f64 / reads as f64,
        };
        Observed {
            commands: self.commands,
            iops: (self.commands as f64).max(0.5) / seconds,
            reader_reads: self.reader_reads,
            reader_mean_us: (reader_ns / 1e3).max(1e-3),
        }
    }
}

fn sectors_of(kib: u32) -> u64 {
    u64::from(kib) * KIB_SECTORS
}

/// A cell on a new drive of `profile`, counted for some hundred to a few thousand commands, and
/// `longer` times as long. The same seed gives the same commands.
///
/// # Panics
/// The drive takes fewer commands at once than the cell has, or is smaller than one of them.
pub fn simulate(profile: &Profile, cell: Cell, seed: u64, longer: u64) -> Observed {
    let mut device = profile.build();
    let mut load = CellLoad::new(cell, device.profile().capacity.get(), seed);
    let depth = u64::from(cell.depth);
    // Long commands are the model's dearest, and vary least.
    let (few, each) = if cell.kib >= LONG_KIB { (30, 4) } else { (200, 32) };
    let written = u64::from(cell.kib) * 1024 * u64::from(cell.writes_percent) / 100;
    let warm_up = few + 4 * depth + WARM_UP_BYTES.checked_div(written).unwrap_or(0);
    let last = warm_up + longer * (2 * few + each * depth);
    let submit = |device: &mut dyn crate::DeviceModel, load: &mut CellLoad, now, slot| {
        let (op, extent) = load.next(now, slot);
        device.submit(now, &command(slot, op, extent, now));
    };
    for slot in 0..load.slots() {
        submit(device.as_mut(), &mut load, Instant::ZERO, slot);
    }
    let mut done = 0;
    while done < last {
        let Some(now) = device.next_completion() else { break };
        while let Some(id) = device.pop_completed(now) {
            let slot = id.slot() as u32;
            load.done(now, slot);
            done += 1;
            if done == warm_up {
                load.begin(now);
            }
            submit(device.as_mut(), &mut load, now, slot);
        }
    }
    load.observed()
}
