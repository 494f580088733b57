//! All integration tests of the crate in one program: `cargo test -p seekway-policy --test it FILE::`
//! runs those of one file.

mod common;
mod conformance;
mod golden;
mod prefetchers;
mod prefetchers_golden;
mod pregather;
mod swarm;
mod vnavigator;
