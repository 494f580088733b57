//! What the rounds of windows come to, which of them say nothing, and whether the rest is
//! enough.

use crate::show::too_late;
use crate::spread::Spread;
use seekway_live::experiment::{
    HostShares, TogetherFigures, TogetherGuest, TogetherLoad, TogetherOptions, TogetherRound,
    TogetherWindow,
};
use serde::Serialize;

/// Each guest's progress with everything on, at least.
pub(super) const PROGRESS: f64 = 0.95;
/// What each guest's compute tasks lose of their work, on over off, at most.
pub(super) const COMPUTE: f64 = 0.10;
/// How often a process that does I/O is moved for each slice of a vCPU of its guest, at most.
pub(super) const MOVES: f64 = 1.1;
/// A round is void when others on this machine had more of the processors. Compute tasks keep these
/// busy in every window, so that being busy tells nothing.
pub(super) const OTHERS: f64 = 0.05;
/// A guest's row is void when each process of its application is busier than this part of
/// what it gets beside the compute tasks: the emulation of its instructions is what limits it.
pub(super) const PROCESS: f64 = 0.95;
/// vCPUs of a guest, each with a compute task.
const VCPUS: f64 = 2.0;

/// As JSON. The keys stay.
#[derive(Serialize)]
pub(super) struct Ran {
    /// What the whole is worth.
    pub sentence: String,
    pub scenes: Vec<SceneRan>,
}

/// A disk that the guests share. Figures are over the rounds that are not void; over all of
/// them where too few are left.
#[derive(Serialize)]
pub(super) struct SceneRan {
    pub scene: &'static str,
    /// As `serve --emulate` takes them.
    pub device: String,
    pub private_device: String,
    pub guests: Vec<GuestRan>,
    pub off: SideRan,
    pub on: SideRan,
    /// Each guest alone, together.
    pub alone: SideRan,
    /// Of the guests' progress.
    pub progress_off: f64,
    pub progress_on: f64,
    /// Of the guests' ratios of throughput, on over off.
    pub geometric_mean: f64,
    /// The guest with the least progress with everything on.
    pub worst: &'static str,
    pub rounds: usize,
    pub void_rounds: usize,
    /// Those that the figures are of.
    pub counted_rounds: usize,
    /// `met`, `missed`, or `void`.
    pub verdict: &'static str,
    /// The reason of the verdict.
    pub why: String,
    /// For each time that the emulation lost a guest and a round was made again: why.
    pub lost: Vec<String>,
    /// The windows of all rounds, void ones included.
    pub windows: Vec<TogetherRound>,
    #[serde(skip)]
    pub options: TogetherOptions,
}

#[derive(Serialize)]
pub(super) struct GuestRan {
    pub guest: &'static str,
    /// What `off`, `on` and `alone` count, a second.
    pub unit: &'static str,
    pub off: Spread,
    pub on: Spread,
    /// On its private disk.
    pub alone: Spread,
    /// Off and on over alone, round by round.
    pub progress_off: Spread,
    pub progress_on: Spread,
    /// On over off, round by round.
    pub ratio: Spread,
    /// Processor time of both agents, in vCPUs, as the guest counts it.
    pub agents_vcpus: Spread,
    /// Nothing for compute tasks.
    pub p99_off_ms: Option<Spread>,
    pub p99_on_ms: Option<Spread>,
    pub p99_alone_ms: Option<Spread>,
    /// The p99 with everything on, over that on the private disk.
    pub p99_over_private: Option<Spread>,
    /// Processor time of each process of the application, 0 to 1, as the guest counts it.
    pub process_off: Option<Spread>,
    pub process_on: Option<Spread>,
    /// Of the compute tasks' work, what was lost, on over off.
    pub compute_lost: Spread,
    /// Of what the guest read, what the cache had, 0 to 1.
    pub hit: Option<Spread>,
    /// Of what was prefetched for it, what it did not use, 0 to 1.
    pub prefetch_cost: Option<Spread>,
    pub tags: usize,
    /// Moves of each process that does I/O, for each slice of a vCPU of the guest.
    pub moves_a_slice: Option<Spread>,
    pub verdict: &'static str,
    pub why: String,
}

/// The host with one side. Shares of the processors, 0 to 1.
#[derive(Serialize)]
pub(super) struct SideRan {
    pub vcpus: Spread,
    /// QEMU's threads other than vCPUs, of all guests together.
    pub qemu: Spread,
    pub daemons: Spread,
    pub others: Spread,
    pub busy: Spread,
    /// Of the emulated device's commands, 0 to 1.
    pub late: Spread,
    /// Commands of the emulated device.
    pub commands: Spread,
    /// What all applications read and wrote, in MiB a second.
    pub mib_s: Spread,
}

