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

/// Who uses an image here, and whether its lock is held. Says nothing of what is in flight: those
/// who end have waited for theirs.
#[derive(Debug)]
pub struct Users {
    count: usize,
    is_held: bool,
}

/// What a hand-over came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    /// The lock is free.
    Done,
    /// So many others use the image here.
    Used(usize),
}

impl Users {
    /// Nobody yet.
    pub fn new(is_held: bool) -> Users {
        Users { count: 0, is_held }
    }

    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Somebody uses the image from now on. True when the lock was not held before, and the image
    /// may be another than it was. `None` when another program has it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn begin(&mut self, file: &File) -> io::Result<Option<bool>> {
        let is_anew = !self.is_held;
        if is_anew {
            match lock::lock(file, false) {
                Ok(()) => self.is_held = true,
                Err(LockError::Held) => return Ok(None),
                Err(LockError::Io(e)) => return Err(e),
            }
        }
        self.count += 1;
        Ok(Some(is_anew))
    }

    /// One of them uses it no more.
    pub fn end(&mut self) {
        self.count -= 1;
    }

    /// Leave the image to another daemon, if nobody here uses it.
    ///
    /// # Errors
    /// What the file system says; the lock is held then.
    pub fn hand_over(&mut self, file: &File) -> io::Result<HandOver> {
        if self.count > 0 {
            return Ok(HandOver::Used(self.count));
        }
        lock::unlock(file)?;
        self.is_held = false;
        Ok(HandOver::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_used_by_one_daemon_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        File::create(&path).unwrap().set_len(4096).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (old, new) = (open(), open());
        lock::lock(&old, false).unwrap();
        let (mut here, mut there) = (Users::new(true), Users::new(false));
        assert_eq!(here.begin(&old).unwrap(), Some(false));
        assert_eq!(here.begin(&old).unwrap(), Some(false));
        assert_eq!(there.begin(&new).unwrap(), None);
        here.end();
        assert_eq!(here.hand_over(&old).unwrap(), HandOver::Used(1));
        assert_eq!(there.begin(&new).unwrap(), None);
        here.end();
        assert_eq!(here.hand_over(&old).unwrap(), HandOver::Done);
        assert_eq!(there.begin(&new).unwrap(), Some(true));
        // The migration has failed too late: the guest must not go on here.
        assert_eq!(here.begin(&old).unwrap(), None);
        there.end();
        assert_eq!(there.hand_over(&new).unwrap(), HandOver::Done);
        assert_eq!(here.begin(&old).unwrap(), Some(true));
    }
}
