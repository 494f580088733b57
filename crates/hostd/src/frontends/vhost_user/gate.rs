//! A process of its own, the descriptor receiver, receives a VMM's messages. It hands on messages
//! and harmless descriptors.
//!
//! Whoever has the last descriptor of a file closes it, and the close of a file on a file system of
//! the sender's (FUSE) may wait for ever, uninterruptibly. In the daemon such a thread keeps the
//! process, and with it the locks of all images, alive past SIGKILL. A gate has nothing but one
//! VMM's connection, and keeps nobody waiting.
//!
//! ```text
//!  VMM ◀──▶ gate ◀──socket pair──▶ connection's thread
//!            ▲ forked for each connection
//!          keeper ◀── the connection, and the other end of the socket pair ── whoever accepts
//! ```
//!
//! The keeper is forked by the program before it has threads ([`start`]). Without one, as in tests
//! of the library, connections are served directly.

use super::doorbell::Doorbell;
use super::memory;
use crate::descriptors;
use crate::log::say;
use crate::sandbox::{self, Kind};
use rustix::net::{self, RecvFlags};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Pause of the keeper before it tries again to fork a process.
const FORK_PAUSE: Duration = Duration::from_millis(50);

/// Where the keeper takes connections.
static KEEPER: OnceLock<UnixStream> = OnceLock::new();

/// Start the keeper. Before the process has threads.
///
/// # Errors
/// There is no process to be had, or there are threads already.
pub fn start() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() > 1 {
        return Err(io::Error::other("the process has threads already"));
    }
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: there are no other threads, whose locks the child would find taken.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => keep(theirs),
        _ => {
            // The thread that accepts connections must not wait.
            ours.set_nonblocking(true)?;
            let _ = KEEPER.set(ours); // started once
            Ok(())
        }
    }
}

/// A connection's gate, in the daemon.
pub struct Gate(UnixStream);

impl Gate {
    /// Wait until the process has ended: a file that it has to close may keep it.
    pub fn wait(mut self) {
        let _ = self.0.read(&mut [0]); // nothing is written
    }
}

/// Have a VMM's connection received by a gate. Returns what the daemon talks to.
///
/// # Errors
/// When there are no descriptors left, or too many connections wait for a process.
pub fn pass(vmm: UnixStream) -> io::Result<(UnixStream, Option<Gate>)> {
    if let Some(keeper) = KEEPER.get() {
        let (ours, theirs) = UnixStream::pair()?;
        let (ended, token) = UnixStream::pair()?;
        let fds = [vmm.as_raw_fd(), theirs.as_raw_fd(), token.as_raw_fd()];
        match keeper.send_with_fds(&[&[0u8][..]], &fds) {
            Ok(_) => return Ok((ours, Some(Gate(ended)))),
            Err(e) if matches!(e.errno(), libc::EPIPE | libc::ECONNRESET) => {
                say(&format!("the process that receives for VMMs has ended ({e})"));
            }
            // The keeper is busy. The daemon must not receive in its place.
            Err(e) => return Err(io::Error::from_raw_os_error(e.errno())),
        }
    }
    descriptors::take_on(vmm.as_fd());
    Ok((vmm, None))
}

/// The keeper: fork a gate for each connection, until the daemon has ended. Never has descriptors of
/// a VMM itself.
fn keep(daemon: UnixStream) -> ! {
    // SAFETY: plain system calls. The daemon's other descriptors are closed, and nothing here uses
    // them; signals to the process group are the daemon's: this process ends with it.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"vhost-keeper".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        (0..=2).for_each(|fd| _ = libc::dup2(null, fd));
        let fd = daemon.as_raw_fd() as libc::c_uint;
        if fd > 3 {
            libc::close_range(3, fd - 1, 0);
        }
        libc::close_range(fd + 1, libc::c_uint::MAX, 0);
        libc::chdir(c"/".as_ptr());
    }
    loop {
        // Only a look: what comes with it stays in the socket.
        let mut byte = [0u8; 1];
        // SAFETY: one byte to write to.
        let seen =
            unsafe { libc::recv(daemon.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
        let is_interrupted =
            seen < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if is_interrupted {
            continue;
        }
        if seen <= 0 {
            end();
        }
        // There may be too many processes for a while: VMMs can cause that.
        if !let_in(&daemon) {
            thread::sleep(FORK_PAUSE);
        }
    }
}

/// Fork a gate, and wait until it has taken the next connection. False when nothing can be forked.
fn let_in(daemon: &UnixStream) -> bool {
    let Ok((mut taken, takes)) = io::pipe() else { return false };
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => false,
        0 => {
            drop(taken);
            let received = descriptors::receive(daemon.as_fd(), &mut [0], RecvFlags::empty());
            // SAFETY: the keeper's end, which is the daemon's: not used here any more.
            unsafe { libc::close(daemon.as_raw_fd()) };
            drop(takes);
            let Ok(Ok([vmm, ours, token])) = received.map(|(_, f)| <[OwnedFd; 3]>::try_from(f))
            else {
                end()
            };
            let _token = File::from(token); // closed by the end of the process
            run(vmm.into(), ours.into())
        }
        _ => {
            drop(takes);
            let _ = taken.read(&mut [0]);
            true
        }
    }
}

/// End this process at once.
fn end() -> ! {
    // SAFETY: takes a number. What the daemon has registered for its end is not run.
    unsafe { libc::_exit(0) }
}

// The work of a gate: messages from the VMM to the daemon, replies back.

/// VHOST_USER_SET_LOG_FD, SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR: with an eventfd. Descriptors
/// of all others are memory.
const WITH_EVENTFD: [u32; 4] = [7, 12, 13, 14];
/// Flags of a gate's own message: version 1 of the protocol, as in all others.
const FLAGS: u32 = 1;
const STACK_BYTES: usize = 128 << 10;

/// Serve this VMM, and end with the daemon's end of it.
fn run(vmm: UnixStream, daemon: UnixStream) -> ! {
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
    memory::page_bytes(&file).map_err(io::Error::other)?;
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

// The messages of a VMM as both its gate and its connection's thread see them.

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

#[cfg(test)]
mod tests;
