//! Real guests as the load: each policy is put in charge of a running daemon in
//! turn, and its counters are read at the beginning and at the end of a window.
//!
//! The policy of before comes back, however it ends: when all is measured, on an
//! error, on SIGINT and SIGTERM.

use super::figures::{Figures, SECTORS_PER_MS, Side, Window};
use crate::args::{LivePredictArgs, PredictArgs};
use crate::json::{Operation, Operations, Response, mib};
use crate::{control, load, runs};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::units::Nanos;
use seekway_hostd::control::{Client, DeviceReport, DeviceResponses, Request, ResponsesReport};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A shorter window says nothing.
const WINDOW_MIN: Nanos = Nanos::from_millis(100);
const WINDOW_MAX: Nanos = Nanos::from_secs(86_400);
/// Interval at which a wait looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// A larger share of late commands is worth a warning.
const LATE_MAX: f64 = 0.01;
/// So is a larger share of service time that the host has added.
const OVERSLEPT_MAX: f64 = 0.03;

/// Measures a daemon's guests under each policy.
pub fn measure(args: &PredictArgs, socket: &Path, policies: &[String]) -> Result<Side> {
    let plan = Plan::new(&args.live, policies)?;
    let stop = Stop::watch()?;
    let daemon = Daemon::find(socket, args.live.device.as_deref())?;
    let before = daemon.device()?;
    let made = plan.run(&daemon, &stop);
    // Before anything is said of the result. What somebody else has put in charge
    // meanwhile stays.
    let restore = || {
        let now = daemon.device()?.policy;
        if !policies.contains(&now) && now != before.policy {
            bail!("somebody else has put {now} in charge, which is left so");
        }
        daemon.set_policy(&before.policy)
    };
    let restored = restore().with_context(|| {
        format!(
            "the policy of before is not back: `seekway ctl --socket {} policy {} --device {}`",
            socket.display(),
            before.policy,
            daemon.name
        )
    });
    let runs = match (made, restored) {
        (Ok(runs), Ok(())) => runs,
        (Err(e), Ok(())) => return Err(e.context(format!("{} is back in charge", before.policy))),
        (Ok(_), Err(e)) => return Err(e),
        (Err(e), Err(worse)) => return Err(anyhow!("{e:#}; and {worse:#}")),
    };
    let what = match &before.emulated {
        Some(emulated) => emulated.profile.clone(),
        None => daemon.name.clone(),
    };
    let warnings = warnings(&runs, before.emulated.is_some());
    let notes = notes(&plan, before.emulated.is_some());
    Ok(Side { what, runs, warnings, notes })
}

/// Which policies, in which order, for how long.
struct Plan<'a> {
    policies: &'a [String],
    rounds: u64,
    settle: Duration,
    window: Duration,
}

