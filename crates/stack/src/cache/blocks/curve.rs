//! Hits of a VM in a cache of each size: its *curve*, from a sample of its reads; and how frames
//! are divided by the curves.
//!
//! A block that is read again is a hit in an LRU cache as large as what the VM has read since
//! (Mattson et al., IBM Systems Journal 1970). Of all nodes a fixed sample is followed, chosen by a
//! hash of their names, and sizes are scaled by how much of the reads it has (SHARDS-adj:
//! Waldspurger et al., FAST 2015). The reads between are counted by buckets and not block by block
//! (MIMIR: Saemundsson et al., SoCC 2014): a curve has [`STEPS`] steps, which is as fine as frames
//! are divided.
//!
//! Hits are counted by reads of a node, not by its blocks: a head that moves for 4 KiB takes nearly
//! as long as for 64. A guest that reads a node by its blocks reads it again at once, which any
//! cache finds.
//!
//! Frames go where they make a VM faster by the largest factor (proportional fairness: Kelly,
//! Maulloo and Tan, 1998), and not where most hits are made in a second: that would be with the VM
//! that is fast already, which would become faster with more frames, and be given more again. A VM
//! that waits for its reads is as fast as these take little time; a hit takes a [`FOUND_PART`]th of
//! a miss.

use super::nodes::{List, Mask, NODE_BLOCKS, Name};
use super::{Blocks, Gone};
use seekway_core::mix::mix64;
use seekway_core::request::VmId;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

/// Steps of a curve; the last is the whole cache.
const STEPS: usize = 32;

/// Whole nodes that are followed for each step when a cache is large.
const NODES_A_STEP: u64 = 8;

/// Time of a miss over that of a hit.
const FOUND_PART: u64 = 32;

/// A read, or a hit, as it is counted: they fade by halves.
const ONE: u64 = 1 << 16;

/// A VM is as fast as with its share if a 64th is missing at most: this [`logarithm`] (log2 of
/// 64/63 is 1/44).
const AS_FAST: u64 = (1 << 16) / 44;

/// Buckets of a curve at most, and of how many each loses its oldest.
const BUCKETS_MAX: usize = STEPS + STEPS / 4;

/// Rate at which nodes are sampled, and size of a step; the same for all VMs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// One node of this number is followed: a power of two.
    one_of: u64,
    /// Frames of a step.
    frames: u64,
    key: u64,
}

impl Sample {
    /// A sample for a cache of at most `frames`.
    pub(super) fn new(frames: u64, key: u64) -> Sample {
        let nodes = frames / NODE_BLOCKS / (STEPS as u64 * NODES_A_STEP);
        let one_of = nodes.max(1).next_power_of_two();
        Sample { one_of, frames: (frames / STEPS as u64).max(1), key }
    }

    fn has(&self, name: Name) -> bool {
        self.one_of == 1 || mix64(name.0 ^ self.key) & (self.one_of - 1) == 0
    }

    /// Blocks of the sample in a step.
    fn step(&self) -> u64 {
        (self.frames / self.one_of).max(1)
    }
}

/// A VM's. It takes 0.4 MB at most, when a large set is read a block at a time.
#[derive(Clone, Default, Debug)]
pub(super) struct Curve {
    /// By node of the sample: in which bucket it is, and its blocks that were read.
    last: BTreeMap<u64, (u64, Mask)>,
    /// Blocks by bucket, the newest last. A bucket is full with a step.
    buckets: VecDeque<u64>,
    /// The number of the oldest bucket.
    first: u64,
    /// Reads of nodes, and of them by step those that a cache of that size finds and one of a step
    /// less does not. They fade as the VM reads, not by what others do.
    reads: u64,
    hits: [u64; STEPS],
    /// Blocks that were read, and of them those of the sample: how large it really is.
    blocks: u64,
    sampled: u64,
}

impl Curve {
    /// Blocks of a node are read.
    #[inline]
    pub(super) fn read(&mut self, sample: &Sample, name: Name, blocks: Mask) {
        self.blocks += u64::from(blocks.count_ones());
        if blocks != 0 && sample.has(name) {
            self.sampled += u64::from(blocks.count_ones());
            self.read_sampled(sample, name.0, blocks);
        }
    }

