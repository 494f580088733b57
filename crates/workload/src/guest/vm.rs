//! Guest: its applications, open files, page cache, disks, vCPUs and timers.

use crate::generators::rng::{Rng, split};
use crate::guest::app::{App, AppSpec};
use crate::guest::cache::{Cache, NONE};
use crate::guest::disk::{Formatted, GuestDisk};
use crate::guest::file::File;
use crate::guest::laid::LaidFiles;
use crate::guest::layout::{Run, pages_of};
use crate::guest::params::GuestParams;
use crate::guest::thread::Thread;
use crate::guest::{DISKS_MAX, PAGE_BYTES};
use crate::tasks::Need;
use crate::{SourceError, VmDisk};
use seekway_core::readahead::ReadAhead;
use seekway_core::request::ProcessTag;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// The first tag that a process gets (1–7 mean something else, see algorithms.md section 6).
const TAG_FIRST: u16 = 8;
/// The tags of one application start this far from the next one's.
const TAG_STEP: u16 = 64;

#[derive(Debug)]
pub(super) struct Handle {
    pub file: u32,
    pub direct: bool,
    pub sync: bool,
    pub tag: Option<ProcessTag>,
    pub read_ahead: ReadAhead,
}

/// An application while it runs.
pub(super) struct Running {
    pub app: Box<dyn App>,
    pub name: String,
    /// The disk that its files are on.
    pub disk: usize,
    pub threads_left: u32,
    pub finished: Option<Instant>,
    pub bytes: u64,
    pub parked: Vec<u32>,
    pub first_handle: u32,
    first_file: u32,
    brought: Option<Brought>,
}

/// Owner of the model of vCPUs: the guest itself, or somebody else.
pub(super) enum Cpus {
    /// Nobody ever takes them away: when each is free.
    Own(Vec<Instant>),
    /// Somebody else models them, and is told what the thread that runs needs.
    Modelled { need: Option<Need> },
}

/// Files that an application brought along.
struct Brought {
    files: Arc<LaidFiles>,
    /// Where their area lies on the image.
    area: Vec<Run>,
    /// The guest's number of each file, [`NONE`] until it is opened.
    numbers: Vec<u32>,
}

/// Number of the random stream of the jitter, among those of a guest's seed.
const JITTER_STREAM: u64 = u64::MAX - 1;

/// One guest VM with its applications.
pub struct GuestVm {
    pub(super) vm_disks: Vec<VmDisk>,
    pub(super) disks: Vec<GuestDisk>,
    pub(super) params: GuestParams,
    pub(super) apps: Vec<Running>,
    pub(super) threads: Vec<Thread>,
    pub(super) threads_left: u32,
    pub(super) handles: Vec<Handle>,
    /// The inode areas of the disks, then the applications' files.
    pub(super) files: Vec<File>,
    pub(super) cache: Cache,
    /// The latest time that it was told of.
    pub(super) now: Instant,
    /// Threads that can go on now.
    pub(super) ready: VecDeque<u32>,
    pub(super) memory_waiters: Vec<u32>,
    pub(super) throttled: Vec<u32>,
    pub(super) timers: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    timer_number: u64,
    pub(super) cpus: Cpus,
    /// Completions on their way through the virtualisation path.
    pub(super) arriving: VecDeque<(Instant, u64)>,
    /// Of the jitter on that path.
    pub(super) jitter: Rng,
}

impl GuestVm {
    /// A guest called `name` with one disk that runs `apps`. Placement on the image follows
    /// from `seed`. Fails when the files do not fit on the image.
    pub fn new(
        name: &str,
        params: GuestParams,
        apps: Vec<Box<dyn App>>,
        seed: u64,
    ) -> Result<GuestVm, SourceError> {
        let capacity = Sectors::new(params.image_sectors);
        let disks = vec![VmDisk { name: name.into(), capacity }];
        let apps = apps.into_iter().map(|app| (0, app)).collect();
        GuestVm::with_disks(disks, params, apps, seed)
    }

