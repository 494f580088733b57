//! The rows as a table and as a page.

use super::judge::{DRIFT_MAX, HOST_FULL, LATE_MAX, Ran, Simulated, WITHIN};
use crate::show::{Page, bars, series};
use seekway_live::experiment::NoisyOptions;
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::{Cell, Column, Table};

pub fn table(rows: &[Ran], options: &NoisyOptions) -> Table {
    let columns = vec![
        Column::text("device/flood"),
        Column::text("server"),
        Column::number("quiet, alone", "IOPS"),
        Column::number("beside", "IOPS"),
        Column::number("simulator", "IOPS"),
        Column::text("least to most"),
        Column::number("of alone", "%"),
        Column::number("simulator", "%"),
        Column::number("p99, alone", "ms"),
        Column::number("beside", "ms"),
        Column::number("of alone", "×"),
        Column::number("simulator", "×"),
        Column::number("flood, alone", "MiB/s"),
        Column::number("beside", "MiB/s"),
        Column::number("of noop's", "%"),
        Column::number("simulator", "%"),
        Column::number("late", "%"),
        Column::number("host CPU", "%"),
        Column::text("verdict"),
        Column::text("why"),
    ];
    let mut table = Table::new("A quiet VM beside a flood", columns);
    for row in rows {
        table.push(cells(row));
    }
    let span = options.span;
    table.notes.push(format!(
        "The quiet VM reads 4 KiB at random, one at a time. flood: 64 KiB random reads, depth 64; \
         writes: 4 KiB random writes, depth 128; stream: 1 MiB sequential reads, depth 8. Both are \
         vhost-user clients. Medians of {} rounds, each figure over {} s after {} s; each \
         measurement has a server of its own. Devices other than `disk` are emulated \
         (`serve --emulate NAME:k=1`, images in memory), which only our daemon can do; the \
         simulator runs the same load for the same time.",
        options.rounds,
        span.counted.as_secs_f64(),
        span.warm_up.as_secs_f64()
    ));
    table.notes.push(format!(
        "Asked: on emulated devices the quiet VM's IOPS within {:.0} % of the simulator's; on the \
         disk, of fairway, the IOPS at least 10 times, p99 at most 0.2 times and the flood at \
         least 0.8 times what noop gives. A row is void when in half of its rounds, for it or for \
         noop, more than {:.0} % of the emulated commands were late, the host's processors were \
         over {:.0} % busy, the quiet VM alone changed by more than {:.0} % between the round's \
         beginning and end, or something failed.",
        100.0 * WITHIN,
        100.0 * LATE_MAX,
        100.0 * HOST_FULL,
        100.0 * DRIFT_MAX
    ));
    table
}

fn cells(row: &Ran) -> Vec<Cell> {
    let number = |value: Option<f64>| value.map_or(Cell::Absent, Cell::Number);
    let percent = |value: Option<f64>| number(value.map(|v| 100.0 * v));
    let ms = |value: Option<f64>| number(value.map(|us| us / 1e3));
    let sim = |of: fn(&Simulated) -> f64| row.simulated.as_ref().map(of);
    let range = row.quiet_iops_range.map(|(least, most)| format!("{least:.0} to {most:.0}"));
    vec![
        Cell::Text(format!("{}/{}", row.device, row.flood)),
        Cell::Text(row.server.clone()),
        number(row.quiet_alone_iops),
        number(row.quiet_iops),
        number(sim(|s| s.quiet_iops)),
        range.map_or(Cell::Absent, Cell::Text),
        percent(row.quiet_of_alone),
        percent(sim(|s| s.quiet_iops / s.quiet_alone_iops)),
        ms(row.quiet_alone_p99_us),
        ms(row.quiet_p99_us),
        number(row.quiet_p99_of_alone),
        number(sim(|s| s.quiet_p99_of_alone)),
        number(row.flood_alone_mib_s),
        number(row.flood_mib_s),
        percent(row.flood_of_base),
        percent(sim(|s| s.flood_of_base)),
        percent(row.late),
        percent(row.host_busy),
        Cell::Text(row.verdict.into()),
        Cell::Text(row.why.clone()),
    ]
}

pub fn page(rows: &[Ran], table: &Table) -> Page {
    let mut blocks: Vec<Block> = rows.chunk_by(|a, b| a.device == b.device).map(figure).collect();
    blocks.push(Block::Table(table.clone()));
    let section = Section {
        heading: "Real servers and the simulator".into(),
        intro: "What a VM with one small read at a time keeps beside a flood.".into(),
        blocks,
    };
    Page {
        title: "Seekway: a quiet VM beside a flood".into(),
        subtitle: String::new(),
        sections: vec![section],
    }
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
            let kept = values(|r| r.simulated.as_ref().map(|s| s.quiet_iops / s.quiet_alone_iops));
            shown.push(series(format!("{server}, simulator"), kept, true));
        }
    }
    let caption = format!("{}: IOPS of the quiet VM beside each flood.", rows[0].device);
    bars(Axis::linear("of its IOPS alone", "%"), groups, shown, &caption)
}
