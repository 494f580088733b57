//! The vhost-user-blk front end: a VMM connects, hands over its guest's memory
//! and virtqueues, and each virtqueue becomes a [`crate::port::Port`] of the
//! reactor.
//!
//! - [`mod@request`]: what a descriptor chain asks for (pure).
//! - [`mod@ring`]: a split virtqueue in shared memory.
//! - [`mod@vring`]: a virtqueue being served, chains in flight.
//! - [`mod@inflight`]: the record of them that outlives the daemon.
//! - `gate`: the process that receives what a VMM sends.
//! - `port`: a virtqueue in the reactor. `session`: the protocol, on a thread of
//!   its own, with `memory`, `account`, `config`, `doorbell`, `listeners`.
//!
//! Specifications: VIRTIO 1.2 sections 2.7 and 5.2, and QEMU's
//! `docs/interop/vhost-user.rst`.
//!
//! A guest can do nothing here but stop its own virtqueues. Its VMM can do no more: where it takes
//! memory away that it has handed over, its guest's queues stop and the connection ends
//! ([`crate::sigbus`]). Memory is taken only where reading it waits for nobody
//! (`memory`), and what a VMM makes the daemon hold is counted (`account`). Seals would not do
//! instead: files on tmpfs and hugetlbfs have none, and a sealed file can lack pages too.

pub(crate) mod account;
mod config;
mod dirty_log;
mod doorbell;
mod gate;
pub mod inflight;
mod listeners;
mod memory;
mod port;
pub mod request;
pub mod ring;
mod session;
pub mod vring;

#[doc(hidden)] // for `crates/fuzz`
pub use account::Account;
pub use account::measure as measure_limits;
pub use doorbell::start_maker as start_rings;
pub use gate::{Gate, pass, start as start_gates};
pub use listeners::ConfigListeners;
#[doc(hidden)] // for `crates/fuzz`
pub use memory::GuestMemory;

use crate::descriptors::told;
use crate::images::{ImageUse, Limits};
use crate::port::DiskId;
use crate::reactor::Handle;
use crate::stream::{interest, poll};
use crate::threads::lock;
use doorbell::Notes;
use gate::peek_channel;
use listeners::PeerGuard;
#[cfg(test)]
pub(crate) use memory::memory_file;
pub(crate) use session::Session;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use vhost::vhost_user::{BackendReqHandler, Error};

/// Most virtqueues of a disk. QEMU asks for one for each vCPU, and does not start when that is more.
pub const QUEUES_MAX: u16 = 256;

/// A disk, for those who connect to its socket.
#[derive(Clone)]
pub struct DiskHandle {
    /// For messages.
    pub name: String,
    /// The serial number that its guest sees, at most 20 bytes.
    pub serial: String,
    /// Its number in its reactor.
    pub disk: DiskId,
    pub handle: Handle,
    /// Its limits as they are now.
    pub limits: Arc<dyn Fn() -> Limits + Send + Sync>,
    /// The connected VMM. One list for each disk, shared by all its handles.
    pub config_changed: Arc<ConfigListeners>,
    /// Hears when its queues run.
    pub image_use: Arc<dyn ImageUse>,
    /// Number of virtqueues that the guest may use, from 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Most bytes of its guest's memory that are mapped [the host's memory].
    pub guest_memory: Option<u64>,
}

/// Serve one VMM on this thread until it hangs up. What it has in flight then is
/// carried out before this returns. Trouble is told on the standard error: the
/// VMM sees a closed connection.
pub fn serve(stream: UnixStream, disk: DiskHandle) {
    let (name, peers) = (disk.name.clone(), disk.config_changed.clone());
    if let Err(text) = try_serve(stream, disk) {
        peers.say(|| format!("{name}: {text}"));
    }
}

/// [`serve`] without the log: says why the connection ended. Public for `crates/fuzz`.
#[doc(hidden)]
pub fn try_serve(stream: UnixStream, disk: DiskHandle) -> Result<(), String> {
    let attached = match disk.config_changed.clone().attach(&stream) {
        Ok(Some(attached)) => attached,
        Ok(None) => return Err("refused a second vhost-user connection".into()),
        Err(e) => return Err(format!("vhost-user connection: {}", told(&e))),
    };
    let session = Arc::new(Mutex::new(Session::new(disk)));
    let talked = talk(stream, session.clone(), &attached);
    attached.leave();
    // Ends the ports.
    drop(session);
    talked.map_err(|e| match e {
        Error::SocketError(e) | Error::SocketBroken(e) => {
            format!("vhost-user connection closed: {}", told(&e))
        }
        e => format!("vhost-user connection closed: {e}"),
    })
}

/// Answer messages until the peer hangs up or says something that makes no
/// sense. A request that was refused also ends the connection: not every message
/// is answered, and a VMM that goes on without what it asked for would wait for ever.
fn talk(
    stream: UnixStream,
    session: Arc<Mutex<Session>>,
    attached: &PeerGuard,
) -> Result<(), Error> {
    let own = stream.try_clone().map_err(Error::SocketError)?;
    let notes = lock(&session).notes();
    let wake = notes.read().map_err(Error::SocketError)?;
    let mut handler = BackendReqHandler::from_stream(stream, session.clone());
    loop {
        wait(&own, wake, &notes, &session).map_err(Error::SocketError)?;
        let channel = peek_channel(&own).map_err(Error::SocketError)?;
        match handler.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected) => return Ok(()),
            Err(Error::SocketBroken(e)) if e.raw_os_error() == Some(libc::ECONNRESET) => {
                return Ok(());
            }
            Err(e) => return Err(e),
        }
        if let Some(channel) = channel {
            attached.listen(channel);
        }
    }
}

/// Wait for a message, and do meanwhile what the reactor has left to this thread.
fn wait(own: &UnixStream, wake: RawFd, notes: &Notes, session: &Mutex<Session>) -> io::Result<()> {
    loop {
        let patience = lock(session).catch_up();
        let mut polls = [interest(own, libc::POLLIN), interest(&wake, libc::POLLIN)];
        poll(&mut polls, patience.map_or(-1, |time| time.as_millis() as libc::c_int + 1))?;
        if polls[1].revents != 0 {
            notes.seen();
        }
        if polls[0].revents != 0 {
            return Ok(());
        }
    }
}
