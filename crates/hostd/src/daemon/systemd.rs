//! What a service manager expects: word when we are ready (sd_notify(3)), and
//! sockets that it opened for us (sd_listen_fds(3)).

use super::sockets::{self, Inherited, Listener, SocketError};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The first descriptor that sd_listen_fds(3) hands over.
const LISTEN_FDS_START: RawFd = 3;
/// Most descriptors that are taken over.
const LISTEN_FDS_MAX: RawFd = 4096;

/// Tell the service manager, if there is one: `READY=1`, `STOPPING=1`,
/// `STATUS=…`, a line each.
///
/// # Errors
/// When there is one and it cannot be told.
pub fn notify(state: &str) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(socket) => notify_to(&socket, state),
        None => Ok(()),
    }
}

fn notify_to(socket: &OsStr, state: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    let sent = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => sender.send_to_addr(state.as_bytes(), &SocketAddr::from_abstract_name(name)?),
        None => sender.send_to(state.as_bytes(), socket),
    };
    sent.map(|_| ())
}

/// Sockets that the service manager opened, by their names (`web.vhost`,
/// `control.sock`, …). Call it once, before anything else has been opened.
///
/// # Errors
/// [`SocketError::Descriptor`].
pub fn activated() -> Result<BTreeMap<String, Listener>, SocketError> {
    let Some((count, names)) = offered(|name| std::env::var_os(name), std::process::id()) else {
        return Ok(BTreeMap::new());
    };
    let mut found = BTreeMap::new();
    for n in 0..count {
        let fd = LISTEN_FDS_START + n;
        let name = names.get(n as usize).cloned().unwrap_or_else(|| "unknown".into());
        match sockets::inherit(fd)? {
            Inherited::Listener(listener) => {
                if found.insert(name, listener).is_some() {
                    return Err(SocketError::Descriptor(fd, "has the name of another one"));
                }
            }
            Inherited::Connected(_) => {
                return Err(SocketError::Descriptor(fd, "does not listen (Accept=no is needed)"));
            }
        }
    }
    Ok(found)
}

/// How many descriptors there are for this process, and their names.
fn offered(
    variable: impl Fn(&str) -> Option<OsString>,
    process: u32,
) -> Option<(RawFd, Vec<String>)> {
    let text = |name| variable(name)?.into_string().ok();
    if text("LISTEN_PID")?.parse::<u32>().ok()? != process {
        return None; // meant for the program that started us
    }
    let count: RawFd = text("LISTEN_FDS")?.parse().ok()?;
    let names = text("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').filter(|n| !n.is_empty()).map(str::to_string).collect();
    (1..=LISTEN_FDS_MAX).contains(&count).then_some((count, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        notify_to(path.as_os_str(), "READY=1").unwrap();
        let mut heard = [0; 64];
        let len = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..len], b"READY=1");
        let name = format!("seekway-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        notify_to(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        let len = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..len], b"STOPPING=1");
    }

    #[test]
    fn sockets_are_for_one_process() {
        let offer = |pid: &'static str, fds: &'static str| {
            let variable = move |name: &str| {
                let value = match name {
                    "LISTEN_PID" => pid,
                    "LISTEN_FDS" => fds,
                    _ => "web.vhost:web.nbd",
                };
                Some(OsString::from(value))
            };
            offered(variable, 7)
        };
        let names = vec!["web.vhost".to_string(), "web.nbd".to_string()];
        assert_eq!(offer("7", "2"), Some((2, names)));
        assert_eq!(offer("8", "2"), None);
        assert_eq!(offer("7", "0"), None);
        assert_eq!(offer("7", "-1"), None);
        assert_eq!(offer("7", "99999999"), None);
    }
}
