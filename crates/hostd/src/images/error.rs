//! Why an image cannot be opened, and what to do about it.

use std::io;

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Nothing has this name.
    #[error("{path}: there is no such file; to make one: qemu-img create -f raw {path} 10G")]
    Missing {
        /// The image, as given.
        path: String,
    },
    /// A directory, a socket, a pipe, …
    #[error("{path} is {what}; an image is a regular file or a block device")]
    Kind {
        /// The image, as given.
        path: String,
        /// The kind of file, with its article.
        what: &'static str,
    },
    /// The rights of this process do not suffice.
    #[error(
        "{path}: {source}; the daemon runs as user {uid}: give it the right to {right} the image{hint}"
    )]
    Denied {
        /// The image, as given.
        path: String,
        /// This process's effective user.
        uid: u32,
        /// "read" or "read and write".
        right: &'static str,
        /// Another way that would help, or nothing.
        hint: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Somebody else uses it.
    #[error("{path}: locked by another program (QEMU, another seekway?): {holder}")]
    Locked {
        /// The image, as given.
        path: String,
        /// The holder, as far as can be seen, and what to do.
        holder: String,
    },
    /// A block device with a file system mounted from it, a member of an array, …
    #[error(
        "{path}: the block device is in use (mounted, a volume of LVM, in an array, \
         or open in another program): see `lsblk {path}` and `fuser -v {path}`"
    )]
    Busy {
        /// The image, as given.
        path: String,
    },
    /// The block device takes no writes.
    #[error(
        "{path}: the block device is write-protected: attach it read-only (option ro), or allow \
         writes with blockdev --setrw {path}"
    )]
    WriteProtected {
        /// The image, as given.
        path: String,
    },
    /// An archive, or an image of another format.
    #[error("{advice}; {but}")]
    Format {
        /// The format that it looks like, and the command that helps.
        advice: String,
        /// Advice in case that is wrong.
        but: &'static str,
    },
    /// Empty, or not a multiple of the block size.
    #[error("{path}: {size_bytes} bytes are no size for a disk{expected}; {hint}")]
    Size {
        /// The image, as given.
        path: String,
        size_bytes: u64,
        /// The unit of the size, or nothing.
        expected: String,
        /// The command that helps.
        hint: String,
    },
    /// The image is smaller than the disk that guests have.
    #[error(
        "{path} has {size_bytes} bytes now, and its disk {before_bytes}: what lies beyond would be \
         lost; say --shrink (\"shrink\": true) if that is wanted, or give the size again"
    )]
    Shrunk {
        /// The image, as given.
        path: String,
        /// Its present size.
        size_bytes: u64,
        /// Its size when guests were last told.
        before_bytes: u64,
    },
    /// Writes that an earlier daemon acknowledged did not reach the device.
    #[error(
        "{path}: {lost}: writes that a guest was told are done are missing from the image; check \
         it (fsck, a backup), then open it once with the option accept-lost-writes{after}"
    )]
    LostWrites {
        /// The image, as given.
        path: String,
        lost: String,
        /// More about it, in brackets, or nothing.
        after: String,
    },
    /// The kernel refused something else.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The image, as given.
        path: String,
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ImageError {
    /// Has somebody else the image? A process that was killed has it until the kernel is done with
    /// its I/O.
    pub fn is_taken(&self) -> bool {
        matches!(self, ImageError::Locked { .. } | ImageError::Busy { .. })
    }

    /// May the same image be opened later, without another configuration and without the word of
    /// an operator? A device without a size has none yet.
    pub fn may_pass(&self) -> bool {
        match self {
            ImageError::Missing { .. }
            | ImageError::Denied { .. }
            | ImageError::Locked { .. }
            | ImageError::Busy { .. }
            | ImageError::Io { .. } => true,
            ImageError::Size { size_bytes, .. } => *size_bytes == 0,
            ImageError::Kind { .. }
            | ImageError::Format { .. }
            | ImageError::WriteProtected { .. }
            | ImageError::Shrunk { .. }
            | ImageError::LostWrites { .. } => false,
        }
    }
}
