//! A client of NBD at a disk with its reactor: requests in pieces, many at once, broken ones among
//! them. Each request has one reply, a correct request succeeds, and each byte that is read was
//! written before, or at the same time.

use super::input::Input;
use super::served::{self, ServedDisk};
use crate::Target;
use seekway_hostd::frontends::nbd::fuzzed::{
    CMD_BLOCK_STATUS, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
    REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_OFFSET_DATA, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC,
};
use seekway_hostd::frontends::nbd::{Export, Only, serve};
use seekway_hostd::reactor::Message;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

pub const TARGET: Target =
    Target { name: "nbd_session", run, heap_bytes_max: 4 << 20, test_runs: 4_500, words: &[] };

const SECTOR: u32 = 512;
const SECTORS: u32 = 32;
const BYTES: usize = (SECTOR * SECTORS) as usize;
/// Requests of one session. The data of request `n` is the byte `n + 1`.
const REQUESTS_MAX: usize = 60;
/// Data on its way in one direction: the socket takes all of it, even without a reader.
const DATA_BYTES_MAX: u32 = 64 << 10;
/// The cookie of bytes that may be a request.
const GARBAGE: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(10);

fn served() -> &'static Mutex<ServedDisk> {
    static SERVED: OnceLock<Mutex<ServedDisk>> = OnceLock::new();
    SERVED.get_or_init(|| Mutex::new(served::disk(BYTES as u64)))
}

fn run(input: &[u8]) {
    let served = served().lock().unwrap_or_else(|e| e.into_inner());
    served.file.write_all_at(&[0; BYTES], 0).expect("the image is written");
    let mut input = Input(input);
    let is_structured = input.u8() & 1 != 0;
    let mut session = Session::open(&served, is_structured);
    while !input.is_over() && session.asked.len() < REQUESTS_MAX && !session.is_broken {
        session.step(&mut input);
    }
    session.end();
    let until = Instant::now() + PATIENCE;
    let status = || served.handle.ask(Message::Status).expect("the reactor goes on");
    while status().disks.iter().any(|disk| disk.ports > 0) {
        assert!(Instant::now() < until, "the connection is still there");
        thread::sleep(Duration::from_micros(50));
    }
    assert_eq!((status().outstanding, status().in_flight), (0, 0));
    let mut image = vec![0; BYTES];
    served.file.read_exact_at(&mut image, 0).expect("the image is read");
    session.check(0, &image);
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    command: u16,
    offset: u64,
    len: u32,
}

impl Asked {
    /// Tells whether it has to succeed.
    fn is_right(&self, is_structured: bool) -> bool {
        let is_range = self.len > 0 && self.offset + u64::from(self.len) <= BYTES as u64;
        match self.command {
            CMD_FLUSH => self.offset == 0 && self.len == 0,
            CMD_BLOCK_STATUS => is_range && is_structured,
            _ => is_range,
        }
    }
    fn range(&self) -> std::ops::Range<usize> {
        let offset = self.offset as usize;
        offset..offset + self.len as usize
    }
}

struct Session {
    socket: UnixStream,
    is_structured: bool,
    asked: Vec<Asked>,
    /// Without a reply, by cookie.
    open: BTreeMap<u64, Asked>,
    /// Requests since the last time that none was open.
    batch: Vec<(u64, Asked)>,
    /// For each byte, the values that it may have, as bits.
    before: Vec<u64>,
    /// Bytes on their way, both directions together.
    data_bytes: u32,
    /// Something was sent at which the daemon hangs up.
    is_broken: bool,
    /// The daemon has hung up.
    is_over: bool,
}

