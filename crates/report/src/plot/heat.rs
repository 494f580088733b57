//! A heat map: how much happened when (to the right) and where (upwards).

use std::fmt::Write as _;

use super::scale::{Along, Axis};
use super::scatter::{draw_runs, runs};
use super::sheet::{Area, EDGE, RIGHT, Sheet, WIDTH, left_margin};
use crate::number;
use crate::svg::{Px, RAMP, Svg, text_width};

/// More cells than this are merged, the largest value winning: a hot zone must stay visible.
const COLUMNS_MAX: usize = 240;
const ROWS_MAX: usize = 120;
const HEIGHT: f64 = 300.0;
const OUTLINES_MAX: usize = 400;

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
    /// What the values are, with their unit: "requests per zone".
    pub value_label: String,
    /// Drawn over the cells: predicted intervals, thresholds crossed.
    pub outlines: Vec<Outline>,
}

/// A frame around part of the map, in the axes' units.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// Left and right edge, in the unit of the x axis.
    pub x: (f64, f64),
    /// Lower and upper edge, in the unit of the y axis.
    pub y: (f64, f64),
    pub label: String,
}

/// From values to shades, by equal factors from shade to shade.
struct Shades {
    low: f64,
    high: f64,
}

impl HeatMap {
    /// Draws the map and its key; a note counts the values left out.
    pub fn render(&self) -> Svg {
        let mut sheet = Sheet::new();
        let left_out = self.values.iter().filter(|v| v.is_infinite() || **v < 0.0).count();
        let (columns, rows, cells) = self.merged();
        let some = cells.iter().copied().filter(|v| *v > 0.0);
        let axis = |axis: &Axis, range: (f64, f64), length, along| {
            axis.clone().range(range.0, range.1).fit([range.0, range.1].into_iter(), length, along)
        };
        let x = axis(&self.x, self.x_range, WIDTH - RIGHT - 80.0, Along::X);
        let y = axis(&self.y, self.y_range, HEIGHT, Along::Y);
        let (low, high) = (some.clone().reduce(f64::min), some.reduce(f64::max));
        let (Some(x), Some(y), Some((low, high))) = (x, y, low.zip(high)) else {
            return sheet.empty(left_out);
        };
        let shades = Shades { low, high };
        self.draw_key(&mut sheet, &shades);
        let left = left_margin(&[&y]);
        let area = sheet.panel("", left, HEIGHT, &x, &y, true);
        sheet.y_title(area.top, area.top + HEIGHT, &y.title);
        let levels: Vec<Option<usize>> = cells.iter().map(|v| shades.shade(*v)).collect();
        draw_cells(&mut sheet, &area, &levels, columns, rows);
        self.draw_outlines(&mut sheet, &area);
        sheet.x_title(left, &x.title);
        if self.outlines.len() > OUTLINES_MAX {
            sheet.note(format!(
                "The first {OUTLINES_MAX} of {} frames are shown.",
                self.outlines.len()
            ));
        }
        sheet.note_left_out(left_out);
        sheet.finish()
    }

    /// Columns, rows and cells such that each cell has some pixels, the top row first.
    fn merged(&self) -> (usize, usize, Vec<f64>) {
        let columns = self.columns.max(1);
        let rows = self.values.len().div_ceil(columns);
        let (by_x, by_y) = (columns.div_ceil(COLUMNS_MAX).max(1), rows.div_ceil(ROWS_MAX).max(1));
        let (wide, high) = (columns.div_ceil(by_x), rows.div_ceil(by_y));
        let mut cells = vec![0.0_f64; wide * high];
        for (i, value) in self.values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
            let (column, row) = (i % columns / by_x, i / columns / by_y);
            let cell = &mut cells[(high - 1 - row) * wide + column];
            *cell = cell.max(*value);
        }
        (wide, high, cells)
    }

    /// The ramp with its ends, as a legend.
    fn draw_key(&self, sheet: &mut Sheet, shades: &Shades) {
        let name = format!("{}, logarithmic:", self.value_label);
        let mut x = EDGE;
        let y = sheet.top;
        sheet.text("", x, y + 11.0, &name);
        x += text_width(&name) + 8.0;
        let low = number::significant(shades.low, 2);
        sheet.text("s", x, y + 11.0, &low);
        x += text_width(&low) + 6.0;
        for shade in 0..RAMP {
            let tip = format!("from {}", number::significant(shades.start(shade), 3));
            sheet.rect(&format!("q{shade}"), (x, y + 1.0), (20.0, 12.0), &tip);
            x += 20.0;
        }
        sheet.text("s", x + 6.0, y + 11.0, &number::significant(shades.high, 2));
        sheet.top += 20.0;
    }

    fn draw_outlines(&self, sheet: &mut Sheet, area: &Area<'_>) {
        for outline in self.outlines.iter().take(OUTLINES_MAX) {
            let ends = [outline.x.0, outline.x.1, outline.y.0, outline.y.1];
            if ends.iter().any(|v| !v.is_finite()) {
                continue;
            }
            let (left, right) = (area.x(outline.x.0), area.x(outline.x.1));
            let (top, bottom) = (area.y(outline.y.1), area.y(outline.y.0));
            let size = ((right - left).max(1.0), (bottom - top).max(1.0));
            sheet.rect("ol", (left, top), size, &outline.label);
        }
    }
}

fn draw_cells(
    sheet: &mut Sheet,
    area: &Area<'_>,
    levels: &[Option<usize>],
    columns: usize,
    rows: usize,
) {
    // One unit is one cell; half a unit down, because strokes lie on both sides of their path.
    let (wide, high) = (area.width / columns as f64, area.height / rows as f64);
    let _ = write!(
        sheet.body,
        r#"<g transform="translate({} {})scale({wide:.4} {high:.4})">"#,
        Px(area.left),
        Px(area.top + high / 2.0)
    );
    draw_runs(sheet, &runs(levels, columns), RAMP, |level| format!("q{level}"));
}

impl Shades {
    fn shade(&self, value: f64) -> Option<usize> {
        if value <= 0.0 || value.is_nan() {
            return None;
        }
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        let part = if part.is_nan() { 1.0 } else { part };
        Some(((part * RAMP as f64) as usize).min(RAMP - 1))
    }

    fn start(&self, shade: usize) -> f64 {
        self.low * (self.high / self.low).powf(shade as f64 / RAMP as f64)
    }
}
