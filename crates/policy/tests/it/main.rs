//! All integration tests of the crate in one program: `cargo test -p seekway-policy --test it FILE::`
//! runs those of one file.

mod conformance;
mod golden;
mod prefetchers;
mod pregather;
mod swarm;
mod vnavigator;
