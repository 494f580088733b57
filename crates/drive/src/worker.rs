//! The threads that do the I/O of a driven load, each one system call at a time.

use seekway_core::ioprio;
use seekway_core::request::{Op, ProcessTag};
use seekway_workload::Issue;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// Buffers of O_DIRECT start at a multiple of it, on any device.
const ALIGN: usize = 4096;
const SECTOR_BYTES: u64 = 512;
/// Stack of a worker, which needs little.
const STACK_BYTES: usize = 128 << 10;

/// A request that has ended.
pub(super) struct Done {
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
pub(super) struct Pool {
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` workers, which report their results on one channel.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start(file: File, threads: u32) -> io::Result<(Pool, Receiver<Done>)> {
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

    pub(super) fn submit(&self, issue: &Issue) {
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
    pub(super) fn tagged(&self) -> bool {
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
