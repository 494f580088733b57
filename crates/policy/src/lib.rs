//! Seekway policies: pure state machines.
#![forbid(unsafe_code)]
pub mod dispatcher;
pub mod journal;
pub mod params;
pub mod queues;
pub mod request;
pub mod scheduler;
pub mod schedulers;
pub mod units;
