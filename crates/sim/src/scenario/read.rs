//! Scenarios from TOML. A list where one value is expected is an axis: every combination is a run.
//! A `[[case]]` changes several keys at once and may have axes of its own.
//!
//! All this happens on the parsed text, before any key has a type: so each key can be an axis, and
//! an error says where in the text it is.

use super::Scenario;
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::params::{parse_bytes, parse_duration, parse_lba, parse_size};
use seekway_core::units::{Lba, Nanos, Sectors};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Longest scenario that is read, in bytes.
pub const SCENARIO_BYTES_MAX: u64 = 1 << 20;
/// Most combinations of all axes but the seed's.
const SCENARIOS_MAX: usize = 10_000;
/// Most runs of a scenario with all its axes and cases.
const RUNS_MAX: usize = 100_000;
/// Most text of all combinations together, in bytes: read, it takes up to a hundred times as much.
const TEXT_BYTES_MAX: usize = 1 << 24;

/// Keys that are lists. All others take one value: there a list is an axis.
const LISTS: &[&str] = &[
    "case",
    "vm",
    "vm.load",
    "vm.disk",
    "vm.task",
    "vm.task.allowed",
    "group",
    "weights",
    "images.at",
    "outcome.tables",
];
/// Axes in this order are the outermost; the others follow in the order of the text.
const OUTERMOST: &[&str] = &["policy", "cache", "limits", "cpu"];
/// Axes that runs are named by; other axes are added to a run's name.
const NAMED_ANYWAY: &[&str] = &[
    "policy",
    "cache",
    "cache.size",
    "cache.prefetch",
    "limits",
    "cpu",
    "cpu.count",
    "cpu.slice",
    "cpu.jitter",
    "cpu.cut",
    "cpu.switch",
    "cpu.completes",
    "cpu.agent",
];

type Value<'t> = Spanned<DeValue<'t>>;
type Table<'t> = DeTable<'t>;

/// A combination of axes but for the seed, with its seeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Study {
    /// With the first of the seeds.
    pub scenario: Scenario,
    pub seeds: Vec<u64>,
}

/// Reads a text file that should be short: a path may be one without an end.
///
/// # Errors
/// The file cannot be read, is no text, or is longer than `bytes_max`.
pub fn text_of_file(path: &Path, bytes_max: u64) -> Result<String> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > bytes_max {
        bail!("{}: longer than {bytes_max} bytes", path.display());
    }
    Ok(text)
}

/// Reads a file with a scenario: its combinations, the outermost axis first.
///
/// # Errors
/// The file cannot be read or is too long, or as [`study`].
pub fn study_of_file(path: &Path) -> Result<Vec<Study>> {
    let shown = path.display().to_string();
    let file = File::open(path).with_context(|| shown.clone())?;
    let mut bytes = Vec::new();
    file.take(SCENARIO_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| shown.clone())?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let (line, column) = place(&e.as_bytes()[..good], good);
        anyhow!("{shown}:{line}:{column}: not UTF-8: is this a scenario in TOML?")
    })?;
    study(&text, Some(&shown))
}

/// Reads a scenario: its combinations, the outermost axis first. Errors say where in `file` they
/// are, if the text has one.
///
/// # Errors
/// For text that is no TOML, for unknown keys and wrong values, and for too many runs.
pub fn study(text: &str, file: Option<&str>) -> Result<Vec<Study>> {
    let reading = Reading { text, file };
    if text.len() as u64 > SCENARIO_BYTES_MAX {
        let shown = file.unwrap_or("scenario");
        bail!("{shown}: longer than {SCENARIO_BYTES_MAX} bytes: is this a scenario?");
    }
    let root = DeTable::parse(text).map_err(|e| reading.toml("", 0, &e))?;
    let span = root.span();
    let mut root = root.into_inner();
    let cases = reading.cases(&mut root)?;
    let mut all: Vec<Study> = Vec::new();
    for (name, case) in cases {
        let mut root = root.clone();
        merge(&mut root, case);
        let seeds = reading.seeds(&mut root)?;
        let root = Spanned::new(span.clone(), DeValue::Table(root));
        for made in reading.expand(&root, "")? {
            let mut scenario = reading.scenario(made.value)?;
            let parts = [scenario.name.clone(), name.clone()].into_iter().chain(made.names);
            scenario.name = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
            scenario.seed = seeds[0];
            let known = |known: &&Study| known.scenario == scenario && known.seeds == seeds;
            // Without a cache there is nothing to prefetch into: one run, not one a prefetcher.
            if !all.iter().rev().take(SCENARIOS_MAX).any(|study| known(&study)) {
                all.push(Study { scenario, seeds: seeds.clone() });
            }
            reading.judge_count(&all)?;
        }
    }
    Ok(all)
}

