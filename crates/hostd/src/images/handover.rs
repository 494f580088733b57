//! The hand-over of an image from one daemon to another, while its guest migrates: both have it
//! open, and the one that holds its lock serves it. Here is how many use the image in this daemon,
//! and whether the lock is held.

use super::lock::{self, LockError};
use std::fs::File;
use std::io;

/// Says to a disk that somebody begins to use its image, and that they have ended.
pub trait ImageUse: Send + Sync {
    /// The image is used from now on, and locked. True when another daemon had it before: the
    /// guest may have run there.
    ///
    /// # Errors
    /// For the log: another program has it.
    fn begin(&self) -> Result<bool, String>;

    /// One that has begun uses it no more. `hands_over`: its guest goes on elsewhere.
    fn end(&self, hands_over: bool);
}

/// An image that is never handed over.
pub struct Kept;

impl ImageUse for Kept {
    fn begin(&self) -> Result<bool, String> {
        Ok(false)
    }
    fn end(&self, _hands_over: bool) {}
}

/// Purpose for which an image is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// A guest by vhost-user: the image goes where it goes.
    Guest,
    /// A client of NBD: it finds the image where its guest is.
    Client,
    /// Somebody takes a snapshot of it.
    Snapshot,
}

/// Where the image's lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Here,
    /// Here until those who use the image have ended: its guest goes on elsewhere.
    Leaving,
    /// This daemon has given it away.
    Elsewhere,
    /// Another daemon has it; this one has never had it.
    Expected,
}

/// The users of an image in this daemon, and whether its lock is held. Requests in flight do not
/// matter: a user that ends has waited for its own.
#[derive(Debug)]
pub struct Users {
    count: usize,
    holder: Holder,
    /// Another daemon had the image, and its guest has not come here yet.
    awaits_guest: bool,
}

/// Outcome of an attempt to use an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// The image is used from now on; `anew` when the lock was not held before, and the image may
    /// have changed. A guest hears this too if a client came first.
    Here { anew: bool },
    /// Another program has the lock.
    Locked,
    /// The guest has gone on in another daemon, or is about to.
    Elsewhere,
}

/// Outcome of the end of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    /// The image stays as it was.
    Kept,
    /// The lock is free.
    Done,
    /// The lock will be free when this number of others have ended.
    Used(usize),
}

impl Users {
    /// Nobody uses it yet; `is_held`: this daemon has its lock.
    pub fn new(is_held: bool) -> Users {
        let holder = if is_held { Holder::Here } else { Holder::Expected };
        Users { count: 0, holder, awaits_guest: false }
    }

    pub fn is_held(&self) -> bool {
        matches!(self.holder, Holder::Here | Holder::Leaving)
    }

    /// Somebody uses the image from now on, if they may.
    ///
    /// # Errors
    /// The file system's error.
    pub fn begin(&mut self, file: &File, user: User) -> io::Result<Begun> {
        let anew = match (self.holder, user) {
            (Holder::Here, _) | (Holder::Leaving, User::Guest) => false,
            (Holder::Leaving | Holder::Elsewhere, User::Client | User::Snapshot)
            | (Holder::Expected, User::Snapshot) => return Ok(Begun::Elsewhere),
            (Holder::Elsewhere, User::Guest) | (Holder::Expected, _) => {
                match lock::lock(file, false) {
                    Ok(()) => true,
                    Err(LockError::Held) => return Ok(Begun::Locked),
                    Err(LockError::Io(e)) => return Err(e),
                }
            }
        };
        self.holder = Holder::Here;
        self.count += 1;
        self.awaits_guest |= anew;
        let anew = anew || user == User::Guest && self.awaits_guest;
        self.awaits_guest &= user != User::Guest;
        Ok(Begun::Here { anew })
    }

