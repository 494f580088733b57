//! Lines (bandwidth over time, distributions of response time, sweeps of a parameter) and points,
//! such as the LBA of each request over time (figure 1 of the Pregather paper).

use serde::Serialize;

use super::{Axis, Figure, PointSample, Series, first, note_left_out};

/// Of more points than this a sample is drawn.
const POINTS_MAX: usize = 25_000;
/// Longer lines are thinned in stretches, of which the ends and the extremes stay.
const STRETCHES_MAX: usize = 500;
/// Series that cover less than this part of a common axis are drawn in panels of their own.
const COVERED_MIN: f64 = 0.2;
const PANELS_MAX: usize = 16;

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

/// For the script.
#[derive(Serialize)]
struct Drawn<'a> {
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
        let (placed, notes) = placed(&self.x, &self.y, &self.series, true);
        if placed.iter().all(|points| points.iter().all(|p| p.1.is_nan())) {
            return Figure::empty(&notes);
        }
        let thin = placed.iter().map(|points| thinned(points)).collect();
        let mut panel = drawn(&self.x, &self.y, &self.series, thin);
        panel.sort_by_key(|series| !series.reference);
        Figure::drawn(&Drawn { kind: "lines", x: &self.x, y: &self.y, panels: vec![panel] }, &notes)
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
            true => {
                first(&series, PANELS_MAX, &mut notes).iter().map(|s| vec![s.clone()]).collect()
            }
            false => vec![series],
        };
        if one_in > 1 {
            notes.push(format!("Of the largest cloud one point in {one_in} is shown."));
        }
        Figure::drawn(&Drawn { kind: "points", x: &self.x, y: &self.y, panels }, &notes)
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
