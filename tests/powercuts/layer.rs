//! A disk below the image whose power can fail: a file system (FUSE) with one file, `disk.img`,
//! which it keeps in memory. It answers late and in another order than it was asked, and logs its
//! requests. The log determines the possible disks after any power failure ([`Log::cut`]).

use fuser::{
    FileAttr, FileType, Filesystem, KernelConfig, MountOption, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow,
};
use seekway_workload::rng::Rng;
use std::ffi::{CString, OsStr};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NAME: &str = "disk.img";
const FILE: u64 = 2;
/// Time for which the kernel may cache the file's attributes.
const TTL: Duration = Duration::from_secs(3600);
/// A change on the disk, or a mark of its client.
#[derive(Clone, Debug)]
pub enum Event<M> {
    Write {
        id: u64,
        offset: usize,
        data: Vec<u8>,
    },
    Zeroes {
        id: u64,
        range: Range<usize>,
    },
    /// The disk has answered a write.
    Written(u64),
    /// A flush reached the disk; with its answer, all that was answered before it arrived is
    /// durable.
    FlushBegun(u64),
    Flushed(u64),
    /// Something that happened above the daemon.
    Mark(M),
}

pub struct Log<M> {
    bytes: usize,
    first: Vec<(usize, Vec<u8>)>,
    pub events: Vec<Event<M>>,
}

impl<M> Log<M> {
    /// Builds a possible disk after a power failure behind the first `count` events: all that is
    /// durable, and what `rng` chooses of the rest, by blocks of `unit_bytes`, which the disk
    /// writes as a whole.
    pub fn cut(&self, count: usize, unit_bytes: usize, rng: &mut Rng) -> Vec<u8> {
        let mut image = vec![0; self.bytes];
        for (offset, data) in &self.first {
            image[*offset..offset + data.len()].copy_from_slice(data);
        }
        let events = &self.events[..count];
        let durable = durable(events);
        // Some failures lose nearly all, some nearly nothing.
        let kept_percent = [0, 10, 50, 90, 100][rng.below(5) as usize];
        for event in events {
            let (id, range) = match event {
                Event::Write { id, offset, data } => (*id, *offset..offset + data.len()),
                Event::Zeroes { id, range } => (*id, range.clone()),
                _ => continue,
            };
            let is_durable = durable.binary_search(&id).is_ok();
            let mut next = range.start;
            while next < range.end {
                let start = next;
                let end = (start + 1).next_multiple_of(unit_bytes).min(range.end);
                next = end;
                if !is_durable && !rng.percent(kept_percent) {
                    continue;
                }
                match event {
                    Event::Write { data, .. } => image[start..end]
                        .copy_from_slice(&data[start - range.start..end - range.start]),
                    _ => image[start..end].fill(0),
                }
            }
        }
        image
    }
}

/// The writes, by id and in order, that were answered before the begin of a flush that was
/// answered. The flag of a durable write (O_DSYNC) says nothing: most FUSE servers ignore it.
fn durable<M>(events: &[Event<M>]) -> Vec<u64> {
    let answered: Vec<u64> = events.iter().filter_map(flushed).collect();
    let (mut written, mut durable) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Written(id) => written.push(*id),
            Event::FlushBegun(id) if answered.contains(id) => durable.append(&mut written),
            _ => {}
        }
    }
    durable.sort_unstable();
    durable
}

fn flushed<M>(event: &Event<M>) -> Option<u64> {
    match event {
        Event::Flushed(id) => Some(*id),
        _ => None,
    }
}

/// State that the mounted file system and the test share.
pub struct Disk<M> {
    log: Mutex<Log<M>>,
    /// Flushes fail from now on.
    pub flushes_fail: AtomicBool,
    /// One of this number of writes fails; 0 for none.
    pub writes_fail_in: AtomicU64,
    /// Largest delay of an answer, in milliseconds.
    pub slowest_ms: AtomicU64,
    /// Nothing is answered while this is so.
    hangs: Mutex<bool>,
    wakes: Condvar,
}

impl<M> Disk<M> {
    pub fn log(&self) -> MutexGuard<'_, Log<M>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the log. A new one begins, whose crash points say nothing.
    pub fn take_log(&self) -> Log<M> {
        let mut log = self.log();
        let empty = Log { bytes: log.bytes, first: Vec::new(), events: Vec::new() };
        std::mem::replace(&mut log, empty)
    }

    /// Log something that happened above the daemon.
    pub fn mark(&self, mark: M) {
        self.log().events.push(Event::Mark(mark));
    }

