//! Which blocks the cache has, and in which frames; whom it takes them from
//! when it needs room.
//!
//! # Replacement
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for
//! cache eviction", SOSP 2023, section 4), for each VM by itself. What is read for
//! the first time enters a *small* queue, a tenth of what the VM has; at its end
//! it goes, unless it was used more than once again: then it moves to the
//! *main* queue, where each use that was counted (3 at most) gives it another
//! round. What the small queue let go is remembered by a fingerprint
//! ([ghosts](ghosts)), and enters the main queue when it is read again. So a scan
//! passes through a tenth of the cache.
//!
//! Where we differ:
//! - Uses count once in a granule of the VM's reads (a 64th of the cache, at most
//!   256 blocks): a guest that reads a block by its eight sectors uses it once
//!   (the correlated references of 2Q: Johnson and Shasha, VLDB 1994).
//! - A prefetched block waits in a queue of its own, *ahead*, until a guest
//!   reads it: that is its first reading, and it enters the small queue. So what
//!   a stream has read goes before what it will read.
//! - A prefetched block that was not read while its VM read as many blocks as
//!   it has frames is what goes first: its stream has moved on.
//! - A prefetch never takes the room of a block that waits ahead in its VM, and
//!   at most half of a VM's frames may hold or await such blocks: what is beyond
//!   is refused. Streams whose leads do not fit would else throw each other's
//!   blocks out before they are read, and all the reading would be for nothing.
//! - One eviction passes over at most [`STEPS_MAX`] frames.
//!
//! # Shares
//!
//! A VM's share of the frames is its weight's share of all weights. Free frames
//! go to whoever wants one. When there are none, one is taken of the VM that is
//! most above its share; when none is, of the VM that wants it. A VM
//! within its share loses no block to another. Frames being read into cannot be
//! taken; a VM may have as many of them as its share, and more only of what is free.

mod evict;
mod frames;
mod ghosts;
mod index;
mod vms;

use crate::request::VmId;
use frames::{Info, Place, Queue};
use ghosts::Clock;
use index::{Home, Index, Slot, group};
use std::num::NonZeroU32;
use vms::Vm;

/// Sectors of a block, the unit in which the cache keeps data: 4 KiB.
pub const BLOCK_SECTORS: u64 = 8;
/// The same in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Frames that one eviction passes over because they were used: bounds its
/// time. The next goes, used or not.
const STEPS_MAX: u32 = 128;
/// Places of entries that are kept allocated from call to call.
const SLOTS_KEPT: usize = 4096;
/// The small queue is this part of what a VM has read (the paper's tenth).
const SMALL_PART: u64 = 10;
/// Uses in the small queue with which a block moves to main: more than one.
const USES_TO_MAIN: u8 = 2;
/// Most blocks in a granule.
const GRANULE_MAX: u32 = 256;

/// A place for one block in the engine's memory: frame `n` lies at byte
/// `n * BLOCK_BYTES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame(pub u32);

/// What the cache has of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block {
    /// Nothing.
    Absent,
    /// A read into this frame is under way.
    Filling(Frame),
    /// Its data.
    Valid(Frame),
}

/// Who has a block fetched: an index into the cache's accounts.
pub type Account = u16;

/// A block that the cache no longer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// Whose.
    pub vm: VmId,
    /// Which block of the VM's disk.
    pub block: u64,
    /// Who had it fetched.
    pub account: Account,
    /// It was prefetched (and not read for a guest that waited).
    pub prefetched: bool,
    /// A guest has read it since.
    pub used: bool,
}

/// The home of a group of blocks.
#[derive(Clone, Copy)]
struct Near {
    vm: VmId,
    group: u64,
    home: Home,
}

/// Places in [`Blocks::near`].
const COMING: usize = 0;
const GOING: usize = 1;
const NEXT: usize = 2;

/// A look-up costs as much as so many steps along a queue.
const LOOKUP_STEPS: u64 = 8;

/// The blocks of all VMs of a device. Bounded: it never names more than
/// `frames` frames.
pub struct Blocks {
    index: Index,
    ghosts: Clock,
    frames: Vec<Info>,
    free: Queue,
    /// The first frame that was never used: they are used in order, so that
    /// neighbouring blocks are neighbours in memory.
    fresh: u32,
    vms: Vec<Vm>,
    /// Bits of the VM's clock that make a granule.
    granule_bits: u32,
    /// The VM most above its share, and for how many evictions it stays that. None
    /// and 1: none is, until one gets a free frame.
    donor: (Option<usize>, u32),
    /// The homes of the blocks that were looked for last, that went last, and that
    /// may go next: a neighbour may be next.
    near: [Near; 3],
    /// Reused from call to call.
    slots: Vec<Slot>,
}

