//! Sets of vCPUs, and whose an affinity is: a task's owner's or ours
//! (algorithms.md, section 7: "a task's own affinity mask is respected and survives").

use super::VcpuId;
use std::fmt;

/// vCPUs that are told apart: what `cpu_set_t` of the C library holds.
pub const VCPUS_MAX: usize = 1024;

const WORDS: usize = VCPUS_MAX / 64;

/// A set of vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VcpuSet([u64; WORDS]);

impl VcpuSet {
    /// None.
    pub const EMPTY: VcpuSet = VcpuSet([0; WORDS]);

    /// Number 0 to `n` - 1; panics when that is more than [`VCPUS_MAX`].
    pub fn first(n: usize) -> VcpuSet {
        assert!(n <= VCPUS_MAX, "there are at most {VCPUS_MAX} vCPUs");
        (0..n as u16).map(VcpuId::new).collect()
    }

    /// One alone.
    pub fn only(vcpu: VcpuId) -> VcpuSet {
        std::iter::once(vcpu).collect()
    }

    /// Is it in?
    pub fn contains(&self, vcpu: VcpuId) -> bool {
        self.0[vcpu.index() / 64] >> (vcpu.index() % 64) & 1 == 1
    }

    /// Put one in.
    pub fn insert(&mut self, vcpu: VcpuId) {
        self.0[vcpu.index() / 64] |= 1 << (vcpu.index() % 64);
    }

    /// Take one out.
    pub fn remove(&mut self, vcpu: VcpuId) {
        self.0[vcpu.index() / 64] &= !(1 << (vcpu.index() % 64));
    }

    /// Those in both.
    pub fn and(&self, other: &VcpuSet) -> VcpuSet {
        VcpuSet(std::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        *self == VcpuSet::EMPTY
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = VcpuId> + '_ {
        (0..VCPUS_MAX as u16).map(VcpuId::new).filter(|&vcpu| self.contains(vcpu))
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
