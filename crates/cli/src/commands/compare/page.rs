//! The page of a comparison: its result in a sentence, figures, then the tables.

use super::{Comparison, private, tables};
use crate::figures::{self, Shown};
use crate::json::{CompareReport, Run};
use crate::load::distinct;
use crate::output;
use crate::ranked::{MEASURES, Ranked, Stack, listed};
use seekway_report::html::{Block, Report, Section};
use seekway_report::number::short;
use seekway_report::rank::EQUAL_WITHIN;

/// Runs that the page names with the VM that each hurts most.
const HURT_SAID: usize = 6;
/// Comparisons, none of which is of the default policy, that the page begins with.
const COMPARISONS_SAID: usize = 4;
/// VMs with figures of their own.
const VMS_SHOWN: usize = 8;
/// Their figures are folded if there are more VMs.
const VMS_OPEN: usize = 3;

/// Their seek distances are folded if there are more runs.
const RUNS_OPEN: usize = 4;

/// The page of a comparison, or of all that a scenario describes.
pub fn report(made: &[Comparison], title: &str) -> Report {
    let seed = made.iter().flat_map(|made| &made.compared.runs).next().map_or(0, |run| run.seed);
    let mut sections: Vec<Section> = Vec::new();
    for one in made {
        let intro = if made.len() > 1 { sentence(&one.compared) } else { String::new() };
        let all = of_one(one);
        sections.extend(all.into_iter().enumerate().map(|(n, section)| match n {
            0 => Section { intro: intro.clone(), ..section },
            _ => section,
        }));
    }
    let said = match made {
        [one] => sentence(&one.compared),
        several => hurt(several).unwrap_or_else(|| overall(several)),
    };
    let devices = distinct(made.iter().map(|made| made.compared.device.clone()));
    let about = [("Disk", devices.join(", ")), ("Seed", seed.to_string())];
    output::report(title, said, about, sections)
}

// The sentence.

/// A VM starves that has less than one in this number of the requests that another run gives it.
const STARVED: u64 = 100;

/// The stacks that did something, each in the mean of its seeds.
fn stacks(compared: &CompareReport) -> Vec<Stack> {
    let did: Vec<&Run> = compared.runs.iter().filter(|run| run.requests > 0).collect();
    let label = |run: &Run| {
        let label = run.label.strip_suffix(&format!(" #{}", run.seed));
        label.unwrap_or(&run.label).to_owned()
    };
    let of = |name: String| {
        let runs: Vec<&Run> = did.iter().copied().filter(|run| label(run) == name).collect();
        let mean = |of: fn(&Run) -> Option<f64>| {
            let sum: Option<f64> = runs.iter().map(|run| of(run)).sum();
            Some(sum? / runs.len() as f64)
        };
        let figures = [
            mean(|run| Some(run.response_ms.mean)),
            mean(|run| Some(run.response_ms.p99)),
            mean(|run| Some(run.mib_s)),
            mean(|run| run.private.as_ref()?.least_progress),
        ];
        let starved = runs.iter().find_map(|run| starved(compared, run));
        Stack { policy: runs[0].stack.policy.clone(), label: name, starved, figures }
    };
    distinct(did.iter().map(|run| label(run))).into_iter().map(of).collect()
}

/// The VMs that got less than a hundredth of what they get in another run.
fn starved(compared: &CompareReport, run: &Run) -> Option<String> {
    let most = |n: usize| {
        let vms = compared.runs.iter().filter_map(|o| o.vms.get(n));
        vms.map(|vm| vm.requests).max().unwrap_or(0)
    };
    let starves = |(n, vm): &(usize, &crate::json::Vm)| vm.requests < most(*n).div_ceil(STARVED);
    let names: Vec<&str> =
        run.vms.iter().enumerate().filter(starves).map(|(_, vm)| &*vm.name).collect();
    match names.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        [first, rest @ ..] => Some(format!("{first} and {} more", rest.len())),
    }
}

/// The result of a comparison.
fn sentence(compared: &CompareReport) -> String {
    let device = &compared.device;
    // A scenario that is named by its disk names it once.
    let name = compared.scenario.iter().filter(|name| !name.contains(device.as_str()));
    let name = name.map(|name| format!("{name}, ")).collect::<String>();
    let stacks = stacks(compared);
    match stacks.as_slice() {
        [] => {
            let came = compared.runs.iter().any(|run| run.outstanding_max > 0);
            let said = if came { "no read or write was done" } else { "no request came" };
            format!("{name}{device}: {said}.")
        }
        [one] => format!("{name}{} on {device}: {}.", one.label, one.text()),
        _ => {
            let on = if name.is_empty() { "On" } else { "on" };
            format!("{name}{on} {device}, {}.", Ranked::new(stacks).text())
        }
    }
}

