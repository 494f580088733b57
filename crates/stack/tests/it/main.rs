//! All integration tests of the crate in one program: `cargo test -p seekway-stack --test it FILE::`
//! runs those of one file.

mod background;
mod barriers;
mod cache;
mod dispatcher;
mod limits;
mod long;
mod merging;
mod one_path;
mod parts;
mod stack;