    fn read_sampled(&mut self, sample: &Sample, name: u64, blocks: Mask) {
        let step = sample.step();
        self.reads += ONE;
        let mut known = 0;
        if let Some(&(bucket, mask)) = self.last.get(&name) {
            let at = (bucket - self.first) as usize;
            self.buckets[at] -= u64::from(mask.count_ones());
            // All of its own bucket too: a part that is a little too small finds nothing of a loop.
            let newer: u64 = self.buckets.range(at..).sum();
            let frames = u128::from(newer) * u128::from(self.blocks) / u128::from(self.sampled);
            if mask & blocks != 0
                && let Some(hits) = self.hits.get_mut((frames / u128::from(sample.frames)) as usize)
            {
                *hits += ONE;
            }
            known = mask;
        }
        if self.buckets.back().is_none_or(|&blocks| blocks >= step) {
            self.turn();
        }
        if self.reads >= 2 * STEPS as u64 * step * ONE {
            self.fade();
        }
        let mask = known | blocks;
        if let Some(newest) = self.buckets.back_mut() {
            *newest += u64::from(mask.count_ones());
        }
        self.last.insert(name, (self.begun() - 1, mask));
    }

    /// Begin a bucket. Those beyond the whole cache are forgotten, with their nodes.
    fn turn(&mut self) {
        self.buckets.push_back(0);
        if self.buckets.len() > BUCKETS_MAX {
            const GONE: usize = BUCKETS_MAX - STEPS;
            self.first += GONE as u64;
            self.last.retain(|_, (bucket, _)| *bucket >= self.first);
            self.buckets.drain(..GONE);
        }
        if self.begun().is_multiple_of(STEPS as u64) {
            self.fade();
        }
    }

    /// Buckets that were ever begun.
    fn begun(&self) -> u64 {
        self.first + self.buckets.len() as u64
    }

    fn fade(&mut self) {
        self.reads /= 2;
        (self.blocks, self.sampled) = (self.blocks / 2, (self.sampled / 2).max(1));
        self.hits.iter_mut().for_each(|hits| *hits /= 2);
    }
}

/// A VM's claim, in frames.
pub(super) struct Claim<'a> {
    /// Its weight's share of all frames.
    pub share: u64,
    /// Frames that it needs whatever it finds there; at most its share.
    pub least: u64,
    /// Frames that it holds now.
    pub held: u64,
    pub curve: &'a mut Curve,
}

/// A VM while frames are divided.
struct Divided {
    part: u64,
    /// By size in steps: how much faster the VM would be than with a size of none, as a logarithm.
    gains: [u64; STEPS + 1],
    /// The extension of its part that gains most for each frame: frames, and the gain.
    best: Option<(u64, u64)>,
}

impl Divided {
    fn new(claim: Claim<'_>, step: u64) -> Divided {
        let Claim { share, least, held, curve } = claim;
        let mut gains = [0; STEPS + 1];
        let mut lost = curve.reads;
        let time = |lost: u64| logarithm(lost * FOUND_PART + curve.reads + ONE);
        for (gain, hits) in gains[1..].iter_mut().zip(curve.hits) {
            lost = lost.saturating_sub(hits);
            *gain = time(curve.reads) - time(lost);
        }
        let share_steps = share.div_ceil(step).min(STEPS as u64);
        // A VM that has not read as much as its share cannot be judged yet.
        let is_known = curve.begun() > share_steps;
        let wanted = gains[share_steps as usize].saturating_sub(AS_FAST);
        let enough = gains.iter().take_while(|&&gain| gain < wanted).count() as u64;
        let needed = if is_known { enough * step } else { 2 * held };
        Divided { part: needed.max(least).min(share), gains, best: None }
    }

    fn gain(&self, frames: u64, step: u64) -> u64 {
        self.gains[(frames / step).min(STEPS as u64) as usize]
    }

    fn extend(&mut self, left: u64, step: u64) {
        let now = self.gain(self.part, step);
        let sizes = (self.part / step + 1..=STEPS as u64).map(|n| n * step - self.part);
        let all = sizes.take_while(|&more| more <= left);
        let all = all.map(|more| (more, self.gain(self.part + more, step) - now));
        self.best = all.filter(|&(_, gain)| gain > 0).max_by(|&a, &b| order(a, b));
    }
}

