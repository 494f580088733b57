//! Disks come and go. The device or the file system of each may hang: see [`super::changes`].

use super::Host;
use super::changes::Claim;
use super::devices::Device;
use super::error::{Change, HostError};
use super::failed::{FailedDisk, HANG_TIME, HANG_TIME_LATER};
use super::served::{ServedDisk, Service};
use super::sockets::{Listener, SocketError};
use crate::config::{DISKS_MAX, DiskConfig};
use crate::images::fault::Fault;
use crate::images::{self, Image, ImageError, PATIENCE};
use crate::log::say;
use crate::reactor::{Disk, Message};
use crate::threads::lock;
use seekway_core::units::Lba;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Where a disk that was attached can be reached.
#[derive(Clone, Debug)]
pub struct Attached {
    pub capacity_bytes: u64,
    /// Its sockets, as clients name them.
    pub sockets: Vec<String>,
    /// Warnings about its image, for the operator.
    pub warnings: Vec<String>,
}

impl Host {
    /// Serve the disks of the configuration, one after the other. One whose image cannot be opened is
    /// left out, noted, and tried again later if that may help; unless `all` are wanted. So is one
    /// whose image hangs, which is served as soon as it goes on.
    ///
    /// # Errors
    /// The first one, of another kind; and when no disk is served and no image is another
    /// program's, which may end, or hangs.
    pub(super) fn attach_all(&self, all: bool) -> Result<(), HostError> {
        let mut first = None;
        let began = Instant::now();
        let (until, hangs) = (began + PATIENCE, began + HANG_TIME);
        for disk in &self.config.disks {
            if self.listeners.is_told_to_end() {
                break;
            }
            let claim = self.claim(&disk.name, Change::Attach)?;
            self.failed.add(FailedDisk::hanging(disk.clone()));
            let hangs = (!all).then(|| hangs.max(Instant::now() + HANG_TIME_LATER));
            let asked = disk.clone();
            let attached = self.attempt(claim, hangs, move |host, claim| {
                host.attach_claimed(claim, &asked, None, until)
            });
            match attached? {
                None => self.failed.recovers(&disk.name),
                Some(Ok(_)) => {}
                Some(Err(e @ HostError::Image(..))) if !all => {
                    let _ = self.note_failure(&disk.name, &e); // all are said below
                    first.get_or_insert(e);
                }
                Some(Err(e)) => return Err(e),
            }
        }
        if self.listeners.is_told_to_end() {
            return Ok(());
        }
        let waits = self.failed().iter().any(|failed| failed.is_taken);
        match first {
            Some(e) if self.disks().is_empty() && !waits => return Err(e),
            _ => {}
        }
        self.failed().iter().for_each(FailedDisk::say);
        self.begin_retries()
    }

    /// Serve one more disk.
    ///
    /// # Errors
    /// Name or options, image, sockets, what the device's reactor says, or a device that does not
    /// answer. Nothing of the disk is left then, or ([`HostError::Pending`]) as soon as its device
    /// goes on.
    pub fn attach(&self, asked: &DiskConfig) -> Result<Attached, HostError> {
        self.attach_handed(asked, None)
    }

    /// As [`Host::attach`], with an image that is open already: a manager of the daemon may open
    /// files that the daemon, which is confined, may not.
    ///
    /// # Errors
    /// As [`Host::attach`].
    pub fn attach_handed(
        &self,
        asked: &DiskConfig,
        handed: Option<File>,
    ) -> Result<Attached, HostError> {
        let disk = asked.clone();
        let until = Instant::now() + PATIENCE;
        self.change(&asked.name, Change::Attach, move |host, claim| {
            host.attach_claimed(claim, &disk, handed, until)
        })
    }

    /// As [`Host::attach`], for the owner of the claim. Waits `until` then for an image that
    /// another program has.
    pub(super) fn attach_claimed(
        &self,
        claim: &Claim,
        asked: &DiskConfig,
        handed: Option<File>,
        until: Instant,
    ) -> Result<Attached, HostError> {
        self.judge(asked)?;
        let image = self.image_of(asked, handed, until)?;
        let device = self.device_for(claim, asked, &image)?;
        // Each undoes what it has done, if a later step fails.
        let sockets = OwnSockets::take(self, asked)?;
        let attaching = Attaching::begin(self, asked, image, device)?;
        attaching.publish()?;
        let sockets = sockets.listen(attaching.disk())?;
        let disk = attaching.finish();
        let capacity_bytes = disk.limits().capacity_bytes;
        Ok(Attached { capacity_bytes, sockets, warnings: disk.warnings.all() })
    }

