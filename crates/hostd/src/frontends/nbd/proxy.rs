//! Between a client and the reactor's plain socket, for TLS and for clients that may have sent
//! descriptors: one thread, two sockets that never block, bounded buffers. In each direction the next piece
//! is read only when the last one has gone, so that a slow side stops the
//! other one of the same direction and no more.

use super::socket::{ServeError, Socket};
use rustls::ServerConnection;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// What is moved at once, in bytes.
const PIECE: usize = 64 << 10;

/// How long a client that reads nothing may hold up the end of its session.
const LINGER_MS: libc::c_int = 5_000;

/// Move bytes until both sides are done, or one fails. `plain` is the other
/// end of the reactor's socket.
pub fn run(socket: &Socket, tls: ServerConnection, plain: &UnixStream) -> Result<(), ServeError> {
    socket.set_nonblocking(true)?;
    plain.set_nonblocking(true)?;
    let mut proxy = Proxy {
        socket,
        plain,
        tls,
        inward: vec![0; PIECE],
        inward_at: 0..0,
        outward: vec![0; PIECE],
        client_done: false,
        inward_closed: false,
        server_done: false,
    };
    // Each direction has its own buffer of 64 KiB and no more in rustls.
    proxy.tls.set_buffer_limit(Some(2 * PIECE));
    loop {
        proxy.move_inward()?;
        if proxy.move_outward()? {
            return Ok(());
        }
        if !proxy.wait()? {
            return Ok(());
        }
    }
}

/// The same without TLS. The kernel drops descriptors that the client sends where its bytes are
/// received, and that may take as long as the client likes: here, and not in the reactor.
pub fn relay(socket: &Socket, plain: &UnixStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    plain.set_nonblocking(true)?;
    let (mut inward, mut outward) = (Pipe::new(), Pipe::new());
    loop {
        // Who has closed a connection wants nothing more of it.
        if inward.go(socket, plain).is_err() {
            inward.state = PipeState::Closed;
        }
        if inward.ends() {
            // An error means that it is closed already.
            let _ = plain.shutdown(Shutdown::Write);
        }
        if outward.go(plain, socket).is_err() || outward.ends() {
            return Ok(());
        }
        let mut polls = [
            interest(socket.raw_fd(), inward.wants_input() | outward.wants_output()),
            interest(plain.as_raw_fd(), outward.wants_input() | inward.wants_output()),
        ];
        let timeout = if outward.state == PipeState::Open { -1 } else { LINGER_MS };
        if !poll(&mut polls, timeout)? {
            return Ok(());
        }
    }
}

/// One direction of a relay.
struct Pipe {
    buffer: Vec<u8>,
    /// What is on its way.
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

