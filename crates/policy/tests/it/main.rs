//! All integration tests of the crate in one program: `cargo test -p seekway-policy --test it FILE::`
//! runs those of one file.

mod affinity;
mod background;
mod barriers;
mod cache;
mod common;
mod conformance;
mod dispatcher;
mod golden;
mod limits;
mod long;
mod one_path;
mod parts;
mod prefetchers;
mod prefetchers_golden;
mod pregather;
mod stack;
mod swarm;
mod vcpu;
mod vcpu_golden;
mod vnavigator;
