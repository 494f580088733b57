//! Arguments of `seekway top`.

use super::SocketArgs;
use clap::Args;

/// Watch a running `seekway serve`: devices, disks, and who waits for whom
///
/// On a terminal it draws once a second, and keys sort and change settings (`?` shows them).
/// Elsewhere it prints one picture as text.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway top
  seekway top --interval 5s --socket /run/other/control.sock
  seekway top --once | mail -s disks operator

Colours follow NO_COLOR. Exit status: 0, 2 if the daemon or the terminal cannot be reached.")]
pub struct TopArgs {
    #[command(flatten)]
    pub daemon: SocketArgs,
    /// Time from one look to the next, 100ms to an hour
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: String,
    /// Print one picture as text and exit
    #[arg(long)]
    pub once: bool,
}
