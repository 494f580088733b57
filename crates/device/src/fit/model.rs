//! Measures a model as a host measures a drive: the line by random reads, the time of a cache hit,
//! and the read-ahead.

use super::{Fit, FitError, Form, Options, fit, probe};
use crate::DeviceModel;
use crate::closed_loop::serve;
use crate::profile::{self, ProfileError};
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use thiserror::Error;

/// Sectors of a page, which each read reads.
const READ_SECTORS: u64 = 8;
/// Longest read-ahead that is looked for: 1 MiB.
const AHEAD_PAGES_MAX: u64 = 256;
/// Idle for a drive: several turns and seeks.
const IDLE: Nanos = Nanos::from_millis(50);

/// Why a model cannot be measured.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ModelError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Fit(#[from] FitError),
    #[error("no page at sector {start}: the device is too small to be measured")]
    Small { start: u64 },
}

/// Fits `profile` by `reads` random reads of a page without its cache, as the throttle's paper does.
/// The hit time is that of a page read again.
///
/// # Errors
/// There is no such profile, its device is too small, or no line fits.
pub fn of_model(profile: &str, form: Form, reads: usize, seed: u64) -> Result<Fit, ModelError> {
    let separator = if profile.contains(':') { ',' } else { ':' };
    let mut without_cache = build(&format!("{profile}{separator}segments=0"))?;
    let samples = probe(without_cache.as_mut(), reads, READ_SECTORS, seed);
    let mut reader = Reader::new(profile)?;
    let told = reader.device.profile();
    let options = Options {
        form,
        capacity: Some(told.capacity.get()),
        hit_ms: reader.hit_ms()?,
        rotation_ms: told.rotation.map(|r| r.as_millis_f64()),
        ..Options::default()
    };
    Ok(fit(&samples, options)?)
}

fn build(profile: &str) -> Result<Box<dyn DeviceModel>, ProfileError> {
    profile::load(profile).map(|p| p.build())
}

/// Read-ahead of a drive, measured by service times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAhead {
    /// Sectors behind a read that are in the cache although another read follows at once.
    pub sectors: u64,
    /// Reads further after a hit although another read follows at once.
    pub after_hits: bool,
    /// Reads further after a hit while the drive is idle.
    pub when_idle: bool,
}

/// Measures the read-ahead of `profile`: reads a page, then one far away, then one behind the first.
///
/// # Errors
/// There is no such profile, or its device is too small.
pub fn read_ahead(profile: &str) -> Result<ReadAhead, ModelError> {
    let mut reader = Reader::new(profile)?;
    let Some(hit_ms) = reader.hit_ms()? else {
        return Ok(ReadAhead { sectors: 0, after_hits: false, when_idle: false });
    };
    // Far from the time of a hit, and of anything that moves the arm.
    let limit_ms = 2.0 * hit_ms;
    let mut pages = 0;
    while pages < AHEAD_PAGES_MAX {
        let start = reader.fresh();
        reader.read(start)?;
        reader.read_far()?;
        if reader.read(start + (pages + 1) * READ_SECTORS)? > limit_ms {
            break;
        }
        pages += 1;
    }
    let mut beyond = |pause| {
        let start = reader.fresh();
        for page in [0, pages] {
            reader.read(start + page * READ_SECTORS)?;
            reader.now = reader.now + pause;
            reader.read_far()?;
            reader.now = reader.now + pause;
        }
        Ok::<bool, ModelError>(reader.read(start + (pages + 1) * READ_SECTORS)? <= limit_ms)
    };
    Ok(ReadAhead {
        sectors: pages * READ_SECTORS,
        after_hits: pages > 0 && beyond(Nanos::ZERO)?,
        when_idle: beyond(IDLE)?,
    })
}

/// Reads pages of an otherwise idle device, one at a time.
struct Reader {
    device: Box<dyn DeviceModel>,
    now: Instant,
    /// Offsets given out, in both halves of the device together.
    used: u64,
}

impl Reader {
    fn new(profile: &str) -> Result<Reader, ModelError> {
        Ok(Reader { device: build(profile)?, now: Instant::ZERO, used: 0 })
    }

    /// An offset in the second half of the device that was not read before.
    fn fresh(&mut self) -> u64 {
        self.used += 1;
        self.device.profile().capacity.get() / 2 + 10_000 * self.used
    }

    /// Reads a page in the first half where nothing was read.
    fn read_far(&mut self) -> Result<f64, ModelError> {
        self.used += 1;
        self.read(10_000 * self.used)
    }

    /// Time of the read of a page that was just read; `None` where that is not much less than a
    /// read elsewhere: there is no cache.
    fn hit_ms(&mut self) -> Result<Option<f64>, ModelError> {
        let far_ms = self.read_far()?;
        let start = self.fresh();
        self.read(start)?;
        let again_ms = self.read(start)?;
        Ok(Some(again_ms).filter(|ms| 2.0 * ms < far_ms))
    }

    /// Reads the page at `start`; its time in ms.
    fn read(&mut self, start: u64) -> Result<f64, ModelError> {
        let outside = || ModelError::Small { start };
        let extent = Extent::new(Lba::new(start), Sectors::new(READ_SECTORS));
        let extent = extent.filter(|e| e.end().get() <= self.device.profile().capacity.get());
        let done = serve(&mut *self.device, self.now, Op::Read, extent.ok_or_else(outside)?);
        let began = std::mem::replace(&mut self.now, done);
        Ok(done.since(began).as_millis_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINEAR: &str = "linear-15k4";

    #[test]
    fn the_linear_device_is_recovered() {
        for form in [Form::Points, Form::Averaged] {
            let fit = of_model(LINEAR, form, 100_000, 3).unwrap();
            let near = |found: f64, own: f64| (found / own - 1.0).abs() < 0.01;
            assert!(near(fit.line.intercept_ms, 4.25), "{form:?}: {:?}", fit.line);
            assert!(near(fit.device_stroke_ms(), 5.25), "{form:?}: {:?}", fit.line);
            assert_eq!(fit.hit_ms, Some(0.25));
        }
    }

    #[test]
    fn what_a_drive_reads_ahead_is_found() {
        let check = |profile: &str, sectors, after_hits, when_idle| {
            let found = read_ahead(profile);
            assert_eq!(found, Ok(ReadAhead { sectors, after_hits, when_idle }), "{profile}");
        };
        check(LINEAR, 64, true, true);
        check("linear-15k4:on_hit=keep,prefetch_sectors=32", 32, false, false);
        check("linear-15k4:on_hit=keep,idle_ahead=true", 64, false, true);
        check("linear-15k4:segments=0", 0, false, false);
        check("cheetah-15k4:read_ahead_min=64", 64, false, true);
        check("cheetah-15k4", 0, false, true);
    }
}
