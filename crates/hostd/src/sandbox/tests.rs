//! Actions that each kind of thread cannot do. Each test confines a thread of its own.

use super::*;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Run something on a thread that is confined as one of this kind.
fn confined<T: Send>(kind: Kind, places: &Places, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_with(kind, places);
            work()
        });
        thread.join().expect("it ends well")
    })
}

/// Can this kernel filter system calls? Without it there is nothing to test.
fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: only asks.
    let known = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action)
    };
    if known != 0 {
        seekway_testing::skip("a kernel that filters system calls (CONFIG_SECCOMP_FILTER)");
    }
    known == 0
}

fn has_landlock() -> bool {
    if abi().is_none() {
        seekway_testing::skip("a kernel with landlock (CONFIG_SECURITY_LANDLOCK, lsm=landlock)");
    }
    abi().is_some()
}

/// The errno of a system call; 0 when it succeeds.
fn errno(result: libc::c_long) -> i32 {
    if result >= 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

/// Is it a refusal by a filter (EPERM) or by landlock (EACCES)?
fn is_refused<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    matches!(result.unwrap_err().raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

#[test]
fn no_kind_of_thread_starts_programs_or_processes() {
    if !has_seccomp() {
        return;
    }
    for kind in Kind::ALL {
        let refused = confined(kind, &Places::default(), || {
            let (path, none) = (c"/bin/true".as_ptr(), std::ptr::null::<*const libc::c_char>());
            // SAFETY: plain system calls. If one were allowed the test would end here, and fail: a
            // copy of the process must not go on with it.
            unsafe {
                let exec = errno(libc::syscall(libc::SYS_execve, path, none, none));
                let fork = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
                if fork == 0 {
                    libc::_exit(0);
                }
                let clone3 = errno(libc::syscall(libc::SYS_clone3, 0, 0));
                let trace = errno(libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0));
                let mount = errno(libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0));
                (exec, errno(fork), clone3, trace, mount)
            }
        });
        let clone3 = match kind {
            Kind::Control | Kind::Reactor => libc::ENOSYS,
            Kind::FrontEnd | Kind::Helper | Kind::Rings => libc::EPERM,
        };
        let refusal = libc::EPERM;
        assert_eq!(refused, (refusal, refusal, clone3, refusal, refusal), "{kind:?}");
    }
}

#[test]
fn no_kind_of_thread_uses_other_sockets_than_unix_ones() {
    if !has_seccomp() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for kind in Kind::ALL {
        confined(kind, &Places::default(), || {
            assert!(is_refused(TcpStream::connect(address)), "{kind:?}");
            assert!(is_refused(TcpListener::bind("127.0.0.1:0")), "{kind:?}");
            for family in [libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK] {
                // SAFETY: a plain system call.
                let made = unsafe { libc::socket(family, libc::SOCK_RAW, 0) };
                assert_eq!(errno(made.into()), libc::EPERM, "{kind:?} {family}");
            }
            // SAFETY: as above. What is open goes with the test.
            let unix = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
            assert_eq!(unix >= 0, kind == Kind::Control, "{kind:?}");
            let pair = UnixStream::pair();
            assert_eq!(pair.is_ok(), matches!(kind, Kind::Control | Kind::FrontEnd), "{kind:?}");
        });
    }
}

#[test]
fn no_kind_of_thread_opens_other_files() {
    if !has_seccomp() || !has_landlock() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("other"), "data").unwrap();
    fs::create_dir(path("images")).unwrap();
    fs::write(path("images/one"), "data").unwrap();
    fs::create_dir(path("sockets")).unwrap();
    let mut places = Places::default();
    places.allow(&path("images"), Access::Images);
    places.allow(&path("sockets"), Access::Sockets);
    places.allow(&path("not there"), Access::Images);
    let write = |path: &Path| File::options().read(true).write(true).open(path);
    for kind in Kind::ALL {
        confined(kind, &places, || {
            for name in ["other", "images/new", "/etc/passwd", "/proc/self/mem", "/dev/null"] {
                let opened = File::options().read(true).open(path(name));
                let is_missing =
                    name == "images/new" && matches!(kind, Kind::Control | Kind::Helper);
                assert!(is_missing || is_refused(opened), "{kind:?} {name}");
            }
            for new in ["new", "images/new", "sockets/new"] {
                assert!(is_refused(File::create_new(path(new))), "{kind:?} {new}");
            }
            assert!(is_refused(fs::read_dir("/")), "{kind:?}");
            assert!(is_refused(fs::remove_file(path("other"))), "{kind:?}");
            assert!(is_refused(fs::rename(path("other"), path("images/two"))), "{kind:?}");
            // A filter alone keeps these from every file.
            let opens = matches!(kind, Kind::Control | Kind::Helper);
            assert_eq!(write(&path("images/one")).is_ok(), opens, "{kind:?}");
            let socket = path("sockets").join(kind.name());
            assert_eq!(UnixListener::bind(&socket).is_ok(), kind == Kind::Control, "{kind:?}");
            let removed = fs::remove_file(&socket).is_ok();
            assert_eq!(removed, kind == Kind::Control, "{kind:?}");
        });
    }
}

