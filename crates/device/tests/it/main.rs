//! All integration tests of the crate in one program: `cargo test -p seekway-device --test it FILE::`
//! runs those of one file.

mod accounting;
mod cache;
mod common;
mod fit;
mod flash_fit;
mod known_values;
mod measured;
mod properties;
mod published;
mod unchanged;
