//! Points, such as the LBA of each request over time (figure 1 of the Pregather paper).
//!
//! Up to a few hundred points are circles with tooltips. More are binned into cells of a few
//! pixels, darker where more of them fall, so that the figure's size has a limit.

use std::fmt::Write as _;

use super::scale::{Along, Axis, FittedAxis};
use super::sheet::{Area, Key, RIGHT, Sheet, WIDTH, left_margin};
use super::{Look, Series};
use crate::number;
use crate::svg::{Escaped, Px, Svg};

/// Up to so many points in all are drawn one by one.
const CIRCLES_MAX: usize = 400;
/// Cells are made coarser until no more runs of cells than this are drawn.
const RUNS_MAX: usize = 12_000;
/// Sides of a cell, in pixels.
const CELL_SIDES: [f64; 4] = [2.0, 3.0, 4.0, 6.0];
/// Series that cover less than this part of a common axis are drawn in panels of their own.
const COVERED_MIN: f64 = 0.2;
const PANELS_MAX: usize = 16;

/// A cloud of points for each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// Horizontal axis, common to all panels.
    pub x: Axis,
    /// Vertical axis, fitted to the points of each panel.
    pub y: Axis,
    pub series: Vec<Series>,
    /// Whether they share one y axis.
    pub panels: Panels,
}

/// Whether series share a panel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panels {
    /// Apart when they lie far apart, so that a VM's own pattern can be seen on a large disk.
    #[default]
    Auto,
    Together,
    /// One below the other, each with its own y range.
    Apart,
}

/// A series in its panel.
struct PlacedSeries<'a> {
    series: &'a Series,
    look: Look,
    area: Area<'a>,
}

impl Scatter {
    /// Draws circles if there are few points, and cells of pixels if there are many.
    pub fn render(&self) -> Svg {
        let mut sheet = Sheet::new();
        let shown: Vec<&Series> =
            self.series.iter().filter(|s| s.points.iter().any(|p| self.shows(*p))).collect();
        let total: usize = self.series.iter().map(|s| s.points.len()).sum();
        let left_out = total - self.points(&self.series.iter().collect::<Vec<_>>()).count();
        let xs = self.points(&shown).map(|p| p.0);
        let Some(x) = self.x.fit(xs, WIDTH - RIGHT - 80.0, Along::X) else {
            return sheet.empty(left_out);
        };
        let looks = Look::all(shown.iter().map(|s| s.reference));
        let apart = self.are_apart(&shown);
        let shown = if apart { sheet.first(&shown, PANELS_MAX) } else { &shown[..] };
        let groups: Vec<Vec<(&Series, Look)>> = if apart {
            shown.iter().copied().zip(looks).map(|one| vec![one]).collect()
        } else {
            let keys = shown.iter().zip(&looks);
            sheet.legend(keys.map(|(s, &look)| Key { name: &s.name, look, line: false }));
            vec![shown.iter().copied().zip(looks).collect()]
        };
        self.draw(&mut sheet, &groups, &x, apart);
        sheet.note_left_out(left_out);
        sheet.finish()
    }

    fn draw(
        &self,
        sheet: &mut Sheet,
        groups: &[Vec<(&Series, Look)>],
        x: &FittedAxis,
        apart: bool,
    ) {
        let height = if apart { 130.0 } else { 340.0 };
        let fitted: Vec<(&Vec<(&Series, Look)>, FittedAxis)> = groups
            .iter()
            .filter_map(|group| {
                let series: Vec<&Series> = group.iter().map(|(series, _)| *series).collect();
                Some((group, self.y.fit(self.points(&series).map(|p| p.1), height, Along::Y)?))
            })
            .collect();
        let left = left_margin(&fitted.iter().map(|(_, y)| y).collect::<Vec<_>>());
        let count = fitted.len();
        let mut placed = Vec::new();
        for (i, (group, y)) in fitted.iter().enumerate() {
            let heading = if apart { group[0].0.name.as_str() } else { "" };
            let area = sheet.panel(heading, left, height, x, y, i + 1 == count);
            sheet.y_title(area.top, area.top + height, &y.title);
            placed.extend(group.iter().map(|(series, look)| PlacedSeries {
                series,
                look: *look,
                area: area.clone(),
            }));
        }
        sheet.x_title(left, &x.title);
        if placed.iter().map(|p| p.series.points.len()).sum::<usize>() <= CIRCLES_MAX {
            placed.iter().for_each(|placed| self.draw_circles(sheet, placed));
        } else {
            self.draw_cells(sheet, &placed);
        }
    }

    fn draw_circles(
        &self,
        sheet: &mut Sheet,
        PlacedSeries { series, look, area }: &PlacedSeries<'_>,
    ) {
        for point in self.within(series, area) {
            let pixel = (area.x(point.0), area.y(point.1));
            sheet.circle(&look.fill(), pixel, 2.5, &series.tip(&self.x, &self.y, point));
        }
    }

