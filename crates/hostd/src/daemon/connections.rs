//! Connections: accepted, counted, and given to a thread of their own.

use super::host::{CLIENTS_MAX, Host, ServedDisk, lock};
use super::sockets::Stream;
use crate::control;
use crate::frontends::nbd::{self, Export, Exports, ServeError};
use crate::frontends::vhost_user::{self, DiskHandle};
use crate::log::say;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;

/// Stack of a connection's thread; what is touched of it is what it costs.
const STACK_BYTES: usize = 256 << 10;

/// What comes in at a listener.
pub(super) enum Kind {
    /// vhost-user, for this disk.
    Vhost(Arc<ServedDisk>),
    /// NBD, for this disk.
    NbdOf(Arc<ServedDisk>),
    /// NBD, for all disks by name.
    Nbd,
    /// The control protocol.
    Control,
    /// HTTP, for metrics.
    Metrics,
}

impl Kind {
    /// Of which disk, if of one.
    pub fn disk(&self) -> Option<&Arc<ServedDisk>> {
        match self {
            Kind::Vhost(disk) | Kind::NbdOf(disk) => Some(disk),
            Kind::Nbd | Kind::Control | Kind::Metrics => None,
        }
    }

    pub fn is_of(&self, disk: &Arc<ServedDisk>) -> bool {
        self.disk().is_some_and(|of| Arc::ptr_eq(of, disk))
    }

    /// The word for it in status and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Kind::Vhost(_) => "vhost",
            Kind::NbdOf(_) | Kind::Nbd => "nbd",
            Kind::Control => "control",
            Kind::Metrics => "metrics",
        }
    }
}

/// Connections under way, up to a number.
pub struct Places {
    max: usize,
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Default)]
struct Taken {
    last: u64,
    /// Duplicates of the streams, to hang up.
    streams: BTreeMap<u64, Option<Stream>>,
    /// No more.
    closed: bool,
    /// That there was no place has been said.
    said_full: bool,
}

/// A connection's place; free again when this is dropped.
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Room for `max`.
    pub fn new(max: usize) -> Arc<Places> {
        Arc::new(Places { max, taken: Mutex::default(), freed: Condvar::new() })
    }

    /// Take a place for a connection; `None` when there is none. What is said
    /// about that is said once until there is room again.
    pub(super) fn take(self: &Arc<Places>, what: &str, stream: Option<Stream>) -> Option<Place> {
        let mut taken = lock(&self.taken);
        if taken.closed {
            return None;
        }
        if taken.streams.len() >= self.max {
            if !std::mem::replace(&mut taken.said_full, true) {
                say(&format!("{what}: {} connections, no more are accepted", self.max));
            }
            return None;
        }
        taken.last += 1;
        let number = taken.last;
        taken.streams.insert(number, stream);
        Some(Place { places: self.clone(), number })
    }

    /// Hang up on everybody, and give no more places.
    pub fn close(&self) {
        let mut taken = lock(&self.taken);
        taken.closed = true;
        taken.streams.values().flatten().for_each(Stream::hang_up);
    }

    /// Wait until no place is taken.
    pub fn wait_empty(&self) {
        let mut taken = lock(&self.taken);
        while !taken.streams.is_empty() {
            taken = self.freed.wait(taken).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.streams.remove(&self.number);
        taken.said_full = false;
        self.places.freed.notify_all();
    }
}

/// Accept a connection at the listener with this token, if there still is one.
///
/// # Errors
/// What the system says; the listener stays.
pub(super) fn accept(host: &Arc<Host>, token: u64) -> io::Result<()> {
    let Some(served) = host.served(token) else {
        return Ok(()); // detached meanwhile
    };
    let Some(stream) = served.listener.accept()? else {
        return Ok(());
    };
    match (&served.kind, stream) {
        (Kind::Vhost(disk), Stream::Unix(stream)) => vhost(host, disk, stream, || ()),
        (Kind::Control, Stream::Unix(stream)) => {
            if let Some(place) = host.clients.take("control", None) {
                client(host, place, stream, control::serve);
            } else {
                let text = format!("{CLIENTS_MAX} clients are connected, and that is the most");
                control::refuse(&stream, &format!("{text}; end one of them"));
            }
        }
        (Kind::Metrics, stream) => {
            if let Some(place) = host.scrapers.take("metrics", None) {
                match stream {
                    Stream::Tcp(stream) => client(host, place, stream, control::serve_http),
                    Stream::Unix(stream) => client(host, place, stream, control::serve_http),
                }
            }
        }
        (Kind::NbdOf(disk), stream) => nbd(host, Some(disk.clone()), stream),
        (Kind::Nbd, stream) => nbd(host, None, stream),
        (kind @ (Kind::Vhost(_) | Kind::Control), Stream::Tcp(_)) => {
            say(&format!("{}: TCP will not do, a unix socket is needed", kind.name()));
        }
    }
    Ok(())
}

