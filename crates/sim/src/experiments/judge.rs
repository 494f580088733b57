//! From five seeds to a verdict: *holds* when the paper's ordering stands on every seed and the
//! gain is between half of the paper's and twice it, *exceeds* when it is more, *in part* when the
//! mean has a tenth of the gain at least, *refuted* otherwise.

/// What became of the paper's claim, with the loads and devices that the row has. Whether these
/// are the paper's is said by `docs/experiments/claims.toml`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The ordering on every seed, and from half of the gain to twice it.
    Holds,
    /// The ordering on every seed, and more than twice the gain.
    Exceeds,
    /// In the mean at least a tenth of the gain, but not half of it or not on every seed.
    InPart,
    /// Less than a tenth of the gain in the mean, or the other ordering.
    Refuted,
    /// No paper claims anything of it.
    Measured,
}

impl Verdict {
    /// As in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Exceeds => "exceeds",
            Verdict::InPart => "in part",
            Verdict::Refuted => "refuted",
            Verdict::Measured => "measured",
        }
    }
}

/// One claim and what we found.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What is claimed or measured.
    pub name: String,
    /// The paper's figure, where it gives one.
    pub paper: Option<f64>,
    /// Ours, the mean over the seeds.
    pub ours: f64,
    /// Ours, least and largest over the seeds.
    pub range: (f64, f64),
    /// Unit of the three figures; empty if they have none.
    pub unit: &'static str,
    /// What became of the claim.
    pub verdict: Verdict,
    /// What we ask of Seekway itself, whatever the paper says: is it met? None if nothing is asked.
    pub asked: Option<bool>,
    /// The reason of the verdict.
    pub why: String,
}

/// Mean of some values; NaN for none.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A figure with the digits that matter.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Least and largest; NaN for none.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    let fold = |f: fn(f64, f64) -> f64| values.iter().copied().reduce(f).unwrap_or(f64::NAN);
    (fold(f64::min), fold(f64::max))
}

/// On how many seeds a figure is as it should be.
pub(super) fn count(values: &[f64], right: impl Fn(f64) -> bool) -> usize {
    values.iter().filter(|&&v| right(v)).count()
}

