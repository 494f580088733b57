//! The page of `seekway inspect --report`.

use super::found::{Inspected, InspectedTrace};
use super::tables;
use crate::output;
use seekway_report::html::{Block, Report, Section};
use seekway_report::number::{count, significant, size_mib, time_ms};
use seekway_report::plot::{Axis, Lines, Series};

pub fn report(inspected: &Inspected) -> Report {
    let traces = &inspected.traces;
    let mut sections: Vec<Section> = traces.iter().map(section).collect();
    let subtitle = match &mut sections[..] {
        [only] => std::mem::take(&mut only.intro),
        all => format!("{} traces.", all.len()),
    };
    let tables = tables::all(inspected).into_iter().map(Block::Table).collect();
    sections.push(Section::new("All figures", tables));
    output::report("Seekway: what is in the trace", subtitle, [], sections)
}

/// Requests, rates and what is touched, in one line.
fn sentence(t: &InspectedTrace) -> String {
    let mut text = format!("{} requests in {} s", count(t.requests), significant(t.span_s, 4));
    if let Some(share) = t.read_share {
        text += &format!(", {} % of them reads", significant(share * 100.0, 3));
    }
    if let (Some(mean), Some(busiest)) = (t.all.iops, t.all.busiest[0].iops) {
        let mean = match mean < 1.0 {
            true => format!("one every {}", time_ms(1e3 / mean)),
            false => format!("{} a second", significant(mean, 3)),
        };
        let busiest = significant(busiest, 3);
        text += &format!("; {mean} in the mean, {busiest} in the busiest second");
    }
    text + &format!("; {} of the disk are touched.", size_mib(t.all.touched_mib))
}

fn section(t: &InspectedTrace) -> Section {
    let over = &t.over_time;
    let line = |name: &str, values: &mut dyn Iterator<Item = f64>| {
        let points = (0..).zip(values);
        let rate = |(n, value)| (f64::from(n) * over.step_s, value / over.step_s);
        Series::new(name, points.map(rate).collect())
    };
    let figure = |what: &str, unit: &str, series| {
        let (x, y) = (Axis::time("time", "s"), Axis::linear(what, unit).from_zero());
        Lines { x, y, series }.render()
    };
    let counts = |name, of: &[u64]| line(name, &mut of.iter().map(|count| *count as f64));
    let sizes = |name, of: &[f64]| line(name, &mut of.iter().copied());
    let requests = vec![counts("reads", &over.reads), counts("writes", &over.writes)];
    let bytes = vec![sizes("read", &over.read_mib), sizes("written", &over.written_mib)];
    let step = significant(over.step_s, 3);
    let mut blocks: Vec<Block> = t.warnings.iter().cloned().map(Block::Warning).collect();
    blocks.push(Block::figure(
        figure("requests", "/s", requests),
        format!("Requests a second, in steps of {step} s."),
    ));
    blocks.push(Block::figure(
        figure("throughput", "MiB/s", bytes),
        format!("MiB a second, in steps of {step} s."),
    ));
    if !t.reuse.curve.is_empty() {
        let misses = t.reuse.curve.iter().map(|point| (point.cache_mib, point.miss_share));
        let (x, y) = (Axis::log("cache", "MiB"), Axis::share("misses"));
        let series = vec![Series::new("misses", misses.collect())];
        blocks.push(Block::figure(
            Lines { x, y, series }.render(),
            "Share of the blocks read that an LRU cache of this size does not have.",
        ));
    }
    Section { intro: sentence(t), ..Section::new(&t.trace, blocks) }
}
