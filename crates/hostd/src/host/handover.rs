//! A disk whose guest migrates to another daemon, or comes from one: its image is used here, and
//! locked, while its queues run, clients of NBD are connected, or a snapshot is taken.

use super::served::ServedDisk;
use crate::images::{Begun, HandOver, ImageUse, User};
use crate::reactor::Message;
use crate::threads::lock;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for another daemon to hand an image over.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which to look.
const PAUSE: Duration = Duration::from_millis(5);

impl ServedDisk {
    /// Is the image another daemon's?
    pub fn is_elsewhere(&self) -> bool {
        !lock(&self.users).is_held()
    }

    /// Take the image's lock, unless it is held. True when it was not.
    fn take_image(&self, user: User) -> Result<bool, String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let taken = {
                let file = lock(&self.file);
                let file = file.as_ref().ok_or("is being detached")?;
                lock(&self.users).begin(file, user)
            };
            match taken {
                Ok(Begun::Here { anew }) => return Ok(anew),
                Ok(Begun::Locked) if Instant::now() < end => thread::sleep(PAUSE),
                Ok(Begun::Locked) => {
                    return Err(format!(
                        "{} is locked by another program: the daemon from which the guest \
                         migrates has to hand it over, and cannot while clients of NBD use it \
                         there, or while the disk is frozen",
                        self.config.path.display()
                    ));
                }
                Ok(Begun::Elsewhere) => {
                    return Err(format!(
                        "{} is elsewhere: another daemon has it, where the guest is",
                        self.config.path.display()
                    ));
                }
                Err(e) => return Err(format!("locking {}: {e}", self.config.path.display())),
            }
        }
    }

    /// Another daemon had the image: look at its size and its mark, and forget what is cached of it.
    fn look_again(&self) -> Result<(), String> {
        let is_lost = match &*lock(&self.file) {
            Some(file) => self.losses.has(file, &self.identity),
            None => Ok(false),
        };
        let unknown = |e| format!("looking whether {} lacks writes: {e}", self.identity);
        if is_lost.map_err(unknown)? && !self.config.accept_lost_writes {
            self.device.handle().send(Message::LostWrites(self.id));
        }
        // Who made it smaller was that daemon, and has been asked whether it may.
        let answer = self.device.handle().ask(|reply| Message::Resize(self.id, true, reply));
        let capacity_bytes = answer.ok_or("the disk is not served any more")??;
        let mut limits = lock(&self.limits);
        let before = std::mem::replace(&mut limits.capacity_bytes, capacity_bytes);
        drop(limits);
        if before != capacity_bytes {
            self.config_changed.notify();
        }
        self.config_changed.say(|| format!("{}: its image is this daemon's now", self.what()));
        Ok(())
    }

    /// The image is used from now on. True when another daemon had it before.
    fn begin_as(&self, user: User) -> Result<bool, String> {
        if self.config.read_only {
            return Ok(false);
        }
        let _turn = lock(&self.taking);
        let is_anew = self.take_image(user)?;
        if is_anew && let Err(e) = self.look_again() {
            self.end(false);
            return Err(e);
        }
        Ok(is_anew)
    }
}

impl ImageUse for ServedDisk {
    fn begin(&self) -> Result<bool, String> {
        self.begin_as(User::Guest)
    }

    fn end(&self, hands_over: bool) {
        if self.config.read_only {
            return;
        }
        let may_leave = self.losses.may_leave(&self.identity);
        if hands_over && !may_leave {
            self.config_changed.say(|| {
                format!(
                    "{}: its image is not handed over: a flush has failed, and another daemon would \
                     not find that out; check the image, then detach the disk",
                    self.what()
                )
            });
        }
        let file = lock(&self.file);
        let file = file.as_ref().filter(|_| may_leave);
        let told = match lock(&self.users).end(file, hands_over) {
            Ok(HandOver::Kept) => return,
            Ok(HandOver::Done) => "free for another daemon".into(),
            Ok(HandOver::Used(count)) => {
                format!("not handed over yet: {count} clients of NBD or snapshots use it")
            }
            Err(e) => format!("not handed over: {e}"),
        };
        self.config_changed.say(|| format!("{}: its image is {told}", self.what()));
    }
}

/// Somebody uses a disk's image until this is dropped.
pub struct Used(Arc<ServedDisk>);

