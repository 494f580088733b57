//! Writes that were acknowledged and did not reach the device.
//!
//! The kernel writes the page cache back when it likes. Where that fails it
//! marks the pages clean all the same, and tells it once: to whoever syncs the
//! file next (`Documentation/core-api/errseq.rst`). An image is synced when it is
//! opened, so that what an earlier daemon left in the page cache, perhaps one
//! that was killed, is found out here. As the next time the kernel says nothing,
//! the image itself is marked by an extended attribute, which stays until
//! somebody accepts the loss.
//!
//! Block devices are not synced here: the first flush of their guest has the
//! error.
//!
//! A sync that fails while an image is served is as final: [`LostImage`] goes to whoever marks it.

use super::{Image, ImageError, Notes, place};
use crate::threads::lock;
use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The mark of an image that lacks writes.
const MARK: &CStr = c"user.seekway.lost_writes";
/// Description of a loss that is only known by its mark.
const EARLIER: &str = "an earlier write-back or flush failed";

impl Image {
    /// The error with which every flush and every durable write has to fail from
    /// now on, until the image is opened again.
    pub fn lost_writes(&self) -> Option<i32> {
        self.lost_writes
    }

    /// A sync has failed with this errno, whatever that is: the kernel reports what an earlier
    /// write-back met, and a device may have dropped its cache. Pages that were not written can be
    /// clean by now, and the next sync would say that all is well. As nobody knows what is on the
    /// device, [`Image::lost_writes`] has the errno from now on.
    pub fn sync_failed(&mut self, errno: i32) {
        if self.lost_writes.is_some() {
            return;
        }
        self.lost_writes = Some(errno);
        let text = format!(
            "{}: a flush failed ({}): writes may be lost, and every flush fails; check the image \
             (fsck, a backup), then detach the disk and attach it with accept-lost-writes",
            self.path.display(),
            io::Error::from_raw_os_error(errno)
        );
        crate::log::say(&text);
        self.warnings.add(text);
        if let Some((marker, lost)) = self.marker.take() {
            self.marking = Some((marker.unmarked.clone(), lost.identity.clone()));
            marker.mark(lost);
        }
    }

    /// Is the image being marked? If the daemon is killed before that is done, the next daemon does
    /// not know of the failure.
    pub fn is_being_marked(&self) -> bool {
        self.marking.as_ref().is_some_and(|(unmarked, identity)| unmarked.waits(identity))
    }

    /// Have `marker` mark the image when a sync of it fails.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn mark_by(&mut self, marker: Marker) -> io::Result<()> {
        let lost = LostImage {
            file: self.file.try_clone()?,
            keeps_mark: self.keeps_mark(),
            identity: self.identity(),
        };
        self.marker = Some((marker, lost));
        Ok(())
    }

    /// Can the image itself be marked? Block devices cannot, nor files on file systems without
    /// extended attributes.
    pub fn keeps_mark(&self) -> bool {
        self.keeps_mark
    }

    /// One line by which each daemon of this host knows the image, after a boot too: the name of its
    /// device, or its path without links.
    pub fn identity(&self) -> String {
        match self.file.metadata() {
            Ok(about) if self.is_block => format!("device {:?}", place::name(about.rdev())),
            _ => file_identity(&self.path),
        }
    }

    /// Writes to the image are noted as lost, elsewhere than in a mark of its own.
    ///
    /// # Errors
    /// [`ImageError::LostWrites`], unless that is accepted.
    pub fn judge_noted_loss(&self, accept: bool) -> Result<(), ImageError> {
        if !accept {
            return Err(refused(&self.path));
        }
        self.warnings.add(accepted_elsewhere(&self.path));
        Ok(())
    }

    /// A failed sync of the image would be forgotten when the daemon ends.
    pub fn warn_of_no_notes(&self, why: &str) {
        self.warnings.add(format!(
            "{}: keeps no mark of lost writes, and the host's notes of them cannot be used: {why}: \
             if a flush fails, that is forgotten when the daemon ends",
            self.path.display()
        ));
    }
}

/// Write back what the page cache has of an image. Fails when something of it
/// was lost, now or before: unless `accept`, then the mark is taken away and a
/// warning says so.
pub(super) fn check(
    file: &File,
    path: &Path,
    accept: bool,
    warnings: &mut Vec<String>,
) -> Result<(), ImageError> {
    let lost = match file.sync_data() {
        Ok(()) if is_marked(file) => EARLIER.to_owned(),
        Ok(()) => return Ok(()),
        Err(e) => format!("writing back what was cached: {e}"),
    };
    let path = path.display().to_string();
    if !accept {
        let after = match mark(file) {
            Ok(()) => String::new(),
            Err(e) => format!(
                " (this file system keeps no note of it, {e}: the next attempt to open the \
                 image will succeed)"
            ),
        };
        return Err(ImageError::LostWrites { path, lost, after });
    }
    let unmarked = unmark(file);
    let kept = unmarked.err().map_or(String::new(), |e| format!("; its mark stays: {e}"));
    warnings.push(accepted(&path, &lost) + &kept);
    Ok(())
}

/// Line for the operator about a loss that was accepted.
fn accepted(path: &str, lost: &str) -> String {
    format!(
        "{path}: {lost}: writes that a guest was told are done are missing, and that was \
         accepted (accept-lost-writes)"
    )
}

