//! A disk as it is asked for: `NAME=PATH,weight=N,ro,…`, or a table of the
//! file, or an object of the control protocol.

use super::keys::Value::Text;
use super::keys::{Key, bytes, put, put_one, settings, switch};
use super::sockets::{SocketConfig, account, mode};
use crate::images::{BlockSize, OpenOptions};
use seekway_core::params::parse_lba;
use seekway_stack::stack::limit::{
    DiskLimits, GroupName, KEYS_SHOWN, Limits, LimitsDraft, parse_group,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Longest name of a disk, in bytes: it has to fit the path of a socket.
pub const NAME_BYTES_MAX: usize = 64;

/// A disk to be served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// Its name: letters, digits, `-`, `_`, `.`; see [`check_name`].
    pub name: String,
    /// Image or block device.
    pub path: PathBuf,
    /// Its share, relative to the others'.
    #[serde(default = "one")]
    pub weight: NonZeroU32,
    /// Writes are refused, and the image is opened read-only with a shared lock.
    #[serde(default)]
    pub read_only: bool,
    /// Where it begins on an emulated device, in sectors.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::amount_in_sectors"
    )]
    pub lba: Option<u64>,
    /// Failures to inject (see [`crate::images::fault::Fault::parse`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Go through the host's page cache.
    #[serde(default)]
    pub buffered: bool,
    /// Reads go through the device's cache, if it has one.
    #[serde(default = "yes")]
    pub cache: bool,
    /// Serve an image that lacks writes which were acknowledged.
    #[serde(default)]
    pub accept_lost_writes: bool,
    /// Another daemon serves the image until the guest has migrated to this one.
    #[serde(default)]
    pub incoming: bool,
    /// Logical block size for guests; the smallest that the image can do if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// Most bytes of its guest's memory that its VMM may have mapped; the host's memory if not set.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::amount_in_bytes"
    )]
    pub guest_memory: Option<u64>,
    /// The serial number that its guest sees; made of the name if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// A path on the device that its data lie on, where the image's file system does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<PathBuf>,
    /// Access to its sockets, and whether it has one for NBD.
    #[serde(flatten)]
    pub sockets: SocketConfig,
    /// Names in clients' certificates, one of which a client of NBD over TCP needs for this disk;
    /// none for any client.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "some_names")]
    pub allow: Vec<String>,
    /// Rate limits of its own, and the group whose limits hold as well.
    #[serde(default, skip_serializing_if = "DiskLimits::is_none", with = "text")]
    pub limits: DiskLimits,
}

/// Options of a disk besides limits, by flag and in the file.
pub static OPTIONS: &[Key<DiskConfig>] = settings! {
    /// share of the device
    "weight" "N" => Text(|d, text| put(&mut d.weight, weight(text)?));
    /// read-only
    "ro" "" => Text(|d, text| put(&mut d.read_only, switch(text)?));
    /// its place on an emulated device
    "lba" "SECTORS|BYTES" => Text(|d, text| put(&mut d.lba, Some(place(text)?)));
    /// use the page cache
    "buffered" "" => Text(|d, text| put(&mut d.buffered, switch(text)?));
    /// do not use --cache
    "cache" "off" => Text(|d, text| put(&mut d.cache, switch(text)?));
    /// serve an image that lost acknowledged writes
    "accept-lost-writes" "" => Text(|d, text| put(&mut d.accept_lost_writes, switch(text)?));
    /// another daemon serves the image until the guest has migrated
    "incoming" "" => Text(|d, text| put(&mut d.incoming, switch(text)?));
    /// logical blocks that guests see
    "block_size" "512|4096" => Text(|d, text| put(&mut d.block_size, Some(text.parse()?)));
    /// most memory of its guest that a VMM may hand over [default: the host's memory]
    "guest_memory" "SIZE" => Text(|d, text| {
        put(&mut d.guest_memory, Some(bytes(text, "a size such as 8GiB, not 0")?))
    });
    /// the serial number that the guest sees, at most 20 bytes [default: of the name]
    "serial" "TEXT" => Text(|d, text| put(&mut d.serial, Some(text.into())));
    /// the image's data lie on the device of this path
    "on" "PATH" => Text(|d, text| put(&mut d.on, Some(text.into())));
    /// no NBD socket
    "nbd" "off" => Text(|d, text| put(&mut d.sockets.nbd, Some(switch(text)?)));
    /// over TCP only clients whose certificate has this name; repeatable, see --tls-client-ca
    "allow" "NAME" => Text(|d, text| put_one(&mut d.allow, client_name(text)?));
    /// see --socket-owner
    "socket_owner" "USER" => Text(|d, text| put(&mut d.sockets.owner, Some(account(text)?)));
    /// see --socket-group
    "socket_group" "GROUP" => Text(|d, text| put(&mut d.sockets.group, Some(account(text)?)));
    /// see --socket-mode
    "socket_mode" "MODE" => Text(|d, text| put(&mut d.sockets.mode, Some(mode(text)?)));
    /// inject faults, for tests; must be last
    "fault" "SPEC" => Text(|d, text| put(&mut d.fault, Some(text.into())));
};

