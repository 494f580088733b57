//! noisy: a quiet VM beside floods, through real servers, beside the simulator with
//! the same loads.

mod judge;
mod shown;

use crate::args::LabArgs;
use crate::show::{finish, with_steps};
use crate::simulate::{Loads, simulate};
use anyhow::{Context, Result, anyhow, bail};
use judge::{Ran, Simulated};
use seekway_cli::Verdict;
use seekway_cli::signals::{self, SIGINT, SIGTERM};
use seekway_client::{Load, Span};
use seekway_live::experiment::{
    NOISY_BASE as BASE, NoisyDisk, NoisyFigures, NoisyOptions, NoisyScene, NoisyServer, run_noisy,
};
use seekway_policy::params::parse_duration;
use seekway_policy::units::Nanos;
use seekway_sim::RunResult;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub const NAME: &str = "noisy";

const POLICIES: [&str; 5] = [BASE, "cfq", "kyber", "iocost", "fairway"];
/// The peer, plain and with a throttle, as `--servers` names them.
const PEERS: [&str; 2] = ["qemu-storage-daemon", "throttled"];
/// The throttle lets through this much of what the flood gets alone, in percent: what is
/// asked of the flood beside fairway.
const THROTTLE_PERCENT: u32 = 80;

/// Profiles of the emulated devices.
const EMULATED: [&str; 2] = ["intel-x25m-g2", "samsung-970-pro"];
/// The machine's own disk.
const DISK: &str = "disk";
const MEMORY: &str = "/dev/shm";
const EMULATED_BYTES: u64 = 256 << 20;
const DISK_BYTES: u64 = 64 << 20;

/// Floods by their name among the arena's scenes, with the same load.
const FLOODS: [(&str, Load); 3] = [
    ("flood", Load { block_bytes: 64 << 10, depth: 64, sequential: false, write: false }),
    ("writes", Load { block_bytes: 4 << 10, depth: 128, sequential: false, write: true }),
    ("stream", Load { block_bytes: 1 << 20, depth: 8, sequential: true, write: false }),
];

/// Runs noisy; `NotAccepted` if a row misses what is asked.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    if args.kvm {
        bail!("--kvm: {NAME} runs no guests");
    }
    let (scenes, span) = (scenes(args)?, span(args)?);
    let rounds = args.noisy.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    if !(1..=100).contains(&rounds) {
        bail!("--rounds {rounds}: from 1 to 100");
    }
    let program = args.daemon()?;
    // Servers are ended and images removed on the way out.
    let interrupted = signals::noted(&[SIGINT, SIGTERM])?;
    let options = NoisyOptions { program, scenes, rounds, span, interrupted };
    let made = with_steps(NAME, |step| run_noisy(&options, step)).context("--live")?;
    let simulate = |figures| match options.interrupted.load(Ordering::Relaxed) {
        true => Err(anyhow!("interrupted")),
        false => simulated(figures, span, args.seed),
    };
    let simulated =
        with_steps("the simulator", |_| made.iter().map(simulate).collect::<Result<Vec<_>>>())?;
    let of_scene = |(figures, sim)| Ran::all(figures, sim);
    let rows: Vec<Ran> = made.iter().zip(&simulated).flat_map(of_scene).collect();
    let tables = [shown::table(&rows, &options), shown::governor(&rows)];
    finish(args, shown::page(&rows, &tables), &tables, &rows, rows.iter().map(|row| row.verdict))
}

fn span(args: &LabArgs) -> Result<Span> {
    let seconds = args.noisy.seconds.unwrap_or(if args.quick { 0.3 } else { 1.0 });
    if !(0.1..=60.0).contains(&seconds) {
        bail!("--seconds {seconds}: from 0.1 to 60");
    }
    let counted = Duration::from_secs_f64(seconds);
    Ok(Span { warm_up: counted / 2, counted })
}

/// What is to be measured, the emulated devices first: the disk below may be spent later.
fn scenes(args: &LabArgs) -> Result<Vec<NoisyScene>> {
    let mut scenes = Vec::new();
    let mut known = Vec::new();
    for disk in disks(args)? {
        for (flood_name, flood) in FLOODS {
            let name = format!("{}/{flood_name}", disk.name);
            if args.wants(&name) {
                scenes.push(NoisyScene {
                    disk: disk.clone(),
                    flood_name: flood_name.into(),
                    flood,
                });
            }
            known.push(name);
        }
    }
    if scenes.is_empty() {
        bail!("--scenes {}: none; there are {}", args.pattern(), known.join(", "));
    }
    Ok(scenes)
}

