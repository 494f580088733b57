//! What the pairs of windows come to, which of them say nothing, and whether the rest is
//! enough.

use crate::spread::Spread;
use seekway_live::experiment::{
    HostShares, TogetherFigures, TogetherGuest, TogetherLoad, TogetherWindow,
};
use serde::Serialize;

/// The geometric mean of the guests' throughput, on over off, at least: what is asked on a
/// turning disk and on a SATA drive.
pub(super) const GAIN: f64 = 1.3;
/// Each guest's throughput, on over off, at least.
pub(super) const KEPT: f64 = 0.98;
/// Each guest's p99, on over off, at most.
pub(super) const P99: f64 = 1.10;
/// A pair is void when more of the commands of one of its windows are late: the device was
/// not the one named.
pub(super) const LATE: f64 = 0.01;
/// Or when others on this machine had more of the processors. Compute tasks keep these busy
/// in every window, so that being busy tells nothing.
pub(super) const OTHERS: f64 = 0.05;
/// A guest's row is void when each process of its application is busier. Beside a compute
/// task a process gets half of a vCPU, and this is 95 % of it: the emulation of its
/// instructions is what limits it.
pub(super) const PROCESS: f64 = 0.475;

/// As JSON. The keys stay. Figures are over the pairs that are not void; over all of them
/// where too few are left.
#[derive(Serialize)]
pub(super) struct Ran {
    pub guests: Vec<GuestRan>,
    pub off: SideRan,
    pub on: SideRan,
    /// Of the guests' ratios of throughput.
    pub geometric_mean: f64,
    /// The guest with the least ratio of throughput.
    pub worst: &'static str,
    pub pairs: usize,
    pub void_pairs: usize,
    /// Those that the figures are of.
    pub counted_pairs: usize,
    /// `met`, `missed`, or `void`.
    pub verdict: &'static str,
    /// The reason of the verdict.
    pub why: String,
    /// For each time that the emulation lost a guest and a pair was made again: why.
    pub lost: Vec<String>,
    /// Off and on, void ones too.
    pub windows: Vec<Pair>,
}

#[derive(Serialize)]
pub(super) struct GuestRan {
    pub guest: &'static str,
    /// What `off` and `on` count, a second.
    pub unit: &'static str,
    pub off: Spread,
    pub on: Spread,
    /// On over off, pair by pair.
    pub ratio: Spread,
    /// Processor time of both agents, in vCPUs, as the guest counts it.
    pub agents_vcpus: Spread,
    /// Nothing for compute tasks.
    pub p99_off_ms: Option<Spread>,
    pub p99_on_ms: Option<Spread>,
    pub p99_ratio: Option<Spread>,
    /// Processor time of each process of the application, 0 to 1, as the guest counts it.
    pub process_off: Option<Spread>,
    pub process_on: Option<Spread>,
    /// Of the compute tasks' work, what was lost.
    pub compute_lost: Spread,
    /// Of what the guest read, what the cache had, 0 to 1.
    pub hit: Option<Spread>,
    /// Of what was prefetched for it, what it did not use, 0 to 1.
    pub prefetch_cost: Option<Spread>,
    pub tags: usize,
    /// Moves of tasks.
    pub moves: Option<Spread>,
    pub verdict: &'static str,
    pub why: String,
}

/// The host with one side. Shares of the processors, 0 to 1.
#[derive(Serialize)]
pub(super) struct SideRan {
    pub vcpus: Spread,
    /// QEMU's other threads.
    pub qemu: Spread,
    pub daemons: Spread,
    pub others: Spread,
    pub busy: Spread,
    /// Of the emulated device's commands, 0 to 1.
    pub late: Spread,
    /// What all applications read and wrote, in MiB a second.
    pub mib_s: Spread,
}

type Pair = [TogetherWindow; 2];

