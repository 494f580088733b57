//! Guests with a page cache, a journal and files, on vCPUs that share processors.

use super::support::{at, ms, run_source};
use crate::metrics::RunResult;
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos};
use seekway_workload::generators::{VmPlan, parse_vm};
use std::num::NonZeroU32;

fn plans(texts: &[&str]) -> Vec<VmPlan> {
    texts.iter().map(|text| parse_vm(text).unwrap()).collect()
}

fn processors(count: u16) -> Processors {
    let mut processors = Processors::new(count);
    processors.host.context_switch = Nanos::ZERO;
    processors.guest.context_switch = Nanos::ZERO;
    processors
}

/// Runs these VMs on `count` processors, to its end or to `until`.
fn shared(texts: &[&str], count: u16, policy: &str, until: Option<Nanos>) -> RunResult {
    shared_on(&processors(count), texts, policy, until)
}

fn shared_on(
    processors: &Processors,
    texts: &[&str],
    policy: &str,
    until: Option<Nanos>,
) -> RunResult {
    let plans = plans(texts);
    let guest = |(stream, plan)| {
        let cpu_weight = NonZeroU32::MIN;
        PlannedVm::Guest { plan, stream, cpu_weight, agent: true }
    };
    let vms: Vec<PlannedVm<'_>> = (0..).zip(&plans).map(guest).collect();
    let machine = Machine::of_vms(processors, &vms, policy, 1, Instant::ZERO);
    let mut machine = machine.unwrap();
    let mut result = run_source(Box::new(&mut machine), until);
    result.machine = Some(machine.result(at(result.simulated)));
    result
}

/// Two VMs that do next to nothing leave the processors idle, unless their guests compute: then
/// each has half of the time, and an agent that may move a reader has something to do.
#[test]
fn guests_compute_on_each_vcpu() {
    let read = "app=fio:rw=read,bs=64KiB,size=1GiB,io_size=1TiB,direct=true,thinktime=1ms";
    let texts = [format!("name=a,vcpus=2,{read}"), format!("name=b,vcpus=2,{read}")];
    let texts = [texts[0].as_str(), texts[1].as_str()];
    let run = |guests_compute, policy| {
        let processors = Processors { guests_compute, ..processors(2) };
        shared_on(&processors, &texts, policy, Some(ms(2_000))).machine.unwrap()
    };
    let idle = |machine: &MachineResult| machine.pcpus.iter().map(|p| p.idle).max().unwrap();
    let (quiet, busy) = (run(false, "vanilla"), run(true, "vanilla"));
    assert!(idle(&quiet) > ms(1_000) && idle(&busy) < ms(10), "{:?}", busy.pcpus);
    assert_eq!(quiet.vms[0].tasks.len() + 2, busy.vms[0].tasks.len());
    for vm in &busy.vms {
        let share = vm.ran.as_secs_f64() / 4.0;
        assert!((0.45..=0.55).contains(&share), "{}: {share}", vm.name);
    }
    assert!(run(true, "vmigrater").vms[0].moves > 0);
}

/// Runs the VM on vCPUs that nobody takes away.
fn alone(text: &str, until: Option<Nanos>) -> RunResult {
    run_source(parse_vm(text).unwrap().source(1, 0).unwrap(), until)
}

fn bytes(result: &RunResult, vm: u16) -> u64 {
    result.apps.iter().filter(|app| app.vm == vm).map(|app| app.bytes).sum()
}

/// Every generator also runs as tasks, with the same reads and writes as a source. With a processor
/// for each vCPU only the order of events differs: the journal, for one, begins a commit when a
/// task has run, and not when all ready ones have; and vCPUs are shared by time, and not by system
/// call.
#[test]
fn every_generator_runs_on_modelled_vcpus() {
    for generator in seekway_workload::generators::REGISTRY.iter() {
        let text = format!("name=a,image=100g,app={}", generator.name);
        let text = if generator.name == "uniform" { "name=a,app=uniform" } else { &text };
        let (own, modelled) =
            (alone(text, Some(ms(400))), shared(&[text], 2, "vanilla", Some(ms(400))));
        let (own, modelled) = (bytes(&own, 0) as f64, bytes(&modelled, 0) as f64);
        assert!(
            (own - modelled).abs() <= 0.3 * own + 4e6,
            "{}: {own} bytes on its own vCPUs, {modelled} on modelled ones",
            generator.name
        );
    }
}

