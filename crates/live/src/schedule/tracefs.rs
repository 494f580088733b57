//! The kernel's tracer as files. A tracefs that is mounted is used; otherwise one is mounted that
//! only this process sees and that ends with it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where systemd mounts it. Nobody does on a computer without systemd or in a container.
const MOUNTED: &str = "/sys/kernel/tracing";
const NAME: &str = "seekway-";
/// Opened for as long as an instance is used, so that nobody else can remove it.
const IN_USE: &str = "tracing_on";

/// An instance of the tracer: buffers and settings of its own. Removed when dropped.
#[derive(Debug)]
pub(super) struct Instance {
    dir: PathBuf,
    in_use: Option<File>,
    /// The tracefs that `dir` is in, unless it was mounted already.
    _mount: Option<OwnedFd>,
}

impl Instance {
    /// Make one.
    ///
    /// # Errors
    /// The kernel has no tracer, or this is not root.
    pub(super) fn new() -> io::Result<Instance> {
        let mounted = PathBuf::from(MOUNTED).join("instances");
        let (instances, mount) = if mounted.exists() {
            (mounted, None)
        } else {
            let mount = mount_detached()?;
            (PathBuf::from(format!("/proc/self/fd/{}/instances", mount.as_raw_fd())), Some(mount))
        };
        remove_abandoned(&instances)?;
        // A process identifier may exist twice, in two PID namespaces.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let dir = instances.join(format!("{NAME}{}-{now}", std::process::id()));
        fs::create_dir(&dir)?;
        let mut instance = Instance { dir, in_use: None, _mount: mount };
        instance.in_use = Some(File::open(instance.path(IN_USE))?);
        Ok(instance)
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.in_use = None;
        // One that cannot be removed now is removed by the next recorder.
        let _ = fs::write(self.path(IN_USE), "0");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Remove instances of recorders that were killed. Those in use are busy.
fn remove_abandoned(instances: &Path) -> io::Result<()> {
    for entry in fs::read_dir(instances)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            // Busy, or somebody else has removed it meanwhile.
            let _ = fs::remove_dir(entry.path());
        }
    }
    Ok(())
}

/// Mount a tracefs that is attached to no folder: it ends when it is closed (Linux 5.2).
fn mount_detached() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    let null = std::ptr::null::<libc::c_void>();
    // SAFETY: the name is a C string, which the kernel copies.
    let context = descriptor(unsafe {
        libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC)
    })?;
    // SAFETY: this command takes neither key nor value.
    let created = unsafe {
        let fd = context.as_raw_fd();
        libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, null, null, 0)
    };
    if created != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: numbers only.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

/// What a system call has returned that opens a descriptor.
fn descriptor(returned: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        // SAFETY: the kernel has just opened it, for us only.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