impl Ran {
    /// Of at least one pair; each has the guests of `loads`.
    pub(super) fn new(loads: &[TogetherLoad], figures: &TogetherFigures) -> Ran {
        let pairs = &figures.pairs[..];
        let voids: Vec<String> = pairs.iter().filter_map(void).collect();
        // One good pair among many is luck.
        let is_void = voids.len() * 2 >= pairs.len();
        let good = |pair: &&Pair| is_void || void(pair).is_none();
        let good: Vec<&Pair> = pairs.iter().filter(good).collect();
        let rows = loads.iter().enumerate();
        let guests: Vec<GuestRan> =
            rows.map(|(at, load)| GuestRan::new(*load, at, &good)).collect();
        let logs: f64 = guests.iter().map(|g| g.ratio.median.ln()).sum();
        let geometric_mean = (logs / guests.len() as f64).exp();
        let least = guests.iter().min_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median));
        let mut ran = Ran {
            worst: least.map_or("", |g| g.guest),
            geometric_mean,
            off: SideRan::new(&good, 0),
            on: SideRan::new(&good, 1),
            guests,
            pairs: pairs.len(),
            void_pairs: voids.len(),
            counted_pairs: good.len(),
            verdict: "void",
            why: format!("{} of {} pairs: {}", voids.len(), pairs.len(), voids.join("; ")),
            lost: figures.lost.clone(),
            windows: pairs.to_vec(),
        };
        if is_void {
            for guest in &mut ran.guests {
                (guest.verdict, guest.why) = ("void", "too few good pairs".into());
            }
        } else {
            ran.judge();
        }
        ran
    }

    fn judge(&mut self) {
        let named = |verdict: &str| -> Vec<&str> {
            self.guests.iter().filter(|g| g.verdict == verdict).map(|g| g.guest).collect()
        };
        let (missed, voids) = (named("missed"), named("void"));
        let mean = format!("geometric mean {:.2} ({GAIN} asked)", self.geometric_mean);
        let enough = self.geometric_mean >= GAIN;
        (self.verdict, self.why) = if !missed.is_empty() {
            ("missed", format!("{mean}; worse with everything on: {}", missed.join(", ")))
        } else if !voids.is_empty() {
            ("void", format!("{mean}, with void rows: {}", voids.join(", ")))
        } else {
            (if enough { "met" } else { "missed" }, mean)
        };
    }
}

impl GuestRan {
    fn new(load: TogetherLoad, at: usize, pairs: &[&Pair]) -> GuestRan {
        let over = |of: &dyn Fn([&TogetherGuest; 2]) -> Option<f64>| {
            Spread::of(pairs.iter().filter_map(|[off, on]| of([&off.guests[at], &on.guests[at]])))
        };
        let side = |side: usize, of: &dyn Fn(&TogetherGuest) -> Option<f64>| {
            over(&|guests| of(guests[side]))
        };
        let ratio = |of: &dyn Fn(&TogetherGuest) -> Option<f64>| {
            over(&|[off, on]| Some(of(on)? / of(off)?))
        };
        let throughput = |guest: &TogetherGuest| Some(throughput(load, guest));
        let p99 = |guest: &TogetherGuest| guest.load.map(|l| l.p99_ms);
        let process = |guest: &TogetherGuest| guest.load.map(|l| l.busy);
        let hit = |guest: &TogetherGuest| {
            let usage = guest.usage.as_ref().filter(|u| u.read_bytes > 0)?;
            Some((usage.hit_bytes + usage.late_bytes) as f64 / usage.read_bytes as f64)
        };
        let moves = |guest: &TogetherGuest| guest.agent.as_ref().map(|a| a.moves as f64);
        let agents = |TogetherGuest { compute, .. }: &TogetherGuest| {
            Some((compute.tag_cpu + compute.migrate_cpu) / compute.seconds)
        };
        let lost = ratio(&|guest| Some(guest.compute.mib_s())).unwrap_or_default();
        let mut row = GuestRan {
            guest: load.name(),
            unit: unit(load),
            off: side(0, &throughput).unwrap_or_default(),
            on: side(1, &throughput).unwrap_or_default(),
            ratio: ratio(&throughput).unwrap_or_default(),
            p99_off_ms: side(0, &p99),
            p99_on_ms: side(1, &p99),
            p99_ratio: ratio(&p99),
            process_off: side(0, &process),
            process_on: side(1, &process),
            compute_lost: Spread {
                median: 1.0 - lost.median,
                least: 1.0 - lost.largest,
                largest: 1.0 - lost.least,
            },
            agents_vcpus: side(1, &agents).unwrap_or_default(),
            hit: side(1, &hit),
            prefetch_cost: side(1, &|guest| guest.usage.as_ref().map(|u| u.cost)),
            tags: pairs.iter().map(|[_, on]| on.guests[at].tags).max().unwrap_or(0),
            moves: side(1, &moves),
            verdict: "",
            why: String::new(),
        };
        (row.verdict, row.why) = row.judge();
        row
    }

