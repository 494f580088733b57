//! A device's highest read rate, the paper's BW_T (algorithms.md, section 6): measured when the
//! device is opened, before the run.

use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_device::DeviceModel;
use seekway_device::closed_loop::ClosedLoop;

/// Length of a command: 1 MiB.
const COMMAND: Sectors = Sectors::new(2048);
/// Commands in all: 1 GiB, or the whole device where it is smaller.
const COMMANDS: u64 = 1024;

/// Bytes a second of sequential reads at the device's own queue depth, from its
/// first sector on. The device has to be new: the run needs another of its kind.
pub fn measure(mut device: Box<dyn DeviceModel>) -> u64 {
    let capacity = device.profile().capacity.get();
    let length = COMMAND.get().min(capacity);
    let commands = COMMANDS.min(capacity / length);
    let mut end = Instant::ZERO;
    let next = |sent| {
        let extent = Extent::new(Lba::new(sent * length), Sectors::new(length))?;
        (sent < commands).then_some((Op::Read, extent))
    };
    let depth = device.queue_depth();
    ClosedLoop { depth, think: Nanos::ZERO }.run(&mut *device, next, |at| end = at);
    let bytes = u128::from(commands * Sectors::new(length).bytes());
    (bytes * 1_000_000_000 / u128::from(end.as_nanos().max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::measure;
    use seekway_device::profile;

    #[test]
    fn drives_read_what_is_published_of_them() {
        let rate = |name: &str| measure(profile::load(name).expect("a profile").build()) as f64;
        for name in ["intel-320", "intel-x25m-g2", "samsung-970-pro"] {
            let published = profile::load(name).ok().and_then(|p| p.published());
            let published = published.and_then(|p| p.sequential_read_mb_s).expect("a figure");
            let error = rate(name) / 1e6 / published - 1.0;
            assert!(error.abs() < 0.15, "{name}: {:.0} of {published} MB/s", rate(name) / 1e6);
        }
        let array = rate("raid0-8x-x25m-g2") / rate("intel-x25m-g2");
        assert!((7.0..=8.1).contains(&array), "eight drives read {array:.2} times as much as one");
    }
}
