//! Lines: bandwidth over time, distributions of response time, sweeps of a parameter.

use std::fmt::Write as _;

use super::scale::{Along, Axis};
use super::sheet::{Area, Key, RIGHT, Sheet, WIDTH, left_margin};
use super::{Look, Series};
use crate::svg::{Escaped, Px, Svg};

/// Lines of up to so many points mark each of them.
const MARKED_MAX: usize = 24;
const HEIGHT: f64 = 280.0;

/// A line for each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Horizontal axis, common to all series.
    pub x: Axis,
    /// Vertical axis, common to all series.
    pub y: Axis,
    /// One line each. Points are joined in their order; a y of NaN makes a gap.
    pub series: Vec<Series>,
}

impl Lines {
    /// Draws the lines, those of references below the others.
    pub fn render(&self) -> Svg {
        let mut sheet = Sheet::new();
        let all = || self.series.iter().flat_map(|s| s.points.iter().copied());
        let left_out = all().filter(|p| !self.shows(*p) && !p.1.is_nan()).count();
        let shown = || all().filter(|p| self.shows(*p));
        let y = self.y.fit(shown().map(|p| p.1), HEIGHT, Along::Y);
        let x = self.x.fit(shown().map(|p| p.0), WIDTH - RIGHT - 70.0, Along::X);
        let (Some(x), Some(y), Some(_)) = (x, y, shown().next()) else {
            return sheet.empty(left_out);
        };
        let looks = Look::all(self.series.iter().map(|s| s.reference));
        let keys = self.series.iter().zip(&looks);
        sheet.legend(keys.map(|(s, &look)| Key { name: &s.name, look, line: true }));
        let left = left_margin(&[&y]);
        let area = sheet.panel("", left, HEIGHT, &x, &y, true);
        sheet.y_title(area.top, area.top + HEIGHT, &y.title);
        sheet.x_title(left, &x.title);
        // References lie below what is compared with them.
        let mut ordered: Vec<(&Series, Look)> = self.series.iter().zip(looks).collect();
        ordered.sort_by_key(|(series, _)| !series.reference);
        for (series, look) in ordered {
            self.draw(&mut sheet, &area, series, look);
        }
        sheet.note_left_out(left_out);
        sheet.finish()
    }

    fn draw(&self, sheet: &mut Sheet, area: &Area<'_>, series: &Series, look: Look) {
        let name = Escaped(&series.name);
        let (stroke, dash) = (look.stroke(), look.dash());
        let marked = series.points.len() <= MARKED_MAX;
        let mut path = String::new();
        let mut marks = Vec::new();
        for segment in series.points.split(|p| p.1.is_nan()) {
            let visible: Vec<(f64, f64)> =
                segment.iter().copied().filter(|p| self.shows(*p)).collect();
            let pixels: Vec<(f64, f64)> =
                visible.iter().map(|p| (area.x(p.0), area.y(p.1))).collect();
            path.extend(joined(&thinned(&pixels)));
            if marked || pixels.len() == 1 {
                marks.extend(visible.into_iter().zip(pixels));
            }
        }
        if !path.is_empty() {
            let _ = write!(
                sheet.body,
                r#"<path class="ln {stroke}"{dash} d="{path}"><title>{name}</title></path>"#
            );
        }
        for (point, pixel) in marks {
            sheet.circle(&look.fill(), pixel, 3.0, &series.tip(&self.x, &self.y, point));
        }
    }

    fn shows(&self, (x, y): (f64, f64)) -> bool {
        self.x.shows(x) && self.y.shows(y)
    }
}

/// What a line looks like at one pixel of width: of the points in each column of pixels the
/// first, the lowest, the highest and the last.
fn thinned(pixels: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for column in pixels.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        if column.len() <= 4 {
            kept.extend(column);
            continue;
        }
        let by_y = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
        let low = (0..column.len()).min_by(by_y).unwrap_or(0);
        let high = (0..column.len()).max_by(by_y).unwrap_or(0);
        let mut chosen = [0, low.min(high), low.max(high), column.len() - 1].to_vec();
        chosen.dedup();
        kept.extend(chosen.into_iter().map(|i| column[i]));
    }
    kept
}

fn joined(points: &[(f64, f64)]) -> Option<String> {
    let ((x, y), rest) = points.split_first()?;
    if rest.is_empty() {
        return None; // A dot is drawn instead.
    }
    let mut path = format!("M{} {}", Px(*x), Px(*y));
    for (i, (x, y)) in rest.iter().enumerate() {
        let command = if i == 0 { "L" } else { " " };
        let _ = write!(path, "{command}{} {}", Px(*x), Px(*y));
    }
    Some(path)
}
