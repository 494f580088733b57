//! Images as files of the host's ext3, with its journal on the same disk.
//!
//! Source: Linux 2.6.18, `fs/ext3` and `fs/jbd`, and mke2fs 1.39. Each image is written in full
//! before the run, so that nothing is allocated during it. This file computes the blocks'
//! positions; [`source`] has the file system's own requests.
//!
//! - Blocks of 4 KiB, in groups of 128 MiB. Each group begins with two bitmaps and an inode table:
//!   an inode of 128 bytes for each 8 KiB.
//! - A file's blocks lie in ascending order behind the last file's. An index block is allocated
//!   just before the first block that it leads to: the first 12 blocks need none, then each run of
//!   1024 has one, and each 1024 of these another.
//! - The log has one group, in the middle of the disk. The paper tells only that seeks to the
//!   host's journal are shorter than 10^9 sectors. mke2fs has put the log in the middle since
//!   1.41.1; before that it was in the first groups.
//! - The inode of an image is in the table of the group in which the image begins, as the paper
//!   observes (section III).
//!
//! Not modelled: backups of the superblock, which few groups have; directories; reads of index
//! blocks, which the host keeps in memory since it wrote them.

#[cfg(test)]
mod source_tests;

use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::stack::FileExtent;
use seekway_workload::{AppReport, Issue, Source, SourceError, VmDisk};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

const BLOCK_SECTORS: u64 = 8;
/// Blocks of a group, 128 MiB.
const GROUP_BLOCKS: u64 = 32_768;
/// Blocks at a group's start that no file has: the bitmaps and the inode table.
const GROUP_META_BLOCKS: u64 = 2 + TABLE_BLOCKS;
const TABLE_BLOCKS: u64 = 512;
/// Blocks of a file that are reached without an index block.
const DIRECT_BLOCKS: u64 = 12;
/// Blocks that an index block leads to.
const INDEX_ENTRIES: u64 = 1024;

/// A file system over a whole device, onto which images are written one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostFs {
    /// Blocks of the device.
    blocks: u64,
    /// Blocks of the log.
    log: Range<u64>,
    /// The next block that may be free.
    next: u64,
}

/// Where an image lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Image {
    /// The image's extents, in sectors of the device.
    pub extents: Vec<FileExtent>,
    /// From the image's first sector on the device to behind its last.
    pub span: Range<u64>,
}

impl HostFs {
    /// A file system on a device of `capacity`; the first file begins at sector `from` or behind.
    pub fn new(capacity: Sectors, from: u64) -> HostFs {
        let blocks = capacity.get() / BLOCK_SECTORS;
        let group = blocks / GROUP_BLOCKS / 2 * GROUP_BLOCKS;
        let log = group + GROUP_META_BLOCKS..(group + GROUP_BLOCKS).min(blocks);
        HostFs { blocks, log, next: from.div_ceil(BLOCK_SECTORS) }
    }

    /// Writes an image of `len` sectors behind the last one. `None`: it does not fit.
    pub fn write(&mut self, len: u64) -> Option<Image> {
        let blocks = len.div_ceil(BLOCK_SECTORS);
        let mut extents: Vec<FileExtent> = Vec::new();
        let (mut done, mut chunk) = (0, 0);
        while done < blocks {
            for _ in 0..index_blocks(chunk) {
                self.take(1)?;
            }
            let most = if chunk == 0 { DIRECT_BLOCKS } else { INDEX_ENTRIES };
            let end = blocks.min(done + most);
            while done < end {
                let run = self.take(end - done)?;
                let at = done * BLOCK_SECTORS;
                done += run.end - run.start;
                let len = len.min(done * BLOCK_SECTORS) - at;
                extents.push(FileExtent { at, place: run.start * BLOCK_SECTORS, len });
            }
            chunk += 1;
        }
        let (first, last) = (*extents.first()?, *extents.last()?);
        Some(Image { extents, span: first.place..last.place + last.len })
    }

    /// The next free blocks in one piece, at most `most`.
    fn take(&mut self, most: u64) -> Option<Range<u64>> {
        loop {
            let group = self.next / GROUP_BLOCKS * GROUP_BLOCKS;
            let data = group + GROUP_META_BLOCKS;
            if self.log.contains(&self.next) {
                self.next = self.log.end;
            } else if self.next < data {
                self.next = data;
            } else {
                // The log begins at a group's first data block.
                let end = self.blocks.min(group + GROUP_BLOCKS).min(self.next + most);
                let run = self.next..end;
                self.next = end;
                return (!run.is_empty()).then_some(run);
            }
        }
    }

