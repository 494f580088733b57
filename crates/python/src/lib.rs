//! The native half of the Python package `seekway`; its face is `python/seekway`.
//!
//! A call takes the arguments of a command line and returns the command's output, so the figures
//! are the same to the bit. Python's lock is released while it runs, and Ctrl-C ends it.

mod compare;
mod errors;
mod fit;
mod policy;
mod records;

use pyo3::prelude::*;
use seekway_core::params::parse_duration;
use seekway_core::units::Nanos;

/// A time with its unit in milliseconds; None if it is none.
#[pyfunction]
fn duration_ms(text: &str) -> Option<f64> {
    parse_duration(text).ok().map(Nanos::as_millis_f64)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::compare::{compare, requests, run, scenario};
    #[pymodule_export]
    use crate::duration_ms;
    #[pymodule_export]
    use crate::fit::{fit_model, read_ahead};
    #[pymodule_export]
    use crate::policy::{Completion, Device, Hold, Part, Request, Wait};
    #[pymodule_export]
    use crate::records::Records;
    #[pymodule_export]
    use crate::records::{TraceBatches, check_trace};
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
