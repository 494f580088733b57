//! The rows as a table and as a page.

use super::judge::{DRIFT_MAX, Ran, Simulated, WITHIN};
use crate::show::{HOST_FULL, LATE_MAX, Page, bars, series};
use seekway_live::experiment::NoisyOptions;
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::Table;

pub fn table(rows: &[Ran], options: &NoisyOptions) -> Table {
    let percent = |value: Option<f64>| value.map(|v| 100.0 * v);
    let ms = |value: Option<f64>| value.map(|us| us / 1e3);
    let sim = |row: &Ran, of: fn(&Simulated) -> f64| row.simulated.as_ref().map(of);
    let span = options.span;
    Table::of("A quiet VM beside a flood", rows)
        .text("device/flood", |row| format!("{}/{}", row.device, row.flood))
        .text("server", |row| &row.server)
        .number("quiet, alone", "IOPS", |row| row.quiet_alone_iops)
        .number("beside", "IOPS", |row| row.quiet_iops)
        .number("simulator", "IOPS", |row| sim(row, |s| s.quiet_iops))
        .text("least to most", |row| {
            row.quiet_iops_range.map(|(least, most)| format!("{least:.0} to {most:.0}"))
        })
        .number("of alone", "%", |row| percent(row.quiet_of_alone))
        .number("simulator", "%", |row| percent(sim(row, Simulated::quiet_of_alone)))
        .number("p99, alone", "ms", |row| ms(row.quiet_alone_p99_us))
        .number("beside", "ms", |row| ms(row.quiet_p99_us))
        .number("of alone", "×", |row| row.quiet_p99_of_alone)
        .number("simulator", "×", |row| sim(row, |s| s.quiet_p99_of_alone))
        .number("flood, alone", "MiB/s", |row| row.flood_alone_mib_s)
        .number("beside", "MiB/s", |row| row.flood_mib_s)
        .number("of noop's", "%", |row| percent(row.flood_of_base))
        .number("simulator", "%", |row| percent(sim(row, |s| s.flood_of_base)))
        .number("late", "%", |row| percent(row.late))
        .number("host CPU", "%", |row| percent(row.host_busy))
        .text("verdict", |row| row.verdict)
        .text("why", |row| &row.why)
        .note(format!(
            "The quiet VM reads 4 KiB at random, one at a time. flood: 64 KiB random reads, depth \
             64; writes: 4 KiB random writes, depth 128; stream: 1 MiB sequential reads, depth 8. \
             Both are vhost-user clients. Medians of {} rounds, each figure over {} s after {} s; \
             each measurement has a server of its own. Devices other than `disk` are emulated \
             (`serve --emulate NAME:k=1`, images in memory), which only our daemon can do; the \
             simulator runs the same load for the same time; its quiet VM is as fast alone as here.",
            options.rounds,
            span.counted.as_secs_f64(),
            span.warm_up.as_secs_f64()
        ))
        .note(format!(
            "Asked: on emulated devices the quiet VM's IOPS within {:.0} % of the simulator's; on \
             the disk, of fairway, the IOPS at least 10 times, p99 at most 0.2 times and the flood \
             at least 0.8 times what noop gives. A row is void when in half of its rounds, for it \
             or for noop, more than {:.0} % of the emulated commands were late, the host's \
             processors were over {:.0} % busy, the quiet VM alone changed by more than {:.0} % \
             between the round's beginning and end, or something failed.",
            100.0 * WITHIN,
            100.0 * LATE_MAX,
            100.0 * HOST_FULL,
            100.0 * DRIFT_MAX
        ))
        .done()
}

/// What policies that bound what is in the device have learnt of it, here and in the simulator.
pub fn governor(rows: &[Ran]) -> Table {
    let rows: Vec<&Ran> =
        rows.iter().filter(|row| row.policy_metrics.contains_key("bound_bytes")).collect();
    let here = |row: &Ran, name: &str| row.policy_metrics.get(name).copied();
    let there = |row: &Ran, name: &str| row.simulated.as_ref()?.policy_metrics.get(name).copied();
    let mut table = Table::of("What the policy has learnt of the device", &rows)
        .text("device/flood", |row| format!("{}/{}", row.device, row.flood))
        .text("server", |row| &row.server);
    for (title, unit, name, scale) in [
        ("bound", "KiB", "bound_bytes", 1024.0),
        ("rate", "MiB/s", "rate_bytes_per_s", f64::from(1 << 20)),
        ("delay", "µs", "delay_us", 1.0),
        ("parts", "KiB", "part_bytes", 1024.0),
    ] {
        table = table
            .number(title, unit, move |row| here(row, name).map(|value| value / scale))
            .number("simulator", unit, move |row| there(row, name).map(|value| value / scale));
    }
    table
        .note(
            "At the end of the measurement, medians of the rounds. bound: the most that the others \
             may have in the device while a VM with a short queue is active; rate: the most that the \
             device completed, both with 4 KiB for each command; delay: the least that a command \
             takes, from the daemon to the device and back; parts: of long requests.",
        )
        .done()
}

pub fn page(rows: &[Ran], tables: &[Table]) -> Page {
    let mut blocks: Vec<Block> = rows.chunk_by(|a, b| a.device == b.device).map(figure).collect();
    blocks.extend(tables.iter().cloned().map(Block::Table));
    let section = Section {
        heading: "Real servers and the simulator".into(),
        intro: "What a VM with one small read at a time keeps beside a flood.".into(),
        blocks,
    };
    Page::new("Seekway: a quiet VM beside a flood", vec![section])
}

/// A device's rows: for each flood what the quiet VM keeps under each server.
fn figure(rows: &[Ran]) -> Block {
    let scenes: Vec<&[Ran]> = rows.chunk_by(|a, b| a.flood == b.flood).collect();
    let groups = scenes.iter().map(|scene| scene[0].flood.clone()).collect();
    let mut shown = Vec::new();
    for at in 0..scenes[0].len() {
        let values = |of: fn(&Ran) -> Option<f64>| -> Vec<f64> {
            scenes.iter().map(|scene| 100.0 * of(&scene[at]).unwrap_or_default()).collect()
        };
        let server = &scenes[0][at].server;
        shown.push(series(format!("{server}, real"), values(|r| r.quiet_of_alone), false));
        if rows[0].emulated {
            let kept = values(|r| r.simulated.as_ref().map(Simulated::quiet_of_alone));
            shown.push(series(format!("{server}, simulator"), kept, true));
        }
    }
    let caption = format!("{}: IOPS of the quiet VM beside each flood.", rows[0].device);
    bars(Axis::linear("of its IOPS alone", "%"), groups, shown, &caption)
}