    /// The sector of the block with the inode of VM `vm`'s image, which begins at sector `start`.
    fn inode_sector(&self, vm: usize, start: u64) -> u64 {
        let group = start / BLOCK_SECTORS / GROUP_BLOCKS * GROUP_BLOCKS;
        (group + 2 + vm as u64 % TABLE_BLOCKS) * BLOCK_SECTORS
    }
}

/// Index blocks that lie in front of chunk `chunk` of a file.
fn index_blocks(chunk: u64) -> u64 {
    match chunk {
        0 => 0,
        1 => 1,
        // The first block of the second level, and of the third.
        2 => 2,
        _ if chunk == 2 + INDEX_ENTRIES => 3,
        _ => 1 + u64::from((chunk - 2).is_multiple_of(INDEX_ENTRIES)),
    }
}

// The requests of the host's own ext3, and the VMs that wait for it.
//
// The process that serves a VM (Xen's tapdisk) reads and writes the image with O_DIRECT. A read
// changes the image's access time, a write its modification time, once a second
// (`touch_atime`, `file_update_time`). The change goes into the running transaction:
//
// - five seconds after its first change a transaction commits (`JBD_DEFAULT_MAX_COMMIT_AGE`), or
//   as soon as a flush of a changed image asks for it (`ext3_sync_file`);
// - a commit writes a descriptor and the changed blocks to the log, waits, writes the commit
//   block, waits (`journal_commit_transaction`);
// - a process that changes a block on its way to the log sleeps until it is there
//   (`do_get_write_access`, `BJ_Shadow`). The process has one thread: nothing of its VM reaches
//   the disk meanwhile;
// - a committed block is written in place by the flusher, at most every 30 s.
//
// The last is more than Linux does: a block that changes each second is nearly always part of the
// running transaction, and the flusher skips it. The host's writes belong to no VM. They have a
// disk of their own, the last, whose addresses are the device's. For CFQ 2.6.18 all are
// asynchronous.

const COMMIT_AGE: Nanos = Nanos::from_secs(5);
const WRITE_BACK_AGE: Nanos = Nanos::from_secs(30);
const SECOND_NS: u64 = 1_000_000_000;
/// Name of the disk that the host's own requests go to.
pub(crate) const NAME: &str = "host's ext3";

/// Sources whose images are files, and the file system's own requests.
pub(crate) struct FileBacked<'a> {
    sources: Vec<Behind<'a>>,
    /// The VMs' disks, then the host's.
    disks: Vec<VmDisk>,
    images: Vec<ImageFile>,
    journal: Journal,
    /// Requests under way by token.
    tokens: Vec<Option<Owner>>,
    free: Vec<u64>,
    /// Requests of a source in this call; empty between two calls.
    asked: Vec<Issue>,
}

/// A source, and whether its poll is due.
struct Behind<'a> {
    source: Box<dyn Source + 'a>,
    first_vm: u16,
    due: bool,
}

/// The file that a VM's disk is.
struct ImageFile {
    /// Sector of the block that has its inode.
    inode: u64,
    /// The second in which its times last changed.
    changed: Option<u64>,
    /// Does its process sleep?
    sleeps: bool,
    /// Requests of the VM meanwhile, by source.
    held: VecDeque<(u32, Issue)>,
    /// Time of its inode's last write in place.
    written: Instant,
}

