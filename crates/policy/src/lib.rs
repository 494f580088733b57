//! Seekway's policies: which request goes to the disk next, and what is read ahead, decided by state
//! machines without a clock, a file descriptor, a thread or a log line.
//!
//! **To add a policy**: a file in [`schedulers`] and its line in `schedulers/mod.rs`; nothing else
//! names it. A prefetcher: [`prefetchers`]. CONTRIBUTING.md has the steps. From another program:
//! [`Registry::add`](seekway_core::registry::Registry::add), docs/extend.md.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
mod entry;
mod issuers;
pub mod prefetchers;
mod runs;
pub mod schedulers;
pub mod vnavigator;
