//! Tables and the page.

use super::NAME;
use super::judge::{self, GuestRan, Ran, SceneRan};
use crate::show::Page;
use crate::spread::Spread;
use seekway_live::experiment::TogetherSide;
use seekway_report::html::{Block, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell, Column, Table, Tone};

/// What was measured of one disk.
pub(super) fn tables(ran: &SceneRan) -> [Table; 2] {
    [guests(ran), host(ran)]
}

/// What each guest had, and the verdicts.
fn guests(ran: &SceneRan) -> Table {
    let mut columns = vec![Column::text("guest"), Column::text("throughput")];
    for (name, unit) in [
        ("alone", ""),
        ("off", ""),
        ("on", ""),
        ("progress off", "×"),
        ("progress on", "×"),
        ("least", "×"),
        ("largest", "×"),
        ("on over off", "×"),
        ("p99 alone", "ms"),
        ("off", "ms"),
        ("on", "ms"),
        ("on over alone", "×"),
        ("a process, off", "% CPU"),
        ("on", "% CPU"),
        ("compute lost", "%"),
        ("agents", "% of a vCPU"),
        ("cache had", "%"),
        ("moves a slice", ""),
    ] {
        columns.push(Column::number(name, unit));
    }
    let figures = columns.len();
    columns.extend([Column::text("verdict"), Column::text("why")]);
    let mut table = Table::new(format!("{NAME}: real guests of one host, {}", ran.scene), columns);
    for guest in &ran.guests {
        table.push(row(guest));
    }
    let mut total = vec![Cell::Text("geometric mean".into())];
    total.resize_with(5, || Cell::Absent);
    total.extend([ran.progress_off, ran.progress_on].map(Cell::Number));
    total.resize_with(9, || Cell::Absent);
    total.push(Cell::Number(ran.geometric_mean));
    total.resize_with(figures, || Cell::Absent);
    total.extend([badge(ran.verdict), Cell::Text(ran.why.clone())]);
    table.push(total);
    table.notes.extend(notes(ran));
    table
}

