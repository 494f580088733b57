//! The flash model that fits a measured drive (docs/calibrate.md, section "Flash").
//!
//! 1. The drive is measured under a matrix of loads ([`matrix`]): a closed loop of reads and writes
//!    of one size, and beside it a quiet reader of 4 KiB, one at a time.
//! 2. Half of the cells, every other one of the matrix ([`Cell::is_fitted`]), is fitted: the
//!    parameters of [`KEYS`] whose model has, in these cells, the smallest squared logarithm of the
//!    ratios of IOPS and of the reader's mean latency.
//! 3. The cells do not determine a parameter whose standard error, while all others are free, is
//!    above [`TOLD_ERROR_MAX`]. It gets its default back, and the others are fitted again. A
//!    parameter that moves by more then is not determined either. If the default makes the fit
//!    clearly worse, the fitted value stays, and is marked as rough.
//! 4. The other half shows the model's error ([`judge`]).
//!
//! Absent: the measurement of real drives, and threads. The caller runs the models ([`simulate`]),
//! several at once or not.

mod drive;
mod load;
mod matrix;
mod search;

use drive::ORIGINAL;
pub use drive::{Beside, COUNT, FlashDrive, KEYS, Key};
pub use load::{CellLoad, Observed, simulate};
pub use matrix::{Cell, matrix};
pub use search::{Fit, Judgement, Measured, TOLD_ERROR_MAX, Told, TooFew, fit, judge};

// A fit as the text of a profile.

impl Fit {
    /// Writes the profile of a drive of `capacity_sectors` sectors, each figure with its origin.
    /// `source` describes the measurement in a phrase; `lines` are comments on top.
    pub fn profile_toml(
        &self,
        name: &str,
        source: &str,
        lines: &[String],
        capacity_sectors: u64,
    ) -> String {
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
        let head: String = lines.iter().map(|line| format!("# {}\n", plain(line))).collect();
        let summary = format!("A flash drive fitted to {}", plain(source));
        let text = self.drive.toml(name, &summary, capacity_sectors, None, &|key| self.said(key));
        format!("# Fitted to {}.\n{head}\n{text}", plain(source))
    }

    /// Origin of a key's figure.
    fn said(&self, key: &str) -> String {
        match key {
            "capacity_sectors" => return "the size of what was measured".into(),
            "queue_depth" => return "not told: the most that a profile can have".into(),
            "reads_first" => return "fitted: the best of three rules".into(),
            "page_kib" => return "not told: program_us is for a page of this size".into(),
            "spare" | "filled" | "erase_us" => {
                return "not told: what was collected meanwhile is in program_us".into();
            }
            _ => {}
        }
        let key = if key == "dies_per_channel" { "dies" } else { key };
        let Some(n) = KEYS.iter().position(|k| k.name == key) else {
            return format!("not told by the matrix: that of {ORIGINAL}");
        };
        let said = match self.told[n] {
            Told::Fitted(error) => format!("fitted, standard error {:.1} %", 100.0 * error),
            Told::Roughly => "fitted, and only roughly told by the matrix".into(),
            Told::Not => format!("not told by the matrix: the default, {}", KEYS[n].default),
        };
        if key == "dies" { format!("dies: {said}") } else { said }
    }
}

#[cfg(test)]
mod toml_tests {
    use super::drive::{Beside, COUNT, FlashDrive};
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_profile_says_of_each_figure_whether_it_was_told() {
        let mut told = [Told::Fitted(0.03); COUNT];
        for (n, key) in KEYS.iter().enumerate() {
            match key.name {
                "channel_mb_s" => told[n] = Told::Not,
                "program_us" => told[n] = Told::Roughly,
                _ => {}
            }
        }
        let drive = FlashDrive { beside: Beside::Suspends, ..FlashDrive::default() };
        let fit = Fit { drive, told, beside_told: true };
        let lines = ["half of\nit".to_owned()];
        for sectors in [1 << 17, 1 << 31] {
            let text = fit.profile_toml("mine", "the file \"a\n.img\"", &lines, sectors);
            let profile = Profile::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!((profile.name(), profile.capacity_sectors()), ("mine", sectors));
            for line in [
                "read_us = 30.600 # fitted, standard error 3.0 %",
                "program_us = 185.000 # fitted, and only roughly",
                "channel_mb_s = 800 # not told by the matrix: the default, 800",
                "dies_per_channel = 2 # dies: fitted, standard error 3.0 %",
                "program_suspends = 100 # fitted: the best of three rules",
                "# half ofit",
            ] {
                assert!(text.contains(line), "{line}\n{text}");
            }
            let figures = text.lines().skip_while(|&l| l != "[ssd]").skip(1);
            assert!(figures.clone().count() > 20, "{text}");
            assert!(figures.clone().all(|l| l.contains(" # ")), "a figure without source: {text}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_original() {
        let text = crate::profile::text(ORIGINAL).unwrap();
        for key in KEYS.iter().filter(|k| k.name != "dies") {
            let line = text.lines().find(|l| l.starts_with(&format!("{} = ", key.name))).unwrap();
            let value = line.split(' ').nth(2).unwrap().parse();
            assert_eq!(value, Ok(key.default), "{line}");
        }
        assert!(text.contains("channels = 8 ") && text.contains("dies_per_channel = 2 "));
    }
}
