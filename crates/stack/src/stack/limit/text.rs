//! Limits as text, `iops=2000,iops_burst=8000,burst_length=10s,group=tenant1`,
//! for the command line, the file, the control interface and `compare` alike.
//!
//! libvirt's `<iotune>` and QEMU's throttle groups have other names for most
//! limits: an error says ours. What cannot hold together is refused with both
//! keys.

use super::Unit::{Bytes, Iops};
use super::{
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
    /// The fault, and the values that are allowed.
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
    /// The fault, and the values that are allowed.
    pub fn parse(text: &str) -> Result<Limits, ParamError> {
        DiskLimits::parse(text)?.of_group()
    }
}

/// Parse a group with its limits, `tenant1:bandwidth=300MiB,iops=5000`.
///
/// # Errors
/// The fault, and the values that are allowed.
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

/// Limits as text: what is read, what is refused and how.
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, shown: &str) {
        let parsed = DiskLimits::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(parsed.to_string(), shown, "{text}");
        assert_eq!(DiskLimits::parse(shown).as_ref(), Ok(&parsed), "{shown}");
    }

    #[test]
    fn limits_are_read_and_printed() {
        check("iops=2000", "iops=2000");
        check(
            "iops=2000,iops_burst=8000,burst_length=10s,bandwidth=100MiB",
            "iops=2000,iops_burst=8000,iops_burst_length=10s,bandwidth=100MiB",
        );
        check("bandwidth=104857600,group=tenant1", "bandwidth=100MiB,group=tenant1");
        check(
            "read_bandwidth=1000,write_iops=5,iops_size=4096",
            "write_iops=5,read_bandwidth=1000,iops_size=4KiB",
        );
        // A burst's own length is before the common one.
        check(
            "read_iops=1,read_iops_burst=2,read_iops_burst_length=500ms,write_iops=1,write_iops_burst=2,burst_length=10s",
            "read_iops=1,read_iops_burst=2,read_iops_burst_length=500ms,write_iops=1,write_iops_burst=2,write_iops_burst_length=10s",
        );
        check("iops=5,iops_burst=5,burst_length=1s", "iops=5,iops_burst=5");
        // Of counts k is 1000, of bytes 1024.
        check(
            "iops=1k,reserve_iops=0.5k,bandwidth=1k",
            "iops=1000,bandwidth=1KiB,reserve_iops=500",
        );
        check("group=tenant1", "group=tenant1");
        check(
            "latency=2ms,reserve_bandwidth=52428800,reserve_iops=500,iops=500",
            "iops=500,reserve_iops=500,reserve_bandwidth=50MiB,latency=2ms",
        );
        check("latency=1500us,group=a", "latency=1500us,group=a");
        check("none", "none");
        let (name, limits) = parse_group("tenant1:bandwidth=300MiB").unwrap();
        assert_eq!((name.as_str(), limits.to_string()), ("tenant1", "bandwidth=300MiB".into()));
        let (_, limits) = parse_group("tenant1:weight=4,iops=9").unwrap();
        assert_eq!(limits.to_string(), "iops=9,weight=4");
    }

    #[test]
    fn contradictions_name_both() {
        for (text, part) in [
            (
                "iops=1,read_iops=1",
                "iops and read_iops contradict: limit reads and writes together",
            ),
            ("write_bandwidth=1,bandwidth=1", "bandwidth and write_bandwidth contradict"),
            ("iops=1,iops_burst=2,read_iops_burst=2", "iops_burst and read_iops_burst contradict"),
            ("iops_burst=2", "iops_burst needs iops"),
            ("iops=1,read_iops_burst=2", "read_iops_burst needs read_iops"),
            ("bandwidth=1,iops_burst=2", "iops_burst needs iops"),
            ("iops=3,iops_burst=2", "iops_burst=2 is below iops=3"),
            ("iops=3,iops_burst_length=2s", "iops_burst_length needs iops_burst"),
            ("iops=3,burst_length=2s", "burst_length needs a burst, such as iops_burst"),
            ("read_bandwidth=3,burst_length=2s", "such as read_bandwidth_burst"),
            ("group=a,burst_length=2s", "such as iops_burst"),
            ("bandwidth=3,iops_size=4k", "iops_size needs a limit of IOPS"),
            (
                "iops=300,reserve_iops=500",
                "reserve_iops=500 is above iops=300: it could never be had",
            ),
            (
                "reserve_bandwidth=1025,bandwidth=1024",
                "reserve_bandwidth=1025 is above bandwidth=1024",
            ),
            ("iops=1,iops=2", "iops is given twice"),
            ("group=a,group=b", "group is given twice"),
            (
                "iops=1,iops_burst=1000000000000,burst_length=1h",
                "burst_length=3600s is too long for iops_burst=1000000000000",
            ),
        ] {
            let error = DiskLimits::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        for (text, part) in [
            ("iops=0", "iops=0: at least 1; leave it out for no limit"),
            ("bandwidth=0", "leave it out for no limit"),
            ("iops=-1", "expected a whole number"),
            ("iops=1ki", "expected a whole number, in which k is 1000"),
            ("iops=1.5", "expected a whole number"),
            ("iops=1e3", "expected a whole number"),
            ("iops=1000000000000001", "iops=1000000000000001: at most 1000000000000000"),
            ("iops=99999999999999999999", "too large"),
            ("bandwidth=fast", "bandwidth=fast: expected bytes with a unit"),
            ("bandwidth=100MB", "bandwidth=100MB: MB are powers of 1000 for some programs"),
            ("bandwidth=1000TiB", "at most 900TiB"),
            ("iops=1,iops_burst=2,burst_length=0", "expected a time such as 10s"),
            ("iops=1,iops_burst=2,burst_length=10", "burst_length=10: expected a time such as 10s"),
            ("iops=1,iops_burst=2,burst_length=10x", "expected a time such as 10s"),
            ("iops=1,iops_burst=2,burst_length=1001h", "from 1ms to 1000h"),
            ("iops=1,iops_size=0", "iops_size=0: at least 1"),
            ("reserve_iops=0", "reserve_iops=0: at least 1"),
            ("reserve_bandwidth=5ms", "reserve_bandwidth=5ms: expected bytes"),
            ("latency=0", "latency=0: expected a time from 1us to 60s, such as 2ms"),
            ("latency=2", "latency=2: expected a time"),
            ("latency=61s", "from 1us to 60s"),
            ("weight=0", "weight=0: expected a whole number from 1"),
            ("weight=4294967296", "expected a whole number from 1"),
            ("group=../a", "cannot be a group's name"),
            ("group=", "cannot be a group's name"),
            ("ro", "'ro' is not key=value, as in iops=2000"),
            ("iops=5, ro", "'ro' is not key=value"),
            ("", "no limit is given; there are iops, bandwidth"),
            ("oips=1", "no limit 'oips'; there are iops, bandwidth"),
        ] {
            let error = DiskLimits::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for (text, part) in [
            ("a:iops=1,group=b", "group: a group cannot be in a group"),
            ("a", "group a has no limit and no weight: give it bandwidth, iops or weight"),
            ("a:reserve_iops=5", "reserve_iops: a group has none; give it to its disks"),
            ("a:latency=5ms", "latency: a group has none"),
            ("a:weight=0", "weight=0: expected a whole number from 1"),
            ("a b:iops=1", "cannot be a group's name"),
            (":iops=1", "no name"),
            ("a:oips=1", "no limit 'oips'"),
        ] {
            let error = parse_group(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Limits::parse("group=a").unwrap_err().to_string().contains("cannot be in a group"));
    }

    /// docs/limits.md has each key with the names that it has elsewhere, and an error says ours.
    #[test]
    fn names_of_libvirt_and_qemu_are_translated() {
        let docs = include_str!("../../../../../docs/limits.md");
        let has_row = |[ours, libvirt, qemu, qmp]: Names, end: &str| {
            let row = match ours == libvirt {
                true => format!("| `{ours}` | | | |"),
                false => {
                    format!("| `{end}{ours}` | `{end}{libvirt}` | `{end}{qemu}` | `{end}{qmp}` |")
                }
            };
            assert!(docs.contains(&row), "docs/limits.md: no row {row}");
        };
        RATES.iter().for_each(|(.., names)| has_row(*names, ""));
        PARTS[1..].iter().for_each(|(_, ends)| has_row(*ends, "…"));
        OTHERS.iter().for_each(|(_, names)| has_row(*names, ""));
        for (text, part) in [
            ("total_iops_sec=5", "no limit 'total_iops_sec' (libvirt's name): write iops"),
            (
                "write_bytes_sec_max_length=5",
                "(libvirt's name): write write_bandwidth_burst_length",
            ),
            (
                "iops=5,bps-read-max=5",
                "no limit 'bps-read-max' (QEMU's name): write read_bandwidth_bu",
            ),
            ("size_iops_sec=5", "(libvirt's name): write iops_size"),
            ("group_name=a", "(libvirt's name): write group"),
            (
                "throttling.iops-total=5",
                "no limit 'throttling.iops-total' (QEMU's name): write iops",
            ),
            (
                "throttling-bps-write-max-length=5",
                "(QEMU's name): write write_bandwidth_burst_length",
            ),
            ("throttling.iops=5", "no limit 'throttling.iops' (QEMU's name): write iops"),
            ("throttling.group=a", "(QEMU's name): write group"),
            ("bps=5", "no limit 'bps' (QEMU's name): write bandwidth"),
            ("bps_rd=5", "(QEMU's name): write read_bandwidth"),
            ("iops_rd=5", "(QEMU's name): write read_iops"),
            ("bps_max=5", "(QEMU's name): write bandwidth_burst"),
            ("iops_wr_max_length=5", "(QEMU's name): write write_iops_burst_length"),
            ("throttling.total_iops_sec=5", "no limit 'throttling.total_iops_sec'; there are iops"),
        ] {
            let error = DiskLimits::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!((is_limit("iops_burst"), is_limit("weight")), (Ok(true), Ok(true)));
        assert_eq!((is_limit("throttling"), is_limit("")), (Ok(false), Ok(false)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is accepted prints as something that is read as the same.
        #[test]
        fn what_is_printed_is_read(pairs in prop::collection::vec((0usize..24, 0u64..3000), 0..8)) {
            let rates = RATES.iter().flat_map(|(.., names)| PARTS.map(|(_, ends)| [names[0], ends[0]].concat()));
            let keys: Vec<_> = rates.chain(OTHERS.iter().map(|(_, names)| names[0].to_string())).collect();
            let texts: Vec<String> = pairs
                .iter()
                .map(|(key, value)| match keys[*key].ends_with("length") {
                    true => format!("{}={value}s", keys[*key]),
                    false => format!("{}={value}", keys[*key]),
                })
                .collect();
            if let Ok(limits) = DiskLimits::parse(&texts.join(",")) {
                prop_assert_eq!(DiskLimits::parse(&limits.to_string()), Ok(limits));
            }
        }

        /// No text of up to 80 characters makes a parser panic.
        #[test]
        fn any_text_is_answered(text in "\\PC{0,80}") {
            let _ = (DiskLimits::parse(&text), parse_group(&text), Limits::parse(&text));
        }
    }
}
