//! Which vCPU hears of completions: on the paper's host, and on others.
//!
//! The paper does not say. Its published code (github.com/hku-systems/vMigrater) mounts
//! `/dev/vda`: a virtio-blk disk, which has one queue in the QEMU of Ubuntu 16.04 (2.5). And it
//! says "vCPU 0 is dedicated to handle all the interrupts": there it starts no task that
//! computes, and moves no I/O task to it (`src/main.c`).

use super::load::Scene;
use crate::vcpu::{Completes, Load, MachineSpec, Start};

/// Which vCPU hears of a VM's completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// The one that asked: a queue for each vCPU.
    Asker,
    /// Any that runs.
    Any,
    /// The first, which computes as the others do: one queue.
    First,
    /// The first, and it does nothing else: the paper's host.
    Apart,
    /// The one to which the agent moved a task last.
    Steered,
}

impl Heard {
    /// All but [`Heard::Asker`], which the other experiments have.
    pub const OTHERS: [Heard; 4] = [Heard::Apart, Heard::First, Heard::Any, Heard::Steered];

    pub fn name(self) -> &'static str {
        match self {
            Heard::Asker => "completions on the vCPU that asked",
            Heard::Any => "completions on any vCPU that runs",
            Heard::First => "completions on the first vCPU",
            Heard::Apart => "completions on a first vCPU kept free",
            Heard::Steered => "completions steered by the agent",
        }
    }

    fn completes(self) -> Completes {
        match self {
            Heard::Asker => Completes::Submitter,
            Heard::Any => Completes::Any,
            Heard::First | Heard::Apart => Completes::Fixed,
            Heard::Steered => Completes::Steered,
        }
    }

    /// The scene with completions heard so.
    pub fn on(self, scene: Scene) -> Scene {
        if self == Heard::Asker {
            return scene;
        }
        scene.with(self.name(), |machine| {
            machine.guest.completes = self.completes();
            if self == Heard::Apart {
                keep_first_free(machine);
            }
        })
    }
}

/// The scene as on the paper's host.
pub(super) fn papers(scene: &Scene) -> Scene {
    Heard::Apart.on(scene.clone())
}

fn keep_first_free(machine: &mut MachineSpec) {
    for vm in &mut machine.vms {
        vm.tasks.retain(|task| task.load != Load::Compute || task.start != Start::On(0));
        let vcpus = vm.vcpus;
        vm.tasks.iter_mut().for_each(|task| task.allowed = (1..vcpus).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::{Disk, RANDOM};
    use super::*;
    use crate::experiments::testing::options;

    #[test]
    fn nothing_runs_on_the_first_vcpu_of_the_papers_host() {
        let scene = papers(&Scene::of(RANDOM, Disk::Ssd, 4, 2, &options(1)));
        let tasks = |vm: &crate::vcpu::VmSpec| vm.tasks.len();
        assert_eq!(
            scene.machine.vms.iter().map(tasks).collect::<Vec<_>>(),
            [4, 4],
            "three compute"
        );
        let mut all = scene.machine.vms.iter().flat_map(|vm| &vm.tasks);
        assert!(all.all(|task| task.start != Start::On(0) && !task.allowed.contains(&0)));
    }
}
