//! What the guest saw, compared with what the host did. On a busy host QEMU's main loop, which
//! makes the guest's ticks, has to wait for a processor as vCPUs do. Then no guest can tell that
//! a vCPU was away, or takes a late tick for an absence. So only those absences are judged in
//! which the main loop ran when a tick was due. These criteria hold
//! however busy the host is; only how many there are to judge depends on it.

use seekway_live::LiveError;

/// Two ticks of these kernels: who is away for longer is seen.
const SEEN_NS: i64 = 8_000_000;
const TICK_NS: i64 = 4_000_000;
/// A return that the guest told differs from one of the host's by so much at most.
const SAME_NS: i64 = 2_000_000;
/// The main loop needs some time to make a tick, and a vCPU to take it.
const MARGIN_NS: i64 = 500_000;
/// Fewer tell nothing.
const DUE_MIN: usize = 50;

/// A vCPU was away, from and until when, in nanoseconds of one clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Absence {
    pub vcpu: usize,
    pub from: i64,
    pub until: i64,
    /// As the guest told first of it.
    pub told: i64,
}

/// What the host did, by its own clock.
#[derive(Debug)]
pub struct Truth {
    /// Of each vCPU, in their order.
    pub absences: Vec<Vec<Absence>>,
    /// From and until when QEMU's main loop ran, in order.
    pub main_loop: Vec<(i64, i64)>,
}

impl Truth {
    /// Whether the main loop has made the tick that a vCPU was due which looked at the clock last
    /// at `from`, in time for a look before `until`.
    fn ticked(&self, from: i64, until: i64) -> bool {
        let (from, until) = (from + TICK_NS + MARGIN_NS, until - MARGIN_NS);
        let at = self.main_loop.partition_point(|run| run.1 < from);
        self.main_loop.get(at).is_some_and(|run| run.0 <= until)
    }

    /// The absence whose return this is, if one is near.
    fn same(&self, vcpu: usize, until: i64) -> Option<&Absence> {
        let all = self.absences.get(vcpu)?;
        let after = all.partition_point(|it| it.until < until);
        let near = all[after.saturating_sub(1)..].iter().take(2);
        near.min_by_key(|it| (it.until - until).abs())
            .filter(|it| (it.until - until).abs() <= SAME_NS)
    }

    /// Those that a guest sees whose ticks come.
    fn due(&self, from: i64, until: i64) -> Vec<&Absence> {
        let clear = self.absences.iter().flat_map(|all| {
            all.iter().enumerate().filter(|(n, it)| {
                // The vCPU stays for a tick, in which it can look at the clock.
                let stays = all.get(n + 1).is_none_or(|next| next.from - it.until >= TICK_NS);
                let inside = it.from > from && it.until < until;
                let long = it.until - it.from >= SEEN_NS + MARGIN_NS;
                // The tick waits for the vCPU when it returns.
                long && inside && stays && self.ticked(it.from, it.until)
            })
        });
        clear.map(|(_, it)| it).collect()
    }
}

/// A guest measures its clock's frequency when it boots, and QEMU's other threads disturb that on a
/// busy host. Linux takes a measurement that is off by up to this (arch/x86/kernel/tsc.c).
const SLOWER_PPM: i64 = 10_000;

/// From the guest's clock to the host's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When both were compared, by the guest's.
    since: i64,
    offset: i64,
    /// The guest's is slower by so many millionths.
    slower_ppm: i64,
}

impl Clock {
    fn on_host(&self, at: i64) -> i64 {
        at + self.offset + (at - self.since) * self.slower_ppm / 1_000_000
    }

    /// The clock with which returns fit best, of those whose offset is in between. How close they
    /// are counts, too: absences are as good as periodic, and at an offset of a whole turn most
    /// returns are near others.
    pub fn fit(truth: &Truth, seen: &[Absence], (least, most): (i64, i64)) -> Clock {
        let since = seen.first().map_or(0, |it| it.until);
        let some: Vec<&Absence> = seen.iter().step_by(seen.len() / 200 + 1).collect();
        let fit = |clock: &Clock| -> i64 {
            let apart = some.iter().filter_map(|it| clock.apart(truth, it));
            apart.map(|ns| SAME_NS - ns.abs()).sum()
        };
        // Around a clock: offsets and frequencies up to the first number away, in steps of the second.
        let near = |of: Clock, ns: (i64, usize), ppm: (i64, usize)| {
            let clocks = (-ns.0..=ns.0).step_by(ns.1).flat_map(|ns| {
                let offset = of.offset + ns;
                let slower = (-ppm.0..=ppm.0).step_by(ppm.1).map(move |ppm| of.slower_ppm + ppm);
                slower.map(move |slower_ppm| Clock { offset, slower_ppm, ..of })
            });
            clocks.max_by_key(fit).unwrap_or(of)
        };
        let coarse = Clock { since, offset: i64::midpoint(least, most), slower_ppm: 0 };
        let best = near(coarse, ((most - least) / 2 + 1, 500_000), (SLOWER_PPM, 100));
        let best = near(best, (1_000_000, 50_000), (100, 10));
        // The fastest of twenty is told when it was.
        let mut apart: Vec<i64> = seen.iter().filter_map(|it| best.apart(truth, it)).collect();
        apart.sort_unstable();
        Clock { offset: best.offset - apart.get(apart.len() / 20).unwrap_or(&0), ..best }
    }

