//! Tables and the page.

use super::NAME;
use super::judge::Ran;
use crate::show::Page;
use crate::spread::Spread;
use seekway_live::experiment::{MigrateFigures, MigrateOptions, Stripe};
use seekway_report::html::{Block, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars, Row, Stripes};
use seekway_report::table::{Cell, Column, Table, Tone};

/// What a row is about, in words.
fn name(ran: &Ran) -> String {
    let guests = if ran.guests == 1 { "1 guest".into() } else { format!("{} guests", ran.guests) };
    match ran.host {
        "turns" => guests,
        _ => format!("{guests}, kernel's slices"),
    }
}

/// The readers, the compute tasks, and the verdict.
pub(super) fn results(rows: &[Ran], options: &MigrateOptions) -> Table {
    let mut columns = vec![Column::text("guests")];
    for (name, unit) in [
        ("reads without", "IOPS"),
        ("with the agent", "IOPS"),
        ("gain", "×"),
        ("least", "×"),
        ("largest", "×"),
        ("allowed", "×"),
        ("gain of allowed", ""),
        ("response without", "ms"),
        ("with", "ms"),
        ("p99 without", "ms"),
        ("with", "ms"),
        ("compute lost", "%"),
        ("to readers", "%"),
        ("to the agent", "%"),
        ("agent", "% of a vCPU"),
        ("wake-ups of a guest's agent", "1/s"),
    ] {
        columns.push(Column::number(name, unit));
    }
    columns.extend([Column::text("verdict"), Column::text("why")]);
    let mut table = Table::new(format!("{} in real guests", NAME), columns);
    for ran in rows {
        let percent = |spread: Spread| 100.0 * spread.median;
        let figures = [
            ran.without.iops.median,
            ran.with.iops.median,
            ran.gain.median,
            ran.gain.least,
            ran.gain.largest,
            ran.allowed.median,
            ran.of_allowed.median,
            ran.without.response_mean_ms.median,
            ran.with.response_mean_ms.median,
            ran.without.response_p99_ms.median,
            ran.with.response_p99_ms.median,
            percent(ran.loss),
            percent(ran.loss_readers),
            percent(ran.loss_agent),
            percent(ran.agent_vcpus),
            ran.wakeups_s.median,
        ];
        let tone = match ran.verdict {
            "met" => Tone::Good,
            "missed" => Tone::Bad,
            _ => Tone::Plain,
        };
        let end = [Cell::badge(ran.verdict, tone), Cell::Text(ran.why.clone())];
        let first = [Cell::Text(name(ran))];
        table.push(first.into_iter().chain(figures.map(Cell::Number)).chain(end));
    }
    table.notes.push(format!(
        "Guests of 4 vCPUs with a compute task (sha256sum) on each; in each guest fio reads 4 KiB \
         at random places, one at a time, on `seekway serve --emulate {}`. Medians of {} pairs of \
         windows of {} s, without and with `seekway-guest migrate` in all guests, in turn. IOPS \
         and responses are of all guests. allowed: the share of the time in which some vCPU of \
         the guest ran, over that in which its reader's ran without the agent, both from the \
         kernel's record. to readers: their own additional processor time. Processor times inside \
         of a guest are the guest's count, in which a vCPU's absence counts for who was on it.",
        options.device,
        options.pairs,
        options.window.as_secs()
    ));
    table
}

pub(super) fn hosts(rows: &[Ran]) -> Table {
    let columns = vec![
        Column::text("guests"),
        Column::text("agent"),
        Column::number("some vCPU runs", "%"),
        Column::number("reader's runs", "%"),
        Column::number("its moves", "1/s"),
        Column::number("slice p10", "ms"),
        Column::number("median", "ms"),
        Column::number("p90", "ms"),
        Column::number("QEMU and daemon", "% of a processor"),
        Column::number("their wait p99", "ms"),
    ];
    let mut table = Table::new("The host's schedule, as recorded", columns);
    for ran in rows {
        for (agent, windows) in [("without", &ran.without), ("with", &ran.with)] {
            let figures = [
                100.0 * windows.any_runs.median,
                100.0 * windows.reader_runs.median,
                windows.moves_s.median,
                windows.slice_p10_ms.median,
                windows.slice_median_ms.median,
                windows.slice_p90_ms.median,
                100.0 * windows.served_processors.median,
                windows.served_wait_p99_ms.median,
            ];
            let first = [Cell::Text(name(ran)), Cell::Text(agent.into())];
            table.push(first.into_iter().chain(figures.map(Cell::Number)));
        }
    }
    table.notes.push(
        "A slice lasts until another vCPU gets the processor. QEMU's first thread serves timers \
         and interrupts of an emulated guest and runs on the same processors; under the kernel's \
         scheduler each time it has run another vCPU may be chosen, whatever slice was asked for."
            .into(),
    );
    table
}

pub(super) fn page(rows: &[Ran], figures: &[MigrateFigures], tables: &[Table]) -> Page {
    let mut blocks = vec![bars(rows)];
    blocks.extend(tables.iter().cloned().map(Block::Table));
    let mut sections = vec![Section {
        heading: "Reads with and without the agent".into(),
        intro:
            "Guests share the host's processors; in each, one task reads and the others compute. \
                The agent keeps the reader on vCPUs that run."
                .into(),
        blocks,
    }];
    let shown = rows.iter().zip(figures).filter(|(ran, _)| ran.guests > 1);
    sections.push(Section {
        heading: "What the host ran".into(),
        intro:
            "The vCPUs of the first guest in the middle of a window, as the kernel recorded them, \
                and where its reader was: on the vCPU from which the last request came."
                .into(),
        blocks: shown
            .flat_map(|(ran, figures)| {
                let [without, with] = &figures.stripes;
                let name = name(ran);
                [stripes(&name, "without the agent", without), stripes(&name, "with it", with)]
            })
            .collect(),
    });
    Page { title: format!("Seekway: {NAME}"), subtitle: String::new(), sections }
}

fn bars(rows: &[Ran]) -> Block {
    let series = |name: &str, figure: &dyn Fn(&Ran) -> Spread, reference| BarSeries {
        name: name.into(),
        bars: rows
            .iter()
            .map(|ran| {
                let Spread { median, least, largest } = figure(ran);
                Some(Bar { value: median, range: Some((least, largest)) })
            })
            .collect(),
        reference,
    };
    let bars = Bars {
        title: String::new(),
        axis: Axis::linear("I/O throughput over that without the agent", "×"),
        groups: rows.iter().map(name).collect(),
        series: vec![
            series("with the agent", &|ran| ran.gain, false),
            series("allowed by the recorded schedule", &|ran| ran.allowed, true),
        ],
    };
    let caption = "Medians over the pairs of windows; whiskers: least and largest.".into();
    Block::Figure { svg: bars.render(), caption }
}

fn stripes(name: &str, agent: &str, stripe: &Stripe) -> Block {
    let rows = stripe.ran.iter().zip(&stripe.reader).enumerate().map(|(n, (ran, reader))| Row {
        name: format!("vCPU {n}"),
        stretches: ran.clone(),
        marks: reader.clone(),
    });
    let stripes = Stripes {
        title: String::new(),
        axis: Axis::time("time", "ms").range(0.0, stripe.ms),
        names: ["vCPU runs".into(), "reader is there".into()],
        rows: rows.collect(),
    };
    Block::Figure { svg: stripes.render(), caption: format!("{name}, {agent}.") }
}
