//! Fuzz targets for the code that parses bytes of guests, clients and files.
//!
//! A [`Target`] is a function over bytes that panics when a property does not
//! hold. The targets run in two ways:
//!
//! - `cargo test -p seekway-fuzz` replays the corpus and a fixed number of
//!   mutations of it, from a fixed seed ([`mutate`]). No fuzzer is needed.
//! - `make fuzz` runs each target under libFuzzer with coverage guidance and
//!   AddressSanitizer (`scripts/fuzz`).
//!
//! `corpus/TARGET.txt` holds the inputs that a fuzzer found, minimised ([`corpus`]).
//! `corpus/TARGET.bugs.txt` holds those that found a bug, each with a comment; they stay for good.

pub mod corpus;
mod heap;
pub mod mutate;
mod targets;

pub use targets::TARGETS;

/// The longest input of any target, in bytes.
pub const INPUT_BYTES_MAX: usize = 4096;

/// Code under test, and its properties.
pub struct Target {
    pub name: &'static str,
    /// Panics when a property does not hold.
    pub run: fn(&[u8]),
    /// Most bytes that one input may have allocated at a time.
    pub heap_bytes_max: usize,
    /// Mutations that `cargo test` runs.
    pub test_runs: u32,
    /// Words that mutations insert.
    pub words: &'static [&'static [u8]],
}

impl Target {
    pub fn find(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs one input.
    ///
    /// # Panics
    /// A property does not hold, or the input takes more memory than the target allows.
    pub fn check(&self, input: &[u8]) {
        let peak = heap::peak_of(|| (self.run)(&input[..input.len().min(INPUT_BYTES_MAX)]));
        let max = self.heap_bytes_max;
        assert!(peak <= max, "{}: {peak} bytes allocated, at most {max} expected", self.name);
    }
}
