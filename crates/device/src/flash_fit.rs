//! The flash model that fits a measured drive (docs/calibrate.md, section "Flash").
//!
//! 1. The drive is measured under a matrix of loads ([`matrix`]): a closed loop of reads and
//!    writes of one size, and beside it a quiet reader of 4 KiB, one at a time.
//! 2. Half of the cells, every other one of the matrix ([`Cell::is_fitted`]), is fitted: the
//!    parameters of [`KEYS`] whose model has, in these cells, the smallest squared logarithm of
//!    the ratios of IOPS and of the reader's mean latency.
//! 3. A parameter whose standard error, while all others are free, is above [`TOLD_ERROR_MAX`] is not
//!    told by the cells. It gets its default back, and the others are fitted again. One that moves
//!    by more then is not told either. If the default makes the fit clearly worse, the fitted value
//!    stays, and is marked as rough.
//! 4. The other half says by how much the model is off ([`judge`]).
//!
//! Absent: the measuring of real drives, and threads. Whoever fits runs the models
//! ([`simulate`]), several at once or not.

mod drive;
mod load;
mod matrix;
mod search;
mod toml;

pub use drive::{Beside, COUNT, FlashDrive, KEYS, Key};
pub use load::{CellLoad, Observed, simulate};
pub use matrix::{Cell, matrix};
pub use search::{Fit, Judgement, Measured, TOLD_ERROR_MAX, Told, TooFew, fit, judge};
