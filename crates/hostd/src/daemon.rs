//! The daemon: a [`Host`], and the control thread that accepts connections and
//! waits for the end.
//!
//! 1. [`Daemon::start`] makes the sockets, opens images and starts reactors;
//!    what fails there has left nothing behind.
//! 2. [`Daemon::run`] accepts connections until a signal or a [`Stopper`]. Each
//!    connection talks on a thread of its own, and data moves in the reactors:
//!    nothing that a peer does or leaves undone holds this thread up.
//! 3. It ends by closing all listeners, letting reactors carry out what is
//!    outstanding, and removing the sockets.
//!
//! Absent: timers, and any work while nobody asks for some. The exceptions are the
//! thread that looks at the host's memory while the caches' size is `auto`, the one that keeps the
//! web page's history (with `--web`, or while somebody looks at the page), and the service
//! manager's watchdog, if it asks for one.

mod watchdog;

pub use crate::host::{
    Attached, Device, FREEZE_MAX, FailedDisk, Host, HostError, Inherited, Listener, PATH_BYTES_MAX,
    POLICY_DEFAULT, Pending, ServedDisk, SocketError, StartOptions, Stopper, VhostAt, check_tls,
    inherit,
};
pub use watchdog::{NotifyState, activated, notify};

use crate::config::Config;
use crate::control::{self, Page, Recorder, Token, serve_control, serve_metrics, serve_web};
use crate::descriptors::told;
use crate::frontends::nbd::{self, Export, Exports, ServeError};
use crate::frontends::vhost_user::{self, DiskHandle, Gate};
use crate::host::{
    CLIENTS_MAX, ConnectionSlot, ConnectionSlots, MemorySource, Service, Used, WAKE, keep_alive,
};
use crate::images::User;
use crate::log::{self, say};
use crate::sandbox::{self, Kind};
use crate::stream::Stream;
use crate::threads::{self, STACK_BYTES, lock};
use rustix::fs::Mode;
use rustix::process::{self, Resource, Rlimit};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use watchdog::Watchdog;

/// Pause after an `accept` that failed for want of descriptors or memory: the
/// listener stays ready, and without a pause this would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that are accepted in a period, some 800 a second.
const PACE_CONNECTIONS: usize = 8;
const PACE_PERIOD: Duration = Duration::from_millis(10);

pub struct Daemon {
    host: Arc<Host>,
    page: Arc<Page>,
    wake: UnixStream,
    stopper: Stopper,
}

impl Daemon {
    /// Open, bind and start everything.
    ///
    /// # Errors
    /// The first thing that failed, with its path. Sockets made until then are
    /// gone again.
    pub fn start(config: Config, options: StartOptions) -> Result<Daemon, HostError> {
        let system = |what| move |e| HostError::System(what, e);
        let (wake, wakes) = UnixStream::pair().map_err(system("socketpair"))?;
        wake.set_nonblocking(true).map_err(system("socketpair"))?;
        wakes.set_nonblocking(true).map_err(system("socketpair"))?;
        let stopper = Stopper::new(wakes);
        if options.ends_by_signals {
            stopper.by_signals().map_err(system("signals"))?;
        }
        let epoll = Epoll::new().map_err(system("epoll"))?;
        let event = EpollEvent::new(EventSet::IN, WAKE);
        let added = epoll.ctl(ControlOperation::Add, wake.as_raw_fd(), event);
        added.map_err(system("epoll"))?;
        // Whoever starts us tells of the error past our log.
        let page = page(&config)?;
        let host = Host::start(config, options, epoll, &stopper).inspect_err(|_| log::flush())?;
        begin_history(&host, &page).inspect_err(|_| drop(host.end()))?;
        Ok(Daemon { host, page, wake, stopper })
    }

    /// The served devices and disks, and the methods to change them.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Confine this thread, which is to [run](Daemon::run) the daemon, and those that it starts
    /// from now on. All that the configuration names is open by now, but for what hangs. For the
    /// program: the confinement cannot be taken off again. What this kernel cannot do about it, and
    /// about the threads that run already, a sentence each.
    pub fn confine(&self) -> Vec<String> {
        self.host.confinement.enter_main();
        sandbox::status().problems()
    }