/// A text while it is read.
struct Reading<'r> {
    text: &'r str,
    file: Option<&'r str>,
}

/// One combination of a value's axes.
struct Made<'t> {
    value: Value<'t>,
    /// Chosen values that name a run.
    names: Vec<String>,
}

impl<'t> Reading<'t> {
    /// An error about the item at this byte.
    fn at(&self, byte: usize, what: impl std::fmt::Display) -> anyhow::Error {
        let (line, column) = place(self.text.as_bytes(), byte);
        match self.file {
            Some(file) => anyhow!("{file}:{line}:{column}: {what}"),
            None => anyhow!("{what}"),
        }
    }

    /// An error of the library about the table with this key that begins at this byte.
    fn toml(&self, table: &str, begin: usize, error: &toml::de::Error) -> anyhow::Error {
        let shown = error.to_string();
        let key = shown.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
        let path: Vec<&str> = [table].into_iter().chain(key).filter(|k| !k.is_empty()).collect();
        let key = if path.is_empty() { String::new() } else { format!("{}: ", path.join(".")) };
        self.at(error.span().map_or(begin, |span| span.start), format!("{key}{}", error.message()))
    }

    fn scenario(&self, value: Value<'t>) -> Result<Scenario> {
        let span = value.span();
        let DeValue::Table(mut table) = value.into_inner() else {
            unreachable!("the root is a table")
        };
        // One by one: an error about a whole element would otherwise have the position of the
        // first.
        let vm = self.elements("vm", table.remove("vm"))?;
        let group = self.elements("group", table.remove("group"))?;
        let from = toml::de::Deserializer::from(Spanned::new(span, table));
        let scenario = Scenario::deserialize(from).map_err(|e| self.toml("", 0, &e))?;
        Ok(Scenario { vm: Arc::new(vm), group, ..scenario })
    }

