//! Where things lie on a guest's image: superblock, inode area, journal at the
//! start, then one area for each application, with random gaps between.

use crate::generators::rng::Rng;
use crate::guest::PAGE_SECTORS;

/// A run of a file's pages that is contiguous on the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First page of the file.
    pub page: u32,
    /// Pages in the run.
    pub pages: u32,
    /// First sector on the image.
    pub sector: u64,
}

/// The image of one guest. Sectors of 512 bytes; blocks are pages of 4 KiB.
#[derive(Clone, Debug)]
pub struct Layout {
    /// First sector of the inode tables and bitmaps.
    pub inode_sector: u64,
    /// Pages in that area.
    pub inode_pages: u32,
    /// First sector of the journal.
    pub journal_sector: u64,
    /// Pages in the journal.
    pub journal_pages: u32,
    /// Runs of each file, ascending by page: outer index application, inner file.
    pub files: Vec<Vec<Vec<Run>>>,
}

const MIB_PAGES: u64 = 256;
/// At most this many free pages between one file and the next.
const FILE_GAP_PAGES: u64 = 32;

/// Place the files of `apps`, each given by its size in bytes, on an image of `capacity` sectors.
/// `pieces` is the
/// number of extents in which each file lies (1 = contiguous); with more, the
/// pieces of an application's files are in random order. `Err` tells how many
/// bytes are missing.
pub fn lay_out(
    capacity: u64,
    apps: &[Vec<u64>],
    pieces: u32,
    rng: &mut Rng,
) -> Result<Layout, u64> {
    let image_pages = capacity / PAGE_SECTORS;
    let inode_pages = (image_pages / 64).clamp(8, 64 * MIB_PAGES);
    let journal_pages = (image_pages / 32).clamp(16, 128 * MIB_PAGES);
    let data_page = MIB_PAGES + inode_pages + journal_pages;

    let areas: Vec<u64> = apps.iter().map(|files| area_pages(files, pieces)).collect();
    let needed: u64 = areas.iter().sum::<u64>() + data_page;
    if needed > image_pages {
        return Err((needed - image_pages) * PAGE_SECTORS * 512);
    }
    let gaps = random_gaps(image_pages - needed, apps.len(), rng);
    let mut page = data_page;
    let mut placed = Vec::with_capacity(apps.len());
    for ((files, area), gap) in apps.iter().zip(&areas).zip(gaps) {
        page += gap;
        placed.push(place_files(files, page, pieces, rng));
        page += area;
    }
    Ok(Layout {
        inode_sector: MIB_PAGES * PAGE_SECTORS,
        inode_pages: inode_pages as u32,
        journal_sector: (MIB_PAGES + inode_pages) * PAGE_SECTORS,
        journal_pages: journal_pages as u32,
        files: placed,
    })
}

/// Pages of a file.
pub fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_SECTORS * 512)
}

fn area_pages(files: &[u64], pieces: u32) -> u64 {
    let gaps = u64::from(pieces.max(1)) * FILE_GAP_PAGES;
    files.iter().map(|&bytes| pages_of(bytes) + gaps).sum()
}

/// Cut `free` pages into one random gap before each of `n` areas (and one after the last).
fn random_gaps(free: u64, n: usize, rng: &mut Rng) -> Vec<u64> {
    let mut cuts: Vec<u64> = (0..n).map(|_| rng.below(free + 1)).collect();
    cuts.sort_unstable();
    let mut before = 0;
    for cut in &mut cuts {
        let gap = *cut - before;
        before = *cut;
        *cut = gap;
    }
    cuts
}

fn place_files(files: &[u64], start_page: u64, pieces: u32, rng: &mut Rng) -> Vec<Vec<Run>> {
    let mut chunks: Vec<(usize, u32, u32)> = Vec::new();
    for (number, &bytes) in files.iter().enumerate() {
        let total = pages_of(bytes);
        let each = total.div_ceil(u64::from(pieces.max(1))).max(1);
        let mut at = 0;
        while at < total {
            let n = each.min(total - at);
            chunks.push((number, at as u32, n as u32));
            at += n;
        }
    }
    if pieces > 1 {
        rng.shuffle(&mut chunks);
    }
    let mut runs = vec![Vec::new(); files.len()];
    let mut page = start_page;
    for (number, first, n) in chunks {
        page += rng.below(FILE_GAP_PAGES);
        runs[number].push(Run { page: first, pages: n, sector: page * PAGE_SECTORS });
        page += u64::from(n);
    }
    for file in &mut runs {
        file.sort_unstable_by_key(|r| r.page);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap_and_fit() {
        for seed in 0..50 {
            let apps = vec![vec![1 << 20; 10]; 3];
            let capacity = (256 << 20) / 512;
            let mut rng = Rng::new(seed);
            let layout = lay_out(capacity, &apps, 1 + seed as u32 % 3, &mut rng).unwrap();
            let mut all: Vec<Run> = layout.files.iter().flatten().flatten().copied().collect();
            all.sort_unstable_by_key(|r| r.sector);
            let mut end = layout.journal_sector + u64::from(layout.journal_pages) * PAGE_SECTORS;
            for run in &all {
                assert!(run.sector >= end, "seed {seed}");
                end = run.sector + u64::from(run.pages) * PAGE_SECTORS;
            }
            assert!(end <= capacity, "seed {seed}");
            assert_eq!(all.iter().map(|r| r.pages).sum::<u32>(), 30 * 256);
        }
        assert!(lay_out(1 << 20, &[vec![1 << 40]], 1, &mut Rng::new(0)).is_err());
    }
}
