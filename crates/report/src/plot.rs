//! Figures: data as JSON, which the page's script draws with uPlot, or plain HTML.
//!
//! Each figure is a struct of plain data with a `render(&self) -> Figure` that cannot fail: values
//! that are not finite, or not positive on a logarithmic axis, are left out and counted in a note
//! below the figure; without data the figure says so. Sizes are bounded whatever the input.
//!
//! The script has lines, points, seek distances and maps: it zooms, hides what is clicked in the
//! legend, and shows values under the pointer. Bars are HTML, because their names are of any
//! length and each bar says its value.

use crate::number;
use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use std::ops::Range;

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

// Axes. The page's script chooses their ticks by the room that there is.

/// Larger values are not shown, so that no difference of two overflows.
const HUGE: f64 = 1e300;
/// Values are written in steps of less than this part of an axis.
const STEPS_DIGITS: i32 = 4;

/// Quantity, unit and scale of an axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    label: String,
    unit: String,
    scale: Scale,
    range: Option<(f64, f64)>,
    from_zero: bool,
    tight: bool,
    percent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scale {
    #[default]
    Linear,
    Log,
    Nines,
}

impl Axis {
    /// Equal steps, over the data's range.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { label: label.into(), unit: unit.into(), ..Axis::default() }
    }

    /// Equal factors; values that are not positive are left out and counted.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(label, unit) }
    }

    /// Parts of one, from 0 to 100 %.
    pub fn share(label: impl Into<String>) -> Axis {
        Axis { percent: true, range: Some((0.0, 1.0)), ..Axis::linear(label, "") }
    }

    /// Parts of one for a cumulative distribution whose tail matters: 90 %, 99 %, 99.9 % …
    /// equally spaced.
    pub fn nines(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Nines, percent: true, ..Axis::linear(label, "") }
    }

    /// Equal steps, ending where the data end: for time.
    pub fn time(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { tight: true, ..Axis::linear(label, unit) }
    }

    /// Widens the axis to span zero; for axes of equal steps only.
    pub fn from_zero(self) -> Axis {
        Axis { from_zero: true, ..self }
    }

    /// Sets the range; an empty or infinite one is ignored.
    pub fn range(self, low: f64, high: f64) -> Axis {
        let is_one = self.shows(low) && self.shows(high) && low < high;
        Axis { range: is_one.then_some((low, high)), ..self }
    }

    /// Tells whether a value is within this axis.
    fn shows(&self, value: f64) -> bool {
        let has_place = match self.scale {
            Scale::Linear => value.abs() <= HUGE,
            Scale::Log => (1.0 / HUGE..=HUGE).contains(&value),
            Scale::Nines => (0.0..=1.0).contains(&value),
        };
        has_place && self.range.is_none_or(|(low, high)| (low..=high).contains(&value))
    }

    /// The values with as many digits as an eye can tell apart on an axis that spans them.
    fn shortened(&self, values: &[f64]) -> Vec<f64> {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let (low, high) = finite().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        let exponent = if high > low { (high - low).log10().floor() as i32 } else { 0 };
        let short = |v: f64| match self.scale {
            Scale::Log => format!("{v:.*e}", STEPS_DIGITS as usize).parse().unwrap_or(v),
            Scale::Nines => format!("{v:.9}").parse().unwrap_or(v),
            Scale::Linear if high <= low => v,
            Scale::Linear => rounded(v, STEPS_DIGITS - exponent),
        };
        values.iter().map(|&v| if v.is_finite() { short(v) } else { v }).collect()
    }

    /// Title with its unit.
    fn title(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, self.unit)
        }
    }

    /// A value with its unit.
    fn shown(&self, value: f64) -> String {
        if self.unit == "ms" {
            return number::time_ms(value);
        }
        if self.unit == "MiB/s" {
            return number::rate_mib_s(value);
        }
        if self.percent {
            return format!("{} %", number::significant(value * 100.0, 4));
        }
        let number = number::significant(value, 4);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }
}

/// Rounds to this number of decimals; a negative number rounds to tens, hundreds, and so on.
fn rounded(value: f64, decimals: i32) -> f64 {
    if let Ok(decimals) = usize::try_from(decimals) {
        return format!("{value:.*}", decimals.min(300)).parse().unwrap_or(value);
    }
    let step = 10f64.powi(-decimals);
    (value / step).round() * step
}

// A bounded sample of an unbounded stream of points, for a scatter of a long run.

