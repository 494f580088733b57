//! Limits as text, `iops=2000,iops_burst=8000,burst_length=10s,group=tenant1`,
//! for the command line, the file, the control interface and `compare` alike.
//!
//! libvirt's `<iotune>` and QEMU's throttle groups have other names for most
//! limits: an error says ours. What cannot hold together is refused with both
//! keys.

use super::spec::Unit::{Bytes, Iops};
use super::spec::{
    BURST_LENGTH_DEFAULT, BURST_LENGTH_MAX, BURST_LENGTH_MIN, DiskLimits, GroupName, LATENCY_MAX,
    LATENCY_MIN, Limits, RATE_MAX, Scope, Unit,
};
use Key::{BurstLength, Group, IoSize, Latency, Least, Of, Weight};
use Part::{Burst, Length, Rate};
use Scope::{Read, Total, Write};
use seekway_core::params::{
    ParamError, SPEC_BYTES_MAX, parse_bytes, parse_count, parse_duration, parse_spec,
};
use seekway_core::scheduler::{Promise, Reserve};
use seekway_core::units::Nanos;
use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;

/// The three numbers of one rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Rate,
    Burst,
    Length,
}

/// A key without its spelling, in the order of output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Of(Unit, Scope, Part),
    /// The length of all bursts that have none of their own.
    BurstLength,
    IoSize,
    /// Key of a reservation: at least this rate.
    Least(Unit),
    Latency,
    Weight,
    Group,
}

/// A key's names: ours, libvirt's in `<iotune>`, QEMU's in `throttling.*` and `throttle-group`,
/// and those of QMP's `block_set_io_throttle`, which QEMU's `-drive` takes too. All are ours where
/// the others have no such key.
type Names = [&'static str; OWNERS.len()];

/// Owner of each of the [`Names`]; of ours, none.
const OWNERS: [&str; 4] = ["", "libvirt", "QEMU", "QEMU"];

/// In front of QEMU's names.
const QEMU_PREFIXES: [&str; 2] = ["throttling.", "throttling-"];

/// The rates.
const RATES: [(Unit, Scope, Names); 6] = [
    (Iops, Total, ["iops", "total_iops_sec", "iops-total", "iops"]),
    (Iops, Read, ["read_iops", "read_iops_sec", "iops-read", "iops_rd"]),
    (Iops, Write, ["write_iops", "write_iops_sec", "iops-write", "iops_wr"]),
    (Bytes, Total, ["bandwidth", "total_bytes_sec", "bps-total", "bps"]),
    (Bytes, Read, ["read_bandwidth", "read_bytes_sec", "bps-read", "bps_rd"]),
    (Bytes, Write, ["write_bandwidth", "write_bytes_sec", "bps-write", "bps_wr"]),
];

/// Suffixes of a rate's name.
const PARTS: [(Part, Names); 3] = [
    (Rate, ["", "", "", ""]),
    (Burst, ["_burst", "_max", "-max", "_max"]),
    (Length, ["_burst_length", "_max_length", "-max-length", "_max_length"]),
];

/// The other keys.
const OTHERS: [(Key, Names); 7] = [
    (BurstLength, ["burst_length"; OWNERS.len()]),
    (IoSize, ["iops_size", "size_iops_sec", "iops-size", "iops_size"]),
    (Least(Iops), ["reserve_iops"; OWNERS.len()]),
    (Least(Bytes), ["reserve_bandwidth"; OWNERS.len()]),
    (Latency, ["latency"; OWNERS.len()]),
    (Weight, ["weight"; OWNERS.len()]),
    (Group, ["group", "group_name", "group", "group"]),
];

/// The names of all keys, for messages: those of reads and writes in short.
pub const KEYS_SHOWN: &str = "iops, bandwidth, iops_burst, bandwidth_burst, \
    iops_burst_length, bandwidth_burst_length (each also with read_ or write_ in front), \
    burst_length, iops_size, reserve_iops, reserve_bandwidth, latency, group";

impl Key {
    /// The key of this name, if it is one.
    ///
    /// # Errors
    /// For a name of libvirt's or QEMU's, says ours.
    fn named(name: &str) -> Result<Option<Key>, ParamError> {
        let qemus = QEMU_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let found = OWNERS.into_iter().enumerate();
        let found = found.filter(|(_, owner)| qemus.is_none() || *owner == "QEMU");
        let bare = qemus.unwrap_or(name);
        let mut found = found.filter_map(|(at, owner)| Some((owner, Key::find(bare, at)?)));
        match found.next() {
            None => Ok(None),
            Some(("", key)) => Ok(Some(key)),
            Some((owner, key)) => {
                Err(ParamError::new(format!("no limit '{name}' ({owner}'s name): write {key}")))
            }
        }
    }

    /// The key whose name this is, at this place of [`Names`].
    fn find(name: &str, at: usize) -> Option<Key> {
        let rate = RATES.iter().find_map(|(unit, scope, names)| {
            let end = name.strip_prefix(names[at])?;
            let (part, _) = PARTS.iter().find(|(_, ends)| ends[at] == end)?;
            Some(Of(*unit, *scope, *part))
        });
        let other = || OTHERS.iter().find(|(_, names)| names[at] == name).map(|(key, _)| *key);
        rate.or_else(other)
    }
}

impl fmt::Display for Key {
    /// Our name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_rate = RATES.iter().flat_map(|(unit, scope, names)| {
            PARTS.iter().map(|(part, ends)| (Of(*unit, *scope, *part), names[0], ends[0]))
        });
        let mut all = of_rate.chain(OTHERS.iter().map(|(key, names)| (*key, names[0], "")));
        all.find(|(key, ..)| key == self).map_or(Ok(()), |(_, name, end)| write!(f, "{name}{end}"))
    }
}

