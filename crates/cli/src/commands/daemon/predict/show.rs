//! A prediction as tables, JSON and a page.

use super::Prediction;
use super::figures::{
    Agreement, Figures, MEASURES, Measure, RankedStack, SECTORS_PER_MS, Side, Window, agreement,
    common, ranked,
};
use crate::args::Format;
use crate::commands::compare::tables::flat_operations;
use crate::output;
use crate::ranked::{Ranked, Stack, better};
use crate::stacks::NO_PREFETCH;
use anyhow::Result;
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::rank::{Better, relative_error};
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
    /// Against a measured trace: RMS distance of the distributions of service times.
    demerit_ms: Option<f64>,
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
        demerit_ms: made.demerit_ms,
        warnings: made.warnings(),
        notes: made.predicted.notes.clone(),
    };
    output::print_as(format, &tables, &json)
}

fn judged(made: &Prediction) -> Vec<Agreement> {
    made.against.as_ref().map_or_else(Vec::new, |against| agreement(&made.predicted, against))
}

/// Makes the table of the prediction. With `--against` a table for each measure that both sides
/// have, and one of how well they agree, follow.
fn tables(made: &Prediction) -> Vec<Table> {
    let predicted = &made.predicted;
    let Some(against) = &made.against else {
        let title = format!("Predicted on {}", predicted.name());
        let mut table = figures(made, title, &predicted.stacks(), predicted.measures());
        table.mark_best(|column| better(&column.name));
        return vec![table];
    };
    let judged = judged(made);
    let common = common(predicted, against);
    let of = |a: &Agreement| {
        let name = output::capital(a.of.name);
        let title = format!("{name} on {}, against {}", predicted.name(), against.name());
        figures(made, title, &common, [a.of])
    };
    judged.iter().map(of).chain([agreements(made, against, &judged, &common)]).collect()
}

/// A rank, where there are several to rank.
fn place(rank: Option<usize>, of: usize) -> Option<usize> {
    rank.filter(|_| of > 1)
}

/// These stacks with each measure, their ranks by it and, against another side, its figures and the
/// error.
fn figures(
    made: &Prediction,
    title: String,
    stacks: &[String],
    of: impl IntoIterator<Item = &'static Measure>,
) -> Table {
    let (predicted, against) = (&made.predicted, made.against.as_ref());
    let rows: Vec<(usize, &String)> = stacks.iter().enumerate().collect();
    let live = against.is_none() && predicted.runs.iter().any(|r| r.window.is_some());
    let table =
        Table::of(title, &rows).text(made.heading, |(_, stack)| *stack).each(
            of,
            |table, measure| {
                let Measure { name, unit, of, .. } = *measure;
                let heading = if against.is_some() { "predicted" } else { name };
                let ranks = predicted.ranks(stacks, measure);
                let table = table
                    .number(heading, unit, |(_, stack)| predicted.mean(stack, of))
                    .number("rank", "", |(n, _)| place(ranks[*n], ranks.len()));
                let Some(against) = against else { return table };
                let ranks = against.ranks(stacks, measure);
                table
                    .number("against", unit, |(_, stack)| against.mean(stack, of))
                    .number("rank", "", |(n, _)| place(ranks[*n], ranks.len()))
                    .number("error", "", |(_, stack)| {
                        relative_error(predicted.mean(stack, of)?, against.mean(stack, of)?)
                            .map(Cell::Change)
                    })
            },
        );
    if against.is_some() {
        return table.done();
    }
    table
        .number("bandwidth", "MiB/s", |(_, stack)| {
            Some(predicted.mean(stack, |run| run.sectors_per_ms)? / SECTORS_PER_MS)
        })
        .when(live, |table| {
            let mean = |stack: &str, figure: fn(&Window) -> f64| {
                predicted.mean(stack, |run| run.window.as_ref().map(figure))
            };
            table.number("k", "", |(_, stack)| mean(stack, |w| w.k)).number(
                "late",
                "",
                |(_, stack)| mean(stack, |w| w.late_share).map(Cell::Share),
            )
        })
        .notes(notes(made))
        .done()
}

/// Below the last table.
fn notes(made: &Prediction) -> Vec<String> {
    let sides = [Some(&made.predicted), made.against.as_ref()].into_iter().flatten();
    let said = sides.flat_map(|side| side.notes.clone());
    let runs = made.predicted.runs_each();
    let means = (runs > 1).then(|| format!("Means of {runs} runs of each."));
    [LEGEND.to_string()].into_iter().chain(means).chain(said).chain(made.same.clone()).collect()
}

const LEGEND: &str = "service: mean time of a command on the disk, from the later of its dispatch \
                      and the completion before it; from dispatch: with the waiting inside the \
                      disk. response: mean from a request's arrival to its completion.";

/// Measure by measure, does the prediction rank right, and how far is it off?
fn agreements(made: &Prediction, against: &Side, judged: &[Agreement], common: &[String]) -> Table {
    let all = [made.predicted.stacks(), against.stacks()].concat();
    let missing: Vec<String> = all.into_iter().filter(|stack| !common.contains(stack)).collect();
    Table::of("Agreement", judged)
        .text("measure", |a| a.of.name)
        .text("same order", |a| verdict(a.same_order))
        .text("seeds", |a| a.seeds_same_order.map(|n| format!("{n} of {}", a.seeds)))
        .number("Kendall's τ", "", |a| a.tau)
        .number("mean error", "", |a| a.error_mean.map(Cell::Share))
        .number("largest", "", |a| a.error_max.map(Cell::Share))
        .text("in another order", swapped)
        .note(
            "same order: are all pairs of policies ordered alike, by the means (a single policy has \
             no rank); seeds: in how many of them alone. Kendall's τ: 1 when all pairs are, -1 when \
             none is. Errors: their size, relative to what the prediction is held against. In \
             another order: the pairs, as predicted, and by how much they really differ.",
        )
        .notes((!missing.is_empty()).then(|| {
            format!("Of one side only, and left out: {}.", missing.join(", "))
        }))
        .notes(notes(made))
        .done()
}

