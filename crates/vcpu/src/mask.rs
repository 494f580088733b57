//! Sets of vCPUs, and the ownership of an affinity: a task's owner's or ours (algorithms.md,
//! section 7: "a task's own affinity mask is respected and survives").
//!
//! The agent has an [`Affinity`] for each task whose mask it changes. It does no system call; the
//! agent takes these four steps in this order, each time:
//!
//! 1. read the mask that the kernel shows now: `Cpus_allowed` in `/proc/TID/status`, which has the
//!    CPUs that are off line too. (`sched_getaffinity` leaves these out, and an original learned
//!    from it would be too small for ever.)
//! 2. [`Affinity::change`] or [`Affinity::restore`]: the mask to set, if any;
//! 3. write the record ([`Affinity`]'s `Display`) to the file, if it has changed;
//! 4. set the mask, and report the result: [`Affinity::done`].
//!
//! The agent may die after any of these: the record names both the mask that was set and the one
//! that was about to be, and its reader calls [`Affinity::restore`].
//!
//! Ambiguous cases are decided like this:
//! - the owner sets the very mask that we had set: ours;
//! - all CPUs that we had set went off line, and the task may run on these and on all remaining
//!   ones: the kernel's doing (it widens a mask without CPUs), not the owner's;
//! - the owner changes the mask between steps 1 and 4: lost. The kernel has no exchange;
//! - a CPU of the mask goes off line between them, and the kernel leaves it out: the owner's.

use super::VcpuId;
use std::fmt;
use std::str::FromStr;

/// Most vCPUs: the size of the C library's `cpu_set_t`.
pub const VCPUS_MAX: usize = 1024;

const WORDS: usize = VCPUS_MAX / 64;

/// A set of vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VcpuSet([u64; WORDS]);

impl VcpuSet {
    /// The set that has no vCPU.
    pub const EMPTY: VcpuSet = VcpuSet([0; WORDS]);

    /// Number 0 to `n` - 1; panics when that is more than [`VCPUS_MAX`].
    pub fn first(n: usize) -> VcpuSet {
        assert!(n <= VCPUS_MAX, "there are at most {VCPUS_MAX} vCPUs");
        (0..n as u16).map(VcpuId::new).collect()
    }

    /// The set that has this vCPU alone.
    pub fn only(vcpu: VcpuId) -> VcpuSet {
        std::iter::once(vcpu).collect()
    }

    /// Is this vCPU in the set?
    pub fn contains(&self, vcpu: VcpuId) -> bool {
        self.0[vcpu.index() / 64] >> (vcpu.index() % 64) & 1 == 1
    }

    /// Add a vCPU, which may be in already.
    pub fn insert(&mut self, vcpu: VcpuId) {
        self.0[vcpu.index() / 64] |= 1 << (vcpu.index() % 64);
    }

    /// Take a vCPU out, whether it is in or not.
    pub fn remove(&mut self, vcpu: VcpuId) {
        self.0[vcpu.index() / 64] &= !(1 << (vcpu.index() % 64));
    }

    /// The vCPUs that are in both sets.
    pub fn and(&self, other: &VcpuSet) -> VcpuSet {
        VcpuSet(std::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    /// Are all of these in `other` too?
    pub fn is_subset(&self, other: &VcpuSet) -> bool {
        self.and(other) == *self
    }

    /// Number of vCPUs in the set, at most [`VCPUS_MAX`].
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Is no vCPU in the set?
    pub fn is_empty(&self) -> bool {
        *self == VcpuSet::EMPTY
    }

    /// Its vCPUs in ascending order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = VcpuId> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            // Each step takes the lowest bit away.
            std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
                .take_while(|&bits| bits != 0)
                .map(move |bits| VcpuId::new((word * 64) as u16 + bits.trailing_zeros() as u16))
        })
    }
}

impl FromIterator<VcpuId> for VcpuSet {
    fn from_iter<I: IntoIterator<Item = VcpuId>>(vcpus: I) -> VcpuSet {
        let mut set = VcpuSet::EMPTY;
        vcpus.into_iter().for_each(|vcpu| set.insert(vcpu));
        set
    }
}

/// As the kernel writes lists: `0-3,8`.
impl fmt::Display for VcpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for n in self.iter().map(VcpuId::index) {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == n => *last = n,
                _ => runs.push((n, n)),
            }
        }
        let text = runs.iter().map(|&(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first}-{last}"),
        });
        f.write_str(&text.collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for VcpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// Longest list that is read: all numbers, one by one, are shorter.
const LIST_BYTES_MAX: usize = 8 * VCPUS_MAX;

/// As the kernel writes lists, `0-3,8`; an empty text is the empty set.
///
/// # Errors
/// Quotes the text and says what is expected.
impl FromStr for VcpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<VcpuSet, String> {
        let text = text.trim();
        let bad = |part: &str| {
            let part: String = part.chars().take(20).collect();
            format!("'{part}' is no range of CPUs below {VCPUS_MAX}: write 0-3,8")
        };
        if text.len() > LIST_BYTES_MAX {
            return Err(format!(
                "a list of CPUs of {} bytes; at most {LIST_BYTES_MAX}",
                text.len()
            ));
        }
        let mut set = VcpuSet::EMPTY;
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let ends = (first.parse::<u16>(), last.parse::<u16>());
            let (Ok(first), Ok(last)) = ends else { return Err(bad(part)) };
            if first > last || usize::from(last) >= VCPUS_MAX {
                return Err(bad(part));
            }
            (first..=last).for_each(|n| set.insert(VcpuId::new(n)));
        }
        Ok(set)
    }
}

