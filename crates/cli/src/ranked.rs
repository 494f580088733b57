//! Stacks that were compared, by what they are good at, in a sentence that names the default policy
//! and those that are equal.

use seekway_policy::schedulers::REGISTRY;
use seekway_report::number::{rate_mib_s, short, time_ms};
use seekway_report::rank::{Better, EQUAL_WITHIN, best};

use crate::load::distinct;

/// Equal stacks that a sentence names.
const NAMES_SHOWN: usize = 4;

/// A figure that a sentence names.
pub struct Measure {
    pub name: &'static str,
    /// `Less` where less is better.
    better: Better,
    text: fn(f64) -> String,
}

/// All measures, as [`Stack::figures`] has them.
pub const MEASURES: [Measure; 4] = [
    Measure {
        name: "mean response",
        better: Better::Less,
        text: |ms| format!("{} in the mean", time_ms(ms)),
    },
    Measure { name: "p99", better: Better::Less, text: |ms| format!("{} at p99", time_ms(ms)) },
    Measure { name: "bandwidth", better: Better::More, text: rate_mib_s },
    Measure {
        name: "progress of the worst VM",
        better: Better::More,
        text: |progress| format!("{progress:.2} of a private disk for the worst VM"),
    },
];

/// `Less` for a column whose smaller figures are better, `Greater` for one whose larger are.
pub fn better(heading: &str) -> Option<Better> {
    let is_one = |names: &[&str]| names.iter().any(|name| heading.ends_with(name));
    if is_one(&["bandwidth", "throughput", "IOPS", "Jain", "max-min", "progress"]) {
        return Some(Better::More);
    }
    let less = ["response", "p50", "p99", "p99.9", "worst", "φ", "p99 over private"];
    is_one(&less).then_some(Better::Less)
}

/// A stack with its figures, means of all its runs; those that were not measured are absent.
pub struct Stack {
    pub label: String,
    pub policy: String,
    /// VMs that get next to nothing, and do not under others. Such a stack is never the best: its
    /// figures are those of the VMs that it served.
    pub starved: Option<String>,
    pub figures: [Option<f64>; MEASURES.len()],
}

impl Stack {
    /// All figures.
    pub fn text(&self) -> String {
        let known = self.figures.iter().zip(&MEASURES);
        listed(&known.filter_map(|(figure, of)| figure.map(of.text)).collect::<Vec<_>>())
    }
}

/// Stacks of a comparison by what they are good at.
pub struct Ranked {
    stacks: Vec<Stack>,
    /// The first stack with the default policy, where policies are compared.
    default: Option<usize>,
    /// By [`MEASURES`]: the best stack and those equal to it; none where nothing was measured.
    best: [Vec<usize>; MEASURES.len()],
}

impl Ranked {
    pub fn new(stacks: Vec<Stack>) -> Ranked {
        let default = REGISTRY.iter().next().map(|entry| entry.name);
        let default = stacks.iter().position(|one| Some(one.policy.as_str()) == default);
        let default = default.filter(|_| has_policies(&stacks));
        let value = |one: &Stack, m: usize| one.figures[m].filter(|_| one.starved.is_none());
        let values = |m| stacks.iter().map(|one| value(one, m)).collect::<Vec<_>>();
        let best = std::array::from_fn(|m| best(&values(m), MEASURES[m].better));
        Ranked { stacks, default, best }
    }

    /// The stack with the default policy, where policies are compared.
    pub fn default(&self) -> Option<&Stack> {
        Some(&self.stacks[self.default?])
    }

    /// By [`MEASURES`]: is the default policy the best, or equal to it?
    pub fn default_wins(&self) -> [bool; MEASURES.len()] {
        let is_best = |m: usize| self.default.is_some_and(|n| self.best[m].contains(&n));
        std::array::from_fn(is_best)
    }

    /// Is this stack the best, or equal to it, by every measure?
    fn is_best(&self, n: usize) -> bool {
        self.best.iter().all(|best| best.is_empty() || best.contains(&n))
    }

