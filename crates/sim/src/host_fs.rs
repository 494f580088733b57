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

pub(crate) mod source;

use seekway_core::units::Sectors;
use seekway_stack::stack::FileExtent;
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
