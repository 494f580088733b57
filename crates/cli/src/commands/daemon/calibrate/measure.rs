//! Random single reads of a real disk. It never writes: the descriptor is
//! opened for reading only.

use super::MeasuredRequests;
use crate::args::MeasuringArgs;
use crate::load;
use crate::runs::{self, NOBODY};
use anyhow::{Context, Result, bail};
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Lba, SECTOR_BYTES, Sectors};
use seekway_device::fit::{Places, Sample};
use seekway_hostd::images::{Piece, Surface};
use signal_hook::{SigId, flag};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most random reads: their samples are held.
const READS_MAX: u32 = 10_000_000;
/// Largest read: what disks take in one command, and far more than says anything.
const BLOCK_MAX: Sectors = Sectors::new(2048);
/// Places that are read twice, and the least that say anything.
const TWICE: usize = 200;
const TWICE_MIN: usize = 20;
/// Largest share of a random read's time for a read that counts as a hit in the drive's cache.
const HIT_RATIO: f64 = 0.5;
/// Share of the device below which a file's line is drawn out far.
const COVERED_MIN: f64 = 0.5;

pub struct Plan {
    reads: usize,
    block: Sectors,
    time_max: Duration,
    seed: u64,
}

impl Plan {
    pub fn new(args: &MeasuringArgs) -> Result<Plan> {
        let reads = args.reads.get();
        if reads > READS_MAX {
            bail!("--reads {reads}: at most {READS_MAX}");
        }
        let block = load::size("--block", &args.block)?;
        if block.get() == 0 || block > BLOCK_MAX {
            bail!("--block {}: expected 512 B to 1 MiB", args.block);
        }
        let time_max = load::duration("--time-max", &args.time_max)?;
        let time_max = Duration::from_nanos(time_max.get());
        Ok(Plan { reads: reads as usize, block, time_max, seed: args.seed })
    }
}

/// Reads at random places, then some of them twice.
pub fn measure(what: &Path, plan: &Plan) -> Result<MeasuredRequests> {
    let surface = Surface::open(what)?;
    let blocks = Blocks::new(&surface, plan.block).with_context(|| what.display().to_string())?;
    let signals = Signals::heard().context("cannot handle signals")?;
    let begun = Instant::now();
    let mut reader = Reader::new(&surface, &blocks);
    let mut places = Places::new(plan.seed, blocks.count);

    let bar = runs::requests(Some(plan.reads as u64), "reading at random");
    let mut samples = Vec::new();
    for place in places.by_ref().take(plan.reads) {
        if signals.came() || begun.elapsed() > plan.time_max {
            break;
        }
        samples.push(reader.read(place)?);
        bar.inc(1);
    }
    bar.set_message("reading twice");
    let mut again_ns = Vec::new();
    for place in places.take(TWICE) {
        // A tenth more time, so that the time's end does not take the hits away.
        if signals.came() || begun.elapsed() > plan.time_max * 11 / 10 {
            break;
        }
        reader.read(place)?;
        again_ns.push(reader.read(place)?.service_ns);
    }
    bar.finish_and_clear();

    let mut notes = Vec::new();
    if samples.len() < plan.reads {
        let why = if signals.came() { "interrupted" } else { "time is up (--time-max)" };
        notes.push(format!("{why}: {} of {} reads were made", samples.len(), plan.reads));
    }
    notes.extend(about_places(&surface, &blocks));
    let hit_ms = hit_ms(&samples, again_ns, &mut notes);
    Ok(MeasuredRequests {
        source: source(what, &surface, samples.len(), plan),
        samples,
        capacity: Some(surface.device_capacity().map_or(blocks.end, |c| c.get().max(blocks.end))),
        hit_ms,
        notes,
    })
}

