//! The one kind of list from which names, help, parsing and the tests of every entry follow:
//! schedulers, prefetchers, policies for virtual CPUs, generators, trace formats. Adding an entry
//! is one file, and one line in its registry.

use crate::params::{ParamError, ParamSpec, Params, parse_spec};
use std::ops::Deref;

/// What a registry knows of an entry, besides how to make one.
pub trait RegistryEntry {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// One line: what it does.
    fn summary(&self) -> &'static str;
    /// Its parameters with their defaults.
    fn params(&self) -> &'static [ParamSpec] {
        &[]
    }
}

/// Entries of one kind, in the order in which tables list them.
pub struct Registry<E: 'static> {
    kind: &'static str,
    entries: &'static [E],
}

impl<E> Clone for Registry<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Registry<E> {}

impl<E> Deref for Registry<E> {
    type Target = [E];
    fn deref(&self) -> &[E] {
        self.entries
    }
}

impl<E> IntoIterator for Registry<E> {
    type Item = &'static E;
    type IntoIter = std::slice::Iter<'static, E>;
    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}

impl<E: RegistryEntry> Registry<E> {
    /// A registry whose entries are each a `kind` ("policy").
    pub const fn new(kind: &'static str, entries: &'static [E]) -> Self {
        Registry { kind, entries }
    }

    /// What its entries are, in one or two words.
    pub fn kind(self) -> &'static str {
        self.kind
    }

    /// The names of all entries.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.into_iter().map(RegistryEntry::name)
    }

    /// The entry of that name.
    ///
    /// # Errors
    /// There is none; the text lists those that there are.
    pub fn find(self, name: &str) -> Result<&'static E, ParamError> {
        self.into_iter().find(|e| e.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            ParamError::new(format!("no {} '{name}'; there are {}", self.kind, names.join(", ")))
        })
    }

    /// The entry and the parameters of `name:key=value,key=value`.
    ///
    /// # Errors
    /// An unknown name or key, or a value that is none.
    pub fn parse(self, text: &str) -> Result<(&'static E, Params), ParamError> {
        let spec = parse_spec(text)?;
        let entry = self.find(spec.name)?;
        Ok((entry, Params::with(entry.params(), spec.name, &spec.given)?))
    }
}

/// An entry that makes a `T` from its parameters alone.
pub struct PolicyEntry<T: ?Sized + 'static> {
    /// The name on the command line.
    pub name: &'static str,
    /// One line: what it does.
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
    /// Build what `name:key=value,key=value` says.
    ///
    /// # Errors
    /// As [`Registry::parse`], or a combination of values that cannot be.
    pub fn build(self, text: &str) -> Result<Box<T>, ParamError> {
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
    fn errors_say_what_there_is() {
        let error = |text| SHAPES.build(text).unwrap_err().to_string();
        assert_eq!(error("circle"), "no shape 'circle'; there are square, line");
        assert!(error("line:size=1").contains("size"));
        assert!(error("square:size=10").contains("size"));
        assert!(error("").contains("no name"));
    }
}
