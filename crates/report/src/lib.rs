//! Tables, figures and the self-contained HTML report.
#![forbid(unsafe_code)]