impl Used {
    /// The image is used from now on.
    ///
    /// # Errors
    /// When another program uses the image, or the guest has moved to another daemon.
    pub fn begin(disk: &Arc<ServedDisk>, user: User) -> Result<Used, String> {
        disk.begin_as(user)?;
        Ok(Used(disk.clone()))
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.0.end(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DiskConfig};
    use crate::daemon::{Daemon, FREEZE_MAX, Host, StartOptions};
    use crate::images::{LostImage, Notes};
    use std::fs::File;
    use std::path::Path;

    /// Two daemons that have an image open as the disk `web`; the first one has it.
    fn pair(folder: &Path) -> [Arc<Host>; 2] {
        let path = folder.join("web.img");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let disk = DiskConfig::new("web", &path);
        ["old", "new"].map(|name| {
            let listen = Some(folder.join(name));
            let config = Config { listen, ..Config::default() };
            let state = Some(folder.join("state"));
            let options = StartOptions { state, ..StartOptions::default() };
            let daemon = Daemon::start(config, options).unwrap();
            let incoming = name == "new";
            daemon.host().attach(&DiskConfig { incoming, ..disk.clone() }).unwrap();
            daemon.host().clone()
        })
    }

    #[test]
    fn a_frozen_disk_keeps_its_image() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = pair(folder.path());
        let [here, there] = [&old, &new].map(|host| host.disk("web").unwrap());
        let freeze = |host: &Host| host.freeze("web", FREEZE_MAX);
        assert!(freeze(&new).unwrap_err().to_string().contains("is elsewhere"));
        here.begin().unwrap();
        freeze(&old).unwrap();
        here.end(true);
        assert!(!here.is_elsewhere());
        assert!(there.begin().is_err(), "somebody copies it");
        old.thaw("web").unwrap();
        // It waits until the image is free.
        assert!(there.begin().unwrap());
        assert!(freeze(&old).unwrap_err().to_string().contains("is elsewhere"));
        freeze(&new).unwrap();
        [old, new].into_iter().for_each(|host| host.end().unwrap());
    }

    #[test]
    fn a_flush_that_failed_stays_failed_in_the_next_daemon() {
        for keeps_mark in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let [old, new] = pair(folder.path());
            let [here, there] = [&old, &new].map(|host| host.disk("web").unwrap());
            here.begin().unwrap();
            // As a thread of the old daemon does.
            let notes = Notes::open(&folder.path().join("state")).unwrap();
            let file = File::open(&here.config.path).unwrap();
            let lost = LostImage { file, keeps_mark, identity: here.identity.clone() };
            lost.keep(Some(&notes)).unwrap();
            here.end(true);
            assert_eq!(there.warnings.all(), [""; 0]);
            there.begin().unwrap();
            let told = there.warnings.all();
            assert!(told.len() == 1 && told[0].contains("every flush fails"), "{told:?}");
            [old, new].into_iter().for_each(|host| host.end().unwrap());
        }
    }

    #[test]
    fn an_image_whose_failed_flush_only_this_daemon_knows_stays_here() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = pair(folder.path());
        let [here, there] = [&old, &new].map(|host| host.disk("web").unwrap());
        here.begin().unwrap();
        let client = Used::begin(&here, User::Client).unwrap();
        here.end(true);
        here.losses.forget_when_it_ends(&here.identity);
        drop(client);
        assert!(!here.is_elsewhere());
        assert!(there.begin().is_err(), "its flushes would go well");
        here.begin().unwrap();
        [old, new].into_iter().for_each(|host| host.end().unwrap());
    }

    /// A VMM stops and starts its queues as often as it likes.
    #[test]
    fn lines_about_hand_overs_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = pair(folder.path());
        let here = old.disk("web").unwrap();
        for _ in 0..2 {
            here.begin().unwrap();
            here.end(true);
        }
        // The first time it was here already.
        assert_eq!(here.config_changed.lines.of_minute(), 3);
        [old, new].into_iter().for_each(|host| host.end().unwrap());
    }

    #[test]
    fn a_disk_is_used_in_one_of_two_daemons() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = pair(folder.path());
        let [here, there] = [&old, &new].map(|host| host.disk("web").unwrap());
        assert_eq!([here.is_elsewhere(), there.is_elsewhere()], [false, true]);

        assert!(!here.begin().unwrap());
        let refused = there.begin().unwrap_err();
        assert!(refused.contains("locked by another program"), "{refused}");
        // One that hangs up keeps the image here; a client of NBD does too.
        let client = Used::begin(&here, User::Client).unwrap();
        here.end(false);
        drop(client);
        assert!(!here.is_elsewhere());
        here.begin().unwrap();
        let client = Used::begin(&here, User::Client).unwrap();
        here.end(true);
        assert!(!here.is_elsewhere());
        assert!(Used::begin(&here, User::Client).is_err(), "they would never end");
        drop(client);
        assert!(here.is_elsewhere());
        assert!(Used::begin(&here, User::Client).is_err(), "its guest would find it locked");
        assert!(old.resize("web", Some(2 << 20), false).is_err());
        assert!(there.begin().unwrap(), "the guest has run elsewhere");
        assert!(!there.is_elsewhere());
        // It grows meanwhile, and goes back.
        assert_eq!(new.resize("web", Some(2 << 20), false).unwrap(), 2 << 20);
        there.end(true);
        here.begin().unwrap();
        assert_eq!(here.limits().capacity_bytes, 2 << 20);
        here.end(false);
        [old, new].into_iter().for_each(|host| host.end().unwrap());
    }
}
