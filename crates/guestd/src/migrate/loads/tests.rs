//! On the kernel that runs the tests: real threads, a real file.

use super::proc::Proc;
use super::{Loads, ThreadLoad};
use crate::migrate::clock;
use seekway_core::units::Nanos;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

pub const PAGE: usize = 4096;
pub const PAGES: u64 = 4096;
const WINDOW: Duration = Duration::from_millis(5);
/// Longer than any of this takes on a machine that is as busy as can be.
const PATIENCE: Duration = Duration::from_secs(600);

#[repr(align(4096))]
pub struct Page(pub [u8; PAGE]);

/// A file beside the tests' program, on a disk; removed when it is dropped.
pub struct OnDisk {
    pub path: PathBuf,
    pub file: File,
}

impl OnDisk {
    /// `None`, with a message, where there is no disk below or no O_DIRECT.
    pub fn new(name: &str) -> Option<OnDisk> {
        let path = std::env::current_exe().unwrap().with_file_name(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.custom_flags(libc::O_DIRECT).open(&path);
        let on_disk = file.ok().map(|file| OnDisk { path: path.clone(), file });
        let on_disk = on_disk.filter(|it| {
            let device = it.file.metadata().unwrap().dev();
            let (major, minor) = (libc::major(device), libc::minor(device));
            PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).exists()
        });
        let Some(it) = on_disk else {
            let path = path.display();
            seekway_testing::skip(format_args!("a disk that takes O_DIRECT below {path}"));
            return None;
        };
        let page = Page([7; PAGE]);
        (0..PAGES).for_each(|n| it.file.write_all_at(&page.0, n * PAGE as u64).unwrap());
        Some(it)
    }

    /// Read pages all over it until `stop`.
    pub fn read_until(&self, stop: &AtomicBool) {
        let mut page = Page([0; PAGE]);
        for n in (0u64..).take_while(|_| !stop.load(Relaxed)) {
            let place = n.wrapping_mul(2_654_435_761) % PAGES;
            self.file.read_exact_at(&mut page.0, place * PAGE as u64).unwrap();
        }
    }
}

/// `struct iocb` of include/uapi/linux/aio_abi.h, little-endian.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    unused: [u64; 2],
}

