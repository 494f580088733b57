//! A prediction as tables, JSON and a page.

use super::Prediction;
use super::figures::{Figures, Measure, RankedStack, Side, ranked};
use super::judge::{Agreement, agreement, common};
use crate::args::Format;
use crate::caching::NO_PREFETCH;
use crate::output;
use anyhow::Result;
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell, Column, Table, Tone};
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

fn number(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Number)
}

/// A rank, where there are several to rank.
fn place(rank: Option<usize>, of: usize) -> Cell {
    rank.filter(|_| of > 1).map_or(Cell::Absent, |r| Cell::Count(r as u64))
}

/// The measures that a table has room for: those that say something.
fn shown(side: &Side) -> Vec<Measure> {
    let told_apart = |m: &Measure| *m != Measure::ServiceFromDispatch || side.queues();
    Measure::ALL.into_iter().filter(|m| side.has(*m)).filter(told_apart).collect()
}

/// Policies with each measure and the policy's place by it.
fn alone(made: &Prediction) -> Table {
    let side = &made.predicted;
    let measures = shown(side);
    let mut columns = vec![Column::text(made.heading)];
    for measure in &measures {
        let (name, unit) = measure.name();
        columns.extend([Column::number(name, unit), Column::number("rank", "")]);
    }
    columns.push(Column::number("bandwidth", "MiB/s"));
    let live = side.runs.iter().any(|r| r.window.is_some());
    if live {
        columns.extend([Column::number("k", ""), Column::number("late", "")]);
    }
    let mut table = Table::new(format!("Predicted on {}", side.name()), columns);
    let policies = side.stacks();
    let places: Vec<_> = measures.iter().map(|m| side.ranks(&policies, *m)).collect();
    for (n, policy) in policies.iter().enumerate() {
        let mut row = vec![Cell::Text(policy.clone())];
        for (measure, places) in measures.iter().zip(&places) {
            row.extend([number(side.mean(policy, *measure)), place(places[n], places.len())]);
        }
        let mib_s = side.mean(policy, Measure::Throughput);
        row.push(number(mib_s.map(|s| s / super::figures::SECTORS_PER_MS)));
        if live {
            row.push(number(side.of_windows(policy, |w| w.k)));
            row.push(side.of_windows(policy, |w| w.late_share).map_or(Cell::Absent, Cell::Share));
        }
        table.push(row);
    }
    table.notes.push(legend(side));
    table.notes.extend(side.notes.iter().cloned());
    table.notes.extend(made.same.clone());
    table
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
    let columns = vec![
        Column::text(made.heading),
        Column::number("predicted", unit),
        Column::number("rank", ""),
        Column::number("against", unit),
        Column::number("rank", ""),
        Column::number("error", ""),
    ];
    let title = format!("{} on {}, against {}", capital(name), predicted.name(), against.name());
    let mut table = Table::new(title, columns);
    let policies = common(predicted, against);
    let ours = predicted.ranks(&policies, agreement.of);
    let theirs = against.ranks(&policies, agreement.of);
    for (n, policy) in policies.iter().enumerate() {
        let error = agreement.errors.get(policy).copied().flatten();
        table.push([
            Cell::Text(policy.clone()),
            number(predicted.mean(policy, agreement.of)),
            place(ours[n], ours.len()),
            number(against.mean(policy, agreement.of)),
            place(theirs[n], theirs.len()),
            error.map_or(Cell::Absent, Cell::Change),
        ]);
    }
    table
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
    let columns = vec![
        Column::text("measure"),
        Column::text("same order"),
        Column::text("seeds"),
        Column::number("Kendall's τ", ""),
        Column::number("mean error", ""),
        Column::number("largest", ""),
        Column::text("in another order"),
    ];
    let mut table = Table::new("Agreement", columns);
    for a in judged {
        let share = |value: Option<f64>| value.map_or(Cell::Absent, Cell::Share);
        table.push([
            Cell::Text(a.of.name().0.into()),
            verdict(a.same_order),
            a.seeds_same_order.map_or(Cell::Absent, |n| Cell::Text(format!("{n} of {}", a.seeds))),
            number(a.tau),
            share(a.error_mean),
            share(a.error_max),
            Cell::Text(swapped(a)),
        ]);
    }
    if judged.iter().any(|a| a.same_order.is_none()) {
        table.notes.push("A single policy has no rank, and so no agreement of ranks.".into());
    }
    table.notes.push(
        "same order: are all pairs of policies ordered alike, by the means; seeds: in how many \
         of them alone. Kendall's τ: 1 when all pairs are, -1 when none is. Errors: their size, \
         relative to what the prediction is held against. In another order: the pairs, as \
         predicted, and by how much they really differ."
            .into(),
    );
    table
}

