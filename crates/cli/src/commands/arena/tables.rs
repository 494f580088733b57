//! The arena's tables.

use super::{Board, Played};
use seekway_report::table::{Align, Cell, Column, Table};
use seekway_sim::experiments::arena::{DOMINATES_BY, Measure};

/// As a person reads a measure.
pub fn name(measure: Measure) -> &'static str {
    match measure {
        Measure::Throughput => "throughput",
        Measure::WorstShare => "worst share",
        Measure::P99 => "p99",
        Measure::P999 => "p99.9",
        Measure::Jain => "Jain",
        Measure::Kept => "kept",
    }
}

fn number(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Number)
}

/// Three decimals: seeds differ by more than the fourth.
fn regret(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, |value| Cell::Text(format!("{value:.3}")))
}

/// A column of regrets.
fn regret_column(name: impl Into<String>) -> Column {
    Column { align: Align::Right, ..Column::text(name) }
}

/// Every policy over all scenes.
pub fn scoreboard(board: &Board) -> Table {
    let mut columns = vec![
        Column::text("policy"),
        regret_column("mean regret"),
        regret_column("worst"),
        Column::text("in"),
    ];
    columns.extend(Measure::ALL.map(|measure| regret_column(name(measure))));
    columns.extend([Column::number("dominated", ""), Column::number("withheld", "")]);
    let cpu = cpu_ns(board);
    columns.extend(cpu.is_some().then(|| Column::number("CPU", "ns")));
    let scenes = board.scenes.len();
    let mut table = Table::new(format!("Scoreboard of {scenes} scenes"), columns);
    for score in &board.scores {
        let worst = score.worst.as_ref();
        let place = worst.filter(|worst| worst.0 > 0.0);
        let place = place.map(|(_, scene, measure)| format!("{scene}: {}", name(*measure)));
        let mut row = vec![
            Cell::Text(score.policy.clone()),
            regret(Some(score.mean)),
            regret(worst.map(|worst| worst.0)),
            place.map_or(Cell::Absent, Cell::Text),
        ];
        row.extend(score.by_measure.map(regret));
        row.push(Cell::Count(score.dominated.len() as u64));
        row.push(Cell::Share(score.withheld));
        if let Some(cpu) = &cpu {
            let n = board.policies.iter().position(|policy| *policy == score.policy);
            row.push(number(n.map(|n| cpu[n])));
        }
        table.push(row);
    }
    table.notes.push(format!(
        "Regret: distance from the best of these policies in a scene, 0 (as good) to 1. mean: over \
         all scenes, the measures of each counted alike; then for each measure by itself. \
         dominated: scenes in which one other policy is better in throughput, worst share and p99, \
         by more than {:.0} % each. withheld: time in which the policy let the device wait with \
         work queued.",
        100.0 * DOMINATES_BY
    ));
    if cpu.is_some() {
        table.notes.push(
            "CPU: of a request, mean over all requests, simulator and device model included. Measured: \
             it differs from run to run."
                .into(),
        );
    }
    table
}

/// CPU time of a request by policy, over all requests of the scenes in which it was
/// measured: the clock is too coarse for a scene of few.
fn cpu_ns(board: &Board) -> Option<Vec<f64>> {
    let measured: Vec<(&Played, &Vec<f64>)> =
        board.scenes.iter().filter_map(|s| Some((s, s.cpu_ns.as_ref()?))).collect();
    let mean = |n: usize| {
        let requests = |played: &Played| played.result.figures[n].requests;
        let all: f64 = measured.iter().map(|(played, _)| requests(played)).sum();
        measured.iter().map(|(played, cpu)| cpu[n] * requests(played)).sum::<f64>() / all.max(1.0)
    };
    (!measured.is_empty()).then(|| (0..board.policies.len()).map(mean).collect())
}

