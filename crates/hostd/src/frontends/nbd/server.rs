//! The negotiation over a socket: blocking, on a thread of its own, with one
//! time limit for all of it. Reads exactly what the protocol says comes next,
//! so that nothing sent in the clear is taken for something sent under TLS.

mod proxy;

use super::options::{self, Negotiation, ProtocolError, Security, Session, Step};
use super::port::{Connection, Remains};
use super::{Exports, TLS_STEP};
use crate::reactor::{self, Message};
use crate::stream::Stream;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

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
            exports.identified(names(certificate));
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

// The names in a client's certificate, by which disks are allowed to it. Only certificates that the
// clients' authority has signed come here.

/// Names that are looked at.
const NAMES_MAX: usize = 256;
/// The attribute "common name" (2.5.4.3) in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Tags of DER (X.690, 8.1.2) that a subject consists of.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// Texts that are read as UTF-8: UTF8String, PrintableString, IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The common names of the subject, and of its other names those of DNS (in lower case) and URIs.
/// What cannot be read gives no name.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    let dns = certificate.valid_dns_names().map(str::to_ascii_lowercase);
    let uris = certificate.valid_uri_names().map(str::to_owned);
    common_names(certificate.subject()).into_iter().chain(dns).chain(uris).take(NAMES_MAX).collect()
}

/// The common names in a subject: sets of pairs of an attribute and its value (RFC 5280, 4.1.2.4).
fn common_names(subject: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for (tag, set) in Items(subject) {
        for (inner, pair) in Items(set) {
            let mut pair = Items(pair);
            let attribute = pair.next();
            if (tag, inner) == (SET, SEQUENCE)
                && attribute == Some((OBJECT_IDENTIFIER, COMMON_NAME))
            {
                let text = pair.next().filter(|(tag, _)| TEXTS.contains(tag));
                names.extend(text.and_then(|(_, text)| String::from_utf8(text.into()).ok()));
            }
        }
    }
    names
}

/// The items of DER one after another: tag and content. Ends where they make no sense.
struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81 => (usize::from(*rest.first()?), &rest[1..]),
            0x82 => {
                let (len, rest) = rest.split_first_chunk::<2>()?;
                (usize::from(u16::from_be_bytes(*len)), rest)
            }
            // webpki takes no certificates over 64 KiB.
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }
}

// Certificates for NBD over TLS.

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or holds no such thing.
    #[error("{}: {source}; expected {expected} in PEM", path.display())]
    Pem {
        path: PathBuf,
        /// Content expected in the file.
        expected: &'static str,
        source: pem::Error,
    },
    /// The key does not belong to the certificate, or a kind that is not supported.
    #[error("{} and {}: {source}", cert.display(), key.display())]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
    /// The clients' authority cannot be one.
    #[error("{}: {reason}; expected the certificate of an authority", path.display())]
    ClientCa { path: PathBuf, reason: String },
}

/// Makes the configuration with which [`serve`] offers TLS 1.2 and 1.3: the server's
/// certificate chain and key, and with `client_ca` a demand that clients show a certificate signed
/// by it. All files in PEM.
pub fn tls_config(
    cert: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
        path: key.to_owned(),
        expected: "a private key",
        source,
    })?;
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let wrong = |reason| TlsError::ClientCa { path: path.to_owned(), reason };
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|e| wrong(e.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .map_err(|e| wrong(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(Arc::new(builder.with_single_cert(chain, private).map_err(pair)?))
}

/// All certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Pem { path: path.to_owned(), expected: "a certificate", source };
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(wrong)?;
    if all.is_empty() {
        return Err(wrong(pem::Error::NoItemsFound));
    }
    Ok(all)
}

// A client's socket with a deadline, and what can go wrong with a session.

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
struct Timed<'s> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = match content.len() {
            len @ 0..0x80 => vec![len as u8],
            len @ 0x80..0x100 => vec![0x81, len as u8],
            len => [&[0x82][..], &(len as u16).to_be_bytes()].concat(),
        };
        [&[tag][..], &len, content].concat()
    }

    fn attribute(identifier: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        let pair = [item(OBJECT_IDENTIFIER, identifier), item(tag, text)].concat();
        item(SET, &item(SEQUENCE, &pair))
    }

    #[test]
    fn common_names_are_found_among_other_attributes() {
        let long = "x".repeat(300);
        let subject = [
            attribute(&[0x55, 0x04, 0x0a], 0x0c, b"an organisation"),
            attribute(COMMON_NAME, 0x0c, "Zoë".as_bytes()),
            attribute(COMMON_NAME, 0x13, b"vm-web"),
            attribute(COMMON_NAME, 0x0c, long.as_bytes()),
            attribute(COMMON_NAME, 0x1e, b"\0w\0i\0d\0e"),
            attribute(COMMON_NAME, 0x0c, b"\xff"),
        ];
        assert_eq!(common_names(&subject.concat()), ["Zoë", "vm-web", long.as_str()]);
        assert!(names(&CertificateDer::from(vec![1, 2, 3])).is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            common_names(&bytes);
            names(&CertificateDer::from(bytes));
        }

        #[test]
        fn each_common_name_comes_back(texts in proptest::collection::vec("[^\\x00]{0,200}", 0..5)) {
            let subject = texts.iter().map(|text| attribute(COMMON_NAME, 0x0c, text.as_bytes()));
            prop_assert_eq!(common_names(&subject.collect::<Vec<_>>().concat()), texts);
        }
    }
}
