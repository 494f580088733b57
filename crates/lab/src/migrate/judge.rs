//! What the pairs of windows come to, and whether that is enough.

use crate::spread::Spread;
use seekway_live::experiment::{AgentReport, Host, MigrateFigures, MigrateWindow, VCPUS};
use serde::Serialize;

/// Of the gain that the recorded schedule allows, at least this with two guests.
pub(super) const OF_ALLOWED: f64 = 0.55;
/// The gain in I/O throughput, at least this: never below what there is without the agent.
pub(super) const GAIN: f64 = 1.0;
/// Of the compute tasks' work, lost at most this in emulated guests.
pub(super) const LOSS: f64 = 0.10;
/// Wake-ups of a guest's agent, a second, at most this.
pub(super) const WAKEUPS: f64 = 130.0;

/// A row, as JSON. The keys stay. Shares are 0 to 1.
#[derive(Serialize)]
pub(super) struct Ran {
    pub guests: usize,
    pub readers: u32,
    /// What scheduled the vCPUs: `turns` or `kernel`.
    pub host: &'static str,
    /// The slice that the kernel took for each vCPU; 0 when it takes none.
    pub kernel_slice_ms: f64,
    pub without: Windows,
    pub with: Windows,
    /// I/O throughput with the agent over that without.
    pub gain: Spread,
    /// What the schedule allows: the share of the time with any vCPU of the guest running
    /// over that in which the reader's ran without the agent.
    pub allowed: Spread,
    /// The gain as a share of what is allowed.
    pub of_allowed: Spread,
    /// Of the compute tasks' work, what was lost with the agent.
    pub loss: Spread,
    /// Of it, the readers' own additional processor time in the guest.
    pub loss_readers: Spread,
    /// Of it, the agent's.
    pub loss_agent: Spread,
    /// Of it, what QEMU and the daemon took from the vCPUs.
    pub loss_host: Spread,
    /// Processor time of the agent, in vCPUs: 0.01 is one hundredth of one.
    pub agent_vcpus: Spread,
    /// Wake-ups of all threads of the agent in one guest, a second.
    pub wakeups_s: Spread,
    pub pairs: Vec<PairRan>,
    /// `measured`, `met` or `missed`.
    pub verdict: &'static str,
    pub why: String,
}

/// All windows without, or with, the agent: over all guests.
#[derive(Serialize)]
pub(super) struct Windows {
    pub iops: Spread,
    pub response_mean_ms: Spread,
    pub response_p99_ms: Spread,
    pub work_mib_s: Spread,
    pub any_runs: Spread,
    pub reader_runs: Spread,
    pub moves_s: Spread,
    pub moves_least_s: Spread,
    pub moves_over_least: Spread,
    pub slice_p10_ms: Spread,
    pub slice_median_ms: Spread,
    pub slice_p90_ms: Spread,
    pub served_processors: Spread,
    pub served_wait_p99_ms: Spread,
}

#[derive(Clone, Serialize)]
pub(super) struct PairRan {
    pub without: WindowRan,
    pub with: WindowRan,
}

/// A window: sums over the guests of rates and processors, means of shares and times.
#[derive(Clone, Serialize)]
pub(super) struct WindowRan {
    pub iops: f64,
    pub response_mean_ms: f64,
    /// The worst of the guests'.
    pub response_p99_ms: f64,
    pub work_mib_s: f64,
    /// Of the guests' vCPUs, as the guests count it.
    pub readers_share: f64,
    pub agent_share: f64,
    pub any_runs: f64,
    pub reader_runs: f64,
    pub moves_s: f64,
    /// What a clairvoyant needs to be on a vCPU that runs whenever one does.
    pub moves_least_s: f64,
    /// Wake-ups of the agent in one guest, the mean of the guests'.
    pub wakeups_s: f64,
    /// Processors that the vCPUs had.
    pub processors: f64,
    /// Processors that QEMU's first threads and the daemon had.
    pub served_processors: f64,
    pub served_wait_p99_ms: f64,
    pub slice_p10_ms: f64,
    pub slice_median_ms: f64,
    pub slice_p90_ms: f64,
    /// What the agents say of themselves; empty without.
    pub agents: Vec<AgentReport>,
}

