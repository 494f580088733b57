//! Linux's on-demand read-ahead (`mm/readahead.c`, `ondemand_readahead` as of
//! 2.6.31 to 5.x), state per open file. Quantities are pages of 4 KiB. Guests
//! (crate `seekway-workload`) use it on their files, the prefetcher `linux` on
//! virtual disks.
//!
//! A miss, or the use of a page that carries the marker, asks
//! [`ReadAhead::demand`] for a window. The window's page `marked` gets the
//! marker: when a reader comes to it, the next window is requested, so that in
//! sequential reading two windows are in flight.

/// Read-ahead state of an open file (`struct file_ra_state`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadAhead {
    start: u64,
    size: u64,
    async_size: u64,
    /// Last page of the previous read.
    previous: Option<u64>,
}

/// Pages to read, as far as they are not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The first page to read, from 0 at the beginning of the file.
    pub start: u64,
    /// Number of pages to read, of 4 KiB each.
    pub pages: u64,
    /// The page that gets the marker, if the read is not a lone one.
    pub marked: Option<u64>,
}

impl ReadAhead {
    /// Of a file just opened.
    pub const fn new() -> Self {
        ReadAhead { start: 0, size: 0, async_size: 0, previous: None }
    }
    /// Last page of the previous read.
    pub fn previous(&self) -> Option<u64> {
        self.previous
    }
    /// A read ended with `page`.
    pub fn read_until(&mut self, page: u64) {
        self.previous = Some(page);
    }

    /// The window to read when `request` pages are wanted from `offset` and
    /// page `offset` is missing (`marker` false) or carries the marker (true).
    /// `max` is read_ahead_kb in pages, at least 1. `cached(page)` looks into
    /// the page cache.
    pub fn demand(
        &mut self,
        max: u64,
        marker: bool,
        offset: u64,
        request: u64,
        cached: impl Fn(u64) -> bool,
    ) -> Option<Window> {
        let expected = offset == self.start + self.size
            || (self.size >= self.async_size && offset == self.start + self.size - self.async_size);
        if offset == 0 {
            self.initial(offset, request, max);
        } else if expected {
            self.start += self.size;
            self.size = next_size(self.size, max);
            self.async_size = self.size;
        } else if marker {
            let missing = (1..=max).find(|i| !cached(offset + i))?;
            self.start = offset + missing;
            self.size = next_size(missing + request, max);
            self.async_size = self.size;
        } else if request > max || self.previous.is_some_and(|p| offset == p || offset == p + 1) {
            self.initial(offset, request, max);
        } else if !self.join_history(offset, request, max, cached) {
            return Some(Window { start: offset, pages: request, marked: None });
        }
        Some(self.submit(offset, max))
    }

    fn initial(&mut self, offset: u64, request: u64, max: u64) {
        self.start = offset;
        self.size = initial_size(request, max);
        self.async_size = if self.size > request { self.size - request } else { self.size };
    }

    /// Cached pages just before `offset` betray a stream among interleaved ones
    /// (`try_context_readahead`).
    fn join_history(
        &mut self,
        offset: u64,
        request: u64,
        max: u64,
        cached: impl Fn(u64) -> bool,
    ) -> bool {
        let history = (1..=max.min(offset)).take_while(|i| cached(offset - i)).count() as u64;
        if history <= request {
            return false;
        }
        let history = if history >= offset { history * 2 } else { history };
        self.start = offset;
        self.size = (history + request).min(max);
        self.async_size = 1;
        true
    }

    /// If this very read would hit the window's marker, the window takes the next one along.
    fn submit(&mut self, offset: u64, max: u64) -> Window {
        if offset == self.start && self.size == self.async_size {
            let more = next_size(self.size, max);
            if self.size + more <= max {
                self.async_size = more;
                self.size += more;
            } else {
                self.size = max;
                self.async_size = max / 2;
            }
        }
        let marked = self.start + self.size - self.async_size;
        let marked = (self.async_size > 0).then_some(marked);
        Window { start: self.start, pages: self.size, marked }
    }
}

/// Pages of the first window for a request of `request` pages (`get_init_ra_size`).
fn initial_size(request: u64, max: u64) -> u64 {
    let size = request.next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

/// Pages of the window after one of `size` pages (`get_next_ra_size`).
fn next_size(size: u64, max: u64) -> u64 {
    let bigger = if size < max / 16 { 4 * size } else { 2 * size };
    bigger.min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read a file in steps of `step` pages; the windows asked for.
    fn windows(step: u64, max: u64, pages: u64) -> Vec<(u64, u64)> {
        let mut cached = vec![false; 2 * pages as usize];
        let mut marked = vec![false; 2 * pages as usize];
        let (mut ra, mut out) = (ReadAhead::new(), Vec::new());
        for page in 0..pages {
            let rest = step - page % step;
            for marker in [false, true] {
                let at = page as usize;
                if (marker && marked[at]) || (!marker && !cached[at]) {
                    marked[at] = false;
                    let Some(w) = ra.demand(max, marker, page, rest, |p| cached[p as usize]) else {
                        continue;
                    };
                    out.push((w.start, w.pages));
                    cached[w.start as usize..(w.start + w.pages) as usize].fill(true);
                    if let Some(m) = w.marked {
                        marked[m as usize] = true;
                    }
                }
            }
            if rest == 1 {
                ra.read_until(page);
            }
        }
        out
    }

    #[test]
    fn sequential_windows_double_up_to_the_maximum() {
        assert_eq!(windows(1, 32, 60), [(0, 4), (4, 8), (12, 16), (28, 32), (60, 32)]);
        assert_eq!(windows(4, 32, 60), [(0, 8), (8, 16), (24, 32), (56, 32), (88, 32)]);
        assert_eq!(windows(16, 32, 60), [(0, 32), (32, 32), (64, 32)]);
    }

    #[test]
    fn lone_reads_are_read_as_they_are() {
        let mut ra = ReadAhead::new();
        for page in [1000, 40, 777] {
            let w = ra.demand(32, false, page, 4, |_| false).unwrap();
            assert_eq!(w, Window { start: page, pages: 4, marked: None });
            ra.read_until(page + 3);
        }
        let w = ra.demand(32, false, 781, 4, |_| false).unwrap();
        assert_eq!(w, Window { start: 781, pages: 8, marked: Some(785) });
    }
}
