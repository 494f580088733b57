//! The host cache, driven as an engine drives it: no read returns what was
//! overwritten before it began or what is another VM's, no frame is used
//! twice, the bound and the shares hold, and the figures add up.
//! `PROPTEST_CASES=20000` looks longer.

#![allow(clippy::disallowed_macros)] // tests print what they measure

mod blocks;
mod coherence;
mod prefetchers;
mod replacement;
