//! The throttle (VPT): makes a fast device behave as a modelled one
//! (algorithms.md, section 5). Pure: time is an argument.

use seekway_device::DeviceModel;
use seekway_policy::request::{Request, RequestId};
use seekway_policy::scheduler::DeviceProfile;
use seekway_policy::units::{Instant, Nanos};

/// How the time of the model is stretched.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scaling {
    /// Raised when the real device is too slow, lowered when it has slack.
    Auto,
    /// Always this, at least 1.
    Fixed(f64),
}

/// The device that guests see: the model's times, the real device's data.
pub struct Throttle {}

/// What a throttle tells of itself.
#[derive(Clone, Debug)]
pub struct Report {
    /// The profile's specification.
    pub profile: String,
    /// The factor on all times now.
    pub k: f64,
    /// Every change of k: when, to what, why. At most the last 1024.
    pub changes: Vec<(Instant, f64, &'static str)>,
    /// Commands done.
    pub commands: u64,
    /// Commands whose real completion came after the target.
    pub late: u64,
    /// The sum of service times from dispatch to completion.
    pub service_from_dispatch: Nanos,
    /// The sum of service times from the later of dispatch and previous completion.
    pub service: Nanos,
    /// What the model alone knows.
    pub model_metrics: Vec<(&'static str, f64)>,
}

impl Throttle {
    /// A throttle from `PROFILE[:key=value,…][:k=auto|1|fixed]`.
    pub fn parse(_text: &str) -> Result<Throttle, String> {
        todo!()
    }
    /// A throttle over a model at rest.
    pub fn new(_profile: String, _model: Box<dyn DeviceModel>, _scaling: Scaling) -> Throttle {
        todo!()
    }
    /// What policies are told of the device.
    pub fn profile(&self) -> DeviceProfile {
        todo!()
    }
    /// Commands that the modelled device takes at once.
    pub fn queue_depth(&self) -> u32 {
        todo!()
    }
    /// A command goes to both devices.
    pub fn submit(&mut self, _now: Instant, _command: &Request) {
        todo!()
    }
    /// The real device is done with it.
    pub fn arrived(&mut self, _now: Instant, _id: RequestId) {
        todo!()
    }
    /// When the next command may be handed up, if nothing else happens.
    pub fn next(&self) -> Option<Instant> {
        todo!()
    }
    /// A command that is done in both worlds by `now`.
    pub fn pop(&mut self, _now: Instant) -> Option<RequestId> {
        todo!()
    }
    /// How it stands.
    pub fn report(&self) -> Report {
        todo!()
    }
}