fn weight(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("{text}: expected a whole number from 1"))
}

fn place(text: &str) -> Result<u64, String> {
    parse_lba(text).map(|lba| lba.get()).map_err(|e| format!("{text}: {e}"))
}

fn client_name(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err(format!(": {NO_NAMES}")),
        false => Ok(text.into()),
    }
}

/// An empty list would mean nobody to its author, and would admit everybody.
const NO_NAMES: &str =
    "expected names in clients' certificates; without the option all clients may";

fn some_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    match names.is_empty() || names.iter().any(String::is_empty) {
        true => Err(serde::de::Error::custom(format!("allow: {NO_NAMES}"))),
        false => Ok(names),
    }
}

fn yes() -> bool {
    true
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl DiskConfig {
    /// A disk with defaults.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> DiskConfig {
        DiskConfig {
            name: name.into(),
            path: path.into(),
            weight: one(),
            read_only: false,
            lba: None,
            fault: None,
            buffered: false,
            cache: true,
            accept_lost_writes: false,
            incoming: false,
            block_size: None,
            guest_memory: None,
            serial: None,
            on: None,
            sockets: SocketConfig::default(),
            allow: Vec::new(),
            limits: DiskLimits::default(),
        }
    }

    /// Parse `NAME=PATH[,weight=4,ro,iops=2000,…]`: with [`OPTIONS`], and limits among them. A comma
    /// in the path is written twice; `fault` takes all that follows it.
    ///
    /// # Errors
    /// The fault, and the values that are allowed.
    pub fn parse(text: &str) -> Result<DiskConfig, String> {
        let (name, rest) = text
            .split_once('=')
            .ok_or("expected NAME=PATH, and options after commas: web=/images/web.img,weight=4")?;
        let (path, options) = split_path(rest);
        let mut disk = DiskDraft::new(name, path);
        let mut options = options;
        while let Some(now) = options {
            let (option, later) = match now.split_once(',') {
                Some((first, later)) if !first.starts_with("fault=") => (first, Some(later)),
                _ => (now, None),
            };
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (option, None),
            };
            disk.set(key, value)?;
            options = later;
        }
        let (disk, checked) = disk.finish();
        checked.map(|()| disk)
    }

    /// Set one option that is no limit; a switch has no value, or `true` or `false`.
    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let name = key.replace('-', "_");
        let name = if name == "read_only" { "ro" } else { &name };
        let Some(option) = OPTIONS.iter().find(|option| option.name.replace('-', "_") == name)
        else {
            let there: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
            let there = there.join(", ");
            return Err(format!(
                "a disk has no option '{key}'; it has {there}, and limits: {KEYS_SHOWN}"
            ));
        };
        let is_switch = ["", "off"].contains(&option.value);
        let text = value.or(is_switch.then_some("true"));
        let text = text.ok_or_else(|| format!("{key} takes a value: {key}={}", option.value))?;
        option.apply(self, text).map_err(|e| format!("{key}={e}"))
    }

    /// Options with which its image is opened.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions {
            read_only: self.read_only,
            direct: !self.buffered,
            accept_lost_writes: self.accept_lost_writes,
            incoming: self.incoming,
            block_size: self.block_size,
        }
    }

    /// Name and path may be what they are.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        if self.path.as_os_str().is_empty() {
            return Err(format!("disk {}: no path of an image", self.name));
        }
        if self.on.as_ref().is_some_and(|on| on.as_os_str().is_empty()) {
            return Err(format!("disk {}: on: expected a path on the device", self.name));
        }
        if let Some(serial) = &self.serial {
            check_serial(serial).map_err(|e| format!("disk {}: {e}", self.name))?;
        }
        if self.incoming && self.read_only {
            let name = &self.name;
            return Err(format!(
                "disk {name}: several daemons can read an image: leave 'incoming' out"
            ));
        }
        Ok(())
    }
}

/// Longest serial number: virtio-blk's (VIRTIO 1.2, 5.2.6).
pub const SERIAL_BYTES_MAX: usize = 20;

