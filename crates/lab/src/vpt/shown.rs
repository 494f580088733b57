//! Tables and the page.

use super::judge::{ADDED, MEASURES, Prediction, Ran};
use super::{NAME, POLICIES, TARGETS};
use crate::show::{LATE_MAX, Page, badge, bars, series};
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::Table;
use std::time::Duration;

pub(super) fn figures(ran: &[Ran], window: Duration) -> Table {
    Table::of(format!("{NAME} in a real guest"), ran)
        .text("device", |ran| ran.target)
        .text("policy", |ran| ran.policy)
        .each([0, 1, 2], |table, measure| {
            let (name, unit, _) = MEASURES[measure];
            table
                .number(name, unit, move |ran| ran.live[measure].map(|s| s.median))
                .number("simulator", unit, move |ran| ran.simulated[measure].map(|s| s.median))
        })
        .number("throttle adds", "%", |ran| ran.added.map(|s| 100.0 * s.median))
        .number("late", "%", |ran| 100.0 * ran.late)
        .number("host CPU", "%", |ran| 100.0 * ran.host_busy)
        .text("verdict", |ran| badge(ran.verdict))
        .note(format!(
            "Medians over the windows, {} s of the device's time each; times are over k, throughput \
             is times k. The simulator has the same load on the model alone, with the same seeds. \
             throttle adds: what images and timers that were late add to the model's mean service, \
             {:.0} % asked at most. late: the largest share of a window's commands whose real \
             completion came after the model's; above {:.0} % a row is void. The image in memory has \
             no throttle: what the guest, virtio and the daemon take by themselves.",
            window.as_secs(),
            100.0 * ADDED,
            100.0 * LATE_MAX
        ))
        .done()
}

pub(super) fn ranks(predictions: &[Prediction]) -> Table {
    let list = |values: &[f64]| values.iter().map(|v| format!("{v:.2}")).collect::<Vec<_>>();
    let percent =
        |values: &[f64]| values.iter().map(|v| format!("{:+.0}", 100.0 * v)).collect::<Vec<_>>();
    Table::of("Ranks and errors beside the detailed disk", predictions)
        .text("device", |p| p.target)
        .text("measure", |p| p.measure)
        .text("right", |p| format!("{} of {}", p.right, p.windows))
        .text("predicted", |p| list(&p.predicted).join(", "))
        .text("are", |p| list(&p.actual).join(", "))
        .text("errors, %", |p| percent(&p.errors).join(", "))
        .text("verdict", |p| badge(p.verdict))
        .note(format!(
            "Figures are of {}, in this order. right: windows in which all three are in the disk's \
             order. The paper's claim is of its form, the line at k = 8: it holds when every window \
             is right, in part when the medians are.",
            POLICIES.join(", ")
        ))
        .done()
}

pub(super) fn page(ran: &[Ran], tables: &[Table]) -> Page {
    let of_policy = |policy: &'static str| {
        let responses = ran.iter().filter(move |ran| ran.policy == policy);
        series(policy, responses.filter_map(|ran| ran.live[1]), false)
    };
    let figure = bars(
        Axis::linear("mean response over k", "ms"),
        TARGETS.iter().map(|target| target.name.into()).collect(),
        POLICIES.into_iter().map(of_policy).collect(),
        "Medians over the windows; whiskers: least and largest.",
    );
    let mut blocks = vec![figure];
    blocks.extend(tables.iter().cloned().map(Block::Table));
    let section = Section {
        heading: "The throttle's line and the disk".into(),
        intro: "A guest has the same load on the detailed disk and on the line that is fitted to \
                it: does the line rank the schedulers as the disk does?"
            .into(),
        blocks,
    };
    Page::new(format!("Seekway: {NAME} in a real guest"), vec![section])
}
