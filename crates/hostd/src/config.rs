//! The daemon's configuration: settings from a file and from flags, in one spelling, checked before
//! anything is opened.
//!
//! A setting is a key and a text with the place where it was made, so that
//! every error names that place: `serve.toml:3: no policy 'wfq'; there are …`.
//! Settings are applied in order: flags come after the file and win; disks add.

mod disk;
mod file;
mod keys;
mod sockets;

pub(crate) use disk::text as limits_text;
pub use disk::{DiskConfig, GROUPS_MAX, GroupConfig, NAME_BYTES_MAX, OPTIONS, check_name};
pub use file::{FILE_BYTES_MAX, read};
pub use keys::{GROUPS as SETTINGS, Key, check_host_name};
pub use sockets::{CONTROL_NAME, SocketConfig, default_folder, state_folder};

use crate::images::fault::Fault;
use crate::reactor::{Poll, Submitter};
use seekway_core::params::{ParamError, parse_bytes, parse_lba};
use seekway_core::units::{Nanos, Sectors};
use seekway_stack::stack::limit::GroupName;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Most disks that one daemon serves.
pub const DISKS_MAX: usize = 1024;
/// Most commands at once that a device may be given.
pub const DEPTH_MAX: u32 = 4096;
/// Settings that say nothing without a cache.
const NEED_CACHE: [&str; 3] = ["prefetch", "cache_lock", "bandwidth"];
/// Longest time for which rings are polled before the reactor sleeps.
pub const POLL_MAX: Nanos = Nanos::from_secs(1);

/// Where a setting was made.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// In a file, on this line (from 1).
    Line(PathBuf, usize),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(file, line) => write!(f, "{}:{line}", file.display()),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A key with its value as text, and where it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The name of a [`Key`].
    pub key: &'static str,
    /// The value as text, not judged yet; relative paths of a file are resolved.
    pub text: String,
    pub origin: Origin,
}

/// The flag of a key: `--hard-limit` for `hard_limit`.
pub fn flag(key: &str) -> String {
    format!("--{}", key.replace(['_', '.'], "-"))
}

/// Settings of a file or of a command line, not yet checked.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Settings {
    /// In the order in which they apply.
    pub settings: Vec<Setting>,
    /// Disks with where they were named.
    pub disks: Vec<(DiskConfig, Origin)>,
    /// Groups of disks with where they were named.
    pub groups: Vec<(GroupConfig, Origin)>,
    /// Errors in text that could not be read at all.
    pub errors: Vec<ConfigError>,
}

impl Settings {
    /// A setting by its flag.
    pub fn flag(&mut self, key: &'static str, text: impl Into<String>) {
        let origin = Origin::Flag(flag(key));
        self.settings.push(Setting { key, text: text.into(), origin });
    }

    /// A disk by `--disk`.
    pub fn disk_flag(&mut self, text: &str) {
        let origin = Origin::Flag(format!("--disk {text}"));
        match DiskConfig::parse(text) {
            Ok(disk) => self.disks.push((disk, origin)),
            Err(message) => self.errors.push(ConfigError { origin, message }),
        }
    }

    /// A group by `--group`.
    pub fn group_flag(&mut self, text: &str) {
        let origin = Origin::Flag(format!("--group {text}"));
        match GroupConfig::parse(text) {
            Ok(group) => self.groups.push((group, origin)),
            Err(message) => {
                let name = text.split_once(':').map_or(text, |(name, _)| name).trim();
                let group = GroupName::new(name).map(GroupConfig::without_limits);
                self.groups.extend(group.ok().map(|group| (group, origin.clone())));
                self.errors.push(ConfigError { origin, message });
            }
        }
    }

    /// Add `later`, whose settings win.
    pub fn extend(&mut self, later: Settings) {
        self.settings.extend(later.settings);
        self.disks.extend(later.disks);
        self.groups.extend(later.groups);
        self.errors.extend(later.errors);
    }