    /// Stop to answer, or go on.
    pub fn hang(&self, hangs: bool) {
        *self.hangs.lock().unwrap_or_else(PoisonError::into_inner) = hangs;
        self.wakes.notify_all();
    }

    fn wait_while_it_hangs(&self) {
        let hangs = self.hangs.lock().unwrap_or_else(PoisonError::into_inner);
        let awake = self.wakes.wait_while(hangs, |hangs| *hangs);
        drop(awake.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The mounted disk. Unmounted when dropped.
pub struct Layer<M> {
    pub disk: Arc<Disk<M>>,
    pub image: PathBuf,
    session: Option<fuser::BackgroundSession>,
    answering: Option<JoinHandle<()>>,
}

impl<M: Send + 'static> Layer<M> {
    /// Mount a disk of `bytes` with `first` on it at `folder`, which is empty. Needs /dev/fuse
    /// and the right to mount. Without the page cache, many requests reach it at once.
    pub fn mount(
        folder: &Path,
        bytes: usize,
        first: Vec<(usize, Vec<u8>)>,
        page_cache: bool,
        seed: u64,
    ) -> io::Result<Layer<M>> {
        let mut content = vec![0; bytes];
        for (offset, data) in &first {
            content[*offset..offset + data.len()].copy_from_slice(data);
        }
        let disk = Arc::new(Disk {
            log: Mutex::new(Log { bytes, first, events: Vec::new() }),
            flushes_fail: AtomicBool::new(false),
            writes_fail_in: AtomicU64::new(0),
            slowest_ms: AtomicU64::new(0),
            hangs: Mutex::new(false),
            wakes: Condvar::new(),
        });
        let (sender, receiver) = channel();
        let disk_of_files = disk.clone();
        let files = Files { disk: disk_of_files, content, page_cache, answers: sender, next: 0 };
        let options = [MountOption::FSName("powercut".into()), MountOption::RW];
        let session = fuser::spawn_mount2(files, folder, &options)?;
        let below = disk.clone();
        let answering = std::thread::spawn(move || answer_all(&below, &receiver, Rng::new(seed)));
        let (session, answering) = (Some(session), Some(answering));
        Ok(Layer { disk, image: folder.join(NAME), session, answering })
    }

    /// The disk is pulled out: all that waits for it fails.
    pub fn abort(&self) {
        self.unmount(libc::MNT_FORCE | libc::MNT_DETACH);
    }
}

impl<M> Layer<M> {
    fn unmount(&self, flags: libc::c_int) {
        let folder = self.image.parent().expect("the file is in a folder");
        let folder = CString::new(folder.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a C string that lives through the call.
        unsafe { libc::umount2(folder.as_ptr(), flags) };
    }
}

impl<M> Drop for Layer<M> {
    fn drop(&mut self) {
        self.disk.hang(false);
        // Lazily: the kernel closes the files of a daemon's ring a moment after the daemon has gone.
        self.unmount(libc::MNT_DETACH);
        drop(self.session.take());
        if let Some(thread) = self.answering.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the disk's thread panicked");
        }
    }
}

/// An operation that waits for its answer.
enum Answer {
    Write { id: u64, len: usize, reply: ReplyWrite },
    Zeroes(u64, ReplyEmpty),
    Flush(u64, ReplyEmpty),
}

/// Answers the waiting operations, in an order of its own, until the file system is unmounted.
fn answer_all<M>(disk: &Disk<M>, waiting: &Receiver<Answer>, mut rng: Rng) {
    while let Ok(first) = waiting.recv() {
        // Others may come in the meantime.
        std::thread::yield_now();
        let mut all: Vec<Answer> = std::iter::once(first).chain(waiting.try_iter()).collect();
        rng.shuffle(&mut all);
        for answer in all {
            disk.wait_while_it_hangs();
            let slowest_ms = disk.slowest_ms.load(Ordering::Relaxed);
            if slowest_ms > 0 {
                std::thread::sleep(Duration::from_millis(rng.below(slowest_ms + 1)));
            }
            let fails_in = disk.writes_fail_in.load(Ordering::Relaxed);
            let fails = fails_in > 0 && rng.below(fails_in) == 0;
            // Each is in the log before its answer.
            match answer {
                Answer::Write { reply, .. } if fails => reply.error(libc::EIO),
                Answer::Write { id, len, reply } => {
                    disk.log().events.push(Event::Written(id));
                    reply.written(len as u32);
                }
                Answer::Zeroes(id, reply) => {
                    disk.log().events.push(Event::Written(id));
                    reply.ok();
                }
                Answer::Flush(_, reply) if disk.flushes_fail.load(Ordering::Relaxed) => {
                    reply.error(libc::EIO);
                }
                Answer::Flush(id, reply) => {
                    disk.log().events.push(Event::Flushed(id));
                    reply.ok();
                }
            }
        }
    }
}

/// The file system.
struct Files<M> {
    disk: Arc<Disk<M>>,
    /// Contents of the disk while it has power.
    content: Vec<u8>,
    page_cache: bool,
    answers: Sender<Answer>,
    next: u64,
}

impl<M> Files<M> {
    fn attributes(&self, node: u64) -> FileAttr {
        let is_file = node == FILE;
        let size = if is_file { self.content.len() as u64 } else { 0 };
        FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            // SAFETY: these take nothing and cannot fail.
            uid: unsafe { libc::getuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getgid() },
            rdev: 0,
            blksize: 512,
            flags: 0,
        }
    }

    fn log(&mut self, event: impl FnOnce(u64) -> Event<M>) -> u64 {
        self.next += 1;
        self.disk.log().events.push(event(self.next));
        self.next
    }

    fn answer(&self, answer: Answer) {
        // Its thread ends after this does.
        let _ = self.answers.send(answer);
    }

    /// A range of the file, if it is within it.
    fn range(&self, offset: i64, len: u64) -> Option<Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (end <= self.content.len()).then_some(start..end)
    }
}

