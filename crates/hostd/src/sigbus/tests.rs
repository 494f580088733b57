use super::*;
use crate::frontends::vhost_user::memory_file;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const PAGE: usize = 4096;

/// A memory file of some pages, mapped.
struct Mapped {
    file: File,
    at: *mut u8,
    bytes: usize,
}

impl Mapped {
    fn new(pages: usize) -> Mapped {
        let bytes = pages * PAGE;
        let file = memory_file(bytes as u64);
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: mapped anywhere.
        let at = unsafe { libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Mapped { file, at: at.cast(), bytes }
    }

    fn watch(&self) -> Watch {
        // SAFETY: mapped for longer than the watch, which each test drops first.
        unsafe { Watch::new(self.at, self.bytes, PAGE) }
    }

    fn put(&self, page: usize, value: u8) {
        // SAFETY: inside the mapping.
        unsafe { self.at.add(page * PAGE).write_volatile(value) }
    }

    fn get(&self, page: usize) -> u8 {
        // SAFETY: inside the mapping.
        unsafe { self.at.add(page * PAGE).read_volatile() }
    }

    fn buffer(&self, page: usize) -> [libc::iovec; 1] {
        let iov_base = self.at.wrapping_add(page * PAGE).cast();
        [libc::iovec { iov_base, iov_len: PAGE }]
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody looks any more.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

#[test]
fn a_missing_page_reads_as_zeroes_and_its_range_is_lost() {
    let (short, whole) = (Mapped::new(3), Mapped::new(1));
    let (watch, other) = (short.watch(), whole.watch());
    (0..3).for_each(|page| short.put(page, 7));
    whole.put(0, 8);
    short.file.set_len(PAGE as u64).unwrap();
    assert!(!watch.is_lost() && !is_lost(&short.buffer(0)));
    assert_eq!((short.get(0), short.get(2), short.get(1)), (7, 0, 0));
    short.put(2, 9);
    assert_eq!((short.get(0), short.get(2)), (7, 9), "what is there is kept");
    assert!(watch.is_lost() && is_lost(&short.buffer(0)));
    assert!(!other.is_lost() && !is_lost(&whole.buffer(0)));
    assert_eq!(whole.get(0), 8);
    drop(watch);
    assert!(!is_lost(&short.buffer(0)));
    drop(other);
}

#[test]
fn many_missing_pages_are_replaced_at_once() {
    let memory = Mapped::new(4 * PAGES_MAX);
    let watch = memory.watch();
    memory.file.set_len(0).unwrap();
    assert!((0..4 * PAGES_MAX).all(|page| memory.get(page) == 0));
    assert_eq!(watch.0.faults.load(SeqCst), PAGES_MAX + 1);
    drop(watch);
}

#[test]
fn entries_are_used_again_and_there_are_as_many_as_are_needed() {
    let memory: Vec<Mapped> = (0..3 * CHUNK_ENTRIES).map(|_| Mapped::new(1)).collect();
    for _ in 0..2 {
        let watches: Vec<Watch> = memory.iter().map(Mapped::watch).collect();
        assert!(watches.iter().all(|watch| !watch.is_lost()));
        let last = memory.last().unwrap();
        last.file.set_len(0).unwrap();
        assert_eq!(last.get(0), 0);
        let lost: Vec<bool> = watches.iter().map(Watch::is_lost).collect();
        assert_eq!(lost.iter().filter(|lost| **lost).count(), usize::from(lost[lost.len() - 1]));
    }
}

/// The variable that names a child's task.
const CHILD: &str = "SEEKWAY_TEST_SIGBUS";

/// Not a test of its own: a process that SIGBUS ends.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (watched, other) = (Mapped::new(1), Mapped::new(1));
    let watch = watched.watch();
    other.file.set_len(0).unwrap();
    match what.as_str() {
        "without mappings" => return without_mappings(),
        "elsewhere" => _ = other.get(0),
        // SAFETY: sends a signal to this thread.
        _ => _ = unsafe { libc::raise(libc::SIGBUS) },
    }
    drop(watch);
}

/// Use up the mappings of the process, and have a page missing.
fn without_mappings() {
    let memory = Mapped::new(8);
    let watch = memory.watch();
    (0..8).for_each(|page| memory.put(page, 7));
    memory.file.set_len(0).unwrap();
    let fd = memory.file.as_raw_fd();
    // SAFETY: new mappings that nobody uses, without memory; each is one of its own, for it maps
    // the same part of the file.
    let map = || unsafe { libc::mmap(null_mut(), PAGE, libc::PROT_NONE, libc::MAP_SHARED, fd, 0) };
    let made = (0..1 << 20).take_while(|_| map() != libc::MAP_FAILED).count();
    if made == 1 << 20 {
        println!("{UNLIMITED}");
        return;
    }
    assert!((0..8).all(|page| memory.get(page) == 0) && watch.is_lost());
    assert!(SPARE_USED.load(SeqCst) > 0, "there was no other way");
    drop(watch);
}

/// Output of a child where the kernel allows more mappings than a test makes.
const UNLIMITED: &str = "mappings without end";

#[test]
fn a_missing_page_ends_nothing_where_the_process_can_map_no_more() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sigbus::tests::child", "--nocapture"]);
    let output = command.env(CHILD, "without mappings").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    if String::from_utf8_lossy(&output.stdout).contains(UNLIMITED) {
        seekway_testing::skip("a limit of a million mappings (vm.max_map_count)");
    }
}

#[test]
fn sigbus_elsewhere_ends_the_process() {
    for what in ["elsewhere", "sent"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sigbus::tests::child"]).env(CHILD, what);
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{what}: {output:?}");
    }
}
