//! The real reactor on rings that tests play: in a simulated host (`swarm`), beside the simulator
//! (`parity`), with messages and completions in each order (`mailbox`, `taking`), with clients that
//! it replies to (`replies`), and at its end (`ending`).

mod ending;
mod mailbox;
pub(super) mod parity;
mod replies;
mod swarm;
pub(super) mod taking;

use super::{Poll, Reactor, Setup, Submitter};
use crate::images::Limits;
use crate::port::{DiskId, Errno, Port, PortContext, PortId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Nanos, Sectors};
use seekway_stack::dispatcher::COALESCE_DEFAULT;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

/// Limits of a disk of 1 GiB.
pub(crate) const LIMITS: Limits = Limits {
    capacity_bytes: 1 << 30,
    logical_block_bytes: 512,
    physical_block_bytes: 4096,
    align_bytes: 512,
    memory_align_bytes: 512,
    read_only: false,
    rotational: false,
};

/// A reactor under noop, without a cache.
pub(crate) fn setup(name: &str) -> Setup {
    Setup {
        name: name.into(),
        policy: "noop".into(),
        depth: None,
        coalesce: COALESCE_DEFAULT,
        merge: false,
        hard_limit: Nanos::from_secs(30),
        cache: None,
        throttle: None,
        profile: DeviceProfile::unknown(Sectors::new(1 << 32), false),
        tags: None,
        poll: Poll::OFF,
        submitter: Submitter::Own,
        journal: None,
        groups: Vec::new(),
    }
}

/// Answers to a guest's requests, by token.
pub(super) type Answers = Arc<Mutex<Vec<(u64, Result<(), Errno>)>>>;

struct Guest {
    disk: DiskId,
    answers: Answers,
}

impl Port for Guest {
    fn disk(&self) -> DiskId {
        self.disk
    }
    fn open(&mut self, _: PortId, _: &mut dyn PortContext) {}
    fn done(&mut self, token: u64, result: Result<(), Errno>, _: &mut dyn PortContext) {
        self.answers.lock().unwrap().push((token, result));
    }
}

/// Opens a port that notes its answers.
pub(super) fn guest(reactor: &mut Reactor, disk: DiskId) -> (PortId, Answers) {
    let answers = Answers::default();
    let (reply, port) = sync_channel(1);
    reactor.open_port(Box::new(Guest { disk, answers: answers.clone() }), &reply);
    (port.recv().unwrap(), answers)
}
