//! System calls of each kind of thread (seccomp).
//!
//! What is not listed fails with EPERM and is noted in the kernel's log. It does not kill: a killed
//! daemon is an outage for all guests, while a call that fails is an error message, and whoever has
//! taken over a thread gains nothing by either. `clone3` fails with ENOSYS, because its flags are out
//! of a filter's reach; the C library then uses `clone`, which may start threads and no processes.
//!
//! Filters are inherited: a thread has those of the thread that started it, too. Therefore the
//! control threads, which start all others, have the calls of all kinds.

use super::Kind;
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

/// Calls that every thread makes: memory, locks, time, open descriptors, signals, its own end.
const COMMON: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
    // They only take rights away, and threads confine themselves.
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

/// Older calls that x86-64's C library still makes.
#[cfg(target_arch = "x86_64")]
const COMMON_OLD: &[c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const COMMON_OLD: &[c_long] = &[];

/// A reactor's: its ring, the memory of its cache.
const REACTOR: &[c_long] =
    &[libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_mlock2, libc::SYS_munlock];

/// Calls of the thread that makes rings.
const RINGS: &[c_long] = &[libc::SYS_io_uring_register, libc::SYS_io_uring_setup];

/// A connection's: the record of requests in flight, options of its socket, what a descriptor is
/// (a link in /proc/self/fd), the mark of an image that is taken over, and the rings that are made
/// for it.
const FRONT_END: &[c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_fgetxattr,
    libc::SYS_readlinkat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_memfd_create,
    libc::SYS_setsockopt,
];

#[cfg(target_arch = "x86_64")]
const FRONT_END_OLD: &[c_long] = &[libc::SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
const FRONT_END_OLD: &[c_long] = &[];

/// Calls of the threads that wait: for the files of `/proc` and `/sys` that tell of memory, and marks of
/// images that have lost writes.
const HELPER: &[c_long] =
    &[libc::SYS_openat, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_fsetxattr];

/// Images and sockets are opened, made and removed.
const CONTROL: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_epoll_create1,
    libc::SYS_faccessat,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_listen,
    libc::SYS_mkdirat,
    libc::SYS_statfs,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
];

#[cfg(target_arch = "x86_64")]
const CONTROL_OLD: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_lchown,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const CONTROL_OLD: &[c_long] = &[];

/// Requests of `ioctl`: FIEMAP, BLKROGET, non-blocking sockets, "is this a terminal?".
const IOCTLS: [u64; 4] = [0xc020_660b, 0x125e, libc::FIONBIO, libc::TCGETS];
/// Options of `prctl`: a thread's name, that of a mapping, and `no_new_privs`.
const PRCTLS: [libc::c_int; 4] =
    [libc::PR_SET_NAME, libc::PR_SET_VMA, libc::PR_SET_NO_NEW_PRIVS, libc::PR_GET_NO_NEW_PRIVS];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Let this thread make the calls of its kind only.
///
/// # Errors
/// The kernel's error.
pub fn restrict(kind: Kind) -> io::Result<()> {
    static PROGRAMS: [OnceLock<Result<[BpfProgram; 2], String>>; 5] =
        [const { OnceLock::new() }; 5];
    let programs = PROGRAMS[kind as usize].get_or_init(|| programs(kind));
    let [listed, no_clone3] = programs.as_ref().map_err(|e| io::Error::other(e.clone()))?;
    // Of two filters that return an error, the one that was installed last gives it.
    install(listed, libc::SECCOMP_FILTER_FLAG_LOG)?;
    if starts_threads(kind) { install(no_clone3, 0) } else { Ok(()) }
}

/// May it start threads? A journal's or a log's belongs to a reactor.
fn starts_threads(kind: Kind) -> bool {
    matches!(kind, Kind::Control | Kind::Reactor)
}

fn programs(kind: Kind) -> Result<[BpfProgram; 2], String> {
    let compile = |rules, otherwise, listed| -> Result<BpfProgram, seccompiler::BackendError> {
        SeccompFilter::new(rules, otherwise, listed, std::env::consts::ARCH.try_into()?)?.try_into()
    };
    let refuse = |errno: i32| SeccompAction::Errno(errno as u32);
    let listed =
        rules(kind).and_then(|rules| compile(rules, refuse(libc::EPERM), SeccompAction::Allow));
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let no_clone3 = compile(clone3, SeccompAction::Allow, refuse(libc::ENOSYS));
    let text = |e: seccompiler::BackendError| e.to_string();
    Ok([listed.map_err(text)?, no_clone3.map_err(text)?])
}

/// The calls of a kind, with what their arguments have to be.
fn rules(kind: Kind) -> Result<Rules, seccompiler::BackendError> {
    let lists: &[&[c_long]] = match kind {
        Kind::Reactor => &[REACTOR],
        Kind::FrontEnd => &[FRONT_END, FRONT_END_OLD],
        Kind::Helper => &[HELPER],
        Kind::Rings => &[RINGS],
        Kind::Control => &[REACTOR, FRONT_END, FRONT_END_OLD, HELPER, RINGS, CONTROL, CONTROL_OLD],
    };
    let all = [COMMON, COMMON_OLD].iter().chain(lists).flat_map(|list| list.iter());
    let mut rules: Rules = all.map(|call| (*call, Vec::new())).collect();
    let argument = |number, operator, value| -> Result<SeccompRule, seccompiler::BackendError> {
        let length = SeccompCmpArgLen::Dword;
        SeccompRule::new(vec![SeccompCondition::new(number, length, operator, value)?])
    };
    // Memory never holds code.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let code = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        rules.insert(call, vec![argument(2, code, 0)?]);
    }
    let equal = |number, value| argument(number, SeccompCmpOp::Eq, value);
    let ioctls = IOCTLS.into_iter().map(|request| equal(1, request));
    rules.insert(libc::SYS_ioctl, ioctls.collect::<Result<_, _>>()?);
    let prctls = PRCTLS.into_iter().map(|option| equal(0, option as u64));
    rules.insert(libc::SYS_prctl, prctls.collect::<Result<_, _>>()?);
    if matches!(kind, Kind::Control | Kind::Reactor) {
        // Limits of this process: those of others are nobody's business here.
        rules.insert(libc::SYS_prlimit64, vec![equal(0, 0)?]);
    }
    let unix = libc::AF_UNIX as u64;
    if kind == Kind::Control {
        rules.insert(libc::SYS_socket, vec![equal(0, unix)?]);
    }
    if matches!(kind, Kind::Control | Kind::FrontEnd) {
        rules.insert(libc::SYS_socketpair, vec![equal(0, unix)?]);
    }
    if starts_threads(kind) {
        let thread = libc::CLONE_THREAD as u64;
        rules.insert(libc::SYS_clone, vec![argument(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
        rules.insert(libc::SYS_clone3, Vec::new()); // the other filter answers it
    }
    Ok(rules)
}

/// Install a filter on this thread.
fn install(program: &BpfProgram, flags: libc::c_ulong) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // Without this flag, kernels before 5.16 make all loads of the thread slower (against
    // speculative stores of code that somebody else brought: there is none here).
    let flags = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel copies the filter, which lives through the call.
    let done = unsafe {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
