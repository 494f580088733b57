//! On the running kernel, with real reads. They need the right to load BPF programs, and
//! say so where they have not got it.

use super::*;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

/// The programs, or `None` with the reason printed where BPF is not permitted.
fn permitted() -> Option<Bpf> {
    match Bpf::open(-1) {
        Ok(bpf) => Some(bpf),
        Err(BpfError::Forbidden(what)) => {
            eprintln!("skipped: loading BPF programs needs {what}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn tid() -> i32 {
    // SAFETY: gettid cannot fail.
    unsafe { libc::gettid() }
}

/// A file on a disk that takes O_DIRECT: beside the build's output.
fn file_on_disk(mib: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    (0..mib).for_each(|_| file.write_all(&[7; 1 << 20]).unwrap());
    file.as_file().sync_all().unwrap();
    file
}

/// A buffer that O_DIRECT takes.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// A thread that goes on until it is dropped, and its number.
struct Thread {
    tid: i32,
    ends: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Thread {
    fn start(mut turn: impl FnMut(u64) + Send + 'static) -> Thread {
        let ends = std::sync::Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let end = ends.clone();
        let thread = std::thread::spawn(move || {
            send.send(tid()).unwrap();
            let mut n = 0;
            while !end.load(Ordering::Relaxed) {
                turn(n);
                n += 1;
            }
        });
        Thread { tid: receive.recv().unwrap(), ends, thread: Some(thread) }
    }

    fn reader(path: &std::path::Path) -> Thread {
        let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = file.expect("a file system with O_DIRECT");
        let pages = file.metadata().unwrap().len() / 4096;
        let mut buffer = Box::new(Aligned([0; 4096]));
        Thread::start(move |n| file.read_exact_at(&mut buffer.0, n * 7919 % pages * 4096).unwrap())
    }

    fn computing() -> Thread {
        Thread::start(|n| {
            (0..1000).for_each(|m| {
                std::hint::black_box(n ^ m);
            })
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(|t| t.join());
    }
}

/// Loads of a thread, window by window.
fn windows(bpf: &mut Bpf, count: usize) -> Vec<(Instant, Vec<ThreadLoad>)> {
    let mut found = Vec::new();
    let mut loads = Vec::new();
    bpf.window(crate::migrate::clock::now(), &mut loads).unwrap();
    for _ in 0..count {
        // The window that is measured, not a wait for anything.
        std::thread::sleep(Duration::from_millis(5));
        let (at, mut loads) = (crate::migrate::clock::now(), Vec::new());
        bpf.window(at, &mut loads).unwrap();
        found.push((at, loads));
    }
    found
}

#[test]
fn a_reader_waits_for_io_and_a_computing_thread_does_not() {
    let Some(mut bpf) = permitted() else { return };
    let file = file_on_disk(16);
    let reader = Thread::reader(file.path());
    let computing = Thread::computing();
    let found = windows(&mut bpf, 40);
    let of = |tid: i32| found.iter().flat_map(|(_, w)| w).filter(move |l| l.tid == tid);
    let total = |field: fn(&ThreadLoad) -> u64| of(reader.tid).map(field).sum::<u64>();
    let (waited, ran) = (total(|l| l.waited.get()), total(|l| l.ran.get()));
    let (ios, io_time) = (total(|l| l.ios.into()), total(|l| l.io_time.get()));
    eprintln!(
        "{} windows, {ios} reads, waited {waited} ns, ran {ran} ns, in I/O {io_time} ns",
        of(reader.tid).count()
    );
    assert!(of(reader.tid).count() > 30 && ios > 40);
    assert!(of(reader.tid).all(|l| l.pid == std::process::id() as i32));
    // Each read is one bio, and the thread does not run before it ends.
    assert!(waited.abs_diff(io_time) < io_time / 2);
    assert_eq!(of(computing.tid).count(), 0);
}