fn verdict(same: Option<bool>) -> Cell {
    match same {
        None => Cell::Absent,
        Some(true) => Cell::Badge { text: "yes".into(), tone: Tone::Good },
        Some(false) => Cell::Badge { text: "no".into(), tone: Tone::Bad },
    }
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
    let mut columns = ["side", "disk", "policy"].map(Column::text).to_vec();
    columns.push(Column::number("seed", ""));
    columns.extend(Measure::ALL.map(|m| Column::number(m.key(), "")));
    columns
        .extend(["mib_s", "round", "k", "window_s", "late_share"].map(|n| Column::number(n, "")));
    columns.extend([Column::number("cache_mib", ""), Column::text("prefetch")]);
    let mut table = Table::new("", columns);
    let sides = [("predicted", Some(&made.predicted)), ("against", made.against.as_ref())];
    for (name, side) in sides.into_iter().filter_map(|(name, side)| Some((name, side?))) {
        for run in &side.runs {
            let mut row = [name, &side.what, &run.policy].map(|t| Cell::Text(t.into())).to_vec();
            row.push(run.seed.map_or(Cell::Absent, Cell::Count));
            row.extend(Measure::ALL.map(|m| number(run.get(m))));
            let window = run.window.as_ref();
            row.extend([
                number(run.mib_s),
                window.map_or(Cell::Absent, |w| Cell::Count(w.round)),
                number(window.map(|w| w.k)),
                number(window.map(|w| w.window_s)),
                number(window.map(|w| w.late_share)),
            ]);
            row.extend(cache(run));
            table.push(row);
        }
    }
    table
}

/// The host cache of a run; absent if nobody says whether it had one.
fn cache(run: &Figures) -> [Cell; 2] {
    let Some(cache) = &run.cache else { return [Cell::Absent, Cell::Absent] };
    let prefetch = cache.prefetch.clone().unwrap_or_else(|| NO_PREFETCH.into());
    [Cell::Number(cache.cache_mib.unwrap_or(0.0)), Cell::Text(prefetch)]
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
    let mut result = Section { heading: "Result".into(), ..Section::default() };
    result.blocks.extend(made.warnings().into_iter().map(Block::Warning));
    result.blocks.extend(tables(made).into_iter().map(Block::Table));
    let figures: Vec<Block> = shown(&made.predicted).into_iter().map(|m| bars(made, m)).collect();
    let mut meta = vec![
        ("Command".into(), output::command_line()),
        ("Disk".into(), made.predicted.what.clone()),
    ];
    if let Some(against) = &made.against {
        meta.push(("Against".into(), against.what.clone()));
    }
    meta.push(("Version".into(), env!("CARGO_PKG_VERSION").into()));
    let measures =
        Section { heading: "Each measure".into(), intro: String::new(), blocks: figures };
    Report {
        title: "Seekway: prediction".into(),
        subtitle: sentence(made),
        meta,
        sections: vec![result, measures],
    }
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
    let bars = Bars {
        title: String::new(),
        axis: Axis::linear(name, unit),
        groups: policies,
        series: sides,
    };
    let end = match measure.better() {
        seekway_sim::rank::Better::Less => "shorter",
        seekway_sim::rank::Better::More => "longer",
    };
    let mut caption = format!("{} of each {}; {end} is better.", capital(name), made.heading);
    if made.predicted.runs_each() > 1 {
        caption += " Whiskers: least and most of the runs.";
    }
    Block::Figure { svg: bars.render(), caption }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |c| c.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_share_is_of_what_is_printed() {
        use seekway_testing::schema;
        schema::<PredictReport<'_>>("predict", "seekway predict --format json");
    }
}
