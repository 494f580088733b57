//! Parameters of policies and devices in one spelling,
//! `name:key=value,key=value`, for the command line, configuration files, the
//! control interface and experiments alike.
//!
//! Values: durations carry a unit (`8ms`, `6700us`, `2s`; a bare `0` is none);
//! sizes are bytes (`16MiB`, `64k`, `4096`); flags are `true` or `false`.
//! [`quantity`] has the units.

pub mod quantity;

pub use quantity::{parse_bytes, parse_count, parse_duration, parse_lba, parse_size};

use crate::units::{Nanos, Sectors};
use std::fmt;

/// Type and range of a parameter's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// A span of time, with a unit.
    Duration,
    /// As [`Kind::Duration`], or this word.
    DurationOr(&'static str),
    /// A length on the disk in whole sectors: bytes, with a unit or without.
    Size,
    /// Bytes, also a second, up to this number.
    Bytes(u64),
    /// A whole number in a range, both ends included.
    Count(u64, u64),
    /// A decimal number in a range, both ends included.
    Number(f64, f64),
    /// As [`Kind::Number`], or this word.
    NumberOr(f64, f64, &'static str),
    /// `true` or `false`; `1`, `on`, `yes`, `0`, `off` and `no` are read too.
    Flag,
    /// One of some words.
    Choice(&'static [&'static str]),
}

/// A parameter as a registry entry declares it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ParamSpec {
    /// The name before the equals sign.
    pub key: &'static str,
    /// Type and range of its values.
    pub kind: Kind,
    /// Its default, in the spelling of the command line.
    pub default: &'static str,
    /// One line for `--help` and the policy's page.
    pub help: &'static str,
}

/// A parameter's declaration, in one line.
pub const fn param(
    key: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> ParamSpec {
    ParamSpec { key, kind, default, help }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Value {
    Duration(Nanos),
    /// A word in place of a duration or a number.
    Word,
    Size(Sectors),
    Bytes(u64),
    Count(u64),
    Number(f64),
    Flag(bool),
    Choice(&'static str),
}

/// An error in a specification. The text says what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamError(String);

impl ParamError {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        ParamError(text.into())
    }
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl std::error::Error for ParamError {}

/// `name:key=value,key=value` taken apart; no registry has checked it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec<'a> {
    /// The part before the colon.
    pub name: &'a str,
    /// The pairs, as written.
    pub given: Vec<(&'a str, &'a str)>,
}

/// Longest duration that a parameter takes: sums and small multiples of it stay
/// far below the end of time.
pub const DURATION_MAX: Nanos = Nanos::from_secs(1_000 * 3_600);
/// Longest specification that is looked at, in bytes.
pub const SPEC_BYTES_MAX: usize = 4096;

/// Take a specification apart without looking at the names.
pub fn parse_spec(text: &str) -> Result<Spec<'_>, ParamError> {
    if text.len() > SPEC_BYTES_MAX {
        let n = text.len();
        return Err(ParamError(format!("specification of {n} bytes; at most {SPEC_BYTES_MAX}")));
    }
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let name = name.trim();
    if name.is_empty() {
        return Err(ParamError(format!("no name in '{text}': write name:key=value,key=value")));
    }
    let mut given: Vec<(&str, &str)> = Vec::new();
    for pair in rest.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(ParamError(format!("'{pair}' in '{text}' is not key=value")));
        };
        let (key, value) = (key.trim(), value.trim());
        if given.iter().any(|(k, _)| *k == key) {
            return Err(ParamError(format!("{key} is given twice in '{text}'")));
        }
        given.push((key, value));
    }
    Ok(Spec { name, given })
}

/// Split `noop,cfq:quantum=4,slice_idle=0,look` into its specifications: a
/// piece that is only `key=value` belongs to the specification before it.
pub fn split_specs(text: &str) -> Vec<String> {
    let mut specs: Vec<String> = Vec::new();
    for piece in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let name_ends = piece.find(':').unwrap_or(piece.len());
        match (piece.find('='), specs.last_mut()) {
            (Some(equals), Some(last)) if equals < name_ends => {
                last.push(if last.contains(':') { ',' } else { ':' });
                last.push_str(piece);
            }
            _ => specs.push(piece.to_string()),
        }
    }
    specs
}

/// The parameters of one registry entry with their values.
#[derive(Clone, PartialEq, Debug)]
pub struct Params {
    specs: &'static [ParamSpec],
    values: Vec<Value>,
    /// The given keys, with any value.
    given: Vec<&'static str>,
}

impl Params {
    /// The defaults. Panics when a declaration's own default does not parse.
    pub fn defaults(specs: &'static [ParamSpec]) -> Params {
        let parse = |s: &ParamSpec| match parse_value(s, s.default) {
            Ok(v) => v,
            Err(e) => panic!("the default of parameter {} is wrong: {e}", s.key),
        };
        Params { specs, values: specs.iter().map(parse).collect(), given: Vec::new() }
    }

