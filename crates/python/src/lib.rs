//! The native half of the Python package `seekway`; its face is `python/seekway`.
//!
//! A call takes the arguments of a command line and gives back what that command prints, so the
//! figures are the same to the bit. Python's lock is released while it runs, and Ctrl-C ends it.

mod compare;
mod errors;
mod policy;
mod records;
mod traces;
mod watched;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::compare::{compare, requests, run};
    #[pymodule_export]
    use crate::policy::{Completion, Device, Hold, Part, Request, Wait};
    #[pymodule_export]
    use crate::records::Records;
    #[pymodule_export]
    use crate::traces::{TraceBatches, write_trace};
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
