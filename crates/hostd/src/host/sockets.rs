//! Listening sockets: made, inherited from whoever started us, and removed.

use crate::descriptors;
use crate::stream::Stream;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest path of a unix socket, in bytes (unix(7): `sun_path`, with its NUL 108).
pub const PATH_BYTES_MAX: usize = 107;

/// A daemon that was killed listens until the kernel has taken down its rings.
const DYING: Duration = Duration::from_secs(2);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another program listens at this path.
    #[error("{}: in use: another program listens there; stop it or choose another path", .0.display())]
    InUse(PathBuf),
    /// A file of another kind has that name.
    #[error("{}: exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The path has more than [`PATH_BYTES_MAX`] bytes.
    #[error("{}: {} bytes; the path of a socket is at most {PATH_BYTES_MAX}", .0.display(), .0.as_os_str().len())]
    TooLong(PathBuf),
    /// An error of the system.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, io::Error),
    /// The socket cannot have the owner, group or mode that was asked for.
    #[error("{path}: {1}", path = .0.display())]
    Access(PathBuf, String),
    /// A TCP address cannot be had.
    #[error("{0}: {1}")]
    Tcp(SocketAddr, io::Error),
    /// A descriptor that was handed to us is none that we can use.
    #[error("descriptor {0}: {1}")]
    Descriptor(RawFd, &'static str),
    /// The service manager's description of its sockets is invalid.
    #[error("sockets of the service manager (LISTEN_FDS, LISTEN_FDNAMES): {0}")]
    Activation(io::Error),
}

/// A socket that listens, non-blocking. One that was made here loses its name
/// when it goes.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// Its path, and the file's device and inode: by the time it goes another
    /// may have that name.
    made: Option<(PathBuf, u64, u64)>,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Make a unix socket, mode 0600. One that nobody listens at any more is
    /// replaced; one of a process that is just ending is waited for.
    ///
    /// # Errors
    /// [`SocketError`], which names the path.
    pub fn unix(path: &Path) -> Result<Listener, SocketError> {
        let failed = |e| SocketError::Io(path.to_path_buf(), e);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(SocketError::TooLong(path.to_path_buf()));
        }
        let until = Instant::now() + DYING;
        let socket = loop {
            let bound = match UnixListener::bind(path) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => replace(path),
                bound => bound.map_err(failed),
            };
            match bound {
                Err(SocketError::InUse(_)) if Instant::now() < until => sleep(DYING / 100),
                bound => break bound?,
            }
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let about = fs::symlink_metadata(path).map_err(failed)?;
        let made = Some((path.to_path_buf(), about.dev(), about.ino()));
        Ok(Listener { socket: Socket::Unix(socket), made })
    }

    /// Listen at a TCP address.
    ///
    /// # Errors
    /// [`SocketError::Tcp`].
    pub fn tcp(address: SocketAddr) -> Result<Listener, SocketError> {
        let failed = |e| SocketError::Tcp(address, e);
        let socket = TcpListener::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Listener { socket: Socket::Tcp(socket), made: None })
    }

    /// Let clients send no descriptors, where the kernel can; front ends look whether it does.
    pub fn refuse_descriptors(&self) {
        if let Socket::Unix(socket) = &self.socket {
            descriptors::refuse_on(socket.as_fd());
        }
    }

    /// The next connection; `None` when there is none any more.
    ///
    /// # Errors
    /// The error of `accept`, such as too many open files.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match &self.socket {
            Socket::Unix(socket) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
            Socket::Tcp(socket) => socket.accept().map(|(stream, _)| Stream::Tcp(stream)),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            // The peer may have gone again before we came.
            Err(e)
                if [
                    io::ErrorKind::WouldBlock,
                    io::ErrorKind::Interrupted,
                    io::ErrorKind::ConnectionAborted,
                ]
                .contains(&e.kind()) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Where a client connects.
    pub fn address(&self) -> String {
        match (&self.socket, &self.made) {
            (_, Some((path, ..))) => path.display().to_string(),
            (Socket::Tcp(socket), None) => {
                socket.local_addr().map_or_else(|_| "TCP".into(), |a| a.to_string())
            }
            (Socket::Unix(socket), None) => {
                let path =
                    socket.local_addr().ok().and_then(|a| a.as_pathname().map(PathBuf::from));
                path.map_or_else(|| "inherited socket".into(), |p| p.display().to_string())
            }
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match &self.socket {
            Socket::Unix(socket) => socket.as_raw_fd(),
            Socket::Tcp(socket) => socket.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, dev, ino)) = &self.made {
            let ours = |about: &fs::Metadata| (about.dev(), about.ino()) == (*dev, *ino);
            if fs::symlink_metadata(path).is_ok_and(|about| ours(&about)) {
                let _ = fs::remove_file(path); // gone already: as wanted
            }
        }
    }
}

