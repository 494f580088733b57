//! Numbers with units, the one way in which times, sizes, rates and counts are written: on command
//! lines, in files, in the control interface and in parameters.
//!
//! | quantity | units | a bare number |
//! | :-- | :-- | :-- |
//! | time | `ns`, `us`, `ms`, `s`, `min` (`m`), `h` | refused, but for 0 |
//! | size, rate | `KiB` (`K`), `MiB` (`M`), `GiB`, `TiB`, `PiB`: powers of 1024; `B`; on a disk `s`: sectors of 512 bytes | bytes |
//! | place on a disk (LBA) | as sizes | the number of a sector |
//! | count | `k` (`K`), `M`, `G`: powers of 1000 | the count |
//!
//! Numbers are decimal, with a point where the unit can be divided: `1.5GiB`, and no signs and no
//! exponents. The case of a size's unit does not matter. `KB`, `MB`, `GB` and `TB` are refused: some
//! programs mean powers of 1000 by them, others powers of 1024.

use super::ParamError;
use crate::units::{Lba, Nanos, SECTOR_BYTES, Sectors};

const TIME: &str = "a time with its unit (ns, us, ms, s, min, h), such as 500ms";
const SIZE: &str =
    "bytes with a unit (KiB, MiB, GiB, TiB), such as 20GiB, or a bare number of bytes";
const COUNT: &str = "a whole number, in which k is 1000 and M is 1000000";

fn expected(what: &str) -> ParamError {
    ParamError::new(format!("expected {what}"))
}

/// Split a number from the unit behind it, with or without spaces between them.
fn split_unit(text: &str) -> (&str, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    // A space without a unit behind it is no part of a number.
    let trimmed = unit.trim_start_matches(' ');
    (number, if trimmed.is_empty() { unit } else { trimmed })
}

/// `number · scale`, rounded to a whole; `Ok(None)` when it does not fit, an error when it is no
/// number.
fn scaled(number: &str, scale: u64) -> Result<Option<u64>, ()> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return Err(());
    }
    // More digits than these do not change a product that fits.
    let fraction = &fraction[..fraction.len().min(18)];
    let whole = match whole.trim_start_matches('0') {
        "" => Some(0),
        whole => whole.parse::<u64>().ok(),
    };
    let unit = 10_u128.pow(fraction.len() as u32);
    let part = fraction.parse::<u64>().unwrap_or(0);
    let part = (u128::from(part) * u128::from(scale) + unit / 2) / unit;
    let product = whole.and_then(|n| (u128::from(n) * u128::from(scale)).checked_add(part));
    Ok(product.and_then(|n| u64::try_from(n).ok()))
}

fn read(number: &str, scale: u64, what: &str) -> Result<u64, ParamError> {
    match scaled(number, scale) {
        // A positive number never becomes zero.
        Ok(Some(0)) if number.bytes().any(|b| matches!(b, b'1'..=b'9')) => {
            Err(ParamError::new(format!("too small: expected {what}")))
        }
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(ParamError::new(format!("too large: expected {what}"))),
        Err(()) => Err(expected(what)),
    }
}

/// A duration with its unit: `8ms`, `6.7ms`, `2s`; a bare `0` needs none.
///
/// # Errors
/// Names the expected form, without the text.
pub fn parse_duration(text: &str) -> Result<Nanos, ParamError> {
    let (number, unit) = split_unit(text);
    let scale = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if number == "0" => 1,
        _ => return Err(expected(TIME)),
    };
    read(number, scale, TIME).map(Nanos::new)
}

/// Bytes, also of a rate: a bare number, or one with a unit (`64k` = `64KiB` = 65,536).
///
/// # Errors
/// Names the expected form, without the text.
pub fn parse_bytes(text: &str) -> Result<u64, ParamError> {
    let (number, unit) = split_unit(text);
    bytes(number, unit)
}

fn bytes(number: &str, unit: &str) -> Result<u64, ParamError> {
    let scale = match unit.to_ascii_lowercase().as_str() {
        // There is no part of a byte.
        "" | "b" if number.contains('.') => return Err(expected(SIZE)),
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        prefix @ ("kb" | "mb" | "gb" | "tb" | "pb") => {
            let prefix = prefix[..1].to_ascii_uppercase();
            return Err(ParamError::new(format!(
                "{prefix}B are powers of 1000 for some programs and of 1024 for others: write \
                 {prefix}iB, or the number of bytes"
            )));
        }
        _ => return Err(expected(SIZE)),
    };
    read(number, scale, SIZE)
}

/// A size on a disk, in sectors: bytes with a unit (rounded up to sectors), or a bare number of
/// bytes, which is a multiple of 512.
///
/// # Errors
/// Names the expected form, without the text.
pub fn parse_size(text: &str) -> Result<Sectors, ParamError> {
    let bytes = bytes_or_sectors(text)?;
    let is_bare = text.bytes().all(|b| b.is_ascii_digit());
    if is_bare && !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(ParamError::new(format!(
            "a bare number is bytes, here a multiple of {SECTOR_BYTES}: write {text}s for \
             {text} sectors"
        )));
    }
    Ok(Sectors::from_bytes(bytes))
}

/// Bytes of a quantity in sectors, for which `s` is a unit.
fn bytes_or_sectors(text: &str) -> Result<u64, ParamError> {
    match split_unit(text) {
        (number, "s" | "S") => read(number, SECTOR_BYTES, SIZE),
        (number, unit) => bytes(number, unit),
    }
}

