//! The deterministic simulator.
#![forbid(unsafe_code)]
