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

use super::{Image, ImageError, place};
use crate::threads::lock;
use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
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
            (Err(_), Some(notes)) => notes.add(&self.identity, inode(self.file.metadata())),
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
    let noted = |notes: &Notes| notes.has(identity, inode(file.metadata()));
    Ok(is_marked(file) || notes.map_or(Ok(false), noted)?)
}

/// Device and number of an image's inode. Files have one under all their names and mounts; devices
/// have a name of their own.
pub fn inode(about: io::Result<Metadata>) -> Option<(u64, u64)> {
    about.ok().filter(|about| about.is_file()).map(|about| (about.dev(), about.ino()))
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

// Images that lack writes and keep no mark of it (block devices, files on FUSE), in a file of the
// host: whichever daemon opens such an image, or takes it over, looks there.
//
// Each line says `lost` or `accepted`, and of which image; of an image the last line counts. A file
// has two lines: its path, which outlasts a boot, and its inode, by which it is known under its
// other names (a bind mount, a link, a descriptor that was handed over) until the next boot, which
// numbers file systems anew. Lines are only appended, in one write each, so that several daemons may
// share the file without a lock. It is opened once, before the daemon is confined.

/// Name of the file.
const NAME: &str = "lost-writes";
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 4 << 20;
const LOST: &str = "lost ";
const ACCEPTED: &str = "accepted ";
/// Names this boot of the host (`Documentation/admin-guide/sysctl/kernel.rst`, `random`).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The host's notes of images that lost writes, for those that keep no mark of their own.
#[derive(Debug)]
pub struct Notes {
    file: File,
    /// Null where /proc does not tell: then files are known by their paths alone.
    boot: Option<String>,
}

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
        let boot = std::fs::read_to_string(BOOT_ID).ok().map(|boot| boot.trim().to_owned());
        Ok(Notes { file, boot })
    }

    /// Names by which the lines know an image: its identity, and the inode of a file.
    fn names(&self, identity: &str, inode: Option<(u64, u64)>) -> Vec<String> {
        let inode = self.boot.as_ref().zip(inode);
        let inode = inode.map(|(boot, (dev, ino))| format!("inode {boot} {dev}:{ino}"));
        [Some(identity.to_owned()), inode].into_iter().flatten().collect()
    }

    /// Does the image lack writes, by either name? `inode` is that of [`inode`].
    ///
    /// # Errors
    /// When the file cannot be read, or is too long.
    pub fn has(&self, identity: &str, inode: Option<(u64, u64)>) -> io::Result<bool> {
        let text = self.read()?;
        Ok(self.names(identity, inode).iter().any(|name| Notes::says_lost(&text, name)))
    }

    fn says_lost(text: &str, identity: &str) -> bool {
        let said = |word| move |line: &str| line.strip_prefix(word) == Some(identity);
        let (lost, accepted) = (said(LOST), said(ACCEPTED));
        let last = text.lines().rev().find(|line| lost(line) || accepted(line));
        last.is_some_and(lost)
    }

    /// May an image be opened? Only if it lacks no writes, or that is accepted, once.
    ///
    /// # Errors
    /// [`ImageError::LostWrites`]; what reading and writing the notes say.
    pub fn judge(&self, image: &Image, accept: bool) -> Result<(), ImageError> {
        let (identity, inode) = (image.identity(), inode(image.file().metadata()));
        let failed = |what| {
            let path = image.path().display().to_string();
            move |source| ImageError::Io { path, what, source }
        };
        if !self.has(&identity, inode).map_err(failed("reading the notes of lost writes"))? {
            return Ok(());
        }
        image.judge_noted_loss(accept)?;
        self.remove(&identity, inode).map_err(failed("changing the notes of lost writes"))
    }

    /// The image lacks writes from now on. `identity` is one line.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn add(&self, identity: &str, inode: Option<(u64, u64)>) -> io::Result<()> {
        let text = self.read()?;
        let mut names = self.names(identity, inode);
        names.retain(|name| !Notes::says_lost(&text, name));
        self.say(LOST, &text, &names)
    }

    /// Notes that the loss of the image is accepted.
    ///
    /// # Errors
    /// As [`Notes::add`].
    pub fn remove(&self, identity: &str, inode: Option<(u64, u64)>) -> io::Result<()> {
        self.say(ACCEPTED, &self.read()?, &self.names(identity, inode))
    }

    fn say(&self, word: &str, before: &str, names: &[String]) -> io::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        // What a power failure cut off has no end.
        let begin = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        let lines: String = names.iter().map(|name| format!("{word}{name}\n")).collect();
        (&self.file).write_all(format!("{begin}{lines}").as_bytes())?;
        self.file.sync_data()
    }

    fn read(&self) -> io::Result<String> {
        let len = self.file.metadata()?.len();
        if len > BYTES_MAX {
            return Err(io::Error::other(format!("{NAME} has more than {BYTES_MAX} bytes")));
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
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

    #[test]
    fn daemons_share_their_notes() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("lib/seekway");
        let [old, new] = [(); 2].map(|()| Notes::open(&state).unwrap());
        for identity in ["device \"8:1\"", "file \"/a b\"", "device \"8:1\""] {
            old.add(identity, None).unwrap();
        }
        let has = |notes: &Notes, identity| notes.has(identity, None).unwrap();
        assert!(has(&new, "device \"8:1\"") && has(&new, "file \"/a b\""));
        assert!(!has(&new, "device \"8:11\"") && !has(&new, ""));
        new.remove("device \"8:1\"", None).unwrap();
        assert!(!has(&old, "device \"8:1\"") && has(&old, "file \"/a b\""));
        old.add("device \"8:1\"", None).unwrap();
        drop((old, new)); // as a boot has it
        assert!(has(&Notes::open(&state).unwrap(), "device \"8:1\""));
    }

    #[test]
    fn a_file_is_known_under_its_other_names_until_the_next_boot() {
        let folder = tempfile::tempdir().unwrap();
        let mut notes = Notes::open(folder.path()).unwrap();
        let [path, link] = ["a.img", "b.img"].map(|name| folder.path().join(name));
        File::create(&path).unwrap();
        std::fs::hard_link(&path, &link).unwrap();
        let [one, other] = [&path, &link].map(|path| inode(path.metadata()));
        let names = [&path, &link].map(|path| file_identity(path));
        notes.add(&names[0], one).unwrap();
        assert!(notes.has(&names[1], other).unwrap(), "by its link");
        notes.remove(&names[1], other).unwrap();
        // Accepted under one name, its path stays noted: whoever opens it there is asked as well.
        assert!(!notes.has(&names[1], other).unwrap() && notes.has(&names[0], None).unwrap());
        notes.add(&names[0], one).unwrap();
        assert!(notes.has(&names[1], other).unwrap(), "a second loss is noted as the first");
        notes.boot = Some("another".into());
        assert!(!notes.has(&names[1], other).unwrap(), "the number can be another file's");
        assert!(notes.has(&names[0], one).unwrap());
        notes.boot = None;
        assert!(!notes.has(&names[1], other).unwrap() && notes.has(&names[0], one).unwrap());
        assert_eq!(inode(Path::new("/dev/null").metadata()), None);
    }

    #[test]
    fn a_line_that_was_cut_off_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::open(folder.path()).unwrap();
        std::fs::write(folder.path().join(NAME), "lost one\nlost tw").unwrap();
        notes.add("three", None).unwrap();
        let has = |name| notes.has(name, None).unwrap();
        assert_eq!(["one", "two", "three"].map(has), [true, false, true]);
    }
}