    /// A handle that ends the daemon.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn stopper(&self) -> io::Result<Stopper> {
        self.stopper.duplicate()
    }

    /// Accept connections until it is told to end; then end.
    ///
    /// # Errors
    /// [`HostError::ReactorDied`]: guests of that device hang, and whoever
    /// started us should start us again.
    pub fn run(mut self) -> Result<(), HostError> {
        self.serve_connected();
        let mut events = [EpollEvent::default(); 64];
        let mut watchdog = Watchdog::start();
        // Said once until a connection can be accepted again.
        let mut accepts = true;
        let mut pace = Pace { since: Instant::now(), accepted: 0 };
        let ended = loop {
            let reactors = || self.host.devices().into_iter().map(|d| d.handle().clone());
            let timeout_ms = watchdog.as_mut().map_or(-1, |w| w.look(reactors()));
            let ready = match self.host.listeners.epoll().wait(timeout_ms, &mut events) {
                Ok(ready) => ready,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => break Err(HostError::System("epoll", e)),
            };
            if events[..ready].iter().any(|event| event.data() == WAKE) {
                let _ = self.wake.read(&mut [0; 64]); // what counts is that it came
                break Ok(());
            }
            let accepted: Vec<Result<(), String>> = events[..ready]
                .iter()
                .map(|event| accept(&self.host, &self.page, event.data()))
                .collect();
            let refused = accepted.iter().find_map(|result| result.as_ref().err());
            if let Some(text) = refused {
                if accepts {
                    say(text);
                }
                std::thread::sleep(ACCEPT_PAUSE);
            }
            accepts = refused.is_none();
            pace.accepted(ready);
        };
        let _ = notify(&[NotifyState::Stopping]); // whoever asked for word is gone
        let ended = ended.and(self.host.end());
        log::flush();
        ended
    }
}

/// Limits the rate of accepted connections. Each has a thread, and a client that connects again and
/// again would keep the reactors from the processor by making and ending threads.
struct Pace {
    since: Instant,
    /// Attempts to accept a connection since then.
    accepted: usize,
}

impl Pace {
    /// Counts `count` more connections, and sleeps if there were too many.
    fn accepted(&mut self, count: usize) {
        let elapsed = self.since.elapsed();
        if elapsed >= PACE_PERIOD {
            *self = Pace { since: Instant::now(), accepted: 0 };
        }
        self.accepted += count;
        if self.accepted >= PACE_CONNECTIONS {
            std::thread::sleep(PACE_PERIOD.saturating_sub(self.since.elapsed()));
        }
    }
}

impl Daemon {
    /// Serve the front end that was connected from the start, and end with it.
    fn serve_connected(&self) {
        let (Some(stream), Some(disk)) =
            (self.host.listeners.take_connected(), self.host.disks().pop())
        else {
            return;
        };
        let ended = self.stopper.duplicate();
        vhost(&self.host, &disk, stream, move || {
            let _ = ended.map(|stopper| stopper.stop());
        });
    }
}

/// Prepare the process: files for us alone, and as many open ones as we may
/// have (each vring is three), and the processes that receive for VMMs. For the program, before it
/// has threads; a library leaves them alone.
pub fn prepare_process() {
    process::umask(Mode::RWXG | Mode::RWXO);
    let limit = process::getrlimit(Resource::Nofile);
    let _ = process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    vhost_user::measure_limits(MemorySource::here().host_bytes());
    if let Err(e) = vhost_user::start_gates() {
        say(&format!("descriptors of VMMs are received by the daemon itself: {e}"));
    }
}

// Connections: accepted, counted, and given to a thread of their own.

/// Niceness of a connection's thread relative to a reactor: it has a tenth of the weight.
const NICENESS: libc::c_int = 10;

