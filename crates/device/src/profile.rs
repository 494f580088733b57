//! Device profiles: TOML files in `profiles/`, embedded in the program, each
//! figure with its source beside it; and the spelling
//! `name:key=value,key=value` for what experiments vary.

mod check;
mod schema;
mod vary;

use crate::DeviceModel;
use crate::cloud::Cloud;
use crate::disk::Disk;
use crate::linear::Linear;
use crate::published::{Begin, Mix, Published};
use crate::raid0::Raid0;
use crate::slowed::{SLOW_MAX, Slowed};
use crate::ssd::{FlashTimes, Ssd, SsdSpec};
use schema::{File, MixFile, Raid0File, StateFile};
use seekway_policy::units::SECTOR_BYTES;
use std::num::NonZeroU32;
use thiserror::Error;

const EMBEDDED: &[(&str, &str)] = &[
    ("linear-15k4", include_str!("../profiles/linear-15k4.toml")),
    ("linear-7200", include_str!("../profiles/linear-7200.toml")),
    ("cheetah-15k4", include_str!("../profiles/cheetah-15k4.toml")),
    ("cheetah-15k5", include_str!("../profiles/cheetah-15k5.toml")),
    ("cheetah-9lp", include_str!("../profiles/cheetah-9lp.toml")),
    ("atlas-10k", include_str!("../profiles/atlas-10k.toml")),
    ("seagate-1tb-7200", include_str!("../profiles/seagate-1tb-7200.toml")),
    ("intel-320", include_str!("../profiles/intel-320.toml")),
    ("intel-x25m-g2", include_str!("../profiles/intel-x25m-g2.toml")),
    ("samsung-970-pro", include_str!("../profiles/samsung-970-pro.toml")),
    ("samsung-970-pro-gc", include_str!("../profiles/samsung-970-pro-gc.toml")),
    ("samsung-970-pro-512gb", include_str!("../profiles/samsung-970-pro-512gb.toml")),
    ("samsung-860-250gb", include_str!("../profiles/samsung-860-250gb.toml")),
    ("intel-dc-p3700", include_str!("../profiles/intel-dc-p3700.toml")),
    ("intel-dc-p3600", include_str!("../profiles/intel-dc-p3600.toml")),
    ("aws-i3-nvme", include_str!("../profiles/aws-i3-nvme.toml")),
    ("cloud-flash", include_str!("../profiles/cloud-flash.toml")),
    ("raid0-8x-x25m-g2", include_str!("../profiles/raid0-8x-x25m-g2.toml")),
    ("aws-gp3", include_str!("../profiles/aws-gp3.toml")),
    ("aws-gp2-100gib", include_str!("../profiles/aws-gp2-100gib.toml")),
    ("azure-p10", include_str!("../profiles/azure-p10.toml")),
];

/// Longest profile text that is parsed.
pub const PROFILE_BYTES_MAX: usize = 1 << 20;

/// What is wrong with a profile or with how it was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProfileError {
    /// No embedded profile has this name.
    #[error("no device profile is called `{name}`; known are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        known: String,
    },
    /// Not TOML, or a key that is missing, unknown or of another type; the
    /// message names line and key.
    #[error("device profile does not parse: {0}")]
    Toml(String),
    /// A figure out of its range.
    #[error("device profile: {key}: expected {expected}, found {found}")]
    Value {
        /// Path of the key, as in `disk.layout.zone[3].sectors_per_track`.
        key: String,
        /// What is allowed there.
        expected: String,
        found: String,
    },
    /// An override that does not fit.
    #[error("device profile `{profile}`: {key}={value}: expected {expected}")]
    Override {
        profile: String,
        /// The key before the `=`.
        key: String,
        value: String,
        expected: String,
    },
}

/// A validated profile, of which devices can be built. Building never fails.
#[derive(Clone)]
pub struct Profile {
    file: File,
}

/// Names of the embedded profiles, in the order of the help text.
pub fn names() -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().map(|&(name, _)| name)
}

