//! The NBD server against clients that others wrote, and against one of our
//! own that misbehaves.

#[path = "../common/mod.rs"]
mod common;

mod authorisation;
mod client;
mod hostile;
mod programs;
mod server;
mod tls;
mod transfers;
