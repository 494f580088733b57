//! A request, and the measured drives, where they are.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // a test may read files and print

use seekway_policy::request::{Extent, Op, Request, RequestId, VmId};
use seekway_policy::units::{Instant, Lba, Sectors};

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

/// The text of a trace below `traces/drives`, or `None` where the traces are absent.
pub fn trace(file: &str) -> Option<String> {
    let path = seekway_testing::shared(&format!("traces/drives/{file}"))?;
    Some(std::fs::read_to_string(path).expect("a trace is text"))
}