    /// Says what the default policy gives, which stacks are the best, which are equal, and which
    /// starve a VM.
    pub fn text(&self) -> String {
        let of = |one: &Stack| Some(format!("{} under {}", one.starved.as_ref()?, one.label));
        let mut starved: Vec<String> = self.stacks.iter().filter_map(of).collect();
        let more = starved.len().saturating_sub(NAMES_SHOWN);
        starved.truncate(NAMES_SHOWN);
        starved.extend((more > 0).then(|| format!("{more} more")));
        let starved = match listed(&starved) {
            none if none.is_empty() => none,
            some => format!("; starved: {some}"),
        };
        self.best_text() + &starved
    }

    fn best_text(&self) -> String {
        let percent = short(EQUAL_WITHIN * 100.0, 2);
        let what = if has_policies(&self.stacks) { "policies" } else { "runs" };
        let all = format!("{} {what}", self.stacks.len());
        if (0..self.stacks.len()).all(|n| self.is_best(n)) {
            let named = |one: &Stack| format!(", {}, the default, among them,", one.label);
            let among = self.default().map(named).unwrap_or_default();
            let given = self.stacks.first().map(Stack::text).unwrap_or_default();
            return format!("all {all}{among} give the same within {percent} %: {given}");
        }
        let has_ties = self.best.iter().any(|best| best.len() > 1);
        let ties = if has_ties { format!("; within {percent} % is equal") } else { String::new() };
        let Some(default) = self.default else {
            return format!("the best of {all}: {}{ties}", self.winners());
        };
        let one = &self.stacks[default];
        let given = format!("{}, the default, gives {}", one.label, one.text());
        if !self.is_best(default) {
            return format!("{given}; the best of {all}: {}{ties}", self.winners());
        }
        let others = (0..self.stacks.len()).filter(|n| *n != default && self.is_best(*n));
        let equal = match others.collect::<Vec<usize>>() {
            none if none.is_empty() => String::new(),
            equal => format!("; equal: {}", self.names(&equal)),
        };
        format!("{given}; none of {all} is more than {percent} % better{equal}")
    }

    /// The best stacks, each with the figures that make it so.
    fn winners(&self) -> String {
        let of = |winners: &Vec<usize>| {
            let figure = |m: usize| {
                let values = winners.iter().filter_map(|n| self.stacks[*n].figures[m]);
                let by = |a: &f64, b: &f64| a.total_cmp(b);
                let value = match MEASURES[m].better {
                    Better::Less => values.min_by(by),
                    _ => values.max_by(by),
                };
                value.map(MEASURES[m].text)
            };
            let measures = (0..MEASURES.len()).filter(|m| self.best[*m] == *winners);
            let figures: Vec<String> = measures.filter_map(figure).collect();
            format!("{} ({})", self.names(winners), figures.join(", "))
        };
        let known = distinct(self.best.iter().filter(|winners| !winners.is_empty()));
        known.into_iter().map(of).collect::<Vec<_>>().join("; ")
    }

    /// Names of some stacks, the default first; of all their number.
    fn names(&self, of: &[usize]) -> String {
        if of.len() == self.stacks.len() && of.len() > 1 {
            return format!("all {}", of.len());
        }
        let (first, rest): (Vec<usize>, _) = of.iter().partition(|n| self.default == Some(**n));
        let shown = if of.len() > NAMES_SHOWN { NAMES_SHOWN - 1 } else { of.len() };
        let all = first.into_iter().chain(rest).take(shown);
        let mut names: Vec<String> = all.map(|n| self.stacks[n].label.clone()).collect();
        if shown < of.len() {
            names.push(format!("{} more", of.len() - shown));
        }
        listed(&names)
    }
}

fn has_policies(stacks: &[Stack]) -> bool {
    stacks.iter().any(|one| one.policy != stacks[0].policy)
}

