//! An experiment's findings as a table and as a page.

use super::Ran;
use crate::figures::{self, Shown};
use crate::output;
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars, Lines, Series};
use seekway_report::svg::Svg;
use seekway_report::table::{Cell, Table, Tone};
use seekway_sim::experiments::{Experiment, Figure, Findings, Results, Row, Verdict as Judgement};

/// A figure as tables show it: three significant digits.
fn shown(value: f64, unit: &str) -> String {
    let digits = seekway_report::number::significant(value, 3);
    match unit {
        "×" => format!("{digits}×"),
        "%" => format!("{digits} %"),
        _ => format!("{digits} {unit}"),
    }
}

pub(super) fn table(experiment: &Experiment, findings: &Findings) -> Table {
    let digits = |value| seekway_report::number::significant(value, 3);
    let text = experiment.text();
    Table::of(format!("{}: {}", experiment.name, text.summary), &findings.rows)
        .text("row", |row| &row.name)
        .number("paper", "", |row| row.paper.map(|paper| shown(paper, row.unit)))
        .number("ours", "", |row| shown(row.ours, row.unit))
        .text("over the seeds", |row| format!("{} to {}", digits(row.range.0), digits(row.range.1)))
        .text("verdict", badge)
        .text("why", |row| &row.why)
        .note(format!("{}. Assumed: {}.", text.source, text.assumes))
        .notes(&findings.notes)
        .done()
}

fn badge(row: &Row) -> Cell {
    let verdict = row.verdict.name();
    let tone = match row.verdict {
        Judgement::Holds | Judgement::Exceeds => Tone::Good,
        Judgement::InPart => Tone::Fair,
        Judgement::Refuted => Tone::Bad,
        Judgement::Measured => Tone::Plain,
    };
    match row.asked {
        Some(false) => Cell::badge(format!("{verdict}, asked: missed"), Tone::Bad),
        Some(true) => Cell::badge(format!("{verdict}, asked: met"), tone),
        None => Cell::badge(verdict, tone),
    }
}

pub(super) fn page(sections: Vec<Section>, ran: &[Ran], quick: bool) -> Report {
    let rows = || ran.iter().flat_map(|r| &r.rows).filter(|r| r.paper.is_some());
    let holds = rows().filter(|r| r.verdict == "holds").count();
    // An experiment of ours has no claims of a paper: its last note says what it found.
    let (title, mut subtitle) = match (rows().count(), ran) {
        (0, [one]) => {
            let found = one.notes.last().cloned().unwrap_or_default();
            (format!("Seekway: {}", one.experiment), found)
        }
        (claims, _) => {
            let found = format!("{holds} of {claims} claims of the papers hold here.");
            ("Seekway: the papers' experiments".into(), found)
        }
    };
    if quick {
        subtitle += " A quick run with a tenth of the work: not a result.";
    }
    output::report(title, subtitle, [], sections)
}

pub(super) fn section(experiment: &Experiment, findings: &Findings, results: &Results) -> Section {
    let mut blocks: Vec<Block> = findings.figures.iter().map(|f| draw(f, results)).collect();
    // The verdicts come first where a paper claims something, else the figures.
    let has_claims = findings.rows.iter().any(|row| row.paper.is_some());
    let place = if has_claims { 0 } else { blocks.len() };
    blocks.insert(place, Block::Table(table(experiment, findings)));
    Section { heading: experiment.name.into(), intro: experiment.text().summary.clone(), blocks }
}

/// The run of a cell with the first seed.
fn first<'a>(results: &'a Results, (scenario, policy): &'a (String, String)) -> Shown<'a> {
    (policy, &results.of(scenario, policy)[0])
}

fn draw(figure: &Figure, results: &Results) -> Block {
    let (svg, caption): (Svg, &String) = match figure {
        Figure::Places(key, caption) => (figures::places(first(results, key).1), caption),
        Figure::Seeks(keys, caption) => {
            let runs: Vec<Shown<'_>> = keys.iter().map(|key| first(results, key)).collect();
            (figures::seeks(&runs), caption)
        }
        Figure::Lines { x, log_x, y, series, caption } => {
            let axis = if *log_x { Axis::log } else { Axis::linear };
            let series = series.iter().map(|(name, points)| Series::new(name, points.clone()));
            let lines = Lines {
                x: axis(x.0.clone(), x.1.clone()),
                y: Axis::linear(y.0.clone(), y.1.clone()).from_zero(),
                series: series.collect(),
            };
            (lines.render(), caption)
        }
        Figure::Bars { axis, groups, series, caption } => {
            let bar = |b: &Option<(f64, f64, f64)>| {
                b.map(|(value, least, largest)| Bar { value, range: Some((least, largest)) })
            };
            let series = series.iter().map(|s| BarSeries {
                name: s.name.clone(),
                bars: s.bars.iter().map(bar).collect(),
                reference: s.paper,
            });
            let bars = Bars {
                axis: Axis::linear(axis.0.clone(), axis.1.clone()),
                groups: groups.clone(),
                series: series.collect(),
            };
            (bars.render(), caption)
        }
    };
    Block::figure(svg, caption)
}

#[cfg(test)]
mod tests {
    use super::super::RowJson;
    use super::*;

    fn ran(rows: Vec<RowJson>) -> Ran {
        Ran {
            experiment: "together",
            seeds: vec![1],
            holds: true,
            rows,
            notes: vec!["Of the way.".into(), "Every VM has enough.".into()],
            assumes: "",
            machines: Vec::new(),
        }
    }

    /// An experiment of ours is told by what it found, a paper's by how many claims hold.
    #[test]
    fn a_page_begins_with_what_was_found() {
        let alone = page(Vec::new(), &[ran(Vec::new())], false);
        assert_eq!(alone.title, "Seekway: together");
        assert_eq!(alone.subtitle, "Every VM has enough.");
        let two = page(Vec::new(), &[ran(Vec::new()), ran(Vec::new())], false);
        assert_eq!(two.subtitle, "0 of 0 claims of the papers hold here.");
        let claim = RowJson {
            name: "a row".into(),
            paper: Some(1.0),
            ours: Some(1.0),
            range: (1.0, 1.0),
            unit: "×",
            verdict: "refuted",
            asked: Some(true),
            why: String::new(),
        };
        let papers = page(Vec::new(), &[ran(vec![claim])], true);
        assert!(papers.subtitle.starts_with("0 of 1 claims of the papers hold here. A quick run"));
    }
}