/// Is this the name of a limit?
///
/// # Errors
/// For a name of libvirt's or QEMU's, says ours.
pub fn is_limit(name: &str) -> Result<bool, ParamError> {
    Key::named(name).map(|key| key.is_some())
}

/// Limits that are being read, key by key, in any order.
#[derive(Clone, Default, Debug)]
pub struct LimitsDraft {
    /// Times in nanoseconds.
    values: BTreeMap<Key, u64>,
    /// The value of [`Group`].
    group: Option<GroupName>,
}

impl LimitsDraft {
    /// Read these pairs of keys and values.
    ///
    /// # Errors
    /// As [`LimitsDraft::set_known`].
    pub fn read<'t>(
        pairs: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<LimitsDraft, ParamError> {
        let mut draft = LimitsDraft::default();
        pairs.into_iter().try_for_each(|(key, value)| draft.set_known(key, value))?;
        Ok(draft)
    }

    /// Set one key.
    ///
    /// # Errors
    /// As [`LimitsDraft::set`]; for a key that is none, lists those that there are.
    pub fn set_known(&mut self, name: &str, text: &str) -> Result<(), ParamError> {
        if self.set(name, text)? {
            return Ok(());
        }
        let name: String = name.escape_debug().take(100).collect();
        Err(ParamError::new(format!("no limit '{name}'; there are {KEYS_SHOWN}")))
    }