/// By the gain for each frame, without division; the smaller first where that is the same.
fn order(a: (u64, u64), b: (u64, u64)) -> Ordering {
    let gain = |a: (u64, u64), b: (u64, u64)| u128::from(a.1) * u128::from(b.0);
    gain(a, b).cmp(&gain(b, a)).then(b.0.cmp(&a.0))
}

/// The logarithm to base 2, times 2^16; between powers of two a line.
fn logarithm(n: u64) -> u64 {
    let power = n.max(1).ilog2();
    let rest = u128::from(n) << 16 >> power;
    (u64::from(power) << 16) + rest as u64 - (1 << 16)
}

/// Divides `frames`. Each VM has as many as make it [as fast](AS_FAST) as its share would, or twice
/// what it has, up to its share, while it has not read as much. The others go where each gains most
/// (the lookahead algorithm of utility-based cache partitioning: Qureshi and Patt, MICRO 2006).
/// Where none gains anything, they are nobody's: a VM that has them keeps them. Returns the frames
/// of each VM; the sum is at most `frames`.
pub(super) fn divide(frames: u64, sample: &Sample, claims: Vec<Claim<'_>>) -> Vec<u64> {
    let step = sample.frames;
    let mut vms: Vec<_> = claims.into_iter().map(|claim| Divided::new(claim, step)).collect();
    let mut left = frames.saturating_sub(vms.iter().map(|vm| vm.part).sum());
    vms.iter_mut().for_each(|vm| vm.extend(left, step));
    loop {
        let best = vms.iter_mut().filter_map(|vm| Some((vm.best?, vm)));
        // Of equal ones the first.
        let Some(((more, _), vm)) = best.reduce(|a, b| if order(a.0, b.0).is_lt() { b } else { a })
        else {
            break;
        };
        vm.part += more;
        left -= more;
        vm.extend(left, step);
        let too_large = |vm: &&mut Divided| vm.best.is_some_and(|(more, _)| more > left);
        vms.iter_mut().filter(too_large).for_each(|vm| vm.extend(left, step));
    }
    vms.iter().map(|vm| vm.part).collect()
}