/// Ctrl-C and SIGTERM end the reading, while this exists; a second one ends the program at once.
pub struct Signals {
    flag: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Signals {
    pub fn heard() -> std::io::Result<Signals> {
        let mut signals = Signals { flag: Arc::new(AtomicBool::new(false)), handlers: Vec::new() };
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let (again, first) = (Arc::clone(&signals.flag), Arc::clone(&signals.flag));
            let again = flag::register_conditional_shutdown(signal, 128 + signal, again)?;
            signals.handlers.extend([again, flag::register(signal, first)?]);
        }
        Ok(signals)
    }

    pub fn came(&self) -> bool {
        is_stopped(&self.flag)
    }

    /// For another thread: see [`is_stopped`].
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

/// Did a signal set the flag, or did whoever called ask to stop?
pub fn is_stopped(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) || NOBODY.stops()
}

impl Drop for Signals {
    fn drop(&mut self) {
        for &handler in &self.handlers {
            signal_hook::low_level::unregister(handler);
        }
    }
}

fn source(what: &Path, surface: &Surface, reads: usize, plan: &Plan) -> String {
    let kind = if surface.is_block() { "the device" } else { "the file" };
    let (what, bytes) = (what.display(), plan.block.bytes());
    format!("{kind} {what} ({reads} random reads of {bytes} bytes, seed {})", plan.seed)
}

/// Where the reads lay, when that needs saying.
fn about_places(surface: &Surface, blocks: &Blocks<'_>) -> Option<String> {
    if surface.is_block() {
        return None;
    }
    let Some(device) = surface.device_capacity() else {
        return Some(
            "where the file lies is not known (no FIEMAP, or a file system with no one device): \
             distances are between places in the file"
                .into(),
        );
    };
    let span = (blocks.end - blocks.start) as f64 / device.get().max(1) as f64;
    let places = format!(
        "distances are between places on the device (FIEMAP); the file's {} pieces span {:.1} % of it",
        blocks.pieces.len(),
        100.0 * span
    );
    let drawn_out = ", and the line is drawn out from there: measure the device itself for more";
    Some(places + if span < COVERED_MIN { drawn_out } else { "" })
}

/// The median of the second reads where they are clearly faster than the first.
fn hit_ms(samples: &[Sample], mut again_ns: Vec<u64>, notes: &mut Vec<String>) -> Option<f64> {
    if again_ns.len() < TWICE_MIN {
        return None;
    }
    let mut first_ns: Vec<u64> = samples.iter().map(|s| s.service_ns).collect();
    first_ns.sort_unstable();
    again_ns.sort_unstable();
    let median_ms = |sorted: &[u64]| Some(*sorted.get(sorted.len() / 2)? as f64 / 1e6);
    let (first, again) = (median_ms(&first_ns)?, median_ms(&again_ns)?);
    if again > HIT_RATIO * first {
        notes.push(format!(
            "reading the same again takes {again:.3} ms and elsewhere {first:.3} ms (medians): no \
             cache of the drive is seen"
        ));
        return None;
    }
    Some(again)
}

/// The places that can be read: blocks within the pieces.
struct Blocks<'a> {
    pieces: &'a [Piece],
    /// Blocks before each piece, ascending from 0.
    before: Vec<u64>,
    count: u64,
    block: u64,
    /// Alignment of reads in the file, in sectors.
    align: u64,
    /// Lowest and highest sector of the pieces, and the one after.
    start: u64,
    end: u64,
}

