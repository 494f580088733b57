//! The flash model that fits a measured drive (docs/calibrate.md, section "Flash").
//!
//! 1. The drive is measured under a matrix of loads ([`matrix`]): a closed loop of reads and writes
//!    of one size, and beside it a quiet reader of 4 KiB, one at a time.
//! 2. Half of the cells, every other one of the matrix ([`Cell::is_fitted`]), is fitted: the
//!    parameters of [`KEYS`] whose model has, in these cells, the smallest squared logarithm of the
//!    ratios of IOPS and of the reader's mean latency.
//! 3. The cells do not determine a parameter whose standard error, while all others are free, is
//!    above [`TOLD_ERROR_MAX`]. It gets its default back, and the others are fitted again. A
//!    parameter that moves by more then is not determined either. If the default makes the fit
//!    clearly worse, the fitted value stays, and is marked as rough.
//! 4. The other half shows the model's error ([`judge`]).
//!
//! Absent: the measurement of real drives, and threads. The caller runs the models ([`simulate`]),
//! several at once or not.

mod drive;
mod load;
mod matrix;
mod search;
mod toml;

pub use drive::{Beside, COUNT, FlashDrive, KEYS, Key};
pub use load::{CellLoad, Observed, simulate};
pub use matrix::{Cell, matrix};
pub use search::{Fit, Judgement, Measured, TOLD_ERROR_MAX, Told, TooFew, fit, judge};
