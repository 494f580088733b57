//! Connections of peers, over unix sockets and over TCP, and waiting for several.

use crate::descriptors;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, RecvFlags, SendFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A client's connection, by a unix socket or by TCP.
#[derive(Debug)]
pub enum Stream {
    /// Of a unix socket.
    Unix(UnixStream),
    /// Over TCP, by which no descriptors can come.
    Tcp(TcpStream),
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Stream::Unix(stream)
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Stream::Tcp(stream)
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Unix(stream) => stream.into(),
            Stream::Tcp(stream) => stream.into(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Stream {
    /// Another descriptor of the same connection.
    pub fn duplicate(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
        })
    }

    /// The host that it comes from, over TCP. Of IPv6 the network: a host has as many addresses of
    /// its network as it likes.
    pub fn peer(&self) -> Option<IpAddr> {
        let Stream::Tcp(stream) = self else { return None };
        match stream.peer_addr().ok()?.ip().to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Some(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            address => Some(address),
        }
    }

    /// End the connection, whoever holds descriptors of it.
    pub fn hang_up(&self) {
        // It has ended already when this fails.
        let _ = net::shutdown(self, net::Shutdown::Both);
    }

    /// Time that a read and a write may take; `None` for any.
    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        set_socket_timeout(self, Timeout::Recv, read)?;
        Ok(set_socket_timeout(self, Timeout::Send, write)?)
    }

    /// Whether calls return instead of waiting.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(self, on)?)
    }

    /// Let the client send no descriptors. True if none has come, and none will.
    pub fn refuse_descriptors(&self) -> bool {
        let Stream::Unix(stream) = self else { return true };
        // A byte has come, or the end, if this does not say that it would have to wait.
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        descriptors::refuse_on(stream.as_fd())
            && net::recv(stream, &mut [0u8], flags) == Err(Errno::WOULDBLOCK)
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(net::recv(self, buffer, RecvFlags::empty())?.0)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(self, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The entry for `poll`. A descriptor of which nothing is wanted is left out: a hang-up would be
/// reported over and over.
pub fn interest(of: &impl AsRawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: if events == 0 { -1 } else { of.as_raw_fd() }, events, revents: 0 }
}

/// Wait for one of these; without end if the time is negative. False when the time is over.
pub fn poll(polls: &mut [libc::pollfd], timeout_ms: libc::c_int) -> io::Result<bool> {
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
