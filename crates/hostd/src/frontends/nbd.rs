//! The NBD front end: a server of the fixed newstyle protocol
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>; the
//! comments below cite its sections).
//!
//! [`serve`] negotiates on the thread that calls it, with a time limit, and
//! then hands the socket to the disk's reactor as a [`Port`](crate::port::Port).
//! A session over TLS keeps its thread: it stands between the client and one
//! end of a socket pair, so that the reactor never does cryptography.
//!
//! ```text
//!  wire      numbers of the protocol        options  the negotiation, pure
//!  request   headers of requests and of replies, pure
//!  buffers   what is received and read to   outbox   what waits to be sent
//!  port      the connection in the reactor, over these
//!  server    the negotiation over a socket, sockets and TLS, over all
//! ```
//!
//! Absent: allocation for each request, replies before their requests are done, oldstyle
//! negotiation, extended headers, compression.

mod buffers;
mod options;
mod outbox;
mod port;
mod request;
mod server;

#[cfg(test)]
mod tests;
pub(crate) mod wire;

/// The protocol without its socket, for `crates/fuzz`.
#[doc(hidden)]
pub mod fuzzed {
    pub use super::options::{Negotiation, Security, Step, option_header};
    pub use super::request::extents;
    pub use super::request::{HEADER_LEN, Request, Verdict, judge};
    pub use super::wire::*;
}

pub use crate::stream::Stream;
pub use buffers::DiskMemory;
#[cfg(test)]
pub(crate) use options::Session;
#[cfg(test)]
pub(crate) use port::Connection;
pub use server::{ServeError, TlsError, serve, tls_config};

use crate::images::Limits;
use crate::port::DiskId;
use crate::reactor::Handle;
use std::sync::Arc;

/// A disk as clients of NBD see it.
#[derive(Clone)]
pub struct Export {
    /// Name that clients ask for, at most 4096 bytes.
    pub name: String,
    /// The disk in its reactor.
    pub disk: DiskId,
    /// The reactor that serves it.
    pub handle: Handle,
    /// Its limits at this moment: the next client sees a disk that was resized.
    pub limits: Arc<dyn Fn() -> Limits + Send + Sync>,
    /// Counts the buffers of all its clients.
    pub memory: Arc<DiskMemory>,
}

/// The step of the negotiation that ends TLS's own handshake; no option has this number.
pub const TLS_STEP: u32 = 31;

/// The exports of a listening socket.
pub trait Exports: Send + Sync {
    /// The export that a client asked for; the default export's name is "".
    fn find(&self, name: &str) -> Option<Export>;
    /// Names for `NBD_OPT_LIST`: those of the exports that the client may know of.
    fn names(&self) -> Vec<String>;
    /// The client has taken a step of the negotiation: 0 for its flags, [`TLS_STEP`], or the number
    /// of an option.
    fn hears(&self, _step: u32) {}
    /// The client has shown a certificate with these names, before it asks for anything.
    fn identified(&self, _names: Vec<String>) {}
    /// The client has an export, and its time limit is over.
    fn negotiated(&self) {}
}

/// The exports of a socket that belongs to one disk: whatever name the client
/// gives, the socket has already said which disk is meant.
pub struct Only(pub Export);

impl Exports for Only {
    fn find(&self, _name: &str) -> Option<Export> {
        Some(self.0.clone())
    }
    fn names(&self) -> Vec<String> {
        vec![self.0.name.clone()]
    }
}