/// The TOML text of the embedded profile `name`, with the sources of its figures.
///
/// # Errors
/// [`ProfileError::Unknown`].
pub fn text(name: &str) -> Result<&'static str, ProfileError> {
    let embedded = EMBEDDED.iter().find(|&&(n, _)| n == name);
    embedded.map(|&(_, text)| text).ok_or_else(|| ProfileError::Unknown {
        name: name.to_owned(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// Loads a profile: TOML text when `what` holds a line break, else the name of
/// an embedded one with optional overrides, as in
/// `seagate-1tb-7200:read_ahead_idle=false,queue_depth=8`.
///
/// Keys for drives: `segments`, `segment_sectors`, `replacement` (fifo, lru),
/// `on_hit` (consume, extend, keep), `read_ahead`, `read_ahead_min`,
/// `read_ahead_max`, `resume_below`, `read_ahead_idle`, `cut_short`,
/// `read_hits_on_writes`, `write_cache`, `write_segments`, `queue_depth`,
/// `queue_order` (fcfs, sptf). For linear devices: `segments`,
/// `segment_sectors`, `prefetch_sectors`, `replacement`, `on_hit`, `base_ms`,
/// `stroke_ms`, `hit_ms`, `queue_depth`. For solid-state drives: `channels`,
/// `dies_per_channel`, `spare`, `filled` (share of the drive that holds data
/// when it is built), `state` (in-order; gc: full, and garbage is being
/// collected), `read_us`, `program_us`, `erase_us`, `host_mb_s`,
/// `read_latency_us`, `write_latency_us`, `write_buffer_kib`,
/// `capacity_sectors`, `queue_depth`, `separate_paths`, `program_spread_us`,
/// `seed`, `overlap`, `planes`, `write_place` (idlest, home), `reads_first`,
/// `program_suspends`, `program_suspend_us`, `program_resume_us`,
/// `program_keep_us`, `erase_suspends`, `erase_suspend_us`, `erase_resume_us`,
/// `erase_keep_us`, `resume_min_us`. For arrays: `members`, `chunk_kib`,
/// `queue_depth`, and what their members take. For cloud volumes: `iops`,
/// `burst_iops`, `io_credit`, `mib_s`, `burst_mib_s`, `credit_mib`, `unit_kib`,
/// `read_latency_us`, `write_latency_us`, `spread_us`, `seed`,
/// `capacity_sectors`, `queue_depth`. A derived profile takes what the one that
/// it is derived from takes. `slow=8` makes any device eight times slower.
///
/// # Errors
/// Says which key, what was expected there and what was found.
pub fn load(what: &str) -> Result<Profile, ProfileError> {
    if what.contains('\n') {
        return Profile::parse(what);
    }
    let (name, overrides) = what.split_once(':').unwrap_or((what, ""));
    let Some(&(_, text)) = EMBEDDED.iter().find(|&&(n, _)| n == name) else {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(ProfileError::Unknown { name: name.to_owned(), known });
    };
    Profile::parse_with(text, overrides)
}

/// The path and the overrides of what names a file rather than an embedded
/// profile: `FILE.toml`, `FILE.toml:key=value,…`, or a path with a `/` in it,
/// which is all path unless it ends in `.toml`.
pub fn path_of(what: &str) -> Option<(&str, &str)> {
    const END: &str = ".toml";
    if let Some(at) = what.find(&format!("{END}:")) {
        let (path, rest) = what.split_at(at + END.len());
        return Some((path, &rest[1..]));
    }
    (what.ends_with(END) || what.contains('/')).then_some((what, ""))
}

impl Profile {
    /// Parses TOML text and sets overrides (see [`load`]).
    ///
    /// # Errors
    /// As [`load`].
    pub fn parse_with(text: &str, overrides: &str) -> Result<Profile, ProfileError> {
        let mut profile = Profile::parse(text)?;
        for part in overrides.split(',').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            profile.vary(key.trim(), value.trim())?;
        }
        // Once all are in: `segment_sectors=64,read_ahead_max=64` may come in any order.
        profile.check()?;
        Ok(profile)
    }

    /// Parses and checks TOML text.
    ///
    /// # Errors
    /// As [`load`].
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        if text.len() > PROFILE_BYTES_MAX {
            let expected = format!("at most {PROFILE_BYTES_MAX} bytes");
            let found = format!("{} bytes", text.len());
            return Err(ProfileError::Value { key: "the file".into(), expected, found });
        }
        let file: File = toml::from_str(text).map_err(|e| ProfileError::Toml(e.to_string()))?;
        let profile = Profile { file: derive(file)? };
        profile.check()?;
        Ok(profile)
    }

    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// What it describes, in a sentence.
    pub fn summary(&self) -> &str {
        &self.file.summary
    }

    /// Does it describe a drive by a straight line, as papers do? Such a model says nothing of
    /// caches, and has its drive's own profile beside it.
    pub fn is_linear(&self) -> bool {
        self.file.linear.is_some()
    }

    /// Size of the device in sectors.
    pub fn capacity_sectors(&self) -> u64 {
        let file = &self.file;
        if let Some(linear) = &file.linear {
            linear.capacity_sectors
        } else if let Some(disk) = &file.disk {
            disk.capacity_sectors
        } else if let Some(ssd) = &file.ssd {
            ssd.capacity_sectors
        } else if let Some(cloud) = &file.cloud {
            cloud.capacity_sectors
        } else {
            // Only an array has to be asked: its members and chunks decide.
            self.device().map_or(0, |device| device.profile().capacity.get())
        }
    }

    /// A new device at rest at time 0.
    pub fn build(&self) -> Box<dyn DeviceModel> {
        match self.device() {
            Ok(device) => device,
            // Every way to a `Profile` goes through `check`, which builds the same.
            Err(error) => unreachable!("a checked profile does not build: {error}"),
        }
    }

    /// A new device for a test of [`crate::published`].
    pub fn build_for(&self, begin: Begin) -> Box<dyn DeviceModel> {
        let mut profile = self.clone();
        if let (Begin::InOrder, Some(ssd)) = (begin, &mut profile.file.ssd) {
            ssd.state = StateFile::InOrder;
        }
        profile.build()
    }

    /// The drive itself, for tests and tools that look inside; `None` for a linear device.
    pub fn build_disk(&self) -> Option<Disk> {
        let file = self.file.disk.as_ref()?;
        check::disk(file).ok().map(Disk::new)
    }

    /// The solid-state drive itself, for tests; `None` for another device.
    #[cfg(test)]
    pub(crate) fn build_ssd(&self) -> Option<Ssd> {
        check::ssd(self.file.ssd.as_ref()?).ok().map(Ssd::new)
    }

    /// What was published of a solid-state drive or an array of them; `None`
    /// where the profile states nothing, or is of another device.
    pub fn published(&self) -> Option<Published> {
        let p = match &self.file {
            File { slow: 1, ssd: Some(ssd), .. } => ssd.published.as_ref()?,
            File { slow: 1, raid0: Some(raid0), .. } => raid0.published.as_ref()?,
            _ => return None,
        };
        let span = p.span_gib * (f64::from(1 << 30) / SECTOR_BYTES as f64);
        Some(Published {
            sequential_read_mb_s: p.sequential_read_mb_s,
            sequential_write_mb_s: p.sequential_write_mb_s,
            random_read_iops: p.random_read_iops,
            random_write_iops: p.random_write_iops,
            random_read_qd1_iops: p.random_read_qd1_iops,
            random_write_qd1_iops: p.random_write_qd1_iops,
            random_queue_depth: p.random_queue_depth,
            span_sectors: (span as u64).min(self.capacity_sectors()),
            host_ns: (p.host_us * 1e3).round() as u64,
            mixes: p.mix.iter().map(mix).collect(),
        })
    }

    fn device(&self) -> Result<Box<dyn DeviceModel>, ProfileError> {
        let device = self.at_full_speed()?;
        match NonZeroU32::new(self.file.slow).filter(|slow| slow.get() <= SLOW_MAX) {
            Some(NonZeroU32::MIN) => Ok(device),
            Some(slow) => Ok(Box::new(Slowed::new(device, slow))),
            None => Err(ProfileError::Value {
                key: "slow".into(),
                expected: format!("1 to {SLOW_MAX}"),
                found: self.file.slow.to_string(),
            }),
        }
    }

    fn at_full_speed(&self) -> Result<Box<dyn DeviceModel>, ProfileError> {
        one_kind(&self.file)?;
        match &self.file {
            File { linear: Some(linear), .. } => Ok(Box::new(Linear::new(check::linear(linear)?))),
            File { disk: Some(disk), .. } => Ok(Box::new(Disk::new(check::disk(disk)?))),
            File { ssd: Some(ssd), .. } => Ok(Box::new(Ssd::new(check::ssd(ssd)?))),
            File { raid0: Some(raid0), .. } => array(raid0),
            File { cloud: Some(cloud), .. } => Ok(Box::new(Cloud::new(check::cloud(cloud)?))),
            _ => unreachable!("a derived profile was replaced by what it is derived from"),
        }
    }

    fn check(&self) -> Result<(), ProfileError> {
        self.device().map(drop)
    }
}

fn mix(m: &MixFile) -> Mix {
    Mix {
        depth: m.depth.unwrap_or(0),
        reads: m.reads.unwrap_or(0.0),
        reads_per_s: m.reads_per_s,
        writes_per_s: m.writes_per_s,
        read_bytes: m.read_kib * 1024.0,
        write_bytes: m.write_kib * 1024.0,
        sequential_writes: m.sequential_writes,
        iops: m.iops,
        read_mean_us: m.read_mean_us,
        read_p50_us: m.read_p50_us,
        read_p95_us: m.read_p95_us,
        read_p99_us: m.read_p99_us,
    }
}

/// A file describes one kind of device.
fn one_kind(file: &File) -> Result<(), ProfileError> {
    let File { linear, disk, ssd, raid0, cloud, derived, .. } = file;
    let kinds = [
        linear.is_some(),
        disk.is_some(),
        ssd.is_some(),
        raid0.is_some(),
        cloud.is_some(),
        derived.is_some(),
    ];
    match kinds.iter().filter(|&&is| is).count() {
        1 => Ok(()),
        found => Err(ProfileError::Value {
            key: "the file".into(),
            expected: "exactly one of [linear], [disk], [ssd], [raid0], [cloud] and [derived]"
                .into(),
            found: if found == 0 { "none".into() } else { format!("{found} of them") },
        }),
    }
}

/// Replaces a derived profile by what it is derived from, under its own name. The
/// original's published figures make way for its own, if it has any.
fn derive(file: File) -> Result<File, ProfileError> {
    one_kind(&file)?;
    let Some(derived) = &file.derived else { return Ok(file) };
    if derived.from.contains('\n') {
        return Err(ProfileError::Value {
            key: "derived.from".into(),
            expected: "the name of an embedded profile, with changes".into(),
            found: "a text".into(),
        });
    }
    let mut original = load(&derived.from)?.file;
    match &mut original {
        File { ssd: Some(ssd), .. } => ssd.published.clone_from(&derived.published),
        File { raid0: Some(raid0), .. } => raid0.published.clone_from(&derived.published),
        _ if derived.published.is_some() => {
            return Err(ProfileError::Value {
                key: "derived.published".into(),
                expected: "derived.from to be a solid-state drive or an array".into(),
                found: derived.from.clone(),
            });
        }
        _ => {}
    }
    let slow = original.slow.saturating_mul(file.slow);
    Ok(File { name: file.name, summary: file.summary, slow, ..original })
}

/// The array of `file`.
fn array(file: &Raid0File) -> Result<Box<dyn DeviceModel>, ProfileError> {
    let spec = check::raid0(file)?;
    let member = load(&file.member)?;
    let Some(ssd) = member.file.ssd.as_ref().filter(|_| member.file.slow == 1) else {
        return Err(ProfileError::Value {
            key: "raid0.member".into(),
            expected: "a solid-state drive's profile, without `slow`: that is the array's".into(),
            found: file.member.clone(),
        });
    };
    let member = check::ssd(ssd)?;
    // Each member's programs vary in their own way.
    let seeded = |number| FlashTimes {
        seed: member.flash.seed.wrapping_add(u64::from(number)),
        ..member.flash
    };
    let members = (0..spec.members)
        .map(|number| Ssd::new(SsdSpec { flash: seeded(number), ..member }))
        .collect();
    Ok(Box::new(Raid0::new(spec, members)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL_320: &str = include_str!("../profiles/intel-320.toml");

    fn error(what: &str) -> String {
        load(what).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn every_embedded_profile_loads_under_its_name() {
        for name in names() {
            let p = load(name).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(p.name(), name);
            assert!(!p.summary().is_empty());
            assert_eq!(p.build().profile().capacity.get(), p.capacity_sectors());
        }
    }

    #[test]
    fn overrides_reach_the_device() {
        assert_eq!(load("linear-15k4:queue_depth=7").unwrap().build().queue_depth(), 7);
        assert_eq!(
            load("cheetah-15k5:queue_depth=9,queue_order=sptf").unwrap().build().queue_depth(),
            9
        );
        assert_eq!(
            load("intel-320:queue_depth=8,write_buffer_kib=64").unwrap().build().queue_depth(),
            8
        );
        // What is not the array's goes to its members: half the drives, a third of the size.
        let array = "raid0-8x-x25m-g2:members=4,capacity_sectors=78147216,chunk_kib=128";
        assert_eq!(load(array).unwrap().capacity_sectors(), 4 * (78_147_216 / 256 * 256));
        assert_eq!(load("aws-gp3:queue_depth=5,seed=3").unwrap().build().queue_depth(), 5);
        assert_eq!(load("cloud-flash:queue_depth=6").unwrap().build().queue_depth(), 6);
        assert!(load("seagate-1tb-7200:read_ahead_max=1,read_ahead_min=0,resume_below=0,segment_sectors=64").is_ok());
    }

    #[test]
    fn a_derived_profile_is_its_original_with_changes() {
        let derived = load("cloud-flash").unwrap();
        let original = load("samsung-970-pro:host_mb_s=924,read_latency_us=58").unwrap();
        assert_eq!(derived.capacity_sectors(), original.capacity_sectors());
        assert_eq!(derived.build_ssd().unwrap().spec(), original.build_ssd().unwrap().spec());
        // The maker's figures are the original's.
        assert!(derived.published().is_none() && original.published().is_some());
    }

    #[test]
    fn keys_with_their_defaults_are_no_keys() {
        for name in ["intel-320", "samsung-970-pro-gc"] {
            let spelt = load(&format!(
                "{name}:separate_paths=false,program_spread_us=0,seed=0,overlap=true,\
                 planes=1,write_place=idlest,reads_first=0,program_suspends=0,program_suspend_us=0,\
                 program_resume_us=0,program_keep_us=0,erase_suspends=0,erase_suspend_us=0,\
                 erase_resume_us=0,erase_keep_us=0,resume_min_us=0"
            ));
            let plain = load(name).unwrap().build_ssd().unwrap().spec();
            assert_eq!(spelt.unwrap().build_ssd().unwrap().spec(), plain);
        }
    }

    #[test]
    fn files_are_told_from_names() {
        for (what, expected) in [
            ("linear-15k4:queue_depth=2", None),
            ("a.toml", Some(("a.toml", ""))),
            ("/x/a.toml:segments=0,queue_depth=2", Some(("/x/a.toml", "segments=0,queue_depth=2"))),
            ("./disk", Some(("./disk", ""))),
        ] {
            assert_eq!(path_of(what), expected);
        }
        let text = include_str!("../profiles/linear-15k4.toml");
        assert_eq!(Profile::parse_with(text, "queue_depth=7").unwrap().build().queue_depth(), 7);
        assert!(Profile::parse_with(text, "queue_depth=0").is_err());
    }

    #[test]
    fn errors_say_what_and_where() {
        assert!(error("cheetah").contains("known are: linear-15k4"));
        assert!(error("cheetah-15k5:replacement=random").contains("expected fifo or lru"));
        assert!(error("cheetah-15k5:colour=red").contains("expected one of"));
        assert!(
            error("cheetah-15k5:queue_depth=0")
                .contains("disk.queue_depth: expected 1 to 256, found 0")
        );
        assert!(error("linear-15k4:read_ahead_idle=true").contains("read_ahead_idle"));
        assert!(error("a = 1\n").contains("line 1"));
        assert!(error("name = 'x'\nsummary = 'y'\n").contains("exactly one of"));
        assert!(error("intel-320:filled=2").contains("ssd.filled: expected 0 to 1, found 2"));
        assert!(error("intel-320:write_buffer_kib=4").contains("expected 8 to"));
        assert!(error("intel-320:channels=0").contains("ssd.channels"));
        assert!(error("intel-320:capacity_sectors=99999999999").contains("physical units"));
        assert!(error("raid0-8x-x25m-g2:colour=red").contains("or of its members one of"));
        assert!(error("raid0-8x-x25m-g2:read_us=-1").contains("ssd.read_us"));
        let text = include_str!("../profiles/raid0-8x-x25m-g2.toml");
        let nested = text.replacen("intel-x25m-g2:", "raid0-8x-x25m-g2:", 1);
        assert!(error(&nested).contains("a solid-state drive's profile"), "{}", error(&nested));
        assert!(
            error("intel-320:state=gc,filled=0.2").contains("expected 0.5 to 1 with ssd.state")
        );
        let mix =
            |keys: &str| error(&format!("{text}\n[[ssd.published.mix]]\n{keys}", text = INTEL_320));
        for (keys, said) in [
            ("iops = 1000.0", "ssd.published.mix[0]: expected depth, or reads_per_s above 0"),
            ("depth = 8\niops = 9.0", "mix[0].reads: expected 0 to 1 with depth, found none"),
            ("depth = 8\nreads = 2.0\niops = 9.0", "mix[0].reads: expected 0 to 1, found 2"),
            ("depth = 8\nreads = 0.5", "expected one of iops, read_mean_us"),
            ("reads_per_s = 5.0\niops = 9.0", "mix[0].iops: expected with depth"),
            (
                "reads_per_s = 5.0\nreads = 0.5\nread_p99_us = 9.0",
                "mix[0].reads: expected with depth",
            ),
            ("depth = 999\nreads = 0.5\niops = 9.0", "mix[0].depth: expected 1 to 256, found 999"),
            (
                "reads_per_s = 5.0\nread_kib = 0.1\nread_p99_us = 9.0",
                "mix[0].read_kib: expected 0.5",
            ),
            ("reads_per_s = 5.0\nread_p98_us = 9.0", "unknown field `read_p98_us`"),
        ] {
            assert!(mix(keys).contains(said), "{keys}: {}", mix(keys));
        }
        assert_eq!(mix("reads_per_s = 5.0\nread_p99_us = 9.0"), "");
        let derived = "name = 'x'\nsummary = 'y'\n[derived]\nfrom = 'linear-15k4'\n\
                       [derived.published]\nrandom_queue_depth = 1\nspan_gib = 1.0\nhost_us = 0.0\n";
        assert!(error(derived).contains("derived.published: expected derived.from to be a solid"));
        assert!(error("intel-320:seed=3").contains("expected 0, or ssd.program_spread_us above 0"));
        assert!(
            error("intel-320:program_spread_us=1501")
                .contains("ssd.program_spread_us: expected 0 to 1500, found 1501")
        );
        assert!(error("intel-320:planes=17").contains("ssd.planes: expected 1 to 16, found 17"));
        let text = include_str!("../profiles/intel-320.toml");
        let long = text.replacen("block_pages = 256", "planes = 2\nblock_pages = 9000", 1);
        assert!(error(&long).contains("ssd.block_pages: expected 1 to 8192"), "{}", error(&long));
        assert!(error("intel-320:program_suspends=1").contains(
            "ssd.reads_first: expected above 0 with ssd.program_suspends or ssd.erase_suspends \
                 above 0, found 0"
        ));
        assert!(
            error("intel-320:erase_suspends=1001,reads_first=1")
                .contains("ssd.erase_suspends: expected 0 to 1000, found 1001")
        );
        assert!(
            error("intel-320:program_keep_us=5").contains(
                "ssd.program_keep_us: expected 0, or ssd.program_suspends above 0, found 5"
            )
        );
        assert!(
            error("intel-320:reads_first=1,erase_suspends=1,resume_min_us=5")
                .contains("ssd.resume_min_us: expected 0, or ssd.program_suspends or")
        );
        assert!(error("intel-320:reads_first=1.1").contains("ssd.reads_first: expected 0 to 1"));
        assert!(error("intel-320:write_place=here").contains("expected idlest or home"));
        assert!(error("intel-320:state=old").contains("expected in-order or gc"));
        assert!(error("aws-gp3:iops=0").contains("cloud.iops: expected 1 to"));
        assert!(error("aws-gp3:burst_iops=2000").contains("cloud.burst_iops: expected 3000 to"));
        assert!(
            error("aws-gp3:burst_iops=9000")
                .contains("expected with cloud.io_credit above cloud.iops")
        );
        assert!(error("azure-p10:credit_mib=0").contains("cloud.burst_mib_s: expected with"));
        assert!(error("azure-p10:rpm=1").contains("expected one of iops"));
        assert!(error("cloud-flash:read_latency_us=x").contains("a time in µs"));
        assert!(error("cloud-flash:slow=0").contains("slow: expected 1 to 1024, found 0"));
        assert!(error("aws-gp3:slow=x").contains("a whole number"));
        let derived = "name = 'x'\nsummary = 'y'\n[derived]\nfrom = 'nothing'\n";
        assert!(error(derived).contains("no device profile is called `nothing`"));
        let text = include_str!("../profiles/intel-320.toml");
        let odd = text.replacen("mapping_kib = 8", "mapping_kib = 3", 1);
        assert!(error(&odd).contains("ssd.mapping_kib: expected a divisor"), "{}", error(&odd));
        let text = include_str!("../profiles/cheetah-15k4.toml");
        let broken = text.replacen("surfaces = ", "surfaces = 9", 1);
        assert!(
            error(&broken).contains("disk.layout.surfaces: expected 1 to 64"),
            "{}",
            error(&broken)
        );
    }
}
