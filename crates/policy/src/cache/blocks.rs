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

mod frames;
mod ghosts;
mod index;

use crate::request::VmId;
use frames::{Info, Place, Queue};
use ghosts::{Clock, Ghost};
use index::{Home, Index, group};
use std::num::NonZeroU32;

/// Sectors of a block, the unit in which the cache keeps data: 4 KiB.
pub const BLOCK_SECTORS: u64 = 8;
/// The same in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Frames that one eviction passes over because they were used: bounds its
/// time. The next goes, used or not.
const STEPS_MAX: u32 = 128;
/// The small queue is this part of what a VM has read (the paper's tenth).
const SMALL_PART: u64 = 10;
/// Uses in the small queue with which a block moves to main: more than one.
const USES_TO_MAIN: u8 = 2;
/// Uses are counted up to here.
const USES_MAX: u8 = 3;
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

/// A VM's part of the cache. It stays when the VM leaves: frames may still be
/// read into for it.
struct Vm {
    weight: u64,
    /// Frames that are its own when all are wanted.
    share: u64,
    /// By [`Place`]; what is beyond the fourth is in no queue.
    queues: [Queue; 4],
    /// Frames in them, and those that are [orphans](Place::Orphan).
    held: u64,
    orphans: u32,
    /// Frames that hold or await a prefetched block that nobody has read.
    unused: u32,
    /// Blocks that it has read.
    clock: u64,
    /// Blocks that its small queue has let go.
    let_go: u64,
}

impl Vm {
    const NEW: Vm = Vm {
        weight: 0,
        share: 0,
        queues: [Queue::EMPTY; 4],
        held: 0,
        orphans: 0,
        unused: 0,
        clock: 0,
        let_go: 0,
    };