/// Ownership of one task's mask, and the mask to set.
///
/// ```
/// use seekway_vcpu::{Affinity, VcpuSet};
/// let set = |text: &str| text.parse::<VcpuSet>().unwrap();
/// let online = VcpuSet::first(4);
/// let mut task = Affinity::new(set("0-2"));
/// // It may run on 0 to 2, and 2 and 3 are the ones that run: it goes to 2.
/// assert_eq!(task.change(&set("0-2"), &online, &set("2-3")), Some(set("2")));
/// assert_eq!(task.to_string(), "0-2 - 2"); // write this, then set the mask
/// task.done(true);
/// // Meanwhile somebody ran `taskset`: that is its own mask from now on.
/// assert_eq!(task.change(&set("1,3"), &online, &set("2-3")), Some(set("3")));
/// task.done(true);
/// assert_eq!(task.restore(&set("3"), &online), Some(set("1,3")));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Affinity {
    /// The owner's mask.
    original: VcpuSet,
    /// The last mask that the agent set, if it is not the original.
    set: Option<VcpuSet>,
    /// The mask that the agent is about to set.
    next: Option<VcpuSet>,
    /// CPUs that went off line since the last look, whether or not they are back.
    went: VcpuSet,
}

impl Affinity {
    /// Of a task that was never changed: the mask that it shows is its owner's.
    pub fn new(shown: VcpuSet) -> Affinity {
        Affinity { original: shown, set: None, next: None, went: VcpuSet::EMPTY }
    }

    /// The affinity of a task that shows its parent's mask, for which the parent's owner had set
    /// `original`.
    pub fn inherited(original: VcpuSet, shown: VcpuSet) -> Affinity {
        Affinity { set: Some(shown), ..Affinity::new(original) }
    }

    /// The owner's mask, as [`TaskLoad::allowed`](super::TaskLoad::allowed) reports it, at the last
    /// look at the kernel's.
    pub fn original(&self) -> &VcpuSet {
        &self.original
    }

    /// Is the mask that it has its owner's? Then there is nothing to restore, and no
    /// record to keep.
    pub fn is_original(&self) -> bool {
        self.candidates().next().is_none()
    }

    /// A CPU went off line; or it is off line, and the record was just read.
    pub fn went_offline(&mut self, cpu: VcpuId) {
        self.went.insert(cpu);
    }

    /// Returns the mask to set for a task that shows `shown` and is wanted on `wanted`: the wanted
    /// CPUs that the owner allows and that are on line. `None` if there are none, or if the task
    /// has that mask already.
    pub fn change(
        &mut self,
        shown: &VcpuSet,
        online: &VcpuSet,
        wanted: &VcpuSet,
    ) -> Option<VcpuSet> {
        self.look(shown, online);
        self.plan(shown, online, self.original.and(wanted).and(online))
    }

    /// Returns the mask that restores the owner's for a task that shows `shown`. `None` if the task
    /// has it, if somebody has changed it, or if none of its CPUs is on line.
    pub fn restore(&mut self, shown: &VcpuSet, online: &VcpuSet) -> Option<VcpuSet> {
        self.look(shown, online);
        self.plan(shown, online, self.original)
    }

    /// The mask that the last call asked for was set, or could not be. No call comes
    /// between.
    pub fn done(&mut self, set: bool) {
        let Some(next) = self.next.take().filter(|_| set) else { return };
        self.set = Some(next).filter(|next| *next != self.original);
    }

    /// Masks that the task shows if nobody else changed it.
    fn candidates(&self) -> impl Iterator<Item = VcpuSet> {
        [self.next, self.set].into_iter().flatten()
    }

    /// Decides whether `shown` is ours. A mask of anybody else is the original from now on.
    fn look(&mut self, shown: &VcpuSet, online: &VcpuSet) {
        let ours = self.candidates().any(|set| {
            let gone = set.iter().all(|cpu| self.went.contains(cpu) || !online.contains(cpu));
            set == *shown || gone && set.is_subset(shown) && online.is_subset(shown)
        });
        self.went = VcpuSet::EMPTY;
        match ours || *shown == self.original {
            true => self.set = Some(*shown).filter(|set| *set != self.original),
            false => *self = Affinity::new(*shown),
        }
        self.next = None;
    }

