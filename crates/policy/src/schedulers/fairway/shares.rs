//! Order of service: targets of latency that are due, then reservations that are behind, then
//! shares by weight.
//!
//! *Shares.* Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) in two levels, as in its
//! section 4: VMs without a group and groups divide the device by their weights, the VMs of a group
//! divide what the group has. Each has a start tag: the cost of what it has sent, over its weight.
//! The one goes next whose next command would end first, by its finish tag: the start tag plus that
//! command's cost. So among VMs that are level a short command goes before a long one. A VM that
//! wakes starts at the tag at which the last command of its level started, less at most one
//! quantum.
//!
//! The caller says what a command costs: bytes on flash, device time where there is a head.

use super::promises::{Promises, Reserves};
use seekway_core::queues::KeyedHeap;
use seekway_core::scheduler::{Group, VmSpec};
use seekway_core::units::{Instant, Sectors};

/// Binary digits behind the point of a tag: a tag grows with any weight.
const FRACTION: u32 = 32;

/// Cost over weight, with [`FRACTION`] binary digits behind the point.
pub type Tag = u128;

/// The next command of a VM.
#[derive(Clone, Copy)]
pub struct Work {
    /// Expected cost.
    pub cost: u64,
    /// When its request arrived.
    pub arrived: Instant,
}

/// Service of a VM or a group.
struct Account {
    weight: u64,
    /// Cost over weight of what it has sent.
    tag: Tag,
    /// When it was last served, as a count: among equals who was served longest ago goes.
    served: u64,
}

impl Account {
    fn new(weight: u32, tag: Tag) -> Account {
        Account { weight: u64::from(weight), tag, served: 0 }
    }

    fn over(&self, cost: u64, boost: f64) -> Tag {
        (u128::from(cost) << FRACTION) / (self.weight as f64 * boost) as u128
    }

    /// Finish tag of its next command, in the order of service.
    fn place(&self, cost: u64, boost: f64) -> (Tag, u64) {
        (self.tag + self.over(cost, boost), self.served)
    }
}

/// Those that divide the device, or what a group has of it.
#[derive(Default)]
struct Level {
    /// Members with work, by their finish tag and the order of service.
    backlog: KeyedHeap<(Tag, u64)>,
    /// The highest start tag of a command that went.
    reached: Tag,
}

struct Vm {
    account: Account,
    group: Option<usize>,
    work: Option<Work>,
}

struct GroupAccount {
    account: Account,
    vms: Level,
    /// Its attached VMs, with work or without; it ends with the last.
    members: u32,
}

/// The shares of one device.
pub struct Shares {
    /// Most cost that a VM that wakes is behind the others, times its weight.
    quantum: Tag,
    vms: Vec<Option<Vm>>,
    groups: Vec<Option<GroupAccount>>,
    /// VMs without a group and groups: see [`of_vm`] and [`of_group`].
    top: Level,
    served: u64,
    pub promises: Promises,
}

/// Numbers of the top level's members.
fn of_vm(vm: usize) -> u32 {
    2 * vm as u32
}

fn of_group(group: usize) -> u32 {
    2 * group as u32 + 1
}

impl Shares {
    pub fn new(quantum: u64) -> Shares {
        Shares {
            quantum: u128::from(quantum) << FRACTION,
            vms: Vec::new(),
            groups: Vec::new(),
            top: Level::default(),
            served: 0,
            promises: Promises::default(),
        }
    }

    pub fn attach(&mut self, vm: usize, spec: &VmSpec) {
        if self.vms.len() <= vm {
            self.vms.resize_with(vm + 1, || None);
        }
        let reached = match spec.group {
            Some(group) => self.join(group),
            None => self.top.reached,
        };
        let group = spec.group.map(|group| usize::from(group.number));
        let account = Account::new(spec.weight.get(), reached);
        self.vms[vm] = Some(Vm { account, group, work: None });
        self.promises.attach(vm, spec);
    }

    /// A VM joins a group: at which tag it begins.
    fn join(&mut self, Group { number, weight }: Group) -> Tag {
        let number = usize::from(number);
        if self.groups.len() <= number {
            self.groups.resize_with(number + 1, || None);
        }
        let reached = self.top.reached;
        let group = self.groups[number].get_or_insert_with(|| GroupAccount {
            account: Account::new(weight.get(), reached),
            vms: Level::default(),
            members: 0,
        });
        group.account.weight = u64::from(weight.get());
        group.members += 1;
        group.vms.reached
    }

    pub fn detach(&mut self, vm: usize) {
        self.set_work(Instant::ZERO, vm, None);
        let Some(known) = self.vms.get_mut(vm).and_then(Option::take) else { return };
        self.promises.detach(vm);
        if let Some(number) = known.group
            && let Some(group) = &mut self.groups[number]
        {
            group.members -= 1;
            if group.members == 0 {
                self.groups[number] = None;
            }
        }
    }

    /// Sets the VM's next command; `None`: nothing is queued.
    pub fn set_work(&mut self, now: Instant, vm: usize, work: Option<Work>) {
        let Some(known) = self.vms.get_mut(vm).and_then(Option::as_mut) else { return };
        let wakes = known.work.is_none() && work.is_some();
        known.work = work;
        if wakes {
            self.wake(vm);
        }
        self.place(vm);
        self.promises.set_work(now, vm, work.map(|work| work.arrived));
    }

    /// A VM without work is to have some: it is not further behind than a quantum.
    fn wake(&mut self, vm: usize) {
        let Some(known) = self.vms.get_mut(vm).and_then(Option::as_mut) else { return };
        let (top, quantum) = (&self.top, self.quantum);
        let level = match known.group.and_then(|group| self.groups[group].as_mut()) {
            Some(group) => {
                if group.vms.backlog.first().is_none() {
                    let least = top.reached.saturating_sub(quantum);
                    group.account.tag = group.account.tag.max(least);
                }
                &group.vms
            }
            None => top,
        };
        known.account.tag = known.account.tag.max(level.reached.saturating_sub(quantum));
    }

