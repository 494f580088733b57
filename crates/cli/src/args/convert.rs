//! Arguments of `seekway convert`.

use super::ReadingArgs;
use clap::Args;
use std::path::PathBuf;

/// Write a trace as Parquet
///
/// The columns are time_ns (nanoseconds since the first request), volume, process, op
/// (read, write, flush, discard, write-zeroes), sync, start_sector and sectors (of 512
/// bytes). DuckDB, pandas and Polars read the file, and every command of Seekway takes it
/// as a trace.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway convert vm.vscsi vm.parquet
  blktrace -d /dev/sdb -w 60 -o - | seekway convert - sdb.parquet
  duckdb -c \"select op, count(*), avg(sectors) from 'vm.parquet' group by op\"")]
pub struct ConvertArgs {
    /// Trace in any format; `-` reads standard input
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// File to write, whole or not at all
    #[arg(value_name = "OUT.parquet")]
    pub out: PathBuf,
    #[command(flatten)]
    pub reading: ReadingArgs,
}
