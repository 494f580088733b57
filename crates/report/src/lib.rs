//! Tables, figures and the self-contained HTML report.
//!
//! This crate knows nothing of policies, devices or simulators. It takes plain data and renders:
//!
//! - [`Table`]: aligned text for a terminal, CSV, Markdown, and HTML inside a report;
//! - [`plot`]: figures, as data for uPlot and as HTML;
//! - [`Report`]: one HTML file that can be mailed and printed, and needs no network.
//!
//! All text is untrusted (VM names come from users): it is escaped in HTML, and control
//! characters never reach a terminal. Nothing here panics on data: values that are not finite
//! are left out and counted in a note, and a figure without data says so.
//!
//! The same input gives the same bytes.
//!
//! ```
//! use seekway_report::{Axis, Block, Lines, Report, Section, Series, Table, TextOptions};
//!
//! let rates = [("cfq", 29.3)];
//! let table = Table::of("Bandwidth", &rates)
//!     .text("policy", |row| row.0)
//!     .number("rate", "MiB/s", |row| row.1)
//!     .done();
//! print!("{}", table.to_text(TextOptions::default()));
//!
//! let figure = Lines {
//!     x: Axis::time("Time", "s"),
//!     y: Axis::linear("Bandwidth", "MiB/s").from_zero(),
//!     series: vec![Series::new("cfq", vec![(0.0, 28.0), (1.0, 30.6)])],
//! };
//! let blocks = vec![Block::Table(table), Block::figure(figure.render(), "One run.")];
//! let section = Section::new("Result", blocks);
//! let report = Report { title: "A run".into(), sections: vec![section], ..Report::default() };
//! report.write_html(std::io::sink())?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod html;
pub mod number;
pub mod plot;
pub mod rank;
pub mod table;

pub use html::{Block, Report, Section};
pub use plot::{Axis, Bar, BarSeries, Bars, Figure, HeatMap, Histogram, Lines, Outline, Panels};
pub use plot::{PointSample, Scatter, SeekBins, Series};
pub use table::{Align, Cell, Column, Table, TextOptions, Tone};
