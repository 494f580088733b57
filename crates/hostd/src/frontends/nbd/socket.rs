//! A client's socket, the same with a deadline, and what can go wrong with a session.

use super::options::ProtocolError;
use crate::descriptors;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
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

pub enum Socket {
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP, by which no descriptors can come.
    Tcp(TcpStream),
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Socket::Unix(stream)
    }
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Socket::Tcp(stream)
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Unix(stream) => stream.into(),
            Socket::Tcp(stream) => stream.into(),
        }
    }
}

impl Socket {
    /// Time that a read and a write may take; `None` for any.
    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(s) => s.set_read_timeout(read).and_then(|()| s.set_write_timeout(write)),
            Socket::Tcp(s) => s.set_read_timeout(read).and_then(|()| s.set_write_timeout(write)),
        }
    }

    /// Let the client send no descriptors. True if none has come, and none will.
    pub fn refuse_descriptors(&self) -> bool {
        match self {
            Socket::Tcp(_) => true,
            Socket::Unix(stream) => descriptors::refuse_on(stream.as_fd()) && is_empty(stream),
        }
    }

    /// The descriptor, for poll.
    pub fn raw_fd(&self) -> RawFd {
        match self {
            Socket::Unix(stream) => stream.as_raw_fd(),
            Socket::Tcp(stream) => stream.as_raw_fd(),
        }
    }

    /// Whether calls return instead of waiting.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_nonblocking(on),
            Socket::Tcp(stream) => stream.set_nonblocking(on),
        }
    }
}

/// Has nothing been sent yet?
fn is_empty(stream: &UnixStream) -> bool {
    let (mut byte, flags) = (0u8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: one byte to write to.
    let n = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    // Something, or the end.
    n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).read(buffer),
            Socket::Tcp(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write(bytes),
            Socket::Tcp(stream) => (&*stream).write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket whose reads and writes end at the deadline.
pub struct Timed<'s> {
    pub socket: &'s Socket,
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
