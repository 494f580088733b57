//! The negotiation over a socket: blocking, on a thread of its own, with one
//! time limit for all of it. Reads exactly what the protocol says comes next,
//! so that nothing sent in the clear is taken for something sent under TLS.

use super::options::{self, Negotiation, ProtocolError, Security, Session, Step};
use super::port::Connection;
use super::{Exports, proxy};
use crate::reactor::{Handle, Message};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for the whole negotiation, TLS included.
const NEGOTIATION_TIME: Duration = Duration::from_secs(10);

/// Why a session did not come about or broke.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client broke the protocol.
    #[error("NBD negotiation: {0}; the connection was closed")]
    Protocol(#[from] ProtocolError),
    /// The client took too long.
    #[error("NBD negotiation: not done within {} s; the connection was closed", NEGOTIATION_TIME.as_secs())]
    TimedOut,
    /// The socket failed.
    #[error("NBD connection: {0}")]
    Io(#[source] io::Error),
    /// TLS failed.
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

/// A client's connection.
pub enum Socket {
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP.
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
    fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(s) => s.set_read_timeout(read).and_then(|()| s.set_write_timeout(write)),
            Socket::Tcp(s) => s.set_read_timeout(read).and_then(|()| s.set_write_timeout(write)),
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
struct Timed<'s> {
    socket: &'s Socket,
    deadline: Instant,
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

/// How the negotiation over one channel ended.
enum Ended {
    Gone,
    StartTls,
    Transmit(Box<Session>),
}

/// Serve one client: negotiate, at most ten seconds, then hand the connection
/// to the reactor of the export that it chose. Blocks; returns when the
/// reactor has taken over, and under TLS when the session is over. Fails when
/// the client breaks the protocol, is too slow, or TLS fails: for the log, the
/// connection is closed already.
///
/// `tls` offers STARTTLS; with `tls_required` nothing else is served.
pub fn serve(
    stream: impl Into<Socket>,
    exports: Arc<dyn Exports>,
    tls: Option<Arc<ServerConfig>>,
    tls_required: bool,
) -> Result<(), ServeError> {
    let socket = stream.into();
    socket.set_nonblocking(false)?;
    if let Socket::Tcp(stream) = &socket {
        stream.set_nodelay(true)?;
    }
    let security = match (&tls, tls_required) {
        (_, true) => Security::Required,
        (Some(_), false) => Security::Offered,
        (None, false) => Security::Plain,
    };
    let mut timed = Timed { socket: &socket, deadline: Instant::now() + NEGOTIATION_TIME };
    timed.write_all(&options::greeting())?;
    let mut flags = [0; 4];
    if !read_or_end(&mut timed, &mut flags)? {
        return Ok(());
    }
    let mut negotiation = Negotiation::new(&*exports, security, u32::from_be_bytes(flags))?;
    match (converse(&mut timed, &mut negotiation)?, tls) {
        (Ended::Transmit(session), _) => {
            socket.set_timeouts(None, None)?;
            open_port(socket.into(), &session)
        }
        (Ended::StartTls, Some(config)) => {
            negotiation.secured();
            let mut tls = ServerConnection::new(config)?;
            let mut stream = rustls::Stream::new(&mut tls, &mut timed);
            if let Ended::Transmit(session) = converse(&mut stream, &mut negotiation)? {
                socket.set_timeouts(None, None)?;
                let (inner, outer) = UnixStream::pair()?;
                open_port(inner.into(), &session)?;
                return proxy::run(&socket, tls, &outer);
            }
            Ok(())
        }
        (Ended::Gone | Ended::StartTls, _) => Ok(()),
    }
}

fn open_port(socket: OwnedFd, session: &Session) -> Result<(), ServeError> {
    let handle: &Handle = &session.export.handle;
    let connection = Box::new(Connection::new(socket, session));
    match handle.ask(|reply| Message::OpenPort(connection, reply)) {
        Some(_) => Ok(()),
        None => Err(ServeError::Gone(session.export.name.clone())),
    }
}

/// Read options and reply to them until the negotiation ends.
fn converse(
    channel: &mut (impl Read + Write),
    negotiation: &mut Negotiation<'_>,
) -> Result<Ended, ServeError> {
    let mut data = Vec::new();
    let mut replies = Vec::new();
    loop {
        let mut header = [0; 16];
        if !read_or_end(channel, &mut header)? {
            return Ok(Ended::Gone);
        }
        let (option, len) = options::option_header(&header)?;
        data.resize(len, 0);
        channel.read_exact(&mut data)?;
        replies.clear();
        let step = negotiation.option(option, &data, &mut replies)?;
        let sent = channel.write_all(&replies).and_then(|()| channel.flush());
        match step {
            // A client may go without waiting for the reply.
            Step::Abort => return Ok(Ended::Gone),
            Step::Continue => sent?,
            Step::StartTls => return sent.map(|()| Ended::StartTls).map_err(ServeError::from),
            Step::Transmit(session) => {
                return sent.map(|()| Ended::Transmit(session)).map_err(ServeError::from);
            }
        }
    }
}

/// Fill `buffer`; false when the client went before its first byte.
fn read_or_end(channel: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match channel.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if filled == 0 && went_away(&e) => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// A client that goes is no error; without close_notify neither, here.
fn went_away(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}
