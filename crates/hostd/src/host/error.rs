//! Errors of devices, disks and sockets to be served, and of their changes.

use super::sockets::SocketError;
use crate::images::ImageError;
use seekway_core::params::ParamError;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

/// Why something cannot be served or changed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("disk {0}: {1}")]
    Image(String, ImageError),
    /// The image may lie where the daemon may open nothing.
    #[error(
        "disk {0}: {1}; the daemon is confined to the images that it was started with: attach others \
         with `seekway ctl attach`, which opens them itself, or start it with --images FOLDER"
    )]
    Outside(String, ImageError),
    /// Something about a disk.
    #[error("disk {0}: {1}")]
    Disk(String, String),
    /// Somebody attaches, detaches or resizes it.
    #[error(
        "disk {0}: is being attached, detached or resized now; try again when `seekway ctl status` \
         does not list it as pending any more"
    )]
    Claimed(String),
    /// Its device does not answer, and nothing has been begun.
    #[error(
        "disk {0}: device {1} does not answer: its disk may hang (see dmesg); nothing has changed; \
         try again when it answers"
    )]
    SilentBefore(String, String),
    /// A change has not ended in time.
    #[error("disk {disk}: {}", pending(*change, reason))]
    Pending { disk: String, change: Change, reason: Reason },
    /// The client was told that the disk is not attached.
    #[error("disk {0}: was given up and is not attached")]
    GivenUp(String),
    /// Only what failed can be tried again without its path.
    #[error(
        "no disk '{0}' failed when the daemon was started; to attach another, give its path: \
         {0}=PATH"
    )]
    NotFailed(String),
    /// No disk of this name is served.
    #[error("no disk '{name}'; there are {there}")]
    NoDisk {
        /// The name that was asked for, escaped and cut to 100 characters.
        name: String,
        /// The names that there are.
        there: String,
    },
    /// No device of this name has disks here.
    #[error("no device '{name}'; there are {there}")]
    NoDevice {
        /// The name that was asked for, escaped and cut to 100 characters.
        name: String,
        /// The names that there are.
        there: String,
    },
    /// The daemon was started without a group of this name.
    #[error(
        "no group '{name}'; there are {there}; groups are made by --group or [[group]] when the \
         daemon is started"
    )]
    NoGroup {
        /// The name of the group that was asked for.
        name: String,
        /// The names that there are.
        there: String,
    },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("policy: {0}")]
    Policy(#[from] ParamError),
    #[error("prefetch: {0}")]
    Prefetcher(ParamError),
    /// A prefetcher has nothing to fetch into.
    #[error("this daemon has no cache: start it with --cache auto or --cache SIZE, such as 2GiB")]
    NoCache,
    /// The tables were made for less.
    #[error(
        "cache: {bytes} bytes; this daemon was started with room for {room_bytes} bytes a device: \
         choose less, or start it with a larger --cache"
    )]
    CacheTooLarge {
        /// The size that was asked for, in bytes for each device.
        bytes: u64,
        /// The most that there is room for.
        room_bytes: u64,
    },
    #[error("cache: /proc/meminfo does not say how much memory is available: give --cache a size")]
    NoMemory,
    #[error("emulate: {0}")]
    Emulate(String),
    /// The certificates cannot be used, or a disk's `allow` needs `tls.client_ca`.
    #[error("TLS: {0}")]
    Tls(String),
    /// The token of the web page.
    #[error("--web-control: {0}")]
    Token(String),
    #[error("journal {path}: {1}", path = .0.display())]
    Journal(PathBuf, io::Error),
    /// A reactor does not start, or refuses.
    #[error("device {0}: {1}")]
    Reactor(String, String),
    /// A reactor has ended by itself.
    #[error(
        "the reactor of {0} has ended by itself; its guests hang until the daemon is started again"
    )]
    ReactorDied(String),
    /// The kernel keeps the reactor waiting.
    #[error(
        "device {0} does not answer: its disk may hang (see dmesg); what was asked is done when it \
         goes on"
    )]
    Silent(String),
    /// The daemon is ending and takes no more changes.
    #[error("the daemon is ending; nothing can be changed any more")]
    Ending,
    /// Sockets that were handed over and that nothing is served on.
    #[error(
        "nothing to serve on the inherited socket '{0}': name it DISK.vhost, DISK.nbd, control, nbd or metrics"
    )]
    Leftover(String),
    /// `--socket-path` and `--fd` are for one disk.
    #[error("--socket-path and --fd serve one disk: {0} are given")]
    NotOneDisk(usize),
    /// The system refuses something.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

/// Text for a change that has not ended in time: its progress, and what becomes of it.
fn pending(change: Change, reason: &Reason) -> String {
    let (now, then) = match change {
        Change::Attach => (
            "is not attached",
            "what has been begun is undone when it goes on; attach the disk again after that",
        ),
        Change::Detach => (
            "is not detached yet: its sockets and clients are gone, but its image is still open",
            "the detach is finished when it goes on",
        ),
        Change::Resize => {
            ("does not have its new size yet", "the resize is finished when it goes on")
        }
        Change::Freeze => ("is not at rest yet", "it thaws when its time is over"),
    };
    format!("{now}: {reason}; {then}; until then `seekway ctl status` lists the disk as pending")
}

// Changes to a disk while it is served, and why one may not end in time.

/// Longest wait for a change of a device that does answer: it may have much to finish. Shorter than
/// the wait of clients of the control socket.
pub const CHANGE_PATIENCE: Duration = Duration::from_secs(60);

/// A change of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Attach,
    Detach,
    Resize,
    Freeze,
}

impl Change {
    /// The word in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Change::Attach => "attach",
            Change::Detach => "detach",
            Change::Resize => "resize",
            Change::Freeze => "freeze",
        }
    }
}

/// Why a change has not ended in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The reactor of this device does not answer.
    Silent(String),
    /// This device has not finished what is outstanding.
    Busy(String),
    /// The image's file system does not answer.
    Image,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Silent(device) => {
                write!(f, "device {device} does not answer: its disk may hang (see dmesg)")
            }
            Reason::Busy(device) => {
                let seconds = CHANGE_PATIENCE.as_secs();
                write!(f, "device {device} has not finished its requests within {seconds} s")
            }
            Reason::Image => {
                let seconds = CHANGE_PATIENCE.as_secs();
                write!(f, "its image could not be opened within {seconds} s (see dmesg)")
            }
        }
    }
}
