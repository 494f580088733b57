//! Limits as text, `iops=2000,iops_burst=8000,burst_length=10s,group=tenant1`,
//! for the command line, the file, the control interface and `compare` alike.
//!
//! Each key may also be written as in libvirt's `<iotune>` and as in QEMU's
//! throttle groups. What cannot hold together is refused with the names as
//! they were written.

mod print;

use super::spec::{
    BURST_LENGTH_DEFAULT, BURST_LENGTH_MAX, BURST_LENGTH_MIN, DiskLimits, GroupName, LATENCY_MAX,
    LATENCY_MIN, Limits, RATE_MAX, Scope, Unit,
};
use crate::params::{ParamError, parse_bytes, parse_count, parse_duration, parse_spec};
use crate::scheduler::Reserve;
use crate::units::Nanos;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

/// The three numbers of one rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Rate,
    Burst,
    Length,
}

/// What a key sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Of(Unit, Scope, Part),
    /// The length of all bursts that have none of their own.
    BurstLength,
    IoSize,
    /// What it is to have at least.
    Least(Unit),
    Latency,
    Weight,
    Group,
}

use Key::*;
use Part::*;
use Scope::*;
use Unit::*;

/// All keys with their names: ours, libvirt's in `<iotune>`, QEMU's in
/// `throttling.*` and `throttle-group`. The first is that of help and output.
const KEYS: [(Key, [&str; 3]); 25] = [
    (Of(Iops, Total, Rate), ["iops", "total_iops_sec", "iops-total"]),
    (Of(Iops, Total, Burst), ["iops_burst", "total_iops_sec_max", "iops-total-max"]),
    (
        Of(Iops, Total, Length),
        ["iops_burst_length", "total_iops_sec_max_length", "iops-total-max-length"],
    ),
    (Of(Iops, Read, Rate), ["read_iops", "read_iops_sec", "iops-read"]),
    (Of(Iops, Read, Burst), ["read_iops_burst", "read_iops_sec_max", "iops-read-max"]),
    (
        Of(Iops, Read, Length),
        ["read_iops_burst_length", "read_iops_sec_max_length", "iops-read-max-length"],
    ),
    (Of(Iops, Write, Rate), ["write_iops", "write_iops_sec", "iops-write"]),
    (Of(Iops, Write, Burst), ["write_iops_burst", "write_iops_sec_max", "iops-write-max"]),
    (
        Of(Iops, Write, Length),
        ["write_iops_burst_length", "write_iops_sec_max_length", "iops-write-max-length"],
    ),
    (Of(Bytes, Total, Rate), ["bandwidth", "total_bytes_sec", "bps-total"]),
    (Of(Bytes, Total, Burst), ["bandwidth_burst", "total_bytes_sec_max", "bps-total-max"]),
    (
        Of(Bytes, Total, Length),
        ["bandwidth_burst_length", "total_bytes_sec_max_length", "bps-total-max-length"],
    ),
    (Of(Bytes, Read, Rate), ["read_bandwidth", "read_bytes_sec", "bps-read"]),
    (Of(Bytes, Read, Burst), ["read_bandwidth_burst", "read_bytes_sec_max", "bps-read-max"]),
    (
        Of(Bytes, Read, Length),
        ["read_bandwidth_burst_length", "read_bytes_sec_max_length", "bps-read-max-length"],
    ),
    (Of(Bytes, Write, Rate), ["write_bandwidth", "write_bytes_sec", "bps-write"]),
    (Of(Bytes, Write, Burst), ["write_bandwidth_burst", "write_bytes_sec_max", "bps-write-max"]),
    (
        Of(Bytes, Write, Length),
        ["write_bandwidth_burst_length", "write_bytes_sec_max_length", "bps-write-max-length"],
    ),
    (BurstLength, ["burst_length", "burst_length", "burst_length"]),
    (IoSize, ["iops_size", "size_iops_sec", "iops-size"]),
    (Least(Iops), ["reserve_iops", "reserve_iops", "reserve_iops"]),
    (Least(Bytes), ["reserve_bandwidth", "reserve_bandwidth", "reserve_bandwidth"]),
    (Latency, ["latency", "latency", "latency"]),
    (Weight, ["weight", "weight", "weight"]),
    (Group, ["group", "group_name", "group"]),
];

