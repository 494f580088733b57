//! Figures as small SVGs.
//!
//! Each figure is a struct of plain data with a `render(&self) -> Svg` that cannot fail: values
//! that are not finite, or not positive on a logarithmic axis, are left out and counted in a note
//! below the figure; without data the figure says so. Sizes are bounded whatever the input: points
//! are binned into cells, lines are thinned to what the pixels can show, both deterministically.
//!
//! The SVG is written here rather than by a plotting crate: plotters' backend inlines every
//! colour (no dark mode), writes an element for each point, has no tooltips and places its legend
//! over the data.

mod bars;
mod heat;
mod histogram;
mod lines;
mod sample;
mod scale;
mod scatter;
mod sheet;
mod stripes;

pub use bars::{Bar, BarSeries, Bars};
pub use heat::{HeatMap, Outline};
pub use histogram::{Histogram, SeekBins};
pub use lines::Lines;
pub use sample::PointSample;
pub use scale::Axis;
pub use scatter::{Panels, Scatter};
pub use stripes::{Row, Stripes};

use crate::svg::COLOURS;

/// Points under one name, in the order in which they are joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// As in the legend.
    pub name: String,
    /// (x, y); in a line, a y of NaN makes a gap.
    pub points: Vec<(f64, f64)>,
    /// Drawn in grey and dotted: what others measured, a bound, a baseline.
    pub reference: bool,
}

impl Series {
    /// A series in a colour of its own.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, reference: false }
    }

    /// The same series, in grey and dotted.
    pub fn as_reference(self) -> Series {
        Series { reference: true, ..self }
    }

    /// A tooltip of one of its points.
    fn tip(&self, x: &Axis, y: &Axis, point: (f64, f64)) -> String {
        format!("{}: {}, {}", self.name, x.shown(point.0), y.shown(point.1))
    }
}

/// The looks of a series: one of the palette's colours, with a dash from the fifth on so that
/// many lines can be told apart in print, or the grey of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look(Option<usize>);

impl Look {
    /// One for each series; references do not use up colours.
    fn all(references: impl Iterator<Item = bool>) -> Vec<Look> {
        let mut next = 0;
        references
            .map(|reference| {
                if reference {
                    return Look(None);
                }
                next += 1;
                Look(Some(next - 1))
            })
            .collect()
    }

    fn fill(self) -> String {
        self.0.map_or("fr".to_owned(), |i| format!("f{}", i % COLOURS))
    }

    fn stroke(self) -> String {
        self.0.map_or("lr".to_owned(), |i| format!("l{}", i % COLOURS))
    }

    fn dash(self) -> &'static str {
        match self.0 {
            Some(0..4) => "",
            None => r#" stroke-dasharray="1 4""#,
            Some(4..8) => r#" stroke-dasharray="7 4""#,
            Some(_) => r#" stroke-dasharray="7 4 1 4""#,
        }
    }
}
