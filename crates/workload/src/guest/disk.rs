//! Kernel's part for each disk of a guest: a block layer, a file system with a journal, and a
//! flusher (Linux's `backing_dev_info`). Page cache, dirty limits, vCPUs and applications are the
//! guest's.

use crate::SourceError;
use crate::VmDisk;
use crate::generators::rng::{Rng, split};
use crate::guest::block::BlockLayer;
use crate::guest::elevator::Elevator;
use crate::guest::file::File;
use crate::guest::flusher::Flusher;
use crate::guest::journal::Journal;
use crate::guest::layout::{Layout, Run, lay_out};
use crate::guest::params::GuestParams;
use crate::guest::{DISKS_MAX, PAGE_SECTORS};
use seekway_core::units::Nanos;

/// One disk of a guest.
pub(super) struct GuestDisk {
    pub block: BlockLayer,
    pub journal: Journal,
    pub flusher: Flusher,
}

/// A disk with its inode area, and the runs of the files of each application on it.
pub(super) struct Formatted {
    pub disk: GuestDisk,
    pub inodes: File,
    pub files: Vec<Vec<Vec<Run>>>,
}

impl GuestDisk {
    /// Makes disk `number` with a file system for files of `sizes` bytes, by application.
    /// Placement follows from `seed`.
    ///
    /// # Errors
    /// The files do not fit.
    pub fn format(
        spec: &VmDisk,
        number: usize,
        sizes: &[Vec<u64>],
        params: &GuestParams,
        seed: u64,
    ) -> Result<Formatted, SourceError> {
        // The first disk's numbers do not depend on whether there are others.
        let mut rng = Rng::new(split(seed, (number as u64) << 32));
        let layout = lay_out(spec.capacity.get(), sizes, params.pieces, &mut rng);
        let layout = layout.map_err(|missing| {
            let (what, key) = if number == 0 { ("image", "image=") } else { ("disk", "its size") };
            SourceError(format!(
                "VM {}: its applications' files exceed the {what} by {missing} bytes: \
                 raise {key} or make them smaller",
                spec.name
            ))
        })?;
        let phase = Nanos::new(rng.below(params.flush_interval.get()));
        let sectors_max = params.request_pages * PAGE_SECTORS as u32;
        let elevator = Elevator::new(params.elevator, spec.capacity);
        let disk = GuestDisk {
            block: BlockLayer::new(params.nr_requests, params.ring, sectors_max, elevator),
            journal: Journal::new(&layout),
            flusher: Flusher::new(phase),
        };
        Ok(Formatted { disk, inodes: inode_file(&layout, number), files: layout.files })
    }

    /// Is nothing queued or under way, and, with `synced`, nothing left to write?
    pub fn is_finished(&self, synced: bool) -> bool {
        self.block.is_idle() && (!synced || (self.flusher.dirty == 0 && self.journal.is_idle()))
    }
}

fn inode_file(layout: &Layout, disk: usize) -> File {
    let run = Run { page: 0, pages: layout.inode_pages, sector: layout.inode_sector };
    File::new(disk, vec![run], layout.inode_pages, 0)
}

/// A request's number on its disk, and the disk, as the token that the host hands back.
pub(super) fn token(disk: usize, number: u32) -> u64 {
    (disk as u64) << 32 | u64::from(number)
}

/// The inverse of [`token`].
pub(super) fn of_token(token: u64) -> (usize, u32) {
    let disk = (token >> 32) as usize;
    debug_assert!(disk < DISKS_MAX, "a token of another guest");
    (disk, token as u32)
}