/// The VM that has least of its private disk under each run of several comparisons, and the run
/// under which that is most; `None` if the VMs or their disk differ, or were not run alone.
fn hurt(made: &[Comparison]) -> Option<String> {
    let (first, seed) = (&made.first()?.compared, made.first()?.compared.runs.first()?.seed);
    let names = |run: &Run| run.vms.iter().map(|vm| vm.name.clone()).collect::<Vec<_>>();
    let vms = names(first.runs.first()?);
    let mut worst: Vec<(f64, &str, String)> = Vec::new();
    for Comparison { compared, .. } in made {
        let runs = compared.runs.iter().filter(|run| run.seed == seed);
        for run in runs {
            if compared.device != first.device || names(run) != vms {
                return None;
            }
            let private = run.private.as_ref()?;
            let (least, vm) = (private.least_progress?, private.least_progress_vm.as_deref()?);
            let name = match &compared.scenario {
                Some(name) if compared.runs.len() == 1 => format!("{name} ({})", run.label),
                _ => run.label.clone(),
            };
            worst.push((least, vm, name));
        }
    }
    worst.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_hurt = |(least, ..): &&(f64, &str, String)| *least < 1.0 - EQUAL_WITHIN;
    let mut hurt: Vec<&(f64, &str, String)> = worst.iter().filter(is_hurt).collect();
    let unhurt: Vec<String> = worst[hurt.len()..].iter().map(|(.., name)| name.clone()).collect();
    let stops = match &unhurt[..] {
        [] => hurt.pop().map(|(least, vm, name)| {
            format!("It hurts least under {name}: every VM has at least {least:.2} ({vm}).")
        })?,
        names => format!("Under {} no VM is hurt.", listed(names)),
    };
    let of = |(n, (least, vm, name)): (usize, &&(f64, &str, String))| match n {
        0 => format!("{vm} under {name} ({least:.2} of what its private disk would give it)"),
        _ => format!("{vm} under {name} ({least:.2})"),
    };
    let mut said: Vec<String> = hurt.iter().take(HURT_SAID).enumerate().map(of).collect();
    said.extend((hurt.len() > HURT_SAID).then(|| format!("{} more", hurt.len() - HURT_SAID)));
    if said.is_empty() {
        return Some(stops);
    }
    Some(format!("Sharing {} hurts {}. {stops}", first.device, listed(&said)))
}

/// The result of several comparisons: in which number of them the default policy is the best.
fn overall(made: &[Comparison]) -> String {
    let count = made.len();
    let mut best_in = [0; MEASURES.len()];
    let mut name = None;
    for ranked in made.iter().map(|made| Ranked::new(stacks(&made.compared))) {
        let Some(default) = ranked.default() else { continue };
        name = Some(default.policy.clone());
        best_in.iter_mut().zip(ranked.default_wins()).for_each(|(n, wins)| *n += i32::from(wins));
    }
    let Some(name) = name else {
        let said = made.iter().take(COMPARISONS_SAID).map(|made| sentence(&made.compared));
        return said.collect::<Vec<_>>().join(" ");
    };
    let said = MEASURES.iter().zip(best_in).filter(|(measure, n)| *n > 0 || measure.name == "p99");
    let said = said.map(|(measure, n)| format!("the best {} in {n}", measure.name));
    let percent = short(EQUAL_WITHIN * 100.0, 2);
    format!(
        "Of {count} comparisons, {name}, the default, has {}; within {percent} % is equal.",
        listed(&said.collect::<Vec<_>>())
    )
}

// The sections.

fn of_one(made: &Comparison) -> Vec<Section> {
    let compared = &made.compared;
    let seed = compared.runs.first().map_or(0, |r| r.seed);
    // Figures show the runs of the first seed: one line for each stack.
    let shown = made.outcomes.iter().filter(|o| o.scenario.seed == seed);
    let shown: Vec<Shown<'_>> = shown.map(|o| (o.label.as_str(), &o.result)).collect();
    let mut result: Vec<Block> = made.warnings.iter().cloned().map(Block::Warning).collect();
    result.extend(private::figure(compared, seed));
    let pictures = !shown.is_empty();
    if pictures {
        let responses = figures::responses(&shown);
        result.push(Block::figure(
            responses,
            "Response times of all requests: how many of them are answered within a time. The \
             axis stretches the tail.",
        ));
        let total = figures::total_bandwidth(&shown);
        result.push(Block::figure(total, "Bandwidth of all VMs together."));
    }
    let mut in_numbers: Vec<Block> = tables(compared).into_iter().map(Block::Table).collect();
    in_numbers.extend(super::tables::by_operation(compared).map(Block::Table));
    in_numbers.extend(super::tables::by_process(compared).map(Block::Table));
    let sections = [
        ("Result", result),
        ("Each VM", if pictures { each_vm(&shown) } else { Vec::new() }),
        ("Where the requests go", if pictures { places(&shown) } else { Vec::new() }),
        ("In numbers", in_numbers),
    ];
    let name = compared.scenario.iter().map(|name| format!(" of {name}")).collect::<String>();
    let sections = sections.into_iter().filter(|(_, blocks)| !blocks.is_empty());
    sections.map(|(title, blocks)| Section::new(format!("{title}{name}"), blocks)).collect()
}

