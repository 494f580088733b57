//! A VMM's messages, with their descriptors, to a session with a reactor and a disk behind it; its
//! guest's memory has a request ready. The session ends, its replies are well formed, nothing stays
//! in flight, and the guest's memory is released.

use super::input::Input;
use super::served::{self, ServedDisk};
use crate::Target;
use seekway_hostd::frontends::vhost_user::inflight::Inflight;
use seekway_hostd::frontends::vhost_user::{DiskHandle, try_serve};
use seekway_hostd::images::Kept;
use seekway_hostd::reactor::{Handle, Message};
use std::fs::{self, File};
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

pub const TARGET: Target =
    Target { name: "vhost_session", run, heap_bytes_max: 4 << 20, test_runs: 6_000, words: &[] };

const QUEUES: u16 = 2;
const MEMORY_BYTES: u64 = 0x4000;
/// Where the VMM has the guest's memory.
const USER: u64 = 0x7000_0000;
/// Of the log, a bit for each page of memory.
const LOG_BYTES: u64 = MEMORY_BYTES.div_ceil(8 * 4096);
const PATIENCE: Duration = Duration::from_secs(10);

struct Served {
    handle: Handle,
    disk: DiskHandle,
}

/// One disk, and one session at a time.
fn served() -> &'static Mutex<Served> {
    static SERVED: OnceLock<Mutex<Served>> = OnceLock::new();
    SERVED.get_or_init(|| {
        let ServedDisk { handle, disk, limits, .. } = served::disk(1 << 20);
        let disk = DiskHandle {
            name: "fuzz".into(),
            disk,
            handle: handle.clone(),
            limits: Arc::new(move || limits),
            config_changed: Arc::default(),
            image_use: Arc::new(Kept),
            queues: QUEUES,
            serial: "fuzzed".into(),
            guest_memory: None,
        };
        Mutex::new(Served { handle, disk })
    })
}

fn run(input: &[u8]) {
    let served = served().lock().unwrap_or_else(|e| e.into_inner());
    let mut input = Input(input);
    let guest = Guest::new(input.u8());
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let mut asked = Vec::new();
    while !input.is_over() && asked.len() < 64 {
        let (code, flags, body, files) = message(&mut input, &guest);
        asked.push(code);
        let header = [code, flags, body.len() as u32].map(u32::to_le_bytes).concat();
        send(&ours, &[header, body].concat(), &files);
    }
    ours.shutdown(Shutdown::Write).expect("an open socket");
    let _ = try_serve(theirs, served.disk.clone());
    check_replies(&ours, &asked);
    let status = served.handle.ask(Message::Status).expect("the reactor goes on");
    assert_eq!((status.outstanding, status.in_flight), (0, 0));
    let name = guest.name.clone();
    drop(guest);
    check_released(&name);
}

/// The memory and descriptors of a VMM.
struct Guest {
    name: String,
    memory: File,
    event: File,
    inflight: File,
    /// Of written memory, which has a bit for each page.
    log: File,
}