/// Accept a connection at the listener with this token, if there still is one.
///
/// # Errors
/// The system's error, for the log; the listener stays.
fn accept(host: &Arc<Host>, page: &Arc<Page>, token: u64) -> Result<(), String> {
    let Some(served) = host.listeners.served(token) else {
        return Ok(()); // detached meanwhile
    };
    let accepted = served.listener.accept().map_err(|e| {
        format!("{}: cannot accept connections: {}", served.listener.address(), told(&e))
    });
    let Some(stream) = accepted? else {
        return Ok(());
    };
    match (&served.service, stream) {
        (Service::Vhost(disk), Stream::Unix(stream)) => vhost(host, disk, stream, || ()),
        (Service::Control, Stream::Unix(stream)) => {
            if let Some(slot) = host.slots.clients.take("control", None) {
                let page = page.clone();
                let talk = move |host: &Arc<Host>, stream, _: &_| {
                    let by_http = |input: &mut dyn Read, out: &mut dyn Write| {
                        serve_control(host, &page, input, out)
                    };
                    control::serve(host, stream, by_http)
                };
                client(host, slot, Kind::Control, stream, talk);
            } else {
                let text = format!("{CLIENTS_MAX} clients are connected, and that is the most");
                control::refuse(&stream, &format!("{text}; end one of them"));
            }
        }
        (Service::Metrics, stream) => {
            if let Some(slot) = share(&host.slots.scrapers, "metrics", &stream) {
                client(host, slot, Kind::FrontEnd, stream, |h, s, slot| {
                    serve_metrics(h, &s, || slot.shows())
                });
            }
        }
        (Service::Web, stream) => {
            if let Some(slot) = share(&host.slots.viewers, "web", &stream) {
                let page = page.clone();
                client(host, slot, Kind::FrontEnd, stream, move |h, s, slot| {
                    serve_web(h, &page, &s, || slot.shows())
                });
            }
        }
        (Service::NbdOf(disk), stream) => nbd(host, Some(disk.clone()), stream),
        (Service::Nbd, stream) => nbd(host, None, stream),
        (service @ (Service::Vhost(_) | Service::Control), Stream::Tcp(_)) => {
            say(&format!("{}: TCP will not do, a unix socket is needed", service.name()));
        }
    }
    Ok(())
}

/// The web page of a daemon of this configuration.
///
/// # Errors
/// [`HostError::Token`].
fn page(config: &Config) -> Result<Arc<Page>, HostError> {
    let token = config.web_control.as_deref().map(Token::read).transpose();
    let token = token.map_err(|e| HostError::Token(e.to_string()))?;
    Ok(Arc::new(Page { recorder: Recorder::by_need(), token }))
}

/// Begin the page's history if it has an address of its own.
///
/// # Errors
/// When there are no threads left.
fn begin_history(host: &Arc<Host>, page: &Page) -> Result<(), HostError> {
    let is_served = host.addresses(None).iter().any(|(kind, _)| *kind == Service::Web.name());
    match is_served {
        true => page.recorder.begin(host).map_err(|e| HostError::System("thread", e)),
        false => Ok(()),
    }
}

/// Run what talks to a peer on a thread of its own.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(e) = threads::spawn(name, STACK_BYTES, work) {
        closed(name, "a thread", &e);
    }
}

/// This thread talks to a peer that is not trusted. It is confined, and where processors are few
/// the reactors come first: threads like this one can be as many as there are connections.
fn enter_front_end() {
    // SAFETY: takes a number; of this thread alone, as Linux has it. That it fails does no harm.
    let _ = unsafe { libc::nice(NICENESS) };
    sandbox::enter(Kind::FrontEnd);
}

/// A connection was closed because the system has no more of something.
fn closed(name: &str, wanted: &str, error: &io::Error) {
    say(&want(name, wanted, error));
}

fn want(name: &str, wanted: &str, error: &io::Error) -> String {
    format!("{name}: a connection was closed for want of {wanted}: {}", told(error))
}

/// A slot for a client that may come from anywhere.
fn share(slots: &Arc<ConnectionSlots>, name: &str, stream: &Stream) -> Option<ConnectionSlot> {
    let own = stream.duplicate().map_err(|e| closed(name, "a descriptor", &e)).ok()?;
    slots.take_share(stream.peer(), own)
}

