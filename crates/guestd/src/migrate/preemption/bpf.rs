//! Preemption as BPF programs see it, which note both edges and wake a monitor
//! (`bpf/edges.h`): nothing is polled, and no timer is armed.

pub mod steal;
pub mod tick;

use super::{Alarms, Monitor, Preemption, Seen, Waker, sleep};
use crate::migrate::bpf::{self, BpfError, Loaded, Mapped, Plain};
use crate::procfs;
use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder, libbpf_sys};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{Sign, Urgent, VcpuId};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The least that a ring can have: it only wakes.
const RING_BYTES: u32 = 4096;

/// A vCPU's record, which the programs share; its layout stands in `edges.h`.
#[repr(C)]
#[derive(Debug)]
struct Vcpu {
    edges: AtomicU64,
    noticed: AtomicU64,
    last: AtomicU64,
    looked: AtomicU64,
    next: AtomicU32,
    idle: AtomicU32,
    place: AtomicU64,
    alarm: AtomicU64,
    quiet: AtomicU64,
    past: [Absence; PAST],
}

/// From when to when a vCPU was away.
#[repr(C)]
#[derive(Debug, Default)]
struct Absence {
    from: AtomicU64,
    until: AtomicU64,
}

/// Absences of each vCPU that the programs keep.
const PAST: usize = 8;
/// Bits of [`Vcpu::quiet`], as in `edges.h`: these edges ring no bell.
const QUIET_LOSS: u64 = 1;
const QUIET_BACK: u64 = 2;

// SAFETY: atomics only.
unsafe impl Plain for Vcpu {}

/// Programs at work that see edges.
#[derive(Debug)]
pub struct Edges {
    programs: Loaded,
    vcpus: Mapped<Vcpu>,
    /// The edges of each vCPU that a monitor has told.
    told: Vec<AtomicU64>,
    /// A vCPU is gone at most this long after the time that the programs give.
    blur: Nanos,
}

/// Settings of the programs: `given` in `edges.h`.
#[derive(Clone, Copy, Debug)]
struct EdgeParams {
    /// Shorter absences are ignored.
    least: Nanos,
    /// From one look at the other vCPUs to the next.
    look: Nanos,
    /// vCPUs that there can be.
    vcpus: usize,
    /// From a CPU's runqueue to its steal_time, in bytes, for `steal`.
    steal_from_rq: u64,
    /// A vCPU is gone at most this long after the time that the programs give.
    blur: Nanos,
}

/// Load an object of programs that see edges. None runs before it is attached.
fn load(name: &'static str, bytes: &[u8], given: EdgeParams) -> Result<Edges, BpfError> {
    let EdgeParams { least, look, vcpus: possible, steal_from_rq, blur } = given;
    let given = [least.get(), look.get(), possible as u64, steal_from_rq];
    let given: Vec<u8> = given.iter().flat_map(|n| n.to_ne_bytes()).collect();
    let programs = bpf::load(name, bytes, |open| bpf::set_constant(open, &given))?;
    let vcpus = programs.map::<Vcpu>("vcpus")?;
    let told = (0..possible).map(|_| AtomicU64::new(0)).collect();
    Ok(Edges { programs, vcpus, told, blur })
}

/// The vCPUs that this guest can have: numbers below this.
fn possible_vcpus() -> Result<usize, BpfError> {
    let possible = procfs::possible().map_err(|error| {
        BpfError::Absent(format!("which vCPUs this guest can have is not told: {error}"))
    })?;
    Ok(possible.iter().last().map_or(1, |vcpu| vcpu.index() + 1))
}

impl Preemption for Arc<Edges> {
    fn alarms(&self) -> Option<Arc<dyn Alarms>> {
        Some(self.clone())
    }

    /// With the bell of its vCPU.
    fn monitor(&self, vcpu: VcpuId) -> io::Result<Box<dyn Monitor>> {
        let number = vcpu.index() as u32;
        // SAFETY: a structure of plain numbers, for which zeroes are the defaults.
        let mut options: libbpf_sys::bpf_map_create_opts = unsafe { std::mem::zeroed() };
        options.sz = size_of_val(&options) as libbpf_sys::size_t;
        let bell = MapHandle::create(MapType::RingBuf, Some("bell"), 0, 0, RING_BYTES, &options);
        let bell = bell.map_err(io::Error::other)?;
        let mut builder = RingBufferBuilder::new();
        builder.add(&bell, |_| 0).map_err(io::Error::other)?;
        let ring = builder.build().map_err(io::Error::other)?;
        self.programs.put("bells", number, &bell)?;
        Ok(Box::new(Watch { edges: self.clone(), bell: ring, woken: Waker::new()? }))
    }
}

/// The thing on which a vCPU's thread waits.
struct Watch {
    edges: Arc<Edges>,
    bell: RingBuffer<'static>,
    woken: Waker,
}

impl Monitor for Watch {
    fn wait(
        &mut self,
        until: Option<Instant>,
        _beat: Option<Instant>,
        seen: &mut Vec<Seen>,
    ) -> io::Result<()> {
        let before = seen.len();
        self.edges.news(seen);
        if seen.len() == before {
            sleep([self.bell.epoll_fd(), self.woken.fd()], until)?;
            self.woken.take();
            self.bell.consume().map_err(io::Error::other)?;
            self.edges.news(seen);
        }
        Ok(())
    }

