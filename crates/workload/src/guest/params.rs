//! Parameters of a guest, with the defaults of a Linux guest of 1 GB.

use crate::guest::PAGE_SECTORS;
use seekway_core::params::{Kind, ParamSpec, Params, param};
use seekway_core::units::Nanos;

/// The keys of a VM in front of its first `app=`, beside `name`.
#[rustfmt::skip]
pub static SPECS: &[ParamSpec] = &[
    param("image", Kind::Size, "12GiB", "size of the virtual disk"),
    param("ram", Kind::Size, "1GiB", "guest memory"),
    param("reserved", Kind::Size, "100MiB", "memory that the page cache cannot have"),
    param("warm", Kind::Flag, "false", "the page cache is full of its files from the start"),
    param("read_ahead_kb", Kind::Count(0, 65_536), "128", "read-ahead window; 0 reads page by page"),
    param("max_request_kib", Kind::Count(4, 65_536), "128", "largest request to the virtual disk"),
    param("nr_requests", Kind::Count(1, 8192), "128",
        "requests of one direction in the block layer"),
    param("ring", Kind::Count(1, 8192), "128", "requests on the virtual queue"),
    param("elevator", Kind::Choice(&["noop", "cfq", "deadline"]), "noop", "its I/O scheduler"),
    param("dirty_background", Kind::Count(0, 100), "10", "write-back starts, % of the page cache"),
    param("dirty", Kind::Count(1, 100), "20", "writers are held back, % of the page cache"),
    param("flush_interval", Kind::Duration, "5s", "period of the flusher"),
    param("expire", Kind::Duration, "30s", "age at which the flusher writes a dirty page"),
    param("journal", Kind::Choice(&["ordered", "writeback", "none"]), "ordered", "journal mode"),
    param("commit", Kind::Duration, "5s", "longest age of a transaction"),
    param("barrier", Kind::Flag, "false", "flush around commits and after fsync"),
    param("mtime", Kind::Duration, "1s", "granularity of time stamps (ext3: 1 s; ext4: 4ms)"),
    param("atime", Kind::Flag, "true", "the first read of a file changes its inode (relatime)"),
    param("latency", Kind::Duration, "0", "added to each request's completion"),
    param("jitter", Kind::Duration, "0", "latency is this much more or less, in the same order"),
    param("host_direct", Kind::Flag, "true",
        "the host opens the image with O_DIRECT: all writes reach its scheduler as synchronous"),
    param("vcpus", Kind::Count(1, 256), "2", "virtual CPUs"),
    param("cpu_op", Kind::Duration, "2us", "CPU time of a system call"),
    param("cpu_page", Kind::Duration, "1us", "CPU time of each 4 KiB copied"),
    param("pieces", Kind::Count(1, 4096), "1", "extents of each file; with several, shuffled"),
    param("tags", Kind::Flag, "false", "requests carry a tag for their process"),
    param("sync_at_end", Kind::Flag, "true",
        "write what is dirty when the last application is done"),
];

/// Journal mode (ext3's and ext4's `data=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalMode {
    /// A commit first writes the data whose blocks it allocates.
    Ordered,
    /// Data goes when it goes.
    Writeback,
    /// No journal: inode changes are written in place.
    None,
}

/// A guest's settings. Pages are 4 KiB.
#[derive(Clone, PartialEq, Debug)]
pub struct GuestParams {
    /// Sectors of the image.
    pub image_sectors: u64,
    /// Pages that the page cache may hold.
    pub cache_pages: u32,
    /// The page cache is full from the start.
    pub warm: bool,
    /// Largest read-ahead window, pages; 0 = none.
    pub read_ahead_pages: u32,
    /// Largest request to the virtual disk, in pages.
    pub request_pages: u32,
    /// Requests of one direction in the block layer.
    pub nr_requests: u32,
    /// Requests on the virtual queue.
    pub ring: u32,
    /// Scheduler of the block layer.
    pub elevator: &'static str,
    /// Dirty pages at which write-back starts.
    pub background_pages: u32,
    /// Dirty pages at which writers wait.
    pub dirty_pages: u32,
    /// Period of the flusher.
    pub flush_interval: Nanos,
    /// Age at which the flusher writes a dirty file.
    pub expire: Nanos,
    /// The file system's journal mode, `data=` of ext3 and ext4.
    pub journal: JournalMode,
    /// Longest age of a transaction.
    pub commit: Nanos,
    /// The guest flushes its disk around commits and after fsync.
    pub barrier: bool,
    /// Granularity of time stamps.
    pub mtime: Nanos,
    /// Reading a file changes its inode once (relatime), else never (noatime).
    pub atime: bool,
    /// Added to each completion.
    pub latency: Nanos,
    /// Most by which the latency differs from `latency`, uniformly; completions keep their order.
    /// Not on modelled vCPUs.
    pub jitter: Nanos,
    /// Every write is synchronous to the host's scheduler, as with blktap AIO
    /// and QEMU's cache=none (`REQ_SYNC` of an O_DIRECT write); else only those
    /// for which somebody in the guest waits.
    pub host_direct: bool,
    /// Virtual CPUs of the guest, 1 to 256.
    pub vcpus: u32,
    /// CPU time of a system call.
    pub cpu_op: Nanos,
    /// CPU time for each page.
    pub cpu_page: Nanos,
    /// Extents of each file.
    pub pieces: u32,
    /// Requests carry the tag of the process that they are done for.
    pub tags: bool,
    /// Sync when the last application is done.
    pub sync_at_end: bool,
}

/// The page cache is at least this large: 4 MiB.
const CACHE_PAGES_MIN: u64 = 1024;

impl From<&Params> for GuestParams {
    fn from(p: &Params) -> Self {
        let cache = p.size("ram").get().saturating_sub(p.size("reserved").get()) / PAGE_SECTORS;
        let cache_pages = cache.clamp(CACHE_PAGES_MIN, u64::from(u32::MAX) / 4) as u32;
        let share = |key: &str| (u64::from(cache_pages) * p.count(key) / 100) as u32;
        GuestParams {
            image_sectors: p.size("image").get(),
            cache_pages,
            warm: p.flag("warm"),
            read_ahead_pages: p.count("read_ahead_kb").div_ceil(4) as u32,
            request_pages: (p.count("max_request_kib") / 4) as u32,
            nr_requests: p.count("nr_requests") as u32,
            ring: p.count("ring") as u32,
            elevator: p.choice("elevator"),
            background_pages: share("dirty_background").min(share("dirty") / 2),
            dirty_pages: share("dirty"),
            flush_interval: p.duration("flush_interval").max(Nanos::from_millis(1)),
            expire: p.duration("expire"),
            journal: match p.choice("journal") {
                "ordered" => JournalMode::Ordered,
                "writeback" => JournalMode::Writeback,
                _ => JournalMode::None,
            },
            commit: p.duration("commit").max(Nanos::from_millis(1)),
            barrier: p.flag("barrier"),
            mtime: p.duration("mtime").max(Nanos::new(1)),
            atime: p.flag("atime"),
            latency: p.duration("latency"),
            jitter: p.duration("jitter").min(p.duration("latency")),
            host_direct: p.flag("host_direct"),
            vcpus: p.count("vcpus") as u32,
            cpu_op: p.duration("cpu_op"),
            cpu_page: p.duration("cpu_page"),
            pieces: p.count("pieces") as u32,
            tags: p.flag("tags"),
            sync_at_end: p.flag("sync_at_end"),
        }
    }
}

impl Default for GuestParams {
    fn default() -> Self {
        GuestParams::from(&Params::defaults(SPECS))
    }
}