    /// Judge everything.
    ///
    /// # Errors
    /// All that is wrong, in the order of files and lines.
    pub fn resolve(self) -> Result<Config, ConfigErrors> {
        let mut config = Config::default();
        let mut errors = self.errors;
        let of_cache = self.settings.iter().rfind(|s| NEED_CACHE.contains(&s.key));
        let cache_origin = of_cache.map(|s| (s.key, s.origin.clone()));
        let of_tls = self.settings.iter().rfind(|s| s.key.starts_with("tls."));
        let tls_origin = of_tls.map(|s| s.origin.clone());
        for Setting { key, text, origin } in self.settings {
            if let Err(message) = keys::find(key).and_then(|key| key.apply(&mut config, &text)) {
                let message = match origin {
                    Origin::Line(..) => format!("{key}: {message}"),
                    Origin::Flag(_) => message, // it is the key already
                };
                errors.push(ConfigError { origin, message });
            }
        }
        if self.disks.len() > DISKS_MAX {
            let message = format!("{} disks; at most {DISKS_MAX}", self.disks.len());
            errors.push(ConfigError { origin: self.disks[DISKS_MAX].1.clone(), message });
        }
        errors.extend(judge_groups(&self.groups));
        let mut disks: Vec<(DiskConfig, Origin)> = Vec::new();
        for (disk, origin) in self.disks {
            let judged = judge_disk(&disk, &disks).and(judge_member(&disk, &self.groups));
            let judged = judged.and(config.tls.judge_allow(&disk));
            if let Err(message) = judged {
                errors.push(ConfigError { origin: origin.clone(), message });
            }
            disks.push((disk, origin));
        }
        if let (Err(message), Some(origin)) = (config.tls.judge(), tls_origin) {
            errors.push(ConfigError { origin, message });
        }
        if let (CacheSize::Off, Some((key, origin))) = (config.cache_size(), cache_origin) {
            let why = if config.cache.is_some() { "it is off" } else { "emulate turns it off" };
            let message = format!(
                "{key} needs a cache, and {why}: give it a size, as in cache = \"2GiB\" or \
                 --cache auto"
            );
            errors.push(ConfigError { origin, message });
        }
        if !errors.is_empty() {
            errors.sort_by(|a, b| a.origin.cmp(&b.origin));
            return Err(ConfigErrors(errors));
        }
        config.disks = disks.into_iter().map(|(disk, _)| disk).collect();
        config.groups = self.groups.into_iter().map(|(group, _)| group).collect();
        Ok(config)
    }
}

fn judge_disk(disk: &DiskConfig, before: &[(DiskConfig, Origin)]) -> Result<(), String> {
    if let Some(fault) = &disk.fault {
        Fault::parse(fault).map_err(|e| format!("disk {}: fault: {e}", disk.name))?;
    }
    if let Some((_, first)) = before.iter().find(|(d, _)| d.name == disk.name) {
        return Err(format!("a disk '{}' is there already ({first}); names differ", disk.name));
    }
    Ok(())
}

fn judge_groups(groups: &[(GroupConfig, Origin)]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let mut seen: BTreeMap<&GroupName, &Origin> = BTreeMap::new();
    for (GroupConfig { name, .. }, origin) in groups {
        if let Some(first) = seen.get(name) {
            let message = format!("a group '{name}' is there already ({first}); names differ");
            errors.push(ConfigError { origin: origin.clone(), message });
        }
        seen.entry(name).or_insert(origin);
    }
    if let Some((_, origin)) = groups.get(GROUPS_MAX) {
        let message = format!("{} groups; at most {GROUPS_MAX}", groups.len());
        errors.push(ConfigError { origin: origin.clone(), message });
    }
    errors
}

/// The group of a disk is there.
fn judge_member(disk: &DiskConfig, groups: &[(GroupConfig, Origin)]) -> Result<(), String> {
    match &disk.limits.group {
        Some(group) if !groups.iter().any(|(g, _)| g.name == *group) => Err(format!(
            "disk {}: no group '{group}'; give it its limits, as in --group {group}:bandwidth=300MiB \
             or [[group]] in the file",
            disk.name
        )),
        _ => Ok(()),
    }
}

/// An error in one setting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ConfigError {
    /// Where it was made.
    pub origin: Origin,
    /// The error, and what to do.
    pub message: String,
}