impl Session {
    fn open(served: &ServedDisk, is_structured: bool) -> Session {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let limits = served.limits;
        let export = Export {
            name: "fuzz".into(),
            disk: served.disk,
            handle: served.handle.clone(),
            limits: Arc::new(move || limits),
            memory: Arc::default(),
        };
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        ours.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        let mut hello = b"\0\0\0\x03".to_vec();
        if is_structured {
            hello.extend(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
            hello
                .extend(b"IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
        }
        hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        // On a thread: before Linux 6.16 it goes on as long as the session does.
        thread::spawn(move || serve(theirs, Arc::new(Only(export)), None, false));
        // After the greeting no descriptors can come, and the session goes past no relay.
        (&ours).read_exact(&mut [0; 18]).expect("a greeting");
        (&ours).write_all(&hello).expect("it takes it");
        // An acknowledgement, a context of 19 bytes, an acknowledgement; size and flags.
        let skipped = if is_structured { 20 + 39 + 20 } else { 0 } + 10;
        (&ours).read_exact(&mut vec![0; skipped]).expect("its replies");
        Session {
            socket: ours,
            is_structured,
            asked: Vec::new(),
            open: BTreeMap::new(),
            batch: Vec::new(),
            before: vec![1; BYTES],
            data_bytes: 0,
            is_broken: false,
            is_over: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let [op, flags, at, len] = input.take();
        let command = match op % 12 {
            0..=2 => CMD_READ,
            3..=5 => CMD_WRITE,
            6 => CMD_FLUSH,
            7 => CMD_TRIM,
            8 => CMD_WRITE_ZEROES,
            9 => CMD_BLOCK_STATUS,
            10 => return self.wait(),
            _ => {
                // Any request, also with unknown flags and commands: the session makes no sense
                // from here on.
                self.is_broken = true;
                let mut garbage = input.bytes(at.into()).to_vec();
                garbage.iter_mut().skip(8).take(8).for_each(|byte| *byte = GARBAGE as u8);
                return self.send(&garbage, len.into());
            }
        };
        let odd = u32::from(flags & 0x80 != 0);
        let mut asked = Asked {
            command,
            offset: u64::from(u32::from(at % 40) * SECTOR + odd),
            len: u32::from(len % 24) * SECTOR + u32::from(flags & 0x40 != 0),
        };
        if command == CMD_FLUSH && flags & 0x20 == 0 {
            (asked.offset, asked.len) = (0, 0);
        }
        if self.data_bytes + asked.len > DATA_BYTES_MAX {
            self.wait();
        }
        self.data_bytes += asked.len;
        let cookie = self.asked.len() as u64;
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        // Only flags that the command knows: FUA, no hole, do not fragment, one extent.
        let known: u16 = match command {
            CMD_READ => 4 * u16::from(self.is_structured),
            CMD_WRITE | CMD_TRIM => 1,
            CMD_WRITE_ZEROES => 3,
            CMD_BLOCK_STATUS => 8,
            _ => 0,
        };
        bytes.extend((u16::from(flags) & known).to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(asked.offset.to_be_bytes());
        bytes.extend(asked.len.to_be_bytes());
        if command == CMD_WRITE {
            bytes.extend(std::iter::repeat_n(cookie as u8 + 1, asked.len as usize));
        }
        self.asked.push(asked);
        self.open.insert(cookie, asked);
        self.batch.push((cookie, asked));
        // In two pieces, or not all of it: a client that goes in the middle.
        let piece = usize::from(op / 12) * 24;
        if flags & 0x1f == 0x1f {
            bytes.truncate(piece.max(1));
            self.is_broken = true;
        }
        self.send(&bytes, piece);
    }

    fn send(&mut self, bytes: &[u8], piece: usize) {
        let (first, rest) = bytes.split_at(piece.min(bytes.len()));
        for part in [first, rest] {
            match (&self.socket).write_all(part) {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e.kind(), io::ErrorKind::BrokenPipe, "{e}");
                    assert!(self.is_broken, "it hangs up without a reason");
                }
            }
        }
    }

    /// Waits until all requests have their replies.
    fn wait(&mut self) {
        while !self.open.is_empty() && !self.is_over {
            self.reply();
        }
        if self.is_over {
            return;
        }
        self.before = self.after();
        self.batch.clear();
        self.data_bytes = 0;
    }

    /// The values of each byte when the batch is over.
    fn after(&self) -> Vec<u64> {
        let mut new = vec![0; BYTES];
        let mut keeps = vec![true; BYTES];
        for (cookie, asked) in &self.batch {
            if !asked.is_right(self.is_structured) {
                continue;
            }
            let (value, is_sure) = match asked.command {
                CMD_WRITE => (1u64 << (cookie + 1), true),
                CMD_WRITE_ZEROES => (1, true),
                CMD_TRIM => (1, false),
                _ => continue,
            };
            for at in asked.range() {
                new[at] |= value;
                // Of a request without a reply nobody knows.
                keeps[at] &= !is_sure || self.open.contains_key(cookie);
            }
        }
        for ((new, keeps), before) in new.iter_mut().zip(keeps).zip(&self.before) {
            *new |= if keeps { *before } else { 0 };
        }
        new
    }

    /// The bytes from an offset on are such as may be there.
    fn check(&self, offset: usize, data: &[u8]) {
        let after = self.after();
        for (at, byte) in (offset..).zip(data) {
            // While a batch is under way, the contents before it may still be there.
            let allowed = after[at] | if self.batch.is_empty() { 0 } else { self.before[at] };
            assert!(*byte < 64 && allowed >> byte & 1 == 1, "byte {at} is {byte}: {allowed:#b}");
        }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        match (&self.socket).read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(e) => {
                let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
                assert!(kinds.contains(&e.kind()), "no reply: {e}");
                assert!(self.is_broken || self.open.is_empty(), "it hangs up: {:?}", self.open);
                self.is_over = true;
                None
            }
        }
    }

    fn data(&mut self, len: u32) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        (&self.socket).read_exact(&mut data).expect("all of a reply");
        data
    }

