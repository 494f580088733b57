//! Counts in one place what VMMs make the daemon hold: each VMM has a limit of its own, and all
//! together have one that leaves a reserve for the daemon and for NBD's clients. A [`Hold`] stands
//! for what is held, and gives it back when it is dropped.
//!
//! Limits that are counted where they arise: regions of memory
//! ([`super::memory::REGIONS_MAX`]), virtqueues ([`super::QUEUES_MAX`]), and memory that was
//! exchanged while requests used it ([`super::session::RETIRED_MAX`]).
//!
//! Guests' memory is counted in bytes of files. A page that the daemon touches first is charged to
//! the daemon's control group, and nobody can tell beforehand which these are: a VMM can punch a hole
//! where there was a page. So all counts that a VMM has the daemon map, touched or not.

use crate::threads::lock;
use rustix::process::{self, getrlimit};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// Resource that a VMM makes the process hold, counted for each VMM and for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Descriptors of the process: eventfds of the VMM, and the rings that signal them.
    Descriptors,
    /// Mappings of the process: regions of memory, logs, records, rings.
    Mappings,
}

/// Most descriptors and mappings of one VMM. [`super::QUEUES_MAX`] virtqueues take 1,792
/// descriptors and 1,536 mappings.
pub const PEER_MAX: [usize; 2] = [2048, 2048];
/// Number of them that do not count in the total: each VMM has them whatever the others hold.
pub const PEER_RESERVED: usize = 64;
/// All VMMs together have this many quarters of what the process may have.
pub const TOTAL_QUARTERS: usize = 3;

/// Limits of the process where the system does not say: `LimitNOFILE=` of the unit, and Linux's
/// `vm.max_map_count`.
const PROCESS_MAX: [usize; 2] = [65_536, 65_530];

static PROCESS: OnceLock<[usize; 2]> = OnceLock::new();
/// Bytes of the host's memory; not set where the system does not say it.
static HOST_BYTES: OnceLock<u64> = OnceLock::new();
/// Sum of what all accounts hold beyond their reserved part. Accounts change while it is locked.
static TOTAL: Mutex<[usize; 2]> = Mutex::new([0; 2]);

/// A VMM, or all together, would hold too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Exceeded {
    #[error("its VMM holds {max} {}, and that is the most", .resource.name())]
    Peer { resource: Resource, max: usize },
    #[error(
        "all VMMs hold {max} {}, and the rest is reserved for the daemon: raise {}",
        .resource.name(), .resource.setting()
    )]
    Total { resource: Resource, max: usize },
    #[error(
        "{bytes} bytes of memory would be mapped for its VMM, and {max} are the most: raise \
         guest_memory= of the disk"
    )]
    Memory { bytes: u64, max: u64 },
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Resource::Descriptors => "descriptors",
            Resource::Mappings => "mappings",
        }
    }

    fn setting(self) -> &'static str {
        match self {
            Resource::Descriptors => "LimitNOFILE= in the daemon's unit (ulimit -n)",
            Resource::Mappings => "/proc/sys/vm/max_map_count",
        }
    }
}

/// Look up what the process may have: before threads confine themselves. `host_bytes` is the host's
/// memory: the most that a VMM has mapped where nobody sets another limit.
pub fn measure(host_bytes: Option<u64>) {
    host_bytes.map(|bytes| HOST_BYTES.get_or_init(|| bytes));
    PROCESS.get_or_init(|| {
        let limit = getrlimit(process::Resource::Nofile).current.map_or(usize::MAX, |n| n as usize);
        let maps = fs::read_to_string("/proc/sys/vm/max_map_count");
        let maps = maps.ok().and_then(|text| text.trim().parse().ok());
        [limit, maps.unwrap_or(PROCESS_MAX[1])]
    });
}

/// The most that all VMMs may hold together, beyond what is reserved for each.
fn total_max(resource: Resource) -> usize {
    PROCESS.get().unwrap_or(&PROCESS_MAX)[resource as usize] / 4 * TOTAL_QUARTERS
}

