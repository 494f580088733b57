//! Requests for tests.

use crate::DeviceModel;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::units::{Instant, Lba, Sectors};

pub(crate) fn request(id: u32, op: Op, lba: u64, sectors: u64) -> Request {
    Request {
        id: RequestId::new(id),
        vm: VmId::new(0),
        tag: None,
        op,
        sync: true,
        extent: Extent::new(Lba::new(lba), Sectors::new(sectors)).unwrap(),
        arrived: Instant::ZERO,
    }
}

pub(crate) fn read(id: u32, lba: u64, sectors: u64) -> Request {
    request(id, Op::Read, lba, sectors)
}

/// Submits at `now_ns` to an idle device and pops; when it was done, in ns.
pub(crate) fn serve_one(device: &mut dyn DeviceModel, now_ns: u64, command: &Request) -> u64 {
    device.submit(Instant::from_nanos(now_ns), command);
    let done = device.next_completion().unwrap();
    assert_eq!(device.pop_completed(done), Some(command.id));
    done.as_nanos()
}

pub(crate) fn metric(device: &dyn DeviceModel, name: &str) -> f64 {
    let mut found = f64::NAN;
    device.metrics(&mut |n, v| found = if n == name { v } else { found });
    found
}
