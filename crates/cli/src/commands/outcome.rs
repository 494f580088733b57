//! All runs of a scenario as tables of typed columns.

use crate::commands::compare::{Asked, Signs, warnings};
use crate::runs::{self, Running, Stage, with_seeds};
use crate::{Verdict, output, toml_text};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use seekway_sim::scenario::read::{study, study_of_file};
use seekway_sim::scenario::tables::{Column, Table, Values, tables};
use seekway_sim::scenario::{Scenario, Study};
use serde_json::{Value, json};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

/// Results of all runs of a scenario.
pub struct Ran {
    pub tables: Vec<Table>,
    /// Reasons to doubt the figures.
    pub warnings: Vec<String>,
}

/// Where a scenario is.
pub enum Described<'a> {
    /// In a file.
    File(&'a Path),
    /// A table, as JSON.
    Json(&'a str),
}

impl Described<'_> {
    fn studies(&self) -> Result<Vec<Study>> {
        match self {
            Described::File(path) if path.as_os_str() == "-" => {
                let text = io::read_to_string(io::stdin()).context("standard input")?;
                match text.trim_start().starts_with('{') {
                    true => of_json(&text),
                    false => study(&text, None),
                }
            }
            Described::File(path) => study_of_file(path),
            Described::Json(text) => of_json(text),
        }
    }
}

fn of_json(text: &str) -> Result<Vec<Study>> {
    let table = serde_json::from_str(text).context("a scenario is a table")?;
    study(&toml_text::document(&table), None)
}

/// `seekway compare FILE --outcome`.
pub fn run(file: &Path, jobs: Option<NonZeroUsize>) -> Result<Verdict> {
    output::print(&json(&ran(&Described::File(file), &Running::shown(jobs))?)?)?;
    Ok(Verdict::Done)
}

/// Writes tables and warnings as JSON: of each column its name, its type (`text`, `count`, `number`
/// or `flag`) and a list of its values.
fn json(ran: &Ran) -> Result<String> {
    let column = |column: &Column| {
        let (kind, values) = match &column.values {
            Values::Text(words) => ("text", json!(words.iter().collect::<Vec<_>>())),
            Values::Count(values) => ("count", json!(values)),
            Values::Number(values) => ("number", json!(values)),
            Values::Flag(values) => ("flag", json!(values)),
        };
        json!({ "name": column.name, "type": kind, "values": values })
    };
    let tables: serde_json::Map<String, Value> = ran
        .tables
        .iter()
        .map(|table| (table.name.into(), table.columns.iter().map(column).collect()))
        .collect();
    Ok(serde_json::to_string(&json!({ "tables": tables, "warnings": ran.warnings }))? + "\n")
}

/// Makes all runs of a scenario. Each is reduced to its rows as soon as it is done.
pub fn ran(described: &Described<'_>, running: &Running<'_>) -> Result<Ran> {
    let (mut all, mut told): (Vec<Table>, Vec<String>) = (Vec::new(), Vec::new());
    let bar = running.bar.clone().unwrap_or_else(|| runs::requests(None, "running"));
    let asked = Asked::of_studies(described.studies()?)?;
    let stages: Vec<Stage<'_>> = asked.iter().map(|asked| asked.stage(running)).collect();
    let of = |(n, asked): (usize, &Asked)| {
        let runs = with_seeds(&asked.stacks, &asked.seeds).into_iter();
        runs.map(move |run| (n, run)).collect::<Vec<_>>()
    };
    let runs: Vec<(usize, (usize, Scenario))> =
        asked.iter().enumerate().flat_map(of).enumerate().collect();
    let made = runs::parallel(&runs, running.jobs, |(number, (of, run))| {
        one(&stages[*of], *number, run, &bar)
    })?;
    let mut signs: Vec<Vec<Signs>> = asked.iter().map(|_| Vec::new()).collect();
    for ((rows, sign), (_, (of, _))) in made.into_iter().zip(&runs) {
        join(&mut all, rows);
        signs[*of].push(sign);
    }
    for (asked, signs) in asked.iter().zip(&signs) {
        told.extend(warnings(&asked.ready.load, signs, &asked.stacks[0].measure));
    }
    Ok(Ran { tables: all, warnings: told })
}

/// Makes one run: its rows, and what warnings are made of.
fn one(
    stage: &Stage<'_>,
    number: usize,
    scenario: &Scenario,
    bar: &ProgressBar,
) -> Result<(Vec<Table>, Signs)> {
    let before = runs::of_this_thread();
    let (made, wall) = stage.run(scenario, bar)?;
    let cpu = before.and_then(|before| Some(runs::of_this_thread()?.saturating_sub(before)));
    let mut rows = tables(number, &made);
    if let Some(runs) = rows.iter_mut().find(|table| table.name == "runs") {
        runs.add("wall_ns", Some(wall.as_nanos() as u64));
        runs.add("cpu_ns", cpu.map(|cpu| cpu.get()));
    }
    let signs = Signs::new(stage.names.label(scenario), &made.scenario, &made.result);
    Ok((rows, signs))
}

fn join(all: &mut Vec<Table>, rows: Vec<Table>) {
    for table in rows {
        match all.iter_mut().find(|known| known.name == table.name) {
            Some(known) => known.join(table),
            None => all.push(table),
        }
    }
}