    /// One of them uses it no more; `hands_over`: its guest goes on elsewhere. The last one leaves
    /// the image to another daemon then. Without `file`, it stays: the disk is being detached, or nobody else may
    /// have it.
    ///
    /// # Errors
    /// The file system's error; the lock is held then.
    pub fn end(&mut self, file: Option<&File>, hands_over: bool) -> io::Result<HandOver> {
        self.count -= 1;
        let Some(file) = file else { return Ok(HandOver::Kept) };
        if hands_over && self.holder == Holder::Here {
            self.holder = Holder::Leaving;
        }
        match (self.holder, self.count) {
            (Holder::Leaving, 0) => {}
            (Holder::Leaving, others) if hands_over => return Ok(HandOver::Used(others)),
            _ => return Ok(HandOver::Kept),
        }
        self.holder = Holder::Here;
        lock::unlock(file)?;
        self.holder = Holder::Elsewhere;
        Ok(HandOver::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::User::{Client, Guest, Snapshot};
    use super::*;

    const HERE: Begun = Begun::Here { anew: false };
    const ANEW: Begun = Begun::Here { anew: true };

    /// Two daemons that have an image open, and the first one its lock.
    fn pair() -> (tempfile::TempDir, [File; 2], [Users; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        File::create(&path).unwrap().set_len(4096).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let files = [open(), open()];
        lock::lock(&files[0], false).unwrap();
        (folder, files, [Users::new(true), Users::new(false)])
    }

    #[test]
    fn an_image_is_used_by_one_daemon_at_a_time() {
        let (_folder, [old, new], [mut here, mut there]) = pair();
        assert_eq!(here.begin(&old, Guest).unwrap(), HERE);
        assert_eq!(here.begin(&old, Client).unwrap(), HERE);
        assert_eq!(there.begin(&new, Guest).unwrap(), Begun::Locked);
        assert_eq!(here.end(Some(&old), true).unwrap(), HandOver::Used(1));
        assert_eq!(there.begin(&new, Guest).unwrap(), Begun::Locked);
        assert_eq!(here.end(Some(&old), false).unwrap(), HandOver::Done);
        assert_eq!(there.begin(&new, Guest).unwrap(), ANEW);
        // The migration has failed too late: the guest must not go on here.
        assert_eq!(here.begin(&old, Guest).unwrap(), Begun::Locked);
        assert_eq!(there.end(Some(&new), true).unwrap(), HandOver::Done);
        assert_eq!(here.begin(&old, Guest).unwrap(), ANEW);
    }

    #[test]
    fn clients_and_snapshots_do_not_take_the_image_from_its_guest() {
        let (_folder, [old, new], [mut here, mut there]) = pair();
        here.begin(&old, Guest).unwrap();
        assert_eq!(here.begin(&old, Snapshot).unwrap(), HERE);
        // Its guest leaves in the middle of the snapshot.
        assert_eq!(here.end(Some(&old), true).unwrap(), HandOver::Used(1));
        assert_eq!(here.begin(&old, Client).unwrap(), Begun::Elsewhere);
        assert_eq!(there.begin(&new, Guest).unwrap(), Begun::Locked);
        assert_eq!(here.end(Some(&old), false).unwrap(), HandOver::Done);
        for user in [Client, Snapshot] {
            assert_eq!(here.begin(&old, user).unwrap(), Begun::Elsewhere);
        }
        assert_eq!(there.begin(&new, Snapshot).unwrap(), Begun::Elsewhere);
        assert_eq!(there.begin(&new, Client).unwrap(), ANEW, "its guest comes");
        assert_eq!(there.begin(&new, Client).unwrap(), HERE);
        assert_eq!(there.begin(&new, Guest).unwrap(), ANEW, "it has run elsewhere");
        assert_eq!(there.begin(&new, Guest).unwrap(), HERE);
    }

    #[test]
    fn a_guest_that_stays_after_all_keeps_its_image() {
        let (_folder, [old, new], [mut here, mut there]) = pair();
        here.begin(&old, Guest).unwrap();
        here.begin(&old, Client).unwrap();
        assert_eq!(here.end(Some(&old), true).unwrap(), HandOver::Used(1));
        assert_eq!(here.begin(&old, Guest).unwrap(), HERE);
        assert_eq!(here.end(Some(&old), false).unwrap(), HandOver::Kept);
        assert_eq!(there.begin(&new, Guest).unwrap(), Begun::Locked);
    }
}
