//! The host daemon: the second engine. Guests' requests come in through ports
//! (a vring of vhost-user-blk, a connection of NBD), meet in one stack per
//! physical device, and go to their images by io_uring.
//!
//! One reactor thread per device owns everything on the data path: ports,
//! stack, throttle, ring. Nothing there is locked or shared. The
//! control thread accepts connections and answers the control API; each
//! vhost-user connection and each NBD handshake has a thread of its own while
//! it talks, so that a peer that stalls in mid-message stalls nobody else.
//! They reach the reactor by messages only.
//!
//! ```text
//!  vhost-user thread ─┐                ┌──────────── reactor (one per device) ────────────┐
//!  NBD handshake ─────┼─ Message ────▶ │ Port ─▶ PortContext ──▶ Stack ──▶ io_uring       │
//!  control thread ────┘                │   ◀──── Port::done ◀── Throttle ◀── completion   │
//!                                      └──────────────────────────────────────────────────┘
//! ```
//!
//! **To add a front end**: a [`Port`](port::Port) in [`frontends`], which submits jobs and is told
//! when they are done; the reactor knows no front end. **A metric**: what the reactor counts goes
//! into [`Status`](reactor::Status), from where the table in `control/report.rs` gives it to `ctl`, to
//! Prometheus and to the web page.

pub mod config;
pub mod control;
pub mod daemon;
mod death;
mod descriptors;
pub mod doctor;
/// Front ends, by protocol: guests' requests come in here.
pub mod frontends {
    pub mod nbd;
    pub mod vhost_user;
}

mod host;
pub mod images;
#[cfg(test)]
#[path = "tests/limits_table.rs"]
mod limits_table;
pub mod log;
mod op_kind;
pub mod port;
pub mod reactor;
pub mod sandbox;
mod sigbus;
mod stream;
mod threads;
pub mod throttle;
mod toll;
#[cfg(test)]
#[path = "tests/waiting.rs"]
mod waiting;