/// Owner of a request.
#[derive(Clone, Copy)]
enum Owner {
    Guest { source: u32, token: u64 },
    Log,
    InPlace,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Commit {
    #[default]
    Idle,
    /// Descriptor and changed blocks are on their way to the log.
    Log,
    /// The commit block is.
    Record,
}

#[derive(Default)]
struct Journal {
    /// First sector of the log, and its blocks.
    start: u64,
    blocks: u64,
    /// The next block of the log.
    head: u64,
    /// VMs whose inodes changed in the running transaction.
    running: BTreeSet<u16>,
    /// When the running transaction began.
    began: Option<Instant>,
    /// Tells whether a process waits for it.
    wanted: bool,
    state: Commit,
    committing: BTreeSet<u16>,
    /// Writes that the commit waits for.
    pending: u32,
    /// Flushes that wait for the committing and for the running transaction.
    flushes: [Vec<(u32, Issue)>; 2],
}

impl<'a> FileBacked<'a> {
    /// `images` are the first sectors of the VMs' images, in the order of the sources.
    pub fn new(
        sources: Vec<Box<dyn Source + 'a>>,
        fs: &HostFs,
        capacity: Sectors,
        images: &[Lba],
    ) -> Self {
        let mut disks: Vec<VmDisk> = Vec::new();
        let behind = sources.into_iter().map(|source| {
            let first_vm = disks.len() as u16;
            disks.extend_from_slice(source.vms());
            Behind { source, first_vm, due: true }
        });
        let sources = behind.collect();
        disks.push(VmDisk { name: NAME.to_string(), capacity });
        let image = |(vm, start): (usize, &Lba)| ImageFile {
            inode: fs.inode_sector(vm, start.get()),
            changed: None,
            sleeps: false,
            held: VecDeque::new(),
            written: Instant::ZERO,
        };
        FileBacked {
            sources,
            disks,
            images: images.iter().enumerate().map(image).collect(),
            journal: Journal::new(fs),
            tokens: Vec::new(),
            free: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// A VM's process takes the next request.
    fn take(&mut self, now: Instant, source: u32, issue: Issue, out: &mut Vec<Issue>) {
        let vm = issue.vm;
        if self.images[usize::from(vm)].sleeps {
            self.images[usize::from(vm)].held.push_back((source, issue));
            return;
        }
        match issue.op {
            Op::Flush => {
                if let Some(flushes) = self.journal.flushes_of(vm) {
                    flushes.push((source, issue));
                    return;
                }
                self.pass(source, issue, out);
            }
            // The access time changes once the read is under way.
            Op::Read => {
                self.pass(source, issue, out);
                self.images[usize::from(vm)].sleeps = !self.change_times(now, vm);
            }
            _ if self.change_times(now, vm) => self.pass(source, issue, out),
            _ => {
                let image = &mut self.images[usize::from(vm)];
                image.sleeps = true;
                image.held.push_back((source, issue));
            }
        }
    }

    /// The image's times change, if they have not in this second. False: the block is on its way
    /// to the log.
    fn change_times(&mut self, now: Instant, vm: u16) -> bool {
        let image = &mut self.images[usize::from(vm)];
        let second = Some(now.as_nanos() / SECOND_NS);
        if image.changed == second {
            return true;
        }
        if self.journal.state == Commit::Log && self.journal.committing.contains(&vm) {
            return false;
        }
        image.changed = second;
        self.journal.running.insert(vm);
        self.journal.began.get_or_insert(now);
        true
    }

    fn pass(&mut self, source: u32, issue: Issue, out: &mut Vec<Issue>) {
        let token = self.token(Owner::Guest { source, token: issue.token });
        out.push(Issue { token, ..issue });
    }

    fn token(&mut self, owner: Owner) -> u64 {
        let token = self.free.pop().unwrap_or_else(|| {
            self.tokens.push(None);
            self.tokens.len() as u64 - 1
        });
        self.tokens[token as usize] = Some(owner);
        token
    }

    /// The host writes `blocks` blocks at `sector`.
    fn write(&mut self, owner: Owner, sector: u64, blocks: u64, out: &mut Vec<Issue>) {
        out.push(Issue {
            token: self.token(owner),
            vm: self.images.len() as u16,
            tag: None,
            op: Op::Write,
            sync: false,
            start: Lba::new(sector),
            len: Sectors::new(blocks * BLOCK_SECTORS),
        });
    }

    fn write_log(&mut self, mut blocks: u64, out: &mut Vec<Issue>) {
        while blocks > 0 {
            let (sector, run) = self.journal.advance(blocks);
            self.journal.pending += 1;
            self.write(Owner::Log, sector, run, out);
            blocks -= run;
        }
    }

    /// Takes the commit as far as it gets at this instant.
    fn commit(&mut self, now: Instant, out: &mut Vec<Issue>) {
        while self.journal.pending == 0 {
            match self.journal.state {
                Commit::Idle => {
                    if !self.journal.begins(now) {
                        return;
                    }
                    self.write_log(1 + self.journal.committing.len() as u64, out);
                }
                Commit::Log => {
                    self.journal.state = Commit::Record;
                    self.write_log(1, out);
                    self.wake(now, out);
                }
                Commit::Record => {
                    self.journal.state = Commit::Idle;
                    for vm in std::mem::take(&mut self.journal.committing) {
                        self.write_back(now, vm, out);
                    }
                    for (source, issue) in std::mem::take(&mut self.journal.flushes[0]) {
                        self.pass(source, issue, out);
                    }
                }
            }
        }
    }

    /// The flusher writes the inode of `vm`, if it is long ago that it did.
    fn write_back(&mut self, now: Instant, vm: u16, out: &mut Vec<Issue>) {
        let image = &mut self.images[usize::from(vm)];
        if now.since(image.written) >= WRITE_BACK_AGE {
            image.written = now;
            let inode = image.inode;
            self.write(Owner::InPlace, inode, 1, out);
        }
    }

    /// The processes that slept go on.
    fn wake(&mut self, now: Instant, out: &mut Vec<Issue>) {
        for vm in 0..self.images.len() {
            let image = &mut self.images[vm];
            if std::mem::take(&mut image.sleeps) {
                let held = std::mem::take(&mut image.held);
                self.change_times(now, vm as u16);
                for (source, issue) in held {
                    self.take(now, source, issue, out);
                }
            }
        }
    }
}

impl Journal {
    fn new(fs: &HostFs) -> Journal {
        Journal {
            start: fs.log.start * BLOCK_SECTORS,
            blocks: fs.log.end - fs.log.start,
            ..Journal::default()
        }
    }

    /// When the running transaction commits, unless one commits already.
    fn due(&self) -> Option<Instant> {
        self.began.filter(|_| self.state == Commit::Idle).map(|began| began + COMMIT_AGE)
    }

    /// The running transaction begins to commit, if it is due or wanted.
    fn begins(&mut self, now: Instant) -> bool {
        let begins = self.due().is_some_and(|due| due <= now || self.wanted);
        if begins {
            self.state = Commit::Log;
            self.committing = std::mem::take(&mut self.running);
            (self.began, self.wanted) = (None, false);
            self.flushes.swap(0, 1);
        }
        begins
    }

    /// Where a flush of `vm` waits; `None` if its inode is on the disk.
    fn flushes_of(&mut self, vm: u16) -> Option<&mut Vec<(u32, Issue)>> {
        let [committing, running] = &mut self.flushes;
        if self.running.contains(&vm) {
            self.wanted = true;
            return Some(running);
        }
        self.committing.contains(&vm).then_some(committing)
    }

    /// The next blocks of the log, at most `most` and as far as its end: sector and number.
    fn advance(&mut self, most: u64) -> (u64, u64) {
        let run = most.min(self.blocks - self.head);
        let sector = self.start + self.head * BLOCK_SECTORS;
        self.head = (self.head + run) % self.blocks;
        (sector, run)
    }
}

impl Source for FileBacked<'_> {
    fn vms(&self) -> &[VmDisk] {
        &self.disks
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        self.commit(now, out);
        for n in 0..self.sources.len() {
            let Behind { source, first_vm, due } = &mut self.sources[n];
            let wakes = source.next_wake().is_some_and(|at| at <= now);
            if !std::mem::take(due) && !wakes {
                continue;
            }
            let (first_vm, mut asked) = (*first_vm, std::mem::take(&mut self.asked));
            let polled = source.poll(now, &mut asked);
            for issue in asked.drain(..) {
                self.take(now, n as u32, Issue { vm: first_vm + issue.vm, ..issue }, out);
            }
            self.asked = asked;
            polled?;
        }
        self.commit(now, out);
        Ok(())
    }

    fn completed(&mut self, now: Instant, token: u64) {
        self.free.push(token);
        match self.tokens[token as usize].take().expect("a request under way") {
            Owner::Guest { source, token } => {
                let behind = &mut self.sources[source as usize];
                behind.source.completed(now, token);
                behind.due = true;
            }
            Owner::Log => self.journal.pending -= 1,
            Owner::InPlace => {}
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let guests = self.sources.iter().filter_map(|behind| behind.source.next_wake()).min();
        // A run ends with its guests.
        let commit = self.journal.due().filter(|_| !self.finished());
        [guests, commit].into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        let waits = self.images.iter().any(|image| !image.held.is_empty());
        let flushes = self.journal.flushes.iter().any(|flushes| !flushes.is_empty());
        !waits && !flushes && self.sources.iter().all(|behind| behind.source.finished())
    }

    fn lacks(&self, vm: usize) -> Vec<Extent> {
        let behind = self.sources.iter().rfind(|behind| usize::from(behind.first_vm) <= vm);
        let Some(behind) = behind.filter(|_| vm < self.images.len()) else { return Vec::new() };
        behind.source.lacks(vm - usize::from(behind.first_vm))
    }

    fn apps(&self) -> Vec<AppReport> {
        let of = |behind: &Behind<'_>| {
            let first_vm = behind.first_vm;
            let apps = behind.source.apps().into_iter();
            apps.map(move |app| AppReport { vm: app.vm + first_vm, ..app })
        };
        self.sources.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 2 << 20;

    fn places(image: &Image) -> impl Iterator<Item = (u64, u64)> {
        image.extents.iter().map(|e| (e.place, e.place + e.len))
    }

    #[test]
    fn an_image_is_cut_by_groups_and_index_blocks() {
        let mut fs = HostFs::new(Sectors::new(1_953_525_168), 1_283_200_000);
        let image = fs.write(12 * GIB).unwrap();
        // 3072 index blocks of the first level, four above them, and some 98 borders of groups.
        let beyond = (image.span.end - image.span.start - 12 * GIB) / BLOCK_SECTORS;
        let borders = (beyond - 3076) / GROUP_META_BLOCKS;
        assert_eq!(beyond, 3076 + borders * GROUP_META_BLOCKS);
        assert!((97..100).contains(&borders), "{borders}");
        // The first twelve blocks, then an index block.
        let [a, b] = [image.extents[0], image.extents[1]];
        assert_eq!((a.len, b.place - a.place), (12 * 8, 13 * 8));
        let inode = fs.inode_sector(0, image.span.start);
        assert!(image.span.start - inode < 128 << 11, "not in its group");
    }

    #[test]
    fn index_blocks_of_all_levels() {
        let chunks = [0, 1, 2, 3, 1025, 1026, 1027, 2050];
        assert_eq!(chunks.map(index_blocks), [0, 1, 2, 1, 1, 3, 1, 2]);
    }

    proptest! {
        /// Images cover each of their sectors once, share none, and leave the log and the groups'
        /// metadata alone; equal files have equal positions.
        #[test]
        fn images_are_disjoint_and_inside(
            sizes in prop::collection::vec(1u64..3 * GIB, 1..6),
            from in 0u64..40 * GIB,
        ) {
            let capacity = Sectors::new(80 * GIB + 5);
            let write = || {
                let mut fs = HostFs::new(capacity, from);
                let images: Option<Vec<_>> = sizes.iter().map(|&len| fs.write(len)).collect();
                images.map(|images| (fs, images))
            };
            let (fs, images) = write().expect("they fit");
            prop_assert_eq!(&write().unwrap().1, &images);
            let mut end = from;
            for (image, &size) in images.iter().zip(&sizes) {
                let mut at = 0;
                for extent in &image.extents {
                    prop_assert_eq!(extent.at, at);
                    at += extent.len;
                }
                prop_assert_eq!(at, size);
                for (start, behind) in places(image) {
                    prop_assert!(start >= end && behind <= capacity.get());
                    end = behind;
                    let group = start / BLOCK_SECTORS % GROUP_BLOCKS;
                    prop_assert!(group >= GROUP_META_BLOCKS);
                    let last = (behind - 1) / BLOCK_SECTORS;
                    prop_assert_eq!(last / GROUP_BLOCKS, start / BLOCK_SECTORS / GROUP_BLOCKS);
                    prop_assert!(!fs.log.contains(&(start / BLOCK_SECTORS)));
                    prop_assert!(!fs.log.contains(&last));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(HostFs::new(Sectors::new(GIB), 0).write(GIB), None);
        assert_eq!(HostFs::new(Sectors::new(8), 0).write(1), None);
    }
}
