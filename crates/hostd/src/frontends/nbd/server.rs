//! The negotiation over a socket: blocking, on a thread of its own, with one
//! time limit for all of it. Reads exactly what the protocol says comes next,
//! so that nothing sent in the clear is taken for something sent under TLS.

mod certificate;
mod proxy;
mod socket;
mod tls;

pub use socket::ServeError;
pub use tls::{TlsError, tls_config};

use super::options::{self, Negotiation, Security, Session, Step};
use super::port::{Connection, Remains};
use super::{Exports, TLS_STEP};
use crate::reactor::{self, Message};
use crate::stream::Stream;
use rustls::{ServerConfig, ServerConnection};
use socket::{NEGOTIATION_TIME, Timed};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// End of the negotiation over one channel.
enum Ended {
    Gone,
    StartTls,
    Transmit(Box<Session>),
}

/// Serve one client: negotiate, at most ten seconds, then hand the connection
/// to the reactor of the export that it chose. Blocks until the session is over: this thread then
/// frees what the reactor held for it. Under TLS, and where a client of a unix socket may send
/// descriptors, it also carries the bytes between client and reactor. Fails when the client breaks
/// the protocol, is too slow, or TLS fails: for the log, the connection is closed already.
///
/// `tls` offers STARTTLS; with `tls_required` nothing else is served.
pub fn serve(
    stream: impl Into<Stream>,
    exports: Arc<dyn Exports>,
    tls: Option<Arc<ServerConfig>>,
    tls_required: bool,
) -> Result<(), ServeError> {
    let socket = stream.into();
    let takes_no_descriptors = socket.refuse_descriptors();
    socket.set_nonblocking(false)?;
    if let Stream::Tcp(stream) = &socket {
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
    exports.hears(0);
    let (mut ended, mut secured) = (converse(&mut timed, &mut negotiation, &*exports)?, None);
    if let (Ended::StartTls, Some(config)) = (&ended, tls) {
        negotiation.secured();
        let tls = secured.insert(ServerConnection::new(config)?);
        if !shake_hands(tls, &mut timed)? {
            return Ok(());
        }
        if let Some([certificate, ..]) = tls.peer_certificates() {
            exports.identified(certificate::names(certificate));
        }
        exports.hears(TLS_STEP);
        ended = converse(&mut rustls::Stream::new(tls, &mut timed), &mut negotiation, &*exports)?;
    }
    let Ended::Transmit(session) = ended else { return Ok(()) };
    socket.set_timeouts(None, None)?;
    exports.negotiated();
    if secured.is_none() && takes_no_descriptors {
        reactor::wait(&open_port(socket.into(), *session)?);
        return Ok(());
    }
    let (inner, outer) = UnixStream::pair()?;
    let closed = open_port(inner.into(), *session)?;
    let relayed = proxy::relay(&socket, secured, &outer);
    drop((outer, socket));
    reactor::wait(&closed);
    relayed
}

/// TLS's own handshake; false when the client goes meanwhile.
fn shake_hands(tls: &mut ServerConnection, timed: &mut Timed<'_>) -> Result<bool, ServeError> {
    while tls.is_handshaking() {
        match tls.complete_io(timed) {
            Ok(_) => {}
            Err(e) if went_away(&e) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

/// Hand the connection to the reactor. Returns the channel on which its remains come when it has
/// closed.
fn open_port(socket: OwnedFd, session: Session) -> Result<Receiver<Remains>, ServeError> {
    let (connection, closed) = Connection::new(socket, &session).taken_down();
    let opened = session.export.handle.ask(|reply| Message::OpenPort(Box::new(connection), reply));
    opened.map(|_| closed).ok_or(ServeError::Gone(session.export.name))
}

/// Read options and reply to them until the negotiation ends.
fn converse(
    channel: &mut (impl Read + Write),
    negotiation: &mut Negotiation<'_>,
    exports: &dyn Exports,
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
        exports.hears(option);
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