impl OnDisk {
    /// Reads with libaio's system calls, one page at a time: the thread waits in io_getevents(2),
    /// which is no iowait.
    pub fn read_asynchronously_until(&self, stop: &AtomicBool) {
        let mut page = Page([0; PAGE]);
        let mut context: libc::c_ulong = 0;
        // SAFETY: the buffer for the context is ours.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) }, 0);
        for n in (0u64..).take_while(|_| !stop.load(Relaxed)) {
            let place = n.wrapping_mul(2_654_435_761) % PAGES;
            let request = Iocb {
                fd: self.file.as_raw_fd() as u32,
                buffer: (&raw mut page) as u64,
                bytes: PAGE as u64,
                offset: (place * PAGE as u64) as i64,
                ..Iocb::default()
            };
            let (list, mut event) = ([&raw const request], [0u64; 4]);
            // SAFETY: request, page and event live until the read has ended.
            let (asked, ended) = unsafe {
                let asked = libc::syscall(libc::SYS_io_submit, context, 1, list.as_ptr());
                let none = std::ptr::null::<libc::timespec>();
                let event = event.as_mut_ptr();
                (asked, libc::syscall(libc::SYS_io_getevents, context, 1, 1, event, none))
            };
            assert_eq!((asked, ended), (1, 1));
        }
        // SAFETY: the context is ours, and nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Readers stop when this is dropped, also by a test that fails: it would wait for them.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub fn own_tid() -> i32 {
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// Runs `body` on a thread of its own and tells its number.
pub fn start<'a>(
    scope: &'a thread::Scope<'a, '_>,
    tids: &Sender<i32>,
    body: impl FnOnce() + Send + 'a,
) {
    let tids = tids.clone();
    scope.spawn(move || {
        tids.send(own_tid()).unwrap();
        body();
    });
}

/// Takes windows, one after the other, until the threads' sums are `enough`.
pub fn watch(
    seer: &mut dyn Loads,
    mut enough: impl FnMut(&BTreeMap<i32, ThreadLoad>) -> bool,
) -> BTreeMap<i32, ThreadLoad> {
    let (mut sums, mut loads) = (BTreeMap::<i32, ThreadLoad>::new(), Vec::new());
    let begin = Instant::now();
    while !enough(&sums) {
        assert!(begin.elapsed() < PATIENCE, "not found: {sums:?}");
        thread::sleep(WINDOW);
        seer.window(clock::now(), &mut loads).unwrap();
        assert!(loads.is_sorted_by_key(|load| load.tid));
        for load in &loads {
            let sum = sums.entry(load.tid).and_modify(|sum| sum.add(load));
            sum.or_insert_with(|| load.clone());
        }
    }
    sums
}

/// Has it been seen to wait for I/O, long and often?
pub fn waits(sums: &BTreeMap<i32, ThreadLoad>, tid: i32) -> bool {
    let sum = sums.get(&tid);
    sum.is_some_and(|s| s.waited > Nanos::from_millis(50) && s.ios > 100 && s.io_time > Nanos::ZERO)
}

/// Checks that of `reader`, a thread that computes and one that sleeps, the reader is found.
pub fn finds(seer: &mut dyn Loads, name: &str, reader: fn(&OnDisk, &AtomicBool)) {
    let Some(disk) = OnDisk::new(name) else { return };
    let stop = AtomicBool::new(false);
    let (tids, tid_of): (Sender<i32>, Receiver<i32>) = channel();
    let (awake, sleeps) = channel::<()>();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        let busy = || {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        start(scope, &tids, busy);
        let busy = tid_of.recv().unwrap();
        start(scope, &tids, move || assert!(sleeps.recv().is_err()));
        let sleeper = tid_of.recv().unwrap();
        start(scope, &tids, || reader(&disk, &stop));
        let reader = tid_of.recv().unwrap();

        let sums = watch(seer, |sums| waits(sums, reader));
        assert_eq!(sums[&reader].pid, std::process::id() as i32);
        assert!(!sums.contains_key(&busy) && !sums.contains_key(&sleeper), "{sums:?}");
        drop(awake);
    });
}

#[test]
fn who_waits_for_a_disk_is_found_and_who_computes_or_sleeps_is_not() {
    finds(&mut Proc::open(-1).unwrap(), "proc.tmp", OnDisk::read_until);
}

#[test]
fn who_waits_in_a_call_for_asynchronous_io_is_found() {
    finds(&mut Proc::open(-1).unwrap(), "aio.tmp", OnDisk::read_asynchronously_until);
}

#[test]
fn one_reader_among_a_hundred_idle_threads_is_found_and_those_of_the_agent_are_not() {
    let Some(disk) = OnDisk::new("among-idle.tmp") else { return };
    let stop = AtomicBool::new(false);
    let (tids, tid_of): (Sender<i32>, Receiver<i32>) = channel();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        let mut awake = Vec::new();
        let mut idle = Vec::new();
        for _ in 0..100 {
            let (alive, sleeps) = channel::<()>();
            start(scope, &tids, move || assert!(sleeps.recv().is_err()));
            awake.push(alive);
            idle.push(tid_of.recv().unwrap());
        }
        start(scope, &tids, || disk.read_until(&stop));
        let reader = tid_of.recv().unwrap();
        let own = std::process::id().cast_signed();
        let mut of_agent = Proc::open(own).unwrap();
        let mut loads = Vec::new();
        let sums = watch(&mut Proc::open(-1).unwrap(), |sums| {
            of_agent.window(clock::now(), &mut loads).unwrap();
            assert!(loads.iter().all(|load| load.pid != own));
            waits(sums, reader)
        });
        assert!(idle.iter().all(|tid| !sums.contains_key(tid)), "{sums:?}");
        drop(awake);
    });
}
