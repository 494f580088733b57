//! Images of which a sync has failed, for daemons that are started later: nobody has accepted that
//! writes are lost because a service manager starts the daemon again.
//!
//! Such an image is marked, by a thread that may wait for its file system. Where that keeps no
//! mark, and of a block device, a line in a file of the sockets' folder notes it. The file is opened
//! once, before the daemon is confined.

use super::slots::lock;
use crate::images::{Image, ImageError, LostImage, Marker, Unmarked};
use crate::log::say;
use crate::sandbox::{self, Kind};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

/// Name of the notes in the sockets' folder.
const NOTES: &str = "lost-writes";
/// Longest notes that are read, in bytes.
const NOTES_BYTES_MAX: u64 = 4 << 20;
/// How long anybody waits for marks: a file system may hang.
const PATIENCE: Duration = Duration::from_secs(2);
/// Stack of the thread.
const STACK_BYTES: usize = 128 << 10;

/// Has images marked, and knows those that could not be.
pub(super) struct Losses {
    /// The thread ends when this and all images are gone.
    marker: Marker,
    unmarked: Arc<Unmarked>,
    notes: Option<Arc<Notes>>,
}

impl Losses {
    /// Start the thread. The notes are in `folder`, if there is one.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn start(folder: Option<&Path>) -> io::Result<Losses> {
        let notes = folder.and_then(|folder| {
            let path = folder.join(NOTES);
            let opened = Notes::open(path.clone());
            let wrong = |e| say(&format!("{}: lost writes cannot be noted: {e}", path.display()));
            opened.map_err(wrong).ok().map(Arc::new)
        });
        let (marker, lost, unmarked) = Marker::new();
        let of_thread = (notes.clone(), unmarked.clone());
        let thread = Builder::new().name("losses".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            sandbox::enter(Kind::Helper);
            let (notes, unmarked) = of_thread;
            for image in lost {
                keep(&image, notes.as_deref());
                unmarked.remove(&image.identity);
            }
        })?;
        Ok(Losses { marker, unmarked, notes })
    }

    /// Wait until what has failed is marked. Called before an image is opened, which looks for its
    /// mark.
    pub fn settle(&self) {
        self.unmarked.wait_empty(PATIENCE);
    }

    /// Have an image marked when a sync of it fails.
    ///
    /// # Errors
    /// [`ImageError::LostWrites`] for one that is noted, unless that is accepted; and for one that
    /// is not marked yet.
    pub fn watch(&self, image: &mut Image, accept: bool) -> Result<(), ImageError> {
        let failed = |what| {
            let path = image.path().display().to_string();
            move |source| ImageError::Io { path, what, source }
        };
        let identity = image.identity();
        if self.unmarked.has(&identity) {
            return image.judge_noted_loss(false);
        }
        if let Some(notes) = &self.notes
            && notes.has(&identity).map_err(failed("reading the notes of lost writes"))?
        {
            image.judge_noted_loss(accept)?;
            let removed = notes.remove(&identity);
            removed.map_err(failed("changing the notes of lost writes"))?;
        }
        let failed = failed("keeping a descriptor");
        image.mark_by(self.marker.clone()).map_err(failed)
    }

    /// Wait until all are marked. Called when no image is served any more.
    pub fn end(&self) {
        self.settle();
        if let Some(notes) = &self.notes {
            notes.remove_if_empty();
        }
    }
}

/// Mark an image, or note it.
fn keep(image: &LostImage, notes: Option<&Notes>) {
    let Err(e) = image.mark() else { return };
    let noted = match notes {
        Some(notes) => notes.add(&image.identity),
        None => Err(e),
    };
    if let Err(e) = noted {
        let identity = &image.identity;
        say(&format!("{identity}: that writes are lost is forgotten when the daemon ends: {e}"));
    }
}

/// A file with the identity of an image in each line.
struct Notes {
    path: PathBuf,
    file: Mutex<File>,
}

impl Notes {
    fn open(path: PathBuf) -> io::Result<Notes> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(flags);
        let file = options.truncate(false).open(&path)?;
        // Another daemon's notes are its own.
        file.try_lock()?;
        Ok(Notes { path, file: Mutex::new(file) })
    }

    fn has(&self, identity: &str) -> io::Result<bool> {
        let text = read(&lock(&self.file))?;
        Ok(text.lines().any(|line| line == identity))
    }

    fn add(&self, identity: &str) -> io::Result<()> {
        let file = lock(&self.file);
        let text = read(&file)?;
        if text.lines().any(|line| line == identity) {
            return Ok(());
        }
        file.write_all_at(format!("{identity}\n").as_bytes(), text.len() as u64)?;
        file.sync_data()
    }

    fn remove(&self, identity: &str) -> io::Result<()> {
        let file = lock(&self.file);
        let text = read(&file)?;
        let mut left = String::new();
        for line in text.lines().filter(|line| *line != identity) {
            left += line;
            left += "\n";
        }
        file.write_all_at(left.as_bytes(), 0)?;
        file.set_len(left.len() as u64)?;
        file.sync_data()
    }

    fn remove_if_empty(&self) {
        let file = lock(&self.file);
        if file.metadata().is_ok_and(|about| about.len() == 0) {
            let _ = std::fs::remove_file(&self.path); // an empty file does no harm
        }
    }
}

fn read(file: &File) -> io::Result<String> {
    let len = file.metadata()?.len();
    if len > NOTES_BYTES_MAX {
        return Err(io::Error::other(format!("more than {NOTES_BYTES_MAX} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images;

    #[test]
    fn what_cannot_be_marked_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::open(folder.path().join(NOTES)).unwrap();
        // Only regular files and folders have marks.
        let image = LostImage { file: File::open("/dev/null").unwrap(), identity: "it".into() };
        keep(&image, Some(&notes));
        assert!(notes.has("it").unwrap());
    }

    #[test]
    fn a_noted_image_is_refused_until_that_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let losses = Losses::start(Some(folder.path())).unwrap();
        let path = folder.path().join("a.img");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let mut image = Image::open(&path, &images::OpenOptions::writing()).unwrap();
        losses.watch(&mut image, false).unwrap();
        // As its thread does where an image keeps no mark.
        losses.notes.as_ref().unwrap().add(&image.identity()).unwrap();
        let refused = losses.watch(&mut image, false).unwrap_err();
        assert!(matches!(refused, ImageError::LostWrites { .. }), "{refused}");
        losses.watch(&mut image, true).unwrap();
        assert!(image.warnings().all().last().unwrap().contains("accepted"));
        losses.watch(&mut image, false).unwrap();
        drop(image);
        losses.end();
        assert!(!folder.path().join(NOTES).exists(), "nothing is left to note");
    }

    #[test]
    fn notes_are_kept_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NOTES);
        let notes = Notes::open(path.clone()).unwrap();
        assert!(Notes::open(path.clone()).is_err(), "they are another daemon's");
        for identity in ["device 8:1", "file \"/a b\"", "device 8:1"] {
            notes.add(identity).unwrap();
        }
        drop(notes); // as SIGKILL has it
        let notes = Notes::open(path.clone()).unwrap();
        assert!(notes.has("device 8:1").unwrap() && notes.has("file \"/a b\"").unwrap());
        assert!(!notes.has("device 8:11").unwrap() && !notes.has("").unwrap());
        notes.remove("device 8:1").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "file \"/a b\"\n");
        notes.remove_if_empty();
        assert!(path.exists());
        notes.remove("file \"/a b\"").unwrap();
        notes.remove_if_empty();
        assert!(!path.exists());
    }
}