    /// Set one key; `false` when it is not a key of limits.
    ///
    /// # Errors
    /// What the value should be, or that it was given already.
    pub fn set(&mut self, name: &str, text: &str) -> Result<bool, ParamError> {
        let Some(key) = Key::named(name)? else { return Ok(false) };
        let value = match key {
            Of(unit, _, Rate | Burst) | Least(unit) => amount(unit, text),
            IoSize => amount(Bytes, text),
            Of(_, _, Length) | BurstLength => {
                let expected = "a time such as 10s or 500ms, from 1ms to 1000h";
                time(text, BURST_LENGTH_MIN..=BURST_LENGTH_MAX, expected)
            }
            Latency => {
                let expected = format!("a time from {LATENCY_MIN} to {LATENCY_MAX}, such as 2ms");
                time(text, LATENCY_MIN..=LATENCY_MAX, &expected)
            }
            Weight => {
                let weight = text.parse::<NonZeroU32>().map(|weight| weight.get().into());
                weight.map_err(|_| "expected a whole number from 1".into())
            }
            Group => {
                let group = GroupName::new(text)?;
                self.group.get_or_insert(group);
                Ok(0)
            }
        };
        let value = value.map_err(|why| ParamError::new(format!("{name}={text}: {why}")))?;
        match self.values.insert(key, value) {
            Some(_) => Err(ParamError::new(format!("{name} is given twice"))),
            None => Ok(true),
        }
    }

    /// The limits, if they can hold together.
    ///
    /// # Errors
    /// The two that contradict each other, or what one of them needs.
    pub fn finish(self) -> Result<DiskLimits, ParamError> {
        let mut limits = Limits::default();
        for unit in Unit::ALL {
            self.judge_scopes(unit)?;
            self.judge_reserve(unit)?;
        }
        for (unit, scope, _) in RATES {
            limits.rates[unit as usize][scope as usize] = self.rate(unit, scope)?;
        }
        let mut rates = limits.rates.iter().flatten().flatten();
        if self.values.contains_key(&BurstLength) && rates.all(|r| r.burst.is_none()) {
            let limited = self.values.keys().find_map(|key| match key {
                Of(unit, scope, Rate) => Some(Of(*unit, *scope, Burst)),
                _ => None,
            });
            let example = limited.unwrap_or(Of(Iops, Total, Burst));
            return Err(ParamError::new(format!("{BurstLength} needs a burst, such as {example}")));
        }
        if let Some(size) = self.value(IoSize) {
            if limits.rates[Iops as usize].iter().all(Option::is_none) {
                let needs = "needs a limit of IOPS: iops, read_iops or write_iops";
                return Err(ParamError::new(format!("{IoSize} {needs}")));
            }
            limits.io_size_bytes = NonZeroU64::new(size);
        }
        let [iops, bytes_per_s] = Unit::ALL.map(|unit| self.value(Least(unit)).unwrap_or(0));
        limits.reserve = Reserve { iops, bytes_per_s };
        limits.latency = self.value(Latency).map(Nanos::new);
        limits.weight = self.value(Weight).and_then(|weight| NonZeroU32::new(weight as u32));
        Ok(DiskLimits { limits, group: self.group })
    }

    fn value(&self, key: Key) -> Option<u64> {
        self.values.get(&key).copied()
    }

    /// The total and a direction cannot both be limited in the same unit.
    fn judge_scopes(&self, unit: Unit) -> Result<(), ParamError> {
        for part in [Rate, Burst] {
            let is_given = |key: &Key| self.values.contains_key(key);
            let apart = [Read, Write].map(|scope| Of(unit, scope, part));
            let (total, apart) = (Of(unit, Total, part), apart.into_iter().find(is_given));
            if let (true, Some(apart)) = (is_given(&total), apart) {
                return Err(ParamError::new(format!(
                    "{total} and {apart} contradict: limit reads and writes together, or each apart"
                )));
            }
        }
        Ok(())
    }

    /// Nobody can have more at least than at most.
    fn judge_reserve(&self, unit: Unit) -> Result<(), ParamError> {
        let (least, most) = (Least(unit), Of(unit, Total, Rate));
        match (self.value(least), self.value(most)) {
            (Some(reserve), Some(limit)) if limit < reserve => Err(ParamError::new(format!(
                "{least}={reserve} is above {most}={limit}: it could never be had"
            ))),
            _ => Ok(()),
        }
    }

