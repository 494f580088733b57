//! Each VM's share of the cache, and the division of frames among VMs.

use super::curve::{self, Claim, Curve};
use super::nodes::{List, Mask, Name};
use super::{Blocks, Gone};
use seekway_core::request::VmId;
use std::num::NonZeroU32;

/// Frames are divided anew when an eighth of a cache was read (the divisor), and at least this
/// number of blocks: among 1,000 VMs that takes half a millisecond.
const DIVIDED_PART: u32 = 8;
const DIVIDED_LEAST: u64 = 1024;
/// A VM keeps a 16th of its share (the divisor) whatever it finds there, for reads under way.
const LEAST_PART: u64 = 16;

/// A VM's part of the cache. It stays when the VM leaves: frames may still be
/// read into for it.
#[derive(Clone, Default)]
pub(super) struct Vm {
    pub weight: u64,
    /// Frames that are its own when all are wanted.
    pub share: u64,
    /// As `share`, by what it would find in them.
    pub part: u64,
    /// By [`Place`](super::nodes::Place).
    pub lists: [List; 4],
    /// Frames that hold or await its blocks, orphans included.
    pub held: u64,
    /// Frames that are being read into, orphans included.
    pub filling: u64,
    /// Frames that are being read into for blocks that were forgotten meanwhile.
    pub orphans: u64,
    /// Frames that hold or await a prefetched block that nobody has read.
    pub unused: u64,
    /// Blocks that it has read.
    pub clock: u64,
    /// Blocks that its small queue has let go.
    pub let_go: u64,
    /// Hits that it would have in a cache of each size.
    pub curve: Curve,
}

impl Vm {
    /// Frames that hold or await its blocks.
    pub(super) fn resident(&self) -> u64 {
        self.held - self.orphans
    }
    /// The granule of its clock that it is in: they come round.
    pub(super) fn granule(&self, bits: u32) -> u16 {
        (self.clock >> bits) as u16
    }
    /// Frames that it needs whatever it finds: room for what is prefetched, and for as much again.
    fn least(&self) -> u64 {
        ((self.share / LEAST_PART).max(1) + 2 * self.unused).min(self.share)
    }
    pub(super) fn claim(&mut self) -> Claim<'_> {
        Claim { share: self.share, least: self.least(), held: self.held, curve: &mut self.curve }
    }
    /// Frames that are its own now.
    pub(super) fn own(&self) -> u64 {
        self.part.max(self.least())
    }
    pub(super) fn excess(&self) -> u64 {
        self.held.saturating_sub(self.own())
    }
}

impl Blocks {
    /// A VM joins, or changes its weight: while others want room, its share of
    /// the frames is its weight's share of the weights of all.
    pub fn attach(&mut self, vm: VmId, weight: NonZeroU32) {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, Vm::default);
        }
        self.vms[vm.index()].weight = u64::from(weight.get());
        self.divide();
    }

    /// A VM leaves: its blocks are forgotten.
    pub fn detach(&mut self, vm: VmId, gone: &mut Vec<Gone>) {
        self.forget(vm, 0, u64::MAX, gone);
        if let Some(known) = self.vms.get_mut(vm.index()) {
            (known.weight, known.curve) = (0, Curve::default());
            self.divide();
        }
    }

    pub(super) fn divide(&mut self) {
        let all: u64 = self.vms.iter().map(|vm| vm.weight).sum();
        for vm in &mut self.vms {
            let frames = u128::from(self.limit);
            vm.share = (frames * u128::from(vm.weight) / u128::from(all.max(1))) as u64;
        }
        let claims = self.vms.iter_mut().map(Vm::claim).collect();
        let parts = curve::divide(u64::from(self.limit), &self.sample, claims);
        self.vms.iter_mut().zip(parts).for_each(|(vm, part)| vm.part = part);
        self.until_divided = u64::from(self.limit / DIVIDED_PART).max(DIVIDED_LEAST);
        self.donor = (None, 0);
    }

    /// A guest has read blocks of a node.
    #[inline]
    pub(super) fn read(&mut self, vm: usize, name: Name, blocks: Mask) {
        self.vms[vm].curve.read(&self.sample, name, blocks);
        self.until_divided = self.until_divided.saturating_sub(u64::from(blocks.count_ones()));
        if self.until_divided == 0 {
            self.divide();
        }
    }

    /// Frames that hold or await blocks of a VM.
    pub fn resident(&self, vm: VmId) -> u64 {
        self.vms.get(vm.index()).map_or(0, Vm::resident)
    }
}
