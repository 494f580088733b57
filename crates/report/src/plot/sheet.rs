//! The paper that a figure is drawn on, from the top down: legend, panels, notes.
//!
//! The height follows from the content, so nothing has to be squeezed and the legend never lies
//! over data.

use std::fmt::Write as _;

use super::Look;
use super::scale::FittedAxis;
use crate::number;
use crate::svg::{Escaped, Px, Svg, shortened, text_width};

/// Of every figure, in pixels.
pub(super) const WIDTH: f64 = 720.0;
/// Room on the right for half of the last tick's label.
pub(super) const RIGHT: f64 = 24.0;
const LINE: f64 = 18.0;
/// Where legends and notes begin.
pub(super) const EDGE: f64 = 2.0;

/// A figure in the making.
pub(super) struct Sheet {
    pub body: String,
    /// The next free pixel row.
    pub top: f64,
    notes: Vec<String>,
}

/// The part of a panel in which data are drawn, with both axes.
#[derive(Clone)]
pub(super) struct Area<'a> {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    pub x: &'a FittedAxis,
    pub y: &'a FittedAxis,
}

/// One entry of a legend.
pub(super) struct Key<'a> {
    pub name: &'a str,
    pub look: Look,
    /// A line with its dash rather than a filled square.
    pub line: bool,
}

impl Area<'_> {
    pub fn x(&self, value: f64) -> f64 {
        self.left + self.x.place(value) * self.width
    }

    pub fn y(&self, value: f64) -> f64 {
        self.top + (1.0 - self.y.place(value)) * self.height
    }
}

impl Sheet {
    pub fn new() -> Sheet {
        Sheet { body: String::new(), top: 6.0, notes: Vec::new() }
    }