    /// The defaults with some values replaced.
    pub fn with(
        specs: &'static [ParamSpec],
        name: &str,
        given: &[(&str, &str)],
    ) -> Result<Params, ParamError> {
        let mut params = Params::defaults(specs);
        for (key, value) in given {
            let Some(at) = specs.iter().position(|s| s.key == *key) else {
                return Err(unknown_key(specs, name, key));
            };
            params.values[at] = parse_value(&specs[at], value)?;
            params.given.push(specs[at].key);
        }
        // The order in which they were given is no difference.
        params.given.sort_unstable();
        Ok(params)
    }

    /// Was it given, be it the default? For a parameter that changes others' defaults.
    pub fn is_given(&self, key: &str) -> bool {
        self.given.contains(&key)
    }

    fn value(&self, key: &str) -> Value {
        match self.specs.iter().position(|s| s.key == key) {
            Some(at) => self.values[at],
            None => panic!("parameter {key} is not declared"),
        }
    }
    fn is_wrong(&self, key: &str) -> ! {
        panic!("parameter {key} is {:?}", self.value(key))
    }
    /// A duration. This and its siblings panic when the key is not declared
    /// with that kind: a programmer error that the registry's test finds.
    pub fn duration(&self, key: &str) -> Nanos {
        let Value::Duration(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// A duration; `None` when its word was given.
    pub fn duration_or_word(&self, key: &str) -> Option<Nanos> {
        (self.value(key) != Value::Word).then(|| self.duration(key))
    }
    /// A duration that has to lie in a range, both ends included.
    pub fn duration_within(
        &self,
        key: &str,
        least: Nanos,
        most: Nanos,
    ) -> Result<Nanos, ParamError> {
        match self.duration(key) {
            given if given < least => Err(ParamError(format!("{key}={given}: at least {least}"))),
            given if given > most => Err(ParamError(format!("{key}={given}: at most {most}"))),
            given => Ok(given),
        }
    }
    /// A size in sectors, from any unit.
    pub fn size(&self, key: &str) -> Sectors {
        let Value::Size(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// Bytes, from any unit.
    pub fn bytes(&self, key: &str) -> u64 {
        let Value::Bytes(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// A whole number within the declared range.
    pub fn count(&self, key: &str) -> u64 {
        let Value::Count(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// A decimal number within the declared range.
    pub fn number(&self, key: &str) -> f64 {
        let Value::Number(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// A decimal number; `None` when its word was given.
    pub fn number_or_word(&self, key: &str) -> Option<f64> {
        (self.value(key) != Value::Word).then(|| self.number(key))
    }
    /// A flag: is the parameter switched on?
    pub fn flag(&self, key: &str) -> bool {
        let Value::Flag(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// The word that was chosen, one of those declared.
    pub fn choice(&self, key: &str) -> &'static str {
        let Value::Choice(value) = self.value(key) else { self.is_wrong(key) };
        value
    }
    /// Is this parameter at its declared default?
    pub fn is_default(&self, key: &str) -> bool {
        let spec = self.specs.iter().find(|s| s.key == key);
        spec.is_some_and(|s| parse_value(s, s.default).ok() == Some(self.value(key)))
    }
}

fn unknown_key(specs: &[ParamSpec], name: &str, key: &str) -> ParamError {
    let known: Vec<&str> = specs.iter().map(|s| s.key).collect();
    ParamError(if known.is_empty() {
        format!("{name} takes no parameters, and '{key}' was given")
    } else {
        format!("{name} has no parameter '{key}'; it has {}", known.join(", "))
    })
}

fn parse_value(spec: &ParamSpec, text: &str) -> Result<Value, ParamError> {
    let refused = |why: &dyn fmt::Display| ParamError(format!("{}={text}: {why}", spec.key));
    let wrong =
        |expected: String| refused(&format!("expected {expected}, for example {}", spec.default));
    match spec.kind {
        Kind::Duration => match parse_duration(text) {
            Ok(span) if span <= DURATION_MAX => Ok(Value::Duration(span)),
            Ok(_) => Err(refused(&"at most 1000h")),
            Err(e) => Err(refused(&e)),
        },
        Kind::DurationOr(word) | Kind::NumberOr(_, _, word) if text == word => Ok(Value::Word),
        Kind::DurationOr(word) => {
            let plain = ParamSpec { kind: Kind::Duration, ..*spec };
            parse_value(&plain, text).map_err(|e| ParamError(format!("{e}; or {word}")))
        }
        Kind::NumberOr(low, high, word) => {
            let plain = ParamSpec { kind: Kind::Number(low, high), ..*spec };
            parse_value(&plain, text).map_err(|e| ParamError(format!("{e}; or {word}")))
        }
        Kind::Size => parse_size(text).map(Value::Size).map_err(|e| refused(&e)),
        Kind::Bytes(most) => match parse_bytes(text) {
            Ok(bytes) if bytes <= most => Ok(Value::Bytes(bytes)),
            Ok(_) => Err(refused(&format!("at most {most} bytes"))),
            Err(e) => Err(refused(&e)),
        },
        Kind::Count(low, high) => match parse_count(text) {
            Ok(n) if (low..=high).contains(&n) => Ok(Value::Count(n)),
            _ => Err(wrong(format!("a whole number from {low} to {high}"))),
        },
        Kind::Number(low, high) => match text.parse::<f64>() {
            Ok(n) if (low..=high).contains(&n) => Ok(Value::Number(n)),
            _ => Err(wrong(format!("a number from {low} to {high}"))),
        },
        Kind::Flag => match text {
            "true" | "1" | "on" | "yes" => Ok(Value::Flag(true)),
            "false" | "0" | "off" | "no" => Ok(Value::Flag(false)),
            _ => Err(wrong("true or false".into())),
        },
        Kind::Choice(words) => match words.iter().find(|w| **w == text) {
            Some(word) => Ok(Value::Choice(word)),
            None => Err(wrong(format!("one of {}", words.join(", ")))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SPECS: &[ParamSpec] = &[
        ParamSpec { key: "idle", kind: Kind::Duration, default: "8ms", help: "" },
        ParamSpec { key: "wait", kind: Kind::DurationOr("auto"), default: "auto", help: "" },
        ParamSpec { key: "back", kind: Kind::Size, default: "16MiB", help: "" },
        ParamSpec { key: "n", kind: Kind::Count(1, 9), default: "4", help: "" },
        ParamSpec { key: "rate", kind: Kind::Bytes(1 << 30), default: "0", help: "" },
        ParamSpec { key: "form", kind: Kind::Choice(&["a", "b"]), default: "a", help: "" },
    ];

    fn check(text: &str) -> Result<Params, String> {
        let spec = parse_spec(text).map_err(|e| e.to_string())?;
        Params::with(SPECS, spec.name, &spec.given).map_err(|e| e.to_string())
    }

    #[test]
    fn values_replace_defaults() {
        let p = check("cfq:idle=6.7ms, n=9, rate=4KiB").unwrap();
        assert_eq!(p.bytes("rate"), 4096);
        assert_eq!(p.duration("idle"), Nanos::from_micros(6_700));
        assert_eq!((p.size("back"), p.count("n")), (Sectors::new(32_768), 9));
        assert!(p.is_default("back") && !p.is_default("n"));
        assert_eq!(check("cfq").unwrap().choice("form"), "a");
        assert_eq!(check("cfq").unwrap().duration_or_word("wait"), None);
        let given = check("cfq:wait=7ms").unwrap();
        assert_eq!(given.duration_or_word("wait"), Some(Nanos::from_millis(7)));
        assert!(!given.is_default("wait"));
        assert_eq!(check("cfq:n=9,rate=4KiB").unwrap(), check("cfq:rate=4KiB,n=9").unwrap());
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, part) in [
            ("cfq:idel=8ms", "has no parameter 'idel'; it has idle, wait, back, n, rate, form"),
            ("cfq:idle=8", "idle=8: expected a time with its unit"),
            ("cfq:wait=8", "wait=8: expected a time with its unit"),
            ("cfq:back=2000", "write 2000s for 2000 sectors"),
            ("cfq:back=1MB", "write MiB"),
            ("cfq:rate=1e9", "rate=1e9: expected bytes with a unit"),
            ("cfq:rate=2GiB", "at most 1073741824 bytes"),
            ("cfq:wait=never", "; or auto"),
            ("cfq:n=10", "from 1 to 9"),
            ("cfq:n=1,n=2", "given twice"),
            ("cfq:n", "not key=value"),
            ("cfq:form=c", "one of a, b"),
            (":n=1", "no name"),
            ("cfq:idle=1001h", "at most 1000h"),
        ] {
            let error = check(text).map(|_| ()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_range_of_durations_is_refused_by_name() {
        let p = check("cfq:idle=11s").unwrap();
        let within = |low, high| {
            let range = (Nanos::from_millis(low), Nanos::from_millis(high));
            p.duration_within("idle", range.0, range.1).map_err(|e| e.to_string())
        };
        assert_eq!(within(0, 11_000), Ok(Nanos::from_secs(11)));
        assert_eq!(within(0, 10_000), Err("idle=11s: at most 10s".into()));
        assert_eq!(within(12_000, 20_000), Err("idle=11s: at least 12s".into()));
    }

    #[test]
    fn lists_of_specifications_split_at_names() {
        let split = |text: &str| split_specs(text).join(" | ");
        assert_eq!(split("noop,cfq:a=1,b=2, look"), "noop | cfq:a=1,b=2 | look");
        assert_eq!(split("cfq,a=1"), "cfq:a=1");
        assert_eq!(split(",,"), "");
    }
}
