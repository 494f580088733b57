//! All integration tests of the program in one program: `cargo test -p seekway --test it FILE::`
//! runs those of one file.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/daemon.rs"]
mod daemon;
#[path = "../common/process.rs"]
mod process;

#[path = "../../../workload/tests/it/blktrace.rs"]
mod blktrace;
#[path = "../../../workload/tests/it/names.rs"]
mod names;
#[path = "../../../hostd/tests/it/nbd/client.rs"]
mod nbd;

mod advise;
mod calibrate;
mod convert;
mod defaults;
mod docs;
mod exhausted;
mod predict;
mod prefetch;
mod results;
mod run_load;
mod sandbox;
mod scenario;
mod serve;
mod soak;
mod stacks;
mod top;
mod usage;