    /// A row of names, wrapped; nothing for a single name that has no need of it.
    pub fn legend<'a>(&mut self, keys: impl IntoIterator<Item = Key<'a>>) {
        let keys: Vec<Key<'a>> = keys.into_iter().collect();
        if keys.is_empty() || (keys.len() == 1 && keys[0].name.is_empty()) {
            return;
        }
        let mut x = EDGE;
        for key in keys {
            let name = shortened(key.name, WIDTH / 2.0);
            let width = 24.0 + text_width(&name) + 14.0;
            if x > EDGE && x + width > WIDTH {
                x = EDGE;
                self.top += LINE;
            }
            let y = self.top + 7.0;
            if key.line {
                self.line(key.look, &format!("M{} {}h18", Px(x), Px(y)));
            } else {
                let class = key.look.fill();
                let (x, y) = (Px(x + 3.0), Px(y - 6.0));
                let _ = write!(
                    self.body,
                    r#"<rect class="{class}" x="{x}" y="{y}" width="12" height="12" rx="2"/>"#
                );
            }
            self.text_with_tip("", x + 24.0, y + 4.0, &name, key.name);
            x += width;
        }
        self.top += LINE + 4.0;
    }

    /// Axes and grid of a panel; data are to be drawn next, on top of them.
    pub fn panel<'a>(
        &mut self,
        heading: &str,
        left: f64,
        height: f64,
        x: &'a FittedAxis,
        y: &'a FittedAxis,
        feet: bool,
    ) -> Area<'a> {
        if !heading.is_empty() {
            let shown = shortened(heading, (WIDTH - left - RIGHT) / 1.1);
            self.text_with_tip("hd", left, self.top + 11.0, &shown, heading);
            self.top += LINE;
        } else {
            self.top += 6.0; // Half of the uppermost tick's label.
        }
        let area = Area { left, top: self.top, width: WIDTH - left - RIGHT, height, x, y };
        let bottom = area.top + height;
        let mut grid = String::new();
        for tick in &y.ticks {
            let at = area.top + (1.0 - y.tick_place(tick)) * height;
            let _ = write!(grid, "M{} {}h{}", Px(left), Px(at), Px(area.width));
            self.text("s e", left - 6.0, at + 4.0, &tick.label);
        }
        grid += &self.x_ticks(x, (left, area.width), (area.top, height), feet);
        self.path("g", &grid);
        let (l, t, height, width) = (Px(left), Px(area.top), Px(height), Px(area.width));
        self.path("ax", &format!("M{l} {t}v{height}h{width}"));
        self.top = bottom + if feet { 20.0 } else { 10.0 };
        area
    }

    /// The grid's lines at the ticks of `x`, which begins at `left` and is so wide, from `top` on
    /// and so high; with `feet`, the ticks' labels are below them.
    pub fn x_ticks(
        &mut self,
        x: &FittedAxis,
        (left, width): (f64, f64),
        (top, height): (f64, f64),
        feet: bool,
    ) -> String {
        let mut grid = String::new();
        for tick in &x.ticks {
            let at = left + x.tick_place(tick) * width;
            let _ = write!(grid, "M{} {}v{}", Px(at), Px(top), Px(height));
            if feet {
                self.text("s m", at, top + height + 16.0, &tick.label);
            }
        }
        grid
    }

    /// The x axis's title, below the last panel.
    pub fn x_title(&mut self, left: f64, title: &str) {
        self.text("m", (left + WIDTH - RIGHT) / 2.0, self.top + 13.0, title);
        self.top += 22.0;
    }

    /// The y axis's title, upright beside the rows from `top` to here, and cut to that height.
    pub fn y_title(&mut self, top: f64, bottom: f64, title: &str) {
        let (y, title) = (Px((top + bottom) / 2.0), shortened(title, bottom - top + 30.0));
        let title = Escaped(&title);
        let _ = write!(
            self.body,
            r#"<text class="m" transform="translate(12 {y})rotate(-90)">{title}</text>"#
        );
    }

    pub fn path(&mut self, class: &str, path: &str) {
        let _ = write!(self.body, r#"<path class="{class}" d="{path}"/>"#);
    }

    /// A path in the colour and with the dash of a series' line.
    pub fn line(&mut self, look: Look, path: &str) {
        let (class, dash) = (look.stroke(), look.dash());
        let _ = write!(self.body, r#"<path class="ln {class}"{dash} d="{path}"/>"#);
    }

    /// A rectangle of this size with a tooltip.
    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), size: (f64, f64), tip: &str) {
        let (x, y, tip) = (Px(x), Px(y), Escaped(tip));
        let (width, height) = (Px(size.0), Px(size.1));
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"><title>{tip}</title></rect>"#
        );
    }

    /// A point with a tooltip.
    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tip: &str) {
        let (x, y, radius, tip) = (Px(x), Px(y), Px(radius), Escaped(tip));
        let _ = write!(
            self.body,
            r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}"><title>{tip}</title></circle>"#
        );
    }

    pub fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        self.text_with_tip(class, x, y, text, text);
    }

    /// Text whose whole is shown as a tooltip where it had to be cut.
    pub fn text_with_tip(&mut self, class: &str, x: f64, y: f64, text: &str, whole: &str) {
        let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
        let tip = if text == whole {
            String::new()
        } else {
            format!("<title>{}</title>", Escaped(whole))
        };
        let (x, y, text) = (Px(x), Px(y), Escaped(text));
        let _ = write!(self.body, r#"<text{class} x="{x}" y="{y}">{tip}{text}</text>"#);
    }

    /// A sentence below the figure.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// As many of `all` as are drawn; a note says so if these are not all.
    pub fn first<'a, T>(&mut self, all: &'a [T], drawn_max: usize) -> &'a [T] {
        if all.len() > drawn_max {
            self.note(format!("The first {drawn_max} of {} are shown.", all.len()));
        }
        &all[..all.len().min(drawn_max)]
    }

    /// Says how much had to be left out.
    pub fn note_left_out(&mut self, left_out: usize) {
        if left_out > 0 {
            let what = if left_out == 1 { "value that has" } else { "values that have" };
            self.note(format!(
                "Left out: {} {what} no place on these axes.",
                number::count(left_out as u64)
            ));
        }
    }

    /// The figure of no data.
    pub fn empty(mut self, left_out: usize) -> Svg {
        let (width, y) = (Px(WIDTH - 2.0 * EDGE), Px(self.top));
        let _ = write!(
            self.body,
            r#"<rect class="ax" x="{EDGE}" y="{y}" width="{width}" height="100" stroke-dasharray="4 4"/>"#
        );
        self.text("s m", WIDTH / 2.0, self.top + 54.0, "No data");
        self.top += 110.0;
        self.note_left_out(left_out);
        self.finish()
    }

    pub fn finish(mut self) -> Svg {
        for note in std::mem::take(&mut self.notes) {
            for line in textwrap::wrap(&note, 110) {
                self.text("s", EDGE, self.top + 12.0, &line);
                self.top += LINE - 2.0;
            }
        }
        Svg::new(self.body, WIDTH, self.top + 6.0)
    }
}

/// Room left of the plot for the y axis's labels and its upright title.
pub(super) fn left_margin(y: &[&FittedAxis]) -> f64 {
    let labels = y.iter().flat_map(|axis| &axis.ticks).map(|tick| text_width(&tick.label));
    20.0 + labels.fold(16.0, f64::max).min(160.0) + 6.0
}
