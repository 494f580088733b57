//! A request, and the measured drives, where they are.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // a test may read files and print

use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_device::DeviceModel;

pub fn request(op: Op, start: u64, sectors: u64) -> Request {
    numbered(0, op, start, sectors)
}

pub fn numbered(id: u32, op: Op, start: u64, sectors: u64) -> Request {
    Request {
        id: RequestId::new(id),
        vm: VmId::new(0),
        tag: None,
        op,
        sync: true,
        extent: Extent::new(Lba::new(start), Sectors::new(sectors)).unwrap(),
        arrived: Instant::ZERO,
    }
}

/// Submits to an idle device; when it was done, in ns.
pub fn serve(device: &mut dyn DeviceModel, now_ns: u64, op: Op, start: u64, sectors: u64) -> u64 {
    device.submit(Instant::from_nanos(now_ns), &request(op, start, sectors));
    let done = device.next_completion().unwrap();
    assert!(device.pop_completed(done).is_some());
    done.as_nanos()
}

pub fn metric(device: &dyn DeviceModel, name: &str) -> f64 {
    let mut found = f64::NAN;
    device.metrics(&mut |n, v| found = if n == name { v } else { found });
    found
}

/// The text of a trace below `traces/drives`, or `None` where the traces are absent.
pub fn trace(file: &str) -> Option<String> {
    let path = seekway_testing::shared(&format!("traces/drives/{file}"))?;
    Some(std::fs::read_to_string(path).expect("a trace is text"))
}