impl Ran {
    /// Of at least one scene.
    pub(super) fn new(scenes: Vec<SceneRan>) -> Ran {
        let least = |of: fn(&GuestRan) -> Spread| {
            let guests = scenes.iter().flat_map(|scene| &scene.guests);
            guests.map(|guest| of(guest).median).fold(f64::INFINITY, f64::min)
        };
        let (on, off) = (least(|guest| guest.progress_on), least(|guest| guest.progress_off));
        let sentence = format!(
            "Every guest has at least {on:.2} of what a disk of its own would give it; with \
             everything off, at least {off:.2}."
        );
        let voids = scenes.iter().filter(|scene| scene.verdict == "void").map(|scene| scene.scene);
        let voids = voids.collect::<Vec<_>>().join(", ");
        let sentence = match voids.as_str() {
            "" => sentence,
            voids => format!("{sentence} Void, and no result: {voids}."),
        };
        Ran { sentence, scenes }
    }
}

impl SceneRan {
    /// Of at least one round; each has the guests of `options`.
    pub(super) fn new(
        scene: &'static str,
        options: &TogetherOptions,
        figures: &TogetherFigures,
    ) -> SceneRan {
        let rounds = &figures.rounds[..];
        let voids: Vec<String> = rounds.iter().filter_map(void).collect();
        // One good round among many is luck.
        let is_void = voids.len() * 2 >= rounds.len();
        let good = |round: &&TogetherRound| is_void || void(round).is_none();
        let good: Vec<&TogetherRound> = rounds.iter().filter(good).collect();
        let loads = options.loads.iter().enumerate();
        let guests: Vec<GuestRan> =
            loads.map(|(at, load)| GuestRan::new(*load, at, &good)).collect();
        let mean = |of: fn(&GuestRan) -> Spread| {
            let logs: f64 = guests.iter().map(|guest| of(guest).median.ln()).sum();
            (logs / guests.len() as f64).exp()
        };
        let progress = |guest: &GuestRan| guest.progress_on.median;
        let least = guests.iter().min_by(|a, b| progress(a).total_cmp(&progress(b)));
        let [off, _, private] = &options.sides;
        let mut ran = SceneRan {
            scene,
            device: off.device.clone(),
            private_device: private.device.clone(),
            worst: least.map_or("", |guest| guest.guest),
            progress_off: mean(|guest| guest.progress_off),
            progress_on: mean(|guest| guest.progress_on),
            geometric_mean: mean(|guest| guest.ratio),
            off: SideRan::new(&good, |round| std::slice::from_ref(&round.off)),
            on: SideRan::new(&good, |round| std::slice::from_ref(&round.on)),
            alone: SideRan::new(&good, |round| &round.alone),
            guests,
            rounds: rounds.len(),
            void_rounds: voids.len(),
            counted_rounds: good.len(),
            verdict: "void",
            why: format!("{} of {} rounds: {}", voids.len(), rounds.len(), voids.join("; ")),
            lost: figures.lost.clone(),
            windows: rounds.to_vec(),
            options: options.clone(),
        };
        if is_void {
            for guest in &mut ran.guests {
                (guest.verdict, guest.why) = ("void", "too few good rounds".into());
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
        let (on, off) = (self.progress_on, self.progress_off);
        let mean = format!("geometric mean of progress {on:.2}, {off:.2} with everything off");
        (self.verdict, self.why) = if !missed.is_empty() {
            ("missed", format!("{mean}; missed by {}", missed.join(", ")))
        } else if !voids.is_empty() {
            ("void", format!("{mean}, with void rows: {}", voids.join(", ")))
        } else {
            (if on > off { "met" } else { "missed" }, mean)
        };
    }
}

/// A guest's figures in each window of its own.
const OFF: usize = 0;
const ON: usize = 1;
const ALONE: usize = 2;

impl GuestRan {
    fn new(load: TogetherLoad, at: usize, rounds: &[&TogetherRound]) -> GuestRan {
        type Figure<'a> = &'a dyn Fn(&TogetherGuest) -> Option<f64>;
        let guest = |round: &TogetherRound, side: usize, of: Figure<'_>| {
            let windows = [&round.off, &round.on, &round.alone[at]];
            of(&windows[side].guests[at])
        };
        let side = |side: usize, of: Figure<'_>| {
            Spread::of(rounds.iter().filter_map(|round| guest(round, side, of)))
        };
        let ratio = |over: usize, base: usize, of: Figure<'_>| {
            let of =
                |round: &&TogetherRound| Some(guest(round, over, of)? / guest(round, base, of)?);
            Spread::of(rounds.iter().filter_map(of))
        };
        let throughput = |guest: &TogetherGuest| Some(throughput(load, guest));
        let p99 = |guest: &TogetherGuest| guest.load.map(|l| l.p99_ms);
        let process = |guest: &TogetherGuest| guest.load.map(|l| l.busy);
        let hit = |guest: &TogetherGuest| {
            let usage = guest.usage.as_ref().filter(|u| u.read_bytes > 0)?;
            Some((usage.hit_bytes + usage.late_bytes) as f64 / usage.read_bytes as f64)
        };
        let agents = |TogetherGuest { compute, .. }: &TogetherGuest| {
            Some((compute.tag_cpu + compute.migrate_cpu) / compute.seconds)
        };
        let moves = |round: &&TogetherRound| {
            let moves = round.on.guests[at].agent.as_ref()?.moves as f64;
            let processes = f64::from(load.processes());
            (processes > 0.0).then(|| moves / (processes * round.on.slices))
        };
        let lost = ratio(ON, OFF, &|guest| Some(guest.compute.mib_s())).unwrap_or_default();
        let mut row = GuestRan {
            guest: load.name(),
            unit: unit(load),
            off: side(OFF, &throughput).unwrap_or_default(),
            on: side(ON, &throughput).unwrap_or_default(),
            alone: side(ALONE, &throughput).unwrap_or_default(),
            progress_off: ratio(OFF, ALONE, &throughput).unwrap_or_default(),
            progress_on: ratio(ON, ALONE, &throughput).unwrap_or_default(),
            ratio: ratio(ON, OFF, &throughput).unwrap_or_default(),
            p99_off_ms: side(OFF, &p99),
            p99_on_ms: side(ON, &p99),
            p99_alone_ms: side(ALONE, &p99),
            p99_over_private: ratio(ON, ALONE, &p99),
            process_off: side(OFF, &process),
            process_on: side(ON, &process),
            compute_lost: Spread {
                median: 1.0 - lost.median,
                least: 1.0 - lost.largest,
                largest: 1.0 - lost.least,
            },
            agents_vcpus: side(ON, &agents).unwrap_or_default(),
            hit: side(ON, &hit),
            prefetch_cost: side(ON, &|guest| guest.usage.as_ref().map(|u| u.cost)),
            tags: rounds.iter().map(|round| round.on.guests[at].tags).max().unwrap_or(0),
            moves_a_slice: Spread::of(rounds.iter().filter_map(moves)),
            verdict: "",
            why: String::new(),
        };
        (row.verdict, row.why) = row.judge(load);
        row
    }

    fn judge(&self, load: TogetherLoad) -> (&'static str, String) {
        let busiest = self.process_off.iter().chain(&self.process_on).map(|s| s.median);
        let busiest = busiest.fold(0.0, f64::max);
        if busiest > PROCESS * process_max(load) {
            let (percent, of) = (100.0 * busiest, 100.0 * process_max(load));
            let why = format!("its processes are busy for {percent:.0} % each, of {of:.0} %");
            return ("void", why);
        }
        let mut missed = Vec::new();
        let progress = self.progress_on.median;
        if progress < PROGRESS {
            missed.push(format!("progress {progress:.2} ({PROGRESS} asked)"));
        }
        if self.compute_lost.median > COMPUTE {
            let percent = 100.0 * self.compute_lost.median;
            missed.push(format!(
                "{percent:.0} % of its compute lost ({:.0} % at most)",
                100.0 * COMPUTE
            ));
        }
        if let Some(moves) = self.moves_a_slice.filter(|moves| moves.median > MOVES) {
            missed.push(format!("{:.2} moves a slice ({MOVES} at most)", moves.median));
        }
        (if missed.is_empty() { "met" } else { "missed" }, missed.join(", "))
    }
}