/// The names of all keys, for messages: those of reads and writes in short.
pub const KEYS_SHOWN: &str = "iops, bandwidth, iops_burst, bandwidth_burst, \
    iops_burst_length, bandwidth_burst_length (each also with read_ or write_ in front), \
    burst_length, iops_size, reserve_iops, reserve_bandwidth, latency, group";

/// All names that [`LimitsDraft::set`] takes: ours, libvirt's and QEMU's of one
/// key beside each other.
pub fn key_names() -> impl Iterator<Item = [&'static str; 3]> {
    KEYS.iter().map(|(_, names)| *names)
}

/// A value with the key as it was written.
#[derive(Clone, Copy, Debug)]
struct KeyedValue {
    name: &'static str,
    value: u64,
}

/// Limits that are being read, key by key, in any order.
#[derive(Clone, Default, Debug)]
pub struct LimitsDraft {
    /// By place in [`KEYS`]; times in nanoseconds.
    given: [Option<KeyedValue>; KEYS.len()],
    /// The value of [`Group`].
    group: Option<GroupName>,
}

impl LimitsDraft {
    /// Set one key; `false` when it is not a key of limits.
    ///
    /// # Errors
    /// What the value should be, or that it was given already.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, ParamError> {
        let find = |names: &[&'static str; 3]| names.iter().find(|n| **n == key).copied();
        let mut keys = KEYS.iter().enumerate();
        let found = keys.find_map(|(at, (key, names))| Some((at, *key, find(names)?)));
        let Some((at, key, name)) = found else { return Ok(false) };
        let value = match key {
            Of(unit, _, Rate | Burst) | Least(unit) => rate(name, unit, value)?,
            Of(_, _, Length) | BurstLength => length(name, value)?,
            IoSize => rate(name, Bytes, value)?,
            Latency => target(name, value)?,
            Weight => weight(name, value)?,
            Group => {
                if self.group.is_none() {
                    self.group = Some(GroupName::new(value)?);
                }
                0
            }
        };
        if let Some(before) = self.given[at] {
            return Err(twice(before.name, name));
        }
        self.given[at] = Some(KeyedValue { name, value });
        Ok(true)
    }

    /// The limits, if they can hold together.
    ///
    /// # Errors
    /// The two that contradict each other, or what one of them needs.
    pub fn finish(self) -> Result<DiskLimits, ParamError> {
        for unit in Unit::ALL {
            self.judge_scopes(unit)?;
            self.judge_reserve(unit)?;
        }
        let mut limits = Limits::default();
        for unit in Unit::ALL {
            for scope in Scope::ALL {
                limits.rates[unit as usize][scope as usize] = self.rate(unit, scope)?;
            }
        }
        let rates = || limits.rates.iter().flatten().flatten();
        let length = self.given(BurstLength);
        if let (Some(length), true) = (length, rates().all(|r| r.burst.is_none())) {
            let (length, example) = (length.name, self.example_of_burst());
            return Err(ParamError::new(format!("{length} needs a burst, such as {example}")));
        }
        if let Some(size) = self.given(IoSize) {
            if limits.rates[Iops as usize].iter().all(Option::is_none) {
                let needs = "needs a limit of IOPS: iops, read_iops or write_iops";
                return Err(ParamError::new(format!("{} {needs}", size.name)));
            }
            limits.io_size_bytes = NonZeroU64::new(size.value);
        }
        let [iops, bytes_per_s] =
            Unit::ALL.map(|unit| self.given(Least(unit)).map_or(0, |given| given.value));
        limits.reserve = Reserve { iops, bytes_per_s };
        limits.latency = self.given(Latency).map(|given| Nanos::new(given.value));
        limits.weight = self.given(Weight).and_then(|given| NonZeroU32::new(given.value as u32));
        Ok(DiskLimits { limits, group: self.group })
    }