    /// The elements of a list of tables.
    fn elements<T: DeserializeOwned>(&self, key: &str, list: Option<Value<'t>>) -> Result<Vec<T>> {
        let Some(list) = list else { return Ok(Vec::new()) };
        let expected = |at| self.at(at, format!("{key}: expected [[{key}]] with its keys"));
        let start = list.span().start;
        let DeValue::Array(list) = list.into_inner() else { return Err(expected(start)) };
        let element = |one: Value<'t>| {
            let span = one.span();
            let DeValue::Table(table) = one.into_inner() else { return Err(expected(span.start)) };
            let begin = span.start;
            let from = toml::de::Deserializer::from(Spanned::new(span, table));
            T::deserialize(from).map_err(|e| self.toml(key, begin, &e))
        };
        list.into_iter().map(element).collect()
    }

    /// The cases with their names, taken out of `root`; one without changes if there is none.
    fn cases(&self, root: &mut Table<'t>) -> Result<Vec<(String, Table<'t>)>> {
        let Some(cases) = root.remove("case") else {
            return Ok(vec![(String::new(), Table::new())]);
        };
        let wrong = |at: &Value<'t>, what: &str| self.at(at.span().start, what.to_string());
        let DeValue::Array(list) = cases.get_ref() else {
            return Err(wrong(&cases, "case: expected [[case]] with a name and changes"));
        };
        if list.is_empty() || list.len() > SCENARIOS_MAX {
            return Err(wrong(&cases, &format!("case: expected 1 to {SCENARIOS_MAX} cases")));
        }
        if list.len().saturating_mul(self.text.len()) > TEXT_BYTES_MAX {
            return Err(wrong(&cases, "case: too many for a text of this length: give fewer"));
        }
        let mut made: Vec<(String, Table<'t>)> = Vec::new();
        for case in list.iter() {
            let DeValue::Table(table) = case.get_ref() else {
                return Err(wrong(case, "case: expected a table with a name and changes"));
            };
            let mut table = table.clone();
            let name = table.remove("name");
            let text = name.as_ref().and_then(|name| match name.get_ref() {
                DeValue::String(text) if !text.trim().is_empty() => Some(text.trim().to_string()),
                _ => None,
            });
            let Some(text) = text else {
                return Err(wrong(name.as_ref().unwrap_or(case), "case.name: give each a name"));
            };
            if made.iter().any(|(known, _)| *known == text) {
                let twice = format!("case.name: '{text}' is there already; names differ");
                return Err(wrong(name.as_ref().unwrap_or(case), &twice));
            }
            if let Some(inner) = table.get("case") {
                return Err(wrong(inner, "case: a case cannot have cases"));
            }
            made.push((text, table));
        }
        Ok(made)
    }

    /// The seeds, taken out of `root`: the innermost axis.
    fn seeds(&self, root: &mut Table<'t>) -> Result<Vec<u64>> {
        let Some(value) = root.remove("seed") else { return Ok(vec![1]) };
        let list = match value.get_ref() {
            DeValue::Array(list) => list.iter().collect(),
            _ => vec![&value],
        };
        if list.is_empty() || list.len() > RUNS_MAX {
            let expected = format!("seed: expected a number, or a list of 1 to {RUNS_MAX}");
            return Err(self.at(value.span().start, expected));
        }
        let mut seeds = Vec::with_capacity(list.len());
        for one in list {
            let number = match one.get_ref() {
                DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
                _ => None,
            };
            seeds.push(number.ok_or_else(|| {
                self.at(one.span().start, "seed: expected a whole number of at least 0")
            })?);
        }
        let mut sorted = seeds.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            return Err(self.at(value.span().start, "seed: one is given twice"));
        }
        Ok(seeds)
    }

    /// All combinations of the axes in `value`, which is at `path`.
    fn expand(&self, value: &Value<'t>, path: &str) -> Result<Vec<Made<'t>>> {
        match value.get_ref() {
            // A profile has lists of its own.
            DeValue::Table(_) if path == "device.profile" => Ok(vec![Made::plain(value)]),
            DeValue::Table(table) => self.expand_table(value, table, path),
            DeValue::Array(list) => {
                let is_axis = match LISTS.contains(&path) {
                    true => list.iter().any(|one| matches!(one.get_ref(), DeValue::Array(_))),
                    false => true,
                };
                if !is_axis {
                    return self.expand_list(value, path);
                }
                if list.is_empty() {
                    let none = format!("{path}: an empty list: give at least one value");
                    return Err(self.at(value.span().start, none));
                }
                let mut all = Vec::new();
                for (n, one) in list.iter().enumerate() {
                    all.extend(self.expand_choice(one, path, n)?);
                    self.judge_combinations(value, path, all.len())?;
                }
                Ok(all)
            }
            _ => Ok(vec![Made::plain(value)]),
        }
    }

    /// The combinations of the `n`-th value of an axis.
    fn expand_choice(&self, one: &Value<'t>, path: &str, n: usize) -> Result<Vec<Made<'t>>> {
        let mut made = match one.get_ref() {
            DeValue::Array(_) if LISTS.contains(&path) => self.expand_list(one, path)?,
            DeValue::Array(_) => {
                let twice = format!("{path}: a list in a list: an axis is one list of values");
                return Err(self.at(one.span().start, twice));
            }
            _ if LISTS.contains(&path) => {
                let mixed = format!("{path}: lists beside single values: an axis has lists only");
                return Err(self.at(one.span().start, mixed));
            }
            _ => self.expand(one, path)?,
        };
        if !NAMED_ANYWAY.contains(&path) {
            let shown = match one.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.as_str().to_string(),
                DeValue::Float(number) => number.as_str().to_string(),
                DeValue::Boolean(flag) => flag.to_string(),
                _ => format!("#{}", n + 1),
            };
            made.iter_mut().for_each(|made| made.names.insert(0, format!("{path}={shown}")));
        }
        Ok(made)
    }

    fn expand_table(
        &self,
        whole: &Value<'t>,
        table: &Table<'t>,
        path: &str,
    ) -> Result<Vec<Made<'t>>> {
        let mut keys: Vec<_> = table.iter().collect();
        let rank = |key: &str| OUTERMOST.iter().position(|known| *known == key);
        keys.sort_by_key(|(key, _)| {
            let rank = if path.is_empty() { rank(key.get_ref()) } else { None };
            (rank.unwrap_or(OUTERMOST.len()), key.span().start)
        });
        let mut all = vec![(Table::new(), Vec::new())];
        for (key, value) in keys {
            let inner = match path {
                "" => Cow::Borrowed(key.get_ref().as_ref()),
                path => Cow::Owned(format!("{path}.{}", key.get_ref())),
            };
            let choices = self.expand(value, &inner)?;
            self.judge_combinations(value, &inner, all.len() * choices.len())?;
            let mut next = Vec::with_capacity(all.len() * choices.len());
            for (table, names) in all {
                for made in &choices {
                    let (mut table, mut names): (Table<'t>, Vec<String>) =
                        (table.clone(), names.clone());
                    table.insert(key.clone(), made.value.clone());
                    names.extend(made.names.iter().cloned());
                    next.push((table, names));
                }
            }
            all = next;
        }
        let made = |(table, names)| Made {
            value: Spanned::new(whole.span(), DeValue::Table(table)),
            names,
        };
        Ok(all.into_iter().map(made).collect())
    }

    fn expand_list(&self, whole: &Value<'t>, path: &str) -> Result<Vec<Made<'t>>> {
        let DeValue::Array(list) = whole.get_ref() else { return Ok(vec![Made::plain(whole)]) };
        let mut all: Vec<(Vec<Value<'t>>, Vec<String>)> = vec![(Vec::new(), Vec::new())];
        for one in list.iter() {
            let choices = self.expand(one, path)?;
            self.judge_combinations(one, path, all.len() * choices.len())?;
            let join = |(list, names): &(Vec<Value<'t>>, Vec<String>), made: &Made<'t>| {
                let list = list.iter().cloned().chain([made.value.clone()]).collect();
                (list, names.iter().chain(&made.names).cloned().collect())
            };
            // Most have one choice: the list is not copied for those.
            if let [only] = choices.as_slice() {
                for (list, names) in &mut all {
                    list.push(only.value.clone());
                    names.extend(only.names.iter().cloned());
                }
                continue;
            }
            all = all.iter().flat_map(|known| choices.iter().map(|c| join(known, c))).collect();
        }
        let made = |(list, names): (Vec<Value<'t>>, _)| Made {
            value: Spanned::new(whole.span(), DeValue::Array(list.into_iter().collect())),
            names,
        };
        Ok(all.into_iter().map(made).collect())
    }

    /// Refuses combinations beyond the limits before they are made.
    fn judge_combinations(&self, at: &Value<'t>, path: &str, count: usize) -> Result<()> {
        let by_length = TEXT_BYTES_MAX / self.text.len().max(1);
        let most = SCENARIOS_MAX.min(by_length.max(1));
        if count <= most {
            return Ok(());
        }
        let what = format!("{path}: {count} combinations and more, at most {most}: shorten a list");
        Err(self.at(at.span().start, what))
    }

    fn judge_count(&self, all: &[Study]) -> Result<()> {
        let runs: usize = all.iter().map(|study| study.seeds.len()).sum();
        if all.len() <= SCENARIOS_MAX && runs <= RUNS_MAX {
            return Ok(());
        }
        Err(self.at(0, format!(
            "{} combinations with {runs} runs, and more: at most {SCENARIOS_MAX} with {RUNS_MAX} \
             runs are possible; shorten a list",
            all.len()
        )))
    }
}

impl<'t> Made<'t> {
    fn plain(value: &Value<'t>) -> Made<'t> {
        Made { value: value.clone(), names: Vec::new() }
    }
}

/// Changes a table by another: tables are merged, all else is replaced.
fn merge<'t>(base: &mut Table<'t>, changes: Table<'t>) {
    for (key, value) in changes {
        match (base.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(into)), DeValue::Table(changes)) => merge(into, changes.clone()),
            _ => {
                base.remove(key.get_ref().as_ref());
                base.insert(key, value);
            }
        }
    }
}

/// Line and column of a byte, both from 1.
fn place(text: &[u8], byte: usize) -> (usize, usize) {
    let before = &text[..byte.min(text.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    (line, String::from_utf8_lossy(&before[start..]).chars().count() + 1)
}

// Values of a scenario as they are written: times, sizes and sectors with their units, by the
// parsers of the command line, and fields that take `none` beside a table.

/// A text, a number or a flag, as the text that a command line would have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Scalar(pub String);

/// Parameters by their keys.
pub type Map = BTreeMap<String, Scalar>;

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Scalar, D::Error> {
        struct AsText;
        impl Visitor<'_> for AsText {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or true or false")
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(value.trim().into()))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
        }
        from.deserialize_any(AsText)
    }
}