impl<'a> Plan<'a> {
    fn new(args: &LivePredictArgs, policies: &'a [String]) -> Result<Plan<'a>> {
        let window = load::duration("--window", &args.window)?;
        if !(WINDOW_MIN..=WINDOW_MAX).contains(&window) {
            bail!("--window {}: from 100ms to 24h", args.window);
        }
        let settle = load::duration("--settle", &args.settle)?;
        if settle > WINDOW_MAX {
            bail!("--settle {}: at most 24h", args.settle);
        }
        if !(1..=10_000).contains(&args.rounds) {
            bail!("--rounds {}: from 1 to 10000", args.rounds);
        }
        let std = |span: Nanos| Duration::from_nanos(span.get());
        Ok(Plan { policies, rounds: args.rounds, settle: std(settle), window: std(window) })
    }

    fn run(&self, daemon: &Daemon<'_>, stop: &Stop) -> Result<Vec<Figures>> {
        let bar = runs::runs(self.rounds * self.policies.len() as u64, "windows");
        let mut runs = Vec::new();
        for round in 1..=self.rounds {
            for policy in self.policies {
                daemon.set_policy(policy)?;
                stop.sleep(self.settle)?;
                let begin = daemon.snapshot()?;
                stop.sleep(self.window)?;
                let end = daemon.snapshot()?;
                runs.push(figures(policy, round, &begin, &end)?);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        // Policy by policy, as every side has them.
        let place = |run: &Figures| self.policies.iter().position(|p| *p == run.policy);
        runs.sort_by_key(place);
        Ok(runs)
    }
}

/// Has the user had enough?
struct Stop(Arc<AtomicBool>);

impl Stop {
    /// The first signal ends in good order, a second one at once.
    fn watch() -> Result<Stop> {
        use control::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        control::first_noted(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]).map(Stop)
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            if self.0.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

impl Drop for Stop {
    /// Nothing is left to be put back: the next signal ends the program.
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One device of a daemon.
struct Daemon<'a> {
    socket: &'a Path,
    name: String,
}

/// State of a device at one time.
struct Snapshot {
    device: DeviceReport,
    responses: DeviceResponses,
}

impl<'a> Daemon<'a> {
    fn find(socket: &'a Path, device: Option<&str>) -> Result<Daemon<'a>> {
        let report = control::status(&mut Client::connect(socket)?)?;
        let names: Vec<String> = report.devices.into_iter().map(|d| d.name).collect();
        let name = match (device, &names[..]) {
            (Some(name), _) if names.iter().any(|n| n == name) => name.to_string(),
            (Some(name), _) => {
                bail!("--device {name}: the daemon has no such device, but {}", names.join(", "))
            }
            (None, [only]) => only.clone(),
            (None, []) => bail!("--live {}: the daemon serves no disk", socket.display()),
            (None, _) => bail!(
                "--live {}: the daemon has {}; say which with --device",
                socket.display(),
                names.join(", ")
            ),
        };
        Ok(Daemon { socket, name })
    }

    fn device(&self) -> Result<DeviceReport> {
        let mut devices = control::status(&mut Client::connect(self.socket)?)?.devices.into_iter();
        let found = devices.find(|d| d.name == self.name);
        found.with_context(|| format!("the daemon no longer has the device {}", self.name))
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let device = self.device()?;
        let answer = Client::connect(self.socket)?.ask(&Request::Responses {})?;
        let report: ResponsesReport = control::read(answer)?;
        let responses = report.devices.into_iter().find(|d| d.name == self.name);
        Ok(Snapshot { device, responses: responses.context("the device has gone")? })
    }

    fn set_policy(&self, policy: &str) -> Result<()> {
        let request = Request::Policy { policy: policy.into(), device: Some(self.name.clone()) };
        Client::connect(self.socket)?.ask(&request)?;
        Ok(())
    }
}

/// Figures of a window, in the model's time where a device is emulated.
fn figures(policy: &str, round: u64, begin: &Snapshot, end: &Snapshot) -> Result<Figures> {
    let (was, is) = (&begin.device, &end.device);
    let window_s = is.time_s - was.time_s;
    if window_s.is_nan() || window_s <= 0.0 {
        bail!("the daemon was started anew within a window");
    }
    if is.policy != policy {
        bail!("somebody else has put {} in charge meanwhile", is.policy);
    }
    let mut commands = is.served.commands.saturating_sub(was.served.commands);
    let mut service = is.served.service_ms - was.served.service_ms;
    let mut from_dispatch =
        is.served.service_from_dispatch_ms - was.served.service_from_dispatch_ms;
    let (mut k, mut k_changes, mut late, mut overslept) = (1.0, 0, 0, 0.0);
    if let (Some(was), Some(now)) = (&was.emulated, &is.emulated) {
        let model_s = now.model_time_s - was.model_time_s;
        k = if model_s > 0.0 { window_s / model_s } else { now.k };
        // Equal marks: k as it was at both ends and between.
        let within = |at: f64| at > begin.device.time_s && at <= is.time_s;
        k_changes = now.changes.iter().filter(|(at, ..)| within(*at)).count();
        if k_changes == 0 {
            k = now.k; // without what the clock's steps round
        }
        commands = now.commands.saturating_sub(was.commands);
        service = now.model_service_ms - was.model_service_ms;
        from_dispatch = now.model_service_from_dispatch_ms - was.model_service_from_dispatch_ms;
        late = now.late.saturating_sub(was.late);
        overslept = now.overslept_ms - was.overslept_ms;
    }
    let per_command = |sum: f64| (commands > 0).then(|| sum / commands as f64);
    let (then, now) = (&begin.responses, &end.responses);
    let all = response(&then.counts, &now.counts, k);
    let [reads, writes] = [moved(was, is, "read")?, moved(was, is, "write")?];
    let model_s = window_s / k;
    let operations = Operations {
        reads: operation(reads, model_s, response(&then.reads, &now.reads, k)),
        writes: operation(writes, model_s, response(&then.writes, &now.writes, k)),
    };
    let requests = reads.requests + writes.requests;
    let mib_s = mib(reads.bytes + writes.bytes) / model_s;
    let some = |value: f64| (requests > 0).then_some(value);
    Ok(Figures {
        policy: policy.into(),
        service_ms: per_command(service),
        service_from_dispatch_ms: per_command(from_dispatch),
        response_ms: all.as_ref().map(|all| all.mean),
        response_p99_ms: all.as_ref().map(|all| all.p99),
        sectors_per_ms: some(mib_s * SECTORS_PER_MS),
        mib_s: some(mib_s),
        operations,
        window: Some(Window {
            round,
            window_s,
            requests,
            k,
            k_changes,
            late_share: late as f64 / commands.max(1) as f64,
            overslept_ms: overslept / commands.max(1) as f64,
        }),
        ..Figures::default()
    })
}

/// Requests that were done in a window.
#[derive(Clone, Copy)]
struct Moved {
    requests: u64,
    bytes: u64,
}

/// Reads, or writes, done in a window.
fn moved(was: &DeviceReport, is: &DeviceReport, op: &str) -> Result<Moved> {
    let mut moved = Moved { requests: 0, bytes: 0 };
    for disk in &is.disks {
        let before = was.disks.iter().find(|d| d.name == disk.name);
        let of = |d: &seekway_hostd::control::DiskReport| {
            d.ops.get(op).map_or((0, 0, 0), |o| (o.requests, o.bytes, o.errors))
        };
        let (now, then) = (of(disk), before.map_or((0, 0, 0), of));
        if now.2 > then.2 {
            bail!("{}: {} {op} requests failed in the window", disk.name, now.2 - then.2);
        }
        moved.requests += now.0.saturating_sub(then.0);
        moved.bytes += now.1.saturating_sub(then.1);
    }
    Ok(moved)
}

/// Figures of one operation in a window of `seconds`; `None` if nothing of it was done, and of a
/// daemon that does not tell reads and writes apart.
fn operation(moved: Moved, seconds: f64, response_ms: Option<Response>) -> Option<Operation> {
    Some(Operation {
        requests: moved.requests,
        iops: moved.requests as f64 / seconds,
        mib_s: mib(moved.bytes) / seconds,
        response_ms: response_ms?,
    })
}

/// Times, in ms and divided by `k`, of what came to the counts between two times; `None` if nothing
/// did.
fn response(was: &[(u64, u64)], is: &[(u64, u64)], k: f64) -> Option<Response> {
    let before: BTreeMap<u64, u64> = was.iter().copied().collect();
    let new = |&(ns, count): &(u64, u64)| {
        (ns, count.saturating_sub(before.get(&ns).copied().unwrap_or(0)))
    };
    let new: Vec<(u64, u64)> = is.iter().map(new).filter(|(_, count)| *count > 0).collect();
    let total: u64 = new.iter().map(|(_, count)| count).sum();
    let ms = |ns: f64| ns / 1e6 / k;
    let longest = new.last()?.0 as f64;
    let sum: f64 = new.iter().map(|(ns, count)| *ns as f64 * *count as f64).sum();
    // The least time that this share of all does not exceed.
    let at = |share: f64| {
        let wanted = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        let found = new.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        ms(found.map_or(longest, |(ns, _)| *ns as f64))
    };
    Some(Response {
        mean: ms(sum / total as f64),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: ms(longest),
    })
}

/// Warnings for the reader, before a figure is trusted.
fn warnings(runs: &[Figures], emulated: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let list = |chosen: &dyn Fn(&Window) -> bool| {
        let chosen = runs.iter().filter(|r| r.window.as_ref().is_some_and(chosen));
        let mut names: Vec<&str> = chosen.map(|r| r.policy.as_str()).collect();
        names.dedup();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if !emulated {
        warnings.push(
            "the daemon emulates no disk: these figures are measured on its own device, not \
             predicted for another (`seekway serve --emulate PROFILE`)"
                .into(),
        );
    }
    if let Some(policies) = list(&|w| w.requests == 0) {
        warnings.push(format!(
            "nothing was read or written in a window of {policies}: do the guests run their load?"
        ));
    }
    if let Some(policies) = list(&|w| w.k_changes > 0) {
        warnings.push(format!(
            "k changed within a window of {policies}: the guests' load was another before and \
             after; serve with a fixed k, as large as it has become"
        ));
    }
    if list(&|w| w.k != 1.0).is_some() {
        let ks = || runs.iter().filter_map(|r| Some(r.window.as_ref()?.k));
        let (low, high) = (ks().fold(f64::MAX, f64::min), ks().fold(0.0, f64::max));
        let k = if low == high { format!("{low}") } else { format!("{low:.3} to {high:.3}") };
        warnings.push(format!(
            "times are divided by k = {k}, throughput is multiplied by it. That is honest only \
             where the guests' think times and the scheduler's constants are scaled by k too: \
             they were not"
        ));
        if high / low > 1.001 {
            warnings.push("k differs from window to window: their figures do not compare".into());
        }
    }
    let overslept = |r: &Figures| {
        let window = r.window.as_ref()?;
        Some(window.overslept_ms / window.k / r.service_ms?)
    };
    let worst = runs.iter().filter_map(overslept).fold(0.0, f64::max);
    if worst > OVERSLEPT_MAX {
        warnings.push(format!(
            "up to {:.0} % of the service time is this machine's: its processors were too busy to \
             hand commands up when the modelled disk was done",
            100.0 * worst
        ));
    }
    if let Some(policies) = list(&|w| w.late_share > LATE_MAX) {
        warnings.push(format!(
            "more than 1 % of the commands came late from the real device under {policies}: the \
             prediction understates the modelled disk (a larger k helps)"
        ));
    }
    warnings
}

fn notes(plan: &Plan<'_>, emulated: bool) -> Vec<String> {
    let mut notes = vec![format!(
        "Real guests, {} windows of {:.1} s for each policy, in turn. Response times within 1 %.",
        plan.rounds,
        plan.window.as_secs_f64()
    )];
    if emulated {
        notes.push("Service is in the emulated disk's own time, without k.".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_of_a_window_is_a_difference() {
        let was = [(1_000, 1_000_000), (9_000, 5)];
        let is = [(1_000, 1_000_098), (2_000, 0), (7_000, 1), (9_000, 6)];
        let made = response(&was, &is, 1.0).expect("a hundred requests");
        let ms = |ns: f64| ns / 1e6;
        assert_eq!((made.mean, made.p50), (ms(1_140.0), ms(1_000.0)));
        assert_eq!((made.p99, made.p999, made.max), (ms(7_000.0), ms(9_000.0), ms(9_000.0)));
        assert_eq!(response(&is, &is, 1.0), None);
        // A model that runs at half the speed.
        assert_eq!(response(&[], &[(5, 1)], 2.0).map(|made| made.max), Some(ms(2.5)));
    }

    #[test]
    fn an_operation_is_told_apart_by_a_daemon_that_does_so() {
        let moved = Moved { requests: 300, bytes: 300 << 12 };
        assert_eq!(operation(moved, 2.0, None), None);
        let made = operation(moved, 2.0, response(&[], &[(1_000_000, 300)], 1.0)).expect("figures");
        assert_eq!((made.requests, made.iops, made.mib_s), (300, 150.0, 300.0 / 256.0 / 2.0));
        assert_eq!(made.response_ms.p99, 1.0);
    }

    fn window(policy: &str, k: f64, k_changes: usize, late_share: f64, requests: u64) -> Figures {
        let window = Some(Window {
            round: 1,
            window_s: 1.0,
            requests,
            k,
            k_changes,
            late_share,
            overslept_ms: 0.0,
        });
        Figures { policy: policy.into(), window, ..Figures::default() }
    }

    #[test]
    fn what_spoils_a_window_is_said() {
        assert!(warnings(&[window("cfq", 1.0, 0, 0.0, 9)], true).is_empty());
        let said = |runs: &[Figures], emulated| warnings(runs, emulated).join("\n");
        assert!(said(&[window("cfq", 1.0, 0, 0.0, 9)], false).contains("not predicted"));
        assert!(said(&[window("cfq", 1.0, 0, 0.0, 0)], true).contains("window of cfq"));
        let text = said(&[window("cfq", 1.0, 0, 0.0, 9), window("noop", 2.0, 1, 0.5, 9)], true);
        for part in ["they were not", "k differs", "within a window of noop", "under noop"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        let mut busy = window("cfq", 2.0, 0, 0.0, 9);
        busy.service_ms = Some(4.0);
        busy.window.as_mut().expect("set").overslept_ms = 0.8;
        assert!(said(&[busy], true).contains("up to 10 % of the service time"));
        let fixed = said(&[window("cfq", 8.0, 0, 0.0, 9)], true);
        assert!(fixed.contains("k = 8,") && !fixed.contains("differs"), "{fixed}");
    }
}
