//! Table IV: the distances of seeks in the read experiment.

use super::super::judge::{count, mean};
use super::super::metric::zero_seeks_percent;
use super::super::{Results, Row};
use super::{CFQ, LITERAL, OURS, label};
use crate::metrics::RunResult;

/// An image has 1.5 · 2^24 sectors, the table's ±2.4·10⁷; distances are counted by powers of two.
/// Below this one a seek stays within an image's size, from the next one on it leaves it.
const NEAR_POWER: usize = 24;

/// Share of the commands at less than `2^power` sectors from where the head stood, in percent.
fn within(power: usize) -> impl Fn(&RunResult) -> f64 {
    move |r| {
        let seeks = &r.seeks_per_command;
        let near = |bins: &[u64]| bins[..power].iter().sum::<u64>();
        let count = seeks.zero + near(&seeks.forward) + near(&seeks.backward);
        100.0 * count as f64 / seeks.total().max(1) as f64
    }
}

fn per_request(r: &RunResult) -> f64 {
    100.0 * r.seeks_per_request.zero_share()
}

/// Share of the streams' own commands: VM3 has two random readers and VM2 one like them, and
/// hardly any of their requests continues another.
fn of_streams(r: &RunResult) -> f64 {
    let random = r.vms[2].requests * 3 / 2;
    100.0 * r.seeks_per_command.zero as f64 / r.stats.commands.saturating_sub(random) as f64
}

/// A row that says that one policy has more seeks at zero than another (of a scenario; in
/// percent of the commands).
pub(super) fn more_at_zero(
    results: &Results,
    (s, name): (&str, String),
    (policy, base): (&str, &str),
    why: &str,
) -> Row {
    let [ours, theirs] = [policy, base].map(|p| results.each(s, p, zero_seeks_percent));
    let beyond: Vec<f64> = ours.iter().zip(&theirs).map(|(o, t)| o - t).collect();
    let why = format!("{why}; {:.0} % against {:.0} %", mean(&ours), mean(&theirs));
    Row::measured(name, &beyond, "%", why).ordered(count(&beyond, |b| b > 0.0), beyond.len())
}

/// Rows of table IV over a scenario of three VMs that read.
pub(super) fn seek_rows(results: &Results, s: &str) -> Vec<Row> {
    let mut rows = zero_rows(results, s);
    for policy in [LITERAL, CFQ, "anticipatory"] {
        let near = results.each(s, policy, within(NEAR_POWER));
        let name = format!("seeks within 2^24 sectors under {}", label(policy));
        let why = "mainly is taken as more than half; an image has 1.5 · 2^24 sectors";
        let more = count(&near, |v| v > 50.0);
        rows.push(Row::measured(name, &near, "%", why).ordered(more, near.len()));
    }
    for policy in [LITERAL, OURS, CFQ, "anticipatory", "deadline"] {
        let upto = |power| results.each(s, policy, within(power));
        let beyond: Vec<f64> = upto(NEAR_POWER + 1).iter().map(|v| 100.0 - v).collect();
        let why = format!(
            "{:.0} % at zero, {:.0} % below 2^24 and {:.0} % from 2^24 to 2^25 sectors",
            results.mean(s, policy, zero_seeks_percent),
            results.mean(s, policy, |r| within(NEAR_POWER)(r) - zero_seeks_percent(r)),
            results.mean(s, policy, |r| within(NEAR_POWER + 1)(r) - within(NEAR_POWER)(r)),
        );
        let name = format!("seeks of 2^25 sectors and more under {}", label(policy));
        rows.push(Row::measured(name, &beyond, "%", why));
    }
    rows
}

/// Seeks of distance zero: the paper does not say whether it counts commands or guests' requests,
/// nor how many random requests its run had.
fn zero_rows(results: &Results, s: &str) -> Vec<Row> {
    let over = results.ratio(s, (LITERAL, CFQ), zero_seeks_percent);
    let mut rows = vec![Row::factor("seeks at zero: literal form over cfq", 77.0 / 46.0, &over)];
    for base in ["anticipatory", "deadline"] {
        let name = format!("seeks at zero: literal form beyond {base}");
        let why = "higher than the other schedulers' in table IV; the text gives no figure";
        rows.push(more_at_zero(results, (s, name), (LITERAL, base), why));
    }
    for (policy, paper) in [(LITERAL, 77.0), (CFQ, 46.0)] {
        let name = |what: &str| format!("seeks at zero under {}, {what}", label(policy));
        let random =
            results.mean(s, policy, |r| 150.0 * r.vms[2].requests as f64 / r.stats.commands as f64);
        let values = results.each(s, policy, zero_seeks_percent);
        let row = Row::value(name("per command"), paper, &values, "%", 0.1);
        rows.push(row.because(format!(
            "{random:.0} % of the commands are the random readers' and cannot be at zero: the \
             share tells how long they ran (to their end, here)"
        )));
        let values = results.each(s, policy, per_request);
        let row = Row::value(name("per guest request"), paper, &values, "%", 0.1);
        rows.push(row.because("a coalesced request counts as at zero, so small requests raise it"));
        let values = results.each(s, policy, of_streams);
        let why = "without the random readers' commands; the paper counts all";
        rows.push(Row::measured(name("of the streams' commands"), &values, "%", why));
    }
    rows
}