/// Code that was written to memory does not run.
#[test]
fn memory_holds_no_code() {
    if !has_seccomp() {
        return;
    }
    let code = libc::PROT_READ | libc::PROT_EXEC;
    let data = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for kind in Kind::ALL {
        confined(kind, &Places::default(), || {
            // SAFETY: new mappings, which nobody uses.
            unsafe {
                let map =
                    |protection| libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
                assert_eq!(map(code), libc::MAP_FAILED, "{kind:?}");
                let at = map(data);
                assert_ne!(at, libc::MAP_FAILED, "{kind:?}");
                assert_ne!(libc::mprotect(at, 4096, code), 0, "{kind:?}");
                assert_eq!(libc::mprotect(at, 4096, libc::PROT_READ), 0, "{kind:?}");
                libc::munmap(at, 4096);
            }
        });
    }
}

#[test]
fn limits_of_other_processes_are_out_of_reach() {
    if !has_seccomp() {
        return;
    }
    for kind in Kind::ALL {
        let [own, other] = confined(kind, &Places::default(), || {
            // SAFETY: plain system calls; no limit is given or asked for.
            let ask = |pid: libc::pid_t| unsafe {
                let (none, cpu) = (std::ptr::null::<libc::rlimit64>(), libc::RLIMIT_CPU);
                errno(libc::syscall(libc::SYS_prlimit64, pid, cpu, none, none))
            };
            // SAFETY: always succeeds.
            [ask(0), ask(unsafe { libc::getppid() })]
        });
        let may = matches!(kind, Kind::Control | Kind::Reactor);
        assert_eq!(own, if may { 0 } else { libc::EPERM }, "{kind:?}");
        assert_eq!(other, libc::EPERM, "{kind:?}");
    }
}

/// By a ring, which no filter of system calls sees, a control thread can make a socket.
#[test]
fn a_socket_that_a_ring_makes_reaches_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let heard = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = heard.local_addr().unwrap();
    let sent = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare_network()?;
            leave_network(); // as the program does
            enter(Kind::Control);
            let (domain, kind) = (libc::AF_INET, libc::SOCK_DGRAM);
            let mut ring = io_uring::IoUring::new(2)?;
            let socket = io_uring::opcode::Socket::new(domain, kind, 0).build();
            // SAFETY: the entry points to nothing.
            unsafe { ring.submission().push(&socket) }.map_err(io::Error::other)?;
            ring.submit_and_wait(1)?;
            let fd = ring.completion().next().map_or(-1, |cqe| cqe.result());
            if fd < 0 {
                return Err(io::Error::from_raw_os_error(-fd));
            }
            // SAFETY: the descriptor is new.
            let socket = unsafe { std::net::UdpSocket::from_raw_fd(fd) };
            Ok(socket.send_to(b"a secret", to).map_err(|e| e.raw_os_error()))
        });
        thread.join().expect("it ends well")
    });
    match sent {
        Ok(sent) => assert_eq!(sent, Err(Some(libc::ENETUNREACH))),
        Err(e) => seekway_testing::skip(format!("a network namespace, and rings of io_uring: {e}")),
    }
    // Those that are open are still in the host's.
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
}

/// The rings of io_uring go past filters: who has no ring gets none.
#[test]
fn only_threads_that_are_to_make_rings() {
    if !has_seccomp() {
        return;
    }
    for kind in Kind::ALL {
        let made = confined(kind, &Places::default(), || io_uring::IoUring::new(2).map(drop));
        let may = matches!(kind, Kind::Control | Kind::Rings);
        assert_eq!(made.is_ok(), may, "{kind:?}: {made:?}");
    }
}