// Each VM's share of the cache, and the division of frames among VMs.

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
        let parts = divide(u64::from(self.limit), &self.sample, claims);
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

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::request::VmId;

    fn name(n: u64) -> Name {
        Name::of(VmId::new(0), n * NODE_BLOCKS).unwrap()
    }

    /// Reads `nodes` whole nodes round and round.
    fn round(nodes: u64, sample: &Sample) -> Curve {
        let mut curve = Curve::default();
        (0..4).flat_map(|_| 0..nodes).for_each(|n| curve.read(sample, name(n), !0));
        curve
    }

    fn claim(share: u64, held: u64, curve: &mut Curve) -> Claim<'_> {
        Claim { share, least: share / 16, held, curve }
    }

    #[test]
    fn a_loop_is_found_as_a_whole_or_not_at_all() {
        for frames in [4096, 1 << 19] {
            let sample = Sample::new(frames, 7);
            let curve = round(frames / NODE_BLOCKS / 4, &sample);
            let found = |steps: usize| curve.hits[..steps].iter().sum::<u64>();
            assert!(found(STEPS) > 0);
            // A quarter of the cache, within two steps.
            assert!(found(STEPS / 4 - 2) < found(STEPS) / 20, "{curve:?}");
            assert!(found(STEPS / 4 + 2) > found(STEPS) * 19 / 20, "{curve:?}");
        }
    }

    /// A node is found once a round, though it is read in four pieces.
    #[test]
    fn pieces_of_a_node_are_found_at_once() {
        let sample = Sample::new(1 << 16, 7);
        let mut curve = Curve::default();
        let nodes = (1 << 16) / NODE_BLOCKS / 2;
        let pieces = [0xf, 0xf0, 0xf00, 0xf000];
        (0..3).flat_map(|_| 0..nodes).for_each(|n| {
            pieces.iter().for_each(|&piece| curve.read(&sample, name(n), piece));
        });
        let later: u64 = curve.hits[2..].iter().sum();
        assert!(later > 0 && later <= curve.hits[0] / 2, "{curve:?}");
    }

    #[test]
    fn what_is_read_once_is_never_found_and_what_is_followed_is_bounded() {
        let sample = Sample::new(1 << 16, 7);
        let mut curve = Curve::default();
        (0..100_000).for_each(|n| curve.read(&sample, name(n), 1));
        assert_eq!(curve.hits, [0; STEPS]);
        assert!(curve.buckets.len() <= BUCKETS_MAX);
        assert!(curve.last.len() as u64 <= BUCKETS_MAX as u64 * sample.step());
    }

    /// Of four VMs one reads round and round over 0.6 of the cache, one over a tenth, one reads
    /// once, and one has read nothing yet, but has half of its share: the loops fit, and the last
    /// has its share.
    #[test]
    fn frames_go_where_they_are_of_use() {
        let frames = 1 << 16;
        let sample = Sample::new(frames, 7);
        let nodes = frames / NODE_BLOCKS;
        let (mut large, mut small) = (round(nodes * 6 / 10, &sample), round(nodes / 10, &sample));
        let (mut once, mut new) = (Curve::default(), Curve::default());
        (0..4 * nodes).for_each(|n| once.read(&sample, name(n), !0));
        let share = frames / 5;
        let curves = [&mut large, &mut small, &mut once, &mut new];
        let held = [frames / 5, frames / 10, frames / 5, frames / 10];
        let claims = curves.into_iter().zip(held).map(|(curve, held)| claim(share, held, curve));
        let parts = divide(frames, &sample, claims.collect());
        assert!(parts.iter().sum::<u64>() <= frames);
        assert!(parts[0] >= frames * 58 / 100 && parts[1] >= frames / 10, "{parts:?}");
        assert!(parts[2] < share / 4 && parts[3] >= share - 1, "{parts:?}");
    }

    /// A VM that finds something in its share loses no frame that lets it find it, though another
    /// would find a hundred times as much.
    #[test]
    fn nobody_loses_what_he_finds_in_his_share() {
        let frames = 1 << 16;
        let sample = Sample::new(frames, 7);
        let nodes = frames / NODE_BLOCKS;
        let (mut slow, mut fast) = (round(nodes / 5, &sample), round(nodes * 9 / 10, &sample));
        (0..400).flat_map(|_| 0..nodes / 4).for_each(|n| fast.read(&sample, name(n), !0));
        let claims = vec![claim(frames / 4, 0, &mut slow), claim(3 * frames / 4, 0, &mut fast)];
        let parts = divide(frames, &sample, claims);
        assert!(parts[0] >= frames * 18 / 100, "{parts:?}");
    }

    /// Two read round and round over as much, one of them ten times as often: both have it.
    #[test]
    fn who_reads_more_has_no_more() {
        let frames = 1 << 16;
        let sample = Sample::new(frames, 7);
        let nodes = frames / NODE_BLOCKS * 4 / 10;
        let (mut slow, mut fast) = (round(nodes, &sample), round(nodes, &sample));
        (0..36).flat_map(|_| 0..nodes).for_each(|n| fast.read(&sample, name(n), !0));
        let (mut none, mut none_too) = (Curve::default(), Curve::default());
        let curves = [&mut slow, &mut fast, &mut none, &mut none_too];
        let claims = curves.into_iter().map(|curve| claim(frames / 4, 0, curve));
        let parts = divide(frames, &sample, claims.collect());
        assert!(parts[..2].iter().all(|&part| part >= frames * 38 / 100), "{parts:?}");
    }

    #[test]
    fn who_has_not_read_his_share_has_twice_what_he_has() {
        let mut curves = [Curve::default(), Curve::default(), Curve::default()];
        let claims =
            curves.iter_mut().zip([0, 300, 900]).map(|(curve, held)| claim(1024, held, curve));
        assert_eq!(divide(3072, &Sample::new(3072, 7), claims.collect()), [64, 600, 1024]);
    }

    #[test]
    fn logarithms_grow_as_they_should() {
        assert_eq!(logarithm(1), 0);
        assert_eq!(logarithm(1 << 40), 40 << 16);
        assert!((1..5000).all(|n| logarithm(n) < logarithm(n + 1)));
        assert_eq!(logarithm(u64::MAX) >> 16, 63);
    }
}
