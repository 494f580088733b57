//! The host cuts this guest's slices into shorter ones, and so gives its vCPUs back the
//! sooner.
//!
//! Source: vSlicer (HPDC 2012), section 3, as algorithms.md, section 7, has it: the slice T of a
//! latency-sensitive guest is cut into k micro-slices of T/k, which are spread evenly over the
//! round among guests that are not sliced; its share stays the same. k brings a micro-slice nearest
//! to `delta`. This is a policy of the host: its scheduler spreads the micro-slices, and pays a
//! context switch for each.

use super::{Entry, VcpuPolicy};
use seekway_core::params::{Kind, ParamSpec};
use seekway_core::units::Nanos;

pub(super) const ENTRY: Entry = Entry {
    name: "vslicer",
    summary: "the host gives this guest's vCPUs shorter slices, and as many more",
    source: "vSlicer (HPDC 2012), section 3",
    params: &[ParamSpec {
        key: "delta",
        kind: Kind::Duration,
        default: "5ms",
        help: "a micro-slice: the part of a whole slice that comes nearest to this, 100us to 1s",
    }],
    build: |params| {
        let delta =
            params.duration_within("delta", Nanos::from_micros(100), Nanos::from_secs(1))?;
        Ok(Box::new(VSlicer { delta }))
    },
};

struct VSlicer {
    delta: Nanos,
}

impl VcpuPolicy for VSlicer {
    fn slice(&self, whole: Nanos) -> Nanos {
        let (whole_ns, delta_ns) = (whole.get(), self.delta.get());
        let k = (whole_ns / delta_ns).max(1);
        // One part more, if that comes nearer.
        let nearer = (whole_ns / k).abs_diff(delta_ns) > (whole_ns / (k + 1)).abs_diff(delta_ns);
        whole.scaled(1, if nearer { k + 1 } else { k })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;

    #[test]
    fn a_slice_is_cut_into_the_parts_that_come_nearest() {
        let us = Nanos::from_micros;
        let cut = |spec: &str, whole| build(spec).unwrap().slice(whole);
        assert_eq!(cut("vslicer", us(11_000)), us(5_500));
        assert_eq!(cut("vslicer", us(3_000)), us(3_000));
        assert_eq!(cut("vslicer:delta=1ms", us(11_000)), us(1_000));
        assert_eq!(cut("vslicer:delta=4ms", us(11_000)), us(11_000).scaled(1, 3));
        assert_eq!(cut("vslicer:delta=1s", Nanos::ZERO), Nanos::ZERO);
    }
}