/// A load that ends does so on modelled vCPUs, with everything that was dirty on the disk.
#[test]
fn a_load_that_ends_ends() {
    let text = "name=a,image=2g,app=fio:rw=write,bs=64KiB,size=64MiB,io_size=64MiB";
    let (own, modelled) = (alone(text, None), shared(&[text], 2, "vanilla", None));
    assert!(own.finished && modelled.finished);
    assert_eq!(bytes(&own, 0), bytes(&modelled, 0));
    let written = |r: &RunResult| r.vms[0].bytes;
    assert!(written(&modelled) >= 64 << 20, "{}", written(&modelled));
    let diff = written(&own).abs_diff(written(&modelled));
    assert!(diff <= 1 << 20, "{} and {}", written(&own), written(&modelled));
}

/// A reader in a VM that also computes has its vCPU taken away by another that computes. A task
/// that wakes on a vCPU that has used its share does not go before the other vCPU.
#[test]
fn who_shares_a_processor_waits_for_it() {
    let read = "name=a,image=8g,vcpus=1,app=fio:rw=randread,bs=4KiB,size=4GiB,io_size=1TiB,\
                direct=true,app=build:jobs=1";
    let busy = "name=b,image=4g,vcpus=1,app=build:jobs=2";
    let free = shared(&[read], 1, "vanilla", Some(ms(2_000)));
    let contended = shared(&[read, busy], 1, "vanilla", Some(ms(2_000)));
    let blocks = |r: &RunResult| r.machine.as_ref().unwrap().vms[0].tasks[0].ios;
    assert!(
        blocks(&contended) < blocks(&free) * 7 / 10,
        "{}, {}",
        blocks(&contended),
        blocks(&free)
    );
    let lost = |r: &RunResult| r.machine.as_ref().unwrap().vms[0].tasks[0].inactive;
    assert!(lost(&free) == Nanos::ZERO && lost(&contended) > ms(400), "{}", lost(&contended));
}

/// A guest's disks are its own between those of other VMs, whether or not its vCPUs are modelled,
/// and an application's requests go to its disk.
#[test]
fn a_guest_with_two_disks_shares_processors() {
    let load = "app=fio:rw=randread,bs=4KiB,size=256MiB,direct=true,\
                app=fio:rw=write,bs=64KiB,size=64MiB,direct=true,disk=log";
    let texts = [
        "name=a,image=2g,app=fio:rw=randread,size=256MiB",
        &format!("name=b,image=1g,disk=log:1g,{load}"),
        "name=c,image=2g,app=fio:rw=randread,size=256MiB",
    ];
    let result = shared(&texts, 2, "vanilla", None);
    assert!(result.finished);
    let names: Vec<&str> = result.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "b.log", "c"]);
    let disks = |vm: usize| result.machine.as_ref().unwrap().vms[vm].disks.clone();
    assert_eq!([0, 1, 2].map(disks), [0..1, 1..3, 3..4]);
    assert_eq!([0, 1, 2, 3].map(|disk| bytes(&result, disk) >> 20), [256, 256, 64, 256]);
    let [own, log] = [1, 2].map(|disk| &result.vms[disk]);
    assert_eq!((own.bytes >> 20, log.reads.requests), (256, 0), "{own:?} {log:?}");
    assert!(log.bytes >> 20 == 64 && own.reads.requests == own.requests, "{own:?} {log:?}");
    let alone = alone(texts[1], None);
    assert_eq!(alone.vms[1].bytes >> 20, 64);
    assert_eq!([0, 1].map(|disk| bytes(&alone, disk)), [1, 2].map(|disk| bytes(&result, disk)));
}

/// Equal seeds give equal runs, to the last byte.
#[test]
fn runs_repeat() {
    let texts = [
        "name=a,image=8g,vcpus=2,app=oltp",
        "name=b,image=8g,vcpus=2,app=fileserver",
        "name=c,image=8g,vcpus=2,app=sysbench:mode=SR",
    ];
    let run = || {
        let result = shared(&texts, 2, "vmigrater", Some(ms(500)));
        let tasks = result.machine.as_ref().unwrap().vms.iter().flat_map(|vm| vm.tasks.clone());
        let tasks: Vec<_> = tasks.map(|t| (t.name, t.ran, t.ios, t.inactive, t.moves)).collect();
        (result.requests(), bytes(&result, 0), bytes(&result, 1), bytes(&result, 2), tasks)
    };
    assert_eq!(run(), run());
}