    /// How much later than it was a return was seen.
    fn apart(&self, truth: &Truth, seen: &Absence) -> Option<i64> {
        let at = self.on_host(seen.until);
        Some(at - truth.same(seen.vcpu, at)?.until)
    }
}

/// The same by the host's clock.
pub fn on_host(seen: &[Absence], clock: Clock) -> Vec<Absence> {
    let of = |it: &Absence| Absence {
        from: clock.on_host(it.from),
        until: clock.on_host(it.until),
        told: clock.on_host(it.told),
        ..*it
    };
    seen.iter().map(of).collect()
}

/// What was found, and whether it is accepted.
#[derive(Debug)]
pub struct Verdict {
    /// In words.
    pub text: String,
    /// `Ok(false)`: the host was too busy to tell.
    pub accepted: Result<bool, LiveError>,
}

/// What a share of all is not above, in milliseconds: 10, 50 and 90 %.
fn quantiles(mut all: Vec<i64>) -> [f64; 3] {
    all.sort_unstable();
    [10, 50, 90]
        .map(|percent| all.get(all.len() * percent / 100).map_or(0.0, |ns| *ns as f64 / 1e6))
}

/// All by the host's clock; `from` and `until`: while vCPUs were held.
pub fn judge(truth: &Truth, seen: &[Absence], (from, until): (i64, i64)) -> Verdict {
    let pairs: Vec<(&Absence, &Absence)> =
        seen.iter().filter_map(|it| Some((it, truth.same(it.vcpu, it.until)?))).collect();
    let due = truth.due(from, until);
    let found = due.iter().filter(|it| pairs.iter().any(|(_, truth)| truth == *it)).count();
    let overlaps = |it: &Absence| {
        let mut all = truth.absences[it.vcpu].iter();
        all.any(|t| t.from < it.until && it.from < t.until)
    };
    // The first look may have been before the vCPUs were held.
    let strange = seen.iter().filter(|it| it.from > from && !overlaps(it));
    let invented = strange.filter(|it| truth.ticked(it.from, it.until)).count();
    let off = |of: fn(&Absence, &Absence) -> i64| {
        quantiles(pairs.iter().map(|(seen, truth)| of(seen, truth)).collect())
    };
    let loss = off(|seen, truth| seen.from - truth.from);
    let meanwhile = pairs.iter().filter(|(seen, truth)| seen.told < truth.until).count();
    let text = format!(
        "away for {:?} ms: seen {found} of {} (of {} in all), {invented} of {} were none; \
         loss off by {loss:?} ms, return by {:?} ms; told {:?} ms after the loss, {meanwhile} \
         while it lasted",
        off(|_, truth| truth.until - truth.from),
        due.len(),
        truth.absences.iter().map(Vec::len).sum::<usize>(),
        seen.len(),
        off(|seen, truth| seen.until - truth.until),
        off(|seen, truth| seen.told - truth.from),
    );
    let accepted = if found * 10 < due.len() * 9 {
        Err("nine of ten are to be seen")
    } else if invented * 50 > seen.len() {
        Err("one of fifty may be none")
    } else if let Some(it) =
        seen.iter().find(|it| it.told - it.from < SEEN_NS || it.until - it.from < SEEN_NS)
    {
        eprintln!("{it:?}");
        Err("who is away for less than two ticks is not to be told of")
    } else if !pairs.is_empty() && !(-2.0 * TICK_NS as f64 / 1e6..1.0).contains(&loss[1]) {
        Err("a loss lies between the last look and the next tick")
    } else {
        Ok(due.len() >= DUE_MIN)
    };
    let accepted = accepted.map_err(|why| LiveError::Measured(format!("{why}: {text}")));
    Verdict { text, accepted }
}

