//! Runs a load of `seekway-workload` on a real disk: a device or a file is read
//! (and written, if allowed) with O_DIRECT, at the times that the load asks for.
//!
//! The load itself (its guest with page cache and read-ahead, its think times)
//! is the simulator's; the disk and everything below it are real. Live
//! experiments run it inside the daemon's guests.
//!
//! One thread drives the load. A pool of threads does the I/O, one blocking
//! system call each, so that a request carries the I/O priority of its thread,
//! which is the process tag (`seekway_core::ioprio`).

use hdrhistogram::Histogram;
use seekway_core::ioprio;
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::Instant as LoadTime;
use seekway_workload::{Issue, Source};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Largest request that a load may make.
const REQUEST_BYTES_MAX: u64 = 16 << 20;
/// Most threads that do I/O.
pub const THREADS_MAX: u32 = 4096;
/// Times in the histogram: from a microsecond to an hour.
const TIMES_NS: (u64, u64) = (1_000, 3_600_000_000_000);
/// Longest sleep without a look at the clock's end of the run.
const NAP: Duration = Duration::from_millis(100);

/// Why a load could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The device or file cannot be used, or a request failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        /// The device or file.
        path: PathBuf,
        source: io::Error,
    },
    /// The load does not fit the disk, the options or the limits.
    #[error("{0}")]
    Refused(String),
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, DriveError>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveOptions {
    /// A block device or a regular file.
    pub on: PathBuf,
    /// Requests that are served at once, 1 to [`THREADS_MAX`].
    pub threads: u32,
    /// Time at the beginning that is not measured.
    pub settle: Duration,
    /// Time that is measured; `None`: until the load has come to its end.
    pub window: Option<Duration>,
    /// Allow writes, which destroy the disk's contents.
    pub write: bool,
}

/// Results of the requests that were issued and done within the window.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Length of the window.
    pub took: Duration,
    /// Reads and writes; a flush or discard is not counted.
    pub requests: u64,
    pub reads: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// From issue to completion, in nanoseconds.
    pub response: Histogram<u64>,
    /// Requests carried process tags, and the kernel took them.
    pub tagged: bool,
    /// The load came to its end.
    pub finished: bool,
}

/// Put the load's requests to the disk.
///
/// # Errors
/// A load of several VMs; a disk smaller than the load's; writes that were not
/// allowed; the first I/O error.
pub fn drive(source: Box<dyn Source>, options: &DriveOptions) -> Result<Measurement> {
    let [disk] = source.vms() else {
        let what = format!("{} VMs on one disk: give one", source.vms().len());
        return Err(DriveError::Refused(what));
    };
    let file = open(options)?;
    let size_bytes = at((&file).seek(SeekFrom::End(0)), "measure", &options.on)?;
    if size_bytes < disk.capacity.bytes() {
        return Err(DriveError::Refused(format!(
            "{} has {size_bytes} bytes, the load's disk {}: give the VM a smaller image=",
            options.on.display(),
            disk.capacity.bytes()
        )));
    }
    let threads = options.threads.clamp(1, THREADS_MAX);
    let (pool, done) = Pool::start(file, threads).map_err(|e| {
        DriveError::Refused(format!("cannot start {threads} threads ({e}): fewer --threads may do"))
    })?;
    let response = Histogram::new_with_bounds(TIMES_NS.0, TIMES_NS.1, 3);
    let run = Run {
        source,
        options,
        pool,
        done,
        flying: HashMap::new(),
        started: Instant::now(),
        driven: Measurement {
            took: Duration::ZERO,
            requests: 0,
            reads: 0,
            bytes: 0,
            response: response.expect("constant bounds"),
            tagged: false,
            finished: false,
        },
    };
    run.finish()
}

/// Adds the verb and the disk to an I/O error.
fn at<T>(result: io::Result<T>, what: &'static str, path: &Path) -> Result<T> {
    result.map_err(|source| DriveError::Io { what, path: path.to_path_buf(), source })
}

fn open(options: &DriveOptions) -> Result<File> {
    let mut how = File::options();
    how.read(true).write(options.write).custom_flags(libc::O_DIRECT);
    at(how.open(&options.on), "open with O_DIRECT", &options.on)
}

/// A request on its way.
struct Outstanding {
    op: Op,
    bytes: u64,
    since: Instant,
}

struct Run<'a> {
    source: Box<dyn Source>,
    options: &'a DriveOptions,
    pool: Pool,
    done: Receiver<Done>,
    flying: HashMap<u64, Outstanding>,
    started: Instant,
    driven: Measurement,
}

