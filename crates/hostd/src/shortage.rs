//! Advice for administrators when the system has no more of a resource.

use std::io;

/// The error and, if something is short, what to do about it.
pub fn told(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE) => {
            "; raise LimitNOFILE= in the daemon's unit (ulimit -n), or detach disks"
        }
        // The kernel cuts off what it has no descriptors for.
        Some(libc::ENOBUFS) => {
            "; the descriptors of a message could not be taken: raise LimitNOFILE= in the daemon's \
             unit (ulimit -n), or detach disks"
        }
        Some(libc::ENFILE) => "; raise /proc/sys/fs/file-max",
        Some(libc::ENOMEM) => "; give the daemon more memory (MemoryMax= in its unit, ulimit -v)",
        Some(libc::EAGAIN) => "; raise TasksMax= in the daemon's unit (ulimit -u), or its memory",
        _ => "",
    };
    format!("{error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_said() {
        let told = |errno| told(&io::Error::from_raw_os_error(errno));
        assert!(told(libc::EMFILE).starts_with("Too many open files (os error 24); raise"));
        assert!(told(libc::ENOMEM).contains("MemoryMax="));
        assert_eq!(told(libc::EPERM), "Operation not permitted (os error 1)");
    }
}
