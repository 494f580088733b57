//! The discipline of a task's affinity against a naive model: the task's owner sets masks at any
//! time, CPUs go off and on line, the agent moves the task and dies at any point, and another takes
//! over by the record. In the end the task has the owner's last mask.
//!
//! `SEEKWAY_SEED=n cargo test -p seekway-vcpu --test it affinity` tries others.

use proptest::prelude::*;
use seekway_conformance::seeded;
use seekway_vcpu::{Affinity, VcpuId, VcpuSet};

const CPUS: u16 = 5;

#[derive(Clone, Debug)]
enum Step {
    OwnerSets(VcpuSet),
    Off(u16),
    On(u16),
    Move { wanted: VcpuSet, dies: Dies },
    Release { dies: Dies },
}

/// Where the agent dies in the course of a change.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Dies {
    Not,
    BeforeTheRecord,
    BeforeTheCall,
    AfterTheCall,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let set = || {
        (1u16..1 << CPUS).prop_map(|bits| {
            (0..CPUS).filter(|n| bits >> n & 1 == 1).map(VcpuId::new).collect::<VcpuSet>()
        })
    };
    let dies = || {
        use Dies::*;
        prop_oneof![6 => Just(Not), 1 => Just(BeforeTheRecord), 1 => Just(BeforeTheCall),
                    1 => Just(AfterTheCall)]
    };
    let step = prop_oneof![
        3 => set().prop_map(Step::OwnerSets),
        2 => (0..CPUS).prop_map(Step::Off),
        2 => (0..CPUS).prop_map(Step::On),
        8 => (set(), dies()).prop_map(|(wanted, dies)| Step::Move { wanted, dies }),
        2 => dies().prop_map(|dies| Step::Release { dies }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The kernel, the owner's wish, and the agent's record.
struct World {
    /// The kernel leaves CPUs that are off line out of a new mask, as Linux 6.1 does.
    drops: bool,
    mask: VcpuSet,
    online: VcpuSet,
    /// Off line at some time since the agent looked, or now.
    went: VcpuSet,
    owner: VcpuSet,
    agent: Affinity,
    file: String,
    /// The mask is the kernel's, because nothing was left of another.
    widened: bool,
    /// The kernel dropped the owner's own mask: there is nothing to keep until the owner sets
    /// another.
    taken: bool,
}

impl World {
    fn new(drops: bool) -> World {
        let all = VcpuSet::first(usize::from(CPUS));
        let agent = Affinity::new(all);
        let file = agent.to_string();
        World {
            drops,
            mask: all,
            online: all,
            went: VcpuSet::EMPTY,
            owner: all,
            agent,
            file,
            widened: false,
            taken: false,
        }
    }

    fn set(&mut self, mask: VcpuSet) {
        assert!(!mask.and(&self.online).is_empty(), "EINVAL: {mask} of {}", self.online);
        self.mask = self.kept(mask);
        self.widened = false;
    }

    /// The CPUs of a mask that the kernel keeps when it is set.
    fn kept(&self, mask: VcpuSet) -> VcpuSet {
        if self.drops { mask.and(&self.online) } else { mask }
    }

    /// Masks that the agent has set or was about to set, by its own record.
    fn recorded(&self) -> Vec<VcpuSet> {
        let parts = self.file.split(' ').skip(1).filter(|text| *text != "-");
        parts.map(|text| text.parse().unwrap()).collect()
    }

    /// Tells whether the module's documentation counts this mask as ambiguous: it cannot be told
    /// from the agent's own.
    fn is_ambiguous(&self, mask: VcpuSet) -> bool {
        let mask = self.kept(mask);
        mask.and(&self.online).is_empty()
            || mask == self.mask
            || self.recorded().iter().any(|set| mask == *set || self.looks_widened(set, &mask))
    }

    fn looks_widened(&self, set: &VcpuSet, mask: &VcpuSet) -> bool {
        set.is_subset(&self.went) && set.is_subset(mask) && self.online.is_subset(mask)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::OwnerSets(mask) if self.is_ambiguous(mask) => {}
            Step::OwnerSets(mask) => {
                self.set(mask);
                // A CPU that the kernel has dropped was lost by the owner's own call.
                (self.owner, self.taken) = (self.mask, false);
            }
            Step::Off(n) => self.off(VcpuId::new(n)),
            Step::On(n) => self.online.insert(VcpuId::new(n)),
            Step::Move { wanted, dies } => {
                let mask = self.agent.change(&self.mask, &self.online, &wanted);
                if let Some(mask) = mask {
                    assert!(mask.is_subset(&wanted));
                    assert!(mask.is_subset(&self.owner) || self.taken);
                }
                self.finish(mask, dies);
            }
            Step::Release { dies } => {
                let mask = self.agent.restore(&self.mask, &self.online);
                self.finish(mask, dies);
            }
        }
    }

    fn off(&mut self, cpu: VcpuId) {
        let before = (self.online, self.went);
        self.online.remove(cpu);
        self.went.insert(cpu);
        let ours = self.recorded();
        let ambiguous = !ours.contains(&self.mask)
            && !self.widened
            && ours.iter().any(|set| self.looks_widened(set, &self.mask));
        if self.online.is_empty() || ambiguous {
            (self.online, self.went) = before;
            return;
        }
        self.agent.went_offline(cpu);
        if self.mask.and(&self.online).is_empty() {
            self.taken |= self.mask == self.owner;
            self.mask = VcpuSet::first(usize::from(CPUS));
            self.widened = true;
        }
    }

    /// Steps 3 and 4 of the agent, or its death and the next one's beginning.
    fn finish(&mut self, mask: Option<VcpuSet>, dies: Dies) {
        self.went =
            VcpuSet::first(CPUS.into()).iter().filter(|n| !self.online.contains(*n)).collect();
        if dies != Dies::BeforeTheRecord {
            self.file = self.agent.to_string();
            self.widened = false;
            if dies != Dies::BeforeTheCall {
                if let Some(mask) = mask {
                    self.set(mask);
                }
                self.agent.done(true);
            }
        }
        match dies {
            Dies::Not => self.file = self.agent.to_string(),
            _ => {
                self.agent = self.file.parse().unwrap();
                self.went.iter().for_each(|cpu| self.agent.went_offline(cpu));
            }
        }
        // The next agent does not know which CPUs were off line before it came.
        let gone = |set: &VcpuSet| set.and(&self.online).is_empty();
        if self.widened && !self.recorded().iter().any(gone) {
            self.owner = self.mask;
        }
    }

    /// The last agent ends, or `restore` does this for it.
    fn end(&mut self) {
        if let Some(mask) = self.agent.restore(&self.mask, &self.online) {
            self.set(mask);
        }
        let had = self.owner.and(&self.online);
        // None of the owner's CPUs may remain: the kernel handles that.
        if !had.is_empty() && !self.taken {
            assert_eq!(self.mask.and(&self.online), had, "of the owner's {}", self.owner);
        }
    }
}

#[test]
fn in_the_end_the_task_has_what_its_owner_set() {
    seeded::check("affinity", 20_000, &(any::<bool>(), steps()), |(drops, steps)| {
        let mut world = World::new(drops);
        steps.iter().for_each(|step| world.step(step));
        world.end();
        Ok(())
    });
}
