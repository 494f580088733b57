//! Figures, described: they are drawn elsewhere.

use super::judge::{mean, range};

/// A figure, to be drawn from the runs of the first seed where it names cells.
pub enum Figure {
    /// LBA over time per VM of one cell: (scenario, policy), caption.
    Places((String, String), String),
    /// Seek distances of several cells.
    Seeks(Vec<(String, String)>, String),
    /// Lines: title of x, of y, whether x is logarithmic, series, caption.
    Lines {
        /// Axis to the right, with its unit.
        x: (String, String),
        /// Whether the axis to the right is logarithmic.
        log_x: bool,
        /// Axis upwards, with its unit.
        y: (String, String),
        /// Each line's name and its points, as (x, y).
        series: Vec<(String, Vec<(f64, f64)>)>,
        /// Text that is shown below the figure.
        caption: String,
    },
    /// Bars: groups, and for each series its name, values (with least and
    /// largest over the seeds) and whether it is the paper's.
    Bars {
        /// What the bars measure, with its unit.
        axis: (String, String),
        /// Names beside the groups.
        groups: Vec<String>,
        series: Vec<BarSeries>,
        /// Text that is shown below the figure.
        caption: String,
    },
}

/// Bars of one colour.
pub struct BarSeries {
    /// Name that the legend shows for these bars.
    pub name: String,
    /// By group: mean, least, largest.
    pub bars: Vec<Option<(f64, f64, f64)>>,
    /// The paper's own figures?
    pub paper: bool,
}

/// What an axis measures, with its unit.
type Axis<'a> = (&'a str, &'a str);

fn axis((name, unit): Axis<'_>) -> (String, String) {
    (name.into(), unit.into())
}

impl Figure {
    /// Bars; `groups` are the names beside them.
    pub(super) fn bars<G: Into<String>>(
        measured: Axis<'_>,
        groups: impl IntoIterator<Item = G>,
        series: Vec<BarSeries>,
        caption: impl Into<String>,
    ) -> Figure {
        let groups = groups.into_iter().map(Into::into).collect();
        Figure::Bars { axis: axis(measured), groups, series, caption: caption.into() }
    }

    /// Lines over a linear x.
    pub(super) fn lines(
        x: Axis<'_>,
        y: Axis<'_>,
        series: impl IntoIterator<Item = (String, Vec<(f64, f64)>)>,
        caption: impl Into<String>,
    ) -> Figure {
        let (series, caption) = (series.into_iter().collect(), caption.into());
        Figure::Lines { x: axis(x), log_x: false, y: axis(y), series, caption }
    }

    /// The same lines over a logarithmic x.
    pub(super) fn logarithmic(mut self) -> Figure {
        if let Figure::Lines { log_x, .. } = &mut self {
            *log_x = true;
        }
        self
    }
}

/// Bars of one colour from values by group and seed.
pub(super) fn bars(name: &str, groups: &[Vec<f64>]) -> BarSeries {
    let bar = |values: &Vec<f64>| {
        let (least, largest) = range(values);
        (!values.is_empty()).then(|| (mean(values), least, largest))
    };
    BarSeries { name: name.into(), bars: groups.iter().map(bar).collect(), paper: false }
}

/// Bars of each policy: of its values, by seed, for each of `items`.
pub(super) fn bars_by<I>(
    policies: &[&str],
    items: &[I],
    of: impl Fn(&I, &str) -> Vec<f64>,
) -> Vec<BarSeries> {
    let one = |policy: &&str| {
        bars(policy, &items.iter().map(|item| of(item, policy)).collect::<Vec<_>>())
    };
    policies.iter().map(one).collect()
}

/// Bars of figures that the paper gives.
pub(super) fn paper_bars(name: &str, values: &[f64]) -> BarSeries {
    let bars = values.iter().map(|&v| Some((v, v, v))).collect();
    BarSeries { name: format!("{name}, paper"), bars, paper: true }
}
