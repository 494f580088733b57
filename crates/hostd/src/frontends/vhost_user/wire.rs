//! The messages of a VMM as both its gate and its connection's thread see them.

use crate::descriptors;
use rustix::net::{self, RecvFlags};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// VHOST_USER_SET_BACKEND_REQ_FD: the VMM hands over a channel for our messages.
pub const SET_BACKEND_REQ_FD: u32 = 21;
/// A message from a gate, and from nobody else: why it hands on no more. Its payload is text.
pub const REFUSED: u32 = u32::MAX;

/// Request, flags and size of the payload.
pub const HEADER_BYTES: usize = 12;
/// Largest payload, as crate `vhost` takes it.
pub const BODY_BYTES_MAX: usize = 4096;

/// Bytes of the payload that this header announces; one more than there may be for all that is too
/// long.
pub fn body_bytes(header: &[u8; HEADER_BYTES]) -> usize {
    let size: [u8; 4] = std::array::from_fn(|i| header[8 + i]);
    (u32::from_ne_bytes(size) as usize).min(BODY_BYTES_MAX + 1)
}

/// Wait for the next message. When it is the one that names the channel on which
/// the VMM listens to us, a descriptor of that channel; the message stays. Crate
/// `vhost` hands the channel to its handler in a form that cannot send
/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG.
pub fn peek_channel(stream: &UnixStream) -> io::Result<Option<UnixStream>> {
    let mut request = [0; 4];
    let flags = RecvFlags::PEEK | RecvFlags::WAITALL;
    let (n, _) = net::recv(stream, &mut request, flags)?;
    if n < 4 {
        return Ok(None); // the VMM has hung up
    }
    let request = u32::from_ne_bytes(request);
    if request == REFUSED {
        return Err(refusal(stream));
    }
    // Crate `vhost` would drop a message without room for all its descriptors, and wait for its rest
    // for ever: this fails.
    let (_, files) = descriptors::receive(stream.as_fd(), &mut [0], RecvFlags::PEEK)?;
    let is_channel = request == SET_BACKEND_REQ_FD;
    Ok(files.into_iter().next().filter(|_| is_channel).map(UnixStream::from))
}

/// Why the gate hands on no more, from its message.
fn refusal(mut stream: &UnixStream) -> io::Error {
    let mut header = [0; HEADER_BYTES];
    let mut text = vec![0; BODY_BYTES_MAX];
    let read = stream.read_exact(&mut header).and_then(|()| {
        text.truncate(body_bytes(&header));
        stream.read_exact(&mut text)
    });
    match read {
        Ok(()) => io::Error::other(String::from_utf8_lossy(&text).replace(char::is_control, "?")),
        Err(e) => e,
    }
}
