//! A port that does what a test tells it, and a reactor to try it on.
#![allow(dead_code)] // each test file uses its part

pub mod acceptor;
pub mod bench;
pub mod daemon;
pub mod loops;
pub mod mounted;

use seekway_core::request::Op;
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Nanos, Sectors};
use seekway_hostd::images::fault::Fault;
use seekway_hostd::images::{Image, ImageError, OpenOptions};
use seekway_hostd::port::{Budget, DiskId, Errno, Job, Port, PortContext, PortId};
use seekway_hostd::reactor::{
    CacheSetup, Disk, Handle, Message, Poll, Setup, Status, Submitter, spawn,
};
use seekway_hostd::throttle::Throttle;
use std::any::Any;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// A failing test says so after this long. A cloud volume without credit may take minutes to answer.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A folder on the disk of the build, where O_DIRECT works, not in /tmp, which may be a tmpfs.
pub fn dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A sparse file of this size.
pub fn image(folder: impl AsRef<Path>, name: &str, len: u64) -> PathBuf {
    let path = folder.as_ref().join(name);
    File::create(&path).unwrap().set_len(len).unwrap();
    path
}

/// A request of a test: the buffer comes back with the answer.
pub struct Ask {
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    pub fua: bool,
    pub unmap: bool,
    pub buffer: Vec<u8>,
    /// Where in the buffer the data begins (to misalign it).
    pub skip: usize,
}

impl Ask {
    pub fn read(offset: u64, len: u64) -> Ask {
        Ask::new(Op::Read, offset, len, vec![0xee; len as usize])
    }
    pub fn write(offset: u64, data: Vec<u8>) -> Ask {
        Ask::new(Op::Write, offset, data.len() as u64, data)
    }
    pub fn flush() -> Ask {
        Ask::new(Op::Flush, 0, 0, Vec::new())
    }
    pub fn new(op: Op, offset: u64, len: u64, buffer: Vec<u8>) -> Ask {
        Ask { op, offset, len, fua: false, unmap: false, buffer, skip: 0 }
    }
}

pub struct Answer {
    pub token: u64,
    pub result: Result<(), Errno>,
    pub buffer: Vec<u8>,
}

struct TestPort {
    disk: DiskId,
    id: Option<PortId>,
    asked: Vec<Option<Vec<u8>>>,
    /// As the real ports do; else what comes is handed in at once, whether or not there is room.
    waits_for_turns: bool,
    waiting: VecDeque<Ask>,
    answers: Sender<Answer>,
}

impl Port for TestPort {
    fn disk(&self) -> DiskId {
        self.disk
    }
    fn open(&mut self, id: PortId, _context: &mut dyn PortContext) {
        self.id = Some(id);
    }
    fn event(&mut self, _: u32, _: i32, _: bool, _: &mut dyn PortContext) {
        unreachable!("no SQE was pushed");
    }
    fn done(&mut self, token: u64, result: Result<(), Errno>, _context: &mut dyn PortContext) {
        let buffer = self.asked[token as usize].take().expect("done once");
        let _ = self.answers.send(Answer { token, result, buffer });
    }
    fn message(&mut self, message: Box<dyn Any + Send>, context: &mut dyn PortContext) {
        let asks = message.downcast::<Vec<Ask>>().expect("a list of requests");
        if !self.waits_for_turns {
            return asks.into_iter().for_each(|ask| self.submit(ask, context));
        }
        if self.waiting.is_empty() {
            context.wait_turn(self.id.expect("open"));
        }
        self.waiting.extend(*asks);
    }
    fn take(&mut self, budget: &mut Budget, context: &mut dyn PortContext) -> bool {
        while !budget.is_spent()
            && context.has_room(self.disk)
            && let Some(ask) = self.waiting.pop_front()
        {
            budget.spend(Budget::REQUEST_WORK);
            self.submit(ask, context);
        }
        !self.waiting.is_empty()
    }
    fn closed(self: Box<Self>) {
        assert!(self.asked.iter().all(Option::is_none), "closed with requests under way");
    }
}

impl TestPort {
    fn submit(&mut self, mut ask: Ask, context: &mut dyn PortContext) {
        let token = self.asked.len() as u64;
        let job = Job {
            disk: self.disk,
            port: self.id.expect("open"),
            token,
            op: ask.op,
            offset: ask.offset,
            len: ask.len,
            priority: 0,
            fua: ask.fua,
            unmap: ask.unmap,
        };
        let data = &mut ask.buffer[ask.skip..];
        // Two pieces, so that lists of buffers are used.
        let half = data.len() / 1024 * 512;
        let (a, b) = data.split_at_mut(half);
        let iovecs: Vec<libc::iovec> = [a, b]
            .into_iter()
            .filter(|p| !p.is_empty())
            .map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() })
            .collect();
        let iovecs = if ask.op.is_data() { &iovecs[..] } else { &[] };
        match context.submit(&job, iovecs) {
            Ok(()) => self.asked.push(Some(ask.buffer)),
            Err(e) => {
                self.asked.push(None);
                let _ = self.answers.send(Answer { token, result: Err(e), buffer: ask.buffer });
            }
        }
    }
}

