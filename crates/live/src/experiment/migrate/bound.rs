//! What the recorded schedule of the host allows: pure arithmetic on a [`Recording`].
//!
//! Where the reader is, the host sees too: when a task submits a request, the thread of its
//! vCPU wakes the daemon.

use crate::schedule::{Recording, Run};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a [`Stripe`] shows.
const STRIPE: Duration = Duration::from_millis(150);
/// Breaks that are shorter are not drawn.
const INVISIBLE: Duration = Duration::from_micros(100);
/// A vCPU that is away for less, for QEMU's timers or the daemon, is no reason to move.
const BREAK: Duration = Duration::from_millis(1);

/// The threads that were recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Threads {
    /// The vCPUs of each guest, in their order.
    pub vcpus: Vec<Vec<i32>>,
    pub daemon: Vec<i32>,
    /// QEMU's first threads: timers and interrupts.
    pub qemu: Vec<i32>,
}

/// When a guest's vCPUs ran in a window. Shares are 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct GuestSchedule {
    /// Share of the time in which one vCPU ran, or more: what moving tasks can reach.
    pub any: f64,
    /// Share of the time in which the reader's vCPU ran, wherever it was: that which had
    /// submitted last. Zero when nothing was submitted.
    pub reader: f64,
    /// How often the next request came from another vCPU, a second.
    pub moves_s: f64,
    /// The least moves, a second, of who knows the schedule and is on a vCPU that runs whenever one
    /// does.
    pub moves_least_s: f64,
    /// Processors that all its vCPUs had, on average.
    pub processors: f64,
}

/// The schedule in a window, over all guests.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WindowSchedule {
    /// Slices: from when a vCPU got a processor to when another vCPU did. Times in
    /// milliseconds below which a tenth, half and nine tenths of them are.
    pub slices_ms: [f64; 3],
    /// Processors that the daemon and QEMU's first threads had, on average.
    pub served: f64,
    /// How long these waited for a processor once woken: half of the times, and all but
    /// one in a hundred, in milliseconds.
    pub waits_ms: [f64; 2],
}

/// A short piece of a window, to be drawn: the first guest's vCPUs. Times are in
/// milliseconds from its beginning.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stripe {
    /// How long it is.
    pub ms: f64,
    /// Of each vCPU, when it ran.
    pub ran: Vec<Vec<(f64, f64)>>,
    /// Of each vCPU, when the reader was on it.
    pub reader: Vec<Vec<(f64, f64)>>,
}

pub(super) fn guest(recording: &Recording, threads: &Threads, guest: usize) -> GuestSchedule {
    let vcpus = &threads.vcpus[guest];
    let span = recording.to.saturating_sub(recording.from).as_secs_f64();
    if span == 0.0 {
        return GuestSchedule::default();
    }
    let runs = |tid: &i32| -> Vec<(Duration, Duration)> { of_thread(recording, *tid) };
    let ran: Vec<Vec<(Duration, Duration)>> = vcpus.iter().map(runs).collect();
    let places = places(recording, vcpus, &threads.daemon);
    let under = |&(vcpu, from, to): &(usize, Duration, Duration)| overlap(&ran[vcpu], from, to);
    let placed: Duration = places.iter().map(|(_, from, to)| to.saturating_sub(*from)).sum();
    let reader: Duration = places.iter().map(under).sum();
    let moves = places.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    let total: Duration = ran.iter().flatten().map(|(from, to)| to.saturating_sub(*from)).sum();
    GuestSchedule {
        moves_least_s: least_moves(&ran) as f64 / span,
        any: union(ran.into_iter().flatten().collect()).as_secs_f64() / span,
        reader: if placed.is_zero() { 0.0 } else { reader.as_secs_f64() / placed.as_secs_f64() },
        moves_s: moves as f64 / span,
        processors: total.as_secs_f64() / span,
    }
}

