//! Grouped bars: policies by VM, or ours beside the paper's. They lie, so that names of any
//! length can be read, and each says its value.

use super::Look;
use super::scale::{Along, Axis, FittedAxis};
use super::sheet::{Key, RIGHT, Sheet, WIDTH};
use crate::number;
use crate::svg::{Px, Svg, shortened, text_width};

const BAR: f64 = 15.0;
const GROUP_GAP: f64 = 12.0;
const NAME_MAX: f64 = 180.0;
const GROUPS_MAX: usize = 60;

/// A group for each thing measured, with one bar of each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The values' axis; zero is always included.
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
    /// One for each group; `None`, missing or not finite leaves its place empty with a dash.
    pub bars: Vec<Option<Bar>>,
    /// Drawn in grey: the paper's, a bound. One that is the same for all of several groups is a
    /// line across them.
    pub reference: bool,
}

/// A value, and how far it varied from seed to seed if that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bar {
    pub value: f64,
    /// Least and largest, drawn as a whisker.
    pub range: Option<(f64, f64)>,
}

impl BarSeries {
    /// Where the line is that stands for these bars, if one does.
    fn line(&self, groups: usize) -> Option<f64> {
        let first = bar(self, 0)?;
        let same = (0..groups).all(|g| bar(self, g) == Some(first));
        (self.reference && groups > 1 && same && first.value.is_finite()).then_some(first.value)
    }
}

impl From<f64> for Bar {
    fn from(value: f64) -> Bar {
        Bar { value, range: None }
    }
}

impl Bars {
    /// Draws the bars with axis and legend; a note says what is left out.
    pub fn render(&self) -> Svg {
        let mut sheet = Sheet::new();
        let groups = sheet.first(&self.groups, GROUPS_MAX);
        let given =
            || (0..groups.len()).flat_map(|g| self.series.iter().filter_map(move |s| bar(s, g)));
        let finite = || given().filter(|bar| bar.value.is_finite());
        let ends = finite().flat_map(|bar| {
            let (low, high) = bar.range.unwrap_or((bar.value, bar.value));
            [bar.value, low, high].into_iter().filter(|v| v.is_finite())
        });
        let names = groups.iter().map(|name| text_width(name)).fold(0.0, f64::max).min(NAME_MAX);
        let left = 8.0 + names + 10.0;
        let axis = self.axis.clone().from_zero();
        let Some(x) = axis.fit(ends, WIDTH - RIGHT - left, Along::X) else { return sheet.empty(0) };
        let looks = Look::all(self.series.iter().map(|s| s.reference));
        sheet.legend(self.series.iter().zip(&looks).map(|(s, &look)| {
            let line = s.line(groups.len()).is_some();
            Key { name: &s.name, look, line }
        }));
        self.draw(&mut sheet, groups, &looks, &x, left);
        sheet.finish()
    }

    fn draw(
        &self,
        sheet: &mut Sheet,
        groups: &[String],
        looks: &[Look],
        x: &FittedAxis,
        left: f64,
    ) {
        let (lines, barred): (Vec<_>, Vec<_>) =
            self.series.iter().zip(looks).partition(|(s, _)| s.line(groups.len()).is_some());
        let each = BAR * barred.len() as f64;
        let height = groups.len() as f64 * (each + GROUP_GAP) + GROUP_GAP;
        let y = FittedAxis::frame();
        let room = self.room_for_values(groups);
        // The labels of the longest bars need room beyond the axis.
        let width = WIDTH - RIGHT - left - room;
        let at = |value: f64| left + x.place(value) * width;
        let bare = FittedAxis::frame();
        let area = sheet.panel("", left, height, &bare, &y, true);
        let top = area.top;
        let grid = sheet.x_ticks(x, (left, width), (top, height), true);
        sheet.path("g", &grid);
        for (g, group) in groups.iter().enumerate() {
            let start = top + GROUP_GAP + g as f64 * (each + GROUP_GAP);
            let name = shortened(group, NAME_MAX);
            sheet.text_with_tip("e", left - 8.0, start + each / 2.0 + 4.0, &name, group);
            for (s, &(series, look)) in barred.iter().enumerate() {
                let y = start + s as f64 * BAR;
                match bar(series, g).filter(|bar| bar.value.is_finite()) {
                    Some(bar) => self.draw_bar(sheet, group, series, *look, bar, y, &at),
                    None => sheet.text("s", at(0.0) + 5.0, y + BAR - 3.5, number::ABSENT),
                }
            }
        }
        for (series, look) in lines {
            let Some(value) = series.line(groups.len()) else { continue };
            sheet.line(*look, &format!("M{} {}v{}", Px(at(value)), Px(top), Px(height)));
        }
        sheet.path("ax", &format!("M{} {}v{}", Px(at(0.0)), Px(top), Px(height)));
        sheet.x_title(left, &x.title);
    }

    #[expect(clippy::too_many_arguments, reason = "one bar's whole context, used once")]
    fn draw_bar(
        &self,
        sheet: &mut Sheet,
        group: &str,
        series: &BarSeries,
        look: Look,
        bar: Bar,
        y: f64,
        at: &dyn Fn(f64) -> f64,
    ) {
        let (from, to) = (at(bar.value.min(0.0)), at(bar.value.max(0.0)));
        let range = bar.range.filter(|(low, high)| low.is_finite() && high.is_finite());
        let mut tip = format!("{group}, {}: {}", series.name, self.axis.shown(bar.value));
        if let Some((low, high)) = range {
            tip += &format!(" ({} to {})", self.axis.shown(low), self.axis.shown(high));
        }
        sheet.rect(&look.fill(), (from, y + 1.0), ((to - from).max(1.0), BAR - 2.0), &tip);
        let mut end = to;
        if let Some((low, high)) = range {
            end = end.max(at(high));
            let (low, high, middle) = (Px(at(low)), Px(at(high)), y + BAR / 2.0);
            let (m, c) = (Px(middle), Px(middle - 3.0));
            sheet.path("wh", &format!("M{low} {m}H{high}M{low} {c}v6M{high} {c}v6"));
        }
        sheet.text("s", end + 5.0, y + BAR - 3.5, &self.value_text(bar.value));
    }

    /// Values beside the bars share their decimals, as in a table's column.
    fn decimals(&self) -> usize {
        let given = self.series.iter().flat_map(|series| series.bars.iter().flatten());
        let scale = if self.axis.percent { 100.0 } else { 1.0 };
        number::column_decimals(given.map(|bar| bar.value * scale))
    }

    fn room_for_values(&self, groups: &[String]) -> f64 {
        let bars =
            (0..groups.len()).flat_map(|g| self.series.iter().filter_map(move |s| bar(s, g)));
        bars.map(|bar| text_width(&self.value_text(bar.value))).fold(0.0, f64::max)
    }

    fn value_text(&self, value: f64) -> String {
        let decimals = self.decimals();
        let text = match self.axis.percent {
            true => format!("{} %", number::in_column(value * 100.0, decimals)),
            false => number::in_column(value, decimals),
        };
        text.replace('-', "−")
    }
}

fn bar(series: &BarSeries, group: usize) -> Option<Bar> {
    series.bars.get(group).copied().flatten()
}