/// Everything that is wrong, a line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if n > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The checked configuration. Every part has been checked as far as that is possible without
/// opening images and sockets.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// In the order given; names differ.
    pub disks: Vec<DiskConfig>,
    /// Groups of disks that share limits, in the order given; names differ.
    pub groups: Vec<GroupConfig>,
    /// The policy's specification; `None` for the device's own default.
    pub policy: Option<String>,
    /// The folder of the sockets.
    pub listen: Option<PathBuf>,
    /// The control socket; `None` for `control.sock` in `listen`.
    pub control: Option<PathBuf>,
    /// TCP address for metrics by HTTP; `None` for no socket of our own.
    pub metrics: Option<SocketAddr>,
    /// The web page by HTTP.
    pub web: Option<SocketAddr>,
    /// The file with the token of those who may change something by the web page.
    pub web_control: Option<PathBuf>,
    /// Names of this host that requests for metrics and the page may call it by, besides its
    /// addresses and localhost.
    pub allow_host: Vec<String>,
    /// All exports by NBD.
    pub nbd: Option<SocketAddr>,
    /// Access to the sockets of disks that do not set their own, and whether those disks have an
    /// NBD socket.
    pub sockets: SocketConfig,
    /// Certificates of NBD's TLS; without `cert` and `key` there is no TLS.
    pub tls: TlsConfig,
    /// Make all disks lie on this device (see [`Throttle::parse`]).
    pub emulate: Option<String>,
    /// Commands at once, 1 to [`DEPTH_MAX`]; `None` for the device's own.
    pub depth: Option<u32>,
    /// Longest command that adjacent requests are coalesced into; 0 never.
    pub coalesce: Sectors,
    /// Requests are merged up to `coalesce` as they arrive.
    pub merge: bool,
    /// A request that has waited longer goes whatever the policy says.
    pub hard_limit: Nanos,
    /// Time for which reactors look for requests before they sleep.
    pub poll: Poll,
    /// Submitter of reactors' I/O: with `threads` 1 the reactor itself, with 2 a thread of the
    /// kernel's beside it.
    pub submitter: Submitter,
    /// Size of the caches; [`Config::cache_size`] has the default.
    pub cache: Option<CacheSize>,
    /// The prefetcher's specification; [`Config::prefetcher`] has the default.
    pub prefetch: Option<String>,
    /// The cache is never swapped.
    pub cache_lock: bool,
    /// Bandwidth of reads of a device; measured unless given.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Folder for the reactors' journals.
    pub journal: Option<PathBuf>,
    /// The daemon gives up what it does not need; off for debugging.
    pub sandbox: bool,
    /// Folders whose files a confined daemon may open as images, besides those of its disks.
    pub images: Vec<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            disks: Vec::new(),
            groups: Vec::new(),
            policy: None,
            listen: None,
            control: None,
            metrics: None,
            web: None,
            web_control: None,
            allow_host: Vec::new(),
            nbd: None,
            sockets: SocketConfig::default(),
            tls: TlsConfig::default(),
            emulate: None,
            depth: None,
            coalesce: Sectors::from_bytes(512 << 10),
            merge: false,
            hard_limit: Nanos::from_secs(30),
            poll: Poll::AUTO,
            submitter: Submitter::Own,
            cache: None,
            prefetch: None,
            cache_lock: false,
            bandwidth_bytes_per_s: None,
            journal: None,
            sandbox: true,
            images: Vec::new(),
        }
    }
}

impl Config {
    /// Where the control socket is, if there is one.
    pub fn control_path(&self) -> Option<PathBuf> {
        let beside = || self.listen.as_ref().map(|dir| dir.join(CONTROL_NAME));
        self.control.clone().or_else(beside)
    }
}

// Amounts in JSON: a number, or a text with a unit, as options and files have them.

/// An amount as it is written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or a text with a unit")]
enum Amount {
    Number(u64),
    Text(String),
}

impl Amount {
    /// The text that options and files would have.
    pub fn text(self) -> String {
        match self {
            Amount::Number(number) => number.to_string(),
            Amount::Text(text) => text,
        }
    }
}

fn read_amount<'de, D: Deserializer<'de>>(
    from: D,
    parse: fn(&str) -> Result<u64, ParamError>,
) -> Result<Option<u64>, D::Error> {
    let Some(amount) = Option::<Amount>::deserialize(from)? else { return Ok(None) };
    let text = amount.text();
    parse(&text).map(Some).map_err(|e| de::Error::custom(format!("{text}: {e}")))
}

/// Reads a size: a number of bytes, or a text with a unit.
pub(crate) fn amount_in_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    read_amount(from, parse_bytes)
}