    /// Start tag of the VM, or of its group if it has one: the least goes first.
    pub fn tag(&self, vm: usize) -> Tag {
        let Some(Some(known)) = self.vms.get(vm) else { return 0 };
        let group = known.group.and_then(|group| self.groups[group].as_ref());
        group.map_or(known.account.tag, |group| group.account.tag)
    }

    /// A place among those with work for this VM and its group, or none.
    fn place(&mut self, vm: usize) {
        let Some(known) = &self.vms[vm] else { return };
        let boost = self.promises.targets.boost(vm);
        let place = known.work.map(|work| known.account.place(work.cost, boost));
        let Some(number) = known.group else {
            self.top.backlog.set(of_vm(vm), place);
            return;
        };
        let Some(group) = &mut self.groups[number] else { return };
        group.vms.backlog.set(vm as u32, place);
        let first = group.vms.backlog.first();
        let work = first.and_then(|(_, vm)| self.vms[vm as usize].as_ref()?.work);
        let place = work.map(|work| group.account.place(work.cost, 1.0));
        self.top.backlog.set(of_group(number), place);
    }

    /// The VM that goes next, of those with work.
    pub fn first(&mut self, now: Instant) -> Option<usize> {
        let by_share = self.by_share();
        let Shares { quantum, vms, groups, top, promises, .. } = self;
        let is_others_turn = |reserves: &Reserves| {
            by_share.is_some_and(|vm| {
                let work = vms[vm].as_ref().and_then(|known| known.work);
                !reserves.has(vm) && work.is_some_and(|work| reserves.leaves(work.cost))
            })
        };
        let is_level = |vm| is_level(vm, vms, groups, top, *quantum);
        promises.next(now, is_level, is_others_turn).or(by_share)
    }

    /// The VM whose share is furthest behind, of those with work.
    fn by_share(&self) -> Option<usize> {
        let (_, number) = self.top.backlog.first()?;
        if number.is_multiple_of(2) {
            return Some(number as usize / 2);
        }
        let group = self.groups[number as usize / 2].as_ref()?;
        group.vms.backlog.first().map(|(_, vm)| vm as usize)
    }

    /// Did the VM have less than its share for a while, though it asked for more? It is behind only
    /// if it still is with its next command, of this `cost`; otherwise its turn has just not come.
    pub fn is_behind(&self, vm: usize, cost: u64) -> bool {
        let Some(known) = &self.vms[vm] else { return false };
        let level = match known.group.and_then(|group| self.groups[group].as_ref()) {
            Some(group) => &group.vms,
            None => &self.top,
        };
        known.account.place(cost, 1.0).0 + self.quantum / 2 < level.reached
    }

    /// The VM has sent a command, or more of one: what that costs, how many requests and how
    /// long. What it sends next is to be said by [`Shares::set_work`] then.
    pub fn charge(&mut self, now: Instant, vm: usize, cost: u64, requests: u64, len: Sectors) {
        let is_its_turn = self.by_share() == Some(vm);
        self.charge_turn(now, vm, cost, requests, len, is_its_turn);
    }

    /// A prefetch of the VM has gone, while no VM had work.
    pub fn charge_background(&mut self, now: Instant, vm: usize, cost: u64, len: Sectors) {
        self.wake(vm);
        self.charge_turn(now, vm, cost, 0, len, true);
    }

    fn charge_turn(
        &mut self,
        now: Instant,
        vm: usize,
        cost: u64,
        requests: u64,
        len: Sectors,
        is_its_turn: bool,
    ) {
        let boost = self.promises.targets.boost(vm);
        let was_behind = self.promises.reserves.charge(now, vm, requests, len, cost);
        // A reservation is met first: what goes for it keeps nobody from its share later.
        let most = if was_behind { self.quantum } else { Tag::MAX };
        self.served += 1;
        let served = self.served;
        let charge = |account: &mut Account, level: &mut Level, boost| {
            if is_its_turn {
                level.reached = level.reached.max(account.tag);
            }
            let tag = account.tag + account.over(cost, boost);
            account.tag = tag.min(level.reached.saturating_add(most)).max(account.tag);
            account.served = served;
        };
        let Some(known) = self.vms[vm].as_mut() else { return };
        match known.group.and_then(|group| self.groups[group].as_mut()) {
            Some(group) => {
                charge(&mut known.account, &mut group.vms, boost);
                charge(&mut group.account, &mut self.top, boost);
            }
            None => charge(&mut known.account, &mut self.top, boost),
        }
    }

    /// The VMs that are attached.
    pub fn vms(&self) -> impl Iterator<Item = usize> + '_ {
        self.vms.iter().enumerate().filter_map(|(vm, known)| known.as_ref().map(|_| vm))
    }
}

/// Is the VM, which has work, ahead of whose share is furthest behind by a quantum at most?
fn is_level(
    vm: usize,
    vms: &[Option<Vm>],
    groups: &[Option<GroupAccount>],
    top: &Level,
    quantum: Tag,
) -> bool {
    let is_level = |account: &Account, level: &Level| {
        level.backlog.first().is_none_or(|((tag, _), _)| account.tag <= tag + quantum)
    };
    let Some(known) = &vms[vm] else { return false };
    match known.group.and_then(|group| groups[group].as_ref()) {
        Some(group) => is_level(&known.account, &group.vms) && is_level(&group.account, top),
        None => is_level(&known.account, top),
    }
}