/// Mean regret on each device, where there are several.
pub fn by_device(board: &Board) -> Option<Table> {
    let devices = &board.devices;
    if devices.len() < 2 {
        return None;
    }
    let mut columns = vec![Column::text("policy")];
    columns.extend(devices.iter().map(|device| regret_column(device.clone())));
    let mut table = Table::new("Mean regret on each device", columns);
    for score in &board.scores {
        let mut row = vec![Cell::Text(score.policy.clone())];
        row.extend(score.by_device.iter().map(|&value| regret(Some(value))));
        table.push(row);
    }
    Some(table)
}

/// One scene under every policy.
pub fn scene(board: &Board, n: usize) -> Table {
    let Played { about, unit, relative, result, cpu_ns } = &board.scenes[n];
    let latency = if *relative { "× alone" } else { "ms" };
    let mut columns = vec![
        Column::text("policy"),
        Column::number("throughput", unit.name()),
        Column::number("worst share", ""),
        Column::number("p99", latency),
        Column::number("p99.9", latency),
        Column::number("Jain", ""),
        Column::number("kept", ""),
        Column::number("withheld", ""),
        regret_column("mean regret"),
    ];
    columns.extend(cpu_ns.is_some().then(|| Column::number("CPU", "ns")));
    let mut table = Table::new(format!("{}: {about}", result.scene), columns);
    for (n, policy) in board.policies.iter().enumerate() {
        let figures = &result.figures[n];
        let mut row = vec![Cell::Text(policy.clone())];
        row.extend(Measure::ALL.map(|measure| number(figures.value(measure))));
        row.push(Cell::Share(figures.withheld));
        row.push(regret(Some(result.mean_regret(n))));
        row.extend(cpu_ns.as_ref().map(|cpu| Cell::Number(cpu[n])));
        table.push(row);
    }
    table
}

/// One line for each scene and policy.
pub fn flat(board: &Board) -> Table {
    let mut columns: Vec<Column> = ["scene", "device", "policy"].map(Column::text).into();
    columns.extend(["unit", "latency_unit"].map(Column::text));
    columns.extend(Measure::ALL.map(|measure| Column::number(measure.name(), "")));
    columns.extend(
        Measure::ALL.map(|measure| Column::number(format!("regret_{}", measure.name()), "")),
    );
    columns.extend(["mean_regret", "withheld", "cpu_ns"].map(|name| Column::number(name, "")));
    let mut table = Table::new("", columns);
    for played in &board.scenes {
        let result = &played.result;
        for (n, policy) in board.policies.iter().enumerate() {
            let latency_unit = if played.relative { "alone" } else { "ms" };
            let texts: [&str; 5] =
                [&result.scene, &result.device, policy, played.unit.name(), latency_unit];
            let mut row: Vec<Cell> = texts.map(|text| Cell::Text(text.into())).into();
            row.extend(Measure::ALL.map(|measure| number(result.figures[n].value(measure))));
            row.extend(Measure::ALL.map(|measure| number(result.regret(n, measure))));
            row.push(Cell::Number(result.mean_regret(n)));
            row.push(Cell::Number(result.figures[n].withheld));
            row.push(number(played.cpu_ns.as_ref().map(|cpu| cpu[n])));
            table.push(row);
        }
    }
    table
}

/// Every scene's mean regret, a column for each policy.
pub fn regrets(board: &Board) -> Table {
    let mut columns = vec![Column::text("scene")];
    let order: Vec<usize> = board
        .scores
        .iter()
        .filter_map(|score| board.policies.iter().position(|policy| *policy == score.policy))
        .collect();
    columns.extend(order.iter().map(|&n| regret_column(board.policies[n].clone())));
    let mut table = Table::new("Mean regret in each scene", columns);
    for played in &board.scenes {
        let mut row = vec![Cell::Text(played.result.scene.clone())];
        row.extend(order.iter().map(|&n| regret(Some(played.result.mean_regret(n)))));
        table.push(row);
    }
    table
}
