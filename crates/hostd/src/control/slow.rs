//! The last slow requests, as JSON. The keys stay.

use crate::host::{Device, Host};
use crate::reactor::{Message, SlowRequest};
use seekway_core::units::{Instant, Nanos};
use serde::{Deserialize, Serialize};

/// The last slow requests of all devices.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlowReport {
    /// Oldest first.
    pub requests: Vec<SlowRequestReport>,
}

/// A slow request, with where its time went.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlowRequestReport {
    pub device: String,
    pub disk: String,
    /// `read`, `write`, `flush` or `discard`.
    pub op: String,
    /// Where on the disk; 0 for a flush.
    pub offset_bytes: u64,
    pub len_bytes: u64,
    /// Did it succeed?
    pub ok: bool,
    /// Seconds since it was done.
    pub ago_s: f64,
    /// From its arrival until it was done: the sum of those below.
    pub response_ms: f64,
    /// Held by rate limits.
    pub limited_ms: f64,
    /// In the policy's queue: until the device got the first of it.
    pub queued_ms: f64,
    /// On the device, until it was done.
    pub device_ms: f64,
}

/// The last requests that took at least `over_ms`; of one disk, if it is given.
///
/// # Errors
/// A time that is negative or no number, an unknown disk.
pub(super) fn report(host: &Host, over_ms: f64, disk: Option<&str>) -> Result<SlowReport, String> {
    if !(0.0..=1e9).contains(&over_ms) {
        return Err(format!("slow: {over_ms} ms: expected 0 to 1e9"));
    }
    if let Some(name) = disk {
        host.disk(name).map_err(|e| e.to_string())?;
    }
    let over = Nanos::new((over_ms * 1e6) as u64);
    let mut requests = Vec::new();
    for (device, status) in host.statuses() {
        let slow = device.handle().ask(|reply| Message::Slow(over, reply)).unwrap_or_default();
        let name = |request: &SlowRequest| {
            let disk = status.disks.iter().find(|disk| disk.id == request.disk);
            disk.map(|disk| disk.name.clone())
        };
        let named = slow.iter().filter_map(|request| Some((request, name(request)?)));
        let wanted = named.filter(|(_, name)| disk.is_none_or(|disk| disk == name));
        requests.extend(wanted.map(|(request, disk)| one(&device, status.now, request, disk)));
    }
    requests.sort_by(|a, b| b.ago_s.total_cmp(&a.ago_s));
    Ok(SlowReport { requests })
}

fn one(device: &Device, now: Instant, request: &SlowRequest, disk: String) -> SlowRequestReport {
    let stages = &request.stages;
    SlowRequestReport {
        device: device.name.clone(),
        disk,
        op: request.op.name().into(),
        offset_bytes: request.offset_bytes,
        len_bytes: request.len_bytes,
        ok: request.ok,
        ago_s: now.max(request.done).since(request.done).as_secs_f64(),
        response_ms: request.response.as_millis_f64(),
        limited_ms: stages.limited.as_millis_f64(),
        queued_ms: stages.queued.as_millis_f64(),
        device_ms: stages.device.as_millis_f64(),
    }
}