/// `a, b and c`.
pub fn listed(texts: &[String]) -> String {
    match texts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => texts.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policies, each with its mean response, p99 and bandwidth.
    #[track_caller]
    fn check(policies: &[(&str, [f64; 3])], want: &str) {
        let stack = |&(policy, [mean, p99, mib_s]): &(&str, [f64; 3])| Stack {
            label: policy.into(),
            policy: policy.into(),
            starved: policy.strip_prefix("sstf").map(|_| "vm3".into()),
            figures: [Some(mean), Some(p99), Some(mib_s), None],
        };
        assert_eq!(Ranked::new(policies.iter().map(stack).collect()).text(), want);
    }

    #[test]
    fn the_default_is_named_first_and_so_are_equal_policies() {
        let best = [0.0165, 1.0, 50.0];
        check(
            &[("noop", [159.0, 681.0, 36.3]), ("fairway", [160.0, 690.0, 36.0])],
            "all 2 policies, fairway, the default, among them, give the same within 2 %: 159 ms \
             in the mean, 681 ms at p99 and 36.3 MiB/s",
        );
        check(
            &[("fairway", best), ("noop", [20.0, 2_000.0, 49.5])],
            "fairway, the default, gives 16.5 µs in the mean, 1 ms at p99 and 50 MiB/s; none of 2 \
             policies is more than 2 % better",
        );
        check(
            &[("fairway", best), ("noop", [20.0, 2_000.0, 5.0]), ("look", best)],
            "fairway, the default, gives 16.5 µs in the mean, 1 ms at p99 and 50 MiB/s; none of 3 \
             policies is more than 2 % better; equal: look",
        );
        check(
            &[
                ("cscan", [4.0, 20.0, 50.5]),
                ("look", [4.0, 9.0, 9.0]),
                ("fairway", [5.0, 10.0, 50.0]),
            ],
            "fairway, the default, gives 5 ms in the mean, 10 ms at p99 and 50 MiB/s; the best of \
             3 policies: cscan and look (4 ms in the mean); look (9 ms at p99); fairway and cscan \
             (50.5 MiB/s); within 2 % is equal",
        );
        check(
            &[("noop", [5.0, 10.0, 50.0]), ("cscan", [4.0, 9.0, 60.0])],
            "the best of 2 policies: cscan (4 ms in the mean, 9 ms at p99, 60 MiB/s)",
        );
    }

    #[test]
    fn many_equal_policies_are_counted() {
        let equal = [4.0, 9.0, 50.0];
        let mut policies = ["noop", "cscan", "look", "bfq", "cfq"].map(|of| (of, equal)).to_vec();
        policies.push(("fairway", [4.0, 10.0, 50.0]));
        check(
            &policies,
            "fairway, the default, gives 4 ms in the mean, 10 ms at p99 and 50 MiB/s; the best of \
             6 policies: all 6 (4 ms in the mean, 50 MiB/s); noop, cscan, look and 2 more (9 ms at \
             p99); within 2 % is equal",
        );
    }

    #[test]
    fn a_measure_in_which_all_are_equal_names_none() {
        let of = |policy: &'static str, mean| (policy, [mean, 9.0, 50.0]);
        let all = ["noop", "cscan", "look", "bfq", "cfq"].map(|policy| of(policy, 8.0));
        check(
            &[&[of("fairway", 4.0)], &all[..]].concat(),
            "fairway, the default, gives 4 ms in the mean, 9 ms at p99 and 50 MiB/s; none of 6 \
             policies is more than 2 % better",
        );
        check(
            &[&[of("fairway", 8.0), of("mine", 4.0)], &all[..]].concat(),
            "fairway, the default, gives 8 ms in the mean, 9 ms at p99 and 50 MiB/s; the best of 7 \
             policies: mine (4 ms in the mean); all 7 (9 ms at p99, 50 MiB/s); within 2 % is equal",
        );
    }

    #[test]
    fn a_policy_that_leaves_a_vm_without_an_answer_is_not_the_best() {
        check(
            &[("fairway", [5.0, 10.0, 50.0]), ("sstf", [1.0, 2.0, 80.0])],
            "fairway, the default, gives 5 ms in the mean, 10 ms at p99 and 50 MiB/s; none of 2 \
             policies is more than 2 % better; starved: vm3 under sstf",
        );
    }

    #[cfg(feature = "daemon")]
    #[test]
    fn the_first_policy_is_the_default_of_serve() {
        let first = REGISTRY.iter().next().map(|entry| entry.name);
        assert_eq!(first, Some(seekway_hostd::daemon::POLICY_DEFAULT));
    }
}
