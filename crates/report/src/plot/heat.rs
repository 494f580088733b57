//! A heat map: how much happened when (to the right) and where (upwards).

use serde::Serialize;

use super::{Axis, Figure, first, note_left_out};

/// More cells than this are merged, the largest value winning: a hot zone must stay visible.
const COLUMNS_MAX: usize = 240;
const ROWS_MAX: usize = 120;
const OUTLINES_MAX: usize = 400;
/// Ends that differ by less than this part of them, or of one, are one value, as in `figures.js`:
/// no tick can tell them apart.
const FLAT: f64 = 1e-12;
/// Cells of an axis of one value, of which the first is filled: wide enough to be seen.
const FLAT_CELLS: usize = 40;
/// A cell's level as a character, from the least value to the largest by equal factors.
const LEVELS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
const BLANK: char = '.';

/// Values on a grid of equal cells.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// To the right; its range is `x_range`.
    pub x: Axis,
    /// Upwards; its range is `y_range`.
    pub y: Axis,
    /// From the first column's left edge to the last one's right edge.
    pub x_range: (f64, f64),
    /// From the first row's lower edge to the last one's upper edge.
    pub y_range: (f64, f64),
    /// Cells from left to right.
    pub columns: usize,
    /// Row by row from the lowest up, `columns` each; zero and NaN are left blank.
    pub values: Vec<f64>,
    /// Meaning and unit of the values: "requests per zone".
    pub value_label: String,
    /// Drawn over the cells: predicted intervals, thresholds crossed.
    pub outlines: Vec<Outline>,
}

/// A frame around part of the map, in the axes' units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outline {
    /// Left and right edge, in the unit of the x axis.
    pub x: (f64, f64),
    /// Lower and upper edge, in the unit of the y axis.
    pub y: (f64, f64),
    pub label: String,
}

/// For the script.
#[derive(Serialize)]
struct Drawn<'a> {
    kind: &'static str,
    x: Axis,
    y: Axis,
    columns: usize,
    /// Rows from the top down.
    cells: String,
    /// Legend of characters and values.
    levels: &'static str,
    least: f64,
    largest: f64,
    value: &'a str,
    outlines: Vec<&'a Outline>,
}

impl HeatMap {
    /// The map; a note counts the values left out.
    pub fn render(&self) -> Figure {
        let mut notes = Vec::new();
        let left_out = self.values.iter().filter(|v| v.is_infinite() || **v < 0.0).count();
        note_left_out(left_out, &mut notes);
        let (columns, cells) = self.merged();
        let some = cells.iter().copied().filter(|v| *v > 0.0);
        let ends = (some.clone().reduce(f64::min), some.reduce(f64::max));
        let axis = |axis: &Axis, range: (f64, f64)| {
            let (low, high) = range;
            let shown = if is_flat(range) { low + size(range) } else { high };
            (low < high && high - low <= f64::MAX).then(|| axis.clone().range(low, shown))
        };
        let (Some(least), Some(largest), Some(x), Some(y)) =
            (ends.0, ends.1, axis(&self.x, self.x_range), axis(&self.y, self.y_range))
        else {
            return Figure::empty(&notes);
        };
        let is_finite = |o: &&Outline| [o.x.0, o.x.1, o.y.0, o.y.1].iter().all(|v| v.is_finite());
        let outlines: Vec<&Outline> = self.outlines.iter().filter(is_finite).collect();
        let drawn = Drawn {
            kind: "map",
            x,
            y,
            columns,
            cells: cells.iter().map(|v| level(*v, least, largest)).collect(),
            levels: std::str::from_utf8(LEVELS).expect("ASCII"),
            least,
            largest,
            value: &self.value_label,
            outlines: first(&outlines, OUTLINES_MAX, &mut notes).to_vec(),
        };
        Figure::drawn(&drawn, &notes)
    }

    /// Columns, and cells such that each has some pixels, the top row first.
    fn merged(&self) -> (usize, Vec<f64>) {
        let columns = self.columns.max(1);
        let rows = self.values.len().div_ceil(columns);
        let (by_x, wide) = merging(columns, COLUMNS_MAX, self.x_range);
        let (by_y, high) = merging(rows, ROWS_MAX, self.y_range);
        let mut cells = vec![0.0_f64; wide * high];
        for (i, value) in self.values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
            let (column, row) = (i % columns / by_x, i / columns / by_y);
            let cell = &mut cells[(high - 1 - row) * wide + column];
            *cell = cell.max(*value);
        }
        (wide, cells)
    }
}

/// Number of cells that become one, and of the cells after that.
fn merging(cells: usize, cells_max: usize, range: (f64, f64)) -> (usize, usize) {
    if is_flat(range) {
        return (cells.max(1), FLAT_CELLS);
    }
    let merged = cells.div_ceil(cells_max).max(1);
    (merged, cells.div_ceil(merged))
}

fn size((low, high): (f64, f64)) -> f64 {
    low.abs().max(high.abs()).max(1.0)
}

fn is_flat((low, high): (f64, f64)) -> bool {
    high - low <= FLAT * size((low, high))
}

fn level(value: f64, least: f64, largest: f64) -> char {
    if value <= 0.0 {
        return BLANK;
    }
    let part = (value / least).ln() / (largest / least).ln();
    let part = if part.is_nan() { 1.0 } else { part };
    char::from(LEVELS[((part * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)])
}
