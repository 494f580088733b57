//! `seekway-guest migrate`: the first thread, which starts and ends the others and does the work
//! that is not urgent.

use super::coordinator::View;
use super::detectors::Detectors;
use super::preemption::Waker;
use super::preemption::thread::{Rank, stay_in_memory};
use super::records::{Changed, Record, Records};
use super::restore::put_back;
use super::shared::Shared;
use super::status::{About, Meter};
use super::workers::Pool;
use super::{clock, monitors};
use crate::agent::{AgentError, EVENTS_BROKE_OFF, Voice, check_place, failed};
use crate::args::MigrateArgs;
use crate::connector::Connector;
use crate::events::Event;
use crate::signals::Signals;
use crate::state::{StateFile, write_whole};
use crate::system::{Linux, System};
use crate::tagger::Selection as Chosen;
use crate::{kernel, procfs};
use seekway_vcpu::{self as vcpu, VcpuId, VcpuSet};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Policies that an agent cannot carry out.
const NOT_HERE: [(&str, &str); 2] = [
    ("vslicer", "it is the host's scheduler that gives slices"),
    ("xballoon", "it is the guest's kernel that idles"),
];
/// Interval of the work that is not urgent.
const SELDOM: Duration = Duration::from_secs(1);
/// Work of the detector of waiting for I/O, for errors.
const SEES_WAITS: &str = "see who waits for I/O";
/// Pause between two looks at new processes.
const FOLLOW_PAUSE: Duration = Duration::from_millis(2);
/// A monitor answers when its vCPU runs; after this time the status shows the vCPU's last state.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// Run until a signal comes; then put all masks back.
///
/// # Errors
/// Anything that keeps it from starting, or from detecting. Masks are put back before it returns.
pub fn migrate(args: &MigrateArgs) -> Result<(), AgentError> {
    let voice = Voice { verbose: args.verbose, format: args.format };
    let (state, status) = (args.state_path(), args.status.path());
    check_place(&status, &state)?;
    let signals = Signals::new().map_err(failed("handle signals"))?;
    let file = StateFile::lock(&state)?;
    let left = put_back(&Linux, &file, voice)?.unwrap_or_default();
    let mut agent = Agent::new(args, &file, left, voice)?;
    agent.introduce();
    let result = agent.run(&signals);
    agent.end();
    let ended = put_back(&Linux, &file, voice);
    let _ = std::fs::remove_file(&agent.status);
    result?;
    match ended?.map_or(0, |left| left.len()) {
        0 => Ok(()),
        left => Err(AgentError::Io {
            what: format!("put back the affinities of {left} tasks"),
            source: io::Error::other("`seekway-guest restore migrate` tries again"),
        }),
    }
}

struct Agent {
    shared: Arc<Shared>,
    /// To be polled: the first task was moved.
    stirred: Waker,
    monitors: BTreeMap<VcpuId, monitors::Thread>,
    online: VcpuSet,
    /// Process events, if the kernel tells them.
    connector: Option<Connector>,
    about: About,
    meter: Meter,
    /// As it was when it was last asked for.
    view: View,
    status: PathBuf,
    voice: Voice,
}

impl Agent {
    fn new(
        args: &MigrateArgs,
        file: &StateFile,
        left: Vec<Record>,
        voice: Voice,
    ) -> Result<Agent, AgentError> {
        let policy = vcpu::build(&args.policy).map_err(usage)?;
        let name = args.policy.split(':').next().unwrap_or_default();
        if let Some((_, why)) = NOT_HERE.iter().find(|(other, _)| *other == name) {
            return Err(usage(format!("policy {name}: {why}; it runs in the simulator only")));
        }
        let detectors = Detectors::open(!args.no_bpf)?;
        let ((preemption, edges), (loads, waits)) = (detectors.preemption, detectors.loads);
        let online = procfs::online().map_err(failed("read /sys/devices/system/cpu/online"))?;
        let records = Records::begin(
            file,
            &Changed { boot: procfs::boot_id(), records: left, unreadable: 0 },
        )?;
        let about = About {
            policy: args.policy.clone(),
            preemption: preemption.into(),
            loads: loads.into(),
            passed_over: detectors.passed_over,
        };
        kernel::allow_more_files();
        stay_in_memory();
        let chosen = Chosen::new(&args.chosen.comms, &args.chosen.pids);
        let share = || -> io::Result<(Shared, Waker)> {
            let stirred = Waker::new()?;
            let online = (online, stirred.try_clone()?);
            Ok((Shared::new(policy, edges, (waits, chosen), records, online)?, stirred))
        };
        let (shared, stirred) = share().map_err(failed("eventfd(2)"))?;
        Ok(Agent {
            shared: Arc::new(shared),
            stirred,
            monitors: BTreeMap::new(),
            online: VcpuSet::EMPTY,
            connector: Connector::open().ok(),
            about,
            meter: Meter::new(clock::now()),
            view: View::default(),
            status: args.status.path(),
            voice,
        })
    }

    /// Reports the findings of the start.
    fn introduce(&self) {
        let About { policy, preemption, loads, passed_over } = self.about.clone();
        let connector = self.connector.is_some();
        self.voice.say(&Event::Migrates { policy, preemption, loads, passed_over, connector });
    }

