//! Figures: data as JSON, which the page's script draws with uPlot, or plain HTML.
//!
//! Each figure is a struct of plain data with a `render(&self) -> Figure` that cannot fail: values
//! that are not finite, or not positive on a logarithmic axis, are left out and counted in a note
//! below the figure; without data the figure says so. Sizes are bounded whatever the input.
//!
//! The script has lines, points, seek distances and maps: it zooms, hides what is clicked in the
//! legend, and shows values under the pointer. Bars are HTML, because their names are of any
//! length and each bar says its value.

mod axis;
mod bars;
mod heat;
mod histogram;
mod lines;
mod sample;

pub use axis::Axis;
pub use bars::{Bar, BarSeries, Bars};
pub use heat::{HeatMap, Outline};
pub use histogram::{Histogram, SeekBins};
pub use lines::{Lines, Panels, Scatter};
pub use sample::PointSample;

use maud::{Markup, PreEscaped, html};
use serde::Serialize;

use crate::number;

/// Number of series with a colour of their own.
const COLOURS: usize = 8;

/// A figure of a report. It can only be made by this crate, so its text is already escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub(crate) html: String,
    /// Needs the page's script.
    pub(crate) drawn: bool,
}

/// Points under one name, in the order in which they are joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// As in the legend.
    pub name: String,
    /// (x, y), joined from left to right; in a line, a y of NaN makes a gap.
    pub points: Vec<(f64, f64)>,
    /// Drawn in grey and dotted: others' measurements, a bound, a baseline.
    pub reference: bool,
}

impl Series {
    /// A series in a colour of its own.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, reference: false }
    }

    /// Draws the series in grey and dotted.
    pub fn as_reference(self) -> Series {
        Series { reference: true, ..self }
    }
}

impl Figure {
    /// Data for the script `html/figures.js`, of the kind that they name.
    fn drawn(data: &impl Serialize, notes: &[String]) -> Figure {
        let json = serde_json::to_string(data).expect("numbers and text");
        // Nothing in it may end the element that it is in.
        let json = PreEscaped(json.replace('<', "\\u003c"));
        let drawn = html! { div.plot { script type="application/json" { (json) } } };
        Figure { drawn: true, ..Figure::plain(&drawn, notes) }
    }

    fn plain(drawn: &Markup, notes: &[String]) -> Figure {
        let html = html! { (drawn) @for note in notes { p.note { (note) } } };
        Figure { html: html.0, drawn: false }
    }

    fn empty(notes: &[String]) -> Figure {
        Figure::plain(&html! { p.empty { "No data" } }, notes)
    }
}

/// As many of `all` as are shown; a note says so if these are not all.
fn first<'a, T>(all: &'a [T], shown_max: usize, notes: &mut Vec<String>) -> &'a [T] {
    if all.len() > shown_max {
        notes.push(format!("The first {shown_max} of {} are shown.", all.len()));
    }
    &all[..all.len().min(shown_max)]
}

/// Says how much had to be left out.
fn note_left_out(left_out: usize, notes: &mut Vec<String>) {
    if left_out > 0 {
        let what = if left_out == 1 { "value that has" } else { "values that have" };
        let count = number::count(left_out as u64);
        notes.push(format!("Left out: {count} {what} no place on these axes."));
    }
}

/// Class of each series' colour: those of the palette in turn, grey for a reference.
fn colours(references: impl Iterator<Item = bool>) -> Vec<String> {
    let mut next = 0..;
    references
        .map(|reference| match reference {
            true => "ref".to_owned(),
            false => format!("c{}", next.next().unwrap_or(0) % COLOURS),
        })
        .collect()
}