pub(super) fn window(recording: &Recording, threads: &Threads) -> WindowSchedule {
    let span = recording.to.saturating_sub(recording.from).as_secs_f64().max(1e-9);
    let helpers: Vec<i32> = threads.daemon.iter().chain(&threads.qemu).copied().collect();
    let served: f64 = helpers
        .iter()
        .flat_map(|tid| of_thread(recording, *tid))
        .map(|(from, to)| (to - from).as_secs_f64())
        .sum();
    let slices = slices(recording, threads);
    let waits = waits(recording, &helpers);
    WindowSchedule {
        slices_ms: [0.1, 0.5, 0.9].map(|share| quantile(&slices, share)),
        served: served / span,
        waits_ms: [0.5, 0.99].map(|share| quantile(&waits, share)),
    }
}

/// The middle of the window.
pub(super) fn stripe(recording: &Recording, threads: &Threads) -> Stripe {
    let Some(vcpus) = threads.vcpus.first() else { return Stripe::default() };
    let whole = recording.to.saturating_sub(recording.from);
    let from = recording.from + whole.saturating_sub(STRIPE) / 2;
    let to = (from + STRIPE).min(recording.to);
    let ms = |at: Duration| at.saturating_sub(from).as_secs_f64() * 1e3;
    let clip = |pieces: &[(Duration, Duration)]| -> Vec<(f64, f64)> {
        let seen = pieces.iter().filter(|(a, b)| *b > from && *a < to);
        let joined = joined(seen, INVISIBLE);
        joined.into_iter().map(|(a, b)| (ms(a.max(from)), ms(b.min(to)))).collect()
    };
    let places = places(recording, vcpus, &threads.daemon);
    let on = |vcpu: usize| -> Vec<(Duration, Duration)> {
        places.iter().filter(|p| p.0 == vcpu).map(|&(_, from, to)| (from, to)).collect()
    };
    Stripe {
        ms: ms(to),
        ran: vcpus.iter().map(|&tid| clip(&of_thread(recording, tid))).collect(),
        reader: (0..vcpus.len()).map(|vcpu| clip(&on(vcpu))).collect(),
    }
}

/// Pieces that are in order, without the breaks that are shorter than this.
fn joined<'p>(
    pieces: impl Iterator<Item = &'p (Duration, Duration)>,
    shorter: Duration,
) -> Vec<(Duration, Duration)> {
    let mut joined: Vec<(Duration, Duration)> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if piece.0.saturating_sub(last.1) < shorter => last.1 = piece.1,
            _ => joined.push(*piece),
        }
    }
    joined
}

/// Moves of a task that is on some vCPU that runs whenever one does, and goes each time to the one
/// that then runs for longest.
fn least_moves(ran: &[Vec<(Duration, Duration)>]) -> usize {
    let of_vcpu = |(vcpu, pieces): (usize, &Vec<(Duration, Duration)>)| {
        joined(pieces.iter(), BREAK).into_iter().map(move |(from, to)| (from, to, vcpu))
    };
    let mut spans: Vec<_> = ran.iter().enumerate().flat_map(of_vcpu).collect();
    spans.sort_unstable();
    let (mut moves, mut on, mut at, mut next) = (0, None, Duration::ZERO, 0);
    // The one of those that have begun that runs for longest.
    let mut longest: Option<(Duration, usize)> = None;
    loop {
        while let Some(&(_, to, vcpu)) = spans.get(next).filter(|(from, ..)| *from <= at) {
            longest = longest.max(Some((to, vcpu)));
            next += 1;
        }
        match (longest.filter(|(to, _)| *to > at), spans.get(next)) {
            (Some((to, vcpu)), _) => {
                moves += usize::from(on.is_some_and(|on| on != vcpu));
                (on, at) = (Some(vcpu), to);
            }
            (None, Some(&(from, ..))) => at = from,
            (None, None) => return moves,
        }
    }
}

/// When a thread ran, in order.
fn of_thread(recording: &Recording, tid: i32) -> Vec<(Duration, Duration)> {
    let runs = recording.runs.iter().filter(|run| run.tid == tid);
    let mut runs: Vec<(Duration, Duration)> = runs.map(|run| (run.from, run.to)).collect();
    runs.sort_unstable();
    runs
}