impl Serialize for Scalar {
    /// As a number or a flag where that reads back as the same text.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = self.0.as_str();
        if let Some(number) = text.parse::<i64>().ok().filter(|n| n.to_string() == text) {
            return to.serialize_i64(number);
        }
        let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && n.to_string() == text);
        match (number, text) {
            (Some(number), _) => to.serialize_f64(number),
            (None, "true") => to.serialize_bool(true),
            (None, "false") => to.serialize_bool(false),
            (None, text) => to.serialize_str(text),
        }
    }
}

/// A quantity with its unit, read by a parser of the command line and written exactly.
macro_rules! quantity {
    ($(#[$about:meta])* $name:ident, $of:ty, $parse:path, $shown:expr) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub $of);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let Scalar(text) = Scalar::deserialize(from)?;
                $parse(&text).map($name).map_err(|e| D::Error::custom(format!("{text}: {e}")))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let shown: fn($of) -> String = $shown;
                Scalar(shown(self.0)).serialize(to)
            }
        }
    };
}

quantity!(
    /// A span of time.
    Time, Nanos, parse_duration, |time| time.to_string()
);

quantity!(
    /// An amount that is a whole number of sectors.
    Size, Sectors, parse_size, |size| ByteSize(size.bytes()).to_string()
);