/// Line about an image that is not marked, but noted elsewhere.
fn accepted_elsewhere(path: &Path) -> String {
    accepted(&path.display().to_string(), EARLIER)
}

/// Why a marked image is not opened.
pub(super) fn refused(path: &Path) -> ImageError {
    let lost = EARLIER.to_owned();
    ImageError::LostWrites { path: path.display().to_string(), lost, after: String::new() }
}

/// An image of which a sync has failed.
#[derive(Debug)]
pub struct LostImage {
    pub(crate) file: File,
    pub(crate) keeps_mark: bool,
    /// Name of the image for other daemons ([`super::Image::identity`]).
    pub identity: String,
}

/// Marks images of which a sync has failed.
#[derive(Clone, Debug)]
pub struct Marker {
    to: Sender<LostImage>,
    unmarked: Arc<Unmarked>,
}

/// The identities of images that are not marked: not yet, or because they cannot be.
#[derive(Debug, Default)]
pub struct Unmarked {
    images: Mutex<BTreeMap<String, Wait>>,
    marked: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    ForMark,
    ForNothing,
}

impl Marker {
    /// With what they are to mark, and where they say that they have.
    pub fn new() -> (Marker, Receiver<LostImage>, Arc<Unmarked>) {
        let ((to, lost), unmarked) = (channel(), Arc::<Unmarked>::default());
        (Marker { to, unmarked: unmarked.clone() }, lost, unmarked)
    }

    /// Have an image marked. Waits for nobody.
    fn mark(&self, image: LostImage) {
        self.unmarked.lock().insert(image.identity.clone(), Wait::ForMark);
        let _ = self.to.send(image); // it has ended: so does the daemon
    }
}

impl Unmarked {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Wait>> {
        lock(&self.images)
    }

    /// An image is marked, or its loss is accepted.
    pub fn remove(&self, identity: &str) {
        self.lock().remove(identity);
        self.marked.notify_all();
    }

    /// An image cannot be marked: only this daemon knows of it.
    pub fn give_up(&self, identity: &str) {
        self.lock().insert(identity.into(), Wait::ForNothing);
        self.marked.notify_all();
    }

    pub fn has(&self, identity: &str) -> bool {
        self.lock().contains_key(identity)
    }

    /// Is the image about to be marked?
    pub fn waits(&self, identity: &str) -> bool {
        self.lock().get(identity) == Some(&Wait::ForMark)
    }

    /// Wait until none is about to be marked, but not for longer than this.
    pub fn settle(&self, patience: Duration) {
        let waits = |images: &mut BTreeMap<String, Wait>| {
            images.values().any(|wait| *wait == Wait::ForMark)
        };
        drop(self.marked.wait_timeout_while(self.lock(), patience, waits));
    }
}

impl LostImage {
    /// Mark the image, or note it, for whoever opens it next. The file system may hang.
    ///
    /// # Errors
    /// Where neither can be done.
    pub fn keep(&self, notes: Option<&Notes>) -> io::Result<()> {
        let marked = match self.keeps_mark {
            true => mark(&self.file),
            false => Err(Errno::OPNOTSUPP.into()),
        };
        match (marked, notes) {
            (Err(_), Some(notes)) => notes.add(&self.identity),
            (marked, _) => marked,
        }
    }
}

/// [`Image::identity`] of a file.
pub fn file_identity(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    format!("file {path:?}")
}

/// Does an image lack writes, as whichever daemon found out has marked or noted?
///
/// # Errors
/// When the notes cannot be read.
pub fn has_lost_writes(file: &File, identity: &str, notes: Option<&Notes>) -> io::Result<bool> {
    Ok(is_marked(file) || notes.map_or(Ok(false), |notes| notes.has(identity))?)
}

/// Sync a file, and mark it if that fails, for whoever opens it as an image.
pub(super) fn sync(file: &File) -> io::Result<()> {
    file.sync_data().inspect_err(|_| {
        let _ = mark(file); // nothing else can keep it
    })
}

pub(super) fn is_marked(file: &File) -> bool {
    fs::fgetxattr_query(file, MARK).is_ok()
}

/// Can a file be marked?
pub(super) fn keeps_mark(file: &File) -> bool {
    matches!(fs::fgetxattr_query(file, MARK), Ok(_) | Err(Errno::NODATA))
}

fn mark(file: &File) -> io::Result<()> {
    Ok(fs::fsetxattr(file, MARK, b"1", XattrFlags::empty())?)
}

fn unmark(file: &File) -> io::Result<()> {
    match fs::fremovexattr(file, MARK) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        removed => Ok(removed?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_image_is_refused_until_it_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        let file = File::create(&path).unwrap();
        let mut warnings = Vec::new();
        check(&file, &path, false, &mut warnings).unwrap();
        if let Err(e) = mark(&file) {
            seekway_testing::skip(format!("extended attributes of files: {e}"));
            return;
        }
        for _ in 0..2 {
            let error = check(&file, &path, false, &mut warnings).unwrap_err().to_string();
            assert!(error.contains("accept-lost-writes") && error.contains("a.img"), "{error}");
        }
        assert!(warnings.is_empty());
        check(&file, &path, true, &mut warnings).unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        // That was once.
        check(&file, &path, false, &mut warnings).unwrap();
        check(&file, &path, true, &mut warnings).unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }
}