/// Keeps at most `points_max` points of a stream of any length, chosen by hash and so repeatable.
///
/// Points are chosen by a hash of their index in the stream rather than every n-th, because streams
/// of several processes alternate: every second point might be all of one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PointSample {
    points_max: usize,
    seen: u64,
    /// Leading zero bits of a kept point's hash.
    halvings: u32,
    kept: Vec<(u64, (f64, f64))>,
}

impl PointSample {
    /// An empty sample of at most `points_max` points (at least two).
    pub fn new(points_max: usize) -> PointSample {
        PointSample { points_max: points_max.max(2), seen: 0, halvings: 0, kept: Vec::new() }
    }

    /// Offers the stream's next point; its number decides whether it is kept.
    pub fn push(&mut self, x: f64, y: f64) {
        let hash = mixed(self.seen);
        self.seen += 1;
        if hash.leading_zeros() < self.halvings {
            return;
        }
        self.kept.push((hash, (x, y)));
        while self.kept.len() > self.points_max {
            self.halvings += 1;
            let halvings = self.halvings;
            self.kept.retain(|(hash, _)| hash.leading_zeros() >= halvings);
        }
    }

    /// Number of points that each kept point stands for: 1 when none was dropped.
    pub fn one_in(&self) -> u64 {
        1 << self.halvings.min(63)
    }

