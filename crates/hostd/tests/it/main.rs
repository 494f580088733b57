//! All integration tests of the crate in one program: `cargo test -p seekway-hostd --test it FILE::`
//! runs those of one file.

mod accounting;
mod cache;
mod common;
mod daemon;
mod durability;
mod freeze;
mod hostile;
mod images;
mod limits;
mod nbd;
mod reactor;
mod vhost;