impl Guest {
    /// Its memory has rings for queue 0 and one request, of this kind.
    fn new(kind: u8) -> Guest {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("seekway-fuzz-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let c_name = std::ffi::CString::new(name.clone()).expect("no zero byte");
        // SAFETY: a name and flags; the descriptors are new and nobody else's.
        let (memory, log, event) = unsafe {
            let memory = libc::memfd_create(c_name.as_ptr(), libc::MFD_CLOEXEC);
            let log = libc::memfd_create(c_name.as_ptr(), libc::MFD_CLOEXEC);
            let event = libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            assert!(memory >= 0 && log >= 0 && event >= 0);
            (File::from_raw_fd(memory), File::from_raw_fd(log), File::from_raw_fd(event))
        };
        memory.set_len(MEMORY_BYTES).expect("memory");
        log.set_len(LOG_BYTES).expect("a log");
        let flags = [1u16, 1 | (u16::from(kind & 1 == 0) << 1), 2];
        for (i, (address, len)) in
            [(0x3000u64, 16u32), (0x3200, 512), (0x3100, 1)].iter().enumerate()
        {
            let mut bytes = [address.to_le_bytes().as_slice(), &len.to_le_bytes()].concat();
            bytes.extend(flags[i].to_le_bytes());
            bytes.extend((i as u16 + 1).to_le_bytes());
            memory.write_all_at(&bytes, 16 * i as u64).expect("memory");
        }
        memory.write_all_at(&[kind], 0x3000).expect("memory");
        // The available ring: one chain, of head 0.
        memory.write_all_at(&[0, 0, 1, 0], 0x1000).expect("memory");
        let inflight = Inflight::create(QUEUES, 16).expect("a record");
        Guest { name, memory, event, inflight, log }
    }
}

/// A message that is likely to mean something: code, flags, body, descriptors.
fn message(input: &mut Input<'_>, guest: &Guest) -> (u32, u32, Vec<u8>, Vec<RawFd>) {
    let [op, with] = input.take();
    let queue = u32::from(with & 3).to_le_bytes();
    let small = u32::from(with >> 2);
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let flags = if op & 0x40 != 0 { 9 } else { 1 };
    let (event, memory) = (guest.event.as_raw_fd(), guest.memory.as_raw_fd());
    let (code, body, files) = match op & 0x1f {
        0 => (2, words(&[1 << 32 | u64::from(input.u16()) << 16 | input.u64()]), vec![]),
        1 => (2, words(&[1 << 32 | 1 << 30 | u64::from(with) << 9]), vec![]),
        2 => (8, [queue, (1u32 << (small & 15)).to_le_bytes()].concat(), vec![]),
        3 => (8, [queue, 16u32.to_le_bytes()].concat(), vec![]),
        4 | 5 => {
            let shift = u64::from(if op & 0x1f == 5 { input.u16() } else { 0 });
            let mut body = [queue, [0; 4]].concat();
            body.extend(words(&[USER + shift, USER + 0x2000 + shift, USER + 0x1000 + shift, 0]));
            (9, body, vec![])
        }
        6 => (10, [queue, small.to_le_bytes()].concat(), vec![]),
        7 => (11, [queue, [0; 4]].concat(), vec![]),
        8 | 9 => (12, words(&[u64::from(with & 3)]), vec![event]),
        10 => (13, words(&[u64::from(with & 3)]), vec![event]),
        11 => (14, words(&[u64::from(with & 3)]), vec![event]),
        12 | 13 => (18, [queue, (small & 1).to_le_bytes()].concat(), vec![]),
        14 | 15 => {
            let mut body = words(&[1]);
            body.extend(words(&[0, MEMORY_BYTES, USER, 0]));
            (5, body, vec![memory])
        }
        16 => {
            let at = u64::from(with) << 12;
            (37, words(&[0, at, MEMORY_BYTES >> (with & 1), USER + at, 0]), vec![memory])
        }
        17 => {
            let at = u64::from(with) << 12;
            (38, words(&[0, at, MEMORY_BYTES >> (with & 1), USER + at, 0]), vec![])
        }
        18 => {
            let mut body = words(&[0, 0]);
            body.extend([QUEUES.to_le_bytes(), 16u16.to_le_bytes(), [0; 2], [0; 2]].concat());
            (31, body, vec![])
        }
        19 => {
            let mut body = words(&[Inflight::bytes(QUEUES, 16), 0]);
            body.extend([QUEUES.to_le_bytes(), 16u16.to_le_bytes(), [0; 2], [0; 2]].concat());
            (32, body, vec![guest.inflight.as_raw_fd()])
        }
        20 => {
            let (at, len) = (u32::from(input.u8()), u32::from(input.u8()));
            let head = [at, len, 0].map(u32::to_le_bytes).concat();
            (24, [head, vec![0; len as usize]].concat(), vec![])
        }
        21 => {
            let at = if small == 0 { 32 } else { small };
            let head = [at, 1, 0].map(u32::to_le_bytes).concat();
            (25, [head, vec![with & 1]].concat(), vec![])
        }
        22 => (16, words(&[0x1_a01b | input.u64()]), vec![]),
        23 => ([1, 3, 4, 15, 17, 36, 34, 40][usize::from(with & 7)], vec![], vec![]),
        24 => {
            let bytes = LOG_BYTES + u64::from(small / 32);
            (6, words(&[bytes, u64::from(small & 1)]), vec![guest.log.as_raw_fd()])
        }
        25 => {
            let mut body = [queue, (small & 1).to_le_bytes()].concat();
            body.extend(words(&[USER, USER + 0x2000, USER + 0x1000, input.u64()]));
            (9, body, vec![])
        }
        26 => (2, words(&[1 << 32 | 1 << 30 | u64::from(with & 1) << 26]), vec![]),
        _ => {
            let len = usize::from(input.u8());
            let body = input.bytes(len).to_vec();
            let files = [vec![], vec![event], vec![memory], vec![memory, event]];
            (u32::from(with), body, files[usize::from(op >> 5 & 3)].clone())
        }
    };
    (code, flags, body, files)
}

/// Sends a message with descriptors. A session that has ended is no fault.
fn send(to: &UnixStream, bytes: &[u8], files: &[RawFd]) {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 8];
    // SAFETY: all that the kernel reads lives until the call returns; the control
    // buffer has room for four descriptors.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        if !files.is_empty() {
            let len = size_of_val(files) as u32;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(len) as usize;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(len) as usize;
            libc::CMSG_DATA(first).copy_from(files.as_ptr().cast(), len as usize);
        }
        let sent = libc::sendmsg(to.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        assert_eq!(sent, bytes.len() as isize, "the socket takes all messages");
    }
}

/// Checks that replies are whole messages, in the order of the questions.
fn check_replies(from: &UnixStream, asked: &[u32]) {
    let mut bytes = Vec::new();
    // Unread bytes at the session's end make the end a reset.
    let _ = (&*from).read_to_end(&mut bytes);
    let mut asked = asked.iter();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (header, behind) = rest.split_first_chunk::<12>().expect("a whole header");
        let word = |i: usize| u32::from_le_bytes(header[4 * i..4 * i + 4].try_into().unwrap());
        assert!(asked.any(|code| *code == word(0)), "an answer to {} that was not asked", word(0));
        assert_eq!(word(1) & 7, 5, "flags of an answer");
        rest = behind.split_at_checked(word(2) as usize).expect("a whole answer").1;
    }
}

/// Checks that the guest's memory is released.
fn check_released(name: &str) {
    let until = Instant::now() + PATIENCE;
    while is_held(name) {
        assert!(Instant::now() < until, "the guest's memory is still mapped or open");
        thread::sleep(Duration::from_micros(200));
    }
}

fn is_held(name: &str) -> bool {
    let target = format!("/memfd:{name} (deleted)");
    let is_mapped = fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(&target));
    let descriptors = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    is_mapped
        || descriptors
            .map(|entry| fs::read_link(entry.path()))
            .any(|link| link.is_ok_and(|link| link.as_os_str() == target.as_str()))
}