/// What a process of an application gets of a vCPU if it computes all the time, beside a compute
/// task on each vCPU.
pub(super) fn process_max(load: TogetherLoad) -> f64 {
    (VCPUS / (f64::from(load.processes()) + VCPUS)).min(0.5)
}

impl SideRan {
    fn new(rounds: &[&TogetherRound], windows: fn(&TogetherRound) -> &[TogetherWindow]) -> SideRan {
        let over = |of: &dyn Fn(&[TogetherWindow]) -> f64| {
            Spread::of(rounds.iter().map(|round| of(windows(round)))).unwrap_or_default()
        };
        let sum = |of: fn(&TogetherWindow) -> f64| over(&|all| all.iter().map(of).sum());
        let mean = |of: fn(&TogetherWindow) -> f64| {
            over(&|all| all.iter().map(of).sum::<f64>() / all.len() as f64)
        };
        SideRan {
            vcpus: mean(|w| w.host.vcpus.iter().sum()),
            qemu: mean(|w| w.host.qemu.iter().sum()),
            daemons: mean(|w| w.host.daemons),
            others: mean(|w| HostShares::others(&w.host)),
            busy: mean(|w| w.host.busy),
            late: over(&|all| all.iter().map(late).fold(0.0, f64::max)),
            commands: sum(|w| w.commands as f64),
            mib_s: sum(|w| w.guests.iter().filter_map(|g| g.load).map(|l| l.mib_s).sum()),
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

/// Why a round says nothing, if so.
fn void(round: &TogetherRound) -> Option<String> {
    let of = |(side, window): (&str, &TogetherWindow)| {
        if let Some(why) = too_late(late(window)) {
            return Some(format!("{side}: {why}"));
        }
        let others = window.host.others();
        (others > OTHERS).then(|| format!("{side}: others had {:.1} % of the CPU", 100.0 * others))
    };
    let together = [("off", &round.off), ("on", &round.on)].into_iter();
    let alone = round.alone.iter().map(|window| ("alone", window));
    together.chain(alone).find_map(of)
}

#[cfg(test)]
mod tests;
