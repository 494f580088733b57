//! Reads into the cache that are under way, and who waits for them.

use super::KEPT_MAX;
use super::blocks::{Account, BLOCK_SECTORS, Frame};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Lba, Sectors};

/// Names a fetch from its beginning to its end. Dense and used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchId(pub u32);

/// A guest's read that waits for a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The engine's own name for the read.
    pub token: u64,
    /// The extent that the waiter wants of the fetch.
    pub extent: Extent,
}

/// A read into the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// The VM whose disk is read.
    pub vm: VmId,
    /// For which of its processes, if known.
    pub tag: Option<ProcessTag>,
    /// The extent to read, from the beginning of a block.
    pub extent: Extent,
    /// Where to: one frame for each block.
    pub frames: Vec<Frame>,
    /// Reads that wait for it.
    pub waiters: Vec<Waiter>,
    /// Nobody asked for it when it began.
    pub prefetch: bool,
    /// The account in whose figures it counts; none once the VM has left.
    pub(super) account: Option<Account>,
    /// The reader that it is made for has gone elsewhere.
    pub(super) is_left: bool,
    /// The round of fetches that it began in.
    round: u64,
}

/// The fetches that have begun and not ended, by number.
#[derive(Default)]
pub(super) struct Fetches {
    slots: Vec<Fetch>,
    free: Vec<u32>,
    /// The fetch that is being put together, and the block that continues it.
    open: Option<(u32, u64)>,
    /// Counts the reads and proposals that began fetches.
    round: u64,
}

impl Fetch {
    /// The first block that is read.
    pub(super) fn first_block(&self) -> u64 {
        self.extent.start().get() / BLOCK_SECTORS
    }
}

impl Fetches {
    /// A new round begins: the next block begins a fetch.
    pub(super) fn open(&mut self) {
        self.open = None;
        self.round += 1;
    }

    /// Did this fetch begin in the last round?
    pub(super) fn is_new(&self, id: FetchId) -> bool {
        self.get(id).round == self.round
    }

    /// Blocks from `first` on are read into `frames`, by the fetch that is being put
    /// together if they continue it, else by a new one. How long it is its frames tell.
    pub(super) fn extend(&mut self, frames: &[Frame], first: u64) -> FetchId {
        let index = match self.open {
            Some((index, next)) if next == first => index,
            _ => self.begin(Lba::new(first * BLOCK_SECTORS)),
        };
        self.slots[index as usize].frames.extend_from_slice(frames);
        self.open = Some((index, first + frames.len() as u64));
        FetchId(index)
    }

    fn begin(&mut self, start: Lba) -> u32 {
        let extent = Extent::new(start, Sectors::new(1)).expect("the disk ends behind");
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Fetch {
                vm: VmId::new(0),
                tag: None,
                extent,
                frames: Vec::new(),
                waiters: Vec::new(),
                prefetch: false,
                account: None,
                is_left: false,
                round: 0,
            });
            self.slots.len() as u32 - 1
        });
        let fetch = &mut self.slots[index as usize];
        (fetch.extent, fetch.is_left, fetch.round) = (extent, false, self.round);
        index
    }

    pub(super) fn get(&self, id: FetchId) -> &Fetch {
        &self.slots[id.0 as usize]
    }
    pub(super) fn get_mut(&mut self, id: FetchId) -> &mut Fetch {
        &mut self.slots[id.0 as usize]
    }

    /// The VM has left: its fetches count for nobody.
    pub(super) fn disown(&mut self, vm: VmId) {
        for fetch in self.slots.iter_mut().filter(|fetch| fetch.vm == vm) {
            fetch.account = None;
        }
    }

    pub(super) fn remove(&mut self, id: FetchId) {
        let fetch = &mut self.slots[id.0 as usize];
        assert!(!fetch.frames.is_empty(), "{id:?} ends twice");
        fetch.frames.clear();
        fetch.waiters.clear();
        // What one huge read needed is not kept for all.
        fetch.frames.shrink_to(KEPT_MAX);
        fetch.waiters.shrink_to(KEPT_MAX);
        self.free.push(id.0);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
