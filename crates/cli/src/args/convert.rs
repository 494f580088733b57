//! Arguments of `seekway convert`.

use super::ReadingArgs;
use clap::Args;
use std::path::PathBuf;

/// Write a trace as CSV
///
/// The columns are time_ns (nanoseconds since the first request), op (read, write, flush,
/// discard, write-zeroes), start_sector and sectors (of 512 bytes), volume, pid (0: not known)
/// and sync (1: somebody waits for it). DuckDB, pandas and Polars read the file, and every
/// command of Seekway takes it as a trace.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway convert vm.vscsi vm.csv.gz
  blktrace -d /dev/sdb -w 60 -o - | seekway convert - sdb.csv.gz
  duckdb -c \"select op, count(*), avg(sectors) from 'vm.csv.gz' group by op\"")]
pub struct ConvertArgs {
    /// Trace in any format; `-` reads standard input
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// File to write, whole or not at all; packed with gzip if its name ends in .gz
    #[arg(value_name = "OUT.csv[.gz]")]
    pub out: PathBuf,
    #[command(flatten)]
    pub reading: ReadingArgs,
}
