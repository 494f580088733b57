//! A client's socket with a deadline, and what can go wrong with a session.

use crate::frontends::nbd::options::ProtocolError;
use crate::stream::Stream;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Time for the whole negotiation, TLS included.
pub const NEGOTIATION_TIME: Duration = Duration::from_secs(10);

/// Why a session did not come about or broke.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client broke the protocol.
    #[error("NBD negotiation: {0}; the connection was closed")]
    Protocol(#[from] ProtocolError),
    /// The client took too long.
    #[error("NBD negotiation: not done within {} s; the connection was closed", NEGOTIATION_TIME.as_secs())]
    TimedOut,
    #[error("NBD connection: {0}")]
    Io(#[source] io::Error),
    /// rustls refuses a handshake or a record of the client's.
    #[error("NBD connection: TLS: {0}; do client and server trust each other's certificates?")]
    Tls(#[from] rustls::Error),
    /// The disk's reactor has ended meanwhile.
    #[error("NBD connection: the disk {0} is no longer served")]
    Gone(String),
}

impl From<io::Error> for ServeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ServeError::TimedOut,
            // What rustls::Stream wraps.
            _ if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                match error.downcast::<rustls::Error>() {
                    Ok(tls) => ServeError::Tls(tls),
                    Err(other) => ServeError::Io(other),
                }
            }
            _ => ServeError::Io(error),
        }
    }
}

/// A socket whose reads and writes end at the deadline.
pub struct Timed<'s> {
    pub socket: &'s Stream,
    /// When it fails with `TimedOut`.
    pub deadline: Instant,
}

impl Timed<'_> {
    fn remaining(&self) -> io::Result<Duration> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_timeouts(Some(self.remaining()?), None)?;
        (&mut &*self.socket).read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_timeouts(None, Some(self.remaining()?))?;
        (&mut &*self.socket).write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
