//! The host's scheduler: shares, slices, switches.

use super::script::{Log, scripted, spans};
use super::support::*;
use crate::vcpu::{Completes, MachineResult, MachineSpec, Start};
use seekway_core::units::{Instant, Nanos};
use std::num::NonZeroU32;

fn share(result: &MachineResult, vm: usize) -> f64 {
    let all: f64 = result.vms.iter().map(|vm| vm.ran.as_secs_f64()).sum();
    result.vms[vm].ran.as_secs_f64() / all
}

fn computing(pcpus: u16, vms: usize) -> MachineSpec {
    spec(pcpus, (0..vms).map(|n| vm(&format!("vm{n}"), pcpus, Vec::new())).collect())
}

#[test]
fn weights_are_shares() {
    for (light, heavy) in [(10, 90), (20, 80), (40, 60), (1, 1)] {
        let mut spec = computing(4, 2);
        spec.vms[0].cpu_weight = NonZeroU32::new(light).unwrap();
        spec.vms[1].cpu_weight = NonZeroU32::new(heavy).unwrap();
        let result = run_named(&spec, "vanilla", 1, Nanos::from_secs(20));
        let want = f64::from(light) / f64::from(light + heavy);
        let got = share(&result, 0);
        assert!((got - want).abs() < 0.01 * want.max(0.5), "{light}:{heavy}: {got} for {want}");
    }
}

#[test]
fn slices_are_as_long_as_they_should_be() {
    let log = Log::default();
    let mut spec = computing(1, 2);
    spec.vms[1].agent = false;
    run_with(&spec, &scripted(&log, |_| {}), 3, Nanos::from_secs(20));
    let (mut single, mut more) = (0, 0);
    // The first is a part of one.
    for (from, to) in spans(&log, 0).into_iter().skip(1) {
        let slices = ((to - from).as_millis_f64() / 11.0).round();
        let off = (to - from).as_millis_f64() - 11.0 * slices;
        assert!(off.abs() <= 0.3 * slices, "{} from {from}", to - from);
        *(if slices == 1.0 { &mut single } else { &mut more }) += 1;
    }
    assert!(single > 800 && more < single / 20, "{single} single, {more} longer");
}

#[test]
fn cut_slices_are_cut_and_shares_stay() {
    let log = Log::default();
    let mut spec = computing(1, 2);
    spec.vms[1].agent = false;
    spec.host.cut_permille = 100;
    let (result, _) = run_with(&spec, &scripted(&log, |_| {}), 3, Nanos::from_secs(20));
    let spans = spans(&log, 0);
    let cut = spans.iter().filter(|(from, to)| (*to - *from).as_millis_f64() < 10.7).count();
    let share_cut = cut as f64 / spans.len() as f64;
    assert!((0.06..0.14).contains(&share_cut), "{share_cut} of {}", spans.len());
    assert!((share(&result, 0) - 0.5).abs() < 0.01, "{}", share(&result, 0));
}

#[test]
fn short_slices_are_cut_no_more_often() {
    let log = Log::default();
    let cuts = |slice: Nanos| {
        log.lock().unwrap().clear();
        let script = scripted(&log, |script| script.slice = Some(slice));
        let mut spec = computing(1, 2);
        spec.vms[1].agent = false;
        spec.host.jitter = Nanos::ZERO;
        spec.host.cut_permille = 200;
        run_with(&spec, &script, 3, Nanos::from_secs(20));
        let is_cut = |from: Instant, to: Instant| (to - from).get() * 100 < slice.get() * 99;
        spans(&log, 0).iter().filter(|(from, to)| is_cut(*from, *to)).count() as f64
    };
    let (whole, halves) = (cuts(ms(11)), cuts(us(5_500)));
    assert!((halves / whole - 1.0).abs() < 0.25, "{halves} in 20 s, {whole} of whole slices");
}