    /// The points that were kept, in the stream's order.
    pub fn points(&self) -> Vec<(f64, f64)> {
        self.kept.iter().map(|(_, point)| *point).collect()
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): neighbours have unlike hashes.
fn mixed(index: u64) -> u64 {
    let z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

// Grouped bars: policies by VM, or ours beside the paper's. They are horizontal, so that names of
// any length can be read, and each says its value.

const GROUPS_MAX: usize = 60;
/// Groups beyond this number of bars are folded.
const BARS_OPEN: usize = 60;

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
        // Of more bars than colours each says its name.
        let named = barred.len() > COLOURS;
        let keys: &[(&BarSeries, &str)] = if named { &lines } else { &coloured };
        let rows = |shown: Range<usize>| {
            html! { div.groups { @for g in shown {
                div.name title=(groups[g]) { (groups[g]) }
                div.group {
                    @for (series, colour) in &barred { (self.bar(&groups[g], series, g, colour, &track, named)) }
                    @for (series, _) in &lines {
                        @if let Some(value) = series.line(groups.len()) {
                            i.line style={ "left:" (format!("{:.2}", track.at(value))) "%" }
                                title={ (series.name) ": " (self.axis.shown(value)) } {}
                        }
                    }
                }
            } } }
        };
        let fit = (BARS_OPEN / barred.len().max(1)).max(1);
        let open = if groups.len() > fit { fit } else { groups.len() };
        let drawn = html! {
            div.bars.named[named] {
                @if keys.iter().any(|(series, _)| !series.name.is_empty()) {
                    p.legend { @for (series, colour) in keys { span { i class=(colour) {} (series.name) } } }
                }
                (rows(0..open))
                @if open < groups.len() {
                    details { summary { (groups.len() - open) " more" } (rows(open..groups.len())) }
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
        named: bool,
    ) -> Markup {
        let name = if named { format!(" {}", series.name) } else { String::new() };
        let Some(bar) = series.bar(g).filter(|bar| bar.value.is_finite()) else {
            return html! { div.track { b style={ "left:" (format!("{:.2}", track.at(0.0))) "%" } { (number::ABSENT) (name) } } };
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
                b style={ "left:" (format!("{:.2}", track.at(end))) "%" } { (self.value_text(bar.value)) (name) }
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

// A heat map: how much happened when (to the right) and where (upwards).

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

/// Data for the page's script.
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

// Histogram of the disk arm's moves: forwards, backwards, and none.

/// Bins per factor of ten; the page's script knows it.
const PER_DECADE: usize = 2;
/// Bins on each side of zero that hold every i64.
const BINS: usize = 2 * 19;
/// Least number of columns on each side, so that figures of different runs look alike.
const SHOWN_MIN: usize = 8;
const PANELS_MAX: usize = 16;

/// Counts of signed distances in logarithmic bins, two for each factor of ten on each side, and
/// one for zero. Fill it while running; it takes the same room for any number of distances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeekBins {
    zero: u64,
    back: [u64; BINS],
    ahead: [u64; BINS],
}

impl Default for SeekBins {
    fn default() -> SeekBins {
        SeekBins { zero: 0, back: [0; BINS], ahead: [0; BINS] }
    }
}

impl SeekBins {
    /// Counts a distance `n` times.
    pub fn record_n(&mut self, distance: i64, n: u64) {
        let slot = match bin(distance) {
            None => &mut self.zero,
            Some(bin) if distance < 0 => &mut self.back[bin],
            Some(bin) => &mut self.ahead[bin],
        };
        *slot = slot.saturating_add(n);
    }

    /// Number of counted values.
    pub fn total(&self) -> u64 {
        self.back.iter().chain(&self.ahead).fold(self.zero, |sum, n| sum.saturating_add(*n))
    }

    fn furthest(&self) -> usize {
        (0..BINS).rev().find(|&i| self.back[i].max(self.ahead[i]) > 0).map_or(0, |i| i + 1)
    }
}

/// Bin k holds distances from 10^(k/2) on; exact, because it compares squares.
fn bin(distance: i64) -> Option<usize> {
    let square = u128::from(distance.unsigned_abs()).pow(PER_DECADE as u32);
    square.checked_ilog10().map(|bin| bin as usize)
}

/// One panel for each policy, one below the other, with a common scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Quantity that is counted, such as "Seek distance".
    pub label: String,
    /// Its unit, such as "sectors".
    pub unit: String,
    /// Name and counts of each panel.
    pub series: Vec<(String, SeekBins)>,
}

/// Data for the page's script.
#[derive(Serialize)]
struct DrawnSeeks<'a> {
    kind: &'static str,
    label: &'a str,
    unit: &'a str,
    panels: Vec<Panel>,
}

#[derive(Serialize)]
struct Panel {
    heading: String,
    zero: u64,
    /// From the shortest distance on, as many as are shown.
    back: Vec<u64>,
    ahead: Vec<u64>,
}

impl Histogram {
    /// A panel for each series of which something was counted.
    pub fn render(&self) -> Figure {
        let none = self.series.iter().filter(|s| s.1.total() == 0);
        let mut notes: Vec<String> =
            none.map(|(name, _)| format!("{name}: nothing was counted.")).collect();
        let shown: Vec<&(String, SeekBins)> =
            self.series.iter().filter(|s| s.1.total() > 0).collect();
        if shown.is_empty() {
            return Figure::empty(&notes);
        }
        let shown = first(&shown, PANELS_MAX, &mut notes);
        let per_side = shown.iter().map(|s| s.1.furthest()).max().unwrap_or(0);
        let per_side = per_side.max(SHOWN_MIN).next_multiple_of(PER_DECADE);
        let panel = |(name, bins): &&(String, SeekBins)| Panel {
            heading: heading(name, bins),
            zero: bins.zero,
            back: bins.back[..per_side].to_vec(),
            ahead: bins.ahead[..per_side].to_vec(),
        };
        let panels = shown.iter().map(panel).collect();
        let (label, unit) = (self.label.as_str(), self.unit.as_str());
        Figure::drawn(&DrawnSeeks { kind: "seeks", label, unit, panels }, &notes)
    }
}

fn heading(name: &str, bins: &SeekBins) -> String {
    let zero = number::fixed(bins.zero as f64 / bins.total() as f64 * 100.0, 1);
    let facts = format!("{zero} % at zero, {} in all", number::count(bins.total()));
    if name.is_empty() { facts } else { format!("{name}: {facts}") }
}

// Lines (bandwidth over time, distributions of response time, sweeps of a parameter) and points,
// such as the LBA of each request over time (figure 1 of the Pregather paper).

/// Of more points than this a sample is drawn.
const POINTS_MAX: usize = 25_000;
/// Longer lines are thinned in stretches, of which the ends and the extremes stay.
const STRETCHES_MAX: usize = 500;
/// Series that cover less than this part of a common axis are drawn in panels of their own.
const COVERED_MIN: f64 = 0.2;

const LINE_PANELS_MAX: usize = 16;

/// Series that one legend names: more than there are policies.
const SERIES_MAX: usize = 32;

/// A line for each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Horizontal axis, common to all series.
    pub x: Axis,
    /// Vertical axis, common to all series.
    pub y: Axis,
    /// One line each.
    pub series: Vec<Series>,
}

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
    /// Apart when the series are far apart, so that a VM's own pattern can be seen on a large disk.
    #[default]
    Auto,
    Together,
    /// One below the other, each with its own y range.
    Apart,
}

/// Data for the page's script.
#[derive(Serialize)]
struct DrawnLines<'a> {
    kind: &'static str,
    x: &'a Axis,
    y: &'a Axis,
    panels: Vec<Vec<DrawnSeries>>,
}