    /// Reads one reply, or one chunk of it.
    fn reply(&mut self) {
        let Some([a, b, c, d]) = self.take() else { return };
        match u32::from_be_bytes([a, b, c, d]) {
            SIMPLE_REPLY_MAGIC => {
                let [error, cookie] = [self.data(4), self.data(8)];
                let error = u32::from_be_bytes(error.try_into().expect("four bytes"));
                let cookie = u64::from_be_bytes(cookie.try_into().expect("eight bytes"));
                if self.is_garbage(cookie) {
                    return;
                }
                let asked = self.answered(cookie, error);
                if asked.command == CMD_READ && error == 0 {
                    assert!(!self.is_structured, "a simple reply to a read");
                    let data = self.data(asked.len);
                    self.check(asked.offset as usize, &data);
                }
                self.open.remove(&cookie);
            }
            STRUCTURED_REPLY_MAGIC => self.chunk(),
            magic => panic!("a reply that begins with {magic:#x}"),
        }
    }

    fn chunk(&mut self) {
        assert!(self.is_structured);
        let header = self.data(16);
        let number = |range: std::ops::Range<usize>| {
            header[range].iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let (flags, kind, cookie) = (number(0..2), number(2..4) as u16, number(4..12));
        let payload = self.data(number(12..16) as u32);
        let error = match kind >> 15 {
            1 => u32::from_be_bytes(payload[..4].try_into().expect("an error")),
            _ => 0,
        };
        if self.is_garbage(cookie) {
            return;
        }
        let asked = self.answered(cookie, error);
        match kind {
            REPLY_TYPE_OFFSET_DATA => {
                assert_eq!(asked.command, CMD_READ);
                let (offset, data) = payload.split_at(8);
                let offset = u64::from_be_bytes(offset.try_into().expect("eight bytes"));
                assert!(offset >= asked.offset);
                let end = offset + data.len() as u64;
                assert!(end <= asked.offset + u64::from(asked.len));
                self.check(offset as usize, data);
            }
            REPLY_TYPE_BLOCK_STATUS => {
                assert_eq!(asked.command, CMD_BLOCK_STATUS);
                assert!(payload.len() > 4 && payload.len() % 8 == 4);
            }
            _ => {}
        }
        if flags & 1 != 0 {
            self.open.remove(&cookie);
        }
    }

    /// Tells whether it is a reply to bytes that may have been a request. The rest is not looked at
    /// then.
    fn is_garbage(&mut self, cookie: u64) -> bool {
        self.is_over |= self.is_broken && cookie == GARBAGE;
        cookie == GARBAGE
    }

    /// The request of a reply.
    fn answered(&self, cookie: u64, error: u32) -> Asked {
        let asked = self.open.get(&cookie);
        let asked = *asked.unwrap_or_else(|| panic!("a reply to {cookie}, which is not open"));
        let is_right = asked.is_right(self.is_structured);
        assert_eq!(error == 0, is_right, "{asked:?}: error {error}");
        asked
    }

    /// Says that nothing follows, and takes the replies that are left.
    fn end(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        while !self.is_over {
            self.reply();
        }
        assert!(self.is_broken || self.open.is_empty(), "no reply: {:?}", self.open);
    }
}
