//! Files that an application brings along with their places: for file systems
//! with too many files to be laid out, and kept, one by one in each guest. The
//! guest gives them one area of its image, and a [`crate::guest::file::File`]
//! to each when it is first opened.

use crate::guest::PAGE_SECTORS;
use crate::guest::layout::Run;

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