/// A reactor under test.
pub struct Rig {
    pub handle: Handle,
    thread: Option<JoinHandle<()>>,
}

pub struct RigSetup<'a> {
    pub policy: &'a str,
    pub emulate: Option<&'a str>,
    pub journal: Option<File>,
    pub depth: Option<u32>,
    pub poll: Poll,
    pub submitter: Submitter,
    pub cache: Option<CacheSetup>,
}

impl Default for RigSetup<'_> {
    fn default() -> Self {
        RigSetup {
            policy: "noop",
            emulate: None,
            journal: None,
            depth: None,
            poll: Poll::OFF,
            submitter: Submitter::Own,
            cache: None,
        }
    }
}

impl Rig {
    pub fn start(setup: RigSetup<'_>) -> Rig {
        let (handle, thread) = spawn(Setup {
            name: "test".into(),
            policy: setup.policy.into(),
            depth: setup.depth,
            coalesce: Sectors::new(1024),
            merge: false,
            hard_limit: Nanos::from_secs(30),
            cache: setup.cache,
            throttle: setup.emulate.map(|e| Throttle::parse(e).unwrap()),
            profile: DeviceProfile::unknown(Sectors::new(1 << 32), false),
            tags: None,
            poll: setup.poll,
            submitter: setup.submitter,
            journal: setup.journal,
            groups: Vec::new(),
        })
        .unwrap();
        Rig { handle, thread: Some(thread) }
    }

    pub fn attach(&self, path: &Path, fault: Option<&str>) -> Result<DiskId, String> {
        let options = OpenOptions::writing();
        let image = open_image(path, &options).map_err(|e| e.to_string())?;
        let fault = fault.map(|f| Fault::parse(f).unwrap());
        let disk = Disk { fault, ..Disk::new(path.file_name().unwrap().to_string_lossy(), image) };
        self.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap()
    }

    pub fn open(&self, disk: DiskId) -> Client {
        self.open_as(disk, false)
    }

    /// A port that hands requests in when it is its turn, as the real ones do.
    pub fn open_in_turns(&self, disk: DiskId) -> Client {
        self.open_as(disk, true)
    }

    fn open_as(&self, disk: DiskId, waits_for_turns: bool) -> Client {
        let (sender, answers) = channel();
        let (asked, waiting) = (Vec::new(), VecDeque::new());
        let port = TestPort { disk, id: None, asked, waits_for_turns, waiting, answers: sender };
        let id = self.handle.ask(|r| Message::OpenPort(Box::new(port), r)).expect("the port opens");
        Client { handle: self.handle.clone(), id, answers }
    }

    pub fn status(&self) -> Status {
        self.handle.ask(Message::Status).unwrap()
    }
}

/// Its thread has to end well, but in a test that has failed already.
impl Drop for Rig {
    fn drop(&mut self) {
        self.handle.send(Message::Shutdown);
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join().expect("the reactor ended well");
        }
    }
}

/// Open an image. The kernel lets go of a file that a ring had a moment after the
/// ring has, and the lock goes with it; the daemon waits for that too.
pub fn open_image(path: &Path, options: &OpenOptions) -> Result<Image, ImageError> {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        match Image::open(path, options) {
            Err(ImageError::Locked { .. } | ImageError::Busy { .. })
                if std::time::Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// A cache of `bytes` that reads nothing ahead.
pub fn cache(bytes: u64) -> Option<CacheSetup> {
    let prefetcher = "none".to_string();
    Some(CacheSetup {
        bytes,
        room_bytes: bytes,
        prefetcher,
        lock: false,
        bandwidth_bytes_per_s: None,
        seed: None,
    })
}

/// A test's end of a port.
pub struct Client {
    handle: Handle,
    pub id: PortId,
    answers: Receiver<Answer>,
}

impl Client {
    pub fn ask(&self, asks: Vec<Ask>) {
        self.handle.send(Message::ToPort(self.id, Box::new(asks)));
    }
    pub fn answer(&self) -> Answer {
        self.answers.recv_timeout(PATIENCE).expect("an answer in time")
    }
    /// Ask, and wait for all answers, in the order of asking.
    pub fn do_all(&self, asks: Vec<Ask>) -> Vec<Answer> {
        let count = asks.len();
        self.ask(asks);
        let mut answers: Vec<Answer> = (0..count).map(|_| self.answer()).collect();
        answers.sort_by_key(|a| a.token);
        answers
    }
    pub fn do_one(&self, ask: Ask) -> Answer {
        self.do_all(vec![ask]).remove(0)
    }
    /// The port has ended when this returns.
    pub fn close(self) {
        self.handle.send(Message::ClosePort(self.id));
        // The sender is dropped with the port.
        while self.answers.recv_timeout(PATIENCE).is_ok() {}
    }
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
