//! How limits are written: in our own names, as they are read again.

use super::super::spec::Unit::{Bytes, Iops};
use super::super::spec::{BURST_LENGTH_DEFAULT, DiskLimits, Limits, Scope, Unit};
use super::Key::{IoSize, Latency, Least, Of, Weight};
use super::Part::{Burst, Length, Rate};
use super::name_of;
use crate::scheduler::Reserve;
use std::fmt;

/// Bytes in the largest unit that is exact.
struct Exact(u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.iter().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => self.0.fmt(f),
        }
    }
}

/// The pairs of limits in our own names, each after `before`.
fn write_pairs(f: &mut fmt::Formatter<'_>, limits: &Limits) -> Result<bool, fmt::Error> {
    let mut some = false;
    let mut pair = |f: &mut fmt::Formatter<'_>, key, value: &dyn fmt::Display| {
        let comma = if std::mem::replace(&mut some, true) { "," } else { "" };
        write!(f, "{comma}{}={value}", name_of(key))
    };
    for unit in Unit::ALL {
        for scope in Scope::ALL {
            let Some(rate) = limits.rate(unit, scope) else { continue };
            let mut number = |f: &mut fmt::Formatter<'_>, part, value| match unit {
                Iops => pair(f, Of(unit, scope, part), &value),
                Bytes => pair(f, Of(unit, scope, part), &Exact(value)),
            };
            number(f, Rate, rate.per_s)?;
            if let Some(burst) = rate.burst {
                number(f, Burst, burst.per_s)?;
                if burst.length != BURST_LENGTH_DEFAULT {
                    pair(f, Of(unit, scope, Length), &burst.length)?;
                }
            }
        }
    }
    if let Some(size) = limits.io_size_bytes {
        pair(f, IoSize, &Exact(size.get()))?;
    }
    let Reserve { iops, bytes_per_s } = limits.reserve;
    if iops > 0 {
        pair(f, Least(Iops), &iops)?;
    }
    if bytes_per_s > 0 {
        pair(f, Least(Bytes), &Exact(bytes_per_s))?;
    }
    if let Some(latency) = limits.latency {
        pair(f, Latency, &latency)?;
    }
    if let Some(weight) = limits.weight {
        pair(f, Weight, &weight)?;
    }
    Ok(some)
}

impl fmt::Display for Limits {
    /// The text that [`Limits::parse`] reads; `none` for no limits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !write_pairs(f, self)? {
            f.write_str("none")?;
        }
        Ok(())
    }
}

impl fmt::Display for DiskLimits {
    /// The text that [`DiskLimits::parse`] reads; `none` for no limits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.group, write_pairs(f, &self.limits)?) {
            (Some(group), some) => write!(f, "{}group={group}", if some { "," } else { "" }),
            (None, true) => Ok(()),
            (None, false) => f.write_str("none"),
        }
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
