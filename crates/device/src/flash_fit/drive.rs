//! A drive by its fitted parameters.

use crate::fit::quoted;
use crate::profile::{self, Profile, ProfileError};
use std::fmt::Write as _;

/// The profile that has all other figures of a fitted drive, and the defaults.
pub(super) const ORIGINAL: &str = "samsung-970-pro";
/// Parameters that are fitted.
pub const COUNT: usize = 9;
pub(super) const READ_COMMAND: usize = 0;
pub(super) const READ: usize = 1;
pub(super) const READ_LATENCY: usize = 2;
pub(super) const WRITE_COMMAND: usize = 3;
pub(super) const WRITE_LATENCY: usize = 4;
pub(super) const PROGRAM: usize = 5;
pub(super) const CHANNEL: usize = 6;
pub(super) const HOST: usize = 7;
pub(super) const DIES: usize = 8;

/// A parameter: its key in a profile, and where it is searched for.
pub struct Key {
    pub name: &'static str,
    pub unit: &'static str,
    /// That of [`ORIGINAL`].
    pub default: f64,
    pub min: f64,
    pub max: f64,
}

/// In the order of [`FlashDrive::values`].
pub const KEYS: [Key; COUNT] = [
    key("read_command_us", "µs", 1.9, 0.05, 1e3),
    key("read_us", "µs", 30.6, 1.0, 1e4),
    key("read_latency_us", "µs", 21.5, 0.1, 1e5),
    key("write_command_us", "µs", 1.9, 0.05, 1e3),
    key("write_latency_us", "µs", 4.0, 0.1, 1e5),
    key("program_us", "µs", 185.0, 5.0, 1e5),
    key("channel_mb_s", "MB/s", 800.0, 5.0, 2e4),
    key("host_mb_s", "MB/s", 3360.0, 5.0, 5e4),
    key("dies", "", 16.0, 1.0, 256.0),
];

const fn key(name: &'static str, unit: &'static str, default: f64, min: f64, max: f64) -> Key {
    Key { name, unit, default, min, max }
}

/// Channels of the dies, or one for each die if there are fewer.
const CHANNELS: u32 = 8;
pub(super) const PAGE_KIB: u32 = 32;
/// Size above which a mapping unit is a page, so that a profile can have all units.
const SMALL_UNITS_SECTORS_MAX: u64 = 1 << 33;
/// Size of a simulated cell's drive: larger than the cell's writes, so that nothing is collected.
const MODEL_SECTORS: u64 = 8 << 20;
/// Of that drive: the smaller its blocks, the faster it is built. Without collection they do nothing.
const MODEL_BLOCK_PAGES: u64 = 32;
/// The most that a profile can have.
const QUEUE_DEPTH: u64 = 256;
const SUSPENDS: u32 = 100;
const SUSPEND_US: &str = "20.0";

/// Behaviour of a read whose die is busy with writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    Waits,
    /// The read goes before writes that have not begun (`reads_first`).
    GoesFirst,
    /// As above, and it suspends a program that has begun (`program_suspends`).
    Suspends,
}

impl Beside {
    /// As a word in tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Beside::Waits => "waits",
            Beside::GoesFirst => "goes first",
            Beside::Suspends => "suspends programs",
        }
    }
}

/// A drive as it is fitted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlashDrive {
    /// In the order of [`KEYS`], within their ranges.
    pub values: [f64; COUNT],
    pub beside: Beside,
}

impl Default for FlashDrive {
    fn default() -> FlashDrive {
        FlashDrive { values: std::array::from_fn(|n| KEYS[n].default), beside: Beside::Waits }
    }
}

impl FlashDrive {
    /// Channels, and dies on each: the nearest even spread over them.
    fn channels(&self) -> (u32, u32) {
        let dies = self.values[DIES].round() as u32;
        let channels = dies.clamp(1, CHANNELS);
        (channels, ((f64::from(dies) / f64::from(channels)).round() as u32).max(1))
    }

    /// The value that a profile has.
    pub fn value(&self, n: usize) -> f64 {
        match n {
            DIES => {
                let (channels, dies) = self.channels();
                f64::from(channels * dies)
            }
            CHANNEL | HOST => self.values[n].round(),
            _ => (self.values[n] * 1e3).round() / 1e3,
        }
    }

    /// The drive for a simulated cell.
    ///
    /// # Errors
    /// Values out of a profile's range.
    pub fn model(&self) -> Result<Profile, ProfileError> {
        Profile::parse(
            &self.toml("model", "", MODEL_SECTORS, Some(MODEL_BLOCK_PAGES), &|_| String::new()),
        )
    }

    /// The text of a profile: that of [`ORIGINAL`] with this drive's figures and `block_pages`, and
    /// `said`'s remark beside each figure.
    pub(super) fn toml(
        &self,
        name: &str,
        summary: &str,
        capacity_sectors: u64,
        block_pages: Option<u64>,
        said: &dyn Fn(&str) -> String,
    ) -> String {
        let mut text = format!("name = {}\nsummary = {}\n\n[ssd]\n", quoted(name), quoted(summary));
        let original = profile::text(ORIGINAL).unwrap_or_default().lines();
        let figures =
            original.skip_while(|&l| l != "[ssd]").skip(1).take_while(|l| !l.starts_with('['));
        for (key, rest) in figures.filter_map(|line| line.split_once(" = ")) {
            let unchanged = rest.split(" #").next().unwrap_or_default().to_owned();
            let own = match (key, block_pages) {
                ("block_pages", Some(pages)) => Some(pages.to_string()),
                _ => self.figure(key, capacity_sectors),
            };
            let value = own.unwrap_or(unchanged);
            let _ = writeln!(text, "{key} = {value} # {}", said(key));
        }
        let (first, suspends) = match self.beside {
            Beside::Waits => return text,
            Beside::GoesFirst => ("1.0", 0),
            Beside::Suspends => ("1.0", SUSPENDS),
        };
        let said = said("reads_first");
        let _ = writeln!(
            text,
            "reads_first = {first} # {said}\nprogram_suspends = {suspends} # {said}"
        );
        if suspends > 0 {
            let _ = writeln!(text, "program_suspend_us = {SUSPEND_US} # not told: assumed");
        }
        text
    }

    /// The drive's value for a key of its profile; `None`: that of the original profile.
    fn figure(&self, key: &str, capacity_sectors: u64) -> Option<String> {
        let (channels, dies) = self.channels();
        let whole = match key {
            "capacity_sectors" => capacity_sectors,
            "channels" => channels.into(),
            "dies_per_channel" => dies.into(),
            "queue_depth" => QUEUE_DEPTH,
            "mapping_kib" if capacity_sectors > SMALL_UNITS_SECTORS_MAX => PAGE_KIB.into(),
            _ => {
                let n = KEYS.iter().position(|k| k.name == key)?;
                let decimals = if KEYS[n].unit == "µs" { 3 } else { 0 };
                return Some(format!("{:.decimals$}", self.value(n)));
            }
        };
        Some(whole.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dies_spread_over_channels() {
        let dies = |dies: f64| {
            let mut drive = FlashDrive::default();
            drive.values[DIES] = dies;
            (drive.channels(), drive.value(DIES))
        };
        assert_eq!(dies(1.0), ((1, 1), 1.0));
        assert_eq!(dies(5.4), ((5, 1), 5.0));
        assert_eq!(dies(16.3), ((8, 2), 16.0));
        assert_eq!(dies(256.0), ((8, 32), 256.0));
    }
}
