//! What each sector of a disk may hold: a flat model of what a client was promised.
//!
//! A sector has versions, one for each write to it. A version is dead when a write that was
//! submitted after the version was acknowledged is settled. What *settled* means is the test's
//! choice: acknowledged, where the daemon is killed and the computer stays up; durable, where
//! its power fails. All versions that are not dead are allowed, those in flight among them.

use std::collections::HashMap;
use std::ops::Range;

pub const SECTOR_BYTES: usize = 512;

/// Steps of the test: each submission and each answer is one.
pub type Time = u64;

/// What a write leaves in its sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The sectors' own bytes under this number ([`fill`]).
    Data,
    /// Zeroes.
    Zeroes,
}

#[derive(Clone, Debug)]
struct Version {
    write: u64,
    content: Content,
    submitted: Time,
    acknowledged: Option<Time>,
    settled: bool,
    died: Option<Time>,
}

#[derive(Clone)]
pub struct Model {
    now: Time,
    sectors: Vec<Vec<Version>>,
    writes: HashMap<u64, Range<usize>>,
}

impl Model {
    /// A disk of zeroes.
    pub fn new(sectors: usize) -> Model {
        let first = Version {
            write: 0,
            content: Content::Zeroes,
            submitted: 0,
            acknowledged: Some(0),
            settled: true,
            died: None,
        };
        Model { now: 1, sectors: vec![vec![first]; sectors], writes: HashMap::new() }
    }

    /// The time of the next step.
    pub fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    pub fn len(&self) -> usize {
        self.sectors.len()
    }

    /// A write is on its way. Numbers are the test's, each once, above 0.
    pub fn submit(&mut self, write: u64, sectors: Range<usize>, content: Content) {
        let submitted = self.tick();
        for sector in &mut self.sectors[sectors.clone()] {
            let (acknowledged, settled, died) = (None, false, None);
            sector.push(Version { write, content, submitted, acknowledged, settled, died });
        }
        assert!(self.writes.insert(write, sectors).is_none(), "write {write} is submitted twice");
    }

    /// The client was told that the write is done.
    pub fn acknowledge(&mut self, write: u64) {
        let now = self.tick();
        for sector in &mut self.sectors[self.writes[&write].clone()] {
            if let Some(version) = sector.iter_mut().find(|v| v.write == write) {
                version.acknowledged = Some(now);
            }
        }
    }

    /// The write may not be lost any more, nor undone by an older one.
    pub fn settle(&mut self, write: u64) {
        let now = self.tick();
        for sector in &mut self.sectors[self.writes[&write].clone()] {
            let Some(settled) = sector.iter_mut().find(|v| v.write == write) else { continue };
            settled.settled = true;
            let submitted = settled.submitted;
            for version in sector.iter_mut() {
                if version.died.is_none() && version.acknowledged.is_some_and(|a| a < submitted) {
                    version.died = Some(now);
                }
            }
        }
    }

    /// Forget what died before `time`: no read that began earlier is in flight.
    pub fn forget(&mut self, sectors: Range<usize>, time: Time) {
        for sector in &mut self.sectors[sectors] {
            sector.retain(|v| v.died.is_none_or(|died| died >= time));
        }
    }

    /// Does the sector hold what it may, for a read that was submitted at `since`?
    pub fn check(&self, sector: usize, bytes: &[u8], since: Time) -> Result<(), String> {
        let versions = &self.sectors[sector];
        let mut allowed = versions.iter().filter(|v| v.died.is_none_or(|died| died > since));
        if allowed.any(|v| holds(v, sector, bytes)) {
            return Ok(());
        }
        let found = match versions.iter().find(|v| holds(v, sector, bytes)) {
            Some(old) => format!("the old version {old:?}"),
            None if bytes.iter().all(|&b| b == 0) => "zeroes".into(),
            None => format!("bytes {:02x?}… of write {}", &bytes[..16], number(bytes)),
        };
        let told: Vec<String> = versions.iter().map(|v| format!("{v:?}")).collect();
        Err(format!("sector {sector} holds {found}; its versions: {}", told.join(", ")))
    }

    /// The whole disk, with nothing in flight or after a crash.
    pub fn check_all(&self, image: &[u8]) -> Result<(), String> {
        assert_eq!(image.len(), self.len() * SECTOR_BYTES);
        let mut sectors = image.chunks(SECTOR_BYTES).enumerate();
        sectors.try_for_each(|(n, bytes)| self.check(n, bytes, self.now))
    }
}

fn holds(version: &Version, sector: usize, bytes: &[u8]) -> bool {
    match version.content {
        Content::Zeroes => bytes.iter().all(|&byte| byte == 0),
        Content::Data => bytes == fill(version.write, sector),
    }
}

/// The number of the write whose data these are.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// What a write puts into a sector: its number, the sector, and bytes that follow from both.
pub fn fill(write: u64, sector: usize) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    for (n, word) in bytes.chunks_mut(8).enumerate() {
        let value = match n {
            0 => write,
            1 => sector as u64,
            n => (write << 24 ^ sector as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n as u64,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let mut model = Model::new(1);
        model.submit(1, 0..1, Content::Data);
        model
    }

    #[test]
    fn what_is_in_flight_may_be_old_or_new() {
        let model = model();
        assert!(model.check(0, &[0; SECTOR_BYTES], 9).is_ok());
        assert!(model.check(0, &fill(1, 0), 9).is_ok());
        assert!(model.check(0, &fill(2, 0), 9).is_err());
        assert!(model.check(0, &fill(1, 1), 9).is_err(), "another sector's data");
    }

    #[test]
    fn what_is_settled_may_not_be_lost() {
        let mut model = model();
        model.acknowledge(1);
        assert!(model.check(0, &[0; SECTOR_BYTES], 9).is_ok(), "not settled yet");
        model.settle(1);
        assert!(model.check(0, &[0; SECTOR_BYTES], 9).is_err());
        assert!(model.check(0, &fill(1, 0), 9).is_ok());
    }

    #[test]
    fn a_write_that_is_done_again_over_a_newer_one_is_found() {
        let mut model = model();
        model.acknowledge(1);
        model.settle(1);
        model.submit(2, 0..1, Content::Data);
        assert!(model.check(0, &fill(1, 0), 99).is_ok(), "the newer one is in flight");
        model.acknowledge(2);
        model.settle(2);
        assert!(model.check(0, &fill(1, 0), 99).is_err());
        assert!(model.check(0, &fill(1, 0), 3).is_ok(), "for a read that was in flight already");
    }

    #[test]
    fn writes_in_flight_together_may_end_in_either_order() {
        let mut model = model();
        model.submit(2, 0..1, Content::Zeroes);
        for write in [2, 1] {
            model.acknowledge(write);
            model.settle(write);
        }
        assert!(model.check(0, &fill(1, 0), 99).is_ok());
        assert!(model.check(0, &[0; SECTOR_BYTES], 99).is_ok());
    }
}