/// On which vCPU the reader was, from when to when: from each request to the next.
fn places(
    recording: &Recording,
    vcpus: &[i32],
    daemon: &[i32],
) -> Vec<(usize, Duration, Duration)> {
    let submits = recording.wakes.iter().filter(|wake| daemon.contains(&wake.woken));
    let placed = submits.filter_map(|w| Some((vcpus.iter().position(|&tid| tid == w.by)?, w.at)));
    let placed: Vec<(usize, Duration)> = placed.collect();
    let ends = placed.iter().skip(1).map(|(_, at)| *at).chain([recording.to]);
    placed.iter().zip(ends).map(|(&(vcpu, from), to)| (vcpu, from, to)).collect()
}

/// How much of a stretch is covered by pieces that are in order and apart.
fn overlap(pieces: &[(Duration, Duration)], from: Duration, to: Duration) -> Duration {
    let first = pieces.partition_point(|(_, end)| *end <= from);
    let touching = pieces[first..].iter().take_while(|(start, _)| *start < to);
    touching.map(|(start, end)| (*end).min(to).saturating_sub((*start).max(from))).sum()
}

/// The time that is covered by one piece or more.
fn union(mut pieces: Vec<(Duration, Duration)>) -> Duration {
    pieces.sort_unstable();
    let (mut covered, mut until) = (Duration::ZERO, Duration::ZERO);
    for (from, to) in pieces {
        covered += to.saturating_sub(from.max(until));
        until = until.max(to);
    }
    covered
}

/// Lengths of slices in milliseconds, sorted. Those at both ends of the recording are
/// not whole, and are left out.
fn slices(recording: &Recording, threads: &Threads) -> Vec<f64> {
    let mut on: BTreeMap<usize, Vec<&Run>> = BTreeMap::new();
    let vcpus: Vec<i32> = threads.vcpus.iter().flatten().copied().collect();
    for run in recording.runs.iter().filter(|run| vcpus.contains(&run.tid)) {
        on.entry(run.cpu).or_default().push(run);
    }
    let mut lengths = Vec::new();
    for runs in on.values_mut() {
        runs.sort_unstable_by_key(|run| run.from);
        let whole: Vec<f64> = runs
            .chunk_by(|a, b| a.tid == b.tid)
            .map(|slice| (slice[slice.len() - 1].to - slice[0].from).as_secs_f64() * 1e3)
            .collect();
        let inner = whole.get(1..whole.len().saturating_sub(1)).unwrap_or_default();
        lengths.extend_from_slice(inner);
    }
    lengths.sort_unstable_by(f64::total_cmp);
    lengths
}

/// From a wake-up of one of these threads to when it ran, in milliseconds, sorted.
fn waits(recording: &Recording, tids: &[i32]) -> Vec<f64> {
    let mut waits = Vec::new();
    for &tid in tids {
        let runs = of_thread(recording, tid);
        let mut wakes: Vec<Duration> =
            recording.wakes.iter().filter(|w| w.woken == tid).map(|w| w.at).collect();
        wakes.sort_unstable();
        for at in wakes {
            let next = runs.get(runs.partition_point(|(from, _)| *from < at));
            waits.extend(next.map(|(from, _)| from.saturating_sub(at).as_secs_f64() * 1e3));
        }
    }
    waits.sort_unstable_by(f64::total_cmp);
    waits
}