    /// Can there be such a disk beside those that there are?
    fn judge(&self, asked: &DiskConfig) -> Result<(), HostError> {
        let wrong = |text: String| Err(HostError::Disk(asked.name.clone(), text));
        asked.check().or_else(wrong)?;
        self.config.tls.judge_allow(asked).map_err(HostError::Tls)?;
        if self.disk(&asked.name).is_ok() {
            return wrong("is there already; detach it or choose another name".into());
        }
        if self.disks().len() >= DISKS_MAX {
            return wrong(format!("{DISKS_MAX} disks are served, and that is the most"));
        }
        fault_of(asked).map(drop)
    }

    /// Its image, which is watched for writes that are lost.
    fn image_of(
        &self,
        asked: &DiskConfig,
        handed: Option<File>,
        until: Instant,
    ) -> Result<Image, HostError> {
        self.losses.settle();
        let mut image = self.open_image(asked, handed, until)?;
        let of_image = |e| HostError::Image(asked.name.clone(), e);
        self.losses.watch(&mut image, asked.accept_lost_writes).map_err(of_image)?;
        let image = match &asked.on {
            Some(other) => image.lies_on(other).map_err(of_image)?,
            None => image,
        };
        self.warn_of_serial(asked, &image);
        Ok(image)
    }

    /// The device that an image lies on, which has to answer.
    fn device_for(
        &self,
        claim: &Claim,
        asked: &DiskConfig,
        image: &Image,
    ) -> Result<Arc<Device>, HostError> {
        if let Some(group) = &asked.limits.group {
            let joined = self.may_join(&asked.name, self.device_number(image), group);
            joined.map_err(|e| HostError::Disk(asked.name.clone(), e))?;
        }
        let device = self.device_of(image)?;
        claim.lies_on(&device);
        device.must_answer(&asked.name)?;
        Ok(device)
    }

    /// Warn when a guest of two disks could not tell them apart.
    fn warn_of_serial(&self, asked: &DiskConfig, image: &Image) {
        let serial = asked.serial_number();
        let disks = self.disks();
        let twin = disks.iter().find(|disk| disk.config.serial_number() == serial);
        if let Some(twin) = twin {
            let name = &twin.config.name;
            image.warn(format!(
                "its serial number {serial} is that of disk {name} too: a guest that has both \
                 cannot tell them apart; give one another (option serial)"
            ));
        }
    }

    /// Major and minor number of the device that an image lies on; `None` when all
    /// lie on the emulated one.
    fn device_number(&self, image: &Image) -> Option<(u32, u32)> {
        self.config.emulate.is_none().then(|| image.device())
    }

    /// The device that an image lies on, with its reactor; started when it is
    /// the first.
    fn device_of(&self, image: &Image) -> Result<Arc<Device>, HostError> {
        let (device, is_new) = self.registry.device_of(self.device_number(image), |others| {
            let cache = self.cache_setup(self.settings.prefetcher(), others);
            let (policy, groups) = (self.settings.policy(), self.groups());
            let policy = policy.as_deref();
            Device::start(&self.config, policy, cache, groups, image, &self.stopper)
        })?;
        if is_new {
            self.divide_cache();
        }
        Ok(device)
    }

    /// Stop serving a disk: its sockets go, its requests end ([`Message::LeaveDisk`]), and the image
    /// is closed. One that is not served yet is not tried again.
    ///
    /// # Errors
    /// An unknown name; what the reactor says; or [`HostError::Pending`]: its sockets and clients
    /// are gone, and the rest follows as soon as its device goes on.
    pub fn detach(&self, name: &str) -> Result<(), HostError> {
        let disk = name.to_string();
        self.change(name, Change::Detach, move |host, claim| {
            let disk = match host.disk(&disk) {
                Err(_) if host.failed.remove(&disk) => return Ok(()),
                disk => disk?,
            };
            claim.lies_on(&disk.device);
            host.take_out(&disk)
        })
    }