impl<M: Send + 'static> Filesystem for Files<M> {
    fn init(&mut self, _: &Request<'_>, config: &mut KernelConfig) -> Result<(), libc::c_int> {
        // Writes of one file side by side.
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&mut self, _: &Request<'_>, _parent: u64, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &self.attributes(FILE), 0);
        } else {
            reply.error(libc::ENOENT);
        }
    }

    fn getattr(&mut self, _: &Request<'_>, node: u64, _: Option<u64>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(node));
    }

    /// Ignores times, owners and size, which stay.
    fn setattr(
        &mut self,
        _: &Request<'_>,
        node: u64,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        if size.is_some_and(|size| size != self.content.len() as u64) {
            return reply.error(libc::EPERM);
        }
        reply.attr(&TTL, &self.attributes(node));
    }

    fn open(&mut self, _: &Request<'_>, _node: u64, _flags: i32, reply: ReplyOpen) {
        // FOPEN_DIRECT_IO and FOPEN_PARALLEL_DIRECT_WRITES of fuse.h: the disk has a queue.
        reply.opened(0, if self.page_cache { 0 } else { 1 | 1 << 6 });
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _node: u64,
        _fh: u64,
        offset: i64,
        size: u32,
        _flags: i32,
        _owner: Option<u64>,
        reply: ReplyData,
    ) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.content.len());
        let end = (start + size as usize).min(self.content.len());
        reply.data(&self.content[start..end]);
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        _node: u64,
        _fh: u64,
        offset: i64,
        data: &[u8],
        _write_flags: u32,
        _flags: i32,
        _owner: Option<u64>,
        reply: ReplyWrite,
    ) {
        let Some(range) = self.range(offset, data.len() as u64) else {
            return reply.error(libc::ENOSPC);
        };
        self.content[range.clone()].copy_from_slice(data);
        let (offset, data) = (range.start, data.to_vec());
        let id = self.log(|id| Event::Write { id, offset, data });
        self.answer(Answer::Write { id, len: range.len(), reply });
    }

    fn fallocate(
        &mut self,
        _: &Request<'_>,
        _node: u64,
        _fh: u64,
        offset: i64,
        length: i64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let range = self.range(offset, length.cast_unsigned());
        let Some(range) = range.filter(|_| mode & zeroes != 0) else {
            return reply.error(libc::EOPNOTSUPP);
        };
        self.content[range.clone()].fill(0);
        let id = self.log(|id| Event::Zeroes { id, range });
        self.answer(Answer::Zeroes(id, reply));
    }

    fn fsync(&mut self, _: &Request<'_>, _node: u64, _fh: u64, _data: bool, reply: ReplyEmpty) {
        let id = self.log(Event::FlushBegun);
        self.answer(Answer::Flush(id, reply));
    }

    /// A descriptor is closed, which is no flush of a disk.
    fn flush(&mut self, _: &Request<'_>, _node: u64, _fh: u64, _owner: u64, reply: ReplyEmpty) {
        reply.ok();
    }
}
