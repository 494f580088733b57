//! A socket to QEMU, read line by line against a deadline.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// A longer line is an error: nothing that is waited for is so long.
const LINE_BYTES_MAX: usize = 1 << 20;

/// One end of a socket whose other end is QEMU's.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: UnixStream,
    buffer: Vec<u8>,
}

impl Stream {
    /// Accept a connection, or `None` when there is none yet.
    pub(crate) fn accept(listener: &UnixListener) -> io::Result<Option<Stream>> {
        listener.set_nonblocking(true)?;
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                Ok(Some(Stream { socket, buffer: Vec::new() }))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn send(&mut self, text: &str) -> io::Result<()> {
        self.socket.write_all(text.as_bytes())
    }

    /// The next line, without its end. `TimedOut` after the deadline,
    /// `UnexpectedEof` when the other end is gone.
    pub(crate) fn line(&mut self, deadline: Instant) -> io::Result<String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|&b| b == b'\n') {
                let rest = self.buffer.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
            }
            self.fill(deadline)?;
        }
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        while self.buffer.len() < len {
            self.fill(deadline)?;
        }
        let rest = self.buffer.split_off(len);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        // Zero would mean: wait for ever.
        self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut chunk = [0; 16 << 10];
        match self.socket.read(&mut chunk) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
            Err(e) => Err(e),
        }
    }
}