    fn waker(&self) -> io::Result<Waker> {
        self.woken.try_clone()
    }
}

impl Alarms for Edges {
    fn set_alarm(&self, vcpu: VcpuId, at: Option<Instant>) {
        let Some(record) = self.vcpus.records().get(vcpu.index()) else { return };
        record.alarm.store(at.map_or(0, |at| at.as_nanos().max(1)), Ordering::Relaxed);
    }

    fn set_urgent(&self, vcpu: VcpuId, urgent: Urgent) {
        let Some(record) = self.vcpus.records().get(vcpu.index()) else { return };
        let quiet = |rings: bool, bit: u64| if rings { 0 } else { bit };
        let quiet = quiet(urgent.loss, QUIET_LOSS) | quiet(urgent.back, QUIET_BACK);
        record.quiet.store(quiet, Ordering::Relaxed);
    }
}

impl Edges {
    /// Costs of its programs.
    #[cfg(test)]
    pub fn costs(&self) -> Vec<bpf::Cost> {
        self.programs.costs()
    }

    /// Collects the news that no monitor has told yet.
    fn news(&self, seen: &mut Vec<Seen>) {
        for (n, (vcpu, told)) in self.vcpus.records().iter().zip(&self.told).enumerate() {
            let before = told.load(Ordering::Relaxed);
            let edges = vcpu.edges.load(Ordering::Acquire);
            if edges == before {
                continue;
            }
            let past: [(Instant, Instant); PAST] =
                std::array::from_fn(|n| (noted(&vcpu.past[n].from), noted(&vcpu.past[n].until)));
            let noticed = noted(&vcpu.noticed);
            // Changed meanwhile: its writer rings, or it is seen next time.
            if vcpu.edges.load(Ordering::Acquire) != edges
                || told
                    .compare_exchange(before, edges, Ordering::AcqRel, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            let vcpu = VcpuId::new(n as u16);
            let loss = |at: Instant| Seen { at, vcpu, sign: self.loss(at) };
            let back = |at: Instant| Seen { at, vcpu, sign: Sign::Resumed };
            tell(before..edges, &past, noticed, (&loss, &back), seen);
        }
    }

    /// A loss that the programs give this time.
    fn loss(&self, at: Instant) -> Sign {
        match self.blur {
            Nanos::ZERO => Sign::Preempted,
            blur => Sign::Lost { by: at + blur },
        }
    }
}

fn noted(time: &AtomicU64) -> Instant {
    Instant::from_nanos(time.load(Ordering::Relaxed))
}

/// Tells the edges of one vCPU in their order. Edge 2n-1 begins absence n, edge 2n ends it. Of more
/// absences than are kept only the last are told.
fn tell(
    edges: Range<u64>,
    past: &[(Instant, Instant); PAST],
    noticed: Instant,
    (loss, back): (&dyn Fn(Instant) -> Seen, &dyn Fn(Instant) -> Seen),
    seen: &mut Vec<Seen>,
) {
    let (first, last) = (edges.start / 2 + 1, edges.end / 2);
    let kept = first.max((last + 1).saturating_sub(PAST as u64));
    for n in kept..=last {
        let (from, until) = past[(n % PAST as u64) as usize];
        // The beginning of the first may have been told before.
        if n > first || edges.start.is_multiple_of(2) {
            seen.push(loss(from));
        }
        seen.push(back(until));
    }
    if edges.end % 2 == 1 {
        seen.push(loss(noticed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Absence n lasts from 100 n to 100 n + 50. A loss is told as -at.
    fn told(edges: Range<u64>) -> Vec<i64> {
        let at = Instant::from_nanos;
        let last = edges.end / 2;
        let past = std::array::from_fn(|place| {
            let kept = (0..=last).rev().find(|n| (n % PAST as u64) as usize == place);
            let n = kept.unwrap_or(0);
            (at(100 * n), at(100 * n + 50))
        });
        let vcpu = VcpuId::new(0);
        let loss = |at| Seen { at, vcpu, sign: Sign::Preempted };
        let back = |at| Seen { at, vcpu, sign: Sign::Resumed };
        let mut seen = Vec::new();
        tell(edges, &past, at(100 * (last + 1)), (&loss, &back), &mut seen);
        let signed = |seen: &Seen| match seen.sign {
            Sign::Resumed => seen.at.as_nanos() as i64,
            _ => -(seen.at.as_nanos() as i64),
        };
        seen.iter().map(signed).collect()
    }

    #[test]
    fn edges_that_rang_no_bell_are_told_later_each_once() {
        assert_eq!(told(0..2), [-100, 150]);
        assert_eq!(told(0..1), [-100]);
        assert_eq!(told(1..2), [150], "its loss was told");
        assert_eq!(told(1..5), [150, -200, 250, -300]);
        assert_eq!(told(2..6), [-200, 250, -300, 350]);
        let many = told(0..40);
        assert_eq!((many.len(), many[0], many[15]), (16, -1300, 2050), "the last eight");
        assert_eq!(told(1..41).len(), 17);
    }
}