    /// [`Host::detach`] for whoever has the claim.
    pub(super) fn take_out(&self, disk: &Arc<ServedDisk>) -> Result<(), HostError> {
        self.registry.remove(disk);
        self.listeners.remove(disk);
        // A client leaves when its requests have ended: what need not be begun is not.
        disk.device.handle().send(Message::LeaveDisk(disk.id));
        // Its number may be another disk's afterwards: nobody may be left who
        // could open a port by it.
        disk.places.close();
        disk.places.wait_empty();
        lock(&disk.file).take(); // holds the lock of the image too
        disk.ask(|reply| Message::DetachDisk(disk.id, reply))
    }

    /// Open an image, or take the one that is handed over. One that another program has is waited
    /// for `until` then.
    fn open_image(
        &self,
        asked: &DiskConfig,
        handed: Option<File>,
        until: Instant,
    ) -> Result<Image, HostError> {
        let (path, options) = (&asked.path, &asked.open_options());
        #[cfg(test)]
        tests::wait_for(path);
        let opened = images::patiently(until, || match &handed {
            Some(file) => {
                let file = file.try_clone().map_err(|source| {
                    let path = path.display().to_string();
                    ImageError::Io { path, what: "duplicating its descriptor", source }
                })?;
                Image::of_file(file, path, options)
            }
            None => Image::open(path, options),
        });
        opened.map_err(|e| match e {
            e if e.is_taken()
                && let Some(twin) = self.twin_of(path) =>
            {
                let path = path.display();
                HostError::Disk(
                    asked.name.clone(),
                    format!("{path}: is the image of disk {twin} too, which has it locked"),
                )
            }
            ImageError::Denied { .. } if self.confinement.is_on() => {
                HostError::Outside(asked.name.clone(), e)
            }
            e => HostError::Image(asked.name.clone(), self.losses.refused(e)),
        })
    }

    /// A disk that is served with this image, by whatever path.
    fn twin_of(&self, path: &Path) -> Option<String> {
        let node = |about: Metadata| match about.file_type().is_block_device() {
            true => (None, about.rdev()),
            false => (Some(about.dev()), about.ino()),
        };
        let own = node(std::fs::metadata(path).ok()?);
        let is_twin = |disk: &&Arc<ServedDisk>| {
            let about = lock(&disk.file).as_ref().and_then(|file| file.metadata().ok());
            about.is_some_and(|about| node(about) == own)
        };
        self.disks().iter().find(is_twin).map(|disk| disk.config.name.clone())
    }
}

// The steps of an attach, each of which undoes what it has done when a later one fails.

/// The faults that are to be injected.
///
/// # Errors
/// The fault in their text.
fn fault_of(asked: &DiskConfig) -> Result<Option<Fault>, HostError> {
    let fault = asked.fault.as_deref().map(Fault::parse).transpose();
    fault.map_err(|e| HostError::Disk(asked.name.clone(), format!("fault: {e}")))
}

