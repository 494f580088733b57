//! A policy that is written in Python, as the dispatcher sees it.

use anyhow::anyhow;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use seekway_cli::library::OwnPolicy;
use seekway_core::request::{self, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Different causes of holds in one process: each is kept for ever.
const CAUSES_MAX: usize = 256;
/// Longest cause, in bytes.
const CAUSE_BYTES_MAX: usize = 40;

/// A request in a policy's queue, or its remainder if a part of it was sent.
#[pyclass(frozen, get_all)]
pub struct Request {
    id: u32,
    vm: u16,
    process: Option<u16>,
    write: bool,
    sync: bool,
    start_sector: u64,
    sectors: u64,
    arrived_ns: u64,
}

#[pymethods]
impl Request {
    fn __repr__(&self) -> String {
        let Request { id, vm, write, start_sector, sectors, arrived_ns, .. } = self;
        let op = if *write { "write" } else { "read" };
        format!(
            "Request({id}: {op} {start_sector}+{sectors} of VM {vm}, arrived at {arrived_ns} ns)"
        )
    }
}

impl Request {
    fn new(request: &request::Request) -> Request {
        Request {
            id: request.id.slot() as u32,
            vm: request.vm.index() as u16,
            process: request.tag.map(|tag| tag.get()),
            write: request.op == request::Op::Write,
            sync: request.sync,
            start_sector: request.extent.start().get(),
            sectors: request.extent.len().get(),
            arrived_ns: request.arrived.as_nanos(),
        }
    }
}

/// The end of a request, or of one command of it.
#[pyclass(frozen, get_all)]
pub struct Completion {
    request: Py<Request>,
    dispatched_ns: u64,
    service_ns: u64,
    last: bool,
}

/// The device when a policy is asked.
#[pyclass(frozen, get_all)]
pub struct Device {
    head_sector: u64,
    capacity_sectors: u64,
    rotation_ns: Option<u64>,
    depth: u32,
    in_flight: u32,
    commands: u32,
}

/// Send the first `sectors` of a request.
#[pyclass(frozen, get_all)]
pub struct Part {
    id: u32,
    sectors: u64,
}

#[pymethods]
impl Part {
    #[new]
    fn new(request: &Request, sectors: u64) -> Part {
        Part { id: request.id, sectors }
    }
}

/// Nothing is sent until `until_ns`, unless a request arrives or completes.
#[pyclass(frozen, get_all)]
pub struct Hold {
    until_ns: u64,
    why: String,
}

#[pymethods]
impl Hold {
    #[new]
    #[pyo3(signature = (until_ns, why="hold"))]
    fn new(until_ns: u64, why: &str) -> Hold {
        Hold { until_ns, why: why.into() }
    }
}

/// Nothing is sent until a command completes, a request arrives, or `until_ns`.
#[pyclass(frozen, get_all)]
pub struct Wait {
    until_ns: Option<u64>,
    why: String,
}

#[pymethods]
impl Wait {
    #[new]
    #[pyo3(signature = (until_ns=None, why="wait"))]
    fn new(until_ns: Option<u64>, why: &str) -> Wait {
        Wait { until_ns, why: why.into() }
    }
}

/// The first exception of a policy: it ends the runs.
#[derive(Default)]
pub struct Fault {
    error: Mutex<Option<PyErr>>,
}

impl Fault {
    /// Takes the exception that a policy has raised, if any.
    pub fn take(&self) -> Option<PyErr> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, error: PyErr) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// The policy `name`; `make` is called without arguments for each run.
pub fn own(name: String, make: Py<PyAny>, fault: &Arc<Fault>) -> OwnPolicy {
    let fault = fault.clone();
    let build = move || {
        let made = Python::attach(|py| {
            let (object, queue) = (make.call0(py)?, PyDict::new(py).unbind());
            object.setattr(py, "queued", &queue)?;
            Ok((object, queue))
        });
        let (object, queue) = made.map_err(|error: PyErr| {
            let text = anyhow!("{error}");
            fault.set(error);
            text
        })?;
        let (fault, failed) = (fault.clone(), false);
        Ok(Box::new(Scripted { object, queue, queued: BTreeMap::new(), fault, failed })
            as Box<dyn Scheduler>)
    };
    OwnPolicy { name, make: Box::new(build) }
}

/// A policy that an object of Python decides for.
struct Scripted {
    object: Py<PyAny>,
    /// Its attribute `queued`: the requests of our `queued`, by id, in the order of arrival.
    queue: Py<PyDict>,
    queued: BTreeMap<RequestId, request::Request>,
    fault: Arc<Fault>,
    /// After an exception it is asked no more, and requests go in the order of arrival until the
    /// run ends.
    failed: bool,
}

impl Scripted {
    fn call(&mut self, work: impl FnOnce(&mut Scripted, Python<'_>) -> PyResult<()>) {
        if self.failed {
            return;
        }
        if let Err(error) = Python::attach(|py| work(self, py)) {
            self.failed = true;
            self.fault.set(error);
        }
    }

    /// Takes a request from both queues.
    fn take(&mut self, py: Python<'_>, id: RequestId) -> PyResult<()> {
        self.queued.remove(&id);
        self.queue.bind(py).del_item(id.slot())
    }

    fn decided(
        &mut self,
        py: Python<'_>,
        now: Instant,
        view: &DeviceView<'_>,
    ) -> PyResult<Decision> {
        let device = Device {
            head_sector: view.head.get(),
            capacity_sectors: view.profile.capacity.get(),
            rotation_ns: view.profile.rotation.map(Nanos::get),
            depth: view.depth,
            in_flight: view.in_flight,
            commands: view.commands,
        };
        let answer = self.object.bind(py).call_method1("decide", (now.as_nanos(), device))?;
        if let Ok(request) = answer.cast::<Request>() {
            let id = self.known(request.get().id)?;
            self.take(py, id)?;
            return Ok(Decision::Dispatch(id));
        }
        if let Ok(part) = answer.cast::<Part>() {
            return self.part(py, part.get());
        }
        if let Ok(hold) = answer.cast::<Hold>() {
            let Hold { until_ns, why } = hold.get();
            return Ok(Decision::Hold { until: bounded(now, *until_ns)?, why: cause(why)? });
        }
        let Ok(wait) = answer.cast::<Wait>() else {
            let queued = self.queued.len();
            return Err(PyTypeError::new_err(format!(
                "decide returned {answer} with {queued} requests queued: expected a Request of \
                 self.queued, Part, Hold or Wait"
            )));
        };
        if view.commands == 0 {
            return Err(PyValueError::new_err(
                "decide returned Wait with no command in flight: nothing would end it; return Hold",
            ));
        }
        let Wait { until_ns, why } = wait.get();
        let until = until_ns.map(|until| bounded(now, until)).transpose()?;
        Ok(Decision::Wait { until, why: cause(why)? })
    }

    fn part(&mut self, py: Python<'_>, part: &Part) -> PyResult<Decision> {
        let id = self.known(part.id)?;
        let len = Sectors::new(part.sectors);
        if len == Sectors::ZERO {
            return Err(PyValueError::new_err("decide returned a Part of 0 sectors"));
        }
        let request = self.queued[&id];
        match request.extent.split(len).1 {
            None => self.take(py, id)?,
            Some(rest) => {
                let rest = request::Request { extent: rest, ..request };
                self.queued.insert(id, rest);
                self.queue.bind(py).set_item(id.slot(), Request::new(&rest))?;
            }
        }
        Ok(Decision::DispatchPart { id, len })
    }

    fn known(&self, id: u32) -> PyResult<RequestId> {
        let id = RequestId::new(id);
        if self.queued.contains_key(&id) {
            return Ok(id);
        }
        let slot = id.slot();
        Err(PyValueError::new_err(format!("decide returned request {slot}, which is not queued")))
    }

    fn oldest(&self) -> Option<RequestId> {
        self.queued.values().min_by_key(|r| (r.arrived, r.id)).map(|r| r.id)
    }
}

/// The end of a hold, which has to lie within [`HOLD_MAX`].
fn bounded(now: Instant, until_ns: u64) -> PyResult<Instant> {
    let until = Instant::from_nanos(until_ns);
    if now < until && until.since(now) <= HOLD_MAX {
        return Ok(until);
    }
    let (now, most) = (now.as_nanos(), HOLD_MAX.get());
    Err(PyValueError::new_err(format!(
        "decide holds until {until_ns} ns at {now} ns: at least 1 ns and at most {most} ns on"
    )))
}

/// The cause as a word that lives as long as the process: reports keep it.
fn cause(why: &str) -> PyResult<&'static str> {
    static CAUSES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut causes = CAUSES.lock().unwrap_or_else(PoisonError::into_inner);
    let causes = causes.get_or_insert_with(HashSet::new);
    if let Some(known) = causes.get(why) {
        return Ok(known);
    }
    if causes.len() >= CAUSES_MAX || why.len() > CAUSE_BYTES_MAX {
        return Err(PyValueError::new_err(format!(
            "the cause {why:?}: at most {CAUSES_MAX} different ones of {CAUSE_BYTES_MAX} bytes"
        )));
    }
    let kept: &'static str = Box::leak(why.into());
    causes.insert(kept);
    Ok(kept)
}

impl Scheduler for Scripted {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        let region: Vec<(u64, u64)> =
            spec.region.iter().map(|e| (e.start().get(), e.len().get())).collect();
        self.call(|own, py| {
            let about = (now.as_nanos(), vm.index(), spec.weight.get(), region);
            own.object.call_method1(py, "attached", about).map(drop)
        });
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<request::Request> {
        let mut leaving: Vec<_> = self.queued.values().filter(|r| r.vm == vm).copied().collect();
        leaving.sort_by_key(|r| (r.arrived, r.id));
        leaving.iter().for_each(|r| self.withdraw(now, r.id));
        self.call(|own, py| {
            own.object.call_method1(py, "detached", (now.as_nanos(), vm.index())).map(drop)
        });
        leaving
    }

    fn arrived(&mut self, now: Instant, request: request::Request) {
        self.queued.insert(request.id, request);
        self.call(|own, py| {
            let told = Py::new(py, Request::new(&request))?;
            own.queue.bind(py).set_item(request.id.slot(), &told)?;
            own.object.call_method1(py, "arrived", (now.as_nanos(), told)).map(drop)
        });
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        let request = self.queued.remove(&id);
        self.call(|own, py| {
            own.queue.bind(py).del_item(id.slot())?;
            let told = request.as_ref().map(Request::new);
            own.object.call_method1(py, "withdrawn", (now.as_nanos(), told)).map(drop)
        });
    }

    fn completed(&mut self, now: Instant, completion: &request::Completion) {
        self.call(|own, py| {
            let told = Completion {
                request: Py::new(py, Request::new(&completion.request))?,
                dispatched_ns: completion.dispatched.as_nanos(),
                service_ns: completion.service.get(),
                last: completion.last,
            };
            own.object.call_method1(py, "completed", (now.as_nanos(), told)).map(drop)
        });
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        let mut decision = Decision::Idle;
        self.call(|own, py| {
            decision = own.decided(py, now, device)?;
            Ok(())
        });
        if decision == Decision::Idle
            && let Some(id) = self.oldest()
        {
            self.queued.remove(&id);
            return Decision::Dispatch(id);
        }
        decision
    }
}
