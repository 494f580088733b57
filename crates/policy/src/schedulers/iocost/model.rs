//! Cost of a request (`calc_lcoefs`, `calc_vtime_cost_builtin`), and the classes of devices that
//! the kernel has coefficients for (`autop`).

use seekway_core::params::Params;
use seekway_core::request::{Op, Request};
use seekway_core::units::{Lba, Nanos};

/// Picoseconds in a second. Costs are in picoseconds of device time.
const SECOND_PS: u64 = 1_000_000_000_000;
/// Costs count 4 KiB pages.
const PAGE_BYTES: u64 = 4096;
const PAGE_SECTORS: u64 = 8;
/// A request that begins further than that from the VM's last one is random (16 MiB).
const RANDOM_PAGES: u64 = 4096;
/// Longer requests cost as if they were that long (1 GiB), so that a cost stays finite.
const PAGES_MAX: u64 = 1 << 18;

/// Figures of a device, from which its coefficients follow, of reads and of writes: bytes a
/// second, sequential requests of 4 KiB a second, random ones.
pub(super) type Figures = [[u64; 3]; 2];

/// A class of devices.
pub(super) struct Class {
    /// Latency target of reads and writes.
    pub latency: Nanos,
    pub figures: Figures,
    /// A device that is faster than this percentage is of the next class.
    pub too_fast_percent: Option<u64>,
    /// One that is slower is of the class before.
    pub too_slow_percent: Option<u64>,
}

pub(super) const HDD: usize = 0;
pub(super) const SSD_QD1: usize = 1;
pub(super) const SSD: usize = 2;

/// `autop`, in the kernel's order.
pub(super) static CLASSES: [Class; 4] = [
    // hdd
    Class {
        latency: Nanos::from_millis(250),
        figures: [[174_019_176, 41_708, 370], [178_075_866, 42_705, 378]],
        too_fast_percent: None,
        too_slow_percent: None,
    },
    // ssd-qd1
    Class {
        latency: Nanos::from_millis(25),
        figures: [[245_855_193, 61_575, 6_946], [141_365_009, 33_716, 26_796]],
        too_fast_percent: None,
        too_slow_percent: None,
    },
    // ssd
    Class {
        latency: Nanos::from_millis(25),
        figures: [[488_636_629, 8_932, 8_518], [427_891_549, 28_755, 21_940]],
        too_fast_percent: Some(500),
        too_slow_percent: None,
    },
    // ssd-fast
    Class {
        latency: Nanos::from_millis(5),
        figures: [[3_102_524_156, 724_816, 778_122], [1_742_780_862, 425_702, 443_193]],
        too_fast_percent: None,
        too_slow_percent: Some(10),
    },
];

/// The figures that parameters give; `None` if they leave all to the class.
pub(super) fn given_figures(params: &Params) -> Option<Figures> {
    let keys = [("rbps", ["rseqiops", "rrandiops"]), ("wbps", ["wseqiops", "wrandiops"])];
    let figures = keys.map(|(bytes, counts)| {
        let [sequential, random] = counts.map(|key| params.count(key));
        [params.bytes(bytes), sequential, random]
    });
    (figures != Figures::default()).then_some(figures)
}

/// The coefficients of one direction, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Coefficients {
    pub page: u64,
    pub sequential: u64,
    pub random: u64,
}

impl Coefficients {
    /// `calc_lcoefs`. A figure of zero makes its part free.
    fn new([bytes, sequential, random]: [u64; 3]) -> Self {
        let page = match bytes.div_ceil(PAGE_BYTES) {
            0 => 0,
            pages => SECOND_PS.div_ceil(pages),
        };
        let base = |iops: u64| match iops {
            0 => 0,
            iops => SECOND_PS.div_ceil(iops).saturating_sub(page),
        };
        Coefficients { page, sequential: base(sequential), random: base(random) }
    }
}

/// The cost model of a device: of reads and of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Model([Coefficients; 2]);

impl Model {
    /// By the class's figures, each replaced by the given one unless that is zero.
    pub fn new(class: &Class, given: Option<Figures>) -> Self {
        let given = given.unwrap_or_default();
        let either = |op: usize, n: usize| match given[op][n] {
            0 => class.figures[op][n],
            given => given,
        };
        Model([0, 1].map(|op| Coefficients::new([0, 1, 2].map(|n| either(op, n)))))
    }

    fn of(&self, op: Op) -> &Coefficients {
        &self.0[usize::from(op != Op::Read)]
    }

    /// Cost of a request in all; `cursor` is where the VM's last one ended.
    pub fn cost(&self, request: &Request, cursor: Option<Lba>) -> u64 {
        let of = self.of(request.op);
        let pages = (request.extent.len().get() / PAGE_SECTORS).clamp(1, PAGES_MAX);
        let start = request.extent.start();
        let seek = cursor.map_or(0, |cursor| start.distance(cursor).get() / PAGE_SECTORS);
        let base = if seek > RANDOM_PAGES { of.random } else { of.sequential };
        base + pages * of.page
    }

    /// The part of the cost that is for the size (`calc_size_vtime_cost`).
    pub fn size_time(&self, request: &Request) -> Nanos {
        let pages = (request.extent.len().get() / PAGE_SECTORS).min(PAGES_MAX);
        Nanos::new(pages * self.of(request.op).page / 1_000)
    }
}
