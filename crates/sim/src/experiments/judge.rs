//! From five seeds to a verdict (experiments.md): *holds* when the paper's
//! ordering stands on every seed with at least half of its improvement, *in
//! part* when the ordering stands in the mean, *refuted* otherwise.

/// What became of the paper's claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The ordering on every seed, at least half of the improvement.
    Holds,
    /// The ordering in the mean only, or less than half of the improvement.
    InPart,
    /// Not even the ordering in the mean.
    Refuted,
    /// A figure that no paper claims anything of, and that meets what is asked of it.
    Measured,
    /// The same, and it does not.
    Missed,
}

impl Verdict {
    /// As in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::InPart => "in part",
            Verdict::Refuted => "refuted",
            Verdict::Measured => "measured",
            Verdict::Missed => "missed",
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
    /// Does it meet what experiments.md asks? A claim refuted with its cause does.
    pub accepted: bool,
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

impl Row {
    fn new(
        name: impl Into<String>,
        paper: Option<f64>,
        values: &[f64],
        unit: &'static str,
        (verdict, why): (Verdict, String),
    ) -> Row {
        let (ours, range) = (mean(values), range(values));
        Row { name: name.into(), paper, ours, range, unit, verdict, accepted: true, why }
    }

    /// A figure that no paper claims anything of.
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
        let wanted = gain(paper) / 2.0;
        let ours = mean(values);
        let right = values.iter().filter(|&&v| gain(v) > 0.0).count();
        let findings = if right == values.len() && gain(ours) >= wanted {
            (Verdict::Holds, "the ordering on every seed and at least half of the gain".to_string())
        } else if gain(ours) > 0.0 {
            let seeds = values.len();
            let share = gain(ours) / gain(paper) * 100.0;
            (
                Verdict::InPart,
                format!("the ordering on {right} of {seeds} seeds, {share:.0} % of the gain"),
            )
        } else {
            (Verdict::Refuted, format!("the ordering on {right} of {} seeds", values.len()))
        };
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
        let within = values.iter().filter(|&&v| v <= paper).count();
        let verdict = match within {
            all if all == values.len() => Verdict::Holds,
            _ if mean(values) <= paper => Verdict::InPart,
            _ => Verdict::Refuted,
        };
        let why = format!("within the paper's limit on {within} of {} seeds", values.len());
        Row::new(name, Some(paper), values, unit, (verdict, why))
    }

    /// The row counts only when `condition` holds. A figure that no paper claims
    /// anything of is missed when it does not.
    pub(super) fn accept_if(mut self, condition: bool) -> Row {
        self.accepted = condition;
        if self.verdict == Verdict::Measured && !condition {
            self.verdict = Verdict::Missed;
        }
        self
    }

    /// Something is asked of the row: says what, and whether it is met.
    pub(super) fn ask(self, enough: bool, what: &str) -> Row {
        let verdict = if enough { "met" } else { "NOT MET" };
        self.accept_if(enough).because(format!("{what} is asked: {verdict}"))
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
        assert_eq!(verdict(0.64, &[0.80, 0.81]), Verdict::Holds, "a time that falls");
        assert_eq!(verdict(0.64, &[1.2]), Verdict::Refuted);
        let above = |paper, values: &[f64]| Row::difference("", paper, values).verdict;
        assert_eq!(above(0.2, &[0.09, 0.12]), Verdict::Holds);
        assert_eq!(above(0.2, &[-0.01, 0.12]), Verdict::InPart);
        assert_eq!(above(0.2, &[-0.01, 0.0]), Verdict::Refuted);
        assert_eq!(Row::value("", 46.0, &[50.0], "s", 0.25).verdict, Verdict::Holds);
        let limit = |values: &[f64]| Row::limit("", 1.3, values, "s").verdict;
        let limits = [limit(&[1.0, 1.3]), limit(&[0.9, 1.4]), limit(&[1.2, 1.5])];
        assert_eq!(limits, [Verdict::Holds, Verdict::InPart, Verdict::Refuted]);
        let asked = |met| Row::measured("", &[0.9], "×", "").accept_if(met).verdict;
        assert_eq!([true, false].map(asked), [Verdict::Measured, Verdict::Missed]);
        assert_eq!(Row::value("", 46.0, &[95.0], "s", 0.25).verdict, Verdict::Refuted);
    }
}