/// A client of the control socket, of metrics or of the web page.
fn client<S: Send + 'static>(
    host: &Arc<Host>,
    slot: ConnectionSlot,
    kind: Kind,
    stream: S,
    talk: impl FnOnce(&Arc<Host>, S, &ConnectionSlot) -> io::Result<()> + Send + 'static,
) {
    let host = host.clone();
    spawn("client", move || {
        match kind {
            Kind::Control => host.confinement.enter(),
            _ => enter_front_end(),
        }
        let _ = talk(&host, stream, &slot); // a client that went away is no news
    });
}

/// A VMM at the socket of a disk. `ended` is called when it has gone.
fn vhost(
    host: &Arc<Host>,
    disk: &Arc<ServedDisk>,
    stream: UnixStream,
    ended: impl FnOnce() + Send + 'static,
) {
    let Some(gate_place) = disk.places.gate(&disk.what()) else { return };
    let passed = vhost_user::pass(stream).and_then(|(s, gate)| Ok((s.try_clone()?, s, gate)));
    let (own, stream, gate) = match passed {
        Ok(passed) => passed,
        Err(e) => {
            let name = disk.what();
            return disk.config_changed.say(|| want(&name, "a descriptor or a process", &e));
        }
    };
    let own = Stream::Unix(own);
    let place = disk.places.vmm(&disk.what(), &host.slots.connections, own);
    // Nobody waits for this but another gate of this disk.
    let wait = move || {
        gate.into_iter().for_each(Gate::wait);
        drop(gate_place);
    };
    let Some(place) = place else {
        drop(stream);
        return spawn("vhost-gate", wait);
    };
    let handle = DiskHandle {
        name: disk.config.name.clone(),
        serial: disk.config.serial_number(),
        disk: disk.id,
        handle: disk.device.handle().clone(),
        limits: disk.limits_source(),
        config_changed: disk.config_changed.clone(),
        image_use: disk.clone(),
        queues: vhost_user::QUEUES_MAX,
        guest_memory: disk.config.guest_memory,
    };
    vhost_user::start_rings();
    spawn(&format!("vhost-{}", disk.config.name), move || {
        enter_front_end();
        vhost_user::serve(stream, handle);
        ended();
        drop(place);
        wait();
    });
}

/// A client of NBD, at the socket of a disk or at that of all.
fn nbd(host: &Arc<Host>, only: Option<Arc<ServedDisk>>, stream: Stream) {
    let (own, other) = match stream.duplicate().and_then(|own| Ok((own, stream.duplicate()?))) {
        Ok(both) => both,
        Err(e) => {
            let name = only.map_or("nbd".into(), |disk| disk.what());
            return closed(&name, "a descriptor", &e);
        }
    };
    let negotiating = match &only {
        Some(disk) => disk.places.negotiating(&disk.what(), other),
        None => host.slots.negotiating.take_share(stream.peer(), other),
    };
    let Some(negotiating) = negotiating else { return };
    if let Stream::Tcp(tcp) = &stream {
        keep_alive(tcp);
    }
    let over_tcp = matches!(stream, Stream::Tcp(_));
    let (tls, required) = (host.tls().cloned(), host.config().tls.is_required(over_tcp));
    let negotiating = Mutex::new(Some(negotiating));
    let (host, names, steps) = (host.clone(), Mutex::default(), AtomicU32::new(0));
    let door = Arc::new(Door { host, only, stream: own, names, negotiating, steps });
    spawn("nbd", move || {
        enter_front_end();
        match nbd::serve(stream, door.clone(), tls, required) {
            // One that came only to look, as those do who ask whether we live.
            Err(ServeError::Io(e)) if e.kind() == io::ErrorKind::BrokenPipe => {}
            Err(e) => door.say(|| e.to_string()),
            Ok(()) => {}
        }
    });
}