/// The sockets of a disk that nobody is served at yet. Dropped, those go that were made for it, and
/// those that were handed over wait for its next attach.
struct OwnSockets<'h> {
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
struct Attaching<'h> {
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
    use super::*;
    use crate::config::{Config, DiskConfig};
    use crate::daemon::{Daemon, Listener, StartOptions};
    use std::fs::File;
    use std::path::PathBuf;
    use std::sync::{Condvar, Mutex};
    use std::time::{Duration, SystemTime};

    /// Images whose file systems hang.
    static HUNG: (Mutex<Vec<PathBuf>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

    pub(super) fn wait_for(path: &Path) {
        let hung = lock(&HUNG.0);
        drop(HUNG.1.wait_while(hung, |hung| hung.iter().any(|at| at == path)));
    }

    /// Wait until it is so.
    fn until(is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(600);
        while !is_so() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// An image that nobody writes to.
    fn image(path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    #[test]
    fn an_image_that_hangs_keeps_its_own_disk_only() {
        for is_late in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(format!("{name}.img"));
            image(&path("ok"));
            if !is_late {
                image(&path("hung"));
            }
            lock(&HUNG.0).push(path("hung"));
            // The names' order is that of the attempts.
            let disks = ["hung", "late", "ok"].map(|name| DiskConfig::new(name, path(name)));
            let listen = Some(folder.path().into());
            let config = Config { listen, disks: disks.into(), ..Config::default() };
            let daemon = Daemon::start(config, StartOptions::default()).unwrap();
            let host = daemon.host();
            assert!(host.disk("ok").is_ok() && host.disk("hung").is_err());
            if is_late {
                image(&path("hung"));
            }
            let told = || host.failed().into_iter().find(|f| f.config.name == "hung").unwrap();
            until(|| told().error.contains("hang") && told().is_retried);
            image(&path("late"));
            until(|| host.disk("late").is_ok());
            assert!(host.disk("hung").is_err());
            lock(&HUNG.0).retain(|at| *at != path("hung"));
            HUNG.1.notify_all();
            until(|| host.disk("hung").is_ok());
            assert!(host.failed().is_empty());
            host.end().unwrap();
        }
    }

    /// A file that is removed has to be freed, and its file system unmounted.
    #[test]
    fn nothing_keeps_a_detached_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        image(&path);
        let disks = vec![DiskConfig::new("a", &path)];
        let listen = Some(folder.path().into());
        let config = Config { listen, disks, ..Config::default() };
        let daemon = Daemon::start(config, StartOptions::default()).unwrap();
        let is_open = || {
            let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path))
        };
        assert!(is_open());
        daemon.host().detach("a").unwrap();
        until(|| !is_open());
        daemon.host().attach(&DiskConfig::new("a", &path)).unwrap();
    }

    #[test]
    fn an_image_that_is_given_twice_is_noticed_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        image(&path("a.img"));
        std::fs::hard_link(path("a.img"), path("hard.img")).unwrap();
        std::os::unix::fs::symlink(path("a.img"), path("soft.img")).unwrap();
        for other in ["hard.img", "soft.img", "a.img"] {
            let disks = [("a", "a.img"), ("b", other)];
            let disks = disks.map(|(name, file)| DiskConfig::new(name, path(file))).into();
            let listen = Some(folder.path().into());
            let config = Config { listen, disks, ..Config::default() };
            let refused = Daemon::start(config, StartOptions::default()).err().unwrap();
            assert!(refused.to_string().contains("is the image of disk a too"), "{refused}");
        }
    }

    #[test]
    fn a_serial_number_that_another_disk_has_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { listen: Some(folder.path().into()), ..Config::default() };
        let daemon = Daemon::start(config, StartOptions::default()).unwrap();
        let host = daemon.host();
        let attach = |name: &str, serial: Option<&str>| {
            let path = folder.path().join(format!("{name}.img"));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            let serial = serial.map(Into::into);
            let disk = DiskConfig { serial, buffered: true, ..DiskConfig::new(name, path) };
            host.attach(&disk).unwrap().warnings.concat()
        };
        assert_eq!(attach("web", None), "");
        assert_eq!(attach("db", Some("other")), "");
        let warned = attach("log", Some("web"));
        assert!(warned.contains("serial number web is that of disk web too"), "{warned}");
    }

    #[test]
    fn a_change_that_hangs_holds_up_no_other_disk() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { listen: Some(folder.path().into()), ..Config::default() };
        let daemon = Daemon::start(config, StartOptions::default()).unwrap();
        let disk = |name: &str| {
            let path = folder.path().join(format!("{name}.img"));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            DiskConfig::new(name, path)
        };
        let host = daemon.host();
        host.attach(&disk("hung")).unwrap();
        // As long as its detach waits for its device:
        let claim = host.claim("hung", Change::Detach).unwrap();
        host.attach(&disk("other")).unwrap();
        host.resize("other", Some(2 << 20), false).unwrap();
        host.set_weight("other", std::num::NonZeroU32::new(4).unwrap()).unwrap();
        host.detach("other").unwrap();
        let refused = host.detach("hung").unwrap_err();
        assert!(matches!(&refused, HostError::Claimed(name) if name == "hung"), "{refused}");
        assert!(matches!(host.attach(&disk("hung")), Err(HostError::Claimed(_))));
        drop(claim);
        host.detach("hung").unwrap();
        host.end().unwrap();
        assert!(matches!(host.claim("late", Change::Attach), Err(HostError::Ending)));
    }

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