fn verdict(same: Option<bool>) -> Option<Cell> {
    let badge = |same| if same { ("yes", Tone::Good) } else { ("no", Tone::Bad) };
    same.map(badge).map(|(text, tone)| Cell::badge(text, tone))
}

/// At most this many pairs are named.
const PAIRS_SHOWN: usize = 4;

fn swapped(a: &Agreement) -> String {
    let pair = |s: &super::figures::SwappedPair| {
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
    let table = Table::of("", &rows)
        .text("side", |(name, ..)| *name)
        .text("disk", |(_, side, _)| &side.what)
        .text("policy", |(.., run)| &run.policy)
        .number("seed", "", |(.., run)| run.seed)
        .each(MEASURES.iter().filter(|m| !m.is_of_operation()), |table, m| {
            table.number(m.key, "", |(.., run)| (m.of)(run))
        })
        .number("mib_s", "", |(.., run)| run.mib_s)
        .number("round", "", |(.., run)| run.window.as_ref().map(|w| w.round))
        .number("k", "", window(|w| w.k))
        .number("window_s", "", window(|w| w.window_s))
        .number("late_share", "", window(|w| w.late_share))
        // Absent if nobody says whether the run had a host cache.
        .number("cache_mib", "", |(.., run)| Some(run.cache.as_ref()?.cache_mib.unwrap_or(0.0)))
        .text("prefetch", |(.., run)| {
            Some(run.cache.as_ref()?.prefetch.as_deref().unwrap_or(NO_PREFETCH))
        });
    flat_operations(table, |(.., run)| &run.operations).done()
}

/// The page: the result in a sentence, bars for each measure, and the tables.
pub fn page(made: &Prediction) -> Report {
    let mut result: Vec<Block> = made.warnings().into_iter().map(Block::Warning).collect();
    result.extend(made.predicted.measures().map(|m| bars(made, m)));
    let in_numbers = tables(made).into_iter().map(Block::Table).collect();
    let disk = [("Disk", made.predicted.what.clone())];
    let against = made.against.iter().map(|side| ("Against", side.what.clone()));
    let sections = vec![Section::new("Result", result), Section::new("In numbers", in_numbers)];
    output::report("Seekway: prediction", sentence(made), disk.into_iter().chain(against), sections)
}

/// Which policies are predicted to be the best.
fn sentence(made: &Prediction) -> String {
    let predicted = &made.predicted;
    let stack = |label: String| {
        let mean = |of: fn(&Figures) -> Option<f64>| predicted.mean(&label, of);
        let rate = mean(|run| run.sectors_per_ms);
        let (response, p99) = (mean(|run| run.response_ms), mean(|run| run.response_p99_ms));
        let policy = predicted.of(&label).next().map_or_else(String::new, |r| r.policy.clone());
        let figures = [response, p99, rate.map(|rate| rate / SECTORS_PER_MS), None];
        Stack { label, policy, starved: None, figures }
    };
    let stacks: Vec<Stack> = predicted.stacks().into_iter().map(stack).collect();
    let name = predicted.name();
    let has_figures = |one: &Stack| one.figures.iter().any(Option::is_some);
    match stacks.as_slice() {
        all if !all.iter().any(has_figures) => {
            format!("What each {} gives on {name}.", made.heading)
        }
        [one] => format!("{} on {name}: {}.", one.label, one.text()),
        _ => format!("On {name}, {}.", Ranked::new(stacks).text()),
    }
}

fn bars(made: &Prediction, measure: &Measure) -> Block {
    let policies = made.predicted.stacks();
    let series = |side: &Side, reference: bool| {
        let bar = |policy: &String| {
            let value = side.mean(policy, measure.of)?;
            let values = side.of(policy).filter_map(measure.of);
            let several = values.clone().count() > 1;
            let range = Option::zip(values.clone().reduce(f64::min), values.reduce(f64::max));
            Some(Bar { value, range: range.filter(|_| several) })
        };
        let bars = policies.iter().map(bar).collect();
        BarSeries { name: side.name(), bars, reference }
    };
    let mut sides = vec![series(&made.predicted, false)];
    sides.extend(made.against.iter().map(|side| series(side, true)));
    let Measure { name, unit, .. } = *measure;
    let bars = Bars { axis: Axis::linear(name, unit), groups: policies, series: sides };
    let end = match measure.better {
        Better::Less => "shorter",
        Better::More => "longer",
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
    use super::super::against::PublishedReport;
    use super::*;

    /// `--against published` has a report of its own.
    #[derive(schemars::JsonSchema)]
    #[schemars(untagged)]
    #[expect(dead_code)]
    enum Predicted<'a> {
        Load(PredictReport<'a>),
        Drive(PublishedReport<'a>),
    }

    #[test]
    fn a_schema_is_made_of_what_is_printed() {
        use seekway_testing::schema;
        schema::<Predicted<'_>>("predict", "seekway predict --format json");
    }
}