/// A list in words: what is said of each item, with commas between.
pub(super) fn listed<I>(items: impl IntoIterator<Item = I>, one: impl Fn(I) -> String) -> String {
    items.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Row {
    fn new(
        name: impl Into<String>,
        paper: Option<f64>,
        values: &[f64],
        unit: &'static str,
        (verdict, why): (Verdict, String),
    ) -> Row {
        let (ours, range) = (mean(values), range(values));
        Row { name: name.into(), paper, ours, range, unit, verdict, asked: None, why }
    }

    /// A figure that no paper claims anything of: one of ours, or a form that is not the paper's.
    pub(super) fn measured(
        name: impl Into<String>,
        values: &[f64],
        unit: &'static str,
        why: impl Into<String>,
    ) -> Row {
        Row::new(name, None, values, unit, (Verdict::Measured, why.into()))
    }

    /// A claim "by this factor more" (`paper` above 1) or "less" (below 1).
    pub(super) fn factor(name: impl Into<String>, paper: f64, values: &[f64]) -> Row {
        let gain = |v: f64| if paper >= 1.0 { v - 1.0 } else { 1.0 - v };
        Row::claim(name.into(), paper, values, "×", gain)
    }

    /// A claim "by so much above" (`paper` above 0), of differences of factors.
    pub(super) fn difference(name: impl Into<String>, paper: f64, values: &[f64]) -> Row {
        Row::claim(name.into(), paper, values, "", |v| v)
    }

    fn claim(
        name: String,
        paper: f64,
        values: &[f64],
        unit: &'static str,
        gain: impl Fn(f64) -> f64,
    ) -> Row {
        let (seeds, right) = (values.len(), count(values, |v| gain(v) > 0.0));
        let share = gain(mean(values)) / gain(paper);
        let verdict = match share {
            s if s > 2.0 && right == seeds => Verdict::Exceeds,
            s if s >= 0.5 && right == seeds => Verdict::Holds,
            s if s >= 0.1 => Verdict::InPart,
            _ => Verdict::Refuted,
        };
        let ordering = format!("the ordering on {right} of {seeds} seeds");
        let why = match share {
            s if s <= 0.0 => ordering,
            s => format!("{ordering}, {:.0} % of the gain", 100.0 * s),
        };
        let findings = (verdict, why);
        Row::new(name, Some(paper), values, unit, findings)
    }

    /// A figure of which the paper gives the value, held to `within` of it (a share).
    pub(super) fn value(
        name: impl Into<String>,
        paper: f64,
        values: &[f64],
        unit: &'static str,
        within: f64,
    ) -> Row {
        let off = mean(values) / paper - 1.0;
        let verdict = match off.abs() {
            o if o <= within => Verdict::Holds,
            o if o <= 2.0 * within => Verdict::InPart,
            _ => Verdict::Refuted,
        };
        let why = format!("{:+.0} % of the paper's figure", 100.0 * off);
        Row::new(name, Some(paper), values, unit, (verdict, why))
    }

    /// A figure of which the paper says that it is never above this.
    pub(super) fn limit(
        name: impl Into<String>,
        paper: f64,
        values: &[f64],
        unit: &'static str,
    ) -> Row {
        let within = count(values, |v| v <= paper);
        let verdict = match within {
            all if all == values.len() => Verdict::Holds,
            _ if mean(values) <= paper => Verdict::InPart,
            _ => Verdict::Refuted,
        };
        let why = format!("within the paper's limit on {within} of {} seeds", values.len());
        Row::new(name, Some(paper), values, unit, (verdict, why))
    }

    /// Something is asked of the row: says what, and whether it is met.
    pub(super) fn ask(mut self, enough: bool, what: &str) -> Row {
        self.asked = Some(enough);
        let met = if enough { "met" } else { "NOT MET" };
        self.because(format!("{what} is asked: {met}"))
    }

    /// An ordering of which the paper gives no size: above `bound` on every seed.
    pub(super) fn ordering(
        name: impl Into<String>,
        values: &[f64],
        bound: f64,
        unit: &'static str,
    ) -> Row {
        let (right, seeds) = (count(values, |v| v > bound), values.len());
        let why = format!("above {bound} on {right} of {seeds} seeds");
        Row::measured(name, values, unit, why).ordered(right, seeds)
    }

    /// The verdict on an ordering that is `right` on so many seeds, of which the
    /// paper gives no size.
    pub(super) fn ordered(mut self, right: usize, seeds: usize) -> Row {
        self.verdict = match right {
            n if n == seeds => Verdict::Holds,
            0 => Verdict::Refuted,
            _ => Verdict::InPart,
        };
        self
    }

    /// Adds a reason to `why`, after a semicolon.
    pub(super) fn because(mut self, why: impl AsRef<str>) -> Row {
        self.why = format!("{}; {}", self.why, why.as_ref());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_the_digits_that_matter() {
        assert_eq!([517.06, 25.32, 1.204].map(short), ["517", "25.3", "1.20"]);
    }

    #[test]
    fn verdicts_follow_the_definition() {
        let verdict = |paper, values: &[f64]| Row::factor("", paper, values).verdict;
        assert_eq!(verdict(1.6, &[1.31, 1.40]), Verdict::Holds);
        assert_eq!(verdict(1.6, &[1.20, 1.30]), Verdict::InPart, "less than half of the gain");
        assert_eq!(verdict(1.6, &[0.99, 2.50]), Verdict::InPart, "not on every seed");
        assert_eq!(verdict(1.6, &[0.90, 1.05]), Verdict::Refuted);
        assert_eq!(verdict(1.6, &[1.05, 1.06]), Verdict::Refuted, "less than a tenth of the gain");
        assert_eq!(verdict(0.64, &[0.80, 0.81]), Verdict::Holds, "a time that falls");
        assert_eq!(verdict(0.64, &[1.2]), Verdict::Refuted);
        assert_eq!(verdict(1.6, &[2.1, 2.3]), Verdict::Holds, "twice the gain");
        assert_eq!(verdict(1.6, &[2.3, 2.4]), Verdict::Exceeds);
        assert_eq!(verdict(1.6, &[0.9, 9.0]), Verdict::InPart, "much, but not on every seed");
        let above = |paper, values: &[f64]| Row::difference("", paper, values).verdict;
        assert_eq!(above(0.2, &[0.09, 0.12]), Verdict::Holds);
        assert_eq!(above(0.2, &[-0.01, 0.12]), Verdict::InPart);
        assert_eq!(above(0.2, &[-0.01, 0.0]), Verdict::Refuted);
        assert_eq!(Row::value("", 46.0, &[50.0], "s", 0.25).verdict, Verdict::Holds);
        let limit = |values: &[f64]| Row::limit("", 1.3, values, "s").verdict;
        let limits = [limit(&[1.0, 1.3]), limit(&[0.9, 1.4]), limit(&[1.2, 1.5])];
        assert_eq!(limits, [Verdict::Holds, Verdict::InPart, Verdict::Refuted]);
        let asked = |met| Row::measured("", &[0.9], "×", "").ask(met, "1").asked;
        assert_eq!([true, false].map(asked), [Some(true), Some(false)]);
        assert_eq!(Row::measured("", &[0.9], "×", "").asked, None, "nothing is asked by itself");
        assert_eq!(Row::value("", 46.0, &[95.0], "s", 0.25).verdict, Verdict::Refuted);
    }
}
