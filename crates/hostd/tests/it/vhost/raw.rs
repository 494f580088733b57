//! A VMM and its driver without manners: the protocol by hand, so that every
//! byte of rings and messages can be wrong, and what crate `virtio-driver` does
//! not have (inflight records, restarts, the channel back).

use crate::common::PATIENCE;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const SET_CONFIG: u32 = 25;
pub const GET_CONFIG: u32 = 24;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const RESET_DEVICE: u32 = 34;

/// VERSION_1, FLUSH, CONFIG_WCE, and the protocol's own features.
pub const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 9 | 1 << 11;
pub const INDIRECT: u64 = 1 << 28;
/// Log all that is written to the guest's memory.
pub const LOG_ALL: u64 = 1 << 26;
/// MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE.
const PROTOCOL_FEATURES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13;

/// Bytes of guest memory, in the guest at 0.
pub const MEMORY_BYTES: u64 = 1 << 20;
/// Where the VMM says that it has them.
pub const USER: u64 = 0x7f00_0000_0000;
pub const AVAILABLE: u64 = 0x8000;
pub const USED: u64 = 0x9000;
/// Request h: header, 512 bytes of data, status, from this + 0x400 h.
const REQUESTS: u64 = 0x1_0000;

/// Memory of this process that a device can have too.
pub struct Memory {
    pub file: File,
    pub base: *mut u8,
    len: usize,
}

impl Memory {
    pub fn new(len: usize) -> Memory {
        // SAFETY: a new file, mapped anywhere.
        unsafe {
            let fd = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
            let file = File::from_raw_fd(fd);
            file.set_len(len as u64).unwrap();
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0);
            assert_ne!(base, libc::MAP_FAILED);
            Memory { file, base: base.cast(), len }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody looks any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

// SAFETY: the mapping is for the process.
unsafe impl Send for Memory {}

/// The guest: memory, and the driver's indices. Outlives connections.
pub struct Guest {
    memory: Memory,
    pub size: u16,
    pub available: u16,
    pub used: u16,
    pub kick: EventFd,
    pub call: EventFd,
    pub err: EventFd,
}

impl Guest {
    pub fn new(size: u16) -> Guest {
        let memory = Memory::new(MEMORY_BYTES as usize);
        let event = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).unwrap();
        let (kick, call, err) = (event(), event(), event());
        Guest { memory, size, available: 0, used: 0, kick, call, err }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= MEMORY_BYTES);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping.
            unsafe { self.memory.base.add(at as usize + i).write_volatile(*byte) };
        }
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        assert!(at + len as u64 <= MEMORY_BYTES);
        // SAFETY: inside the mapping.
        (0..len).map(|i| unsafe { self.memory.base.add(at as usize + i).read_volatile() }).collect()
    }

    pub fn get16(&self, at: u64) -> u16 {
        // One load: the device may write at any time.
        assert!(at.is_multiple_of(2) && at + 2 <= MEMORY_BYTES);
        // SAFETY: inside the mapping, which begins at a page.
        u16::from_le(unsafe { self.memory.base.add(at as usize).cast::<u16>().read_volatile() })
    }

    pub fn put16(&self, at: u64, value: u16) {
        // One store: the device may look at any time.
        assert!(at.is_multiple_of(2) && at + 2 <= MEMORY_BYTES);
        // SAFETY: inside the mapping, which begins at a page.
        unsafe { self.memory.base.add(at as usize).cast::<u16>().write_volatile(value.to_le()) };
    }

    /// Take memory away but for the first bytes. Nobody here may look at it any more.
    pub fn cut_memory(&self, bytes: u64) {
        self.memory.file.set_len(bytes).unwrap();
    }

    pub fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let words = [&address.to_le_bytes()[..], &len.to_le_bytes()].concat();
        let shorts = [flags.to_le_bytes(), next.to_le_bytes()].concat();
        self.put(16 * u64::from(index), &[words, shorts].concat());
    }

    /// Put a head into the available ring.
    pub fn offer(&mut self, head: u16) {
        let entry = AVAILABLE + 4 + 2 * u64::from(self.available % self.size);
        self.put(entry, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.put16(AVAILABLE + 2, self.available);
    }

    /// Put anything where the available index is.
    pub fn set_available_index(&mut self, index: u16) {
        self.available = index;
        self.put16(AVAILABLE + 2, index);
    }

    pub fn data(head: u16) -> u64 {
        REQUESTS + 0x400 * u64::from(head) + 0x40
    }

    pub fn status(&self, head: u16) -> u8 {
        self.get(REQUESTS + 0x400 * u64::from(head) + 0x20, 1)[0]
    }

    /// A well-formed request of one sector in descriptors head to head + 2.
    pub fn request(&mut self, head: u16, kind: u32, sector: u64) {
        let at = REQUESTS + 0x400 * u64::from(head);
        self.put(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        self.put(at + 0x20, &[0xff]);
        let writable = if kind == 0 { 2 } else { 0 };
        self.descriptor(head, at, 16, 1, head + 1);
        self.descriptor(head + 1, Guest::data(head), 512, 1 | writable, head + 2);
        self.descriptor(head + 2, at + 0x20, 1, 2, 0);
        self.offer(head);
    }

    /// A read of `pieces` sectors into the same memory, by an indirect table that all such
    /// requests share. `head` is one descriptor.
    pub fn long_read(&mut self, head: u16, pieces: u16) {
        const TABLE: u64 = 0x8_0000;
        let put = |index: u16, address: u64, len: u32, flags: u16| {
            let words = [&address.to_le_bytes()[..], &len.to_le_bytes()].concat();
            let shorts = [flags.to_le_bytes(), (index + 1).to_le_bytes()].concat();
            self.put(TABLE + 16 * u64::from(index), &[words, shorts].concat());
        };
        put(0, REQUESTS, 16, 1);
        (1..=pieces).for_each(|index| put(index, Guest::data(0), 512, 1 | 2));
        put(pieces + 1, REQUESTS + 0x20, 1, 2);
        self.descriptor(head, TABLE, 16 * (u32::from(pieces) + 2), 4, 0);
        self.offer(head);
    }

    pub fn write(&mut self, head: u16, sector: u64, data: &[u8; 512]) {
        self.put(Guest::data(head), data);
        self.request(head, 1, sector);
    }

    /// Heads and lengths used since the last look.
    pub fn used(&mut self) -> Vec<(u32, u32)> {
        let index = self.get16(USED + 2);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let mut all = Vec::new();
        while self.used != index {
            let entry = self.get(USED + 4 + 8 * u64::from(self.used % self.size), 8);
            let word = |i| u32::from_le_bytes(entry[i..i + 4].try_into().unwrap());
            all.push((word(0), word(4)));
            self.used = self.used.wrapping_add(1);
        }
        all
    }

    /// Kick, and wait until `count` more are used.
    pub fn carry_out(&mut self, count: usize) -> Vec<(u32, u32)> {
        self.kick.write(1).unwrap();
        self.wait_used(count)
    }

    /// Wait until `count` more are used.
    pub fn wait_used(&mut self, count: usize) -> Vec<(u32, u32)> {
        let (mut all, end) = (Vec::new(), Instant::now() + PATIENCE);
        loop {
            all.extend(self.used());
            if all.len() >= count {
                return all;
            }
            assert!(Instant::now() < end, "{} of {count} requests are used", all.len());
            wait(&self.call);
        }
    }
}

/// Wait for an eventfd and take what is in it.
pub fn wait(event: &EventFd) {
    let mut poll = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    let n = unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) };
    assert_eq!(n, 1, "nothing comes");
    event.read().unwrap();
}

