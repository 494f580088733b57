//! Tables and the page.

use super::NAME;
use super::judge::{self, Ran, SceneRan};
use crate::show::{LATE_MAX, Page, badge, bars, series};
use crate::spread::Spread;
use seekway_live::experiment::TogetherSide;
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::{Cell, Table};

/// What was measured of one disk.
pub(super) fn tables(ran: &SceneRan) -> [Table; 2] {
    [guests(ran), host(ran)]
}

/// What each guest had, and the verdicts.
fn guests(ran: &SceneRan) -> Table {
    let percent = |spread: Option<Spread>| spread.map(|s| 100.0 * s.median);
    let median = |spread: Option<Spread>| spread.map(|s| s.median);
    let mut table =
        Table::of(format!("{NAME}: real guests of one host, {}", ran.scene), &ran.guests)
            .text("guest", |guest| guest.guest)
            .text("throughput", |guest| guest.unit)
            .number("alone", "", |guest| guest.alone.median)
            .number("off", "", |guest| guest.off.median)
            .number("on", "", |guest| guest.on.median)
            .number("progress off", "×", |guest| guest.progress_off.median)
            .number("progress on", "×", |guest| guest.progress_on.median)
            .number("least", "×", |guest| guest.progress_on.least)
            .number("largest", "×", |guest| guest.progress_on.largest)
            .number("on over off", "×", |guest| guest.ratio.median)
            .number("p99 alone", "ms", |guest| median(guest.p99_alone_ms))
            .number("off", "ms", |guest| median(guest.p99_off_ms))
            .number("on", "ms", |guest| median(guest.p99_on_ms))
            .number("on over alone", "×", |guest| median(guest.p99_over_private))
            .number("a process, off", "% CPU", |guest| percent(guest.process_off))
            .number("on", "% CPU", |guest| percent(guest.process_on))
            .number("compute lost", "%", |guest| percent(Some(guest.compute_lost)))
            .number("agents", "% of a vCPU", |guest| percent(Some(guest.agents_vcpus)))
            .number("cache had", "%", |guest| percent(guest.hit))
            .number("moves a slice", "", |guest| median(guest.moves_a_slice))
            .text("verdict", |guest| badge(guest.verdict))
            .text("why", |guest| &guest.why)
            .notes(notes(ran))
            .done();
    let mut total = vec![Cell::Text("geometric mean".into())];
    total.resize_with(5, || Cell::Absent);
    total.extend([ran.progress_off, ran.progress_on].map(Cell::Number));
    total.resize_with(9, || Cell::Absent);
    total.push(Cell::Number(ran.geometric_mean));
    total.resize_with(table.columns.len() - 2, || Cell::Absent);
    total.extend([badge(ran.verdict), Cell::Text(ran.why.clone())]);
    table.push(total);
    table
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
        100.0 * LATE_MAX,
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
    let sides = [("off", &ran.off), ("on", &ran.on), ("alone", &ran.alone)];
    Table::of(format!("The host, {}", ran.scene), &sides)
        .text("everything", |(name, _)| *name)
        .number("all I/O", "MiB/s", |(_, side)| side.mib_s.median)
        .number("commands", "", |(_, side)| side.commands.median)
        .number("late", "%", |(_, side)| 100.0 * side.late.median)
        .number("vCPUs", "% CPU", |(_, side)| 100.0 * side.vcpus.median)
        .number("rest of QEMU", "% CPU", |(_, side)| 100.0 * side.qemu.median)
        .number("daemons", "% CPU", |(_, side)| 100.0 * side.daemons.median)
        .number("others", "% CPU", |(_, side)| 100.0 * side.others.median)
        .number("host CPU", "%", |(_, side)| 100.0 * side.busy.median)
        .note(
            "Of all processors. The compute tasks keep them busy in every window. rest of QEMU: \
             timers, interrupts and completions of emulated guests, and daemons: both run when \
             they have to, whosever turn it is, so that more I/O leaves less for vCPUs. alone: I/O \
             and commands of all guests' windows together, the mean of the shares, and late of the \
             worst.",
        )
        .done()
}

pub(super) fn page(ran: &Ran) -> Page {
    let section = |scene: &SceneRan| {
        let mut blocks = vec![progress(scene)];
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

fn progress(ran: &SceneRan) -> Block {
    let guests = || ran.guests.iter();
    let shown = vec![
        series("everything off", guests().map(|g| g.progress_off), false),
        series("everything on", guests().map(|g| g.progress_on), false),
        series("a private disk", guests().map(|_| 1.0), true),
    ];
    let axis = Axis::linear("throughput over that on a private disk", "×");
    let caption = "Medians over the rounds of windows; whiskers: least and largest. 1 is what a \
                   guest has alone, on a disk as many times slower as there are guests.";
    bars(axis, guests().map(|g| g.guest.into()).collect(), shown, caption)
}
