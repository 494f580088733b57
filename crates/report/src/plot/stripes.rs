//! Rows of stretches of time: what was on when, and over it what was where.

use maud::{Markup, html};

use super::{Axis, Figure, first, note_left_out};

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
    /// To the left of the row.
    pub name: String,
    /// Stretches, each from and to.
    pub stretches: Vec<(f64, f64)>,
    /// Marks over them, each from and to.
    pub marks: Vec<(f64, f64)>,
}

impl Stripes {
    /// The rows from the top down, with their axis and a legend.
    pub fn render(&self) -> Figure {
        let mut notes = Vec::new();
        let rows = first(&self.rows, ROWS_MAX, &mut notes);
        let all = rows.iter().flat_map(|row| row.stretches.iter().chain(&row.marks));
        let all = all.filter(|stretch| self.shows(stretch));
        let Some((low, high)) =
            all.copied().reduce(|(low, high), (from, to)| (low.min(from), high.max(to)))
        else {
            return Figure::empty(&notes);
        };
        let (low, high) = self.axis.ends().unwrap_or((low, high));
        let left_out = rows.iter().map(|row| row.stretches.len().saturating_sub(STRETCHES_MAX));
        note_left_out(left_out.sum(), &mut notes);
        let drawn = |of: &[(f64, f64)], class: &str| -> Markup {
            let part = |at: f64| (at - low) / (high - low).max(f64::MIN_POSITIVE) * 100.0;
            html! { @for &(from, to) in of.iter().filter(|s| self.shows(s)).take(STRETCHES_MAX) {
                i class=(class) style={ (format!("left:{:.2}%;width:{:.2}%", part(from), part(to) - part(from))) } {}
            } }
        };
        let figure = html! {
            div.bars.stripes {
                p.legend { span { i.c0 {} (self.names[0]) } span { i.c1 {} (self.names[1]) } }
                div.groups { @for row in rows {
                    div.name title=(row.name) { (row.name) }
                    div.group { div.track { (drawn(&row.stretches, "bar c0")) (drawn(&row.marks, "mark c1")) } }
                } }
                p.axis { (self.axis.title()) ", from " (self.axis.shown(low)) " to " (self.axis.shown(high)) }
            }
        };
        Figure::plain(&figure, &notes)
    }

    fn shows(&self, &(from, to): &(f64, f64)) -> bool {
        from <= to && self.axis.shows(from) && self.axis.shows(to)
    }
}