    fn plan(&mut self, shown: &VcpuSet, online: &VcpuSet, mask: VcpuSet) -> Option<VcpuSet> {
        // Linux 6.1 leaves out CPUs that are off line: then it shows `kept`.
        let kept = mask.and(online);
        let set = Some(mask).filter(|mask| mask != shown && !kept.is_empty());
        self.next = set.map(|_| kept);
        set
    }
}

/// A line of the record: the original, the set mask and the next one, `-` for none.
impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |set: &Option<VcpuSet>| set.map_or("-".into(), |set| set.to_string());
        write!(f, "{} {} {}", self.original, text(&self.set), text(&self.next))
    }
}

/// A line of the record.
///
/// # Errors
/// Quotes the text and says what is expected.
impl FromStr for Affinity {
    type Err = String;

    fn from_str(line: &str) -> Result<Affinity, String> {
        let mut parts = line.split(' ');
        let (Some(original), Some(set), Some(next), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("expected three lists of CPUs: the owner's, set, about to be set".into());
        };
        let read = |text: &str| match text {
            "-" => Ok(None),
            text => text.parse::<VcpuSet>().map(Some),
        };
        Ok(Affinity { set: read(set)?, next: read(next)?, ..Affinity::new(original.parse()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> VcpuSet {
        text.parse().unwrap()
    }

    /// Moves as an agent does, with a kernel that obeys.
    fn move_to(task: &mut Affinity, shown: &mut VcpuSet, wanted: &str) -> bool {
        let mask = task.change(shown, &VcpuSet::first(4), &set(wanted));
        mask.inspect(|mask| *shown = *mask).is_some_and(|_| {
            task.done(true);
            true
        })
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        for text in ["", "0", "0-3,8", "5,7,63-64,1000-1023"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set("3,1,2\n"), set("1-3"));
        assert_eq!(set("5,64,127").iter().map(|v| v.index()).collect::<Vec<_>>(), [5, 64, 127]);
        for bad in ["x", "1-", "3-1", "1024", "0,,1", "-1", "0-3:2", "99999999999"] {
            let error = bad.parse::<VcpuSet>().unwrap_err();
            assert!(error.contains("write 0-3,8"), "{bad}: {error}");
        }
        assert!("1,".repeat(9_000).parse::<VcpuSet>().unwrap_err().contains("at most 8192"));
    }

    #[test]
    fn a_record_is_read_as_it_is_written_and_no_other() {
        for line in ["0-3 - -", "0-3 1-2 -", "0-3 1-2 2", "5 - 5"] {
            assert_eq!(line.parse::<Affinity>().unwrap().to_string(), line);
        }
        for bad in ["", "0-3", "0-3 -", "0-3 - - -", "0-3 x -"] {
            assert!(bad.parse::<Affinity>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wanted_within_the_owners_mask_is_set_or_nothing() {
        let (mut task, mut shown) = (Affinity::new(set("0-1")), set("0-1"));
        assert!(!move_to(&mut task, &mut shown, "2-3"), "nothing of it is allowed");
        assert!(!move_to(&mut task, &mut shown, "0-3"), "it has that");
        assert!(task.is_original());
        assert!(move_to(&mut task, &mut shown, "1-3"));
        assert_eq!((shown, task.is_original()), (set("1"), false));
        assert_eq!(task.restore(&shown, &VcpuSet::first(4)), Some(set("0-1")));
    }

    #[test]
    fn a_mask_that_could_not_be_set_is_not_ours() {
        let mut task = Affinity::new(set("0-3"));
        assert_eq!(task.change(&set("0-3"), &VcpuSet::first(4), &set("1")), Some(set("1")));
        task.done(false);
        // So this is somebody else's.
        assert_eq!(task.restore(&set("1"), &VcpuSet::first(4)), None);
        assert_eq!(*task.original(), set("1"));
    }

    #[test]
    fn the_kernel_widens_a_mask_of_which_nothing_is_left() {
        let mut task: Affinity = "0-1 1 -".parse().unwrap();
        // CPU 1 went off line: the kernel let it run anywhere. No owner wished that.
        assert_eq!(task.restore(&set("0-3"), &set("0,2-3")), Some(set("0-1")));
        // But with 1 on line all the time, an owner has set that.
        let mut task: Affinity = "0-1 1 -".parse().unwrap();
        assert_eq!(task.restore(&set("0-3"), &set("0-3")), None);
        assert_eq!(*task.original(), set("0-3"));
    }

    #[test]
    fn a_cpu_that_was_off_line_at_the_restore_is_given_back_later() {
        let mut task: Affinity = "0-3 0-1 -".parse().unwrap();
        assert_eq!(task.restore(&set("0-1"), &set("0-2")), Some(set("0-3")));
        task.done(true);
        // Linux 6.1 has left out the CPUs that are off line. 3 is back.
        assert_eq!(task.restore(&set("0-2"), &set("0-2")), Some(set("0-3")));
    }
}
