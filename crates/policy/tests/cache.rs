//! The host cache, driven as an engine drives it: no read returns what was
//! overwritten before it began or what is another VM's, no frame is used
//! twice, the bound and the shares hold, and the figures add up.
//! `PROPTEST_CASES=20000` looks longer.

#![allow(clippy::disallowed_macros)] // tests print what they measure

#[path = "cache/blocks.rs"]
mod blocks;
#[path = "cache/coherence.rs"]
mod coherence;
#[path = "cache/prefetchers.rs"]
mod prefetchers;
#[path = "cache/replacement.rs"]
mod replacement;
