//! The host cache on real images: what guests read through it is what they
//! wrote, whatever is guessed ahead of them and whatever goes wrong below.

#[path = "../common/mod.rs"]
mod common;

mod coherence;
mod failures;
mod greedy;
mod guesses;
mod reads;