impl WindowRan {
    fn new(window: &MigrateWindow) -> WindowRan {
        let guests = &window.guests;
        let sum = |figure: fn(&seekway_live::experiment::MigrateGuest) -> f64| -> f64 {
            guests.iter().map(figure).sum()
        };
        let count = guests.len() as f64;
        let vcpus = f64::from(VCPUS);
        let iops = sum(|g| g.iops);
        // Each guest's mean counts as often as it has reads.
        let waited = sum(|g| g.iops * g.response.mean_ms);
        let [slice_p10_ms, slice_median_ms, slice_p90_ms] = window.schedule.slices_ms;
        WindowRan {
            iops,
            response_mean_ms: waited / iops,
            response_p99_ms: guests.iter().map(|g| g.response.p99_ms).fold(0.0, f64::max),
            work_mib_s: sum(|g| g.counts.work_mib / g.counts.seconds),
            readers_share: sum(|g| g.counts.readers_cpu / g.counts.seconds) / count / vcpus,
            agent_share: sum(|g| g.counts.agent_cpu / g.counts.seconds) / count / vcpus,
            any_runs: sum(|g| g.schedule.any) / count,
            reader_runs: sum(|g| g.schedule.reader) / count,
            moves_s: sum(|g| g.schedule.moves_s) / count,
            moves_least_s: sum(|g| g.schedule.moves_least_s) / count,
            wakeups_s: sum(|g| g.wakeups_s) / count,
            processors: sum(|g| g.schedule.processors),
            served_processors: window.schedule.served,
            served_wait_p99_ms: window.schedule.waits_ms[1],
            slice_p10_ms,
            slice_median_ms,
            slice_p90_ms,
            agents: guests.iter().filter_map(|g| g.agent.clone()).collect(),
        }
    }
}

impl WindowRan {
    /// The paper's P: moves over the least, one for each slice that the reader ran.
    fn moves_over_least(&self) -> f64 {
        self.moves_s * self.slice_median_ms / 1e3 / self.reader_runs
    }
}

impl PairRan {
    fn gain(&self) -> f64 {
        self.with.iops / self.without.iops
    }

    fn allowed(&self) -> f64 {
        self.with.any_runs / self.without.reader_runs
    }

    fn loss(&self) -> f64 {
        1.0 - self.with.work_mib_s / self.without.work_mib_s
    }

    /// A share of the guests' vCPUs as one of what the compute tasks had of them.
    fn of_compute(&self, share: f64) -> f64 {
        share / (1.0 - self.without.readers_share)
    }
}

impl Ran {
    pub(super) fn new(figures: &MigrateFigures) -> Ran {
        let run = &figures.run;
        let pairs: Vec<PairRan> = figures
            .pairs
            .iter()
            .map(|[without, with]| PairRan {
                without: WindowRan::new(without),
                with: WindowRan::new(with),
            })
            .collect();
        let over = |figure: &dyn Fn(&PairRan) -> f64| of_pairs(pairs.iter().map(figure));
        let vcpus = f64::from(VCPUS);
        let mut ran = Ran {
            guests: run.guests,
            readers: run.readers,
            host: match run.host {
                Host::Turns => "turns",
                Host::Kernel => "kernel",
            },
            kernel_slice_ms: figures.kernel_slice.as_secs_f64() * 1e3,
            without: Windows::new(&pairs, |pair| &pair.without),
            with: Windows::new(&pairs, |pair| &pair.with),
            gain: over(&PairRan::gain),
            allowed: over(&PairRan::allowed),
            of_allowed: over(&|pair| pair.gain() / pair.allowed()),
            loss: over(&PairRan::loss),
            loss_readers: over(&|pair| {
                pair.of_compute(pair.with.readers_share - pair.without.readers_share)
            }),
            loss_agent: over(&|pair| pair.of_compute(pair.with.agent_share)),
            loss_host: over(&|pair| 1.0 - pair.with.processors / pair.without.processors),
            agent_vcpus: over(&|pair| pair.with.agent_share * vcpus),
            wakeups_s: over(&|pair| pair.with.wakeups_s),
            pairs: pairs.clone(),
            verdict: "measured",
            why: String::new(),
        };
        ran.judge();
        ran
    }

    /// The kernel's own slices are shown, not judged: they are too short to be predicted.
    fn judge(&mut self) {
        if self.host == "kernel" {
            self.why = format!("median slice {:.1} ms", self.without.slice_median_ms.median);
            return;
        }
        let (gain, wakeups) = (self.gain.median, self.wakeups_s.median);
        let mut asked = vec![
            (gain >= GAIN, format!("gain {gain:.2} ({GAIN:.1} asked)")),
            (wakeups <= WAKEUPS, format!("{wakeups:.0} wake-ups a second ({WAKEUPS:.0} at most)")),
            (self.loss.median <= LOSS, {
                format!("loss {:.1} % ({:.0} % at most)", 100.0 * self.loss.median, 100.0 * LOSS)
            }),
        ];
        if self.guests == 2 {
            let share = self.of_allowed.median;
            let why = format!("{share:.2} of the allowed gain ({OF_ALLOWED:.2} asked)");
            asked.insert(0, (share >= OF_ALLOWED, why));
        }
        let met = asked.iter().all(|(met, _)| *met);
        self.verdict = if met { "met" } else { "missed" };
        let shown = asked.into_iter().filter(|(good, _)| met || !good).map(|(_, why)| why);
        self.why = shown.collect::<Vec<_>>().join(", ");
    }
}