fn disks(args: &LabArgs) -> Result<Vec<NoisyDisk>> {
    let asked = &args.noisy.servers;
    let known = || POLICIES.iter().chain(&PEERS).copied();
    if let Some(unknown) = asked.iter().find(|name| known().all(|k| k != *name)) {
        let known: Vec<&str> = known().collect();
        bail!("--servers: no {unknown}; there are {}; --policy adds one", known.join(", "));
    }
    let wanted = |name: &&str| asked.is_empty() || *name == BASE || asked.iter().any(|a| a == name);
    let policies: Vec<&str> = POLICIES.into_iter().filter(|p| wanted(p)).collect();
    let ours: Vec<NoisyServer> =
        args.policies(&policies).into_iter().map(NoisyServer::Policy).collect();
    let peer = |name: &str| match name {
        "throttled" => NoisyServer::Throttled(THROTTLE_PERCENT),
        _ => NoisyServer::StorageDaemon,
    };
    let peers = PEERS.into_iter().filter(|p| wanted(p)).map(peer);
    let mut disks: Vec<NoisyDisk> = EMULATED
        .iter()
        .map(|profile| NoisyDisk {
            name: profile.to_string(),
            // Times are absolute: a real completion that comes late is counted.
            emulate: Some(format!("{profile}:k=1")),
            folder: PathBuf::from(MEMORY),
            image_bytes: EMULATED_BYTES,
            servers: ours.clone(),
        })
        .collect();
    disks.push(NoisyDisk {
        name: DISK.into(),
        emulate: None,
        folder: args.noisy.work_dir.clone().unwrap_or_else(std::env::temp_dir),
        image_bytes: DISK_BYTES,
        servers: ours.iter().cloned().chain(peers).collect(),
    });
    Ok(disks)
}

/// A scene in the simulator, by policy, each for as long as it is measured; nothing for
/// the disk below. The quiet VM thinks for so long that alone it is as fast as it was here: the
/// simulator knows the device, and not what the path around it takes.
fn simulated(figures: &NoisyFigures, span: Span, seed: u64) -> Result<BTreeMap<String, Simulated>> {
    let scene = &figures.scene;
    let Some(mut loads) = loads(scene) else { return Ok(BTreeMap::new()) };
    let run = |loads: &Loads, policy: &str| {
        simulate(loads.scenario()?, (span.warm_up, span.counted), policy, seed)
    };
    let quiet = |loads: &Loads| Loads { vms: loads.vms[..1].to_vec(), ..loads.clone() };
    let mut alone = run(&quiet(&loads), BASE)?;
    if let Some(here) = judge::quiet_alone_iops(figures).filter(|iops| *iops > 0.0) {
        let think = slower(&loads.vms[0], 1e9 / here - 1e9 / alone.vms[0].iops());
        loads.vms[0] = with(&loads.vms[0], "think", &format!("{}ns", think.get()));
        alone = run(&quiet(&loads), BASE)?;
    }
    let base = run(&loads, BASE)?;
    let mut simulated = BTreeMap::new();
    for server in &scene.disk.servers {
        if let NoisyServer::Policy(policy) = server {
            let beside = run(&loads, policy)?;
            simulated.insert(policy.clone(), compare(&alone, &base, &beside));
        }
    }
    Ok(simulated)
}

fn compare(alone: &RunResult, base: &RunResult, beside: &RunResult) -> Simulated {
    let p99 = |run: &RunResult| run.vms[0].response.value_at_quantile(0.99) as f64;
    Simulated {
        quiet_alone_iops: alone.vms[0].iops(),
        quiet_iops: beside.vms[0].iops(),
        quiet_p99_us: p99(beside) / 1e3,
        quiet_p99_of_alone: p99(beside) / p99(alone),
        flood_of_base: beside.vms[1].mib_s() / base.vms[1].mib_s(),
        policy_metrics: beside
            .policy_metrics
            .iter()
            .map(|(name, v)| (name.to_string(), *v))
            .collect(),
    }
}

