//! All integration tests of the crate in one program: `cargo test -p seekway-workload --test it FILE::`
//! runs those of one file.

mod blktrace;
mod device;
mod generators;
mod generators_delete;
mod generators_direct;
mod generators_disks;
mod generators_golden;
mod generators_properties;
mod generators_services;
mod names;
mod texts;
mod traces_blktrace;
mod traces_events;
mod traces_faults;
mod traces_formats;
mod traces_replay;
mod traces_tables;
mod traces_units;
mod traces_write;