impl Windows {
    fn new(pairs: &[PairRan], side: fn(&PairRan) -> &WindowRan) -> Windows {
        let over =
            |figure: fn(&WindowRan) -> f64| of_pairs(pairs.iter().map(|pair| figure(side(pair))));
        Windows {
            iops: over(|w| w.iops),
            response_mean_ms: over(|w| w.response_mean_ms),
            response_p99_ms: over(|w| w.response_p99_ms),
            work_mib_s: over(|w| w.work_mib_s),
            any_runs: over(|w| w.any_runs),
            reader_runs: over(|w| w.reader_runs),
            moves_s: over(|w| w.moves_s),
            moves_least_s: over(|w| w.moves_least_s),
            moves_over_least: over(WindowRan::moves_over_least),
            slice_p10_ms: over(|w| w.slice_p10_ms),
            slice_median_ms: over(|w| w.slice_median_ms),
            slice_p90_ms: over(|w| w.slice_p90_ms),
            served_processors: over(|w| w.served_processors),
            served_wait_p99_ms: over(|w| w.served_wait_p99_ms),
        }
    }
}

/// A figure over the pairs, of which there is at least one.
fn of_pairs(values: impl Iterator<Item = f64>) -> Spread {
    Spread::of(values).expect("a run has at least one pair of windows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_live::experiment::{
        Counts, GuestSchedule, MigrateGuest, MigrateRun, Response, Stripe, WindowSchedule,
    };
    use std::time::Duration;

    fn window(
        iops: f64,
        work_mib: f64,
        reader: f64,
        readers_cpu: f64,
        agent_cpu: f64,
    ) -> MigrateWindow {
        let guest = MigrateGuest {
            iops,
            response: Response { mean_ms: 1e3 / iops, p99_ms: 36.0 },
            counts: Counts { seconds: 4.0, work_mib, readers_cpu, agent_cpu },
            schedule: GuestSchedule {
                any: 0.75,
                reader,
                moves_s: 60.0,
                moves_least_s: 70.0,
                processors: 1.0,
            },
            wakeups_s: if agent_cpu > 0.0 { 120.0 } else { 0.0 },
            agent: None,
        };
        let schedule = WindowSchedule { slices_ms: [1.0, 10.0, 20.0], ..WindowSchedule::default() };
        MigrateWindow { guests: vec![guest.clone(), guest], schedule }
    }

    fn figures(host: Host, with: &[MigrateWindow]) -> MigrateFigures {
        let without = window(100.0, 400.0, 0.25, 0.8, 0.0);
        let pairs = with.iter().map(|with| [without.clone(), with.clone()]);
        MigrateFigures {
            run: MigrateRun { guests: 2, readers: 1, host },
            pairs: pairs.collect(),
            kernel_slice: Duration::from_millis(11),
            stripes: [Stripe::default(), Stripe::default()],
        }
    }

    #[test]
    fn the_gain_is_set_beside_what_is_allowed() {
        let with = [240.0, 270.0, 120.0].map(|iops| window(iops, 388.0, 0.7, 1.2, 0.16));
        let ran = Ran::new(&figures(Host::Turns, &with));
        assert_eq!((ran.gain.median, ran.gain.least, ran.gain.largest), (2.4, 1.2, 2.7));
        assert_eq!((ran.allowed.median, ran.verdict), (3.0, "met"));
        assert!((ran.of_allowed.median - 0.8).abs() < 1e-9);
        assert!((ran.loss.median - 0.03).abs() < 1e-9);
        // 0.1 of 16 vCPU-seconds more, of the 15.2 that the compute tasks had.
        assert!((ran.loss_readers.median - 0.4 / 15.2).abs() < 1e-9, "{:?}", ran.loss_readers);
        assert!((ran.loss_agent.median - 0.16 / 15.2).abs() < 1e-9);
        assert!((ran.agent_vcpus.median - 0.04).abs() < 1e-9);
        assert_eq!((ran.without.iops.median, ran.without.work_mib_s.median), (200.0, 200.0));
        assert_eq!(ran.without.response_mean_ms.median, 10.0);
        // 60 moves of 70 slices of 10 ms a second.
        assert!((ran.with.moves_over_least.median - 60.0 / 70.0).abs() < 1e-9);
    }

    #[test]
    fn each_miss_is_said() {
        let verdict = |host, iops, work| {
            let ran = Ran::new(&figures(host, &[window(iops, work, 0.7, 1.2, 0.1)]));
            (ran.verdict, ran.why)
        };
        assert_eq!(verdict(Host::Turns, 160.0, 400.0).0, "missed", "1.6 of 3.0");
        assert_eq!(verdict(Host::Turns, 170.0, 400.0).0, "met", "1.7 of 3.0");
        let (missed, why) = verdict(Host::Turns, 300.0, 350.0);
        assert!(missed == "missed" && why == "loss 12.5 % (10 % at most)", "{why}");
        let (missed, why) = verdict(Host::Turns, 90.0, 350.0);
        assert_eq!((missed, why.matches(", ").count()), ("missed", 2), "{why}");
        let mut often = window(300.0, 400.0, 0.7, 1.2, 0.1);
        often.guests.iter_mut().for_each(|guest| guest.wakeups_s = 131.0);
        let ran = Ran::new(&figures(Host::Turns, &[often]));
        assert_eq!(ran.why, "131 wake-ups a second (130 at most)");
        assert_eq!(verdict(Host::Kernel, 100.0, 100.0).0, "measured");
    }
}
