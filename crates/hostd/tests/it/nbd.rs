//! The NBD server against clients that others wrote, and against one of our
//! own that misbehaves.

mod authorisation;
pub mod client;
mod hostile;
mod programs;
mod server;
mod tls;
mod transfers;
