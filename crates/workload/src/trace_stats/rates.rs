//! Rates: the busiest window of a given length, and counts over time.

use seekway_core::units::{Nanos, Sectors};

/// Steps of a window: windows begin at multiples of a tenth of their length.
const STEPS: usize = 10;

/// The windows of one length with the most requests and the most sectors.
#[derive(Clone, Debug)]
pub struct Busiest {
    step_ns: u64,
    /// Requests and sectors in the last steps, at their number modulo [`STEPS`].
    steps: [(u64, u64); STEPS],
    /// Number of the newest step.
    newest: u64,
    /// Sums of `steps`.
    now: (u64, u64),
    requests: Peak,
    sectors: Peak,
}

/// A sum over a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    pub count: u64,
    /// Start of the window.
    pub at: Nanos,
}

impl Busiest {
    /// Windows of this length, at least ten nanoseconds.
    pub fn new(window: Nanos) -> Busiest {
        Busiest {
            step_ns: (window.get() / STEPS as u64).max(1),
            steps: [(0, 0); STEPS],
            newest: 0,
            now: (0, 0),
            requests: Peak::default(),
            sectors: Peak::default(),
        }
    }

    pub fn window(&self) -> Nanos {
        Nanos::new(self.step_ns * STEPS as u64)
    }

    /// Counts a request; times never decrease.
    #[inline]
    pub fn add(&mut self, at: Nanos, sectors: Sectors) {
        let step = at.get() / self.step_ns;
        for passed in self.newest + 1..=step.min(self.newest + STEPS as u64) {
            let left = std::mem::take(&mut self.steps[passed as usize % STEPS]);
            self.now = (self.now.0 - left.0, self.now.1 - left.1);
        }
        self.newest = self.newest.max(step);
        let newest = &mut self.steps[self.newest as usize % STEPS];
        *newest = (newest.0 + 1, newest.1 + sectors.get());
        self.now = (self.now.0 + 1, self.now.1 + sectors.get());
        let first = self.newest.saturating_sub(STEPS as u64 - 1);
        let at = Nanos::new(first * self.step_ns);
        self.requests.raise(self.now.0, at);
        self.sectors.raise(self.now.1, at);
    }

    /// The first window with the most requests.
    pub fn requests(&self) -> Peak {
        self.requests
    }

    /// The first window with the most sectors.
    pub fn sectors(&self) -> Peak {
        self.sectors
    }
}

impl Peak {
    fn raise(&mut self, count: u64, at: Nanos) {
        if count > self.count {
            *self = Peak { count, at };
        }
    }
}

/// Most columns of a [`Timeline`].
pub const COLUMNS_MAX: usize = 240;
/// First width of a column.
const WIDTH: Nanos = Nanos::from_millis(1);

/// Reads and writes over time, in at most [`COLUMNS_MAX`] columns of one width, which doubles as
/// the trace goes on.
#[derive(Clone, Debug)]
pub struct Timeline {
    width: Nanos,
    columns: Vec<Column>,
}

/// Requests and sectors of a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Column {
    pub reads: u64,
    pub writes: u64,
    pub read: Sectors,
    pub written: Sectors,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline { width: WIDTH, columns: Vec::new() }
    }
}

impl Timeline {
    #[inline]
    pub fn add(&mut self, at: Nanos, is_read: bool, sectors: Sectors) {
        while at.get() / self.width.get() >= COLUMNS_MAX as u64 {
            self.double();
        }
        let column = (at.get() / self.width.get()) as usize;
        if column >= self.columns.len() {
            self.columns.resize(column + 1, Column::default());
        }
        let column = &mut self.columns[column];
        let (requests, sum) = match is_read {
            true => (&mut column.reads, &mut column.read),
            false => (&mut column.writes, &mut column.written),
        };
        *requests += 1;
        *sum += sectors;
    }

    #[cold]
    fn double(&mut self) {
        self.width = Nanos::new(self.width.get() * 2);
        let pairs = self.columns.chunks(2).map(|pair| {
            pair.iter().fold(Column::default(), |sum, column| Column {
                reads: sum.reads + column.reads,
                writes: sum.writes + column.writes,
                read: sum.read + column.read,
                written: sum.written + column.written,
            })
        });
        self.columns = pairs.collect();
    }

    /// Width of each column.
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// The columns, from the start of the trace on.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }
}

/// Smallest step of a clock, by the times that it gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(u64);

impl Clock {
    #[inline]
    pub fn add(&mut self, at: Nanos) {
        let (mut a, mut b) = (self.0, at.get());
        while a != 0 {
            (a, b) = (b % a, a);
        }
        self.0 = b;
    }

    /// The greatest time that divides all; none while all are zero.
    pub fn step(&self) -> Option<Nanos> {
        (self.0 > 0).then(|| Nanos::new(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_busiest_window_begins_at_a_tenth() {
        let mut second = Busiest::new(Nanos::from_secs(1));
        let mut add = |ms: u64, sectors| second.add(Nanos::new(ms * MS), Sectors::new(sectors));
        // Four requests from 0.95 s to 1.85 s are in ten steps, those from 0.9 s on; the one at
        // 5 s is alone and the longest.
        [950, 1200, 1500, 1850].into_iter().for_each(|ms| add(ms, 8));
        add(5000, 100);
        assert_eq!(second.requests(), Peak { count: 4, at: Nanos::new(900 * MS) });
        assert_eq!(second.sectors(), Peak { count: 100, at: Nanos::new(4100 * MS) });
        // A tenth of a second later the first is out of the window.
        let mut apart = Busiest::new(Nanos::from_secs(1));
        [0, 999, 1000].into_iter().for_each(|ms| apart.add(Nanos::new(ms * MS), Sectors::ZERO));
        assert_eq!(apart.requests().count, 2);
        assert_eq!(apart.window(), Nanos::from_secs(1));
    }

    #[test]
    fn columns_double_and_lose_nothing() {
        let mut line = Timeline::default();
        for ms in 0..1000 {
            line.add(Nanos::new(ms * MS), ms % 4 == 0, Sectors::new(2));
        }
        // 1000 ms fit into 240 columns of 8 ms, not of 4 ms.
        assert_eq!((line.width(), line.columns().len()), (Nanos::from_millis(8), 125));
        let column =
            Column { reads: 2, writes: 6, read: Sectors::new(4), written: Sectors::new(12) };
        assert!(line.columns().iter().all(|other| *other == column));
        line.add(Nanos::new(u64::MAX), true, Sectors::new(2));
        assert!(line.columns().len() <= COLUMNS_MAX);
        assert_eq!(line.columns().iter().map(|c| c.reads).sum::<u64>(), 251);
    }

    #[test]
    fn the_step_of_a_clock_divides_all_times() {
        let step = |times: &[u64]| {
            let mut clock = Clock::default();
            times.iter().for_each(|ns| clock.add(Nanos::new(*ns)));
            clock.step().map(Nanos::get)
        };
        assert_eq!(step(&[0, 0]), None);
        assert_eq!(step(&[0, 4000, 6000, 0]), Some(2000));
        assert_eq!(step(&[0, 3_000_000_000, 5_000_000_000]), Some(1_000_000_000));
    }
}