    fn queue(&self, place: Place) -> &Queue {
        &self.queues[place as usize]
    }
    /// Frames that hold or await its blocks.
    fn resident(&self) -> u64 {
        self.held - u64::from(self.orphans)
    }
    fn filling(&self) -> u64 {
        u64::from(self.queue(Place::Filling).len + self.orphans)
    }
    fn excess(&self) -> u64 {
        self.held.saturating_sub(self.share)
    }
    /// Its frames that may be for blocks not read yet.
    fn ahead_max(&self) -> u64 {
        (self.held.max(self.share) / 2).max(1)
    }
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
    /// The VM most above its share, and for how many evictions it stays that.
    donor: (Option<usize>, u32),
    /// The homes of the blocks that were looked for last, and that went last:
    /// a neighbour may be next.
    near: [Near; 2],
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
            near: [Near { vm, group: 0, home: index.home(vm, 0) }; 2],
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
        let mut home = None;
        (first..end).map(move |block| {
            let home = match home {
                Some(home) if block % index::LANES as u64 != 0 => home,
                _ => *home.insert(self.index.home(vm, group(block))),
            };
            self.lookup_at(home, vm, block)
        })
    }

    /// As [`Blocks::lookup`]; quicker for one block after another.
    pub fn find(&mut self, vm: VmId, block: u64) -> Block {
        let home = self.home(COMING, vm, block);
        self.lookup_at(home, vm, block)
    }

    fn home(&mut self, which: usize, vm: VmId, block: u64) -> Home {
        let (near, group) = (&mut self.near[which], group(block));
        if (near.vm, near.group) != (vm, group) {
            *near = Near { vm, group, home: self.index.home(vm, group) };
        }
        near.home
    }

    fn lookup_at(&self, home: Home, vm: VmId, block: u64) -> Block {
        let is = |frame: u32| {
            let info = &self.frames[frame as usize];
            info.block == block && info.vm == vm
        };
        match self.index.find(home, block, is) {
            None => Block::Absent,
            Some(frame) => match self.frames[frame as usize].place {
                Place::Filling => Block::Filling(Frame(frame)),
                _ => Block::Valid(Frame(frame)),
            },
        }
    }

    /// A guest reads the block in this frame, or waits for it. The account that
    /// had it prefetched when this is its first use, else `None`.
    pub fn touch(&mut self, frame: Frame) -> Option<Account> {
        let info = &mut self.frames[frame.0 as usize];
        let vm = &mut self.vms[info.vm.index()];
        vm.clock += 1;
        let now = (vm.clock >> self.granule_bits) as u32;
        if !info.is_unused() {
            if info.stamp != now {
                info.stamp = now;
                info.uses = (info.uses + 1).min(USES_MAX);
            }
            return None;
        }
        (info.used, info.stamp) = (true, now);
        vm.unused -= 1;
        let Info { vm, block, account, place, .. } = *info;
        let home = self.home(COMING, vm, block);
        self.frames[frame.0 as usize].again = self.is_back(home, vm, block);
        if place == Place::Ahead {
            self.move_to(frame.0, self.entrance(frame.0));
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

    /// The queue that a valid block enters.
    fn entrance(&self, frame: u32) -> Place {
        let info = &self.frames[frame as usize];
        match info {
            _ if info.is_unused() => Place::Ahead,
            _ if info.again => Place::Main,
            _ => Place::Small,
        }
    }

    /// From the queue in which it stands to the new end of another, or the same.
    fn move_to(&mut self, frame: u32, to: Place) {
        let info = &mut self.frames[frame as usize];
        let (vm, from) = (info.vm.index(), info.place);
        info.place = to;
        self.vms[vm].queues[from as usize].remove(&mut self.frames, frame);
        self.vms[vm].queues[to as usize].push(&mut self.frames, frame);
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
        if !self.index.insert(home, block, frame) {
            self.set_free(frame);
            return None;
        }
        let again = !prefetched && self.is_back(home, vm, block);
        let known = &mut self.vms[vm.index()];
        match prefetched {
            true => known.unused += 1,
            false => known.clock += 1,
        }
        let stamp = (known.clock >> self.granule_bits) as u32;
        let place = Place::Filling;
        let used = !prefetched;
        self.frames[frame as usize] =
            Info { block, stamp, vm, account, place, prefetched, used, again, ..Info::FREE };
        known.queues[place as usize].push(&mut self.frames, frame);
        known.held += 1;
        Some(Frame(frame))
    }

    /// A frame in no queue that holds nothing.
    fn room(&mut self, vm: usize, prefetched: bool, gone: &mut Vec<Gone>) -> Option<u32> {
        if prefetched && u64::from(self.vms[vm].unused) >= self.vms[vm].ahead_max() {
            return self.evict_stale(vm, gone);
        }
        if let Some(frame) = self.free.oldest() {
            self.free.remove(&mut self.frames, frame);
            return Some(frame);
        }
        if (self.fresh as usize) < self.frames.len() {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        let known = &self.vms[vm];
        if known.filling() >= known.share.max(1) {
            return None;
        }
        let is_owed = known.held < known.share;
        let donor = self.donor().filter(|&donor| donor != vm);
        donor
            .and_then(|donor| self.evict(donor, !prefetched || is_owed, gone))
            .or_else(|| self.evict(vm, !prefetched, gone))
    }

    /// The VM that is most above its share. Looked for anew after so many
    /// evictions that the search costs little beside them, or when it is within it.
    fn donor(&mut self) -> Option<usize> {
        if let (Some(vm), left @ 1..) = self.donor
            && self.vms[vm].excess() > 0
        {
            self.donor.1 = left - 1;
            return Some(vm);
        }
        let excesses = self.vms.iter().map(Vm::excess).enumerate();
        let (vm, excess) = excesses.max_by_key(|&(n, excess)| (excess, usize::MAX - n))?;
        let often = (self.frames.len() >> 10).min(64) as u32;
        self.donor = ((excess > 0).then_some(vm), often);
        self.donor.0
    }

    /// Let one block of a VM go: its frame is in no queue then. `None` when none
    /// may; one that waits ahead may only when `ahead_too`.
    fn evict(&mut self, vm: usize, ahead_too: bool, gone: &mut Vec<Gone>) -> Option<u32> {
        if let Some(frame) = self.evict_stale(vm, gone) {
            return Some(frame);
        }
        for step in 0.. {
            let known = &self.vms[vm];
            let (small, main) = (known.queue(Place::Small), known.queue(Place::Main));
            let read = u64::from(small.len) + u64::from(main.len);
            let is_small = u64::from(small.len) * SMALL_PART > read || main.len == 0;
            let Some(frame) = (if is_small { small.oldest() } else { main.oldest() }) else {
                break;
            };
            let info = &mut self.frames[frame as usize];
            let keep = info.uses >= if is_small { USES_TO_MAIN } else { 1 };
            if keep && step < STEPS_MAX {
                info.uses = if is_small { 0 } else { info.uses - 1 };
                self.move_to(frame, Place::Main);
                continue;
            }
            let home = self.release(frame, gone);
            if is_small {
                let Info { block, .. } = self.frames[frame as usize];
                self.vms[vm].let_go += 1;
                let ghost = Ghost::new(self.ghosts, home.fingerprint(), self.vms[vm].let_go);
                *self.index.ghost(home, block) = ghost;
            }
            return Some(frame);
        }
        let oldest = self.vms[vm].queue(Place::Ahead).oldest().filter(|_| ahead_too)?;
        self.release(oldest, gone);
        Some(oldest)
    }

    /// Let the oldest block that waits ahead go, if its stream has moved on.
    fn evict_stale(&mut self, vm: usize, gone: &mut Vec<Gone>) -> Option<u32> {
        let known = &self.vms[vm];
        let frame = known.queue(Place::Ahead).oldest()?;
        let now = (known.clock >> self.granule_bits) as u32;
        let age = u64::from(now.wrapping_sub(self.frames[frame as usize].stamp));
        if age <= known.held >> self.granule_bits {
            return None;
        }
        self.release(frame, gone);
        Some(frame)
    }

    /// The block in a frame goes, and the frame stands in no queue.
    fn release(&mut self, frame: u32, gone: &mut Vec<Gone>) -> Home {
        let Info { vm, place, .. } = self.frames[frame as usize];
        let home = self.unname(frame, gone);
        let vm = &mut self.vms[vm.index()];
        vm.queues[place as usize].remove(&mut self.frames, frame);
        vm.held -= 1;
        home
    }

    fn set_free(&mut self, frame: u32) {
        self.frames[frame as usize].place = Place::Free;
        self.free.push(&mut self.frames, frame);
    }

    /// Nobody finds the block in this frame any more.
    fn unname(&mut self, frame: u32, gone: &mut Vec<Gone>) -> Home {
        let info = self.frames[frame as usize];
        let Info { vm, block, account, prefetched, used, .. } = info;
        let home = self.home(GOING, vm, block);
        self.index.remove(home, block, frame);
        self.vms[vm.index()].unused -= u32::from(info.is_unused());
        gone.push(Gone { vm, block, account, prefetched, used });
        home
    }

    /// The read into this frame has ended. Its block is valid now, unless the
    /// read failed or the block was forgotten meanwhile.
    pub fn filled(&mut self, frame: Frame, ok: bool, gone: &mut Vec<Gone>) {
        let frame = frame.0;
        let Info { vm, place, .. } = self.frames[frame as usize];
        match place {
            Place::Filling if ok => {
                let now = self.vms[vm.index()].clock >> self.granule_bits;
                self.frames[frame as usize].stamp = now as u32;
                self.move_to(frame, self.entrance(frame));
            }
            Place::Filling => {
                self.release(frame, gone);
                self.set_free(frame);
            }
            Place::Orphan => {
                let vm = &mut self.vms[vm.index()];
                (vm.orphans, vm.held) = (vm.orphans - 1, vm.held - 1);
                self.set_free(frame);
            }
            place => panic!("frame {frame} is {place:?}, not being read into"),
        }
    }

    /// Forget a VM's blocks from `first` to before `end`. Frames being filled stay
    /// their reader's until [`Blocks::filled`], and nobody finds them. Costs no
    /// more than the VM has frames, however long the range is.
    pub fn forget(&mut self, vm: VmId, first: u64, end: u64, gone: &mut Vec<Gone>) {
        let resident = self.resident(vm);
        if resident == 0 {
            return;
        }
        if end.saturating_sub(first) <= resident {
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
        self.unname(frame, gone);
        let vm = &mut self.vms[self.frames[frame as usize].vm.index()];
        vm.queues[Place::Filling as usize].remove(&mut self.frames, frame);
        vm.orphans += 1;
        self.frames[frame as usize].place = Place::Orphan;
    }

    /// Frames that hold or await blocks of a VM.
    pub fn resident(&self, vm: VmId) -> u64 {
        self.vms.get(vm.index()).map_or(0, Vm::resident)
    }
}
