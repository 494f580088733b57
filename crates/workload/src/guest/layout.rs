//! Where things lie on a guest's image: superblock, inode area, journal at the
//! start, then one area for each application, with random gaps between.

use crate::guest::PAGE_SECTORS;
use crate::rng::Rng;

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

// Files that an application brings along with their places: for file systems
// with too many files to be laid out, and kept, one by one in each guest. The
// guest gives them one area of its image, and a `crate::guest::cache::File`
// to each when it is first opened.

/// Pages that lie side by side in the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First page of the area.
    pub start: u32,
    /// Pages, at least one.
    pub pages: u32,
}

/// A file system of files that all exist, in an area of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaidFiles {
    area_pages: u32,
    /// Of each file: its first extent, and how many.
    files: Vec<(u32, u32)>,
    extents: Vec<Extent>,
}

impl LaidFiles {
    /// `count` files, all empty, in an area of `area_pages`.
    pub fn new(area_pages: u32, count: u32) -> Self {
        LaidFiles { area_pages, files: vec![(0, 0); count as usize], extents: Vec::new() }
    }
    /// Give `file` these extents instead of those that it has.
    pub fn place(&mut self, file: u32, extents: impl IntoIterator<Item = Extent>) {
        let first = self.extents.len();
        self.extents.extend(extents);
        self.files[file as usize] = (first as u32, (self.extents.len() - first) as u32);
    }
    /// Pages of the area in which the files lie.
    pub fn area_pages(&self) -> u32 {
        self.area_pages
    }
    /// Number of files.
    pub fn count(&self) -> u32 {
        self.files.len() as u32
    }
    /// Where the file lies, in its order.
    pub fn extents(&self, file: u32) -> &[Extent] {
        let (first, count) = self.files[file as usize];
        &self.extents[first as usize..][..count as usize]
    }
    /// Pages of the file.
    pub fn pages(&self, file: u32) -> u32 {
        self.extents(file).iter().map(|e| e.pages).sum()
    }

    /// Where the file lies on an image that has the area in the runs `area`.
    pub(super) fn runs(&self, file: u32, area: &[Run]) -> Vec<Run> {
        let (mut runs, mut page) = (Vec::new(), 0);
        for extent in self.extents(file) {
            let mut at = extent.start;
            while at < extent.start + extent.pages {
                let part = area[area.partition_point(|r| r.page + r.pages <= at)];
                let pages = (part.page + part.pages).min(extent.start + extent.pages) - at;
                let sector = part.sector + u64::from(at - part.page) * PAGE_SECTORS;
                runs.push(Run { page, pages, sector });
                page += pages;
                at += pages;
            }
        }
        runs
    }
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

#[cfg(test)]
mod laid_tests {
    use super::*;

    #[test]
    fn extents_follow_the_pieces_of_the_area() {
        let mut laid = LaidFiles::new(100, 2);
        laid.place(1, [Extent { start: 0, pages: 1 }]);
        laid.place(1, [Extent { start: 30, pages: 30 }, Extent { start: 2, pages: 3 }]);
        assert_eq!((laid.pages(0), laid.pages(1), laid.count()), (0, 33, 2));
        let area =
            [Run { page: 0, pages: 50, sector: 8000 }, Run { page: 50, pages: 50, sector: 80 }];
        let expected = [
            Run { page: 0, pages: 20, sector: 8000 + 30 * 8 },
            Run { page: 20, pages: 10, sector: 80 },
            Run { page: 30, pages: 3, sector: 8000 + 2 * 8 },
        ];
        assert_eq!(laid.runs(1, &area), expected);
        assert!(laid.runs(0, &area).is_empty());
    }
}