/// Resources that one VMM holds.
#[derive(Default)]
pub struct Account {
    held: [AtomicUsize; 2],
    /// Most bytes of guest memory, if somebody has set it.
    memory_max: Option<u64>,
    memory: Mutex<Vec<FilePart>>,
}

/// A file by its device and number, as long as it is mapped.
pub type FileId = (u64, u64);
/// Some bytes of a file.
type FilePart = (FileId, Range<u64>);

/// Something that a VMM holds.
pub struct Hold {
    account: Arc<Account>,
    resource: Resource,
    count: usize,
}

/// A part of a file with guest memory that is mapped for a VMM.
pub struct MemoryHold {
    account: Arc<Account>,
    part: FilePart,
}

impl Account {
    /// With the most guest memory in bytes that is mapped at a time [the host's memory].
    pub fn new(memory_max: Option<u64>) -> Account {
        Account { memory_max, ..Account::default() }
    }

    /// Hold guest memory. Bytes of a file count once, however often they are mapped. Memory
    /// `in_huge_pages` was set aside by the host's administrator, is charged to no group, and counts
    /// only where the disk has a limit of its own.
    ///
    /// # Errors
    /// [`Exceeded`], and nothing is held.
    pub fn hold_memory(
        self: &Arc<Account>,
        file: FileId,
        range: Range<u64>,
        in_huge_pages: bool,
    ) -> Result<Option<MemoryHold>, Exceeded> {
        if in_huge_pages && self.memory_max.is_none() {
            return Ok(None);
        }
        let max = self.memory_max.or(HOST_BYTES.get().copied()).unwrap_or(u64::MAX);
        let part = (file, range);
        let mut parts = lock(&self.memory);
        parts.push(part.clone());
        let bytes = bytes_of(&parts);
        if bytes > max {
            parts.pop();
            return Err(Exceeded::Memory { bytes, max });
        }
        Ok(Some(MemoryHold { account: self.clone(), part }))
    }

    /// Hold `count` more.
    ///
    /// # Errors
    /// [`Exceeded`], and nothing is held.
    pub fn hold(self: &Arc<Account>, resource: Resource, count: usize) -> Result<Hold, Exceeded> {
        let mut total = lock(&TOTAL);
        let (held, total) = (&self.held[resource as usize], &mut total[resource as usize]);
        let (before, max) = (held.load(Relaxed), PEER_MAX[resource as usize]);
        #[cfg(test)]
        let max = if shortage::is_here() { before } else { max };
        let after = before + count;
        if after > max {
            return Err(Exceeded::Peer { resource, max });
        }
        let (more, max) = (beyond(after) - beyond(before), total_max(resource));
        if more > 0 && *total + more > max {
            return Err(Exceeded::Total { resource, max });
        }
        *total += more;
        held.store(after, Relaxed);
        Ok(Hold { account: self.clone(), resource, count })
    }

    #[cfg(test)]
    pub fn held(&self, resource: Resource) -> usize {
        self.held[resource as usize].load(Relaxed)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut total = lock(&TOTAL);
        let held = &self.account.held[self.resource as usize];
        let before = held.load(Relaxed);
        let after = before - self.count;
        held.store(after, Relaxed);
        total[self.resource as usize] -= beyond(before) - beyond(after);
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        let mut parts = lock(&self.account.memory);
        if let Some(at) = parts.iter().position(|part| *part == self.part) {
            parts.swap_remove(at);
        }
    }
}

/// Bytes of the files that lie in one part at least.
fn bytes_of(parts: &[FilePart]) -> u64 {
    let mut files = BTreeMap::<FileId, Vec<&Range<u64>>>::new();
    for (file, range) in parts {
        files.entry(*file).or_default().push(range);
    }
    files.into_values().fold(0, |sum: u64, mut ranges| {
        ranges.sort_unstable_by_key(|range| range.start);
        let (bytes, _) = ranges.iter().fold((0, 0), |(bytes, end): (u64, u64), range| {
            let new = range.end.saturating_sub(range.start.max(end));
            (bytes.saturating_add(new), end.max(range.end))
        });
        sum.saturating_add(bytes)
    })
}