#[test]
fn capabilities_are_dropped_and_no_program_gives_new_ones() {
    for kind in Kind::ALL {
        confined(kind, &Places::default(), || {
            // SAFETY: only asks.
            let no_new = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
            assert_eq!(no_new, 1, "{kind:?}");
            let left = capability_names(drop_capabilities(kind).unwrap());
            let may_stay: &[&str] = match kind {
                Kind::Control => &["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_IPC_LOCK"],
                Kind::Reactor | Kind::Rings => &["CAP_IPC_LOCK"],
                Kind::FrontEnd | Kind::Helper => &[],
            };
            assert!(
                left.iter().all(|name| may_stay.contains(&name.as_str())),
                "{kind:?}: {left:?}"
            );
        });
    }
}

/// A thread that opens nothing is still handed files and sockets, and uses them.
#[test]
fn what_is_open_stays_of_use() {
    let folder = tempfile::tempdir().unwrap();
    let file =
        File::options().create_new(true).read(true).write(true).open(folder.path().join("a"));
    let (file, (one, two)) = (file.unwrap(), UnixStream::pair().unwrap());
    confined(Kind::FrontEnd, &Places::default(), || {
        use std::io::{Read, Write};
        use vmm_sys_util::sock_ctrl_msg::ScmSocket;
        file.set_len(8192).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8192);
        one.set_read_timeout(Some(std::time::Duration::from_secs(9))).unwrap();
        (&one).write_all(b"word").unwrap();
        (&two).read_exact(&mut [0; 4]).unwrap();
        two.send_with_fd(&b"file"[..], file.as_raw_fd()).unwrap();
        let (_, handed) = one.recv_with_fd(&mut [0; 8]).unwrap();
        let handed = handed.expect("a file");
        // SAFETY: a new mapping of an open file, and its end.
        unsafe {
            let (rw, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let at = libc::mmap(std::ptr::null_mut(), 8192, rw, shared, handed.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>().write(7);
            libc::munmap(at, 8192);
            let memory = libc::memfd_create(c"inflight".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(memory >= 0);
            drop(OwnedFd::from_raw_fd(memory));
        }
    });
    // A reactor starts threads: those that look for images' data.
    let sum = confined(Kind::Reactor, &Places::default(), || {
        std::thread::spawn(|| {
            enter(Kind::Helper);
            1 + 1
        })
        .join()
        .unwrap()
    });
    assert_eq!(sum, 2);
}

#[test]
fn core_dumps_leave_out_what_they_are_told_to() {
    let mut memory = vec![1_u8; 1 << 20];
    let at = memory.as_mut_ptr().align_offset(4096);
    let start = memory[at..].as_mut_ptr();
    assert!(!is_left_out(start));
    leave_out(start, 4096);
    assert!(is_left_out(start));
    assert!(dumps_are_clean());
}

#[test]
fn what_is_missing_is_told() {
    let good = Measures {
        no_new_privs: Ok(()),
        capabilities: Ok(Vec::new()),
        landlock: Ok(Restriction::Full),
        seccomp: Ok(()),
    };
    let threads = BTreeMap::from([(Kind::Reactor, good.clone())]);
    let whole = Status { is_on: true, landlock_abi: Some(7), threads, rings: Some(Ok(())) };
    assert!(whole.problems().is_empty());
    let mut old = Status { landlock_abi: None, rings: Some(Err("no".into())), ..whole.clone() };
    let missing = Measures { seccomp: Err("Function not implemented".into()), ..good.clone() };
    old.threads.insert(Kind::Helper, missing);
    let told = old.problems().join("\n");
    for part in [
        "landlock: this kernel has none",
        "seccomp of helper threads: Function not implemented",
        "restrictions of io_uring: no",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let older = Measures { landlock: Ok(Restriction::Partial), ..good };
    let threads = BTreeMap::from([(Kind::Control, older)]);
    let older = Status { landlock_abi: Some(3), threads, ..whole.clone() };
    assert!(older.problems()[0].contains("ABI 3, which lacks"), "{:?}", older.problems());
    assert!(Status { is_on: false, ..whole }.problems()[0].contains("--sandbox off"));
}
