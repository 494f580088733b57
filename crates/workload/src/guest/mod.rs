//! One guest VM between its applications and its virtual disks: file system
//! layout, Linux's page cache with read-ahead and write-back, an ext3-like
//! journal, and a noop block layer.
//!
//! ```text
//!  App::next ─▶ threads ─▶ pages (read-ahead, cache) ─▶ block ─▶ Issue
//!                  │           ▲ writeback, journal        │
//!                  └───────────┴────────── completed ◀─────┘
//! ```
//!
//! Each file knows only those above it in this list:
//!
//! ```text
//!  params, cache, block, layout, laid, app   parts without knowledge of the guest
//!  file, thread, journal, flusher, disk      state of the guest's kernel
//!  vm                                        what a guest is made of
//!  pages, writeback, commit, delete, warm    what its kernel does
//!  threads, source, tasks                    system calls; the event loop; the same for
//!                                            vCPUs that somebody else models
//! ```
//!
//! What is modelled, and where it departs from Linux:
//! - reads: `generic_file_read` with on-demand read-ahead ([`readahead`](seekway_core::readahead)); a
//!   reader of a page in flight waits for it; no page is read twice while cached;
//! - the page cache is bounded by guest memory and reclaimed by Linux's two
//!   lists ([`cache`]); pages in flight or dirty are not scanned;
//! - write-back: dirty background limit, dirty limit with writers held back
//!   (woken when 1/32 below the limit, without rate estimation), a flusher every
//!   5 s for files dirty for 30 s, file by file, ascending, 4 MiB a turn;
//! - disks: each has a file system with a journal, a block layer and a flusher of its own; page
//!   cache and dirty limits are the guest's. An application's files are on one disk;
//! - journal: one running and one committing transaction, a commit every 5 s or
//!   by fsync, log blocks in sequence, then the commit block; the inode and
//!   bitmap blocks are written in place later, by the flusher;
//! - requests of one system call or flush are cut at `max_request_kib` and at
//!   extents, go out in the order of issue, and merge only while queued;
//! - removing a file waits for its pages under way, drops the others, clean or
//!   dirty, and changes its inode and the bitmaps of its blocks; there are no
//!   directories. The file that comes next under its number gets the same blocks;
//! - inodes are in memory from the start: opening a file reads nothing;
//! - O_DIRECT first writes back what is dirty in its range and waits for it; a
//!   write then drops the range from the page cache, before and once more after.
//!   Pages that are just being read stay.

pub mod app;
pub mod block;
pub mod cache;
mod disk;
pub mod layout;
pub mod params;
mod threads;
mod vm;
mod writeback;

pub use params::GuestParams;
pub use vm::GuestVm;

/// Sectors of 512 bytes in a page (and in a file system block): 4 KiB.
pub const PAGE_SECTORS: u64 = 8;
/// Most disks of a guest.
pub const DISKS_MAX: usize = 16;
/// Bytes in a page.
pub const PAGE_BYTES: u64 = 4096;