/// Part of `held` that counts in the total.
fn beyond(held: usize) -> usize {
    held.saturating_sub(PEER_RESERVED)
}

/// A VMM of a simulated host has used up what it may hold.
#[cfg(test)]
pub mod shortage {
    use std::cell::Cell;

    thread_local! {
        /// Holds that are still granted to VMMs of this thread; `None` for all.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
        static HAS_COME: Cell<bool> = const { Cell::new(false) };
    }

    /// Refuse all holds of this thread but the next few; `None` for none.
    pub fn comes_after(holds: Option<u64>) {
        LEFT.set(holds);
        HAS_COME.set(false);
    }

    /// Has a hold been refused?
    pub fn has_come() -> bool {
        HAS_COME.get()
    }

    /// Is this hold refused?
    pub(super) fn is_here() -> bool {
        let left = LEFT.get();
        LEFT.set(left.map(|left| left.saturating_sub(1)));
        HAS_COME.set(HAS_COME.get() || left == Some(0));
        left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vmm_has_a_limit_and_gives_back_what_it_drops() {
        let account = Arc::new(Account::default());
        let max = PEER_MAX[Resource::Mappings as usize];
        let most = account.hold(Resource::Mappings, max - 1).unwrap();
        let last = account.hold(Resource::Mappings, 1).unwrap();
        let refused = account.hold(Resource::Mappings, 1).err();
        assert_eq!(refused, Some(Exceeded::Peer { resource: Resource::Mappings, max }));
        assert!(account.hold(Resource::Descriptors, 1).is_ok(), "counted apart");
        drop((most, last));
        assert_eq!(account.held(Resource::Mappings), 0);
        assert!(account.hold(Resource::Mappings, max).is_ok());
    }

    const FILE: FileId = (1, 7);
    const OTHER: FileId = (1, 8);

    #[test]
    fn a_vmm_has_so_much_memory_mapped_and_a_file_counts_once() {
        let account = Arc::new(Account::new(Some(100)));
        let hold = |file, range| account.hold_memory(file, range, false);
        let low = hold(FILE, 0..60).unwrap();
        let same = hold(FILE, 20..60).unwrap();
        let other = hold(OTHER, 0..20).unwrap();
        let refused = hold(FILE, 50..81).err();
        assert_eq!(refused, Some(Exceeded::Memory { bytes: 101, max: 100 }));
        let high = hold(FILE, 50..80).unwrap();
        drop(low);
        assert_eq!(bytes_of(&account.memory.lock().unwrap()), 80, "20 to 80, and another file");
        assert!(hold(OTHER, 20..41).is_err());
        drop((same, other, high));
        assert!(hold(OTHER, 0..100).is_ok());
        assert!(account.memory.lock().unwrap().is_empty());
    }

    #[test]
    fn huge_pages_count_where_the_disk_has_a_limit() {
        let account = Arc::new(Account::new(Some(100)));
        assert!(account.hold_memory(FILE, 0..101, true).is_err());
        let hold = Arc::<Account>::default().hold_memory(FILE, 0..u64::MAX, true);
        assert!(hold.unwrap().is_none());
    }

    #[test]
    fn all_together_leave_a_reserve_and_each_has_its_own() {
        let resource = Resource::Descriptors;
        let greedy: Vec<Arc<Account>> =
            (0..2 * total_max(resource) / PEER_MAX[0]).map(|_| Arc::default()).collect();
        let held: Vec<Hold> =
            greedy.iter().map_while(|a| a.hold(resource, PEER_MAX[0]).ok()).collect();
        let (all, most) = (held.len() * PEER_MAX[0], total_max(resource));
        assert!(held.len() < greedy.len() && all <= most + held.len() * PEER_RESERVED);
        let late = Arc::<Account>::default();
        assert!(late.hold(resource, PEER_RESERVED).is_ok(), "whatever the others hold");
        let refused = late.hold(resource, PEER_MAX[0]).err();
        assert_eq!(refused, Some(Exceeded::Total { resource, max: most }));
        drop(held);
        assert!(late.hold(resource, PEER_MAX[0]).is_ok());
    }
}