#[test]
fn a_vcpu_that_has_nothing_to_run_is_not_away() {
    // It does nothing but I/O, and its only vCPU is halted for most of the time.
    let mut quiet = vm("quiet", 1, vec![task("io", 0, reads())]);
    quiet.tasks.remove(0);
    let idle = run_named(&spec(1, vec![quiet.clone()]), "vanilla", 1, ms(1000));
    let idle = &idle.vms[0];
    assert!(idle.ran < ms(250), "{}", idle.ran);
    let missing = ms(1000).saturating_sub(idle.any_ran);
    // From each wake-up to the switch to it.
    assert!(missing <= us(5).scaled(idle.tasks[0].ios + 2, 1), "{missing}");
    // Beside a computing VM it waits to run most of the time.
    let beside = spec(1, vec![quiet, vm("busy", 1, Vec::new())]);
    let any = run_named(&beside, "vanilla", 1, ms(1000)).vms[0].any_ran;
    assert!(any < ms(300), "{any}");
}

#[test]
fn a_processors_time_adds_up() {
    let mut spec = computing(3, 3);
    spec.vms[0].tasks.push(task("io", 0, reads()));
    spec.vms[1].tasks.clear();
    spec.vms[1].tasks.push(task("io", 2, reads()));
    for seed in 0..5 {
        let result = run_named(&spec, "vanilla", seed, ms(700));
        for (n, p) in result.pcpus.iter().enumerate() {
            assert_eq!(p.ran + p.switching + p.idle, ms(700), "pCPU {n}, seed {seed}");
            assert_eq!(p.switching, spec.host.context_switch.scaled(p.switches, 1), "pCPU {n}");
        }
        let ran = |r: &MachineResult| r.pcpus.iter().fold(Nanos::ZERO, |sum, p| sum + p.ran);
        let vms = result.vms.iter().fold(Nanos::ZERO, |sum, vm| sum + vm.ran);
        assert_eq!(ran(&result), vms, "seed {seed}");
    }
}

#[test]
fn what_is_before_the_measuring_is_forgotten() {
    let spec = reading(2, 2);
    let whole = run_from(&spec, "vanilla", 1, Nanos::ZERO, ms(1000));
    let half = run_from(&spec, "vanilla", 1, ms(500), ms(1000));
    for p in &half.pcpus {
        assert_eq!(p.ran + p.switching + p.idle, ms(500));
    }
    for (half, whole) in half.vms.iter().zip(&whole.vms) {
        assert!(half.any_ran <= ms(500) && half.ran < whole.ran.scaled(6, 10));
        for (half, whole) in half.tasks.iter().zip(&whole.tasks) {
            assert!(half.ran < whole.ran.scaled(6, 10) && half.ios <= whole.ios * 6 / 10);
        }
        assert!(half.moves_min <= whole.moves_min / 2 + 1 && half.moves_min > 0);
    }
}

#[test]
fn a_vm_alone_loses_nothing() {
    let spec = spec(4, vec![vm("alone", 4, vec![task("io", 0, reads())])]);
    let result = run_named(&spec, "vanilla", 1, ms(1000));
    let alone = &result.vms[0];
    assert_eq!(alone.any_ran, ms(1000).saturating_sub(spec.host.context_switch));
    assert!(result.pcpus.iter().all(|p| p.switches == 1 && p.slices == 1));
    let io = alone.tasks.last().unwrap();
    assert!(io.inactive < us(10), "{}", io.inactive);
    // It takes its vCPU from the compute task at once: nothing but the disk and itself.
    let slowest = io.response.value_at_quantile(0.999);
    assert!(slowest < 120_000, "{slowest} ns");
}

#[test]
fn the_bound_of_pinned_vms_is_that_of_independent_phases() {
    for (n, vcpus) in [(2, 2), (2, 4), (4, 4), (8, 12)] {
        let seeds = 12;
        let any = |seed| {
            let all = run_named(&computing(vcpus, n), "vanilla", seed, ms(2000));
            all.vms.iter().map(|vm| vm.any_ran.as_secs_f64() / 2.0).sum::<f64>() / n as f64
        };
        let got = (0..seeds).map(any).sum::<f64>() / seeds as f64;
        let want = 1.0 - (1.0 - 1.0 / n as f64).powi(i32::from(vcpus));
        assert!((got / want - 1.0).abs() < 0.05, "{n} VMs of {vcpus}: {got} for {want}");
    }
}