impl DiskConfig {
    /// The serial number that its guest sees: as it was asked for, or the name. Of a name that is
    /// too long the end is a hash of all of it, so that names that begin alike stay apart.
    pub fn serial_number(&self) -> String {
        match &self.serial {
            Some(serial) => serial.clone(),
            None if self.name.len() <= SERIAL_BYTES_MAX => self.name.clone(),
            None => format!("{:.11}-{:08x}", self.name, fnv_1a(self.name.as_bytes())),
        }
    }
}

/// Hashes to the same value in all versions (Fowler, Noll, Vo; 32 bits).
fn fnv_1a(bytes: &[u8]) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, mix)
}

fn check_serial(serial: &str) -> Result<(), String> {
    let is_plain = serial.bytes().all(|byte| byte.is_ascii_graphic());
    match is_plain && (1..=SERIAL_BYTES_MAX).contains(&serial.len()) {
        true => Ok(()),
        false => Err(format!(
            "serial={}: expected at most {SERIAL_BYTES_MAX} letters, digits and signs, without spaces",
            serial.escape_debug().take(100).collect::<String>()
        )),
    }
}

/// A disk whose options are being read, one by one: whether limits can hold
/// together is known only when all are there.
pub(super) struct DiskDraft {
    disk: DiskConfig,
    limits: LimitsDraft,
}

impl DiskDraft {
    pub(super) fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> DiskDraft {
        DiskDraft { disk: DiskConfig::new(name, path), limits: LimitsDraft::default() }
    }

    /// Set one option; a flag has no value, or `true` or `false`.
    pub(super) fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        // Of a disk the weight is an option, of a group it is among the limits.
        if key == "weight" {
            return self.disk.set(key, value);
        }
        match self.limits.set(key, value.unwrap_or("")) {
            Ok(true) => Ok(()),
            Ok(false) => self.disk.set(key, value),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The disk, and what is wrong with all of it together. Limits that are wrong
    /// are left out.
    pub(super) fn finish(self) -> (DiskConfig, Result<(), String>) {
        let DiskDraft { mut disk, limits } = self;
        let limits = limits.finish().map(|limits| disk.limits = limits);
        let limits = limits.map_err(|e| format!("disk {}: {e}", disk.name));
        let checked = disk.check().and(limits);
        (disk, checked)
    }
}

/// Split at the first comma that is alone; `,,` is a comma of the path.
fn split_path(text: &str) -> (String, Option<&str>) {
    let mut path = String::new();
    let mut rest = text;
    loop {
        let Some((before, after)) = rest.split_once(',') else {
            path.push_str(rest);
            return (path, None);
        };
        path.push_str(before);
        match after.strip_prefix(',') {
            Some(after) => {
                path.push(',');
                rest = after;
            }
            None => return (path, Some(after)),
        }
    }
}

/// May a disk have this name? It becomes part of sockets' names.
///
/// # Errors
/// For the operator: the characters that a name may have.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(plain);
    if good {
        return Ok(());
    }
    Err(format!(
        "'{}' cannot be a disk's name: letters, digits, '_', '-' and '.' (the last two not \
         at the front), at most {NAME_BYTES_MAX}",
        name.escape_debug()
    ))
}

// Rate limits as they are asked for: options of a disk, groups of disks, and
// their text in the control protocol. What they mean is in
// `seekway_stack::stack::limit`.

/// Most groups that one daemon has.
pub const GROUPS_MAX: usize = 1024;

/// A group of disks that share limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// The name by which disks join it.
    pub name: GroupName,
    /// Limits of all its disks together.
    pub limits: Limits,
}

impl GroupConfig {
    /// Parse `NAME:bandwidth=300MiB[,…]`.
    ///
    /// # Errors
    /// The fault, and the values that are allowed.
    pub fn parse(text: &str) -> Result<GroupConfig, String> {
        let (name, limits) = parse_group(text).map_err(|e| e.to_string())?;
        Ok(GroupConfig { name, limits })
    }

    /// Stands for a group whose limits are wrong: its disks need no second error.
    pub(super) fn without_limits(name: GroupName) -> GroupConfig {
        GroupConfig { name, limits: Limits::default() }
    }
}

/// A disk's limits as text in JSON: `"limits": "iops=2000,group=tenant1"`.
pub(crate) mod text {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(limits: &DiskLimits, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(limits)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DiskLimits, D::Error> {
        let text = String::deserialize(from)?;
        DiskLimits::parse(&text).map_err(de::Error::custom)
    }
}