/// Access of one NBD connection.
struct Door {
    host: Arc<Host>,
    /// The socket is this disk's: whatever name the client gives, it has said
    /// already which disk is meant.
    only: Option<Arc<ServedDisk>>,
    stream: Stream,
    /// The names in its certificate.
    names: Mutex<Vec<String>>,
    /// Its place until it has a disk's.
    negotiating: Mutex<Option<ConnectionSlot>>,
    /// Its steps, by bit.
    steps: AtomicU32,
}

impl Door {
    /// Write a line to the log that a client can cause at will: their number is limited.
    fn say(&self, text: impl FnOnce() -> String) {
        match &self.only {
            Some(disk) => disk.places.say(text),
            None => self.host.slots.negotiating.say(text),
        }
    }

    /// May the client know of this disk? By a unix socket it may: who may connect there is the
    /// matter of its owner and mode.
    fn may_see(&self, disk: &ServedDisk) -> bool {
        let allow = &disk.config.allow;
        let is_local = matches!(self.stream, Stream::Unix(_));
        is_local || allow.is_empty() || lock(&self.names).iter().any(|name| allow.contains(name))
    }

    /// The disks that it may know of; there are no others for it.
    fn disks(&self) -> Vec<Arc<ServedDisk>> {
        let mut disks = self.only.clone().map_or_else(|| self.host.disks(), |disk| vec![disk]);
        disks.retain(|disk| self.may_see(disk));
        disks
    }
}

impl Exports for Door {
    fn find(&self, name: &str) -> Option<Export> {
        let mut disks = self.disks();
        let disk = match disks.len() {
            1 if self.only.is_some() || name.is_empty() => disks.pop()?,
            _ => disks.into_iter().find(|disk| disk.config.name == name)?,
        };
        // Whoever has the export can open a port by it: the disk's number must
        // not become another's before it is gone.
        let duplicate = self.stream.duplicate();
        let stream = duplicate.map_err(|e| closed(&disk.what(), "a descriptor", &e)).ok()?;
        let place = disk.places.client(&disk.what(), &self.host.slots.connections, stream)?;
        let used = Used::begin(&disk, User::Client);
        let used = used.map_err(|e| self.say(|| format!("{}: {e}", disk.what()))).ok()?;
        let limits = disk.limits_source();
        Some(Export {
            name: disk.config.name.clone(),
            disk: disk.id,
            handle: disk.device.handle().clone(),
            limits: Arc::new(move || {
                let _held = (&place, &used);
                limits()
            }),
            memory: disk.nbd_memory.clone(),
        })
    }
    fn names(&self) -> Vec<String> {
        self.disks().iter().map(|disk| disk.config.name.clone()).collect()
    }

    fn hears(&self, step: u32) {
        let bit = 1u32.checked_shl(step).unwrap_or(0);
        if self.steps.fetch_or(bit, Ordering::Relaxed) & bit < bit
            && let Some(slot) = &*lock(&self.negotiating)
        {
            slot.shows();
        }
    }

    fn identified(&self, names: Vec<String>) {
        *lock(&self.names) = names;
    }

    fn negotiated(&self) {
        lock(&self.negotiating).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DiskConfig;
    use crate::daemon::{Daemon, StartOptions};
    use std::fs::File;

    #[test]
    fn lines_about_clients_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { listen: Some(folder.path().into()), ..Config::default() };
        let daemon = Daemon::start(config, StartOptions::default()).unwrap();
        let path = folder.path().join("web.img");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        daemon.host().attach(&DiskConfig::new("web", path)).unwrap();
        let disk = daemon.host().disk("web").unwrap();
        for lines in 1..=3 {
            let (mut client, ours) = UnixStream::pair().unwrap();
            nbd(daemon.host(), Some(disk.clone()), Stream::Unix(ours));
            client.write_all(&[0xff; 4]).unwrap(); // flags that nobody offered
            client.read_to_end(&mut Vec::new()).unwrap();
            assert_eq!(disk.places.lines_of_minute(), lines);
        }
        drop(disk);
        daemon.host().end().unwrap();
    }
}