fn each_vm(shown: &[Shown<'_>]) -> Vec<Block> {
    let vms = &shown[0].1.vms;
    if vms.len() < 2 {
        return Vec::new();
    }
    let of = |(n, vm): (usize, &seekway_sim::VmResult)| {
        let responses = figures::responses_of_vm(shown, n);
        let bandwidth = figures::bandwidth_of_vm(shown, n);
        [
            Block::figure(responses, format!("Response times of {}.", vm.name)),
            Block::figure(bandwidth, format!("Bandwidth of {}.", vm.name)),
        ]
    };
    let mut blocks: Vec<Block> = vms.iter().enumerate().take(VMS_SHOWN).flat_map(of).collect();
    if vms.len() > VMS_SHOWN {
        blocks.push(Block::Text(format!("The first {VMS_SHOWN} of {} VMs.", vms.len())));
    }
    if vms.len() > VMS_OPEN {
        let summary = "Response times and bandwidth of each VM".into();
        return vec![Block::Folded { summary, blocks }];
    }
    blocks
}

fn places(shown: &[Shown<'_>]) -> Vec<Block> {
    let (first, result) = shown[0];
    let places = Block::figure(
        figures::places(result),
        format!("Where each VM's requests went as they arrived (under {first})."),
    );
    let seeks = Block::figure(
        figures::seeks(shown),
        "Seek distances from command to command. A tall middle is a head that stayed where it was.",
    );
    let seeks = match shown.len() > RUNS_OPEN {
        true => Block::Folded { summary: "Seek distances of each run".into(), blocks: vec![seeks] },
        false => seeks,
    };
    vec![places, seeks]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::commands::compare::made;
    use crate::runs::Running;
    use clap::Parser;

    #[test]
    fn the_vm_that_each_run_hurts_most_is_named() {
        let file = "device.profile = 'linear-7200'\nmeasure.until = '5s'\n\
                    outcome = { alone = 'always', fair_to = 'private' }\n\
                    [[case]]\nname = 'cached'\npolicy = 'fairway'\ncache.size = '64MiB'\n\
                    [[case]]\nname = 'bare'\npolicy = ['noop', 'fairway']\n\
                    [[vm]]\nname = 'flood'\nload = [{ app = 'uniform', outstanding = 32 }]\n\
                    [[vm]]\nname = 'quiet'\nload = [{ app = 'uniform', outstanding = 1 }]\n";
        let path = std::env::temp_dir().join(format!("hurt-{}.toml", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let line = ["seekway", "compare", path.to_str().unwrap()];
        let Command::Compare(args) = Cli::parse_from(line).command else { unreachable!() };
        let all = made(&args, &Running::shown(None));
        std::fs::remove_file(&path).unwrap();
        let (all, least) = (all.unwrap(), |run: &Run| run.private.as_ref()?.least_progress);
        let said = hurt(&all).expect("private disks are known");
        assert!(said.contains(" of what its private disk would give it)"), "{said}");
        assert!(said.ends_with("no VM is hurt.") || said.contains("hurts least under"), "{said}");
        for run in all.iter().flat_map(|one| &one.compared.runs) {
            let figure = least(run).unwrap();
            let part = format!("{figure:.2}");
            assert!(figure >= 0.98 || said.contains(&part), "no {part} in {said}");
        }
    }

    #[test]
    fn runs_without_requests_are_not_compared() {
        let said = |start: &str| {
            let vm = format!("name=a,app=uniform:requests=5,start={start}");
            let line = ["seekway", "compare", "--vm", &vm, "--until", "1s"];
            let line = line.into_iter().chain(["--policies", "noop,fairway"]);
            let Command::Compare(args) = Cli::parse_from(line).command else { unreachable!() };
            sentence(&made(&args, &Running::shown(None)).unwrap()[0].compared)
        };
        let (none, some) = (said("10s"), said("0s"));
        assert!(none.ends_with(": no request came."), "{none}");
        assert!(some.contains(" fairway, the default, "), "{some}");
    }
}
