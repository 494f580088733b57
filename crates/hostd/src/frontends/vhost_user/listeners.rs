//! The VMM connected to a disk, for users outside of the connection's thread: a resize reaches the
//! guest, a detached disk drops it, a second VMM is refused.

use crate::log::LineLimit;
use crate::toll::Toll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, SendFlags};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG: request, flags (version 1), size.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

/// A VMM may hang up and come again before its descriptor receiver has told of the end. The new
/// connection waits up to this time for that.
const HANG_UP: Duration = Duration::from_secs(1);

/// The connection to one disk's socket, if there is one.
#[derive(Default)]
pub struct ConfigListeners {
    connection: Mutex<Connection>,
    left: Condvar,
    /// Cost of calls of the guest.
    pub(super) toll: Toll,
    pub(crate) lines: LineLimit,
}

#[derive(Default)]
enum Connection {
    #[default]
    None,
    /// A VMM is served.
    Serving {
        stream: UnixStream,
        /// Where the VMM listens to us.
        channel: Option<UnixStream>,
    },
    /// The VMM has gone, and its last requests are being carried out.
    Leaving,
}

impl ConfigListeners {
    /// The disk's configuration (its size) has changed: tell the guest, when
    /// its VMM wants to know. Does not wait.
    pub fn notify(&self) {
        let Connection::Serving { channel: Some(channel), .. } = &*self.lock() else { return };
        let message = CONFIG_CHANGE.map(u32::to_ne_bytes).concat();
        // A VMM that has stopped listening is not told.
        let _ = net::send(channel, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Say something that a VMM or its guest can have said as often as they like.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        self.lines.say(text);
    }

    /// Hang up on the VMM. Its thread carries out what is outstanding and ends.
    pub fn disconnect(&self) {
        if let Connection::Serving { stream, .. } = &*self.lock() {
            // It has hung up itself when this fails.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Serve this peer, unless another is being served. Waits for one that is leaving, and up to
    /// [`HANG_UP`] for another to hang up.
    pub(super) fn attach(self: Arc<Self>, stream: &UnixStream) -> io::Result<Option<PeerGuard>> {
        let stream = stream.try_clone()?;
        let mut connection = self.lock();
        loop {
            match &*connection {
                Connection::None => break,
                Connection::Serving { stream: other, .. }
                    if !has_hung_up(other, Duration::ZERO) =>
                {
                    let other = other.try_clone()?;
                    drop(connection);
                    if !has_hung_up(&other, HANG_UP) {
                        return Ok(None);
                    }
                    connection = self.lock();
                }
                _ => connection = self.left.wait(connection).expect(UNPOISONED),
            }
        }
        *connection = Connection::Serving { stream, channel: None };
        drop(connection);
        Ok(Some(PeerGuard(self)))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().expect(UNPOISONED)
    }
}

const UNPOISONED: &str = "nothing panics while it holds the connection";

/// The one peer being served. Another can be when this is dropped.
pub(super) struct PeerGuard(Arc<ConfigListeners>);

impl PeerGuard {
    /// The VMM listens here.
    pub fn listen(&self, new: UnixStream) {
        if let Connection::Serving { channel, .. } = &mut *self.0.lock() {
            *channel = Some(new);
        }
    }

    /// The peer has gone.
    pub fn leave(&self) {
        *self.0.lock() = Connection::Leaving;
    }
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        *self.0.lock() = Connection::None;
        self.0.left.notify_all();
    }
}

/// Has the peer hung up, or does it within this time?
fn has_hung_up(stream: &UnixStream, within: Duration) -> bool {
    let within = Timespec::try_from(within).ok();
    poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], within.as_ref()) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::super::gate::{SET_BACKEND_REQ_FD, peek_channel};
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;
    use std::thread;
    use vmm_sys_util::sock_ctrl_msg::ScmSocket;

    #[test]
    fn the_channel_is_peeked_at_and_told_of_changes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (channel, mut heard) = UnixStream::pair().unwrap();
        let message = [SET_BACKEND_REQ_FD, 1, 0].map(u32::to_ne_bytes).concat();
        theirs.send_with_fds(&[&message[..]], &[channel.as_raw_fd()]).unwrap();
        let peeked = peek_channel(&ours).unwrap().unwrap();
        let mut again = [0; 12];
        let (n, file) = ours.recv_with_fd(&mut again).unwrap();
        assert_eq!((n, &again[..], file.is_some()), (12, &message[..], true));

        let listeners = Arc::new(ConfigListeners::default());
        listeners.notify();
        let attached = listeners.clone().attach(&ours).unwrap().unwrap();
        listeners.notify();
        attached.listen(peeked);
        listeners.notify();
        let mut header = [0; 12];
        heard.read_exact(&mut header).unwrap();
        assert_eq!(header.to_vec(), CONFIG_CHANGE.map(u32::to_ne_bytes).concat());
        heard.set_nonblocking(true).unwrap();
        assert_eq!(heard.read(&mut header).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// Descriptors of this process that lead to the pipe with this number.
    fn open_to(pipe: &File) -> usize {
        let wanted = pipe.metadata().unwrap();
        let is_it = |m: std::fs::Metadata| (m.dev(), m.ino()) == (wanted.dev(), wanted.ino());
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        // One that another test has closed meanwhile is none of ours.
        fds.filter(|fd| std::fs::metadata(fd.path()).is_ok_and(is_it)).count()
    }

    #[test]
    fn of_several_descriptors_none_is_left_open() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(reader));
        let before = open_to(&pipe);
        let message = [SET_BACKEND_REQ_FD, 1, 0].map(u32::to_ne_bytes).concat();
        for count in [1, 2, 3, 32] {
            theirs.send_with_fds(&[&message[..]], &vec![pipe.as_raw_fd(); count]).unwrap();
            for _ in 0..3 {
                let peeked = peek_channel(&ours).unwrap();
                assert_eq!(open_to(&pipe), before + 1, "{count} descriptors");
                assert!(peeked.is_some());
                drop(peeked);
                assert_eq!(open_to(&pipe), before, "{count} descriptors");
            }
            let mut taken = [0; 12];
            (&ours).read_exact(&mut taken).unwrap();
        }
    }

    #[test]
    fn other_messages_have_no_channel() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let message = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
        theirs.send_with_fds(&[&message[..]], &[theirs.as_raw_fd()]).unwrap();
        assert!(peek_channel(&ours).unwrap().is_none());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(peek_channel(&ours).unwrap().is_none());
    }

    #[test]
    fn a_second_peer_is_refused_until_the_first_has_gone() {
        let listeners = Arc::new(ConfigListeners::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (second, _second) = UnixStream::pair().unwrap();
        let attached = listeners.clone().attach(&ours).unwrap().unwrap();
        assert!(listeners.clone().attach(&second).unwrap().is_none());
        // The first has hung up and its thread has not noticed yet.
        drop(theirs);
        let waiting = {
            let listeners = listeners.clone();
            thread::spawn(move || listeners.attach(&second).unwrap().is_some())
        };
        attached.leave();
        drop(attached);
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn a_peer_can_be_dropped() {
        let listeners = Arc::new(ConfigListeners::default());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let _attached = listeners.clone().attach(&ours).unwrap().unwrap();
        listeners.disconnect();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
}