impl Blocks {
    /// An empty cache of so many frames. `seed` makes hashes that guests cannot
    /// foresee; the same seed makes the same decisions.
    pub fn new(frames: u32, seed: u64) -> Self {
        let index = Index::new(frames, seed);
        let vm = VmId::new(0);
        Blocks {
            ghosts: Clock::new(frames),
            frames: vec![Info::FREE; frames as usize],
            free: Queue::EMPTY,
            fresh: 0,
            vms: Vec::new(),
            granule_bits: (frames / 64).clamp(1, GRANULE_MAX).ilog2(),
            donor: (None, 0),
            near: [Near { vm, group: 0, home: index.home(vm, 0) }; 3],
            slots: Vec::new(),
            index,
        }
    }

    /// A VM joins, or changes its weight: while others want room, its share of
    /// the frames is its weight's share of the weights of all.
    pub fn attach(&mut self, vm: VmId, weight: NonZeroU32) {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, || Vm::NEW);
        }
        self.vms[vm.index()].weight = u64::from(weight.get());
        self.divide();
    }

    /// A VM leaves: its blocks are forgotten.
    pub fn detach(&mut self, vm: VmId, gone: &mut Vec<Gone>) {
        self.forget(vm, 0, u64::MAX, gone);
        if let Some(known) = self.vms.get_mut(vm.index()) {
            known.weight = 0;
            self.divide();
        }
    }

    fn divide(&mut self) {
        let all: u64 = self.vms.iter().map(|vm| vm.weight).sum();
        for vm in &mut self.vms {
            let share = self.frames.len() as u128 * u128::from(vm.weight) / u128::from(all.max(1));
            vm.share = share as u64;
        }
        self.donor = (None, 0);
    }

    /// Bytes of memory that the books take, whatever is cached.
    pub fn bytes(&self) -> u64 {
        let frames = (self.frames.len() * size_of::<Info>()) as u64;
        self.index.bytes() + frames
    }

    /// What there is of a block. Changes nothing.
    pub fn lookup(&self, vm: VmId, block: u64) -> Block {
        self.lookup_at(self.index.home(vm, group(block)), vm, block)
    }

    /// What there is of blocks one after another. Changes nothing.
    pub fn lookup_all(&self, vm: VmId, first: u64, end: u64) -> impl Iterator<Item = Block> + '_ {
        let mut near = self.near[COMING];
        (first..end).map(move |block| {
            if (near.vm, near.group) != (vm, group(block)) {
                near = self.near(vm, group(block));
            }
            self.lookup_at(near.home, vm, block)
        })
    }

    /// As [`Blocks::lookup`]; quicker for one block after another.
    pub fn find(&mut self, vm: VmId, block: u64) -> Block {
        let home = self.home(COMING, vm, block);
        self.lookup_at(home, vm, block)
    }

    fn near(&self, vm: VmId, group: u64) -> Near {
        Near { vm, group, home: self.index.home(vm, group) }
    }

    #[inline]
    fn home(&mut self, which: usize, vm: VmId, block: u64) -> Home {
        let (near, group) = (&self.near[which], group(block));
        if (near.vm, near.group) != (vm, group) {
            let next = &self.near[NEXT];
            self.near[which] = match (next.vm, next.group) == (vm, group) {
                true => *next,
                false => self.near(vm, group),
            };
        }
        self.near[which].home
    }

    #[inline]
    fn lookup_at(&self, home: Home, vm: VmId, block: u64) -> Block {
        match self.index.find(home, vm, block).map(|slot| self.index.entry(slot)) {
            None => Block::Absent,
            Some(entry) if entry.is_filling() => Block::Filling(Frame(entry.frame)),
            Some(entry) => Block::Valid(Frame(entry.frame)),
        }
    }

    /// A guest reads blocks one after another. False, and nothing happens, unless
    /// all are valid. Those that were prefetched, and are used for the first
    /// time, are appended to `first_uses`, with who had them fetched.
    pub fn hit(
        &mut self,
        vm: VmId,
        first: u64,
        end: u64,
        first_uses: &mut Vec<(u64, Account)>,
    ) -> bool {
        let mut slots = std::mem::take(&mut self.slots);
        slots.clear();
        slots.shrink_to(SLOTS_KEPT);
        let mut is_hit = true;
        if end - first > 1 {
            let home = self.home(COMING, vm, first);
            self.index.warm(home);
        }
        for block in first..end {
            let home = self.home(COMING, vm, block);
            match self.index.find(home, vm, block) {
                Some(slot) if !self.index.entry(slot).is_filling() => slots.push(slot),
                _ => {
                    is_hit = false;
                    break;
                }
            }
        }
        if is_hit {
            for (block, &slot) in (first..end).zip(&slots) {
                let account = self.touch_at(slot, vm);
                first_uses.extend(account.map(|account| (block, account)));
            }
        }
        self.slots = slots;
        is_hit
    }

    /// A guest reads the block in this frame, or waits for it. The account that
    /// had it prefetched when this is its first use, else `None`.
    pub fn touch(&mut self, frame: Frame) -> Option<Account> {
        let Info { vm, block, .. } = self.frames[frame.0 as usize];
        let (_, slot) = self.slot(COMING, vm, block);
        self.touch_at(slot, vm)
    }

    /// Where a block that is there has its entry, and its home.
    #[inline]
    fn slot(&mut self, which: usize, vm: VmId, block: u64) -> (Home, Slot) {
        let home = self.home(which, vm, block);
        (home, self.index.find(home, vm, block).expect("what a frame holds is in the index"))
    }

    fn touch_at(&mut self, slot: Slot, vm: VmId) -> Option<Account> {
        let known = &mut self.vms[vm.index()];
        known.clock += 1;
        let granule = (known.clock >> self.granule_bits) as u32;
        let entry = self.index.entry_mut(slot);
        if !entry.is_unused() {
            entry.count(granule);
            return None;
        }
        entry.first_use(granule);
        known.unused -= 1;
        let frame = entry.frame;
        let info = &mut self.frames[frame as usize];
        info.used = true;
        let Info { block, account, place, .. } = *info;
        let home = self.home(COMING, vm, block);
        self.frames[frame as usize].again = self.is_back(home, vm, block);
        if place == Place::Ahead {
            self.move_to(frame, self.frames[frame as usize].entrance());
        }
        Some(account)
    }

    /// Was the block let go not long ago: would it still be there if the small
    /// queue were as large as the main one?
    fn is_back(&mut self, home: Home, vm: VmId, block: u64) -> bool {
        let vm = &self.vms[vm.index()];
        let ghost = *self.index.ghost(home, block);
        ghost.is(self.ghosts, home.fingerprint(), vm.let_go, vm.held)
    }

    /// From the queue in which it stands to the new end of another, or the same.
    #[inline]
    fn move_to(&mut self, frame: u32, to: Place) {
        let info = &mut self.frames[frame as usize];
        let (vm, from) = (&mut self.vms[info.vm.index()], info.place);
        info.place = to;
        vm.queues[from as usize].remove(&mut self.frames, frame, frame, 1);
        vm.queues[to as usize].push(&mut self.frames, frame, frame, 1);
    }

    /// A frame for a block that is absent, to be read into; room is made for it
    /// if need be, and what had to go is appended to `gone`. `None` when there is
    /// nothing that may go: every frame of the VM's is being read into, or a
    /// prefetch would take the place of another.
    pub fn reserve(
        &mut self,
        vm: VmId,
        block: u64,
        account: Account,
        prefetched: bool,
        gone: &mut Vec<Gone>,
    ) -> Option<Frame> {
        debug_assert!(self.lookup(vm, block) == Block::Absent, "the block is there");
        let frame = self.room(vm.index(), prefetched, gone)?;
        let home = self.home(COMING, vm, block);
        let Some(entry) = self.index.insert(home, vm, block, frame) else {
            self.set_free(frame);
            return None;
        };
        let known = &mut self.vms[vm.index()];
        match prefetched {
            true => known.unused += 1,
            false => known.clock += 1,
        }
        entry.begin((known.clock >> self.granule_bits) as u32, prefetched);
        let again = !prefetched && self.is_back(home, vm, block);
        let (place, used) = (Place::Filling, !prefetched);
        self.frames[frame as usize] =
            Info { block, vm, account, place, prefetched, used, again, ..Info::FREE };
        let known = &mut self.vms[vm.index()];
        known.queues[place as usize].push(&mut self.frames, frame, frame, 1);
        known.held += 1;
        Some(Frame(frame))
    }

    #[inline]
    fn set_free(&mut self, frame: u32) {
        self.frames[frame as usize].place = Place::Free;
        self.free.push(&mut self.frames, frame, frame, 1);
    }

    /// The read into these frames has ended. Their blocks are valid now, unless
    /// the read failed or they were forgotten meanwhile.
    pub fn filled(&mut self, frames: &[Frame], ok: bool, gone: &mut Vec<Gone>) {
        let mut left = frames;
        while let &[Frame(frame), ref rest @ ..] = left {
            let Info { vm, place, .. } = self.frames[frame as usize];
            left = match place {
                Place::Filling if ok => &left[self.filled_run(frame, left)..],
                Place::Filling => {
                    self.release(frame, gone);
                    self.set_free(frame);
                    rest
                }
                Place::Orphan => {
                    let vm = &mut self.vms[vm.index()];
                    (vm.orphans, vm.held) = (vm.orphans - 1, vm.held - 1);
                    self.set_free(frame);
                    rest
                }
                place => panic!("frame {frame} is {place:?}, not being read into"),
            };
        }
    }

    /// Of frames that have been read into, the first and those that stand behind
    /// it in the same queue and enter the same go there together. How many.
    fn filled_run(&mut self, first: u32, frames: &[Frame]) -> usize {
        let vm = self.frames[first as usize].vm;
        let to = self.frames[first as usize].entrance();
        let granule = (self.vms[vm.index()].clock >> self.granule_bits) as u32;
        let (mut last, mut len) = (first, 0);
        for &Frame(frame) in frames {
            let info = &mut self.frames[frame as usize];
            let is_behind = info.place == Place::Filling && info.vm == vm && info.older == last;
            if len > 0 && !(is_behind && info.entrance() == to) {
                break;
            }
            (info.place, info.stamp) = (to, granule);
            let block = info.block;
            let (_, slot) = self.slot(COMING, vm, block);
            self.index.entry_mut(slot).filled(granule);
            (last, len) = (frame, len + 1);
        }
        let queues = &mut self.vms[vm.index()].queues;
        queues[Place::Filling as usize].remove(&mut self.frames, first, last, len);
        queues[to as usize].push(&mut self.frames, first, last, len);
        len as usize
    }

    /// Forget a VM's blocks from `first` to before `end`. Frames being filled stay
    /// their reader's until [`Blocks::filled`], and nobody finds them. Costs no
    /// more than the VM has frames, however long the range is.
    pub fn forget(&mut self, vm: VmId, first: u64, end: u64, gone: &mut Vec<Gone>) {
        let resident = self.resident(vm);
        if resident == 0 {
            return;
        }
        if end.saturating_sub(first) <= resident / LOOKUP_STEPS {
            for block in first..end {
                if let Block::Valid(frame) | Block::Filling(frame) = self.find(vm, block) {
                    self.forget_frame(frame.0, gone);
                }
            }
            return;
        }
        for queue in 0..self.vms[vm.index()].queues.len() {
            let mut next = self.vms[vm.index()].queues[queue].after(&self.frames, None);
            while let Some(frame) = next {
                next = self.vms[vm.index()].queues[queue].after(&self.frames, Some(frame));
                if (first..end).contains(&self.frames[frame as usize].block) {
                    self.forget_frame(frame, gone);
                }
            }
        }
    }

    fn forget_frame(&mut self, frame: u32, gone: &mut Vec<Gone>) {
        if self.frames[frame as usize].place != Place::Filling {
            self.release(frame, gone);
            self.set_free(frame);
            return;
        }
        let Info { vm, block, .. } = self.frames[frame as usize];
        let (_, slot) = self.slot(GOING, vm, block);
        self.unname(slot, frame, gone);
        let vm = &mut self.vms[vm.index()];
        vm.queues[Place::Filling as usize].remove(&mut self.frames, frame, frame, 1);
        vm.orphans += 1;
        self.frames[frame as usize].place = Place::Orphan;
    }

    /// Frames that hold or await blocks of a VM.
    pub fn resident(&self, vm: VmId) -> u64 {
        self.vms.get(vm.index()).map_or(0, Vm::resident)
    }
}
