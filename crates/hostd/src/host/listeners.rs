//! The sockets at which the daemon listens, and those that it was handed.

use super::error::HostError;
use super::served::{ServedDisk, ServedSocket, Service};
use super::sockets::Listener;
use crate::threads::lock;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// The token of what tells the daemon to end.
pub const WAKE: u64 = 0;

pub struct Listeners {
    epoll: Epoll,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the token that epoll gives back; [`WAKE`] is not one of them.
    served: BTreeMap<u64, Arc<ServedSocket>>,
    last_token: u64,
    /// Sockets that were handed over, until somebody wants them.
    inherited: BTreeMap<String, Listener>,
    /// A front end that was connected from the start.
    connected: Option<UnixStream>,
    /// A socket that came now would stay behind.
    over: bool,
}

impl Listeners {
    pub(super) fn new(epoll: Epoll, inherited: BTreeMap<String, Listener>) -> Listeners {
        Listeners { epoll, state: Mutex::new(State { inherited, ..State::default() }) }
    }

    pub fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Serve this at a socket.
    ///
    /// # Errors
    /// The daemon ends, or what the system says.
    pub(super) fn add(&self, service: Service, listener: Listener) -> Result<(), HostError> {
        if !service.takes_descriptors() {
            listener.refuse_descriptors();
        }
        let mut state = lock(&self.state);
        if state.over {
            return Err(HostError::Ending);
        }
        state.last_token += 1;
        let token = state.last_token;
        let event = EpollEvent::new(EventSet::IN, token);
        let added = self.epoll.ctl(ControlOperation::Add, listener.as_raw_fd(), event);
        added.map_err(|e| HostError::System("epoll", e))?;
        state.served.insert(token, Arc::new(ServedSocket { service, listener }));
        Ok(())
    }

    /// The socket with this token; `None` when its disk was detached meanwhile.
    pub fn served(&self, token: u64) -> Option<Arc<ServedSocket>> {
        lock(&self.state).served.get(&token).cloned()
    }

    /// Where a disk, or with `None` the whole daemon, can be reached.
    pub(super) fn addresses(&self, disk: Option<&ServedDisk>) -> Vec<(&'static str, String)> {
        let of = |served: &&Arc<ServedSocket>| match (served.service.disk(), disk) {
            (Some(of), Some(disk)) => of.config.name == disk.config.name,
            (of, disk) => of.is_none() && disk.is_none(),
        };
        let address = |s: &Arc<ServedSocket>| (s.service.name(), s.listener.address());
        lock(&self.state).served.values().filter(of).map(address).collect()
    }

    /// Close those of a disk.
    pub(super) fn remove(&self, disk: &Arc<ServedDisk>) {
        lock(&self.state).served.retain(|_, served| !served.service.is_of(disk));
    }

    /// Close all, and take no more.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        state.served.clear();
    }

    /// A socket of one of these names that was handed over.
    pub(super) fn take_inherited(&self, names: &[&str]) -> Option<Listener> {
        let mut state = lock(&self.state);
        names.iter().find_map(|name| state.inherited.remove(*name))
    }

    /// Nobody wanted it after all.
    pub(super) fn give_back(&self, name: String, listener: Listener) {
        lock(&self.state).inherited.insert(name, listener);
    }

    /// The names of sockets that were handed over and that nobody has taken.
    pub(super) fn inherited(&self) -> Vec<String> {
        lock(&self.state).inherited.keys().cloned().collect()
    }

    pub(super) fn connect(&self, stream: UnixStream) {
        lock(&self.state).connected = Some(stream);
    }

    /// A front end that was connected from the start, once.
    pub fn take_connected(&self) -> Option<UnixStream> {
        lock(&self.state).connected.take()
    }

    /// Is the daemon to end, while it starts?
    pub(super) fn is_told_to_end(&self) -> bool {
        let mut events = [EpollEvent::default(); 64];
        let ready = self.epoll.wait(0, &mut events).unwrap_or(0);
        events[..ready].iter().any(|event| event.data() == WAKE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_comes_when_the_daemon_ends_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["early", "late"].map(|name| folder.path().join(name));
        let [early, late] = paths.each_ref().map(|path| Listener::unix(path).unwrap());
        let listeners = Listeners::new(Epoll::new().unwrap(), BTreeMap::new());
        listeners.add(Service::Nbd, early).unwrap();
        assert!(listeners.served(1).is_some());
        listeners.end();
        assert!(matches!(listeners.add(Service::Nbd, late), Err(HostError::Ending)));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
