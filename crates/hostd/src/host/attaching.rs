//! The steps of an attach, each of which undoes what it has done when a later one fails.

use super::Host;
use super::devices::Device;
use super::error::HostError;
use super::served::{ServedDisk, Service};
use super::sockets::{Listener, SocketError};
use crate::config::DiskConfig;
use crate::images::Image;
use crate::images::fault::Fault;
use crate::log::say;
use crate::reactor::{Disk, Message};
use seekway_core::units::Lba;
use std::sync::Arc;

/// The faults that are to be injected.
///
/// # Errors
/// What is wrong with their text.
pub(super) fn fault_of(asked: &DiskConfig) -> Result<Option<Fault>, HostError> {
    let fault = asked.fault.as_deref().map(Fault::parse).transpose();
    fault.map_err(|e| HostError::Disk(asked.name.clone(), format!("fault: {e}")))
}

/// The sockets of a disk that nobody is served at yet. Dropped, those go that were made for it, and
/// those that were handed over wait for its next attach.
pub(super) struct OwnSockets<'h> {
    host: &'h Host,
    sockets: Vec<OwnSocket>,
}

struct OwnSocket {
    name: String,
    serves: fn(Arc<ServedDisk>) -> Service,
    listener: Listener,
    is_inherited: bool,
}

impl OwnSockets<'_> {
    /// The sockets that were handed over for it, or else new ones in the folder of sockets.
    pub fn take<'h>(host: &'h Host, asked: &DiskConfig) -> Result<OwnSockets<'h>, SocketError> {
        let access = asked.sockets.or(&host.config.sockets);
        let kinds: [(&str, fn(_) -> _, _); 2] =
            [("vhost", Service::Vhost, true), ("nbd", Service::NbdOf, access.nbd != Some(false))];
        let mut taken = OwnSockets { host, sockets: Vec::new() };
        for (kind, serves, is_wanted) in kinds {
            let name = format!("{}.{kind}", asked.name);
            let inherited = host.listeners.take_inherited(&[&name]);
            let is_inherited = inherited.is_some();
            let listener = match (inherited, &host.config.listen) {
                (Some(listener), _) => listener,
                (None, Some(folder)) if is_wanted => {
                    let path = folder.join(&name);
                    let listener = Listener::unix(&path)?;
                    access.apply(&path).map_err(|e| SocketError::Access(path, e))?;
                    listener
                }
                (None, _) => continue,
            };
            taken.sockets.push(OwnSocket { name, serves, listener, is_inherited });
        }
        Ok(taken)
    }

    /// Serve the disk at them: where clients connect.
    pub fn listen(mut self, disk: &Arc<ServedDisk>) -> Result<Vec<String>, HostError> {
        let addresses = self.sockets.iter().map(|socket| socket.listener.address()).collect();
        while !self.sockets.is_empty() {
            let OwnSocket { serves, listener, .. } = self.sockets.remove(0);
            self.host.listeners.add(serves(disk.clone()), listener)?;
        }
        Ok(addresses)
    }
}

impl Drop for OwnSockets<'_> {
    fn drop(&mut self) {
        for socket in self.sockets.drain(..).filter(|socket| socket.is_inherited) {
            self.host.listeners.give_back(socket.name, socket.listener);
        }
    }
}

/// A disk that its reactor has. Dropped before it is [whole](Attaching::finish), it is taken out
/// again.
pub(super) struct Attaching<'h> {
    host: &'h Host,
    disk: Arc<ServedDisk>,
    is_whole: bool,
}

impl<'h> Attaching<'h> {
    /// Give an image to the reactor of its device.
    pub fn begin(
        host: &'h Host,
        asked: &DiskConfig,
        image: Image,
        device: Arc<Device>,
    ) -> Result<Attaching<'h>, HostError> {
        let served = ServedDisk::of(asked, &image, device.clone(), host.losses.clone())?;
        // Others would wait behind what is measured, and make it too low.
        let idle = !host.disks().iter().any(|d| Arc::ptr_eq(&d.device, &device));
        let disk = Box::new(Disk {
            weight: asked.weight,
            limits: asked.limits.clone(),
            lba: asked.lba.map(Lba::new),
            fault: fault_of(asked)?,
            // What is in the host's memory already it need not have again, unless asked for.
            cached: asked.cache && (image.reads_device() || !host.is_cache_auto()),
            bandwidth_bytes_per_s: idle.then(|| device.measure(&image)).flatten(),
            ..Disk::new(asked.name.clone(), image)
        });
        let id = device.ask(|reply| Message::AttachDisk(disk, reply))?;
        let id = id.map_err(|e| HostError::Disk(asked.name.clone(), e))?;
        Ok(Attaching { host, disk: Arc::new(served(id)), is_whole: false })
    }

    pub fn disk(&self) -> &Arc<ServedDisk> {
        &self.disk
    }

    /// Let it be found, unless the daemon ends or its group has come to lie elsewhere.
    pub fn publish(&self) -> Result<(), HostError> {
        let (host, disk, name) = (self.host, &self.disk, &self.disk.config.name);
        let mut changes = host.turn()?;
        if let Some(group) = &disk.config.limits.group {
            let joined = host.may_join(name, disk.device.number, group);
            joined.map_err(|e| HostError::Disk(name.clone(), e))?;
        }
        changes.begin_publishing(name)?;
        host.registry.add(disk.clone());
        drop(changes);
        let warnings = disk.warnings.all();
        warnings.iter().for_each(|warning| say(&format!("{name}: {warning}")));
        Ok(())
    }

    /// Nothing is left that could fail: it is tried no more.
    pub fn finish(mut self) -> Arc<ServedDisk> {
        self.host.failed.remove(&self.disk.config.name);
        self.is_whole = true;
        self.disk.clone()
    }
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = self.host.take_out(&self.disk); // the first error is the one to tell
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, DiskConfig};
    use crate::daemon::{Daemon, Listener, StartOptions};
    use std::fs::File;

    #[test]
    fn a_failed_attach_leaves_nothing_and_keeps_sockets_that_were_handed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let image = |name: &str| File::create(path(name)).unwrap().set_len(1 << 20).unwrap();
        image("a.img");
        // Their places overlap, as the reactor finds.
        let disk = |name: &str| {
            let lba = Some(0);
            DiskConfig { lba, ..DiskConfig::new(name, path(&format!("{name}.img"))) }
        };
        let listen = Some(path("sockets"));
        let config = Config { listen, disks: vec![disk("a"), disk("b")], ..Config::default() };
        let handed = Listener::unix(&path("handed")).unwrap();
        let sockets = [("b.vhost".to_string(), handed)].into();
        let options = StartOptions { sockets, ..StartOptions::default() };
        let daemon = Daemon::start(config, options).unwrap();
        let host = daemon.host();
        image("b.img");
        let refused = host.attach(&disk("b")).unwrap_err().to_string();
        assert!(refused.contains("overlap disk a"), "{refused}");
        assert!(host.disk("b").is_err() && !path("sockets/b.nbd").exists());
        host.detach("a").unwrap();
        // The background may have done it already.
        let sockets = host.retry("b", None).unwrap().sockets;
        let expected = ["handed", "sockets/b.nbd"].map(|name| path(name).display().to_string());
        assert_eq!(sockets, expected);
        host.end().unwrap();
        assert!(!path("handed").exists() && !path("sockets/b.nbd").exists());
    }
}