#[derive(Clone, Serialize)]
struct DrawnSeries {
    name: String,
    reference: bool,
    /// Which of the palette's colours.
    colour: usize,
    x: Vec<f64>,
    /// NaN becomes null, a gap.
    y: Vec<f64>,
}

impl Lines {
    /// The lines, those of references below the others.
    pub fn render(&self) -> Figure {
        let mut left_out = Vec::new();
        let series = first(&self.series, SERIES_MAX, &mut left_out);
        let (placed, mut notes) = placed(&self.x, &self.y, series, true);
        notes.extend(left_out);
        if placed.iter().all(|points| points.iter().all(|p| p.1.is_nan())) {
            return Figure::empty(&notes);
        }
        let thin = placed.iter().map(|points| thinned(points)).collect();
        let mut panel = drawn(&self.x, &self.y, series, thin);
        panel.sort_by_key(|series| !series.reference);
        Figure::drawn(
            &DrawnLines { kind: "lines", x: &self.x, y: &self.y, panels: vec![panel] },
            &notes,
        )
    }
}

impl Scatter {
    /// The points; those of a very large cloud are a sample.
    pub fn render(&self) -> Figure {
        let (placed, mut notes) = placed(&self.x, &self.y, &self.series, false);
        let shown = placed.iter().filter(|points| !points.is_empty()).count();
        if shown == 0 {
            return Figure::empty(&notes);
        }
        let total: usize = placed.iter().map(Vec::len).sum();
        let most = if total > POINTS_MAX { POINTS_MAX / shown } else { total };
        let mut one_in = 1;
        let sampled = placed.iter().map(|points| {
            let mut sample = PointSample::new(most);
            points.iter().for_each(|(x, y)| sample.push(*x, *y));
            one_in = one_in.max(sample.one_in());
            sample.points()
        });
        let apart = self.are_apart(&placed);
        let series = drawn(&self.x, &self.y, &self.series, sampled.collect());
        let series: Vec<DrawnSeries> = series.into_iter().filter(|s| !s.x.is_empty()).collect();
        let panels: Vec<Vec<DrawnSeries>> = match apart {
            true => first(&series, LINE_PANELS_MAX, &mut notes)
                .iter()
                .map(|s| vec![s.clone()])
                .collect(),
            false => vec![first(&series, SERIES_MAX, &mut notes).to_vec()],
        };
        if one_in > 1 {
            notes.push(format!("Of the largest cloud one point in {one_in} is shown."));
        }
        Figure::drawn(&DrawnLines { kind: "points", x: &self.x, y: &self.y, panels }, &notes)
    }

    fn are_apart(&self, placed: &[Vec<(f64, f64)>]) -> bool {
        let span = |points: &mut dyn Iterator<Item = &(f64, f64)>| {
            let ends = points.fold((f64::MAX, f64::MIN), |(a, b), p| (a.min(p.1), b.max(p.1)));
            (ends.1 - ends.0).max(0.0)
        };
        match self.panels {
            Panels::Together => false,
            Panels::Apart => true,
            Panels::Auto => {
                let own: f64 = placed.iter().map(|points| span(&mut points.iter())).sum();
                placed.len() > 1 && own < COVERED_MIN * span(&mut placed.iter().flatten())
            }
        }
    }
}

/// Each series' points within the axes, from left to right; with `gaps`, NaN stays. A note counts
/// the others.
fn placed(
    x: &Axis,
    y: &Axis,
    series: &[Series],
    gaps: bool,
) -> (Vec<Vec<(f64, f64)>>, Vec<String>) {
    let shows = |p: &(f64, f64)| x.shows(p.0) && (y.shows(p.1) || gaps && p.1.is_nan());
    let of = |series: &Series| {
        let mut points: Vec<(f64, f64)> = series.points.iter().copied().filter(shows).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let placed: Vec<Vec<(f64, f64)>> = series.iter().map(of).collect();
    let given: usize = series.iter().map(|s| s.points.len()).sum();
    let mut notes = Vec::new();
    note_left_out(given - placed.iter().map(Vec::len).sum::<usize>(), &mut notes);
    (placed, notes)
}

fn drawn(x: &Axis, y: &Axis, series: &[Series], points: Vec<Vec<(f64, f64)>>) -> Vec<DrawnSeries> {
    let mut colours = 0..;
    let of = |(series, points): (&Series, Vec<(f64, f64)>)| {
        let (xs, ys): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
        DrawnSeries {
            name: printable(&series.name),
            reference: series.reference,
            colour: if series.reference { 0 } else { colours.next().unwrap_or(0) },
            x: x.shortened(&xs),
            y: y.shortened(&ys),
        }
    };
    series.iter().zip(points).map(of).collect()
}

/// The points that are seen at the width of a page.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 4 * STRETCHES_MAX {
        return points.to_vec();
    }
    let mut kept = Vec::new();
    for stretch in points.chunks(points.len().div_ceil(STRETCHES_MAX)) {
        let by_y = |a: &usize, b: &usize| stretch[*a].1.total_cmp(&stretch[*b].1);
        let with_value = || (0..stretch.len()).filter(|i| !stretch[*i].1.is_nan());
        let gap = stretch.iter().position(|p| p.1.is_nan());
        let mut chosen = vec![0, stretch.len() - 1];
        chosen.extend(with_value().min_by(by_y).into_iter().chain(with_value().max_by(by_y)));
        chosen.extend(gap);
        chosen.sort_unstable();
        chosen.dedup();
        kept.extend(chosen.into_iter().map(|i| stretch[i]));
    }
    kept
}