/// Run what talks to a peer on a thread of its own.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let builder = Builder::new().name(name.chars().take(15).collect()).stack_size(STACK_BYTES);
    if let Err(e) = builder.spawn(work) {
        say(&format!("{name}: cannot start a thread: {e}; the connection was closed"));
    }
}

/// A client of the control socket or of metrics.
fn client<S: Send + 'static>(
    host: &Arc<Host>,
    place: Place,
    stream: S,
    talk: impl FnOnce(&Host, S) -> io::Result<()> + Send + 'static,
) {
    let host = host.clone();
    spawn("client", move || {
        let _place = place;
        let _ = talk(&host, stream); // a client that went away is no news
    });
}

/// A VMM at the socket of a disk. `ended` is called when it has gone.
pub(super) fn vhost(
    host: &Arc<Host>,
    disk: &Arc<ServedDisk>,
    stream: UnixStream,
    ended: impl FnOnce() + Send + 'static,
) {
    let stream = Stream::Unix(stream);
    let Some(all) = host.places.take("the daemon", None) else { return };
    let Ok(own) = stream.duplicate() else { return };
    let Some(place) = disk.places.take(&disk.what(), Some(own)) else { return };
    let Stream::Unix(stream) = stream else { return };
    let handle = DiskHandle {
        name: disk.config.name.clone(),
        disk: disk.id,
        handle: disk.device.handle().clone(),
        limits: disk.limits_source(),
        config_changed: disk.config_changed.clone(),
        queues: vhost_user::QUEUES_MAX,
    };
    spawn(&format!("vhost-{}", disk.config.name), move || {
        let _places = (all, place);
        vhost_user::serve(stream, handle);
        ended();
    });
}

/// A client of NBD, at the socket of a disk or at that of all.
fn nbd(host: &Arc<Host>, only: Option<Arc<ServedDisk>>, stream: Stream) {
    let all = match &only {
        Some(_) => host.places.take("the daemon", None),
        None => host.nbd_places.take("NBD", None),
    };
    let Some(all) = all else { return };
    let (Ok(own), Ok(other)) = (stream.duplicate(), stream.duplicate()) else { return };
    let of_only = match &only {
        Some(disk) => match disk.places.take(&disk.what(), Some(other)) {
            None => return,
            place => place,
        },
        None => None,
    };
    let places = Arc::new((all, of_only));
    if let Stream::Tcp(tcp) = &stream {
        super::sockets::keep_alive(tcp);
    }
    let (tls, required) = (host.tls().cloned(), host.config().tls.required);
    let door = Arc::new(Door { host: host.clone(), only, stream: own, places });
    spawn("nbd", move || {
        let served = match stream {
            Stream::Unix(stream) => nbd::serve(stream, door, tls, required),
            Stream::Tcp(stream) => nbd::serve(stream, door, tls, required),
        };
        match served {
            // One that came only to look, as those do who ask whether we live.
            Err(ServeError::Io(e)) if e.kind() == io::ErrorKind::BrokenPipe => {}
            Err(e) => say(&e.to_string()),
            Ok(()) => {}
        }
    });
}

/// What one connection of NBD may ask for.
struct Door {
    host: Arc<Host>,
    /// The socket is this disk's: whatever name the client gives, it has said
    /// already which disk is meant.
    only: Option<Arc<ServedDisk>>,
    stream: Stream,
    /// Among all connections, and among the only disk's.
    places: Arc<(Place, Option<Place>)>,
}

impl Exports for Door {
    fn find(&self, name: &str) -> Option<Export> {
        let disk = match &self.only {
            Some(disk) => disk.clone(),
            None if name.is_empty() => {
                let mut disks = self.host.disks();
                if disks.len() == 1 { disks.pop()? } else { return None }
            }
            None => self.host.disk(name).ok()?,
        };
        // Whoever has the export can open a port by it: the disk's number must
        // not become another's before it is gone.
        let place = match &self.only {
            Some(_) => None,
            None => Some(disk.places.take(&disk.what(), Some(self.stream.duplicate().ok()?))?),
        };
        let places = (place, self.places.clone());
        let limits = disk.limits_source();
        Some(Export {
            name: disk.config.name.clone(),
            disk: disk.id,
            handle: disk.device.handle().clone(),
            limits: Arc::new(move || {
                let _held = &places;
                limits()
            }),
        })
    }

    fn names(&self) -> Vec<String> {
        let disks = self.only.clone().map_or_else(|| self.host.disks(), |disk| vec![disk]);
        disks.iter().map(|disk| disk.config.name.clone()).collect()
    }
}
