//! Between a client and the reactor's plain socket, for TLS and for clients that may have sent
//! descriptors: one thread, two sockets that never block, bounded buffers. In each direction the next piece
//! is read only when the last one has gone, so that a slow side stops the
//! other one of the same direction and no more.

use super::ServeError;
use crate::stream::{Stream, interest, poll};
use rustls::ServerConnection;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// Most bytes moved at once.
const PIECE: usize = 64 << 10;

/// Longest delay of the end of a session by a client that reads nothing, in milliseconds.
const LINGER_MS: libc::c_int = 5_000;

/// Move bytes until both sides are done, or one fails. `plain` is the other
/// end of the reactor's socket. Without TLS too the kernel drops descriptors that the client sends
/// where its bytes are received, and that may take as long as the client likes: here, and not in the
/// reactor.
pub fn relay(
    socket: &Stream,
    tls: Option<ServerConnection>,
    plain: &UnixStream,
) -> Result<(), ServeError> {
    socket.set_nonblocking(true)?;
    plain.set_nonblocking(true)?;
    let mut client = Client { socket, tls };
    if let Some(tls) = &mut client.tls {
        // Each direction has its own buffer of 64 KiB and no more in rustls.
        tls.set_buffer_limit(Some(2 * PIECE));
    }
    let (mut inward, mut outward) = (Pipe::new(), Pipe::new());
    loop {
        inward.go(&mut client, &mut &*plain)?;
        if inward.ends() {
            // An error means that it is closed already.
            let _ = plain.shutdown(Shutdown::Write);
        }
        if outward.go(&mut &*plain, &mut client).is_err() {
            outward.state = PipeState::Closed;
        } else if outward.ends() {
            client.end();
        }
        match client.flush() {
            Ok(()) if outward.state == PipeState::Closed => return Ok(()),
            // The client is gone; so is the session.
            Err(e) if !is_blocked(&e) => return Ok(()),
            _ => {}
        }
        let flushes = if client.wants_flush() { libc::POLLOUT } else { 0 };
        let mut polls = [
            interest(socket, inward.wants_input() | outward.wants_output() | flushes),
            interest(plain, outward.wants_input() | inward.wants_output()),
        ];
        let timeout_ms = if outward.state == PipeState::Open { -1 } else { LINGER_MS };
        if !poll(&mut polls, timeout_ms)? {
            return Ok(());
        }
    }
}

/// One direction of a relay.
struct Pipe {
    buffer: Vec<u8>,
    /// Bytes of the buffer that are on their way.
    at: std::ops::Range<usize>,
    state: PipeState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PipeState {
    Open,
    /// Nothing more comes in.
    Ending,
    Closed,
}

impl Pipe {
    fn new() -> Pipe {
        Pipe { buffer: vec![0; PIECE], at: 0..0, state: PipeState::Open }
    }

    /// Move bytes as far as it goes now. Fails when nothing more can be read; who has closed a
    /// connection wants nothing more of it, and that is no error.
    fn go(&mut self, from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
        while self.state != PipeState::Closed {
            let (is_reading, moved) = match (self.at.is_empty(), self.state) {
                (false, _) => (false, to.write(&self.buffer[self.at.clone()])),
                (true, PipeState::Open) => (true, from.read(&mut self.buffer)),
                _ => return Ok(()),
            };
            match moved {
                Ok(n) if !is_reading => self.at.start += n,
                Ok(0) => self.state = PipeState::Ending,
                Ok(n) => self.at = 0..n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if is_reading => return Err(e),
                Err(_) => self.state = PipeState::Closed,
            }
        }
        Ok(())
    }

    /// Has its last byte gone? Once.
    fn ends(&mut self) -> bool {
        let ends = self.state == PipeState::Ending && self.at.is_empty();
        if ends {
            self.state = PipeState::Closed;
        }
        ends
    }

    fn wants_input(&self) -> libc::c_short {
        if self.state == PipeState::Open && self.at.is_empty() { libc::POLLIN } else { 0 }
    }

    fn wants_output(&self) -> libc::c_short {
        if self.state != PipeState::Closed && !self.at.is_empty() { libc::POLLOUT } else { 0 }
    }
}

/// The client's end: its socket, and what encrypts.
struct Client<'s> {
    socket: &'s Stream,
    tls: Option<ServerConnection>,
}

impl Client<'_> {
    /// Nothing more is sent: the client is told with close_notify.
    fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
    }

    /// Has rustls something that the socket has not taken?
    fn wants_flush(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut socket = self.socket;
        let Some(tls) = &mut self.tls else {
            // One that has gone sends no more.
            return socket.read(buffer).or_else(|e| if is_blocked(&e) { Err(e) } else { Ok(0) });
        };
        loop {
            match tls.reader().read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            match tls.read_tls(&mut socket) {
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(0),
                came => _ = came?,
            }
            if let Err(error) = tls.process_new_packets() {
                // The alert is a courtesy.
                let _ = tls.write_tls(&mut socket);
                return Err(io::Error::other(error));
            }
        }
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let mut socket = self.socket;
        match &mut self.tls {
            Some(tls) => tls.writer().write(bytes),
            None => socket.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        let mut socket = self.socket;
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            tls.write_tls(&mut socket)?;
        }
        Ok(())
    }
}

fn is_blocked(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_relay_moves_bytes_both_ways_and_ends_with_either_side() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let (plain, mut reactor) = UnixStream::pair().unwrap();
        let relay = thread::spawn(move || relay(&ours.into(), None, &plain).unwrap());
        let sent: Vec<u8> = (0..1 << 20).map(|n: u32| n as u8).collect();
        let bytes = sent.clone();
        let writer = thread::spawn(move || {
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            client
        });
        let mut came = Vec::new();
        reactor.read_to_end(&mut came).unwrap();
        assert!(came == sent, "and the end of what the client sends");
        let mut client = writer.join().unwrap();
        let answer = thread::spawn(move || reactor.write_all(&sent).unwrap());
        let mut came = Vec::new();
        client.read_to_end(&mut came).unwrap();
        answer.join().unwrap();
        assert_eq!(came.len(), 1 << 20);
        relay.join().unwrap();
    }

    #[test]
    fn a_relay_ends_when_the_client_has_gone() {
        let (client, ours) = UnixStream::pair().unwrap();
        let (plain, mut reactor) = UnixStream::pair().unwrap();
        let relay = thread::spawn(move || relay(&ours.into(), None, &plain).unwrap());
        drop(client);
        assert_eq!(reactor.read(&mut [0]).unwrap(), 0);
        drop(reactor);
        relay.join().unwrap();
    }
}