/// Of sorted values; 0 of none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Wake;

    const MS: Duration = Duration::from_millis(1);

    fn run(tid: i32, cpu: usize, from: u32, to: u32) -> Run {
        Run { tid, cpu, from: from * MS, to: to * MS, preempted: true }
    }

    /// Two guests of two vCPUs (1, 2 and 8, 9) on two processors, 40 ms: processor 0 runs 1,
    /// 8, 1; processor 1 runs 9, 2 with a break of the daemon (5), 9.
    fn recording() -> (Recording, Threads) {
        let runs = vec![
            run(1, 0, 0, 10),
            run(8, 0, 10, 30),
            run(1, 0, 30, 40),
            run(9, 1, 0, 15),
            run(2, 1, 15, 20),
            run(5, 1, 20, 21),
            run(2, 1, 21, 25),
            run(9, 1, 25, 40),
        ];
        let wake = |at: u32, by, woken| Wake { at: at * MS, by, woken };
        // It submits on the first, comes to the second, and is back.
        let wakes = vec![wake(5, 1, 5), wake(19, 2, 5), wake(20, 8, 5), wake(35, 1, 5)];
        let threads =
            Threads { vcpus: vec![vec![1, 2], vec![8, 9]], daemon: vec![5], qemu: vec![] };
        (Recording { from: Duration::ZERO, to: 40 * MS, runs, wakes }, threads)
    }

    #[test]
    fn the_bound_is_the_time_with_some_vcpu_running() {
        let (recording, threads) = recording();
        let schedule = guest(&recording, &threads, 0);
        // 0 to 10, 15 to 20, 21 to 25, 30 to 40.
        assert!((schedule.any - 29.0 / 40.0).abs() < 1e-9, "{schedule:?}");
        assert!((schedule.processors - 29.0 / 40.0).abs() < 1e-9);
        // On the first from 5 to 19, of which it ran 5; on the second to 35, which ran 5;
        // then again on the first.
        assert!((schedule.reader - (5.0 + 5.0 + 5.0) / 35.0).abs() < 1e-9, "{schedule:?}");
        assert!((schedule.moves_s - 2.0 / 0.04).abs() < 1e-6);
        // From the first to the second and back.
        assert!((schedule.moves_least_s - 2.0 / 0.04).abs() < 1e-6);
        let other = guest(&recording, &threads, 1);
        // 0 to 15, 10 to 30, 25 to 40.
        assert!((other.any - 1.0).abs() < 1e-9, "{other:?}");
        assert!((other.processors - 50.0 / 40.0).abs() < 1e-9);
        let empty = Recording { to: Duration::ZERO, ..recording };
        assert_eq!(guest(&empty, &threads, 0), GuestSchedule::default());
    }

    #[test]
    fn the_least_moves_go_to_who_runs_longest() {
        let spans = |ms: &[(u32, u32)]| ms.iter().map(|&(a, b)| (a * MS, b * MS)).collect();
        let least = |vcpus: &[&[(u32, u32)]]| {
            least_moves(&vcpus.iter().map(|ms| spans(ms)).collect::<Vec<_>>())
        };
        assert_eq!(least(&[]), 0);
        assert_eq!(least(&[&[(0, 10), (12, 20)]]), 0, "nowhere else to be");
        assert_eq!(least(&[&[(0, 10), (20, 30)], &[(10, 20)]]), 2);
        assert_eq!(least(&[&[(0, 10), (20, 30)], &[(5, 12)], &[(5, 22)]]), 2, "past the shorter");
        let broken = [vec![(Duration::ZERO, 5 * MS), (5 * MS + BREAK / 2, 9 * MS)]];
        let other = [vec![(Duration::ZERO, 7 * MS)]];
        assert_eq!(least_moves(&[broken, other].concat()), 0, "a short break is none");
    }

    #[test]
    fn a_slice_lasts_until_another_vcpu_runs() {
        let (recording, threads) = recording();
        // Whole are 8 on the first processor and 2, over the daemon's break, on the second.
        assert_eq!(slices(&recording, &threads), [10.0, 20.0]);
        let schedule = window(&recording, &threads);
        assert_eq!(schedule.slices_ms, [10.0, 20.0, 20.0]);
        assert!((schedule.served - 1.0 / 40.0).abs() < 1e-9);
        // Woken at 19 and 20, it ran at 20; the other two never.
        assert_eq!(schedule.waits_ms[1], 15.0);
    }

    #[test]
    fn a_stripe_is_the_middle() {
        let (mut recording, threads) = recording();
        let short = stripe(&recording, &threads);
        assert_eq!((short.ms, &short.ran[0]), (40.0, &vec![(0.0, 10.0), (30.0, 40.0)]));
        assert_eq!(short.reader[1], [(19.0, 35.0)]);
        recording.to = 190 * MS;
        let long = stripe(&recording, &threads);
        // It begins at 20.
        assert_eq!((long.ms, &long.ran[0]), (150.0, &vec![(10.0, 20.0)]));
        assert_eq!(long.reader, [vec![(15.0, 150.0)], vec![(0.0, 15.0)]]);
    }

    #[test]
    fn quantiles_are_of_what_is_there() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!((quantile(&[1.0], 0.9), quantile(&[1.0, 2.0, 3.0], 0.5)), (1.0, 2.0));
    }
}
