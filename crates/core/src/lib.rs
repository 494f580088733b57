//! Shared by policies and both engines: units, requests, the contracts of schedulers and
//! prefetchers, and the parameters and registries by which they are named.
//!
//! Absent on purpose, here and in the crates `policy`, `stack` and `vcpu`: clocks, threads, I/O,
//! logging, callbacks into an engine, knowledge of which engine drives, dependencies beyond `std`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
pub mod device_time;
pub mod fairness;
pub mod ioprio;
pub mod means;
pub mod mix;
pub mod params;
pub mod prefetcher;
pub mod queues;
pub mod readahead;
pub mod registry;
pub mod request;
pub mod scheduler;
pub mod units;
