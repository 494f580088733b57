//! Which blocks the cache has, and in which frames; whom it takes them from
//! when it needs room.

use crate::request::VmId;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

/// Sectors of a block, the unit in which the cache keeps data: 4 KiB.
pub const BLOCK_SECTORS: u64 = 8;
/// The same in bytes.
pub const BLOCK_BYTES: u64 = 4096;

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

#[derive(Clone, Copy)]
struct Info {
    vm: VmId,
    block: u64,
    account: Account,
    prefetched: bool,
    used: bool,
    filling: bool,
    /// Overwritten while it was read: free when the read ends.
    orphan: bool,
}

/// The blocks of all VMs of a device. Bounded: it never names more than
/// `frames` frames.
pub struct Blocks {
    map: BTreeMap<(VmId, u64), Frame>,
    info: Vec<Option<Info>>,
    free: Vec<Frame>,
    order: VecDeque<Frame>,
}

impl Blocks {
    /// An empty cache of so many frames. `seed` makes hashes that guests cannot
    /// foresee; the same seed makes the same decisions.
    pub fn new(frames: u32, _seed: u64) -> Self {
        Blocks {
            map: BTreeMap::new(),
            info: vec![None; frames as usize],
            free: (0..frames).rev().map(Frame).collect(),
            order: VecDeque::new(),
        }
    }

    /// A VM joins, or changes its weight: while others want room, its share of
    /// the frames is its weight's share of the weights of all.
    pub fn attach(&mut self, _vm: VmId, _weight: NonZeroU32) {}

    /// A VM leaves: its blocks are forgotten.
    pub fn detach(&mut self, vm: VmId, gone: &mut Vec<Gone>) {
        self.forget(vm, 0, u64::MAX, gone);
    }

    /// What there is of a block. Changes nothing.
    pub fn lookup(&self, vm: VmId, block: u64) -> Block {
        match self.map.get(&(vm, block)) {
            None => Block::Absent,
            Some(&frame) => match self.info(frame).filling {
                true => Block::Filling(frame),
                false => Block::Valid(frame),
            },
        }
    }

    fn info(&self, frame: Frame) -> &Info {
        self.info[frame.0 as usize].as_ref().expect("the frame is in use")
    }

    /// A guest reads the block in this frame, or waits for it. The account that
    /// had it prefetched when this is its first use, else `None`.
    pub fn touch(&mut self, frame: Frame) -> Option<Account> {
        let info = self.info[frame.0 as usize].as_mut().expect("the frame is in use");
        let first = info.prefetched && !info.used;
        info.used = true;
        first.then_some(info.account)
    }

    /// A frame for a block that is absent, which is [`Block::Filling`] from now
    /// on. `None` when no frame is to be had: all are being filled, or the VM
    /// has more than its share of such. What had to leave is appended to `gone`.
    pub fn reserve(
        &mut self,
        vm: VmId,
        block: u64,
        account: Account,
        prefetched: bool,
        gone: &mut Vec<Gone>,
    ) -> Option<Frame> {
        if self.free.is_empty() {
            let victim = self.order.pop_front()?;
            self.release(victim, gone);
        }
        let frame = self.free.pop()?;
        debug_assert!(self.lookup(vm, block) == Block::Absent, "the block is there");
        let info = Info {
            vm,
            block,
            account,
            prefetched,
            used: !prefetched,
            filling: true,
            orphan: false,
        };
        self.info[frame.0 as usize] = Some(info);
        self.map.insert((vm, block), frame);
        Some(frame)
    }

    fn release(&mut self, frame: Frame, gone: &mut Vec<Gone>) {
        let info = self.info[frame.0 as usize].take().expect("the frame is in use");
        let Info { vm, block, account, prefetched, used, orphan, .. } = info;
        if !orphan {
            self.map.remove(&(vm, block));
            gone.push(Gone { vm, block, account, prefetched, used });
        }
        self.free.push(frame);
    }

    /// The read into this frame has ended. Its block is valid now, unless the
    /// read failed or the block was forgotten meanwhile.
    pub fn filled(&mut self, frame: Frame, ok: bool, gone: &mut Vec<Gone>) {
        let info = self.info[frame.0 as usize].as_mut().expect("the frame is in use");
        info.filling = false;
        match ok && !info.orphan {
            true => self.order.push_back(frame),
            false => self.release(frame, gone),
        }
    }

    /// Forget a VM's blocks from `first` to before `end`. Frames being filled stay
    /// their reader's until [`Blocks::filled`], and nobody finds them.
    pub fn forget(&mut self, vm: VmId, first: u64, end: u64, gone: &mut Vec<Gone>) {
        let range: Vec<_> = self.map.range((vm, first)..(vm, end)).map(|(_, &f)| f).collect();
        for frame in range {
            let info = self.info[frame.0 as usize].as_mut().expect("the frame is in use");
            if info.filling {
                let Info { vm, block, account, prefetched, used, .. } = *info;
                info.orphan = true;
                gone.push(Gone { vm, block, account, prefetched, used });
                self.map.remove(&(vm, block));
            } else {
                self.order.retain(|&f| f != frame);
                self.release(frame, gone);
            }
        }
    }

    /// Frames that hold or await blocks of a VM.
    pub fn resident(&self, vm: VmId) -> u64 {
        self.map.range((vm, 0)..(vm, u64::MAX)).count() as u64
    }
}
