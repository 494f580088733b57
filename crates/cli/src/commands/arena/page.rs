//! The arena's page: figures over all scenes, then every scene.

use super::{Board, Outcome, tables};
use crate::lists::distinct;
use crate::output;
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, BarSeries, Bars, Lines, Series};
use seekway_sim::experiments::arena::{self, Measure, Score};

/// The page of everything that ran.
pub fn report(outcome: &Outcome, quick: bool) -> Report {
    let groups = tables::by_group(outcome).map(Block::Table);
    let groups = groups.map(|table| Section::new("Groups of scenes", vec![table]));
    let of_boards = outcome.boards().flat_map(|board| sections(outcome, board));
    let sections = groups.into_iter().chain(of_boards).collect();
    let mut subtitle = outcome.boards().map(sentence).collect::<Vec<_>>().join(" ");
    if quick {
        subtitle += " A quick run with a tenth of the time: not a result.";
    }
    let seeds: Vec<String> = outcome.seeds.iter().map(u64::to_string).collect();
    output::report("Seekway: the arena", subtitle, [("Seeds", seeds.join(", "))], sections)
}

/// A board: its scores, then the scenes of each device.
fn sections(outcome: &Outcome, board: &Board) -> Vec<Section> {
    let mut sections = vec![overview(outcome, board)];
    for device in &board.devices {
        let scenes = board.scenes.iter().enumerate();
        let on_it = scenes.filter(|(_, played)| played.result.device == *device);
        let blocks = on_it.map(|(n, _)| Block::Table(tables::scene(board, n))).collect();
        sections.push(Section::new(format!("{device}, {}", board.title), blocks));
    }
    sections
}

/// The result in a sentence.
fn sentence(board: &Board) -> String {
    let Some(first) = board.scores.first() else { return String::new() };
    let (scenes, policies) = (&board.title, board.policies.len());
    let worst = first.worst.as_ref().map_or(0.0, |worst| worst.0);
    format!(
        "Of {policies} policies in {scenes}, {} is nearest to the best of all on average: a \
         mean regret of {:.2}, at worst {worst:.2}.",
        first.policy, first.mean
    )
}

fn overview(outcome: &Outcome, board: &Board) -> Section {
    let mut blocks = vec![
        Block::figure(
            bars(board),
            "What each policy reaches of the best of all policies, mean over the scenes: 1 is as \
             good as the best everywhere. Long bars all round are what to look for.",
        ),
        Block::figure(
            frontier(board),
            "The same as points: throughput to the right, short p99 upwards. Nobody is better in \
             both than a policy in the upper right corner. A line joins one policy's settings, in \
             the order of the command: what it gives up of one for the other.",
        ),
        Block::Table(tables::scoreboard(outcome, board)),
    ];
    blocks.extend(tables::by_device(board).map(Block::Table));
    blocks.push(Block::Table(tables::regrets(board)));
    Section::new(format!("Scoreboard of {}", board.title), blocks)
}

/// What a policy reaches of the best, on average.
fn reached(score: &Score, measure: Measure) -> Option<f64> {
    score.by_measure[measure as usize].map(|regret| 1.0 - regret)
}

fn bars(board: &Board) -> seekway_report::svg::Svg {
    let measures = [
        ("throughput", Measure::Throughput),
        ("worst VM's share", Measure::WorstShare),
        ("p99", Measure::P99),
    ];
    let series = |(name, measure): (&str, Measure)| BarSeries {
        name: name.into(),
        bars: board.scores.iter().map(|s| reached(s, measure).map(Into::into)).collect(),
        reference: false,
    };
    let bars = Bars {
        axis: Axis::linear("part of the best", ""),
        groups: board.scores.iter().map(|score| score.policy.clone()).collect(),
        series: measures.map(series).into(),
    };
    bars.render()
}

fn frontier(board: &Board) -> seekway_report::svg::Svg {
    let names = distinct(board.policies.iter().map(|spec| arena::policy_of(spec)));
    let points = |name: &str| {
        let settings = board.policies.iter().filter(|spec| arena::policy_of(spec) == name);
        let score = |spec: &String| board.scores.iter().find(|score| score.policy == *spec);
        let at = |score| reached(score, Measure::Throughput).zip(reached(score, Measure::P99));
        settings.filter_map(score).filter_map(at).collect()
    };
    let lines = Lines {
        x: Axis::linear("throughput, part of the best", ""),
        y: Axis::linear("p99, part of the best", ""),
        series: names.into_iter().map(|name| Series::new(name, points(name))).collect(),
    };
    lines.render()
}
