//! Between a TLS session and the reactor's plain socket: one thread, two
//! sockets that never block, bounded buffers. In each direction the next piece
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
        loop {
            // SAFETY: the array lives for the call and its length is given.
            let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as _, timeout) };
            if ready >= 0 {
                return Ok(ready > 0);
            }
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
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
