//! The registry of prefetchers. A new one is one file here and one line in
//! [`REGISTRY`]; the command line, its help, the documentation and the
//! conformance tests follow from it.

mod beside;
mod flashy;
mod following;
mod linux;
mod none;
mod vio;

use seekway_core::params::ParamError;
use seekway_core::prefetcher::Prefetcher;
use seekway_core::registry::{PolicyEntry, Registry};

/// A prefetcher as the registry knows it.
pub type Entry = PolicyEntry<dyn Prefetcher>;

/// All prefetchers, in the order in which tables list them.
pub static REGISTRY: Registry<Entry> =
    Registry::new("prefetcher", &[none::ENTRY, linux::ENTRY, flashy::ENTRY, vio::ENTRY]);

/// Build a prefetcher from `name:key=value,key=value`.
///
/// # Errors
/// An unknown name or parameter, or values that cannot be.
pub fn build(text: &str) -> Result<Box<dyn Prefetcher>, ParamError> {
    REGISTRY.build(text)
}