fn row(guest: &GuestRan) -> Vec<Cell> {
    let median = |spread: Option<Spread>, factor: f64| {
        spread.map_or(Cell::Absent, |s| Cell::Number(factor * s.median))
    };
    let mut cells = vec![Cell::Text(guest.guest.into()), Cell::Text(guest.unit.into())];
    cells.extend([guest.alone, guest.off, guest.on].map(|s| Cell::Number(s.median)));
    let progress = guest.progress_on;
    let progress = [guest.progress_off.median, progress.median, progress.least, progress.largest];
    cells.extend(progress.map(Cell::Number));
    cells.push(Cell::Number(guest.ratio.median));
    let p99s = [guest.p99_alone_ms, guest.p99_off_ms, guest.p99_on_ms, guest.p99_over_private];
    cells.extend(p99s.map(|s| median(s, 1.0)));
    cells.extend([guest.process_off, guest.process_on].map(|s| median(s, 100.0)));
    cells.extend([guest.compute_lost, guest.agents_vcpus].map(|s| median(Some(s), 100.0)));
    cells.extend([median(guest.hit, 100.0), median(guest.moves_a_slice, 1.0)]);
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

fn notes(ran: &SceneRan) -> Vec<String> {
    let [off, on, private] = &ran.options.sides;
    let cache = |side: &TogetherSide| {
        side.cache.as_ref().map_or_else(String::new, |(bytes, prefetcher)| {
            format!(" --cache {}MiB --prefetch {prefetcher}", bytes >> 20)
        })
    };
    let setup = format!(
        "{} guests of two vCPUs that share two processors in turns of 11 ms, a compute task on \
         each vCPU, on `seekway serve --emulate {}`. off: --policy {}, no cache, no agents. on: \
         --policy {}{}, with `seekway-guest tag` and `seekway-guest migrate` in each guest. alone: \
         only this guest's application, in the same turns, on --emulate {} --policy {}{}. Medians \
         of {} rounds of windows of {} s, in turn in the same guests; ratios are taken in each \
         round. Progress is throughput over that alone.",
        ran.guests.len(),
        off.device,
        off.policy,
        on.policy,
        cache(on),
        private.device,
        private.policy,
        cache(private),
        ran.counted_rounds,
        ran.options.window.as_secs(),
    );
    let rules = format!(
        "Asked with everything on: progress of each guest of at least {}, and a geometric mean \
         above that with everything off; of each guest's compute at most {:.0} % lost, and at most \
         {} moves of a process that does I/O for each slice of a vCPU of its guest. A round is \
         void when more than {} % of the commands of a window are later than the device, or others \
         on this machine have more than {} % of the processors; a row when each process of its \
         application is busy for more than {:.0} % of what it gets beside the compute tasks. {} of \
         {} rounds were void.",
        judge::PROGRESS,
        100.0 * judge::COMPUTE,
        judge::MOVES,
        100.0 * judge::LATE,
        100.0 * judge::OTHERS,
        100.0 * judge::PROCESS,
        ran.void_rounds,
        ran.rounds,
    );
    let lost = (!ran.lost.is_empty()).then(|| {
        let (times, why) = (ran.lost.len(), ran.lost.join("; "));
        format!("QEMU's emulation lost a guest {times} times, and rounds were made again: {why}.")
    });
    [setup, rules].into_iter().chain(lost).collect()
}

/// Who had the host's processors, and what all had together.
fn host(ran: &SceneRan) -> Table {
    let columns = vec![
        Column::text("everything"),
        Column::number("all I/O", "MiB/s"),
        Column::number("commands", ""),
        Column::number("late", "%"),
        Column::number("vCPUs", "% CPU"),
        Column::number("rest of QEMU", "% CPU"),
        Column::number("daemons", "% CPU"),
        Column::number("others", "% CPU"),
        Column::number("host CPU", "%"),
    ];
    let mut table = Table::new(format!("The host, {}", ran.scene), columns);
    for (name, side) in [("off", &ran.off), ("on", &ran.on), ("alone", &ran.alone)] {
        let shares = [side.late, side.vcpus, side.qemu, side.daemons, side.others, side.busy]
            .map(|s| Cell::Number(100.0 * s.median));
        let first = [
            Cell::Text(name.into()),
            Cell::Number(side.mib_s.median),
            Cell::Number(side.commands.median),
        ];
        table.push(first.into_iter().chain(shares));
    }
    table.notes.push(
        "Of all processors. The compute tasks keep them busy in every window. rest of QEMU: \
         timers, interrupts and completions of emulated guests, and daemons: both run when they \
         have to, whosever turn it is, so that more I/O leaves less for vCPUs. alone: I/O and \
         commands of all guests' windows together, the mean of the shares, and late of the worst."
            .into(),
    );
    table
}

pub(super) fn page(ran: &Ran) -> Page {
    let section = |scene: &SceneRan| {
        let mut blocks = vec![bars(scene)];
        blocks.extend(tables(scene).map(Block::Table));
        Section {
            heading: scene.scene.into(),
            intro: format!("{}: {}.", scene.verdict, scene.why),
            blocks,
        }
    };
    Page {
        title: format!("Seekway: {NAME} on real guests"),
        subtitle: ran.sentence.clone(),
        sections: ran.scenes.iter().map(section).collect(),
    }
}

fn bars(ran: &SceneRan) -> Block {
    let series = |name: &str, of: fn(&GuestRan) -> Spread| BarSeries {
        name: name.into(),
        bars: ran
            .guests
            .iter()
            .map(|guest| {
                let Spread { median, least, largest } = of(guest);
                Some(Bar { value: median, range: Some((least, largest)) })
            })
            .collect(),
        reference: false,
    };
    let bars = Bars {
        title: String::new(),
        axis: Axis::linear("throughput over that on a private disk", "×"),
        groups: ran.guests.iter().map(|g| g.guest.into()).collect(),
        series: vec![
            series("everything off", |g| g.progress_off),
            series("everything on", |g| g.progress_on),
            BarSeries {
                name: "a private disk".into(),
                bars: vec![Some(1.0.into()); ran.guests.len()],
                reference: true,
            },
        ],
    };
    let caption = "Medians over the rounds of windows; whiskers: least and largest. 1 is what a \
                   guest has alone, on a disk as many times slower as there are guests."
        .into();
    Block::Figure { svg: bars.render(), caption }
}