impl Run<'_> {
    fn finish(mut self) -> Result<Measurement> {
        let mut issues = Vec::new();
        let begin = self.started + self.options.settle;
        let end = self.options.window.map(|w| begin + w);
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                break;
            }
            let failed = |e| DriveError::Refused(format!("{e}"));
            self.source.poll(self.load_time(now), &mut issues).map_err(failed)?;
            for issue in issues.drain(..) {
                self.issue(&issue, now)?;
            }
            if self.source.finished() && self.flying.is_empty() {
                self.driven.finished = true;
                break;
            }
            self.wait(now, end)?;
        }
        self.driven.took = Instant::now().saturating_duration_since(begin);
        self.driven.tagged = self.pool.tagged();
        Ok(self.driven)
    }

    /// The load's clock starts at zero.
    fn load_time(&self, at: Instant) -> LoadTime {
        let since = at.saturating_duration_since(self.started);
        LoadTime::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn issue(&mut self, issue: &Issue, now: Instant) -> Result<()> {
        let bytes = if issue.op.is_data() { issue.len.bytes() } else { 0 };
        if issue.op != Op::Read && !self.options.write {
            return Err(DriveError::Refused(format!(
                "the load writes (sector {}), and writing was not allowed: it destroys what {} holds",
                issue.start,
                self.options.on.display()
            )));
        }
        if bytes > REQUEST_BYTES_MAX {
            let what = format!("a request of {bytes} bytes: at most {REQUEST_BYTES_MAX}");
            return Err(DriveError::Refused(what));
        }
        self.flying.insert(issue.token, Outstanding { op: issue.op, bytes, since: now });
        self.pool.submit(issue);
        Ok(())
    }

    /// Until something is done, the load wants to go on, or the run ends.
    fn wait(&mut self, now: Instant, end: Option<Instant>) -> Result<()> {
        let wake = self.source.next_wake();
        let wake = wake.map(|at| self.started + Duration::from_nanos(at.as_nanos()));
        let until = [wake, end].into_iter().flatten().fold(now + NAP, Instant::min);
        match self.done.recv_timeout(until.saturating_duration_since(now)) {
            Ok(done) => self.done(done)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the pool holds a sender"),
        }
        while let Ok(done) = self.done.try_recv() {
            self.done(done)?;
        }
        Ok(())
    }

    fn done(&mut self, done: Done) -> Result<()> {
        at(done.result, "read or write", &self.options.on)?;
        let flying = self.flying.remove(&done.token).expect("done once, after it was issued");
        self.source.completed(self.load_time(done.at), done.token);
        if flying.bytes > 0 && flying.since >= self.started + self.options.settle {
            let driven = &mut self.driven;
            driven.requests += 1;
            driven.reads += u64::from(flying.op == Op::Read);
            driven.bytes += flying.bytes;
            let response = done.at.saturating_duration_since(flying.since).as_nanos();
            driven.response.saturating_record(u64::try_from(response).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

// The threads that do the I/O of a driven load, each one system call at a time.

/// Buffers of O_DIRECT start at a multiple of it, on any device.
const ALIGN: usize = 4096;
const SECTOR_BYTES: u64 = 512;
/// Stack of a worker, which needs little.
const STACK_BYTES: usize = 128 << 10;

/// A request that has ended.
struct Done {
    pub token: u64,
    /// When its system call returned.
    pub at: Instant,
    pub result: io::Result<()>,
}

struct Job {
    token: u64,
    op: Op,
    tag: Option<ProcessTag>,
    at: u64,
    len: usize,
}

/// State that the threads share.
struct Shared {
    file: File,
    jobs: Mutex<Receiver<Job>>,
    /// The kernel takes tags: it has refused none yet.
    takes_tags: AtomicBool,
    /// Some request had one.
    has_tags: AtomicBool,
}

/// The threads. They end when this is dropped.
struct Pool {
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` workers, which report their results on one channel.
    ///
    /// # Errors
    /// The system has no more threads.
    fn start(file: File, threads: u32) -> io::Result<(Pool, Receiver<Done>)> {
        let (jobs, queue) = channel();
        let (say, done) = channel();
        let shared = Arc::new(Shared {
            file,
            jobs: Mutex::new(queue),
            takes_tags: AtomicBool::new(true),
            has_tags: AtomicBool::new(false),
        });
        let mut pool = Pool { jobs: Some(jobs), shared, threads: Vec::new() };
        for _ in 0..threads {
            let (shared, say) = (pool.shared.clone(), say.clone());
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            pool.threads.push(thread.spawn(move || work(&shared, &say))?);
        }
        Ok((pool, done))
    }

    fn submit(&self, issue: &Issue) {
        let job = Job {
            token: issue.token,
            op: issue.op,
            tag: issue.tag,
            at: issue.start.get() * SECTOR_BYTES,
            len: if issue.op.is_data() { issue.len.bytes() as usize } else { 0 },
        };
        if issue.tag.is_some() {
            self.shared.has_tags.store(true, Ordering::Relaxed);
        }
        let sender = self.jobs.as_ref().expect("there until the pool is dropped");
        sender.send(job).expect("the threads hold the receiver");
    }

    /// Requests carried tags, and the kernel took them.
    fn tagged(&self) -> bool {
        self.shared.has_tags.load(Ordering::Relaxed)
            && self.shared.takes_tags.load(Ordering::Relaxed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panic in there has been printed.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, say: &Sender<Done>) {
    let mut buffer = Buffer::default();
    let mut tagged = None;
    loop {
        // The lock is held while one of the threads waits for a job.
        let job = match shared.jobs.lock() {
            Ok(jobs) => jobs.recv(),
            Err(_) => return,
        };
        let Ok(job) = job else { return };
        if job.tag != tagged && shared.takes_tags.load(Ordering::Relaxed) {
            if set_tag(job.tag).is_err() {
                shared.takes_tags.store(false, Ordering::Relaxed);
            }
            tagged = job.tag;
        }
        let result = execute(&shared.file, &job, &mut buffer);
        if say.send(Done { token: job.token, at: Instant::now(), result }).is_err() {
            return;
        }
    }
}

fn execute(file: &File, job: &Job, buffer: &mut Buffer) -> io::Result<()> {
    let bytes = buffer.of(job.len);
    match job.op {
        Op::Read => {
            let mut done = 0;
            while done < bytes.len() {
                match file.read_at(&mut bytes[done..], job.at + done as u64) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(n) => done += n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        }
        Op::Write => file.write_all_at(bytes, job.at),
        Op::Flush => file.sync_data(),
        // No load asks for them.
        Op::Discard | Op::WriteZeroes => Err(ErrorKind::Unsupported.into()),
    }
}

/// Memory for O_DIRECT, filled with incompressible data.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// `len` bytes that start at a multiple of [`ALIGN`].
    fn of(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len + ALIGN {
            let mut seed = 1u64;
            self.bytes.resize_with(len + ALIGN, || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            });
        }
        let skip = self.bytes.as_ptr().align_offset(ALIGN);
        &mut self.bytes[skip..skip + len]
    }
}

/// For the calling thread. A kernel before 6.5 does not take it.
fn set_tag(tag: Option<ProcessTag>) -> io::Result<()> {
    const WHO_PROCESS: libc::c_int = 1;
    let priority = match tag {
        None => 0,
        Some(tag) => ioprio::priority(tag).ok_or(ErrorKind::InvalidInput)?,
    };
    // SAFETY: ioprio_set takes no pointers; 0 names the calling thread.
    let set =
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, libc::c_int::from(priority)) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_workload::generators::parse_vm;

    fn load(text: &str) -> Box<dyn Source> {
        parse_vm(text).unwrap().source(1, 0).unwrap()
    }

    fn disk(bytes: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().set_len(bytes).unwrap();
        file
    }

    fn options(on: &Path) -> DriveOptions {
        let settle = Duration::ZERO;
        DriveOptions { on: on.into(), threads: 4, settle, window: None, write: false }
    }

    #[test]
    fn a_load_is_read_to_its_end() {
        let disk = disk(64 << 20);
        let text = "image=64MiB,app=fio:rw=randread,bs=4k,size=4MiB,direct=true,iodepth=4";
        let driven = drive(load(text), &options(disk.path())).unwrap();
        assert_eq!((driven.requests, driven.reads, driven.bytes), (1024, 1024, 4 << 20));
        assert!(driven.finished && driven.response.len() == 1024);
    }

    #[test]
    fn a_window_ends_a_load_that_does_not() {
        let disk = disk(64 << 20);
        let text = "image=64MiB,app=fio:rw=randread,bs=4k,size=1MiB,io_size=1TiB,direct=true";
        let window = Duration::from_millis(500);
        let timed = DriveOptions { window: Some(window), ..options(disk.path()) };
        let driven = drive(load(text), &timed).unwrap();
        assert!(!driven.finished && driven.requests > 0 && driven.took >= window);
    }

    #[test]
    fn writes_have_to_be_allowed_and_then_reach_the_disk() {
        let disk = disk(64 << 20);
        let text = "image=64MiB,app=fio:rw=write,bs=64k,size=1MiB,direct=true";
        let refused = drive(load(text), &options(disk.path())).unwrap_err().to_string();
        assert!(refused.contains("writing was not allowed"), "{refused}");
        assert!(std::fs::read(disk.path()).unwrap().iter().all(|&b| b == 0));
        let allowed = DriveOptions { write: true, ..options(disk.path()) };
        assert!(drive(load(text), &allowed).unwrap().bytes >= 1 << 20);
        let written = std::fs::read(disk.path()).unwrap().iter().filter(|&&b| b != 0).count();
        assert!(written > 1 << 19, "{written} bytes");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let disk = disk(1 << 20);
        let error = drive(load("image=64MiB,app=fio:size=1MiB"), &options(disk.path()));
        assert!(error.unwrap_err().to_string().contains("smaller image="));
    }
}