impl Blocks<'_> {
    fn new(surface: &Surface, block: Sectors) -> Result<Blocks<'_>> {
        let align = u64::from(surface.block_bytes()) / SECTOR_BYTES;
        if !block.get().is_multiple_of(align) {
            bail!("--block: reads here are multiples of {} bytes", surface.block_bytes());
        }
        Blocks::of(surface.pieces(), block.get(), align)
    }

    fn of(pieces: &[Piece], block: u64, align: u64) -> Result<Blocks<'_>> {
        let mut count = 0;
        let mut before = Vec::with_capacity(pieces.len());
        for piece in pieces {
            before.push(count);
            let skipped = piece.at.next_multiple_of(align) - piece.at;
            count += piece.len.saturating_sub(skipped) / block;
        }
        if count < 2 {
            bail!("holds less than two reads of {} bytes", block * SECTOR_BYTES);
        }
        let start = pieces.iter().map(|p| p.lba).min().unwrap_or(0);
        let end = pieces.iter().map(|p| p.lba + p.len).max().unwrap_or(0);
        Ok(Blocks { pieces, before, count, block, align, start, end })
    }

    /// Sector in the file and on the device of block `place`, below `count`.
    fn at(&self, place: u64) -> (u64, u64) {
        // Pieces too short for a block begin where the next one does: the last of them counts.
        let index = self.before.partition_point(|&b| b <= place) - 1;
        let piece = self.pieces[index];
        let skipped = piece.at.next_multiple_of(self.align) - piece.at;
        let within = skipped + (place - self.before[index]) * self.block;
        (piece.at + within, piece.lba + within)
    }
}

struct Reader<'a> {
    surface: &'a Surface,
    blocks: &'a Blocks<'a>,
    /// More than a read needs: direct I/O takes aligned memory, which has no other way without
    /// unsafe code.
    memory: Vec<u8>,
    /// The part of it that is aligned, of a read's size.
    aligned: Range<usize>,
    /// Where the last read ended.
    from: Option<u64>,
}

impl Reader<'_> {
    fn new<'a>(surface: &'a Surface, blocks: &'a Blocks<'a>) -> Reader<'a> {
        let align = surface.memory_align_bytes().max(surface.block_bytes()) as usize;
        let len = Sectors::new(blocks.block).bytes() as usize;
        let memory = vec![0; len + align];
        let begin = memory.as_ptr().align_offset(align).min(align);
        Reader { surface, blocks, memory, aligned: begin..begin + len, from: None }
    }

    /// Reads block `place` and times it.
    fn read(&mut self, place: u64) -> Result<Sample> {
        let (at, lba) = self.blocks.at(place);
        let begun = Instant::now();
        self.surface.read(&mut self.memory[self.aligned.clone()], at * SECTOR_BYTES)?;
        let service_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let extent = Extent::new(Lba::new(lba), Sectors::new(self.blocks.block))
            .context("a place beyond what a disk can have")?;
        let from = self.from.replace(extent.end().get());
        Ok(Sample { op: Op::Read, extent, service_ns, from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_within_pieces_and_aligned() {
        let piece = |at, lba, len| Piece { at, lba, len };
        // A whole one, one of a sector more than a block that is not aligned,
        // one too short, and one that begins off the alignment.
        let pieces = [piece(0, 800, 16), piece(20, 100, 9), piece(40, 0, 4), piece(44, 500, 24)];
        let blocks = Blocks::of(&pieces, 8, 8).unwrap();
        let all: Vec<_> = (0..blocks.count).map(|n| blocks.at(n)).collect();
        assert_eq!(all, [(0, 800), (8, 808), (48, 504), (56, 512)]);
        assert_eq!((blocks.start, blocks.end), (0, 816));
        assert!(Blocks::of(&pieces[1..3], 8, 8).is_err());
    }

    #[test]
    fn second_reads_are_hits_when_they_are_faster() {
        let extent = Extent::new(Lba::ZERO, Sectors::new(8)).unwrap();
        let sample = Sample { op: Op::Read, extent, service_ns: 8_000_000, from: None };
        let (random, mut notes) = (vec![sample; 100], Vec::new());
        assert_eq!(hit_ms(&random, vec![200_000; 50], &mut notes), Some(0.2));
        assert_eq!(hit_ms(&random, vec![200_000; 5], &mut notes), None, "too few");
        assert!(notes.is_empty());
        assert_eq!(hit_ms(&random, vec![7_000_000; 50], &mut notes), None);
        assert!(notes[0].contains("no cache"), "{notes:?}");
    }
}
