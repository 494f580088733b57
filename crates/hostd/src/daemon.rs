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
//! What is absent: timers, and any work while nobody asks for some. The exceptions are the
//! thread that looks at the host's memory while the caches' size is `auto`, the one that keeps the
//! web page's history (with `--web`, or while somebody looks at the page), and the service
//! manager's watchdog, if it asks for one.

mod connections;
mod systemd;
mod watchdog;

pub use crate::host::{
    Attached, Device, FREEZE_MAX, FailedDisk, Host, HostError, Inherited, Listener, PATH_BYTES_MAX,
    POLICY_DEFAULT, Pending, ServedDisk, SocketError, StartOptions, Stopper, VhostAt, check_tls,
    inherit,
};
pub use systemd::{NotifyState, activated, notify};

use crate::config::Config;
use crate::frontends::vhost_user;
use crate::host::{MemorySource, WAKE};
use crate::log::{self, say};
use crate::sandbox;
use rustix::fs::Mode;
use rustix::process::{self, Resource, Rlimit};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
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
    page: Arc<connections::Page>,
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
        let page = connections::page(&config)?;
        let host = Host::start(config, options, epoll, &stopper).inspect_err(|_| log::flush())?;
        connections::begin_history(&host, &page).inspect_err(|_| drop(host.end()))?;
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
                .map(|event| connections::accept(&self.host, &self.page, event.data()))
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
        connections::vhost(&self.host, &disk, stream, move || {
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
