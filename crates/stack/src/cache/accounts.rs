//! Usage of the cache and of the prefetcher by each process of each VM.

use super::blocks::Account;
use seekway_core::request::{ProcessTag, VmId};

/// Processes of one VM that are told apart; those beyond are counted with what
/// is untagged, so that a guest cannot make the table grow.
const PROCESSES_MAX: usize = 256;

/// Processes of all VMs that are told apart: each VM has its untagged account too.
const TAGGED_MAX: usize = Account::MAX as usize - crate::dispatcher::VMS_MAX;

/// Sectors (of 512 bytes) and counts since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Guests' reads for which the cache was asked.
    pub reads: u64,
    /// Sectors that they asked for.
    pub read: u64,
    /// Of them, found in the cache.
    pub cached: u64,
    /// Of them, found being prefetched.
    pub late: u64,
    /// Of them, read from the device for them.
    pub missed: u64,
    /// Sectors whose prefetch began.
    pub prefetched: u64,
    /// Of them, read by a guest since, once or more.
    pub used: u64,
    /// Of them, gone from the cache without, or not to be read.
    pub wasted: u64,
    /// Of them, neither: never fetched, since demand wanted the device. They cost nothing.
    pub dropped: u64,
    /// Prefetches that a guest's read took over while they waited.
    pub promoted: u64,
}

impl Usage {
    /// The paper's accuracy: prefetched and used, of all that was used. 0 to 1.
    pub fn accuracy(&self) -> f64 {
        ratio(self.used.min(self.read), self.read)
    }
    /// The paper's cost: prefetched and unused, of all that was used or
    /// prefetched. 0 to 1. What is still in the cache and unused counts.
    pub fn cost(&self) -> f64 {
        let unused = self.prefetched.saturating_sub(self.used + self.dropped);
        ratio(unused, self.read + unused)
    }
    /// Counts after `earlier`, an older copy of the same counts. Blocks that were prefetched before
    /// and used after are used: there may be more of them than are prefetched.
    pub fn since(&self, earlier: &Usage) -> Usage {
        let mut since = *self;
        since.change(earlier, |now, earlier| now - earlier);
        since
    }

    /// Change each count by the same count of another.
    fn change(&mut self, other: &Usage, to: fn(u64, u64) -> u64) {
        for (count, other) in [
            (&mut self.reads, other.reads),
            (&mut self.read, other.read),
            (&mut self.cached, other.cached),
            (&mut self.late, other.late),
            (&mut self.missed, other.missed),
            (&mut self.prefetched, other.prefetched),
            (&mut self.used, other.used),
            (&mut self.wasted, other.wasted),
            (&mut self.dropped, other.dropped),
            (&mut self.promoted, other.promoted),
        ] {
            *count = to(*count, other);
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl std::ops::AddAssign<&Usage> for Usage {
    fn add_assign(&mut self, other: &Usage) {
        self.change(other, |count, other| count + other);
    }
}

/// The accounts of all VMs.
#[derive(Default)]
pub(super) struct Accounts {
    usages: Vec<Usage>,
    free: Vec<Account>,
    /// By VM: the account without a tag first, then those with, by tag.
    by_vm: Vec<Vec<(Option<ProcessTag>, Account)>>,
    /// Accounts with a tag.
    tagged: usize,
}

impl Accounts {
    /// The account of a process; that of the VM's untagged reads when it has too many.
    pub(super) fn of(&mut self, vm: VmId, tag: Option<ProcessTag>) -> Account {
        if self.by_vm.len() <= vm.index() {
            self.by_vm.resize_with(vm.index() + 1, Vec::new);
        }
        let known = &self.by_vm[vm.index()];
        let at = match known.binary_search_by_key(&tag, |&(tag, _)| tag) {
            Ok(at) => return known[at].1,
            Err(at) => at,
        };
        if tag.is_some() {
            if known.len() >= PROCESSES_MAX || self.tagged >= TAGGED_MAX {
                return self.of(vm, None);
            }
            self.tagged += 1;
        }
        let account = self.free.pop().unwrap_or_else(|| {
            self.usages.push(Usage::default());
            (self.usages.len() - 1) as Account
        });
        *self.usage(account) = Usage::default();
        self.by_vm[vm.index()].insert(at, (tag, account));
        account
    }

    /// The VM has left: its figures go with it.
    pub(super) fn detach(&mut self, vm: VmId) {
        let Some(known) = self.by_vm.get_mut(vm.index()) else { return };
        for (tag, account) in known.drain(..) {
            self.tagged -= usize::from(tag.is_some());
            self.free.push(account);
        }
    }

    /// Counts of an account, to add to.
    pub(super) fn usage(&mut self, account: Account) -> &mut Usage {
        &mut self.usages[usize::from(account)]
    }

    pub(super) fn each(&self, sink: &mut dyn FnMut(VmId, Option<ProcessTag>, &Usage)) {
        for (vm, known) in self.by_vm.iter().enumerate() {
            for &(tag, account) in known {
                sink(VmId::new(vm as u16), tag, &self.usages[usize::from(account)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vm_has_an_account_of_its_own_whatever_others_did() {
        let (mut accounts, tags) = (Accounts::default(), 1..=PROCESSES_MAX as u16);
        let vms = crate::dispatcher::VMS_MAX as u16;
        for round in 0..40 {
            // Untagged ones leave places that tagged ones take.
            (0..vms).for_each(|vm| _ = accounts.of(VmId::new(vm), None));
            let tagging = (0..vms).filter(|vm| (vm + round) % 16 == 0);
            for vm in tagging {
                accounts.detach(VmId::new(vm));
                tags.clone().for_each(|tag| _ = accounts.of(VmId::new(vm), ProcessTag::new(tag)));
            }
        }
        (0..vms).for_each(|vm| _ = accounts.of(VmId::new(vm), None));
        assert!(accounts.usages.len() <= usize::from(Account::MAX));
        assert!(
            accounts.by_vm.iter().all(|known| known[0].0.is_none()),
            "untagged ones come first"
        );
        let all: Vec<Account> = accounts.by_vm.iter().flatten().map(|known| known.1).collect();
        let apart: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(apart.len(), all.len(), "two are counted together");
    }
}
