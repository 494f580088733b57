//! Reads into the cache that are under way, and who waits for them.

use super::blocks::{BLOCK_SECTORS, Frame};
use crate::request::{Extent, ProcessTag, VmId};
use crate::units::{Lba, Sectors};

/// Names a fetch from its beginning to its end. Dense and used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchId(pub u32);

/// A guest's read that waits for a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The engine's own name for the read.
    pub token: u64,
    /// What it wants of the fetch.
    pub extent: Extent,
}

/// A read into the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// For which VM.
    pub vm: VmId,
    /// For which of its processes, if known.
    pub tag: Option<ProcessTag>,
    /// What is read, from the beginning of a block.
    pub extent: Extent,
    /// Where to: one frame for each block.
    pub frames: Vec<Frame>,
    /// Who waits for it.
    pub waiters: Vec<Waiter>,
    /// Nobody asked for it when it began.
    pub prefetch: bool,
}

const NONE: u32 = u32::MAX;

/// All fetches.
pub(super) struct Fetches {
    slots: Vec<Fetch>,
    free: Vec<u32>,
    /// The fetch that fills a frame.
    by_frame: Vec<u32>,
    /// The fetch that is being put together.
    open: Option<u32>,
}

impl Fetches {
    pub(super) fn new(frames: u32) -> Self {
        let by_frame = vec![NONE; frames as usize];
        Fetches { slots: Vec::new(), free: Vec::new(), by_frame, open: None }
    }

    /// `block` is read into `frame`, by the fetch that is being put together if
    /// the block continues it, else by a new one.
    pub(super) fn extend(&mut self, frame: Frame, block: u64) -> FetchId {
        let start = Lba::new(block * BLOCK_SECTORS);
        let index = match self.open.filter(|&n| self.slots[n as usize].extent.end() == start) {
            Some(index) => index,
            None => self.begin(start),
        };
        let fetch = &mut self.slots[index as usize];
        fetch.frames.push(frame);
        let len = Sectors::new(fetch.frames.len() as u64 * BLOCK_SECTORS);
        fetch.extent = Extent::new(fetch.extent.start(), len).expect("the disk ends before");
        self.by_frame[frame.0 as usize] = index;
        self.open = Some(index);
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
            });
            self.slots.len() as u32 - 1
        });
        let fetch = &mut self.slots[index as usize];
        (fetch.extent, fetch.prefetch) = (extent, false);
        index
    }

    /// What was put together is whole.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// The fetch that fills a frame.
    pub(super) fn of(&self, frame: Frame) -> FetchId {
        FetchId(self.by_frame[frame.0 as usize])
    }

    pub(super) fn get(&self, id: FetchId) -> &Fetch {
        &self.slots[id.0 as usize]
    }
    pub(super) fn get_mut(&mut self, id: FetchId) -> &mut Fetch {
        &mut self.slots[id.0 as usize]
    }

    pub(super) fn remove(&mut self, id: FetchId) {
        let fetch = &mut self.slots[id.0 as usize];
        assert!(!fetch.frames.is_empty(), "{id:?} ends twice");
        fetch.frames.clear();
        fetch.waiters.clear();
        self.free.push(id.0);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