/// A name without control characters, which would only disturb a legend.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod axis_tests {
    use super::*;

    #[test]
    fn values_keep_what_an_eye_can_tell_apart() {
        let short = |axis: Axis, values: &[f64]| axis.shortened(values);
        let time = short(Axis::time("", ""), &[0.0, 12.345_678_9, 60.0]);
        assert_eq!(time, [0.0, 12.346, 60.0]);
        let places = short(Axis::linear("", ""), &[1_283_234_567.0, 1_383_234_567.0]);
        assert_eq!(places, [1_283_230_000.0, 1_383_230_000.0]);
        assert_eq!(short(Axis::linear("", ""), &[0.123_456_789]), [0.123_456_789]);
        assert_eq!(short(Axis::log("", ""), &[0.123_456_789, 98_765.432_1]), [0.123_46, 98_765.0]);
        assert_eq!(short(Axis::nines("x"), &[0.999_95, 1.0]), [0.999_95, 1.0]);
    }

    #[test]
    fn a_range_that_is_none_is_ignored() {
        let axis = Axis::linear("", "").range(f64::NAN, 3.0);
        assert!(axis.shows(7.0) && !axis.shows(f64::INFINITY));
        assert!(!Axis::linear("", "").range(1.0, 3.0).shows(7.0));
        assert_eq!(Axis::log("", "").range(-1.0, 3.0), Axis::log("", ""));
    }
}

#[cfg(test)]
mod sample_tests {
    use super::*;

    #[test]
    fn keeps_all_of_few_and_some_of_many() {
        let sample = |n: u32| {
            let mut sample = PointSample::new(1000);
            (0..n).for_each(|i| sample.push(f64::from(i), f64::from(i % 2)));
            sample
        };
        let few = sample(1000);
        assert_eq!((few.points().len(), few.one_in()), (1000, 1));
        let many = sample(1_000_000);
        let points = many.points();
        assert!((400..=1000).contains(&points.len()), "{}", points.len());
        assert_eq!(many.seen, 1_000_000);
        assert!(points.windows(2).all(|w| w[0].0 < w[1].0));
        let odd = points.iter().filter(|p| p.1 == 1.0).count() as f64 / points.len() as f64;
        assert!((0.4..0.6).contains(&odd), "both of two alternating streams: {odd}");
        assert_eq!(many, sample(1_000_000));
    }
}

#[cfg(test)]
mod histogram_tests {
    use super::*;

    /// The least whole distance in a bin.
    fn bin_start(bin: usize) -> u64 {
        let square = 10_u128.pow(bin as u32);
        let root = square.isqrt();
        (root + u128::from(root * root < square)) as u64
    }

    #[test]
    fn bins_are_exact_at_their_edges() {
        assert_eq!(bin(0), None);
        let check = |distance: i64, want| assert_eq!(bin(distance), Some(want), "{distance}");
        check(1, 0);
        check(-3, 0);
        check(4, 1);
        check(9, 1);
        check(10, 2);
        check(31, 2);
        check(32, 3);
        check(999_999, 11);
        check(1_000_000, 12);
        check(i64::MAX, 37);
        check(i64::MIN, 37);
        for k in 1..37 {
            assert_eq!(bin(bin_start(k) as i64), Some(k));
            assert_eq!(bin(bin_start(k) as i64 - 1), Some(k - 1));
        }
    }
}