quantity!(
    /// An amount of any number of bytes.
    Bytes, u64, parse_bytes, |bytes| ByteSize(bytes).to_string()
);

quantity!(
    /// An offset on the device.
    Place, Lba, parse_lba, |place| place.get().to_string()
);

/// Bytes in the largest unit that divides them: `512MiB`.
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(bits, _)| self.0.is_multiple_of(1 << bits)) {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// True for a value that is the default.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A table of a field that also takes `none`.
pub trait Chosen: for<'de> Deserialize<'de> {
    type Made;

    /// `None` if the table says so itself.
    ///
    /// # Errors
    /// Says what is wrong, and what to write.
    fn made(self) -> Result<Option<Self::Made>, String>;
}

/// Reads `"none"`, or a table of the kind `T`.
pub fn none_or<'de, T: Chosen, D: Deserializer<'de>>(from: D) -> Result<Option<T::Made>, D::Error> {
    struct NoneOr<T>(PhantomData<T>);
    impl<'de, T: Chosen> Visitor<'de> for NoneOr<T> {
        type Value = Option<T::Made>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"none\" or a table")
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<Option<T::Made>, E> {
            match value {
                "none" => Ok(None),
                _ => Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)),
            }
        }
        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Option<T::Made>, M::Error> {
            let table = T::deserialize(MapAccessDeserializer::new(map))?;
            table.made().map_err(M::Error::custom)
        }
    }
    from.deserialize_any(NoneOr(PhantomData::<T>))
}

#[cfg(test)]
mod text_tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_they_are_given() {
        let shown = [1 << 30, 3 << 29, 4096, 4097].map(|n| ByteSize(n).to_string());
        assert_eq!(shown, ["1GiB", "1536MiB", "4KiB", "4097B"]);
    }
}
