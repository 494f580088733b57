//! Tests of the machine on devices small enough to work out the results.

mod agent;
mod guest;
mod guests;
mod host;
mod moves;
mod nomad;
mod script;
mod support;
mod swarm;

use super::{Completes, MachineSpec};
use nomad::Nomad;
use support::*;

#[test]
fn two_vms_halve_what_an_io_task_gets() {
    let with = |vms: usize| {
        let result = run_named(&reading(vms, 4), "vanilla", 1, ms(2000));
        result.vms[0].tasks.iter().find(|t| t.io).unwrap().ios as f64
    };
    let (alone, shared) = (with(1), with(2));
    assert!((0.45..0.55).contains(&(shared / alone)), "{shared} of {alone}");
}

#[test]
fn moves_keep_an_io_task_running() {
    let mut spec = reading(2, 4);
    let ios = |spec: &MachineSpec, moves: bool| {
        let result = match moves {
            true => run_with(spec, &|| Box::<Nomad>::default(), 1, ms(2000)).0,
            false => run_named(spec, "vanilla", 1, ms(2000)),
        };
        let vm = &result.vms[0];
        (vm.tasks.iter().find(|t| t.io).unwrap().ios as f64, vm.moves, vm.blocked)
    };
    let (still, ..) = ios(&spec, false);
    // It moves when its vCPU has gone, and its completion is with that one.
    let (late, ..) = ios(&spec, true);
    spec.guest.completes = Completes::Any;
    let (moved, moves, blocked) = ios(&spec, true);
    assert!(moved > 1.3 * still && moved > 1.3 * late, "{moved}, {late} where it was, {still}");
    assert!(0 < blocked && blocked < moves, "{blocked} of {moves} wait for a vCPU");
    spec.ablation.free_stopper = true;
    spec.ablation.free_completions = true;
    let (free, ..) = ios(&spec, true);
    assert!(free > 1.05 * moved, "{free} with all for free, {moved} without");
}
