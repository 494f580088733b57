//! Cost of a command on a device without a head, as a number of bytes: its length, and a constant
//! for the command itself. Shares and the governor count in it.

use seekway_core::request::Op;
use seekway_core::units::Sectors;

/// Bytes that a command costs on top of its length. It lies between the drives of the profiles:
/// a 4 KiB read then costs an eighth of a 64 KiB one, not a sixteenth.
const COMMAND_BYTES: u64 = 4096;
/// Longer requests cost as much as this one: 8 GiB.
const SECTORS_MAX: u64 = 1 << 24;

/// The cost of a command, in bytes.
pub fn of_command(len: Sectors) -> u64 {
    of_more(len) + COMMAND_BYTES
}

/// The cost of what is added to a command, in bytes.
pub fn of_more(len: Sectors) -> u64 {
    Sectors::new(len.get().min(SECTORS_MAX)).bytes()
}

/// Cost that counts in the shares. `write_times`: cost of a write over that of a read.
pub fn in_shares(op: Op, cost: u64, write_times: f64) -> u64 {
    if op == Op::Write { (cost as f64 * write_times) as u64 } else { cost }
}

/// Cost of commands in flight: of all, and of writes.
#[derive(Clone, Copy, Default)]
pub struct InFlight {
    pub all: u64,
    pub writes: u64,
}

impl InFlight {
    pub fn of(op: Op, all: u64) -> InFlight {
        InFlight { all, writes: if op == Op::Write { all } else { 0 } }
    }
    pub fn plus(self, more: InFlight) -> InFlight {
        InFlight { all: self.all + more.all, writes: self.writes + more.writes }
    }
    /// The difference; neither figure goes below zero.
    pub fn less(self, some: InFlight) -> InFlight {
        let less = u64::saturating_sub;
        InFlight { all: less(self.all, some.all), writes: less(self.writes, some.writes) }
    }
    pub fn min(self, most: InFlight) -> InFlight {
        InFlight { all: self.all.min(most.all), writes: self.writes.min(most.writes) }
    }
}
