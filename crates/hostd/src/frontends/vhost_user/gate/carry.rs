//! The work of a gate: messages from the VMM to the daemon, replies back.

use super::super::doorbell::Doorbell;
use super::super::mapping;
use super::super::wire::{BODY_BYTES_MAX, HEADER_BYTES, REFUSED, SET_BACKEND_REQ_FD, body_bytes};
use super::end;
use crate::descriptors;
use crate::sandbox::{self, Kind};
use rustix::net::RecvFlags;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// VHOST_USER_SET_LOG_FD, SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR: with an eventfd. Descriptors
/// of all others are memory.
const WITH_EVENTFD: [u32; 4] = [7, 12, 13, 14];
/// Flags of a gate's own message: version 1 of the protocol, as in all others.
const FLAGS: u32 = 1;
const STACK_BYTES: usize = 128 << 10;

/// Serve this VMM, and end with the daemon's end of it.
pub fn run(vmm: UnixStream, daemon: UnixStream) -> ! {
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"vhost-gate".as_ptr()) };
    descriptors::take_on(vmm.as_fd());
    let _ = serve(&vmm, &daemon);
    end()
}

fn serve(vmm: &UnixStream, daemon: &UnixStream) -> io::Result<()> {
    hold_little(daemon)?;
    let (channels, opened) = mpsc::channel();
    let (own_vmm, own_daemon) = (vmm.try_clone()?, daemon.try_clone()?);
    let builder = || thread::Builder::new().stack_size(STACK_BYTES);
    builder().spawn(move || {
        sandbox::enter(Kind::FrontEnd);
        hand_to_daemon(&own_vmm, &own_daemon, &channels);
    })?;
    builder().spawn(move || {
        sandbox::enter(Kind::FrontEnd);
        tell_vmm(&opened);
    })?;
    sandbox::enter(Kind::FrontEnd);
    while let Some(message) = Message::receive(daemon)? {
        message.send(vmm)?;
    }
    Ok(())
}

/// Let only a few messages wait in the socket to the daemon. Their descriptors count for the daemon's
/// user. When that user has too many on their way (RLIMIT_NOFILE), none of its processes can send
/// any: one VMM would stop the others.
fn hold_little(daemon: &UnixStream) -> io::Result<()> {
    // The kernel raises it to the smallest size that it allows.
    Ok(rustix::net::sockopt::set_socket_send_buffer_size(daemon, 1)?)
}

/// Hand on what the VMM says until it hangs up, or sends what must not reach the daemon.
fn hand_to_daemon(vmm: &UnixStream, daemon: &UnixStream, channels: &Sender<Channel>) {
    let refuse = |why: io::Error| {
        let text = why.to_string();
        let text = &text.as_bytes()[..text.len().min(BODY_BYTES_MAX)];
        let header = [REFUSED, FLAGS, text.len() as u32].map(u32::to_ne_bytes).concat();
        let _ = Message { bytes: [&header, text].concat(), files: Vec::new() }.send(daemon);
    };
    loop {
        let message = match Message::receive(vmm) {
            Ok(Some(message)) => message,
            Ok(None) => break,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break,
            Err(e) => {
                refuse(e);
                break;
            }
        };
        match message.admit(channels) {
            Ok(message) if message.send(daemon).is_ok() => {}
            Ok(_) => return, // the daemon has hung up
            Err(e) => {
                refuse(e);
                break;
            }
        }
    }
    // The daemon may have replies still.
    let _ = daemon.shutdown(Shutdown::Write);
}

/// A socket on which the VMM wants to be told of changes, and where the daemon tells of them.
type Channel = (UnixStream, UnixStream);

/// Pass on what the daemon tells the VMM by itself.
fn tell_vmm(channels: &Receiver<Channel>) {
    for (vmm, daemon) in channels {
        while let Ok(Some(message)) = Message::receive(&daemon) {
            if message.send(&vmm).is_err() {
                break;
            }
        }
    }
}

/// A message with all that belongs to it.
struct Message {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Message {
    /// The next one; `None` when the peer has hung up. Descriptors come with the first byte.
    fn receive(from: &UnixStream) -> io::Result<Option<Message>> {
        let mut header = [0; HEADER_BYTES];
        let (received, files) = receive(from, &mut header)?;
        if received == 0 {
            return Ok(None);
        }
        receive_rest(from, &mut header[received..])?;
        let len = body_bytes(&header);
        if len > BODY_BYTES_MAX {
            return Err(other("a message of more than 4096 bytes"));
        }
        let mut bytes = header.to_vec();
        bytes.resize(HEADER_BYTES + len, 0);
        receive_rest(from, &mut bytes[HEADER_BYTES..])?;
        Ok(Some(Message { bytes, files }))
    }

    fn send(&self, mut to: &UnixStream) -> io::Result<()> {
        let fds: Vec<RawFd> = self.files.iter().map(AsRawFd::as_raw_fd).collect();
        let sent = to.send_with_fds(&[&self.bytes[..]], &fds);
        let sent = sent.map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        to.write_all(&self.bytes[sent..])
    }

    /// The message as the daemon may have it. Of a socket it gets the other end of one of ours: what
    /// waits in a VMM's own may be descriptors too.
    fn admit(mut self, channels: &Sender<Channel>) -> io::Result<Message> {
        let request: [u8; 4] = std::array::from_fn(|i| self.bytes[i]);
        match u32::from_ne_bytes(request) {
            REFUSED => return Err(other("a message that is a gate's alone")),
            SET_BACKEND_REQ_FD => {
                let files = std::mem::take(&mut self.files);
                let channel = |file| in_place_of(file, channels);
                self.files = files.into_iter().map(channel).collect::<io::Result<_>>()?;
            }
            request => {
                for file in &self.files {
                    check(file, WITH_EVENTFD.contains(&request))?;
                }
            }
        }
        Ok(self)
    }
}

/// The end of a channel that the daemon gets in place of a VMM's socket.
fn in_place_of(file: OwnedFd, channels: &Sender<Channel>) -> io::Result<OwnedFd> {
    let target = target(&file)?;
    if !target.starts_with("socket:") {
        return Err(other(format!("{target} is not a socket")));
    }
    let (ours, theirs) = UnixStream::pair()?;
    let _ = channels.send((file.into(), ours)); // its reader is there as long as we
    Ok(theirs.into())
}

/// Fails for a descriptor whose last close may wait.
fn check(file: &OwnedFd, is_eventfd: bool) -> io::Result<()> {
    let file = File::from(file.try_clone()?);
    if is_eventfd {
        return Doorbell::new(file).map(drop);
    }
    mapping::page_bytes(&file).map_err(io::Error::other)?;
    // Devices are on a tmpfs too.
    match file.metadata()?.is_file() {
        true => Ok(()),
        false => Err(other("memory that is not in a file")),
    }
}

/// Target of a descriptor.
fn target(file: &OwnedFd) -> io::Result<String> {
    let target = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(target.display().to_string())
}

fn receive(from: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    loop {
        match descriptors::receive(from.as_fd(), bytes, RecvFlags::empty()) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// Fill `bytes`, with which no descriptors may come.
fn receive_rest(from: &UnixStream, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (received, files) = receive(from, bytes)?;
        if received == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if !files.is_empty() {
            return Err(other("descriptors in the middle of a message"));
        }
        bytes = &mut bytes[received..];
    }
    Ok(())
}

fn other(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

#[cfg(test)]
mod tests;
