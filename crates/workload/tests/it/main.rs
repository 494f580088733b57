//! All integration tests of the crate in one program: `cargo test -p seekway-workload --test it FILE::`
//! runs those of one file.

mod blktrace;
mod device;
mod generators;
mod generators_delete;
mod generators_direct;
mod generators_disks;
mod generators_filebench;
mod generators_golden;
mod generators_iometer;
mod generators_properties;
mod generators_services;
mod generators_surge;
mod names;
mod texts;
mod traces_blktrace;
mod traces_cpus;
mod traces_events;
mod traces_faults;
mod traces_formats;
mod traces_pages;
mod traces_replay;
mod traces_samples;
mod traces_streams;
mod traces_tables;
mod traces_units;
mod traces_write;
