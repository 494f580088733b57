//! Changes to a disk while it is served, and why one may not end in time.

use std::fmt;
use std::time::Duration;

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
