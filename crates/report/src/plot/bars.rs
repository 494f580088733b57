//! Grouped bars: policies by VM, or ours beside the paper's. They are horizontal, so that names of
//! any length can be read, and each says its value.

use maud::{Markup, html};

use super::{Axis, Figure, colours, first};
use crate::number;

const GROUPS_MAX: usize = 60;

/// A group for each thing measured, with one bar of each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The values' axis, of equal steps; zero is always included.
    pub axis: Axis,
    /// Names beside the groups, from the top down.
    pub groups: Vec<String>,
    pub series: Vec<BarSeries>,
}

/// The bars of one colour.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarSeries {
    /// As in the legend.
    pub name: String,
    /// One for each group; `None`, missing or not finite shows a dash.
    pub bars: Vec<Option<Bar>>,
    /// Drawn in grey: the paper's, a bound. One that is equal for several groups is a line across
    /// them.
    pub reference: bool,
}

/// A value, and how far it varied from seed to seed if that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bar {
    pub value: f64,
    /// Least and largest, drawn as a whisker.
    pub range: Option<(f64, f64)>,
}

impl From<f64> for Bar {
    fn from(value: f64) -> Bar {
        Bar { value, range: None }
    }
}

impl BarSeries {
    fn bar(&self, group: usize) -> Option<Bar> {
        self.bars.get(group).copied().flatten()
    }

    /// Position of the line that replaces these bars, if one does.
    fn line(&self, groups: usize) -> Option<f64> {
        let first = self.bar(0)?;
        let same = (0..groups).all(|g| self.bar(g) == Some(first));
        (self.reference && groups > 1 && same && first.value.is_finite()).then_some(first.value)
    }
}

/// Maps a value to its position, as a share of the width in percent.
struct Track {
    low: f64,
    high: f64,
}

impl Track {
    fn at(&self, value: f64) -> f64 {
        (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0) * 100.0
    }

    /// Style of a bar from one value to another.
    fn reach(&self, from: f64, to: f64) -> String {
        let (from, to) = (self.at(from.min(to)), self.at(from.max(to)));
        format!("left:{from:.2}%;width:{:.2}%", to - from)
    }
}

impl Bars {
    /// The bars with a legend; a note names the values that are left out.
    pub fn render(&self) -> Figure {
        let mut notes = Vec::new();
        let groups = first(&self.groups, GROUPS_MAX, &mut notes);
        let bars = (0..groups.len()).flat_map(|g| self.series.iter().filter_map(move |s| s.bar(g)));
        let ends = bars.filter(|bar| bar.value.is_finite()).flat_map(|bar| {
            let (low, high) = bar.range.unwrap_or((bar.value, bar.value));
            [bar.value, low, high].into_iter().filter(|v| v.is_finite())
        });
        let (low, high) = ends.fold((0.0_f64, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        if !groups.iter().enumerate().any(|(g, _)| self.series.iter().any(|s| s.bar(g).is_some())) {
            return Figure::empty(&notes);
        }
        // Of less than this a half might be zero.
        let is_wide = high - low > 4.0 * f64::MIN_POSITIVE;
        let track = Track { low, high: if is_wide { high } else { low + 1.0 } };
        let colours = colours(self.series.iter().map(|s| s.reference));
        let coloured: Vec<(&BarSeries, &str)> =
            self.series.iter().zip(colours.iter().map(String::as_str)).collect();
        let (lines, barred): (Vec<_>, Vec<_>) =
            coloured.iter().partition(|(series, _)| series.line(groups.len()).is_some());
        let drawn = html! {
            div.bars {
                @if coloured.iter().any(|(series, _)| !series.name.is_empty()) {
                    p.legend { @for (series, colour) in &coloured { span { i class=(colour) {} (series.name) } } }
                }
                div.groups {
                    @for (g, group) in groups.iter().enumerate() {
                        div.name title=(group) { (group) }
                        div.group {
                            @for (series, colour) in &barred { (self.bar(group, series, g, colour, &track)) }
                            @for (series, _) in &lines {
                                @if let Some(value) = series.line(groups.len()) {
                                    i.line style={ "left:" (format!("{:.2}", track.at(value))) "%" }
                                        title={ (series.name) ": " (self.axis.shown(value)) } {}
                                }
                            }
                        }
                    }
                }
                p.axis { (self.axis.title()) }
            }
        };
        Figure::plain(&drawn, &notes)
    }

    fn bar(
        &self,
        group: &str,
        series: &BarSeries,
        g: usize,
        colour: &str,
        track: &Track,
    ) -> Markup {
        let Some(bar) = series.bar(g).filter(|bar| bar.value.is_finite()) else {
            return html! { div.track { b style={ "left:" (format!("{:.2}", track.at(0.0))) "%" } { (number::ABSENT) } } };
        };
        let range = bar.range.filter(|(low, high)| low.is_finite() && high.is_finite());
        let mut tip = format!("{group}, {}: {}", series.name, self.axis.shown(bar.value));
        if let Some((low, high)) = range {
            tip += &format!(" ({} to {})", self.axis.shown(low), self.axis.shown(high));
        }
        let end = bar.value.max(0.0).max(range.map_or(0.0, |(_, high)| high));
        html! {
            div.track title=(tip) {
                i class={ "bar " (colour) } style=(track.reach(0.0, bar.value)) {}
                @if let Some((low, high)) = range { i.whisker style=(track.reach(low, high)) {} }
                b style={ "left:" (format!("{:.2}", track.at(end))) "%" } { (self.value_text(bar.value)) }
            }
        }
    }

    /// Values beside the bars share their decimals, as in a table's column.
    fn value_text(&self, value: f64) -> String {
        let given = self.series.iter().flat_map(|series| series.bars.iter().flatten());
        let scale = if self.axis.percent { 100.0 } else { 1.0 };
        let decimals = number::column_decimals(given.map(|bar| bar.value * scale));
        let unit = if self.axis.percent { " %" } else { "" };
        number::in_column(value * scale, decimals).replace('-', "−") + unit
    }
}
