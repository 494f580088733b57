//! All integration tests of the crate in one program: `cargo test -p seekway-vcpu --test it FILE::`
//! runs those of one file.

mod affinity;
mod vcpu;
