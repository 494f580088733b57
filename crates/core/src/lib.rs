//! What policies and both engines agree on: units, requests, and the contracts of schedulers and
//! prefetchers, with the parameters and registries by which they are named.
//!
//! What is absent here, and in the crates of the policies and of the stack, stays absent: clocks,
//! threads, I/O, logging, callbacks into an engine, knowledge of which engine drives, dependencies
//! beyond `std`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
pub mod fairness;
pub mod ioprio;
pub mod mix;
pub mod params;
pub mod prefetcher;
pub mod queues;
pub mod readahead;
pub mod registry;
pub mod request;
pub mod scheduler;
pub mod units;