/// Parses an offset on a disk: the number of a sector, or bytes with a unit that are whole sectors.
///
/// # Errors
/// Names the expected form, without the text.
pub fn parse_lba(text: &str) -> Result<Lba, ParamError> {
    const PLACE: &str = "the number of a sector, or bytes with a unit such as 1GiB";
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return read(text, 1, PLACE).map(Lba::new);
    }
    match bytes_or_sectors(text) {
        Ok(bytes) if bytes.is_multiple_of(SECTOR_BYTES) => Ok(Lba::new(bytes / SECTOR_BYTES)),
        Err(e) if e != expected(SIZE) => Err(e),
        _ => Err(expected(PLACE)),
    }
}

/// Parses a count: `2000`, `16k` (16,000), `1.5M`.
///
/// # Errors
/// Names the expected form, without the text.
pub fn parse_count(text: &str) -> Result<u64, ParamError> {
    let (number, unit) = split_unit(text);
    let scale: u64 = match unit {
        "" if number.contains('.') => return Err(expected(COUNT)),
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(expected(COUNT)),
    };
    let fraction = number.split_once('.').map_or("", |(_, fraction)| fraction);
    let is_whole = fraction.trim_end_matches('0').len() <= scale.ilog10() as usize;
    if is_whole { read(number, scale, COUNT) } else { Err(expected(COUNT)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, String> {
        parse_bytes(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_bare_number_is_bytes() {
        assert_eq!(bytes("134217728"), Ok(134_217_728));
        assert_eq!(parse_size("134217728"), Ok(Sectors::new(262_144)));
        assert_eq!(parse_size("0"), Ok(Sectors::ZERO));
        // Sectors need their unit.
        let error = parse_size("2000").unwrap_err().to_string();
        assert!(error.contains("2000s for 2000 sectors"), "{error}");
        assert_eq!(parse_size("2000s"), Ok(Sectors::new(2000)));
        // An offset is the number of a sector, as in traces and in JSON.
        assert_eq!(parse_lba("2048"), Ok(Lba::new(2048)));
        assert_eq!(parse_lba("1MiB"), Ok(Lba::new(2048)));
        for wrong in ["1000b", "1k5", "-1", "", "1.5"] {
            assert!(parse_lba(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn units_of_bytes_are_powers_of_1024() {
        for (text, expected) in [
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("64KiB", 64 << 10),
            ("10M", 10 << 20),
            ("10m", 10 << 20),
            ("12g", 12 << 30),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.1GiB", 107_374_182),
            ("3T", 3 << 40),
            ("16383PiB", 16_383 << 50),
            ("00512", 512),
            ("7B", 7),
            ("18446744073709551615", u64::MAX),
            ("0.000000001TiB", 1_100),
            ("9007199254740993.0KiB", 9_007_199_254_740_993 << 10),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        // Half a sector is a sector.
        assert_eq!(parse_size("100B"), Ok(Sectors::new(1)));
        assert_eq!(parse_size("1.3KiB"), Ok(Sectors::new(3)));
    }

    #[test]
    fn what_cannot_be_told_is_refused_with_the_reason() {
        for (text, part) in [
            ("10MB", "MB are powers of 1000 for some programs and of 1024 for others: write MiB"),
            ("1gb", "write GiB"),
            ("", "a bare number of bytes"),
            ("1.5", "a bare number of bytes"),
            ("1e9", "a bare number of bytes"),
            ("-1", "a bare number of bytes"),
            ("+1", "a bare number of bytes"),
            ("0x10", "a bare number of bytes"),
            ("NaN", "a bare number of bytes"),
            ("inf", "a bare number of bytes"),
            ("1,5GiB", "a bare number of bytes"),
            ("1_000", "a bare number of bytes"),
            ("1.2.3k", "a bare number of bytes"),
            (".", "a bare number of bytes"),
            ("GiB", "a bare number of bytes"),
            ("1 ", "a bare number of bytes"),
            (" 1", "a bare number of bytes"),
            ("1GiB ", "a bare number of bytes"),
            ("1Gib/s", "a bare number of bytes"),
            ("20Q", "20GiB"),
            ("10s", "a bare number of bytes"),
            ("0.0001k", "too small"),
            ("16384PiB", "too large"),
            ("18446744073709551616", "too large"),
            ("99999999999999999999999999999999999999999T", "too large"),
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn times_have_their_units() {
        for (text, expected) in [
            ("0", Nanos::ZERO),
            ("0s", Nanos::ZERO),
            ("15ns", Nanos::new(15)),
            ("6.7ms", Nanos::from_micros(6_700)),
            ("12.5 s", Nanos::from_millis(12_500)),
            ("5m", Nanos::from_secs(300)),
            ("5min", Nanos::from_secs(300)),
            ("1000h", Nanos::from_secs(3_600_000)),
            (".5s", Nanos::from_millis(500)),
        ] {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
        for (text, part) in [
            ("", "a time with its unit"),
            ("ms", "a time with its unit"),
            ("1", "a time with its unit"),
            ("00", "a time with its unit"),
            ("-1ms", "a time with its unit"),
            ("1e99s", "a time with its unit"),
            ("1.2.3s", "a time with its unit"),
            ("1MS", "a time with its unit"),
            ("1d", "a time with its unit"),
            ("0.1ns", "too small"),
            ("99999999999999s", "too large"),
        ] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn counts_are_whole_and_their_units_powers_of_1000() {
        for (text, expected) in [
            ("2000", 2000),
            ("16k", 16_000),
            ("1K", 1000),
            ("1.5M", 1_500_000),
            ("2G", 2_000_000_000),
        ] {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for wrong in
            ["", "k", "-1", "1.5", "1.2345k", "1ki", "1m", "1e3", "1,000", "NaN", "20000000000G"]
        {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }
}