/// A VM's load with another value of a key that it has.
fn with(vm: &str, key: &str, value: &str) -> String {
    let replaced = |part| match str::split_once(part, '=') {
        Some((name, _)) if name == key => format!("{key}={value}"),
        _ => part.to_string(),
    };
    vm.split(',').map(replaced).collect::<Vec<_>>().join(",")
}

/// How long a VM with this load thinks when each request takes so many nanoseconds more.
fn slower(vm: &str, more_ns: f64) -> Nanos {
    let think = vm.split(',').find_map(|part| part.strip_prefix("think="));
    let think = think.and_then(|text| parse_duration(text).ok()).unwrap_or(Nanos::ZERO);
    Nanos::new((think.get() as f64 + more_ns).max(0.0) as u64)
}

/// The scene for the simulator: the same device and loads, on images as large as the real ones.
/// Writes are asynchronous, as to the daemon: nobody tells it that somebody waits for them.
fn loads(scene: &NoisyScene) -> Option<Loads> {
    let device = EMULATED.into_iter().find(|profile| *profile == scene.disk.name)?;
    let mib = scene.disk.image_bytes >> 20;
    let vm = |name: &str, load: &str| {
        format!("name={name},image={mib}MiB,app=uniform:{load},think=60us,sync=false")
    };
    let Load { block_bytes, depth, sequential, write } = scene.flood;
    let (kib, read) = (block_bytes >> 10, if write { 0 } else { 100 });
    let flood = format!("size={kib}KiB,outstanding={depth},read={read},sequential={sequential}");
    let vms = vec![vm("quiet", "size=4KiB,outstanding=1"), vm("flood", &flood)];
    Some(Loads { vms, device: device.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use seekway_policy::schedulers;
    use seekway_workload::generators::parse_vm;

    fn parse(args: &[&str]) -> LabArgs {
        LabArgs::parse_from([&["seekway-live", NAME], args].concat())
    }

    #[test]
    fn every_emulated_scene_is_simulated_with_the_same_load() {
        assert!(POLICIES.iter().all(|policy| schedulers::build(policy).is_ok()));
        let scenes = scenes(&parse(&[])).expect("all");
        assert_eq!(scenes.len(), 9);
        for scene in scenes.iter().filter(|scene| scene.disk.emulate.is_some()) {
            let loads = loads(scene).expect("it is emulated");
            assert_eq!(loads.device, scene.disk.name);
            let [quiet, flood] = &loads.vms[..] else { panic!("two VMs") };
            assert!(quiet.contains("image=256MiB,app=uniform:size=4KiB,outstanding=1,"));
            assert!(parse_vm(flood).is_ok(), "{flood}");
        }
    }

    #[test]
    fn a_load_gets_another_value_of_a_key() {
        let vm = "name=quiet,image=5GiB,app=uniform:size=4KiB,think=60us";
        assert_eq!(slower(vm, 36_000.4).get(), 96_000);
        assert_eq!(slower(vm, -1e9), Nanos::ZERO);
        let slow = with(&with(vm, "think", "96000ns"), "image", "1MiB");
        assert_eq!(slow, "name=quiet,image=1MiB,app=uniform:size=4KiB,think=96000ns");
        assert!(parse_vm(&slow).is_ok());
    }

    #[test]
    fn scenes_and_servers_are_chosen_and_unknown_ones_refused() {
        let chosen = scenes(&parse(&["--scenes", "*/writes", "--servers", "throttled,fairway"]));
        let chosen = chosen.expect("three");
        let names = |scene: &NoisyScene| -> Vec<String> {
            scene.disk.servers.iter().map(NoisyServer::name).collect()
        };
        assert_eq!(chosen.len(), 3);
        assert_eq!(names(&chosen[0]), [BASE, "fairway"]);
        assert_eq!(names(&chosen[2]), [BASE, "fairway", "qemu-storage-daemon, flood at 80 %"]);
        for (args, part) in [
            (["--scenes", "sata/flood"], "intel-x25m-g2/flood, "),
            (["--servers", "bfq"], "--policy adds one"),
        ] {
            let error = scenes(&parse(&args)).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(span(&parse(&["--seconds", "0"])).is_err());
        assert!(span(&parse(&["--seconds", "NaN"])).is_err());
    }
}
