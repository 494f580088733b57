//! Tables and the page.

use super::NAME;
use super::judge::{Ran, Windows};
use crate::show::{Page, badge, bars, series};
use crate::spread::Spread;
use seekway_live::experiment::{MigrateFigures, MigrateOptions, Stripe};
use seekway_report::html::{Block, Section};
use seekway_report::plot::{Axis, Row, Stripes};
use seekway_report::table::Table;

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
    let percent = |spread: Spread| 100.0 * spread.median;
    Table::of(format!("{NAME} in real guests"), rows)
        .text("guests", name)
        .number("reads without", "IOPS", |ran| ran.without.iops.median)
        .number("with the agent", "IOPS", |ran| ran.with.iops.median)
        .number("gain", "×", |ran| ran.gain.median)
        .number("least", "×", |ran| ran.gain.least)
        .number("largest", "×", |ran| ran.gain.largest)
        .number("allowed", "×", |ran| ran.allowed.median)
        .number("gain of allowed", "", |ran| ran.of_allowed.median)
        .number("response without", "ms", |ran| ran.without.response_mean_ms.median)
        .number("with", "ms", |ran| ran.with.response_mean_ms.median)
        .number("p99 without", "ms", |ran| ran.without.response_p99_ms.median)
        .number("with", "ms", |ran| ran.with.response_p99_ms.median)
        .number("compute lost", "%", |ran| percent(ran.loss))
        .number("to readers", "%", |ran| percent(ran.loss_readers))
        .number("to the agent", "%", |ran| percent(ran.loss_agent))
        .number("agent", "% of a vCPU", |ran| percent(ran.agent_vcpus))
        .number("wake-ups of a guest's agent", "1/s", |ran| ran.wakeups_s.median)
        .text("verdict", |ran| badge(ran.verdict))
        .text("why", |ran| &ran.why)
        .note(format!(
            "Guests of 4 vCPUs with a compute task (sha256sum) on each; in each guest fio reads \
             4 KiB at random places, one at a time, on `seekway serve --emulate {}`. Medians of {} \
             pairs of windows of {} s, without and with `seekway-guest migrate` in all guests, in \
             turn. IOPS and responses are of all guests. allowed: the share of the time in which \
             some vCPU of the guest ran, over that in which its reader's ran without the agent, \
             both from the kernel's record. to readers: their own additional processor time. \
             Processor times inside of a guest are the guest's count, in which a vCPU's absence \
             counts for who was on it.",
            options.device,
            options.pairs,
            options.window.as_secs()
        ))
        .done()
}

pub(super) fn hosts<'r>(rows: &'r [Ran]) -> Table {
    let both = |ran: &'r Ran| [(ran, "without", &ran.without), (ran, "with", &ran.with)];
    let sides: Vec<(&Ran, &str, &Windows)> = rows.iter().flat_map(both).collect();
    Table::of("The host's schedule, as recorded", &sides)
        .text("guests", |(ran, ..)| name(ran))
        .text("agent", |(_, agent, _)| *agent)
        .number("some vCPU runs", "%", |(.., side)| 100.0 * side.any_runs.median)
        .number("reader's runs", "%", |(.., side)| 100.0 * side.reader_runs.median)
        .number("its moves", "1/s", |(.., side)| side.moves_s.median)
        .number("a clairvoyant's", "1/s", |(.., side)| side.moves_least_s.median)
        .number("P", "", |(.., side)| side.moves_over_least.median)
        .number("slice p10", "ms", |(.., side)| side.slice_p10_ms.median)
        .number("median", "ms", |(.., side)| side.slice_median_ms.median)
        .number("p90", "ms", |(.., side)| side.slice_p90_ms.median)
        .number("QEMU and daemon", "% of a processor", |(.., side)| {
            100.0 * side.served_processors.median
        })
        .number("their wait p99", "ms", |(.., side)| side.served_wait_p99_ms.median)
        .note(
            "P, as in the paper: the reader's moves over one for each median slice that its vCPU ran. \
             A clairvoyant is on a vCPU that runs whenever one does, with the fewest moves. A slice \
             lasts until another vCPU gets the processor. QEMU's first thread serves \
             timers and interrupts of an emulated guest and runs on the same processors; under the \
             kernel's scheduler each time it has run another vCPU may be chosen, whatever slice \
             was asked for.",
        )
        .done()
}

pub(super) fn page(rows: &[Ran], figures: &[MigrateFigures], tables: &[Table]) -> Page {
    let mut blocks = vec![gains(rows)];
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
    Page::new(format!("Seekway: {NAME}"), sections)
}

fn gains(rows: &[Ran]) -> Block {
    let allowed = "allowed by the recorded schedule";
    let shown = vec![
        series("with the agent", rows.iter().map(|ran| ran.gain), false),
        series(allowed, rows.iter().map(|ran| ran.allowed), true),
    ];
    let axis = Axis::linear("I/O throughput over that without the agent", "×");
    let caption = "Medians over the pairs of windows; whiskers: least and largest.";
    bars(axis, rows.iter().map(name).collect(), shown, caption)
}

fn stripes(name: &str, agent: &str, stripe: &Stripe) -> Block {
    let rows = stripe.ran.iter().zip(&stripe.reader).enumerate().map(|(n, (ran, reader))| Row {
        name: format!("vCPU {n}"),
        stretches: ran.clone(),
        marks: reader.clone(),
    });
    let stripes = Stripes {
        axis: Axis::time("time", "ms").range(0.0, stripe.ms),
        names: ["vCPU runs".into(), "reader is there".into()],
        rows: rows.collect(),
    };
    Block::figure(stripes.render(), format!("{name}, {agent}."))
}