    fn rate(&self, unit: Unit, scope: Scope) -> Result<Option<super::Rate>, ParamError> {
        let keys = [Rate, Burst, Length].map(|part| Of(unit, scope, part));
        let [rate_key, burst_key, length_key] = keys;
        let needs = |key, missing| Err(ParamError::new(format!("{key} needs {missing}")));
        let (per_s, burst) = match keys.map(|key| self.value(key)) {
            [_, None, Some(_)] => return needs(length_key, burst_key),
            [None, Some(_), _] => return needs(burst_key, rate_key),
            [None, None, None] => return Ok(None),
            [Some(per_s), None, None] => return Ok(Some(super::Rate { per_s, burst: None })),
            [Some(per_s), Some(burst), _] => (per_s, burst),
        };
        if burst < per_s {
            return Err(ParamError::new(format!(
                "{burst_key}={burst} is below {rate_key}={per_s}: a burst is at least as fast"
            )));
        }
        let given = [length_key, BurstLength].into_iter().find(|key| self.value(*key).is_some());
        let length = given.and_then(|key| self.value(key)).map_or(BURST_LENGTH_DEFAULT, Nanos::new);
        let whole = u128::from(burst) * u128::from(length.get());
        if let (Some(key), true) = (given, whole > u128::from(RATE_MAX) * 1_000_000_000) {
            return Err(ParamError::new(format!(
                "{key}={length} is too long for {burst_key}={burst}: together they are at most {RATE_MAX}"
            )));
        }
        Ok(Some(super::Rate { per_s, burst: Some(super::Burst { per_s: burst, length }) }))
    }
}

/// A number of I/Os or bytes, 1 to [`RATE_MAX`].
fn amount(unit: Unit, text: &str) -> Result<u64, String> {
    let (value, most) = match unit {
        Iops => (parse_count(text), format!("{RATE_MAX}")),
        Bytes => (parse_bytes(text), "900TiB".into()),
    };
    match value {
        Ok(0) => Err("at least 1; leave it out for no limit".into()),
        Ok(value) if value <= RATE_MAX => Ok(value),
        Ok(_) => Err(format!("at most {most}")),
        Err(e) => Err(e.to_string()),
    }
}

/// A time in nanoseconds.
fn time(text: &str, allowed: RangeInclusive<Nanos>, expected: &str) -> Result<u64, String> {
    let time = parse_duration(text).ok().filter(|time| allowed.contains(time));
    time.map(Nanos::get).ok_or_else(|| format!("expected {expected}"))
}

/// `none`, which lifts all limits, or `key=value,key=value`.
fn read_pairs(text: &str) -> Result<LimitsDraft, ParamError> {
    if text.trim() == "none" {
        return Ok(LimitsDraft::default());
    }
    if text.len() > SPEC_BYTES_MAX {
        let n = text.len();
        return Err(ParamError::new(format!("limits of {n} bytes; at most {SPEC_BYTES_MAX}")));
    }
    let mut draft = LimitsDraft::default();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(ParamError::new(format!("'{pair}' is not key=value, as in iops=2000")));
        };
        draft.set_known(key.trim(), value.trim())?;
    }
    if draft.values.is_empty() {
        return Err(ParamError::new(format!(
            "no limit is given; there are {KEYS_SHOWN}; write none to lift all"
        )));
    }
    Ok(draft)
}

impl DiskLimits {
    /// Parse `iops=2000,group=tenant1`, or `none`.
    ///
    /// # Errors
    /// What is wrong and what there is.
    pub fn parse(text: &str) -> Result<DiskLimits, ParamError> {
        read_pairs(text)?.finish()
    }

    /// The limits, if a group can have them.
    ///
    /// # Errors
    /// For what only disks have: a group, and promises but the weight.
    pub fn of_group(self) -> Result<Limits, ParamError> {
        if self.group.is_some() {
            return Err(ParamError::new("group: a group cannot be in a group"));
        }
        match self.limits.promises().find(|(promise, _)| *promise != Promise::Group) {
            Some((_, key)) => {
                Err(ParamError::new(format!("{key}: a group has none; give it to its disks")))
            }
            None => Ok(self.limits),
        }
    }
}

