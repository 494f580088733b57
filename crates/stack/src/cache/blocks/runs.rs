//! Queues of what was read: first in, first out.
//!
//! A queue has *runs*: blocks of one node that entered it together, in 8 bytes.
//! Runs are kept in chunks that the queues of all VMs share, so that a queue that
//! becomes shorter leaves its memory to others.
//!
//! A block that is forgotten stays in its run: whoever takes a run from the queue
//! looks what of it is still there ([`Blocks::live`](super::Blocks::live)). If
//! it is read again before that, it stands in two runs, and leaves by the older.

use super::nodes::{Mask, NONE};

/// Runs of a chunk.
const CHUNK: usize = 31;
/// Chunks beyond what the frames need: queues have some that are not full.
const SPARE: usize = 8;

/// Blocks of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub node: u32,
    pub blocks: Mask,
    /// The node's: another node may have its number since.
    pub print: u16,
}

#[derive(Clone)]
struct Chunk {
    runs: [Run; CHUNK],
    next: u32,
}

const _: () = assert!(size_of::<Chunk>() == 252);

/// The runs of all queues.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Runs {
    chunks: Vec<Chunk>,
    /// The first free chunk; the others follow by `next`.
    free: u32,
}

impl Runs {
    /// One for each frame, and an eighth: what [`Fifo::most`] allows, and those that
    /// enter while the others are looked through.
    pub(super) fn new(frames: u32) -> Runs {
        let runs = frames as usize + frames as usize / 8;
        Runs { chunks: Vec::with_capacity(runs.div_ceil(CHUNK) + SPARE), free: NONE }
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>()
    }

    fn add(&mut self) -> u32 {
        if let Some(free) = self.chunks.get(self.free as usize) {
            return std::mem::replace(&mut self.free, free.next);
        }
        let none = Run { node: NONE, blocks: 0, print: 0 };
        self.chunks.push(Chunk { runs: [none; CHUNK], next: NONE });
        self.chunks.len() as u32 - 1
    }
}

/// A queue of runs.
#[derive(Clone, Copy, Default)]
pub(super) struct Fifo {
    /// The chunk of the oldest run, and where that is in it.
    first: u32,
    from: u8,
    /// The chunk of the newest, and the place behind it.
    last: u32,
    to: u8,
    /// Runs in the queue.
    pub len: u64,
    /// Blocks that stand in it and are there.
    pub read: u64,
}

impl Fifo {
    /// Runs that a VM's queues may have when it has so many frames: not many more
    /// than blocks, though those that were forgotten are not taken out at once.
    pub(super) fn most(held: u64) -> u64 {
        held + held / 16 + 64
    }

    /// Blocks come to stand behind all others.
    #[inline]
    pub(super) fn push(&mut self, runs: &mut Runs, run: Run) {
        if self.len > 0 {
            let newest = &mut runs.chunks[self.last as usize].runs[usize::from(self.to) - 1];
            if (newest.node, newest.print) == (run.node, run.print) {
                newest.blocks |= run.blocks;
                return;
            }
        }
        if self.len == 0 || usize::from(self.to) == CHUNK {
            let chunk = runs.add();
            match self.len {
                0 => (self.first, self.from) = (chunk, 0),
                _ => runs.chunks[self.last as usize].next = chunk,
            }
            (self.last, self.to) = (chunk, 0);
        }
        runs.chunks[self.last as usize].runs[usize::from(self.to)] = run;
        (self.to, self.len) = (self.to + 1, self.len + 1);
    }

    /// The run that goes next; `None` for an empty queue.
    #[inline]
    pub(super) fn oldest(&self, runs: &Runs) -> Option<Run> {
        (self.len > 0).then(|| runs.chunks[self.first as usize].runs[usize::from(self.from)])
    }

    /// One of the next few behind the oldest, if it is in the same chunk.
    #[inline]
    pub(super) fn behind(&self, runs: &Runs, by: u8) -> Option<Run> {
        let at = usize::from(self.from + by);
        let run = runs.chunks.get(self.first as usize)?.runs.get(at)?;
        (u64::from(by) < self.len).then_some(*run)
    }

    /// Take blocks out of the oldest run: out of the queue, if they are all it has.
    #[inline]
    pub(super) fn take(&mut self, runs: &mut Runs, blocks: Mask) {
        let oldest = &mut runs.chunks[self.first as usize].runs[usize::from(self.from)];
        oldest.blocks &= !blocks;
        if oldest.blocks != 0 {
            return;
        }
        (self.from, self.len) = (self.from + 1, self.len - 1);
        if usize::from(self.from) == CHUNK || self.len == 0 {
            let chunk = &mut runs.chunks[self.first as usize];
            let next = std::mem::replace(&mut chunk.next, runs.free);
            runs.free = std::mem::replace(&mut self.first, next);
            self.from = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn two_queues_in_one_memory() {
        let (mut runs, mut fifos) = (Runs::new(1000), [Fifo::default(); 2]);
        let mut expected = [VecDeque::new(), VecDeque::new()];
        for n in 0..10_000u32 {
            let which = (n / 7 % 2) as usize;
            let (fifo, expected) = (&mut fifos[which], &mut expected[which]);
            // They become longer and shorter, and empty now and then.
            if n / 500 % 2 == 0 {
                fifo.push(&mut runs, Run { node: n, blocks: 1, print: 0 });
                expected.push_back(n);
            } else if expected.len() > 1 || n % 1000 > 900 {
                assert_eq!(fifo.oldest(&runs).map(|run| run.node), expected.pop_front());
                (fifo.len > 0).then(|| fifo.take(&mut runs, 1));
            }
            assert_eq!(fifo.len, expected.len() as u64);
        }
        assert!(runs.chunks.len() <= 40, "{}", runs.chunks.len());
    }
}
