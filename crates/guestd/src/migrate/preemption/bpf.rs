//! Preemption as KVM tells its guests of it, read by BPF (`bpf/steal.bpf.c`): exact,
//! and nothing is polled.

use super::{Monitor, Preemption, Seen, Waker};
use crate::migrate::bpf::{self, BpfError, Loaded, Mapped, Plain};
use crate::migrate::clock;
use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder, libbpf_sys};
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{Sign, VCPUS_MAX, VcpuId};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// As `status` names it.
pub const NAME: &str = "steal-bpf";
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steal.bpf.o"));

/// Who was away for less was not away: the least that the heartbeat can see, half a period
/// of 300 us (algorithms.md, section 7).
const LEAST: Nanos = Nanos::from_micros(150);
/// From one look at the other vCPUs to the next.
const LOOK: Nanos = Nanos::from_micros(100);
/// The least that a ring can have: it only wakes.
const RING_BYTES: u32 = 4096;

/// What the program `steal_told` answers.
const NOT_TOLD: u32 = 1;
const TOLD: u32 = 2;

/// What the programs know of a vCPU; its layout stands in `steal.bpf.c`.
#[repr(C)]
#[derive(Debug)]
struct Vcpu {
    edges: AtomicU64,
    from: AtomicU64,
    until: AtomicU64,
    noticed: AtomicU64,
    steal: AtomicU64,
    looked: AtomicU64,
    next: AtomicU32,
    idle: AtomicU32,
    at: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Plain for Vcpu {}

/// The programs at work.
#[derive(Debug)]
pub struct Steal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    programs: Loaded,
    vcpus: Mapped<Vcpu>,
    /// The edges of each vCPU that some monitor has told of.
    told: Vec<AtomicU64>,
}

impl Steal {
    /// Load them.
    ///
    /// # Errors
    /// The host's KVM tells this guest nothing, there is no KVM, or BPF is not allowed.
    pub fn open() -> Result<Steal, BpfError> {
        Steal::with(possible_vcpus())
    }

    /// For so many vCPUs.
    fn with(possible: usize) -> Result<Steal, BpfError> {
        let steal_from_rq = bpf::distance("runqueues", "steal_time")?;
        // As `given` in steal.bpf.c.
        let given = [steal_from_rq, LEAST.get(), LOOK.get(), possible as u64];
        let given: Vec<u8> = given.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut programs = bpf::load("steal", OBJECT, |open| bpf::set_constant(open, &given))?;
        match programs.run("steal_told")? {
            TOLD => {}
            NOT_TOLD => {
                return Err(BpfError::Absent(
                    "the host does not tell this guest when its vCPUs are taken away: it is not \
                     run by KVM, or KVM's steal time is off"
                        .into(),
                ));
            }
            _ => return Err(BpfError::Absent("steal_time was not found in the kernel".into())),
        }
        let vcpus = programs.map::<Vcpu>("vcpus")?;
        programs.attach()?;
        let told = (0..possible).map(|_| AtomicU64::new(0)).collect();
        Ok(Steal(Arc::new(Shared { programs, vcpus, told })))
    }
}

#[cfg(test)]
impl Steal {
    /// What its programs cost.
    pub fn costs(&self) -> Vec<bpf::Cost> {
        self.0.programs.costs()
    }
}

/// The vCPUs that this guest can have: numbers below this.
fn possible_vcpus() -> usize {
    // SAFETY: sysconf takes a plain number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).clamp(1, VCPUS_MAX)
}

impl Preemption for Steal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn exact(&self) -> bool {
        true
    }

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
        self.0.programs.put("bells", number, &bell)?;
        Ok(Box::new(Watch { shared: self.0.clone(), bell: ring, woken: Waker::new()? }))
    }
}

/// What one vCPU's thread waits on.
struct Watch {
    shared: Arc<Shared>,
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
        self.shared.news(seen);
        if seen.len() == before {
            self.sleep(until)?;
            self.woken.take();
            self.bell.consume().map_err(io::Error::other)?;
            self.shared.news(seen);
        }
        Ok(())
    }

    fn waker(&self) -> io::Result<Waker> {
        self.woken.try_clone()
    }
}

impl Watch {
    /// Until the bell rings, the waker wakes, or that time has come.
    fn sleep(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|until| {
            let left = until.since(clock::now()).get();
            libc::timespec {
                tv_sec: (left / 1_000_000_000) as libc::time_t,
                tv_nsec: (left % 1_000_000_000) as libc::c_long,
            }
        });
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [watched(self.bell.epoll_fd()), watched(self.woken.as_fd().as_raw_fd())];
        // SAFETY: two descriptors and one time, all alive; no signal mask.
        let ready = unsafe { libc::ppoll(both.as_mut_ptr(), 2, left, std::ptr::null()) };
        match io::Error::last_os_error() {
            e if ready < 0 && e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }
}

impl Shared {
    /// What no monitor has told of yet.
    fn news(&self, seen: &mut Vec<Seen>) {
        for (n, (vcpu, told)) in self.vcpus.records().iter().zip(&self.told).enumerate() {
            let before = told.load(Ordering::Relaxed);
            let edges = vcpu.edges.load(Ordering::Acquire);
            if edges == before {
                continue;
            }
            let noted = |time: &AtomicU64| Instant::from_nanos(time.load(Ordering::Relaxed));
            let (from, until) = (noted(&vcpu.from), noted(&vcpu.until));
            let noticed = noted(&vcpu.noticed);
            // Changed meanwhile: whoever changed it rings, or it is seen next time.
            if vcpu.edges.load(Ordering::Acquire) != edges
                || told
                    .compare_exchange(before, edges, Ordering::AcqRel, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            let vcpu = VcpuId::new(n as u16);
            let mut tell = |at, sign| seen.push(Seen { at, vcpu, sign });
            let (was_away, is_away) = (before & 1 == 1, edges & 1 == 1);
            if was_away {
                tell(until, Sign::Resumed);
            }
            if !was_away && !is_away {
                tell(from, Sign::Preempted);
                tell(until, Sign::Resumed);
            }
            if is_away {
                tell(noticed, Sign::Preempted);
            }
        }
    }
}

#[cfg(test)]
mod tests;