    /// Move bytes as far as it goes now.
    fn go<R, W>(&mut self, mut from: &R, mut to: &W) -> io::Result<()>
    where
        for<'r> &'r R: Read,
        for<'w> &'w W: Write,
    {
        while self.state != PipeState::Closed {
            let moved = match (self.at.is_empty(), self.state) {
                (false, _) => to.write(&self.buffer[self.at.clone()]),
                (true, PipeState::Open) => from.read(&mut self.buffer),
                _ => return Ok(()),
            };
            match moved {
                Ok(n) if !self.at.is_empty() => self.at.start += n,
                Ok(0) => self.state = PipeState::Ending,
                Ok(n) => self.at = 0..n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
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

struct Proxy<'s> {
    socket: &'s Socket,
    plain: &'s UnixStream,
    tls: ServerConnection,
    /// Decrypted and not yet given to the reactor: the part `inward_at`.
    inward: Vec<u8>,
    inward_at: std::ops::Range<usize>,
    outward: Vec<u8>,
    /// The client sends no more.
    client_done: bool,
    /// The reactor has been told so.
    inward_closed: bool,
    /// The reactor sends no more; the client is told with close_notify.
    server_done: bool,
}

impl Proxy<'_> {
    /// From the client to the reactor, as far as it goes now.
    fn move_inward(&mut self) -> Result<(), ServeError> {
        while !self.inward_closed {
            if !self.inward_at.is_empty() {
                match (&mut &*self.plain).write(&self.inward[self.inward_at.clone()]) {
                    Ok(n) => self.inward_at.start += n,
                    Err(e) if blocked(&e) => return Ok(()),
                    // The reactor has closed the connection: what the client
                    // still says is of no interest.
                    Err(_) => self.inward_closed = true,
                }
                continue;
            }
            if self.client_done {
                // An error means that it is closed already.
                let _ = self.plain.shutdown(Shutdown::Write);
                self.inward_closed = true;
                continue;
            }
            match self.tls.reader().read(&mut self.inward) {
                Ok(0) => self.client_done = true,
                Ok(n) => self.inward_at = 0..n,
                Err(e) if blocked(&e) => {
                    if !self.read_records()? {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => self.client_done = true,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Read and decrypt what has come. False when nothing has.
    fn read_records(&mut self) -> Result<bool, ServeError> {
        match self.tls.read_tls(&mut &*self.socket) {
            Ok(_) => {}
            Err(e) if blocked(&e) => return Ok(false),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                self.client_done = true;
                return Ok(true);
            }
            Err(e) => return Err(e.into()),
        }
        if let Err(error) = self.tls.process_new_packets() {
            // The alert is a courtesy.
            let _ = self.tls.write_tls(&mut &*self.socket);
            return Err(error.into());
        }
        Ok(true)
    }

    /// From the reactor to the client, as far as it goes now. True when the
    /// session is over and all has been sent.
    fn move_outward(&mut self) -> Result<bool, ServeError> {
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut &*self.socket) {
                    Ok(_) => {}
                    Err(e) if blocked(&e) => return Ok(false),
                    // The client is gone; so is the session.
                    Err(_) => return Ok(true),
                }
            }
            if self.server_done {
                return Ok(true);
            }
            match (&mut &*self.plain).read(&mut self.outward) {
                Ok(0) => {
                    self.server_done = true;
                    self.tls.send_close_notify();
                }
                Ok(n) => self.tls.writer().write_all(&self.outward[..n])?,
                Err(e) if blocked(&e) => return Ok(false),
                Err(_) => self.server_done = true,
            }
        }
    }

    /// Wait until one of the sockets can do what is needed of it. False when
    /// the session is over and the client does not read its end.
    fn wait(&self) -> io::Result<bool> {
        let sending = self.tls.wants_write();
        let mut socket_events = 0;
        if sending {
            socket_events |= libc::POLLOUT;
        }
        if self.inward_at.is_empty() && !self.client_done && !self.inward_closed {
            socket_events |= libc::POLLIN;
        }
        let mut plain_events = 0;
        if !sending && !self.server_done {
            plain_events |= libc::POLLIN;
        }
        if !self.inward_at.is_empty() && !self.inward_closed {
            plain_events |= libc::POLLOUT;
        }
        let mut polls = [
            interest(self.socket.raw_fd(), socket_events),
            interest(self.plain.as_raw_fd(), plain_events),
        ];
        let timeout = if self.server_done { LINGER_MS } else { -1 };
        poll(&mut polls, timeout)
    }
}

/// Wait for one of the sockets. False when the time is over.
fn poll(polls: &mut [libc::pollfd], timeout_ms: libc::c_int) -> io::Result<bool> {
    loop {
        // SAFETY: the array lives for the call and its length is given.
        let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as _, timeout_ms) };
        if ready >= 0 {
            return Ok(ready > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// A socket of which nothing is wanted is left out: a hang-up would be
/// reported over and over.
fn interest(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 }
}

fn blocked(error: &io::Error) -> bool {
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
        let relay = thread::spawn(move || relay(&Socket::from(ours), &plain).unwrap());
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
        let relay = thread::spawn(move || relay(&Socket::from(ours), &plain).unwrap());
        drop(client);
        assert_eq!(reactor.read(&mut [0]).unwrap(), 0);
        drop(reactor);
        relay.join().unwrap();
    }
}
