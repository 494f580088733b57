//! Seekway policies: pure state machines.
#![forbid(unsafe_code)]
pub mod request;
pub mod scheduler;
pub mod units;
