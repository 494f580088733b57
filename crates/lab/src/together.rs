//! together: the guests of an ordinary host with everything of Seekway off and with
//! everything on, in turn in the same guests.

mod judge;
mod shown;

use crate::args::LabArgs;
use crate::procs::agent;
use crate::show::finish;
use anyhow::{Context, Result, bail};
use judge::Ran;
use seekway_cli::{Verdict, progress};
use seekway_live::experiment::{TogetherLoad, TogetherOptions, TogetherSide, run_together};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub const NAME: &str = "together";

/// A SATA drive as slow as one behind a network, as in migrate-live: what a read costs an
/// emulated guest and its host in processor time, 0.4 ms, is small beside its wait. Times are
/// absolute: a real completion that comes late is counted.
const DEVICE: &str = "intel-x25m-g2:k=1,read_us=2000";
const LOADS: [TogetherLoad; 4] =
    [TogetherLoad::Database, TogetherLoad::Files, TogetherLoad::Video, TogetherLoad::Build];
const POLICIES: [&str; 2] = ["noop", "fairway"];
/// Less than what a guest reads in two windows.
const CACHE_BYTES: u64 = 256 << 20;
/// Processes of this name are tagged when they start. Ten looks at all processes a second, the
/// default, take an emulated guest 3 to 4 % of a vCPU; one takes 1 to 2 %.
const TAGS: &str = "--match fio --interval 1s";
const PREFETCHER: &str = "vio:interval=continuous,threshold=auto";
const PAIRS: u32 = 7;
const WINDOW: Duration = Duration::from_secs(12);
const QUICK_PAIRS: u32 = 1;
const QUICK_WINDOW: Duration = Duration::from_secs(3);

/// Runs the experiment.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    if args.policy.is_some() {
        bail!("{NAME}: no --policy: it has {} off and {} on", POLICIES[0], POLICIES[1]);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Daemons are ended and images removed on the way out; who asks twice cannot wait.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .context("handle signals")?;
    }
    let options = TogetherOptions {
        program: args.daemon()?,
        agent: agent()?,
        loads: LOADS.to_vec(),
        sides: sides(),
        pairs: if args.quick { QUICK_PAIRS } else { PAIRS },
        window: if args.quick { QUICK_WINDOW } else { WINDOW },
        device: DEVICE.into(),
        accelerator: args.accelerator(),
        seed: args.seed,
        interrupted,
    };
    let bar = progress::steps(NAME);
    let figures = run_together(&options, &mut |step| bar.set_message(step.to_string()));
    let figures = figures.context("--live")?;
    bar.finish_and_clear();
    let ran = Ran::new(&LOADS, &figures);
    let tables = [shown::guests(&ran, &options), shown::host(&ran)];
    finish(args, shown::page(&ran, &tables), &tables, &ran)?;
    Ok(if ran.verdict == "missed" { Verdict::NotAccepted } else { Verdict::Done })
}

/// Everything off, and everything on.
fn sides() -> [TogetherSide; 2] {
    let off = TogetherSide { policy: POLICIES[0].into(), cache: None, tags: None, agent: None };
    let on = TogetherSide {
        policy: POLICIES[1].into(),
        cache: Some((CACHE_BYTES, PREFETCHER.into())),
        tags: Some(TAGS.into()),
        agent: Some(String::new()),
    };
    [off, on]
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_policy::{prefetchers, schedulers};

    #[test]
    fn both_sides_are_what_the_daemon_takes() {
        for side in sides() {
            assert!(schedulers::build(&side.policy).is_ok());
            assert!(
                side.cache.is_none_or(|(_, prefetcher)| prefetchers::build(&prefetcher).is_ok())
            );
        }
    }
}