/// The body of SET_MEM_TABLE: one region.
fn memory_table() -> Vec<u8> {
    [1u64, 0, MEMORY_BYTES, USER, 0].map(u64::to_le_bytes).concat()
}

/// The VMM's end of a vhost-user connection.
pub struct Vmm {
    stream: UnixStream,
}

impl Vmm {
    pub fn connect(socket: &Path) -> Vmm {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Vmm { stream }
    }

    /// Send a message, of which `flags` says whether it wants an answer.
    pub fn send(&self, request: u32, flags: u32, body: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let header = [request, flags, body.len() as u32].map(u32::to_le_bytes).concat();
        let message = [&header[..], body].concat();
        let sent = self.stream.send_with_fds(&[&message[..]], fds);
        sent.map(|_| ()).map_err(|e| io::Error::from_raw_os_error(e.errno()))
    }

    /// Receive an answer, and a file that may come with it.
    pub fn receive(&self) -> io::Result<(Vec<u8>, Option<File>)> {
        let mut header = [0; 12];
        let (n, file) = self
            .stream
            .recv_with_fd(&mut header)
            .map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        assert_eq!(n, 12);
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap());
        let mut body = vec![0; len as usize];
        (&self.stream).read_exact(&mut body)?;
        Ok((body, file))
    }

    /// Send a message that is acknowledged; fails when the answer is no.
    pub fn set(&self, request: u32, body: &[u8], fds: &[RawFd]) -> io::Result<()> {
        const NEED_REPLY: u32 = 8;
        self.send(request, 1 | NEED_REPLY, body, fds)?;
        match self.receive()?.0[..] {
            [0, ..] => Ok(()),
            _ => Err(io::Error::other("refused")),
        }
    }

    /// Send a message that is answered.
    pub fn ask(&self, request: u32, body: &[u8]) -> io::Result<(Vec<u8>, Option<File>)> {
        self.send(request, 1, body, &[])?;
        self.receive()
    }

    /// Connect, and do all up to the queues.
    pub fn introduce(socket: &Path, features: u64, guest: &Guest) -> Vmm {
        let vmm = Vmm::connect(socket);
        vmm.negotiate(features);
        vmm.set_memory(guest).unwrap();
        vmm
    }

    /// All up to the guest's memory.
    pub fn negotiate(&self, features: u64) {
        self.send(SET_OWNER, 1, &[], &[]).unwrap();
        let offered =
            u64::from_le_bytes(self.ask(GET_FEATURES, &[]).unwrap().0.try_into().unwrap());
        assert_eq!(features & !offered, 0, "offered are {offered:#x}");
        self.send(SET_PROTOCOL_FEATURES, 1, &PROTOCOL_FEATURES.to_le_bytes(), &[]).unwrap();
        self.set(SET_FEATURES, &features.to_le_bytes(), &[]).unwrap();
    }

    pub fn set_memory(&self, guest: &Guest) -> io::Result<()> {
        self.set(SET_MEM_TABLE, &memory_table(), &[guest.memory.file.as_raw_fd()])
    }

    /// As [`Vmm::set_memory`], without an acknowledgement.
    pub fn send_memory(&self, guest: &Guest) -> io::Result<()> {
        self.send(SET_MEM_TABLE, 1, &memory_table(), &[guest.memory.file.as_raw_fd()])
    }

    pub fn vring(&self, request: u32, queue: u32, value: u32) -> io::Result<()> {
        self.set(request, &[queue, value].map(u32::to_le_bytes).concat(), &[])
    }

    pub fn vring_fd(&self, request: u32, queue: u64, fd: RawFd) -> io::Result<()> {
        self.set(request, &queue.to_le_bytes(), &[fd])
    }

    pub fn set_addresses(&self, queue: u32, at: [u64; 3]) -> io::Result<()> {
        self.set_logged_addresses(queue, at, None)
    }

    /// As [`Vmm::set_addresses`], and the used ring is logged at this guest address.
    pub fn set_logged_addresses(
        &self,
        queue: u32,
        at: [u64; 3],
        log: Option<u64>,
    ) -> io::Result<()> {
        let [descriptors, available, used] = at;
        let words = [descriptors, used, available, log.unwrap_or(0)];
        let words = words.map(u64::to_le_bytes).concat();
        let head = [queue, u32::from(log.is_some())].map(u32::to_le_bytes).concat();
        self.set(SET_VRING_ADDR, &[head, words].concat(), &[])
    }

    /// Set a queue up and start it at `base`.
    pub fn start(&self, guest: &Guest, queue: u32, base: u16) -> io::Result<()> {
        self.vring(SET_VRING_NUM, queue, guest.size.into())?;
        self.vring(SET_VRING_BASE, queue, base.into())?;
        self.set_addresses(queue, [USER, USER + AVAILABLE, USER + USED])?;
        self.vring_fd(SET_VRING_CALL, queue.into(), guest.call.as_raw_fd())?;
        self.vring_fd(SET_VRING_ERR, queue.into(), guest.err.as_raw_fd())?;
        self.vring_fd(SET_VRING_KICK, queue.into(), guest.kick.as_raw_fd())?;
        self.vring(SET_VRING_ENABLE, queue, 1)
    }

    /// Connect, and start queue 0.
    pub fn serve(socket: &Path, guest: &Guest) -> Vmm {
        let vmm = Vmm::introduce(socket, FEATURES, guest);
        vmm.start(guest, 0, guest.available).unwrap();
        vmm
    }

    /// A record of requests in flight, from the device.
    pub fn get_inflight(&self, queues: u16, size: u16) -> (Vec<u8>, File) {
        let shape = [queues.to_le_bytes(), size.to_le_bytes()].concat();
        let body = [&[0; 16][..], &shape, &[0; 4]].concat();
        let (body, file) = self.ask(GET_INFLIGHT_FD, &body).unwrap();
        (body, file.expect("a file"))
    }

    pub fn set_inflight(&self, shape: &[u8], file: &File) -> io::Result<()> {
        self.set(SET_INFLIGHT_FD, shape, &[file.as_raw_fd()])
    }

    /// The write cache's switch in the configuration space.
    pub fn write_cache(&self) -> u8 {
        let (config, _) = self.ask(GET_CONFIG, &Vmm::switch(0xff)).unwrap();
        config[12]
    }

    pub fn set_write_cache(&self, value: u8) -> io::Result<()> {
        self.set(SET_CONFIG, &Vmm::switch(value), &[])
    }

    fn switch(value: u8) -> Vec<u8> {
        [[32u32, 1, 0].map(u32::to_le_bytes).concat(), vec![value]].concat()
    }

    /// Stop a queue: where it would go on.
    pub fn stop(&self, queue: u32) -> io::Result<u32> {
        let body = [queue, 0].map(u32::to_le_bytes).concat();
        let (body, _) = self.ask(GET_VRING_BASE, &body)?;
        Ok(u32::from_le_bytes(body[4..8].try_into().unwrap()))
    }

    /// See that the device has hung up.
    pub fn is_refused(&self) -> bool {
        matches!(self.receive(), Err(e) if e.kind() != io::ErrorKind::WouldBlock)
    }
}
