//! All integration tests of the crate in one program: `cargo test -p seekway-sim --test it FILE::`
//! runs those of one file.

mod common;
mod engine;
mod host;
