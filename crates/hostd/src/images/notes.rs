//! Images that lack writes and keep no mark of it (block devices, files on FUSE), in a file of the
//! host: whichever daemon opens such an image, or takes it over, looks there.
//!
//! Each line says `lost` or `accepted`, and of which image; of an image the last line counts. Lines
//! are only appended, in one write each, so that several daemons may share the file without a lock.
//! It is opened once, before the daemon is confined.

use super::{Image, ImageError};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

/// Name of the file.
const NAME: &str = "lost-writes";
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 4 << 20;
const LOST: &str = "lost ";
const ACCEPTED: &str = "accepted ";

/// The file.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// The notes in this folder. Both are made where they are not there.
    ///
    /// # Errors
    /// When the file cannot be read and written.
    pub fn open(folder: &Path) -> io::Result<Notes> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file =
            options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(folder.join(NAME))?;
        // Its name outlasts a power failure as well.
        File::open(folder)?.sync_all()?;
        Ok(Notes(file))
    }

    /// Does the image lack writes?
    ///
    /// # Errors
    /// When the file cannot be read, or is too long.
    pub fn has(&self, identity: &str) -> io::Result<bool> {
        let text = self.read()?;
        let said = |word| move |line: &str| line.strip_prefix(word) == Some(identity);
        let (lost, accepted) = (said(LOST), said(ACCEPTED));
        let last = text.lines().rev().find(|line| lost(line) || accepted(line));
        Ok(last.is_some_and(lost))
    }

    /// May an image be opened? Only if it lacks no writes, or that is accepted, once.
    ///
    /// # Errors
    /// [`ImageError::LostWrites`]; what reading and writing the notes say.
    pub fn judge(&self, image: &Image, accept: bool) -> Result<(), ImageError> {
        let identity = image.identity();
        let failed = |what| {
            let path = image.path().display().to_string();
            move |source| ImageError::Io { path, what, source }
        };
        if !self.has(&identity).map_err(failed("reading the notes of lost writes"))? {
            return Ok(());
        }
        image.judge_noted_loss(accept)?;
        self.remove(&identity).map_err(failed("changing the notes of lost writes"))
    }

    /// The image lacks writes from now on. `identity` is one line.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn add(&self, identity: &str) -> io::Result<()> {
        if self.has(identity)? { Ok(()) } else { self.say(LOST, identity) }
    }

    /// That the image lacks writes is accepted.
    ///
    /// # Errors
    /// As [`Notes::add`].
    pub fn remove(&self, identity: &str) -> io::Result<()> {
        self.say(ACCEPTED, identity)
    }

    fn say(&self, word: &str, identity: &str) -> io::Result<()> {
        // What a power failure cut off has no end.
        let text = self.read()?;
        let begin = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        (&self.0).write_all(format!("{begin}{word}{identity}\n").as_bytes())?;
        self.0.sync_data()
    }

    fn read(&self) -> io::Result<String> {
        let len = self.0.metadata()?.len();
        if len > BYTES_MAX {
            return Err(io::Error::other(format!("{NAME} has more than {BYTES_MAX} bytes")));
        }
        let mut bytes = vec![0; len as usize];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_share_their_notes() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("lib/seekway");
        let [old, new] = [(); 2].map(|()| Notes::open(&state).unwrap());
        for identity in ["device \"8:1\"", "file \"/a b\"", "device \"8:1\""] {
            old.add(identity).unwrap();
        }
        assert!(new.has("device \"8:1\"").unwrap() && new.has("file \"/a b\"").unwrap());
        assert!(!new.has("device \"8:11\"").unwrap() && !new.has("").unwrap());
        new.remove("device \"8:1\"").unwrap();
        assert!(!old.has("device \"8:1\"").unwrap() && old.has("file \"/a b\"").unwrap());
        old.add("device \"8:1\"").unwrap();
        drop((old, new)); // as a boot has it
        assert!(Notes::open(&state).unwrap().has("device \"8:1\"").unwrap());
    }

    #[test]
    fn a_line_that_was_cut_off_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::open(folder.path()).unwrap();
        std::fs::write(folder.path().join(NAME), "lost one\nlost tw").unwrap();
        notes.add("three").unwrap();
        assert_eq!(["one", "two", "three"].map(|i| notes.has(i).unwrap()), [true, false, true]);
    }
}