    /// All series in cells of one size: the finest that keeps the figure small.
    fn draw_cells(&self, sheet: &mut Sheet, placed: &[PlacedSeries<'_>]) {
        let pixels: Vec<Vec<(f64, f64)>> = placed
            .iter()
            .map(|PlacedSeries { series, area, .. }| {
                let inside = |p: (f64, f64)| (area.x(p.0) - area.left, area.y(p.1) - area.top);
                self.within(series, area).map(inside).collect()
            })
            .collect();
        let runs_at = |side: f64| -> Vec<Vec<Run>> {
            placed
                .iter()
                .zip(&pixels)
                .map(|(p, pixels)| runs_of_cells(pixels, &p.area, side))
                .collect()
        };
        let small = |runs: &[Vec<Run>]| runs.iter().map(Vec::len).sum::<usize>() <= RUNS_MAX;
        let mut sides = CELL_SIDES.into_iter();
        let mut side = CELL_SIDES[0];
        let mut drawn = Vec::new();
        while let Some(next) = sides.next().filter(|_| drawn.is_empty() || !small(&drawn)) {
            (side, drawn) = (next, runs_at(next));
        }
        for ((PlacedSeries { series, look, area }, runs), points) in
            placed.iter().zip(&drawn).zip(&pixels)
        {
            let tip = format!("{}: {} points", series.name, number::count(points.len() as u64));
            let (tip, x, y) = (Escaped(&tip), Px(area.left), Px(area.top + side / 2.0));
            let _ = write!(
                sheet.body,
                r#"<g transform="translate({x} {y})scale({side})"><title>{tip}</title>"#
            );
            draw_runs(sheet, runs, LEVELS, |level| format!("{} a{level}", look.stroke()));
        }
    }

    fn within<'a>(
        &'a self,
        series: &'a Series,
        area: &'a Area<'_>,
    ) -> impl Iterator<Item = (f64, f64)> + 'a {
        let fits = |p: &(f64, f64)| self.shows(*p) && area.x.contains(p.0) && area.y.contains(p.1);
        series.points.iter().copied().filter(fits)
    }

    fn points<'a>(&'a self, series: &[&'a Series]) -> impl Iterator<Item = (f64, f64)> + 'a {
        let points: Vec<&'a [(f64, f64)]> = series.iter().map(|s| s.points.as_slice()).collect();
        points.into_iter().flatten().copied().filter(|p| self.shows(*p))
    }

    fn shows(&self, (x, y): (f64, f64)) -> bool {
        self.x.shows(x) && self.y.shows(y)
    }

    fn are_apart(&self, shown: &[&Series]) -> bool {
        if shown.len() < 2 {
            return false;
        }
        let span = |ys: &mut dyn Iterator<Item = f64>| {
            let (low, high) =
                ys.fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
            high / 2.0 - low / 2.0 // Halved: the whole might overflow.
        };
        match self.panels {
            Panels::Together => false,
            Panels::Apart => true,
            Panels::Auto => {
                let own: f64 =
                    shown.iter().map(|s| span(&mut self.points(&[*s]).map(|p| p.1))).sum();
                own < COVERED_MIN * span(&mut self.points(shown).map(|p| p.1))
            }
        }
    }
}

/// How many shades tell how many points a cell holds.
const LEVELS: usize = 3;

/// Adjacent cells of the same shade in one row of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub row: usize,
    pub column: usize,
    pub length: usize,
    pub level: usize,
}

fn runs_of_cells(points: &[(f64, f64)], area: &Area<'_>, side: f64) -> Vec<Run> {
    let columns = (area.width / side).floor().max(1.0) as usize;
    let rows = (area.height / side).floor().max(1.0) as usize;
    let mut counts = vec![0_u32; columns * rows];
    for (x, y) in points {
        let column = ((x / side) as usize).min(columns - 1);
        let row = ((y / side) as usize).min(rows - 1);
        counts[row * columns + column] += 1;
    }
    let level = |count: u32| match count {
        0 => None,
        1 => Some(0),
        2..=3 => Some(1),
        _ => Some(2),
    };
    runs(&counts.iter().map(|count| level(*count)).collect::<Vec<_>>(), columns)
}

/// The runs of a grid of shades, row by row.
pub(super) fn runs(levels: &[Option<usize>], columns: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    for (row, cells) in levels.chunks(columns.max(1)).enumerate() {
        let mut column = 0;
        for same in cells.chunk_by(|a, b| a == b) {
            if let Some(level) = same[0] {
                runs.push(Run { row, column, length: same.len(), level });
            }
            column += same.len();
        }
    }
    runs
}

/// A path for each of `levels` shades, in a group that has been opened, whose unit is a cell.
pub(super) fn draw_runs(
    sheet: &mut Sheet,
    runs: &[Run],
    levels: usize,
    class: impl Fn(usize) -> String,
) {
    for level in 0..levels {
        let path = path_of_runs(runs.iter().filter(|run| run.level == level));
        if !path.is_empty() {
            sheet.path(&format!("px {}", class(level)), &path);
        }
    }
    sheet.body.push_str("</g>");
}

/// A path of strokes one unit wide, with relative moves because they are short.
fn path_of_runs<'a>(runs: impl Iterator<Item = &'a Run>) -> String {
    let mut path = String::new();
    let (mut row, mut column) = (0_i64, 0_i64);
    for run in runs {
        let (to_row, to_column) = (run.row as i64, run.column as i64);
        let _ = write!(path, "m{} {}h{}", to_column - column, to_row - row, run.length);
        (row, column) = (to_row, to_column + run.length as i64);
    }
    path
}