    fn judge(&self) -> (&'static str, String) {
        let busiest = self.process_off.iter().chain(&self.process_on).map(|s| s.median);
        let busiest = busiest.fold(0.0, f64::max);
        if busiest > PROCESS {
            let percent = 100.0 * busiest;
            return ("void", format!("its processes are busy for {percent:.0} % each"));
        }
        let mut missed = Vec::new();
        if self.ratio.median < KEPT {
            missed.push(format!("throughput {:.2} ({KEPT} asked)", self.ratio.median));
        }
        if let Some(p99) = self.p99_ratio.filter(|p99| p99.median > P99) {
            missed.push(format!("p99 {:.2} ({P99:.2} at most)", p99.median));
        }
        (if missed.is_empty() { "met" } else { "missed" }, missed.join(", "))
    }
}

impl SideRan {
    fn new(pairs: &[&Pair], side: usize) -> SideRan {
        let over = |of: fn(&TogetherWindow) -> f64| {
            Spread::of(pairs.iter().map(|pair| of(&pair[side]))).unwrap_or_default()
        };
        SideRan {
            vcpus: over(|w| w.host.vcpus.iter().sum()),
            qemu: over(|w| w.host.qemu.iter().sum()),
            daemons: over(|w| w.host.daemons),
            others: over(|w| HostShares::others(&w.host)),
            busy: over(|w| w.host.busy),
            late: over(late),
            mib_s: over(|w| w.guests.iter().filter_map(|g| g.load).map(|l| l.mib_s).sum()),
        }
    }
}

/// What a guest is there for, a second.
fn throughput(load: TogetherLoad, guest: &TogetherGuest) -> f64 {
    match (load, &guest.load) {
        (TogetherLoad::Database, Some(load)) => load.iops,
        (_, Some(load)) => load.mib_s,
        (_, None) => guest.compute.mib_s(),
    }
}

fn unit(load: TogetherLoad) -> &'static str {
    match load {
        TogetherLoad::Database => "IOPS",
        TogetherLoad::Files | TogetherLoad::Video => "MiB/s",
        TogetherLoad::Build => "MiB/s hashed",
    }
}

fn late(window: &TogetherWindow) -> f64 {
    window.late as f64 / window.commands.max(1) as f64
}