const MS: i64 = 1_000_000;

/// Four vCPUs on two processors by turns of 11 ms, and what a guest sees whose clock is behind.
fn scene(behind: i64) -> (Truth, Vec<Absence>) {
    let mut truth = Truth { absences: vec![Vec::new(); 4], main_loop: Vec::new() };
    let mut seen = Vec::new();
    for vcpu in 0..4 {
        // Turns are not all alike.
        let turn = |n: i64| 11 * MS * n + (n * n * 7919) % 600_000;
        for n in (0..200).map(|n| 2 * n + (vcpu as i64 & 1)) {
            let (from, until) = (turn(n), turn(n + 1));
            truth.absences[vcpu].push(Absence { vcpu, from, until, told: until });
            let (from, until) = (from - 2 * MS - behind, until + 20_000 - behind);
            seen.push(Absence { vcpu, from, until, told: from + 9 * MS });
        }
    }
    truth.main_loop = (0..5000).map(|n| (n * MS, n * MS + 50_000)).collect();
    (truth, seen)
}

fn verdict(truth: &Truth, seen: &[Absence]) -> Result<bool, LiveError> {
    judge(truth, seen, (0, 4500 * MS)).accepted
}

fn refused(truth: &Truth, seen: &[Absence], why: &str) {
    let error = verdict(truth, seen).expect_err(why).to_string();
    assert!(error.contains(why), "{error}");
}

#[test]
fn clocks_are_found_to_fit() {
    for ppm in [250, -7_600] {
        let (truth, mut seen) = scene(123_456_789);
        for it in &mut seen {
            it.until -= it.until / 1_000_000 * ppm;
        }
        let clock = Clock::fit(&truth, &seen, (60 * MS, 500 * MS));
        assert!((clock.slower_ppm - ppm).abs() <= ppm.abs() / 50 + 20, "{clock:?}");
        let apart = seen.iter().map(|it| clock.apart(&truth, it).expect("a return"));
        assert!(apart.map(i64::abs).max() < Some(MS / 3), "{clock:?}");
    }
}

#[test]
fn who_sees_what_was_is_accepted() {
    let (truth, seen) = scene(0);
    assert!(verdict(&truth, &seen).expect("all is as it was"));
    let few =
        Truth { absences: vec![truth.absences[0][..20].to_vec()], main_loop: truth.main_loop };
    assert!(!verdict(&few, &seen[..20]).expect("too few to tell"));
}

#[test]
fn who_misses_invents_or_errs_is_refused() {
    let (truth, seen) = scene(0);
    let half: Vec<Absence> = seen.iter().step_by(2).copied().collect();
    refused(&truth, &half, "nine of ten are to be seen");
    refused(&truth, &[], "nine of ten are to be seen");
    let changed = |change: fn(&mut Absence)| -> Vec<Absence> {
        let mut all = seen.clone();
        all.iter_mut().for_each(change);
        all
    };
    refused(&truth, &changed(|it| it.until += 4 * MS), "nine of ten");
    refused(&truth, &changed(|it| it.vcpu ^= 1), "nine of ten");
    refused(&truth, &changed(|it| it.told = it.from), "less than two ticks");
    refused(&truth, &changed(|it| it.from -= 12 * MS), "a loss lies");
    let mut more = seen.clone();
    // In the middle of each third time that the vCPU ran.
    let ran = |it: &Absence| Absence { from: it.from + 13 * MS, until: it.until + 10 * MS, ..*it };
    more.extend(seen.iter().step_by(3).map(ran).map(|it| Absence { told: it.until, ..it }));
    more.iter_mut().for_each(|it| it.until = it.until.max(it.from + SEEN_NS));
    refused(&truth, &more, "one of fifty");
}

#[test]
fn nobody_is_to_see_without_ticks() {
    let (mut truth, seen) = scene(0);
    truth.main_loop.retain(|run| run.0 > 2000 * MS);
    let late: Vec<Absence> = seen.iter().filter(|it| it.from > 2000 * MS).copied().collect();
    assert!(verdict(&truth, &late).expect("the main loop did not run"));
    // An absence that was none, while nobody ticked.
    let mut more = late.clone();
    let none = |n: i64| Absence {
        vcpu: 0,
        from: n * 22 * MS + 12 * MS,
        until: n * 22 * MS + 20 * MS + 500_000,
        told: n * 22 * MS + 20 * MS + 500_000,
    };
    more.extend((1..80).map(none));
    assert!(verdict(&truth, &more).is_ok());
}