    /// The limits of a group, which cannot be in a group itself.
    ///
    /// # Errors
    /// As [`LimitsDraft::finish`].
    pub fn finish_group(self) -> Result<Limits, ParamError> {
        if let Some(KeyedValue { name, .. }) = self.given(Group) {
            return Err(ParamError::new(format!("{name}: a group cannot be in a group")));
        }
        let promises = [Least(Iops), Least(Bytes), Latency];
        if let Some(given) = promises.into_iter().find_map(|key| self.given(key)) {
            let text = format!("{}: a group has none; give it to its disks", given.name);
            return Err(ParamError::new(text));
        }
        Ok(self.finish()?.limits)
    }

    fn given(&self, key: Key) -> Option<KeyedValue> {
        self.given[KEYS.iter().position(|(known, _)| *known == key)?]
    }

    /// The total and a direction cannot both be limited in the same unit.
    fn judge_scopes(&self, unit: Unit) -> Result<(), ParamError> {
        for part in [Rate, Burst] {
            let apart = [Read, Write].into_iter().find_map(|s| self.given(Of(unit, s, part)));
            if let (Some(total), Some(apart)) = (self.given(Of(unit, Total, part)), apart) {
                let (total, apart) = (total.name, apart.name);
                return Err(ParamError::new(format!(
                    "{total} and {apart} contradict: limit reads and writes together, or each apart"
                )));
            }
        }
        Ok(())
    }

    /// Nobody can have more at least than at most.
    fn judge_reserve(&self, unit: Unit) -> Result<(), ParamError> {
        let Some(reserve) = self.given(Least(unit)) else { return Ok(()) };
        match self.given(Of(unit, Total, Rate)) {
            Some(limit) if limit.value < reserve.value => Err(ParamError::new(format!(
                "{}={} is above {}={}: it could never be had",
                reserve.name, reserve.value, limit.name, limit.value
            ))),
            _ => Ok(()),
        }
    }

    fn rate(&self, unit: Unit, scope: Scope) -> Result<Option<super::Rate>, ParamError> {
        let [rate, burst, length] = [Rate, Burst, Length].map(|p| self.given(Of(unit, scope, p)));
        let needs = |given: KeyedValue, part| {
            let missing = name_of(Of(unit, scope, part));
            Err(ParamError::new(format!("{} needs {missing}", given.name)))
        };
        let (rate, burst) = match (rate, burst, length) {
            (_, None, Some(length)) => return needs(length, Burst),
            (None, Some(burst), _) => return needs(burst, Rate),
            (None, None, None) => return Ok(None),
            (Some(rate), None, None) => {
                return Ok(Some(super::Rate { per_s: rate.value, burst: None }));
            }
            (Some(rate), Some(burst), _) => (rate, burst),
        };
        if burst.value < rate.value {
            return Err(ParamError::new(format!(
                "{}={} is below {}={}: a burst is at least as fast",
                burst.name, burst.value, rate.name, rate.value
            )));
        }
        let length = length.or(self.given(BurstLength));
        let span = length.map_or(BURST_LENGTH_DEFAULT, |l| Nanos::new(l.value));
        let whole = u128::from(burst.value) * u128::from(span.get());
        if let (Some(length), true) = (length, whole > u128::from(RATE_MAX) * 1_000_000_000) {
            return Err(ParamError::new(format!(
                "{}={} is too long for {}={}: together they are at most {RATE_MAX}",
                length.name, span, burst.name, burst.value
            )));
        }
        let burst = super::Burst { per_s: burst.value, length: span };
        Ok(Some(super::Rate { per_s: rate.value, burst: Some(burst) }))
    }

    /// The name of a burst that fits to what is limited.
    fn example_of_burst(&self) -> &'static str {
        let limited = KEYS.iter().find_map(|(key, _)| match key {
            Of(unit, scope, Rate) => self.given(*key).map(|_| Of(*unit, *scope, Burst)),
            _ => None,
        });
        name_of(limited.unwrap_or(Of(Iops, Total, Burst)))
    }
}

/// Our own name of a key.
fn name_of(key: Key) -> &'static str {
    KEYS.iter().find(|(k, _)| *k == key).map_or("", |(_, names)| names[0])
}

fn twice(before: &str, now: &str) -> ParamError {
    ParamError::new(match before == now {
        true => format!("{now} is given twice"),
        false => format!("{before} and {now} are the same limit: give one of them"),
    })
}

