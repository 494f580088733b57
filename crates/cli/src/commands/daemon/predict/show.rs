//! A prediction as tables, JSON and a page.

use super::Prediction;
use super::figures::{Figures, Measure, RankedStack, SECTORS_PER_MS, Side, Window, ranked};
use super::judge::{Agreement, agreement, common};
use crate::args::Format;
use crate::caching::NO_PREFETCH;
use crate::output;
use anyhow::Result;
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell, Table, Tone};
use serde::Serialize;

/// `predict --format json`. Its `runs` read back with `--against`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PredictReport<'a> {
    on: &'a str,
    runs: &'a [Figures],
    policies: Vec<RankedStack>,
    against: Option<Reference<'a>>,
    agreement: Vec<Agreement>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Reference<'a> {
    what: &'a str,
    runs: &'a [Figures],
    policies: Vec<RankedStack>,
}

impl<'a> Reference<'a> {
    fn new(side: &'a Side) -> Reference<'a> {
        Reference { what: &side.what, runs: &side.runs, policies: ranked(side) }
    }
}

/// Print it in the format asked for.
pub fn print(made: &Prediction, format: Format) -> Result<()> {
    let tables = match format {
        Format::Csv => vec![flat(made)],
        _ => tables(made),
    };
    let json = PredictReport {
        on: &made.predicted.what,
        runs: &made.predicted.runs,
        policies: ranked(&made.predicted),
        against: made.against.as_ref().map(Reference::new),
        agreement: judged(made),
        warnings: made.warnings(),
        notes: made.predicted.notes.clone(),
    };
    output::print_as(format, &tables, &json)
}

fn judged(made: &Prediction) -> Vec<Agreement> {
    made.against.as_ref().map_or_else(Vec::new, |against| agreement(&made.predicted, against))
}

/// What was predicted; beside it what it is held against, and how they agree.
fn tables(made: &Prediction) -> Vec<Table> {
    let Some(against) = &made.against else { return vec![alone(made)] };
    let judged = judged(made);
    let beside = |a| beside(made, against, a);
    let mut tables: Vec<Table> = judged.iter().map(beside).collect();
    let mut agreements = agreements(&judged);
    agreements.notes.extend(remarks(&made.predicted, against));
    agreements.notes.extend(made.same.clone());
    tables.push(agreements);
    tables
}

/// A rank, where there are several to rank.
fn place(rank: Option<usize>, of: usize) -> Option<usize> {
    rank.filter(|_| of > 1)
}

/// The measures that a table has room for: those that say something.
fn shown(side: &Side) -> Vec<Measure> {
    let told_apart = |m: &Measure| *m != Measure::ServiceFromDispatch || side.queues();
    Measure::ALL.into_iter().filter(|m| side.has(*m)).filter(told_apart).collect()
}

/// Policies with each measure and the policy's place by it.
fn alone(made: &Prediction) -> Table {
    let side = &made.predicted;
    let live = side.runs.iter().any(|r| r.window.is_some());
    let policies = side.stacks();
    let rows: Vec<(usize, &String)> = policies.iter().enumerate().collect();
    Table::of(format!("Predicted on {}", side.name()), &rows)
        .text(made.heading, |(_, policy)| *policy)
        .each(shown(side), |table, measure| {
            let (name, unit) = measure.name();
            let places = side.ranks(&policies, measure);
            table.number(name, unit, |(_, policy)| side.mean(policy, measure)).number(
                "rank",
                "",
                |(n, _)| place(places[*n], places.len()),
            )
        })
        .number("bandwidth", "MiB/s", |(_, policy)| {
            Some(side.mean(policy, Measure::Throughput)? / SECTORS_PER_MS)
        })
        .when(live, |table| {
            table.number("k", "", |(_, policy)| side.of_windows(policy, |w| w.k)).number(
                "late",
                "",
                |(_, policy)| side.of_windows(policy, |w| w.late_share).map(Cell::Share),
            )
        })
        .note(legend(side))
        .notes(&side.notes)
        .notes(&made.same)
        .done()
}

/// What the columns are.
fn legend(side: &Side) -> String {
    let mut text = String::from(
        "service: mean time of a command on the disk, from the later of its dispatch and the \
         completion before it",
    );
    if side.queues() {
        text += " (from dispatch: with the waiting inside the disk)";
    } else if side.has(Measure::ServiceFromDispatch) {
        text += "; one command at a time, so it is the same from dispatch";
    }
    text += ". response: mean from a request's arrival to its completion.";
    match side.runs_each() {
        0 | 1 => {}
        n => text += &format!(" Means of {n} runs of each policy."),
    }
    text
}

/// A measure of each policy, predicted and measured.
fn beside(made: &Prediction, against: &Side, agreement: &Agreement) -> Table {
    let predicted = &made.predicted;
    let (name, unit) = agreement.of.name();
    let title =
        format!("{} on {}, against {}", output::capital(name), predicted.name(), against.name());
    let policies = common(predicted, against);
    let ours = predicted.ranks(&policies, agreement.of);
    let theirs = against.ranks(&policies, agreement.of);
    let rows: Vec<(usize, &String)> = policies.iter().enumerate().collect();
    Table::of(title, &rows)
        .text(made.heading, |(_, policy)| *policy)
        .number("predicted", unit, |(_, policy)| predicted.mean(policy, agreement.of))
        .number("rank", "", |(n, _)| place(ours[*n], ours.len()))
        .number("against", unit, |(_, policy)| against.mean(policy, agreement.of))
        .number("rank", "", |(n, _)| place(theirs[*n], theirs.len()))
        .number("error", "", |(_, policy)| {
            agreement.errors.get(*policy).copied().flatten().map(Cell::Change)
        })
        .done()
}

/// What stands below the last table of both sides.
fn remarks(predicted: &Side, against: &Side) -> Vec<String> {
    let mut notes = vec![legend(predicted)];
    notes.extend([predicted, against].iter().flat_map(|s| s.notes.iter().cloned()));
    let policies = common(predicted, against);
    let all = [predicted.stacks(), against.stacks()].concat();
    let missing: Vec<String> = all.into_iter().filter(|p| !policies.contains(p)).collect();
    if !missing.is_empty() {
        notes.push(format!("Of one side only, and left out: {}.", missing.join(", ")));
    }
    notes
}

/// Measure by measure, does the prediction rank right, and how far is it off?
fn agreements(judged: &[Agreement]) -> Table {
    let single = judged.iter().any(|a| a.same_order.is_none());
    Table::of("Agreement", judged)
        .text("measure", |a| a.of.name().0)
        .text("same order", |a| verdict(a.same_order))
        .text("seeds", |a| a.seeds_same_order.map(|n| format!("{n} of {}", a.seeds)))
        .number("Kendall's τ", "", |a| a.tau)
        .number("mean error", "", |a| a.error_mean.map(Cell::Share))
        .number("largest", "", |a| a.error_max.map(Cell::Share))
        .text("in another order", swapped)
        .notes(
            single.then_some("A single policy has no rank, and so no agreement of ranks."),
        )
        .note(
            "same order: are all pairs of policies ordered alike, by the means; seeds: in how many \
             of them alone. Kendall's τ: 1 when all pairs are, -1 when none is. Errors: their size, \
             relative to what the prediction is held against. In another order: the pairs, as \
             predicted, and by how much they really differ.",
        )
        .done()
}

fn verdict(same: Option<bool>) -> Option<Cell> {
    let badge = |same| if same { ("yes", Tone::Good) } else { ("no", Tone::Bad) };
    same.map(badge).map(|(text, tone)| Cell::badge(text, tone))
}

/// At most this many pairs are named.
const PAIRS_SHOWN: usize = 4;

fn swapped(a: &Agreement) -> String {
    let pair = |s: &super::judge::SwappedPair| {
        let differ = s.differ.map_or(String::new(), |d| format!(" ({:.1} %)", 100.0 * d));
        format!("{} before {}{differ}", s.policies[0], s.policies[1])
    };
    let mut pairs: Vec<String> = a.swapped.iter().take(PAIRS_SHOWN).map(pair).collect();
    if a.swapped.len() > PAIRS_SHOWN {
        pairs.push(format!("and {} more", a.swapped.len() - PAIRS_SHOWN));
    }
    pairs.join(", ")
}

/// One line for each run of each side.
fn flat(made: &Prediction) -> Table {
    let sides = [("predicted", Some(&made.predicted)), ("against", made.against.as_ref())];
    let sides = sides.into_iter().filter_map(|(name, side)| Some((name, side?)));
    let rows: Vec<(&str, &Side, &Figures)> =
        sides.flat_map(|(name, side)| side.runs.iter().map(move |run| (name, side, run))).collect();
    let window = |figure: fn(&Window) -> f64| {
        move |row: &(&str, &Side, &Figures)| row.2.window.as_ref().map(figure)
    };
    Table::of("", &rows)
        .text("side", |(name, ..)| *name)
        .text("disk", |(_, side, _)| &side.what)
        .text("policy", |(.., run)| &run.policy)
        .number("seed", "", |(.., run)| run.seed)
        .each(Measure::ALL, |table, m| table.number(m.key(), "", |(.., run)| run.get(m)))
        .number("mib_s", "", |(.., run)| run.mib_s)
        .number("round", "", |(.., run)| run.window.as_ref().map(|w| w.round))
        .number("k", "", window(|w| w.k))
        .number("window_s", "", window(|w| w.window_s))
        .number("late_share", "", window(|w| w.late_share))
        // Absent if nobody says whether the run had a host cache.
        .number("cache_mib", "", |(.., run)| Some(run.cache.as_ref()?.cache_mib.unwrap_or(0.0)))
        .text("prefetch", |(.., run)| {
            Some(run.cache.as_ref()?.prefetch.as_deref().unwrap_or(NO_PREFETCH))
        })
        .done()
}

/// The result in a sentence.
fn sentence(made: &Prediction) -> String {
    let side = &made.predicted;
    let policies = side.stacks();
    let first = |measure: Measure| {
        let places = side.ranks(&policies, measure);
        let best = places.iter().position(|p| *p == Some(1))?;
        let (policy, unit) = (&policies[best], measure.name().1);
        Some(format!("{policy} ({:.2} {unit})", side.mean(policy, measure)?))
    };
    let mut text = match (first(Measure::Response), first(Measure::Throughput)) {
        (Some(response), Some(throughput)) => format!(
            "On {}, {response} answers fastest in the mean, {throughput} moves most.",
            side.what
        ),
        _ => format!("On {} nothing was served.", side.what),
    };
    for a in judged(made).iter().filter(|a| a.of == Measure::Service) {
        let order = match a.same_order {
            Some(true) => "the policies' order by service time is the same, ",
            Some(false) => "the policies' order by service time differs, ",
            None => "",
        };
        let worst = a.error_max.map_or_else(String::new, |e| {
            format!("mean service is at most {:.1} % off", 100.0 * e)
        });
        let what = made.against.as_ref().map_or("", |s| s.what.as_str());
        text += &format!(" Against {what}: {order}{worst}.");
    }
    text
}

/// The page: the tables, and bars for each measure.
pub fn page(made: &Prediction) -> Report {
    let mut result: Vec<Block> = made.warnings().into_iter().map(Block::Warning).collect();
    result.extend(tables(made).into_iter().map(Block::Table));
    let figures = shown(&made.predicted).into_iter().map(|m| bars(made, m)).collect();
    let disk = [("Disk", made.predicted.what.clone())];
    let against = made.against.iter().map(|side| ("Against", side.what.clone()));
    let sections = vec![Section::new("Result", result), Section::new("Each measure", figures)];
    output::report("Seekway: prediction", sentence(made), disk.into_iter().chain(against), sections)
}

fn bars(made: &Prediction, measure: Measure) -> Block {
    let policies = made.predicted.stacks();
    let series = |side: &Side, reference: bool| {
        let bar = |policy: &String| {
            let values = side.values(policy, measure);
            let low = values.iter().copied().reduce(f64::min)?;
            let high = values.iter().copied().reduce(f64::max)?;
            let range = (values.len() > 1).then_some((low, high));
            Some(Bar { value: side.mean(policy, measure)?, range })
        };
        let bars = policies.iter().map(bar).collect();
        BarSeries { name: side.name(), bars, reference }
    };
    let mut sides = vec![series(&made.predicted, false)];
    sides.extend(made.against.iter().map(|side| series(side, true)));
    let (name, unit) = measure.name();
    let bars = Bars { axis: Axis::linear(name, unit), groups: policies, series: sides };
    let end = match measure.better() {
        seekway_sim::rank::Better::Less => "shorter",
        seekway_sim::rank::Better::More => "longer",
    };
    let mut caption =
        format!("{} of each {}; {end} is better.", output::capital(name), made.heading);
    if made.predicted.runs_each() > 1 {
        caption += " Whiskers: least and most of the runs.";
    }
    Block::figure(bars.render(), caption)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_what_is_printed() {
        use seekway_testing::schema;
        schema::<PredictReport<'_>>("predict", "seekway predict --format json");
    }
}