impl Limits {
    /// Parse `iops=2000,bandwidth=100MiB`, or `none`: limits of a group.
    ///
    /// # Errors
    /// What is wrong and what there is.
    pub fn parse(text: &str) -> Result<Limits, ParamError> {
        DiskLimits::parse(text)?.of_group()
    }
}

/// Parse a group with its limits, `tenant1:bandwidth=300MiB,iops=5000`.
///
/// # Errors
/// What is wrong and what there is.
pub fn parse_group(text: &str) -> Result<(GroupName, Limits), ParamError> {
    let spec = parse_spec(text)?;
    new_group(spec.name, LimitsDraft::read(spec.given)?)
}

/// A group of this name, which has to have a limit or a weight.
///
/// # Errors
/// Says what is wrong with the name or the limits.
pub fn new_group(name: &str, draft: LimitsDraft) -> Result<(GroupName, Limits), ParamError> {
    let name = GroupName::new(name)?;
    let limits = draft.finish().and_then(DiskLimits::of_group);
    let limits = limits.map_err(|e| ParamError::new(format!("group {name}: {e}")))?;
    match limits.is_none() {
        true => Err(ParamError::new(format!(
            "group {name} has no limit and no weight: give it bandwidth, iops or weight, as in \
             {name}:bandwidth=300MiB"
        ))),
        false => Ok((name, limits)),
    }
}

/// Bytes in the largest unit that is exact.
fn exact(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// The keys that are set, with their values as they are read again.
fn pairs(limits: &Limits) -> Vec<(Key, String)> {
    let amount = |unit, amount: u64| match unit {
        Iops => amount.to_string(),
        Bytes => exact(amount),
    };
    let mut pairs = Vec::new();
    for (unit, scope, _) in RATES {
        let Some(rate) = limits.rate(unit, scope) else { continue };
        pairs.push((Of(unit, scope, Rate), amount(unit, rate.per_s)));
        let Some(super::Burst { per_s, length }) = rate.burst else { continue };
        pairs.push((Of(unit, scope, Burst), amount(unit, per_s)));
        if length != BURST_LENGTH_DEFAULT {
            pairs.push((Of(unit, scope, Length), length.to_string()));
        }
    }
    let Reserve { iops, bytes_per_s } = limits.reserve;
    let others = [
        (IoSize, limits.io_size_bytes.map(|size| exact(size.get()))),
        (Least(Iops), (iops > 0).then(|| iops.to_string())),
        (Least(Bytes), (bytes_per_s > 0).then(|| exact(bytes_per_s))),
        (Latency, limits.latency.map(|time| time.to_string())),
        (Weight, limits.weight.map(|weight| weight.to_string())),
    ];
    pairs.extend(others.into_iter().filter_map(|(key, value)| Some((key, value?))));
    pairs
}

fn write_pairs(f: &mut fmt::Formatter<'_>, pairs: &[(Key, String)]) -> fmt::Result {
    if pairs.is_empty() {
        return f.write_str("none");
    }
    let mut comma = "";
    pairs.iter().try_for_each(|(key, value)| {
        write!(f, "{}{key}={value}", std::mem::replace(&mut comma, ","))
    })
}

impl fmt::Display for Limits {
    /// The text that [`Limits::parse`] reads; `none` for no limits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_pairs(f, &pairs(self))
    }
}

impl fmt::Display for DiskLimits {
    /// The text that [`DiskLimits::parse`] reads; `none` for no limits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs = pairs(&self.limits);
        pairs.extend(self.group.as_ref().map(|group| (Group, group.to_string())));
        write_pairs(f, &pairs)
    }
}

impl fmt::Debug for Limits {
    /// The text in place of a table that is mostly empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for DiskLimits {
    /// The text in place of a table that is mostly empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
