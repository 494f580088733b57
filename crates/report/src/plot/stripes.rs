//! Rows of stretches of time: what was on when, and over it what was where.

use std::fmt::Write as _;

use super::Look;
use super::scale::{Along, Axis, FittedAxis};
use super::sheet::{Key, RIGHT, Sheet, WIDTH};
use crate::svg::{Px, Svg, shortened, text_width};

const ROW: f64 = 26.0;
const STRETCH: f64 = 18.0;
const MARK: f64 = 5.0;
const NAME_MAX: f64 = 180.0;
/// Rows, and stretches of each, that are drawn.
const ROWS_MAX: usize = 64;
const STRETCHES_MAX: usize = 2000;

/// Rows on one axis of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Stripes {
    /// Axis of time, common to all rows.
    pub axis: Axis,
    /// What the stretches and the marks are, for the legend.
    pub names: [String; 2],
    /// From the top down.
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Shown to the left of the row, shortened if it is long.
    pub name: String,
    /// Stretches, each from and to.
    pub stretches: Vec<(f64, f64)>,
    /// Marks over them, each from and to.
    pub marks: Vec<(f64, f64)>,
}

impl Stripes {
    /// Draws the rows from the top down, with their axis and a legend.
    pub fn render(&self) -> Svg {
        let mut sheet = Sheet::new();
        let rows = &self.rows[..self.rows.len().min(ROWS_MAX)];
        let ends = rows.iter().flat_map(|row| row.stretches.iter().chain(&row.marks));
        let ends = ends.flat_map(|&(from, to)| [from, to]).filter(|at| at.is_finite());
        let names = rows.iter().map(|row| text_width(&row.name)).fold(0.0, f64::max).min(NAME_MAX);
        let left = 8.0 + names + 10.0;
        let Some(x) = self.axis.fit(ends, WIDTH - RIGHT - left, Along::X) else {
            return sheet.empty(0);
        };
        let looks = Look::all([false, false].into_iter());
        let key = |n: usize| Key { name: &self.names[n], look: looks[n], line: false };
        sheet.legend([key(0), key(1)]);
        let y = FittedAxis::frame();
        let area = sheet.panel("", left, rows.len() as f64 * ROW, &x, &y, true);
        let mut left_out = self.rows.len() - rows.len();
        for (n, row) in rows.iter().enumerate() {
            let top = area.top + n as f64 * ROW + (ROW - STRETCH) / 2.0;
            let name = shortened(&row.name, NAME_MAX);
            sheet.text_with_tip("e", left - 8.0, top + 13.0, &name, &row.name);
            let draw = |of: &[(f64, f64)], look: Look, y: f64, height: f64| {
                let mut path = String::new();
                let drawn = of.iter().filter(|(from, to)| from <= to).take(STRETCHES_MAX);
                for (from, to) in drawn {
                    let (from, to) = (area.x(*from), area.x(*to));
                    let width = Px((to - from).max(0.5));
                    let _ =
                        write!(path, "M{} {}h{width}v{}h-{width}z", Px(from), Px(y), Px(height));
                }
                format!(r#"<path class="{}" d="{path}"/>"#, look.fill())
            };
            left_out += row.stretches.len().saturating_sub(STRETCHES_MAX);
            sheet.body += &draw(&row.stretches, looks[0], top, STRETCH);
            sheet.body += &draw(&row.marks, looks[1], top + STRETCH - MARK, MARK);
        }
        sheet.x_title(left, &x.title);
        sheet.note_left_out(left_out);
        sheet.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripes(rows: Vec<Row>) -> Stripes {
        let names = ["runs", "reader"].map(String::from);
        Stripes { axis: Axis::time("time", "ms"), names, rows }
    }

    #[test]
    fn each_stretch_and_mark_is_drawn_in_its_row() {
        let row = |name: &str| Row {
            name: name.into(),
            stretches: vec![(0.0, 11.0), (44.0, 55.0)],
            marks: vec![(3.0, 7.0)],
        };
        let text = stripes(vec![row("vCPU 0"), row("vCPU 1")]).render().to_document();
        assert!(text.contains("vCPU 0") && text.contains("vCPU 1") && text.contains("reader"));
        let paths: Vec<&str> = text.split("<path class=\"f").skip(1).collect();
        assert_eq!(paths.len(), 4, "stretches and marks of two rows");
        let pieces = |path: &str| path.split("/>").next().map_or(0, |d| d.matches('z').count());
        assert_eq!(paths.iter().map(|p| pieces(p)).collect::<Vec<_>>(), [2, 1, 2, 1]);
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_too() {
        assert!(stripes(Vec::new()).render().to_document().contains("No data"));
        let odd = Row { stretches: vec![(f64::NAN, 1.0), (5.0, 2.0)], ..Row::default() };
        assert!(!stripes(vec![odd]).render().to_document().contains("NaN"));
    }

    #[test]
    fn the_size_is_bounded() {
        let many: Vec<(f64, f64)> =
            (0..10_000).map(|n| (f64::from(n), f64::from(n) + 0.5)).collect();
        let row = Row { stretches: many, ..Row::default() };
        let text = stripes(vec![row; 100]).render().to_document();
        assert!(text.len() < 64 * 2000 * 48, "{}", text.len());
        assert!(text.contains("Left out"));
    }
}