/// A number of I/Os or bytes, 1 to [`RATE_MAX`].
fn rate(name: &str, unit: Unit, text: &str) -> Result<u64, ParamError> {
    let (value, most) = match unit {
        Iops => (parse_count(text), format!("{RATE_MAX}")),
        Bytes => (parse_bytes(text), "900TiB".into()),
    };
    let wrong = |why: &dyn fmt::Display| Err(ParamError::new(format!("{name}={text}: {why}")));
    match value {
        Ok(0) => wrong(&"at least 1; leave it out for no limit"),
        Ok(value) if value <= RATE_MAX => Ok(value),
        Ok(_) => wrong(&format!("at most {most}")),
        Err(e) => wrong(&e),
    }
}

/// A time in nanoseconds; a bare number is seconds, as in libvirt and QEMU.
fn length(name: &str, text: &str) -> Result<u64, ParamError> {
    let is_bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let span = if is_bare { parse_duration(&format!("{text}s")) } else { parse_duration(text) };
    let span = span.ok().filter(|s| (BURST_LENGTH_MIN..=BURST_LENGTH_MAX).contains(s));
    span.map(Nanos::get).ok_or_else(|| {
        ParamError::new(format!(
            "{name}={text}: expected a time such as 10s or 500ms, from 1ms to 1000h"
        ))
    })
}

/// A target of latency in nanoseconds.
fn target(name: &str, text: &str) -> Result<u64, ParamError> {
    let span = parse_duration(text).ok().filter(|s| (LATENCY_MIN..=LATENCY_MAX).contains(s));
    span.map(Nanos::get).ok_or_else(|| {
        let expected = format!("a time from {LATENCY_MIN} to {LATENCY_MAX}, such as 2ms");
        ParamError::new(format!("{name}={text}: expected {expected}"))
    })
}

fn weight(name: &str, text: &str) -> Result<u64, ParamError> {
    let weight = text.parse::<NonZeroU32>().ok().map(|w| u64::from(w.get()));
    weight.ok_or_else(|| ParamError::new(format!("{name}={text}: expected a whole number from 1")))
}

fn read(pairs: &[(&str, &str)]) -> Result<LimitsDraft, ParamError> {
    let mut draft = LimitsDraft::default();
    for (key, value) in pairs {
        if !draft.set(key, value)? {
            let key: String = key.escape_debug().take(100).collect();
            return Err(ParamError::new(format!("no limit '{key}'; there are {KEYS_SHOWN}")));
        }
    }
    Ok(draft)
}

/// `none`, which lifts all limits, or `key=value,key=value`.
fn read_pairs(text: &str) -> Result<LimitsDraft, ParamError> {
    if text.trim() == "none" {
        return Ok(LimitsDraft::default());
    }
    // Before the pairs a name has to stand; it is not looked at.
    let text = format!("limits:{text}");
    let spec = parse_spec(&text)?;
    if spec.given.is_empty() {
        return Err(ParamError::new(format!(
            "no limit is given; there are {KEYS_SHOWN}; write none to lift all"
        )));
    }
    read(&spec.given)
}

impl DiskLimits {
    /// Parse `iops=2000,group=tenant1`, or `none`.
    ///
    /// # Errors
    /// What is wrong and what there is.
    pub fn parse(text: &str) -> Result<DiskLimits, ParamError> {
        read_pairs(text)?.finish()
    }
}

impl Limits {
    /// Parse `iops=2000,bandwidth=100MiB`, or `none`: limits without a group.
    ///
    /// # Errors
    /// What is wrong and what there is.
    pub fn parse(text: &str) -> Result<Limits, ParamError> {
        read_pairs(text)?.finish_group()
    }
}

/// Parse a group with its limits, `tenant1:bandwidth=300MiB,iops=5000`.
///
/// # Errors
/// What is wrong and what there is.
pub fn parse_group(text: &str) -> Result<(GroupName, Limits), ParamError> {
    let spec = parse_spec(text)?;
    let name = GroupName::new(spec.name)?;
    let limits = read(&spec.given)?.finish_group()?;
    if limits.is_none() {
        return Err(ParamError::new(format!(
            "group {name} has no limit and no weight: write {name}:bandwidth=300MiB or {name}:weight=4"
        )));
    }
    Ok((name, limits))
}

#[cfg(test)]
mod tests;
