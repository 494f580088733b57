//! Sockets that a service manager opened for the daemon (sd_listen_fds(3)). What it is told
//! (sd_notify(3)) the crate `sd-notify` tells it.

use crate::host::{Inherited, Listener, SocketError, inherit};
use std::collections::BTreeMap;

pub use sd_notify::{NotifyState, notify};

/// Sockets that the service manager opened, by their names (`web.vhost`,
/// `control.sock`, …). Call it once, before anything else has been opened.
///
/// # Errors
/// [`SocketError`]: the variables are broken, or name a descriptor that is no socket that
/// listens.
pub fn activated() -> Result<BTreeMap<String, Listener>, SocketError> {
    let mut found = BTreeMap::new();
    // None are for this process when they were meant for the one that started it. Names are not
    // looked at then: there would be more of them than descriptors, which is an error.
    if sd_notify::listen_fds().map_err(SocketError::Activation)?.len() == 0 {
        return Ok(found);
    }
    for (fd, name) in sd_notify::listen_fds_with_names().map_err(SocketError::Activation)? {
        match inherit(fd)? {
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