#[test]
fn short_slices_are_spread_over_the_round_at_the_same_share() {
    let log = Log::default();
    let script = scripted(&log, |script| script.slice = Some(us(5_500)));
    let mut spec = computing(1, 3);
    spec.host.jitter = Nanos::ZERO;
    spec.vms[1].agent = false;
    spec.vms[2].agent = false;
    let (result, _) = run_with(&spec, &script, 1, Nanos::from_secs(10));
    for vm in 0..3 {
        assert!((share(&result, vm) - 1.0 / 3.0).abs() < 0.005, "{vm}: {}", share(&result, vm));
    }
    // 5.5 ms in every 16.5, where whole slices are 11 in every 33.
    let spans = spans(&log, 0);
    let gaps = spans.windows(2).map(|pair| (pair[1].0 - pair[0].1).as_millis_f64()).skip(3);
    for gap in gaps {
        assert!((gap - 11.0).abs() < 0.1, "away for {gap} ms");
    }
    let whole = run_named(&computing(1, 3), "vanilla", 1, Nanos::from_secs(10));
    let (short, whole) = (result.pcpus[0].switches, whole.pcpus[0].switches);
    assert!(short > whole * 13 / 10, "{short} switches, {whole} with whole slices");
}

#[test]
fn vslicer_pays_for_its_switches() {
    let mut spec = computing(2, 4);
    spec.host.context_switch = us(50);
    let vanilla = run_named(&spec, "vanilla", 1, Nanos::from_secs(4));
    let sliced = run_named(&spec, "vslicer", 1, Nanos::from_secs(4));
    let ratio = sliced.pcpus[0].switches as f64 / vanilla.pcpus[0].switches as f64;
    assert!((1.9..2.1).contains(&ratio), "{ratio}");
    let lost = vanilla.pcpus[0].ran.saturating_sub(sliced.pcpus[0].ran);
    let more = us(50).scaled(sliced.pcpus[0].switches - vanilla.pcpus[0].switches, 1);
    assert_eq!(lost, more);
}

#[test]
fn who_wakes_takes_the_processor_only_where_the_host_lets_it() {
    // A VM that does nothing but I/O beside one that computes.
    let mut quiet = vm("quiet", 1, vec![task("io", 0, reads())]);
    quiet.tasks.remove(0);
    let mut spec = spec(1, vec![quiet, vm("busy", 1, Vec::new())]);
    let ios = |spec: &MachineSpec| run_named(spec, "vanilla", 1, ms(2000)).vms[0].tasks[0].ios;
    let waits = ios(&spec);
    spec.host.wakeup_preempts = true;
    let takes = ios(&spec);
    assert!(waits < 400 && takes > 20_000, "{waits} and {takes}");
}

#[test]
fn a_fixed_vcpu_for_completions_holds_up_the_others() {
    let ios = |on: u16, completes: Completes| {
        let mut spec = reading(2, 4);
        spec.guest.completes = completes;
        let readers = spec.vms.iter_mut().filter_map(|vm| vm.tasks.last_mut());
        readers.for_each(|reader| reader.start = Start::On(on));
        let mean = |seed| {
            let result = run_named(&spec, "vanilla", seed, ms(1000));
            result.vms.iter().map(|vm| vm.tasks.last().unwrap().ios as f64).sum::<f64>()
        };
        (0..8).map(mean).sum::<f64>()
    };
    let submitter = ios(1, Completes::Submitter);
    let any = ios(1, Completes::Any) / submitter;
    assert!((any - 1.0).abs() < 0.02, "{any}: it needs its own anyway");
    let same = ios(0, Completes::Fixed) / ios(0, Completes::Submitter);
    assert!((same - 1.0).abs() < 0.001, "{same}");
    let fixed = ios(1, Completes::Fixed) / submitter;
    // Both vCPUs have to run: at independent phases that is half of the time.
    assert!((0.35..0.65).contains(&fixed), "{fixed}");
}