/// Why a pair says nothing, if so.
fn void(pair: &Pair) -> Option<String> {
    let of = |(window, side): (&TogetherWindow, &str)| {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        if late(window) > LATE {
            let late = percent(late(window));
            return Some(format!("{side}: {late} of the commands later than the device"));
        }
        let others = window.host.others();
        (others > OTHERS).then(|| format!("{side}: others had {} of the CPU", percent(others)))
    };
    pair.iter().zip(["off", "on"]).find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_live::experiment::{Progress, TogetherLoadFigures};

    const LOADS: [TogetherLoad; 2] = [TogetherLoad::Database, TogetherLoad::Build];

    /// A database with these IOPS and p99, and a build with so much work in ten seconds.
    fn window(iops: f64, p99_ms: f64, mib: f64) -> TogetherWindow {
        let guest = |load, mib| TogetherGuest {
            load,
            compute: Progress { seconds: 10.0, mib, tag_cpu: 0.1, migrate_cpu: 0.2 },
            usage: None,
            tags: 0,
            agent: None,
        };
        let load = TogetherLoadFigures { iops, mib_s: 1.0, mean_ms: 1.0, p99_ms, busy: 0.1 };
        TogetherWindow {
            guests: vec![guest(Some(load), 1000.0), guest(None, mib)],
            host: HostShares {
                vcpus: vec![0.45; 2],
                qemu: vec![0.02; 2],
                daemons: 0.01,
                busy: 0.96,
            },
            commands: 1000,
            late: 10,
        }
    }

    fn pairs(on: [TogetherWindow; 3]) -> Vec<Pair> {
        on.into_iter().map(|on| [window(100.0, 50.0, 500.0), on]).collect()
    }

    fn same(iops: f64, p99_ms: f64, mib: f64) -> Vec<Pair> {
        pairs([(); 3].map(|()| window(iops, p99_ms, mib)))
    }

    fn judged(pairs: &[Pair]) -> Ran {
        Ran::new(&LOADS, &TogetherFigures { pairs: pairs.to_vec(), lost: Vec::new() })
    }

    #[test]
    fn medians_of_pairs_are_judged() {
        let on = [(400.0, 40.0), (200.0, 54.0), (150.0, 90.0)];
        let ran = judged(&pairs(on.map(|(iops, p99)| window(iops, p99, 490.0))));
        let [database, build] = &ran.guests[..] else { panic!("two") };
        assert_eq!((database.off.median, database.on.median), (100.0, 200.0));
        assert_eq!(database.ratio, Spread { median: 2.0, least: 1.5, largest: 4.0 });
        assert_eq!(database.p99_ratio.expect("reads").median, 1.08);
        assert_eq!((build.off.median, build.p99_ratio), (50.0, None));
        assert!((build.compute_lost.median - 0.02).abs() < 1e-9);
        assert!((ran.geometric_mean - 1.96_f64.sqrt()).abs() < 1e-9);
        assert_eq!((ran.verdict, ran.worst, ran.void_pairs), ("met", "build", 0), "{}", ran.why);
        assert!((build.agents_vcpus.median - 0.03).abs() < 1e-9);
        assert!((ran.on.others.median - 0.01).abs() < 1e-9);
        assert_eq!((ran.on.mib_s.median, ran.on.late.median), (1.0, 0.01));
    }

    #[test]
    fn each_miss_is_said() {
        let verdict = |pairs: &[Pair]| {
            let ran = judged(pairs);
            let guests = ran.guests.iter().map(|g| g.verdict).collect::<Vec<_>>();
            (ran.verdict, guests, ran.why)
        };
        let (total, guests, why) = verdict(&same(150.0, 50.0, 500.0));
        assert_eq!((total, guests), ("missed", vec!["met", "met"]), "{why}");
        assert_eq!(why, "geometric mean 1.22 (1.3 asked)");
        let (total, guests, why) = verdict(&same(300.0, 56.0, 489.0));
        assert_eq!((total, guests), ("missed", vec!["missed", "missed"]));
        assert!(why.ends_with("worse with everything on: database, build"), "{why}");
        assert_eq!(verdict(&same(300.0, 55.0, 490.0)).0, "met");
    }

    #[test]
    fn what_says_nothing_is_void() {
        let good = same(300.0, 50.0, 500.0);
        let mut one = good.clone();
        one[0][1].late = 11;
        let ran = judged(&one);
        assert_eq!((ran.verdict, ran.void_pairs, ran.counted_pairs), ("met", 1, 2));
        one[1][0].host = HostShares { daemons: 0.0, busy: 1.0, ..one[1][0].host.clone() };
        let ran = judged(&one);
        assert_eq!((ran.verdict, ran.void_pairs, ran.counted_pairs), ("void", 2, 3));
        assert!(ran.guests.iter().all(|g| g.verdict == "void"));
        assert!(ran.why.contains("on: 1.1 % of the commands later"), "{}", ran.why);
        assert!(ran.why.contains("off: others had 6.0 % of the CPU"), "{}", ran.why);
        let mut busy = good;
        for [_, on] in &mut busy {
            on.guests[0].load.as_mut().expect("a database").busy = 0.48;
        }
        let ran = judged(&busy);
        let guests: Vec<&str> = ran.guests.iter().map(|g| g.verdict).collect();
        assert_eq!((ran.verdict, guests), ("void", vec!["void", "met"]), "{}", ran.why);
    }
}