    /// A guest with these disks, at least one and at most [`DISKS_MAX`]: each application comes
    /// with the number of the disk that its files are on. The disks' sizes are theirs, and not
    /// the parameters'.
    ///
    /// # Errors
    /// As [`GuestVm::new`].
    pub fn with_disks(
        vm_disks: Vec<VmDisk>,
        params: GuestParams,
        mut apps: Vec<(usize, Box<dyn App>)>,
        seed: u64,
    ) -> Result<GuestVm, SourceError> {
        assert!((1..=DISKS_MAX).contains(&vm_disks.len()), "a guest has 1 to {DISKS_MAX} disks");
        let brought: Vec<_> = apps.iter_mut().map(|(_, app)| app.laid_files()).collect();
        let (mut disks, mut files, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for (number, spec) in vm_disks.iter().enumerate() {
            let here = apps.iter().zip(&brought).filter(|((disk, _), _)| *disk == number);
            let sizes: Vec<Vec<u64>> = here.map(|((_, app), b)| sizes(&**app, b)).collect();
            let formatted = GuestDisk::format(spec, number, &sizes, &params, seed)?;
            let Formatted { disk, inodes, files: of_apps } = formatted;
            disks.push(disk);
            files.push(inodes);
            runs.push(of_apps.into_iter());
        }
        let mut vm = GuestVm {
            vm_disks,
            disks,
            apps: Vec::new(),
            threads: Vec::new(),
            threads_left: 0,
            handles: Vec::new(),
            files,
            cache: Cache::new(params.cache_pages),
            ready: VecDeque::new(),
            memory_waiters: Vec::new(),
            throttled: Vec::new(),
            timers: BinaryHeap::new(),
            timer_number: 0,
            cpus: Cpus::Own(vec![Instant::ZERO; params.vcpus as usize]),
            now: Instant::ZERO,
            arriving: VecDeque::new(),
            jitter: Rng::new(split(seed, JITTER_STREAM)),
            params,
        };
        for ((disk, app), brought) in apps.into_iter().zip(brought) {
            let runs = runs[disk].next().expect("the files of each application were laid out");
            vm.add_app(disk, app, runs, brought);
        }
        if vm.params.warm {
            vm.warm(seed);
        }
        Ok(vm)
    }

    /// The block of its disk's inode area with the inode of an application's file:
    /// 16 inodes of 256 bytes to a block; each directory in a group of its own.
    fn inode_block(&self, disk: usize, app: u32, file: u32) -> u32 {
        (app * 64 + file / 16) % (self.files[disk].size_pages / 2)
    }

    fn add_app(
        &mut self,
        disk: usize,
        app: Box<dyn App>,
        mut runs: Vec<Vec<Run>>,
        brought: Option<Arc<LaidFiles>>,
    ) {
        let number = self.apps.len() as u32;
        let first_file = self.files.len() as u32;
        let brought = brought.map(|files| {
            let numbers = vec![NONE; files.count() as usize];
            Brought { files, area: runs.pop().unwrap_or_default(), numbers }
        });
        let AppSpec { name, threads, files, handles } = app.spec();
        for (at, (spec, runs)) in (0..).zip(files.iter().zip(runs)) {
            let pages = pages_of(spec.present) as u32;
            let inode_block = self.inode_block(disk, number, at);
            self.files.push(File::new(disk, runs, pages, inode_block));
        }
        let first_handle = self.handles.len() as u32;
        for handle in handles {
            let process = TAG_FIRST + number as u16 * TAG_STEP + handle.process % TAG_STEP;
            let tag = if self.params.tags { ProcessTag::new(process.min(1023)) } else { None };
            self.handles.push(Handle {
                file: if brought.is_some() { NONE } else { first_file + handle.file },
                direct: handle.direct,
                sync: handle.sync,
                tag,
                read_ahead: ReadAhead::new(),
            });
        }
        for local in 0..*threads {
            self.ready.push_back(self.threads.len() as u32);
            self.threads.push(Thread::new(number, local));
        }
        self.threads_left += threads;
        let same = self.apps.iter().filter(|a| a.app.spec().name == *name).count();
        let name = match same {
            0 => name.clone(),
            n => format!("{name}.{}", n + 1),
        };
        self.apps.push(Running {
            name,
            disk,
            threads_left: *threads,
            finished: None,
            bytes: 0,
            parked: Vec::new(),
            first_handle,
            first_file,
            brought,
            app,
        });
    }

    /// The guest's number of an application's file.
    pub(super) fn file_number(&mut self, app: u32, file: u32) -> u32 {
        let running = &self.apps[app as usize];
        let Some(brought) = &running.brought else { return running.first_file + file };
        if brought.numbers[file as usize] != NONE {
            return brought.numbers[file as usize];
        }
        let (disk, runs) = (running.disk, brought.files.runs(file, &brought.area));
        let inode_block = self.inode_block(disk, app, file);
        let new = File::new(disk, runs, brought.files.pages(file), inode_block);
        let number = self.files.len() as u32;
        self.files.push(new);
        if let Some(brought) = &mut self.apps[app as usize].brought {
            brought.numbers[file as usize] = number;
        }
        number
    }

    /// Lead `handle` to a file of its application `app`.
    pub(super) fn open(&mut self, app: u32, handle: u32, file: u32) {
        let file = self.file_number(app, file);
        let h = &mut self.handles[handle as usize];
        h.file = file;
        h.read_ahead = ReadAhead::new();
    }

    /// Wake `thread` at `at`.
    pub(super) fn wake_at(&mut self, at: Instant, thread: u32) {
        if let Cpus::Modelled { need } = &mut self.cpus {
            *need = Some(Need::Wait { until: Some(at), io: false });
            return;
        }
        self.timer_number += 1;
        self.timers.push(Reverse((at, self.timer_number, thread)));
    }

    /// `thread` computes for `cost`, then goes on: on the vCPU that is free first if none is
    /// ever away.
    pub(super) fn compute(&mut self, now: Instant, thread: u32, cost: Nanos) {
        match &mut self.cpus {
            Cpus::Own(free) => {
                let free = free.iter_mut().min().expect("a guest has a vCPU");
                *free = (*free).max(now) + cost;
                let at = *free;
                self.wake_at(at, thread);
            }
            Cpus::Modelled { need } => *need = Some(Need::Compute(cost)),
        }
    }

    /// `thread`, which runs, stops for something that is not the disk.
    pub(super) fn stop_for(&mut self, what: Need) {
        if let Cpus::Modelled { need } = &mut self.cpus {
            *need = Some(what);
        }
    }

    /// Pages that the page cache holds, and the most that it may.
    pub fn cache_pages(&self) -> (u32, u32) {
        (self.cache.used(), self.cache.limit())
    }
    /// Where `page` of file `file` of application `app` lies: its first sector.
    /// Panics when there is no such page, or when the application brought its
    /// files along.
    pub fn sector_of(&self, app: usize, file: u32, page: u32) -> Lba {
        let file = self.apps[app].first_file + file;
        Lba::new(self.files[file as usize].locate(page).0)
    }
    /// Pages that are dirty.
    pub fn dirty_pages(&self) -> u32 {
        self.disks.iter().map(|disk| disk.flusher.dirty).sum()
    }
    /// Pages that are dirty or under write-back.
    pub(super) fn unwritten_pages(&self) -> u32 {
        self.disks.iter().map(|disk| disk.flusher.unwritten()).sum()
    }
    /// The disk that `file` is on.
    pub(super) fn disk_of(&mut self, file: u32) -> &mut GuestDisk {
        &mut self.disks[self.files[file as usize].disk]
    }
}

/// The sizes in bytes of what an application needs on its disk. The area of files brought along
/// is laid out like one file.
fn sizes(app: &dyn App, brought: &Option<Arc<LaidFiles>>) -> Vec<u64> {
    match brought {
        Some(files) => vec![u64::from(files.area_pages()) * PAGE_BYTES],
        None => app.spec().files.iter().map(|file| file.bytes).collect(),
    }
}
