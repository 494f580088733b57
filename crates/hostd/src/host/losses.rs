//! Images of which a sync has failed, for daemons that are started later or take the image over:
//! nobody has accepted that writes are lost because a service manager starts the daemon again, or
//! because a guest moves.
//!
//! Such an image is marked, by a thread that may wait for its file system. Where it keeps no mark, a
//! line in the host's notes says it ([`Notes`]). Where that cannot be said either, only this daemon
//! knows: it does not hand the image over.

use crate::images::{self, Image, ImageError, LostImage, Marker, Notes, Unmarked};
use crate::log::say;
use crate::sandbox::{self, Kind};
use crate::threads::{STACK_BYTES, spawn};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for marks: a file system may hang.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has images marked, and knows those that could not be.
pub(super) struct Losses {
    /// The thread ends when this and all images are gone.
    marker: Marker,
    unmarked: Arc<Unmarked>,
    /// Or why there are none.
    notes: Result<Arc<Notes>, String>,
}

impl Losses {
    /// Start the thread. The notes are in `folder`, if there is one.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn start(folder: Option<&Path>) -> io::Result<Losses> {
        let notes = match folder {
            Some(folder) => match Notes::open(folder) {
                Ok(notes) => Ok(Arc::new(notes)),
                Err(e) => Err(format!("{}: {e}", folder.display())),
            },
            None => Err("no folder for them".into()),
        };
        let (marker, lost, unmarked) = Marker::new();
        let of_thread = (notes.clone().ok(), unmarked.clone());
        spawn("losses", STACK_BYTES, move || {
            sandbox::enter(Kind::Helper);
            let (notes, unmarked) = of_thread;
            for image in lost {
                keep(&image, notes.as_deref(), &unmarked);
            }
        })?;
        Ok(Losses { marker, unmarked, notes })
    }

    /// Wait until what has failed is marked. Called before an image is opened, which looks for its
    /// mark.
    pub fn settle(&self) {
        self.unmarked.settle(PATIENCE);
    }

    /// Have an image marked when a sync of it fails.
    ///
    /// # Errors
    /// [`ImageError::LostWrites`] for one that is noted, unless that is accepted; and for one that
    /// is not marked yet.
    pub fn watch(&self, image: &mut Image, accept: bool) -> Result<(), ImageError> {
        let identity = image.identity();
        if self.unmarked.waits(&identity) {
            return image.judge_noted_loss(false);
        }
        if self.unmarked.has(&identity) {
            image.judge_noted_loss(accept)?;
            self.unmarked.remove(&identity);
        }
        match &self.notes {
            Ok(notes) => notes.judge(image, accept)?,
            Err(why) if !image.keeps_mark() => image.warn_of_no_notes(why),
            Err(_) => {}
        }
        let path = image.path().display().to_string();
        let failed = |source| ImageError::Io { path, what: "keeping a descriptor", source };
        image.mark_by(self.marker.clone()).map_err(failed)
    }

    /// Note a file of which the write-back failed unseen, which the kernel tells once, when it is
    /// opened. Returns what to say of it.
    pub fn refused(&self, error: ImageError) -> ImageError {
        match (error, &self.notes) {
            // It keeps no mark.
            (ImageError::LostWrites { path, lost, after }, Ok(notes)) if !after.is_empty() => {
                let file = Path::new(&path);
                let noted = notes.add(&images::file_identity(file), images::inode(file.metadata()));
                let after = noted.map_or(after, |()| String::new());
                ImageError::LostWrites { path, lost, after }
            }
            (error, _) => error,
        }
    }

    /// Has a sync of this image failed, in whichever daemon? The file is its own.
    ///
    /// # Errors
    /// When the notes cannot be read.
    pub fn has(&self, file: &File, identity: &str) -> io::Result<bool> {
        let notes = self.notes.as_deref().ok();
        Ok(self.unmarked.has(identity) || images::has_lost_writes(file, identity, notes)?)
    }

    /// May another daemon have the image? Only if that finds out what this one knows of it.
    pub fn may_leave(&self, identity: &str) -> bool {
        if self.unmarked.waits(identity) {
            self.settle();
        }
        !self.unmarked.has(identity)
    }

    /// A sync of this image has failed, and that cannot be marked.
    #[cfg(test)]
    pub fn forget_when_it_ends(&self, identity: &str) {
        self.unmarked.give_up(identity);
    }

    /// Wait until all are marked. Called when no image is served any more.
    pub fn end(&self) {
        self.settle();
    }
}

/// Mark an image, or note it.
fn keep(image: &LostImage, notes: Option<&Notes>, unmarked: &Unmarked) {
    let identity = &image.identity;
    match image.keep(notes) {
        Ok(()) => unmarked.remove(identity),
        Err(e) => {
            say(&format!(
                "{identity}: that writes are lost is forgotten when the daemon ends: {e}"
            ));
            unmarked.give_up(identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::OpenOptions;

    /// An image that keeps no mark, as a block device.
    fn image(folder: &Path) -> Image {
        let path = folder.join("a.img");
        File::options().create(true).append(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let incoming = OpenOptions { incoming: true, ..OpenOptions::writing() };
        Image::open(&path, &incoming).unwrap().without_mark()
    }

    #[test]
    fn whichever_daemon_opens_a_noted_image_refuses_it_until_that_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let start = || Losses::start(Some(&folder.path().join("state"))).unwrap();
        let [old, new] = [start(), start()];
        let [mut here, mut there] = [(); 2].map(|()| image(folder.path()));
        old.watch(&mut here, false).unwrap();
        new.watch(&mut there, false).unwrap();
        here.sync_failed(libc::EIO);
        assert!(old.may_leave(&here.identity()), "the other daemon finds it out");
        assert!(new.has(there.file(), &there.identity()).unwrap());
        // As after a boot, with sockets elsewhere.
        drop((old, new));
        let later = start();
        let refused = later.watch(&mut there, false).unwrap_err();
        assert!(matches!(refused, ImageError::LostWrites { .. }), "{refused}");
        later.watch(&mut there, true).unwrap();
        assert!(there.warnings().all().last().unwrap().contains("accepted"));
        later.watch(&mut there, false).unwrap();
        assert!(!start().has(there.file(), &there.identity()).unwrap());
    }

    #[test]
    fn a_write_back_that_failed_unseen_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let losses = Losses::start(Some(folder.path())).unwrap();
        let mut image = image(folder.path());
        let (path, lost) = (image.path().display().to_string(), "writing back".into());
        let told = ImageError::LostWrites { path, lost, after: " (it keeps no mark)".into() };
        let told = losses.refused(told).to_string();
        assert!(told.contains("writing back") && !told.contains("no mark"), "{told}");
        losses.watch(&mut image, false).unwrap_err();
    }

    #[test]
    fn an_image_that_can_be_noted_nowhere_does_not_leave() {
        let folder = tempfile::tempdir().unwrap();
        let losses = Losses::start(None).unwrap();
        let mut image = image(folder.path());
        losses.watch(&mut image, false).unwrap();
        let told = image.warnings().all();
        assert!(told.iter().any(|told| told.contains("forgotten")), "{told:?}");
        let identity = image.identity();
        assert!(losses.may_leave(&identity));
        image.sync_failed(libc::EIO);
        assert!(!losses.may_leave(&identity));
        losses.watch(&mut image, false).unwrap_err();
        losses.watch(&mut image, true).unwrap();
        assert!(losses.may_leave(&identity));
    }
}
