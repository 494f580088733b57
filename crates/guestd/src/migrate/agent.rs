//! `seekway-guest migrate`: what its threads share, and the first thread, which starts and
//! ends the others and does what is not urgent.

use super::book::Book;
use super::brain::Brain;
use super::monitors;
use super::preemption::thread::{Rank, stay_in_memory};
use super::preemption::{self, Preemption};
use super::records::{Changed, Records};
use super::restore::put_back;
use super::selection::Selection;
use super::workers::{Pool, dispatch};
use super::{clock, loads};
use crate::agent::{AgentError, Voice, failed};
use crate::args::MigrateArgs;
use crate::events::Event;
use crate::procfs;
use crate::signals::Signals;
use crate::state::StateFile;
use crate::system::Linux;
use crate::tagger::Selection as Chosen;
use seekway_policy::vcpu::{self, Action, VCPUS_MAX, VcpuId, VcpuSet};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// From one look at what is not urgent to the next.
const SELDOM: Duration = Duration::from_secs(1);

/// What all threads share.
pub struct Shared {
    /// How vCPUs are seen to come and go.
    pub preemption: Box<dyn Preemption>,
    /// The policy.
    pub brain: Brain<Linux>,
    /// Tasks and their masks.
    pub book: Arc<Book<Linux>>,
    /// The workers of each vCPU.
    pub pools: Vec<Arc<Pool>>,
    failed: Mutex<Option<String>>,
    rank: Mutex<Option<Rank>>,
}

impl Shared {
    /// Let the policy hear and say, and have done what it says.
    pub fn turn(self: &Arc<Shared>, here: VcpuId, awake: bool, actions: &mut Vec<Action>) {
        self.brain.turn(here, awake, actions);
        dispatch(self, here, actions);
    }

    /// A thread cannot go on: then nothing can.
    pub fn fail(&self, message: String) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    /// How urgent monitors are.
    pub fn ranked(&self, rank: Rank) {
        *self.rank.lock().unwrap_or_else(PoisonError::into_inner) = Some(rank);
    }

    fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Run until a signal comes; then put all masks back.
///
/// # Errors
/// Whatever keeps it from starting, or from seeing. Masks are put back before it returns.
pub fn migrate(args: &MigrateArgs) -> Result<(), AgentError> {
    let voice = Voice { verbose: args.verbose, format: args.format };
    let signals = Signals::new().map_err(failed("handle signals"))?;
    let policy = vcpu::build(&args.policy).map_err(|e| AgentError::Usage(e.to_string()))?;
    let file = StateFile::lock(&args.state_path())?;
    let left = put_back(&Linux, &file, voice)?;
    let preemption = preemption::open(args.preemption.as_deref());
    let preemption = preemption.map_err(|e| AgentError::Usage(e.to_string()))?;
    let loads = loads::open(args.loads.as_deref());
    let loads = loads.map_err(|e| AgentError::Usage(e.to_string()))?;
    let online = procfs::online().map_err(failed("read /sys/devices/system/cpu/online"))?;
    let left = Changed { boot: procfs::boot_id(), records: left };
    let records = Records::begin(&file, &left)?;
    stay_in_memory();
    let book = Arc::new(Book::new(Linux, records, online));
    let own = std::process::id().cast_signed();
    let chosen = Chosen::new(&args.comms, &args.pids);
    let watching = (loads.way, Selection::new(Linux, chosen, own));
    let preemption = preemption.way;
    let brain = Brain::new(policy, preemption.exact(), watching, book.clone(), online);
    let pools = (0..VCPUS_MAX as u16).map(VcpuId::new).map(Pool::new).map(Arc::new).collect();
    let (failed, rank) = Default::default();
    let shared = Arc::new(Shared { preemption, brain, book, pools, failed, rank });
    let mut agent = Agent { shared, monitors: BTreeMap::new(), online: VcpuSet::EMPTY, voice };
    let result = agent.run(&signals);
    agent.end();
    let ended = put_back(&Linux, &file, voice);
    result.and(ended.map(drop))
}

struct Agent {
    shared: Arc<Shared>,
    monitors: BTreeMap<VcpuId, monitors::Thread>,
    /// With monitors.
    online: VcpuSet,
    voice: Voice,
}

impl Agent {
    fn run(&mut self, signals: &Signals) -> Result<(), AgentError> {
        while !signals.ending() {
            self.follow_vcpus()?;
            self.shared.book.tidy(clock::now());
            if let Some(e) = self.shared.book.take_error() {
                let message = format!("write down what is changed: {e}; tasks are not moved");
                self.voice.say(&Event::Warning { message });
            }
            if let Some(message) = self.shared.failure() {
                return Err(failed("monitor")(std::io::Error::other(message)));
            }
            signals.wait(SELDOM, &[]).map_err(failed("poll"))?;
        }
        Ok(())
    }

    /// A monitor for each vCPU that is on line, and for no other.
    fn follow_vcpus(&mut self) -> Result<(), AgentError> {
        let online = procfs::online().map_err(failed("read /sys/devices/system/cpu/online"))?;
        if online == self.online && self.monitors.values().all(|m| !m.has_ended()) {
            return Ok(());
        }
        for vcpu in self.online.iter() {
            let stays = online.contains(vcpu) && !self.monitors[&vcpu].has_ended();
            if !stays && let Some(monitor) = self.monitors.remove(&vcpu) {
                monitor.end(&self.shared, vcpu);
                self.shared.pools[vcpu.index()].end();
            }
        }
        self.shared.book.set_online(online);
        self.shared.brain.set_online(online);
        for vcpu in online.iter() {
            if self.monitors.contains_key(&vcpu) {
                continue;
            }
            let started = self.shared.pools[vcpu.index()]
                .prepare(&self.shared)
                .and_then(|()| monitors::Thread::start(&self.shared, vcpu));
            let monitor = started.map_err(failed(format!("watch vCPU {}", vcpu.index())))?;
            self.monitors.insert(vcpu, monitor);
        }
        self.online = online;
        self.monitors.values().for_each(monitors::Thread::wake);
        Ok(())
    }

    fn end(&mut self) {
        for (vcpu, monitor) in std::mem::take(&mut self.monitors) {
            monitor.end(&self.shared, vcpu);
        }
        self.online.iter().for_each(|vcpu| self.shared.pools[vcpu.index()].end());
        self.shared.book.put_all_back();
    }
}
