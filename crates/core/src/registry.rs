//! The one kind of list from which names, help, parsing and the tests of every entry follow:
//! schedulers, prefetchers, policies for virtual CPUs, generators, trace formats. Adding an entry
//! is one file, and one line in its registry.

use crate::params::{ParamError, ParamSpec, Params, parse_spec};
use std::ops::Deref;
use std::sync::OnceLock;

/// Description of an entry, without its constructor.
pub trait RegistryEntry {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// Description of its purpose, in one line.
    fn summary(&self) -> &'static str;
    /// Its parameters with their defaults.
    fn params(&self) -> &'static [ParamSpec] {
        &[]
    }
}

/// Entries of one kind, in the order in which tables list them; those that a program has added
/// ([`Registry::add`]) come last.
pub struct Registry<E: 'static> {
    kind: &'static str,
    entries: &'static [E],
    /// Built by the first addition or read, so that all readers see the same.
    all: OnceLock<Vec<&'static E>>,
}

impl<E> Deref for Registry<E> {
    type Target = [&'static E];
    fn deref(&self) -> &Self::Target {
        self.all.get_or_init(|| self.entries.iter().collect())
    }
}

impl<E: RegistryEntry> Registry<E> {
    /// A registry whose entries are each a `kind` ("policy").
    pub const fn new(kind: &'static str, entries: &'static [E]) -> Self {
        Registry { kind, entries, all: OnceLock::new() }
    }

    /// Adds the entries of a program that is built around this library: once, before any is read.
    ///
    /// # Errors
    /// A name that [`Registry::check_name`] refuses, or a registry that was read already.
    pub fn add(&self, more: &'static [E]) -> Result<(), ParamError> {
        let mut all: Vec<&'static E> = self.entries.iter().collect();
        for entry in more {
            check_name(self.kind, &all, entry.name())?;
            all.push(entry);
        }
        let late = |_| ParamError::new(format!("add a {} before any is read", self.kind));
        self.all.set(all).map_err(late)
    }

    /// Could a new entry have this name?
    ///
    /// # Errors
    /// The name is taken, or a list of specifications could not say it.
    pub fn check_name(&self, name: &str) -> Result<(), ParamError> {
        check_name(self.kind, self, name)
    }

    /// The kind of its entries, in one or two words.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The names of all entries.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.iter().map(|entry| entry.name())
    }

    /// The entry of that name.
    ///
    /// # Errors
    /// Names the unknown entry and lists those that exist.
    pub fn find(&self, name: &str) -> Result<&'static E, ParamError> {
        self.iter().copied().find(|e| e.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            ParamError::new(format!("no {} '{name}'; there are {}", self.kind, names.join(", ")))
        })
    }

    /// The entry and the parameters of `name:key=value,key=value`.
    ///
    /// # Errors
    /// An unknown name or key, or a value that is none.
    pub fn parse(&self, text: &str) -> Result<(&'static E, Params), ParamError> {
        let spec = parse_spec(text)?;
        let entry = self.find(spec.name)?;
        Ok((entry, Params::with(entry.params(), spec.name, &spec.given)?))
    }
}

fn check_name<E: RegistryEntry>(kind: &str, taken: &[&E], name: &str) -> Result<(), ParamError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let why = if name.is_empty() || name == "all" || !name.chars().all(plain) {
        "a name has letters, digits, '-', '_' and '.', and is not `all`"
    } else if taken.iter().any(|entry| entry.name() == name) {
        "there is one of this name; choose another"
    } else {
        return Ok(());
    };
    Err(ParamError::new(format!("{kind} '{name}': {why}")))
}

/// An entry that makes a `T` from its parameters alone.
pub struct PolicyEntry<T: ?Sized + 'static> {
    /// The name on the command line.
    pub name: &'static str,
    /// Description of its purpose, in one line.
    pub summary: &'static str,
    /// Where it comes from: paper and section, or kernel file and version.
    pub source: &'static str,
    /// Its parameters with their defaults.
    pub params: &'static [ParamSpec],
    /// A new instance. Fails only for combinations that no single value shows.
    pub build: fn(&Params) -> Result<Box<T>, ParamError>,
}

impl<T: ?Sized> RegistryEntry for PolicyEntry<T> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        self.summary
    }
    fn params(&self) -> &'static [ParamSpec] {
        self.params
    }
}

impl<T: ?Sized> Registry<PolicyEntry<T>> {
    /// Builds an entry from `name:key=value,key=value`.
    ///
    /// # Errors
    /// As [`Registry::parse`], or a combination of values that cannot be.
    pub fn build(&self, text: &str) -> Result<Box<T>, ParamError> {
        let (entry, params) = self.parse(text)?;
        (entry.build)(&params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Kind;

    const SIZE: ParamSpec =
        ParamSpec { key: "size", kind: Kind::Count(1, 9), default: "3", help: "how large" };
    const SQUARE: PolicyEntry<u64> = PolicyEntry {
        name: "square",
        summary: "its area",
        source: "Euclid",
        params: &[SIZE],
        build: |p| Ok(Box::new(p.count("size") * p.count("size"))),
    };
    const LINE: PolicyEntry<u64> =
        PolicyEntry { name: "line", params: &[], build: |_| Ok(Box::new(1)), ..SQUARE };
    static SHAPES: Registry<PolicyEntry<u64>> = Registry::new("shape", &[SQUARE, LINE]);

    #[test]
    fn entries_are_found_and_made_by_name() {
        assert_eq!(SHAPES.names().collect::<Vec<_>>(), ["square", "line"]);
        assert_eq!(SHAPES.build("square").map(|b| *b), Ok(9));
        assert_eq!(SHAPES.build("square:size=4").map(|b| *b), Ok(16));
        assert_eq!(SHAPES.build("line").map(|b| *b), Ok(1));
    }

    #[test]
    fn a_program_adds_its_own_before_any_is_read() {
        static OPEN: Registry<PolicyEntry<u64>> = Registry::new("shape", &[SQUARE]);
        static AGAIN: &[PolicyEntry<u64>] = &[LINE, LINE];
        let refused = |more| OPEN.add(more).unwrap_err().to_string();
        assert!(refused(&[SQUARE]).contains("'square': there is one"));
        assert!(refused(AGAIN).contains("'line': there is one"));
        assert!(refused(&[PolicyEntry { name: "a:b", ..LINE }]).contains("a name has letters"));
        assert_eq!(OPEN.add(&[LINE]), Ok(()));
        assert_eq!(OPEN.names().collect::<Vec<_>>(), ["square", "line"]);
        assert_eq!(OPEN.build("line").map(|b| *b), Ok(1));
        assert!(SHAPES.len() == 2 && SHAPES.add(&[]).is_err(), "it was read");
    }

    #[test]
    fn errors_say_what_there_is() {
        let error = |text| SHAPES.build(text).unwrap_err().to_string();
        assert_eq!(error("circle"), "no shape 'circle'; there are square, line");
        assert!(error("line:size=1").contains("size"));
        assert!(error("square:size=10").contains("size"));
        assert!(error("").contains("no name"));
    }
}