/// Bind where a file is in the way: a socket without a listener goes.
fn replace(path: &Path) -> Result<UnixListener, SocketError> {
    let failed = |e| SocketError::Io(path.to_path_buf(), e);
    // Of two that start at once, one must not remove what the other has just
    // made: the folder is locked meanwhile.
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::File::open(parent).map_err(failed)?;
    folder.lock().map_err(failed)?;
    match fs::symlink_metadata(path) {
        Ok(about) if !about.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_path_buf()));
        }
        Ok(_) => match connect_at_once(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // Whoever does not accept at once (EAGAIN) is there all the same.
            Ok(_) => return Err(SocketError::InUse(path.to_path_buf())),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(SocketError::InUse(path.to_path_buf()));
            }
            Err(e) => return Err(failed(e)),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    UnixListener::bind(path).map_err(failed)
}

/// Connect without waiting for a listener that is busy.
///
/// # Errors
/// The error of `connect`; `WouldBlock` for a listener that is busy.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Make the folder of the sockets, for us alone, if there is none.
///
/// # Errors
/// [`SocketError::Io`].
pub fn make_folder(path: &Path) -> Result<(), SocketError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| SocketError::Io(path.to_path_buf(), e))
}

/// The kind of a descriptor that was inherited.
#[derive(Debug)]
pub enum Inherited {
    Listener(Listener),
    /// Somebody is connected by it.
    Connected(UnixStream),
}

/// Take over a descriptor that the program was started with. Call it once for
/// each number, before anything else has been opened.
///
/// # Errors
/// [`SocketError::Descriptor`] for what is no socket that we can use.
pub fn inherit(fd: RawFd) -> Result<Inherited, SocketError> {
    let wrong = |why| SocketError::Descriptor(fd, why);
    if fd < 3 {
        return Err(wrong("0 to 2 are standard input and outputs"));
    }
    // SAFETY: only asks; a bad number is answered with an error.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(wrong("is not open"));
    }
    // SAFETY: open, as was just seen, and whoever started us left it to us.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let not_a_socket = |_| wrong("is not a socket");
    let domain = sockopt::socket_domain(&owned).map_err(not_a_socket)?;
    if sockopt::socket_type(&owned).map_err(not_a_socket)? != SocketType::STREAM {
        return Err(wrong("is not a stream socket"));
    }
    let listens = sockopt::socket_acceptconn(&owned).map_err(not_a_socket)?;
    let socket = match (domain, listens) {
        (AddressFamily::UNIX, false) => {
            let stream = UnixStream::from(owned);
            stream.set_nonblocking(false).map_err(|_| wrong("cannot be used"))?;
            return Ok(Inherited::Connected(stream));
        }
        (AddressFamily::UNIX, true) => Socket::Unix(UnixListener::from(owned)),
        (AddressFamily::INET | AddressFamily::INET6, true) => Socket::Tcp(TcpListener::from(owned)),
        _ => return Err(wrong("is neither a unix socket nor a listening TCP socket")),
    };
    let quiet = match &socket {
        Socket::Unix(socket) => socket.set_nonblocking(true),
        Socket::Tcp(socket) => socket.set_nonblocking(true),
    };
    quiet.map_err(|_| wrong("cannot be used"))?;
    Ok(Inherited::Listener(Listener { socket, made: None }))
}

/// Let the kernel notice peers that are gone without a word.
pub fn keep_alive(stream: &TcpStream) {
    // Without it a dead peer keeps its place, no more.
    let _ = sockopt::set_socket_keepalive(stream, true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn a_socket_is_ours_alone_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        make_folder(&inner).unwrap();
        assert_eq!(fs::metadata(&inner).unwrap().permissions().mode() & 0o777, 0o700);
        let path = inner.join("web.vhost");
        let listener = Listener::unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listener.accept().unwrap().is_none(), "nobody is there and nobody waits");
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        drop(listener);
        assert!(!path.exists());
    }

    /// The other listens until a first attempt has found it.
    #[test]
    fn a_listener_that_is_ending_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let ending = UnixListener::bind(&path).unwrap();
        let other = std::thread::spawn(move || drop(ending.accept().unwrap()));
        Listener::unix(&path).unwrap();
        other.join().unwrap();
    }

    #[test]
    fn who_listens_stays_and_what_is_stale_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::unix(&path).unwrap();
        let second = Listener::unix(&path).unwrap_err();
        assert!(matches!(second, SocketError::InUse(_)), "{second}");
        assert!(second.to_string().contains(path.to_str().unwrap()), "{second}");
        drop(first);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file");
        drop(Listener::unix(&path).unwrap());
        fs::write(&path, "precious").unwrap();
        let third = Listener::unix(&path).unwrap_err();
        assert!(matches!(third, SocketError::NotASocket(_)), "{third}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = folder.path().join("x".repeat(PATH_BYTES_MAX));
        assert!(matches!(Listener::unix(&long), Err(SocketError::TooLong(_))));
    }

    #[test]
    fn a_name_that_another_took_over_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::unix(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::unix(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn descriptors_from_outside() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(matches!(inherit(a.into_raw_fd()), Ok(Inherited::Connected(_))));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(matches!(inherit(tcp.into_raw_fd()), Ok(Inherited::Listener(_))));
        let file = tempfile::tempfile().unwrap();
        let error = inherit(file.into_raw_fd()).unwrap_err().to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert!(inherit(1).unwrap_err().to_string().contains("standard"));
        assert!(inherit(1_000_000).unwrap_err().to_string().contains("not open"));
    }
}