    fn run(&mut self, signals: &Signals) -> Result<(), AgentError> {
        let mut seldom = Instant::now();
        self.follow_vcpus()?;
        self.write_status(signals)?;
        self.warn_of_what_is_missing();
        let mut followed = false;
        while !signals.ending() {
            // While no task is moved, children do not matter.
            let follows = self.shared.tasks.has_moved();
            if follows {
                self.follow_children(followed)?;
            }
            followed = follows;
            if signals.asked() {
                self.write_status(signals)?;
            }
            if seldom.elapsed() >= SELDOM {
                seldom = Instant::now();
                self.seldom(follows)?;
            }
            let fd = match &self.connector {
                Some(connector) if follows => connector.fd(),
                _ => self.stirred.fd(),
            };
            let wait = SELDOM.saturating_sub(seldom.elapsed());
            signals.wait(wait, Some(fd)).map_err(failed("poll"))?;
            self.stirred.take();
            if follows && !signals.ending() {
                // However much is started, it is looked at so often.
                signals.wait(FOLLOW_PAUSE, None).map_err(failed("poll"))?;
            } else {
                self.shared.coordinator.rest(clock::now()).map_err(failed(SEES_WAITS))?;
            }
        }
        Ok(())
    }

    fn warn_of_what_is_missing(&self) {
        if !kernel::is_root() {
            self.voice.warn("not root: only tasks of the same user can be moved (CAP_SYS_NICE)");
        }
        if self.shared.rank().is_some_and(|rank| rank != Rank::Fifo) {
            self.voice.warn(
                "monitors are not real-time (CAP_SYS_NICE, and a limit of real-time time in the \
                 control group): what the guest itself runs is taken for absences",
            );
        }
    }

    /// Does the work of once a second.
    fn seldom(&mut self, follows: bool) -> Result<(), AgentError> {
        self.follow_vcpus()?;
        let now = clock::now();
        self.meter.sample(now);
        let forgotten = self.shared.coordinator.forgets(now);
        if let Some(lead) = forgotten.and_then(|lead| self.monitors.get(&lead)) {
            lead.wake();
        }
        self.shared.coordinator.rest(now).map_err(failed(SEES_WAITS))?;
        // Children of ended processes are found by these.
        if follows && self.connector.is_none() {
            self.shared.tasks.look_for_inherited_masks().map_err(failed("list /proc"))?;
        }
        self.shared.tasks.tidy(now);
        if let Some(e) = self.shared.tasks.take_error() {
            self.voice.warn(format!("write down what is changed: {e}; tasks are not moved"));
        }
        match self.shared.failure() {
            Some(message) => Err(failed("monitor")(io::Error::other(message))),
            None => Ok(()),
        }
    }

    /// Processes and threads that tasks have started. `before`: they were followed up to now.
    fn follow_children(&mut self, before: bool) -> Result<(), AgentError> {
        let Some(connector) = &self.connector else { return Ok(()) };
        let Ok(news) = connector.news() else {
            self.voice.warn(EVENTS_BROKE_OFF);
            self.connector = None;
            return Ok(());
        };
        if news.lost || !before {
            self.shared.tasks.look_for_inherited_masks().map_err(failed("list /proc"))?;
        }
        self.shared.tasks.follow(&news.told);
        Ok(())
    }

    /// A monitor for each vCPU that is on line, and for no other.
    fn follow_vcpus(&mut self) -> Result<(), AgentError> {
        let online = procfs::online().map_err(failed("read /sys/devices/system/cpu/online"))?;
        self.shared.tasks.set_online(online);
        // Where this process may not run it can neither see nor do anything.
        let own = Linux.affinity(0).map_err(failed("sched_getaffinity(2)"))?;
        let online = online.and(&own);
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
        self.shared.coordinator.set_online(online);
        for vcpu in online.iter() {
            if self.monitors.contains_key(&vcpu) {
                continue;
            }
            let workers = self.shared.start_workers(vcpu);
            let started = workers.and_then(|()| monitors::Thread::start(&self.shared, vcpu));
            let monitor = started.map_err(failed(format!("watch vCPU {}", vcpu.index())))?;
            self.monitors.insert(vcpu, monitor);
        }
        self.online = online;
        self.monitors.values().for_each(monitors::Thread::wake);
        Ok(())
    }

    /// Moving goes on without it.
    fn write_status(&mut self, signals: &Signals) -> Result<(), AgentError> {
        let asked = self.shared.coordinator.ask();
        self.monitors.values().for_each(monitors::Thread::wake);
        signals.wait(ANSWER_WITHIN, Some(asked)).map_err(failed("poll"))?;
        let answer = self.shared.coordinator.answer();
        let answered = answer.is_some();
        if let Some(view) = answer {
            self.view = view;
        }
        let (view, online) = ((&self.view, answered), self.online.len());
        let status = self.meter.status(&self.about, &self.shared, view, online);
        let json = serde_json::to_vec_pretty(&status).expect("plain data");
        if let Err(e) = write_whole(&self.status, &json) {
            let path = self.status.display();
            self.voice.warn(format!("write {path}: {e}; tasks are moved without it"));
        }
        Ok(())
    }

    fn end(&mut self) {
        for (vcpu, monitor) in std::mem::take(&mut self.monitors) {
            monitor.end(&self.shared, vcpu);
        }
        // Also the workers of a vCPU whose monitor could not be started.
        self.shared.pools.iter().for_each(Pool::end);
        let message = match self.shared.tasks.put_all_back() {
            Ok((_, Some(_))) => return,
            Ok((_, None)) => {
                "tasks that were moved start others faster than these can be found".into()
            }
            Err(e) => format!("list /proc: {e}: what moved tasks have started was not looked for"),
        };
        self.voice.warn(message);
    }
}

fn usage(error: impl ToString) -> AgentError {
    AgentError::Usage(error.to_string())
}
