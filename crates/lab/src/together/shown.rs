//! Tables and the page.

use super::NAME;
use super::judge::{self, GuestRan, Ran};
use crate::show::Page;
use crate::spread::Spread;
use seekway_live::experiment::TogetherOptions;
use seekway_report::html::{Block, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell, Column, Table, Tone};

/// What each guest had, and the verdicts.
pub(super) fn guests(ran: &Ran, options: &TogetherOptions) -> Table {
    let mut columns = vec![Column::text("guest"), Column::text("throughput")];
    for (name, unit) in [
        ("off", ""),
        ("on", ""),
        ("on over off", "×"),
        ("least", "×"),
        ("largest", "×"),
        ("p99 off", "ms"),
        ("on", "ms"),
        ("on over off", "×"),
        ("a process, off", "% CPU"),
        ("on", "% CPU"),
        ("compute lost", "%"),
        ("agents", "% of a vCPU"),
        ("cache had", "%"),
        ("moves", ""),
    ] {
        columns.push(Column::number(name, unit));
    }
    columns.extend([Column::text("verdict"), Column::text("why")]);
    let mut table = Table::new(format!("{NAME}: real guests of one host"), columns);
    for guest in &ran.guests {
        table.push(row(guest));
    }
    let mut total = vec![Cell::Text("geometric mean".into()), Cell::Absent, Cell::Absent];
    total.extend([Cell::Absent, Cell::Number(ran.geometric_mean)]);
    total.resize_with(16, || Cell::Absent);
    total.extend([badge(ran.verdict), Cell::Text(ran.why.clone())]);
    table.push(total);
    table.notes.extend(notes(ran, options));
    table
}

fn row(guest: &GuestRan) -> Vec<Cell> {
    let median = |spread: Option<Spread>, factor: f64| {
        spread.map_or(Cell::Absent, |s| Cell::Number(factor * s.median))
    };
    let ratios = [guest.ratio.median, guest.ratio.least, guest.ratio.largest];
    let mut cells = vec![Cell::Text(guest.guest.into()), Cell::Text(guest.unit.into())];
    cells.extend([Cell::Number(guest.off.median), Cell::Number(guest.on.median)]);
    cells.extend(ratios.map(Cell::Number));
    cells.extend([guest.p99_off_ms, guest.p99_on_ms, guest.p99_ratio].map(|s| median(s, 1.0)));
    cells.extend([guest.process_off, guest.process_on].map(|s| median(s, 100.0)));
    cells.extend([guest.compute_lost, guest.agents_vcpus].map(|s| median(Some(s), 100.0)));
    cells.extend([median(guest.hit, 100.0), median(guest.moves, 1.0)]);
    cells.extend([badge(guest.verdict), Cell::Text(guest.why.clone())]);
    cells
}

fn badge(verdict: &str) -> Cell {
    let tone = match verdict {
        "met" => Tone::Good,
        "missed" => Tone::Bad,
        _ => Tone::Plain,
    };
    Cell::badge(verdict, tone)
}

fn notes(ran: &Ran, options: &TogetherOptions) -> Vec<String> {
    let [off, on] = &options.sides;
    let cache = on.cache.as_ref().map_or_else(String::new, |(bytes, prefetcher)| {
        format!(" --cache {}MiB --prefetch {prefetcher}", bytes >> 20)
    });
    let setup = format!(
        "{} guests of two vCPUs that share two processors in turns of 11 ms, a compute task on \
         each vCPU, on `seekway serve --emulate {}`. off: --policy {}, no cache, no agents. on: \
         --policy {}{cache}, with `seekway-guest tag` and `seekway-guest migrate` in each guest. \
         Medians of {} pairs of windows of {} s, in turn in the same guests; ratios are taken in \
         each pair.",
        options.loads.len(),
        options.device,
        off.policy,
        on.policy,
        ran.counted_pairs,
        options.window.as_secs(),
    );
    let rules = format!(
        "Asked: a geometric mean of at least {}; of each guest at least {} in throughput and at \
         most {:.2} in p99. A pair is void when more than {} % of the commands of a window are \
         later than the device, or others on this machine have more than {} % of the processors; \
         a row when each process of its application is busy for more than {:.1} % as the guest \
         counts it, 95 % of the half that it gets beside a compute task. {} of {} pairs were void.",
        judge::GAIN,
        judge::KEPT,
        judge::P99,
        100.0 * judge::LATE,
        100.0 * judge::OTHERS,
        100.0 * judge::PROCESS,
        ran.void_pairs,
        ran.pairs,
    );
    let lost = (!ran.lost.is_empty()).then(|| {
        let (times, why) = (ran.lost.len(), ran.lost.join("; "));
        format!("QEMU's emulation lost a guest {times} times, and pairs were made again: {why}.")
    });
    [setup, rules].into_iter().chain(lost).collect()
}

/// Who had the host's processors, and what all had together.
pub(super) fn host(ran: &Ran) -> Table {
    let columns = vec![
        Column::text("everything"),
        Column::number("all I/O", "MiB/s"),
        Column::number("late", "%"),
        Column::number("vCPUs", "% CPU"),
        Column::number("rest of QEMU", "% CPU"),
        Column::number("daemons", "% CPU"),
        Column::number("others", "% CPU"),
        Column::number("host CPU", "%"),
    ];
    let mut table = Table::new("The host", columns);
    for (name, side) in [("off", &ran.off), ("on", &ran.on)] {
        let shares = [side.late, side.vcpus, side.qemu, side.daemons, side.others, side.busy]
            .map(|s| Cell::Number(100.0 * s.median));
        let first = [Cell::Text(name.into()), Cell::Number(side.mib_s.median)];
        table.push(first.into_iter().chain(shares));
    }
    table.notes.push(
        "Of all processors. The compute tasks keep them busy in every window. rest of QEMU: \
         timers, interrupts and completions of emulated guests, and daemons: both run when they \
         have to, whosever turn it is, so that more I/O leaves less for vCPUs."
            .into(),
    );
    table
}

pub(super) fn page(ran: &Ran, tables: &[Table]) -> Page {
    let mut blocks = vec![bars(ran)];
    blocks.extend(tables.iter().cloned().map(Block::Table));
    let section = Section {
        heading: "Everything on and everything off".into(),
        intro: "Guests of an ordinary host on one disk, with and without Seekway's scheduler, \
                cache, tags and moves of tasks."
            .into(),
        blocks,
    };
    Page {
        title: format!("Seekway: {NAME} on real guests"),
        subtitle: format!("{}: {}.", ran.verdict, ran.why),
        sections: vec![section],
    }
}

fn bars(ran: &Ran) -> Block {
    let series = |name: &str, of: &dyn Fn(&GuestRan) -> Option<Spread>| BarSeries {
        name: name.into(),
        bars: ran
            .guests
            .iter()
            .map(|guest| {
                let Spread { median, least, largest } = of(guest)?;
                Some(Bar { value: median, range: Some((least, largest)) })
            })
            .collect(),
        reference: false,
    };
    let bars = Bars {
        title: String::new(),
        axis: Axis::linear("with everything on over everything off", "×"),
        groups: ran.guests.iter().map(|g| g.guest.into()).collect(),
        series: vec![series("throughput", &|g| Some(g.ratio)), series("p99", &|g| g.p99_ratio)],
    };
    let caption = "Medians over the pairs of windows; whiskers: least and largest.".into();
    Block::Figure { svg: bars.render(), caption }
}
