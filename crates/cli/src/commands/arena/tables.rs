//! The arena's tables.

use super::{Board, Outcome, Played};
use seekway_report::table::{Cell, Table};
use seekway_sim::experiments::arena::{DOMINATES_BY, Measure, Medium, Score};

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

/// Three decimals: seeds differ by more than the fourth.
fn regret(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.3}"))
}

/// Every policy over all scenes of a board. Beside the mean regret in the scenes of the file
/// stands that in drawn ones.
pub fn scoreboard(outcome: &Outcome, board: &Board) -> Table {
    let cpu = cpu_ns(board);
    let place = |score: &Score| {
        let (_, scene, measure) = score.worst.as_ref().filter(|worst| worst.0 > 0.0)?;
        Some(format!("{scene}: {}", name(*measure)))
    };
    let cpu_of = |score: &Score| {
        let n = board.policies.iter().position(|policy| *policy == score.policy);
        Some(cpu.as_ref()?[n?])
    };
    let drawn = if std::ptr::eq(board, &outcome.written) {
        outcome.drawn.as_ref()
    } else if std::ptr::eq(board, &outcome.everyday) {
        outcome.drawn_everyday.as_ref()
    } else {
        None
    };
    let in_drawn = |score: &Score| {
        let mut scores = drawn?.scores.iter();
        scores.find(|other| other.policy == score.policy).map(|other| other.mean)
    };
    let several = outcome.seeds.len() > 1;
    Table::of(format!("Scoreboard of {}", board.title), &board.scores)
        .text("policy", |score| &score.policy)
        .number("mean regret", "", |score| regret(Some(score.mean)))
        .when(several, |table| table.number("spread", "", |score| regret(score.spread)))
        .when(drawn.is_some(), |table| {
            table.number("drawn", "", |score| regret(in_drawn(score)))
        })
        .number("pareto", "", |score| regret(score.pareto))
        .number("worst", "", |score| regret(score.worst.as_ref().map(|worst| worst.0)))
        .text("in", place)
        .each(Measure::ALL, |table, m| {
            table.number(name(m), "", |score| regret(score.by_measure[m as usize]))
        })
        .number("dominated", "", |score| score.dominated.len())
        .number("withheld", "", |score| Cell::Share(score.withheld))
        .when(cpu.is_some(), |table| table.number("CPU", "ns", cpu_of))
        .note(format!(
            "Regret: distance from the best of these policies in a scene, 0 (as good) to 1. mean: \
             over all scenes, the measures of each counted alike; then for each measure by itself. \
             pareto: the distance that remains under the weighting of throughput, worst share and \
             p99 that suits the policy best in each scene. \
             dominated: scenes in which one other policy is better in throughput, worst share and \
             p99, by more than {:.0} % each. withheld: time in which the policy let the device wait \
             with work queued.",
            100.0 * DOMINATES_BY
        ))
        .notes(several.then_some("spread: the largest less the least mean regret of a single seed."))
        .notes(drawn.is_some().then_some("drawn: mean regret in the drawn scenes."))
        .notes(cpu.is_some().then_some(
            "CPU: of a request, mean over all requests, simulator and device model included. \
             Measured: it differs from run to run.",
        ))
        .done()
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

/// Mean regret on each device and kind of device, where there are several devices.
pub fn by_device(board: &Board) -> Option<Table> {
    let devices = &board.devices;
    if devices.len() < 2 {
        return None;
    }
    let known = |medium: &Medium| board.scenes.iter().any(|scene| scene.medium == Some(*medium));
    let media = Medium::ALL.into_iter().filter(known);
    let table = Table::of(format!("Mean regret on each device, {}", board.title), &board.scores)
        .text("policy", |score| &score.policy)
        .each(media, |table, medium| {
            let on = move |score: &Score| regret(board.regret_on(medium, &score.policy));
            table.number(format!("all {}", medium.name()), "", on)
        })
        .each(devices.iter().enumerate(), |table, (n, device)| {
            table.number(device, "", |score| regret(Some(score.by_device[n])))
        });
    Some(table.done())
}

/// Mean regret in each group of everyday scenes beside that of the others; a column for each
/// board and group that ran. In the order of the first board.
pub fn by_group(outcome: &Outcome) -> Option<Table> {
    let boards: Vec<&Board> = outcome.boards().collect();
    let of_groups: usize = boards.iter().map(|board| board.groups().len()).sum();
    if of_groups == 0 {
        return None;
    }
    let mut table = Table::of("Mean regret in each group of scenes", &boards[0].scores)
        .text("policy", |score| &score.policy);
    for board in boards {
        let mean = |score: &Score| {
            let same = board.scores.iter().find(|other| other.policy == score.policy);
            regret(same.map(|same| same.mean))
        };
        table = table.number(&board.title, "", mean);
        let groups = board.groups();
        let several = groups.len() > 1;
        table = table.each(groups.into_iter().filter(|_| several), |table, group| {
            table.number(group, "", |score| regret(board.regret_in(group, &score.policy)))
        });
    }
    Some(table.done())
}

/// One scene under every policy.
pub fn scene(board: &Board, n: usize) -> Table {
    let Played { about, unit, relative, result, cpu_ns, .. } = &board.scenes[n];
    let latency = if *relative { "× alone" } else { "ms" };
    let rows: Vec<_> = board.policies.iter().zip(&result.figures).enumerate().collect();
    Table::of(format!("{}: {about}", result.scene), &rows)
        .text("policy", |(_, (policy, _))| *policy)
        .each(Measure::ALL, |table, measure| {
            let unit = match measure {
                Measure::Throughput => unit.name(),
                Measure::P99 | Measure::P999 => latency,
                Measure::WorstShare | Measure::Jain | Measure::Kept => "",
            };
            table.number(name(measure), unit, |(_, (_, figures))| figures.value(measure))
        })
        .number("withheld", "", |(_, (_, figures))| Cell::Share(figures.withheld))
        .number("mean regret", "", |(n, _)| regret(Some(result.mean_regret(*n))))
        .number("pareto", "", |(n, _)| regret(result.pareto(*n)))
        .when(cpu_ns.is_some(), |table| {
            table.number("CPU", "ns", |(n, _)| cpu_ns.as_ref().map(|cpu| cpu[*n]))
        })
        .done()
}

/// One line for each scene and policy.
pub fn flat(outcome: &Outcome) -> Table {
    let policies = &outcome.written.policies;
    let grouped = outcome.boards().any(|board| !board.groups().is_empty());
    let of_scene = |played| policies.iter().enumerate().map(move |row| (played, row));
    let scenes = outcome.boards().flat_map(|board| &board.scenes);
    let rows: Vec<(&Played, (usize, &String))> = scenes.flat_map(of_scene).collect();
    Table::of("", &rows)
        .text("scene", |(played, _)| &played.result.scene)
        .text("device", |(played, _)| &played.result.device)
        .text("policy", |(_, (_, policy))| *policy)
        .text("unit", |(played, _)| played.unit.name())
        .text("latency_unit", |(played, _)| if played.relative { "alone" } else { "ms" })
        .each(Measure::ALL, |table, m| {
            table.number(m.name(), "", |(played, (n, _))| played.result.figures[*n].value(m))
        })
        .each(Measure::ALL, |table, m| {
            let name = format!("regret_{}", m.name());
            table.number(name, "", |(played, (n, _))| played.result.regret(*n, m))
        })
        .number("mean_regret", "", |(played, (n, _))| played.result.mean_regret(*n))
        .number("pareto", "", |(played, (n, _))| played.result.pareto(*n))
        .number("withheld", "", |(played, (n, _))| played.result.figures[*n].withheld)
        .when(grouped, |table| table.text("group", |(played, _)| played.group.as_deref()))
        .number("cpu_ns", "", |(played, (n, _))| played.cpu_ns.as_ref().map(|cpu| cpu[*n]))
        .done()
}

/// Every scene's mean regret, a column for each policy.
pub fn regrets(board: &Board) -> Table {
    let place = |score: &Score| board.policies.iter().position(|policy| *policy == score.policy);
    Table::of("Mean regret in each scene", &board.scenes)
        .text("scene", |played| &played.result.scene)
        .each(board.scores.iter().filter_map(place), |table, n| {
            table
                .number(&board.policies[n], "", |played| regret(Some(played.result.mean_regret(n))))
        })
        .done()
}