/// A place: the number of a sector, or bytes with a unit.
fn amount_in_sectors<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    read_amount(from, |text| parse_lba(text).map(|lba| lba.get()))
}

// Size of the caches.

/// The smallest cache of a device, and the largest, in bytes.
pub const CACHE_BYTES_MIN: u64 = 1 << 20;
/// The largest cache of a device, in bytes: 8 TiB.
pub const CACHE_BYTES_MAX: u64 = 8 << 40;
/// Prefetcher of a cache if none is named.
pub const PREFETCHER_DEFAULT: &str = "vio:interval=continuous";

/// Size of the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Amount")]
pub enum CacheSize {
    /// No caches; a daemon that is started with this cannot get any later.
    Off,
    /// A tenth of the available memory for all devices together, less under pressure.
    Auto,
    /// This number of bytes for each device.
    Bytes(u64),
}

impl CacheSize {
    /// Parse `off`, `auto` or a size.
    ///
    /// # Errors
    /// For the operator: the values that are allowed.
    pub fn parse(text: &str) -> Result<CacheSize, String> {
        match text {
            "off" => Ok(CacheSize::Off),
            "auto" => Ok(CacheSize::Auto),
            _ => {
                let allowed = CACHE_BYTES_MIN..=CACHE_BYTES_MAX;
                match parse_bytes(text) {
                    Ok(bytes) if allowed.contains(&bytes) => Ok(CacheSize::Bytes(bytes)),
                    Ok(_) => Err(format!("{text}: expected auto, off, or 1MiB to 8TiB")),
                    Err(e) => Err(format!("{text}: {e}; or auto, or off")),
                }
            }
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheSize::Off => f.write_str("off"),
            CacheSize::Auto => f.write_str("auto"),
            CacheSize::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl From<CacheSize> for String {
    fn from(size: CacheSize) -> String {
        size.to_string()
    }
}

impl TryFrom<Amount> for CacheSize {
    type Error = String;
    fn try_from(amount: Amount) -> Result<CacheSize, String> {
        CacheSize::parse(&amount.text())
    }
}

impl Config {
    /// Size of the caches: `auto` by default. An emulated device has no cache by default, because
    /// it is there to be seen as it is.
    pub fn cache_size(&self) -> CacheSize {
        match (self.cache, &self.emulate) {
            (Some(size), _) => size,
            (None, Some(_)) => CacheSize::Off,
            (None, None) => CacheSize::Auto,
        }
    }

    /// The prefetcher of devices with a cache.
    pub fn prefetcher(&self) -> &str {
        self.prefetch.as_deref().unwrap_or(PREFETCHER_DEFAULT)
    }
}

// TLS for NBD.

/// Files with certificates and keys for NBD, and whether clients need TLS.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct TlsConfig {
    /// The server's certificates, PEM.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Signer of clients' certificates, PEM; if set, a client needs a certificate, and over TCP
    /// TLS.
    pub client_ca: Option<PathBuf>,
    /// Refuse clients without TLS, also at unix sockets.
    pub required: bool,
}

impl TlsConfig {
    /// Do the files go together?
    ///
    /// # Errors
    /// For the operator: the setting that is missing.
    fn judge(&self) -> Result<(), String> {
        let TlsConfig { cert, key, client_ca, required } = self;
        if cert.is_some() != key.is_some() {
            return Err("a certificate and its key go together: give cert and key".into());
        }
        if cert.is_none() && (*required || client_ca.is_some()) {
            return Err("TLS needs a certificate: give cert and key".into());
        }
        Ok(())
    }

    /// Is a client without TLS refused? At a unix socket its owner and mode say who may connect;
    /// over TCP, one without TLS would not show the certificate that it needs.
    pub fn is_required(&self, over_tcp: bool) -> bool {
        self.required || over_tcp && self.client_ca.is_some()
    }

    /// Can clients of this disk be told by their certificates, if they have to be?
    ///
    /// # Errors
    /// For the operator: the setting that is missing.
    pub fn judge_allow(&self, disk: &DiskConfig) -> Result<(), String> {
        match disk.allow.is_empty() || self.client_ca.is_some() {
            true => Ok(()),
            false => Err(format!(
                "disk {}: allow goes by clients' certificates: give their authority, \
                 --tls-client-ca FILE, or client_ca under [tls] in the file",
                disk.name
            )),
        }
    }
}

#[cfg(test)]
mod tests;
