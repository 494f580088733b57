//! Dies and the channels to them, in time. A die has an array, which does one
//! thing at a time, and a register, so that the transfer of one page overlaps
//! the array's work on the next.

use super::lane::Lane;

/// What the flash takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashTimes {
    /// From the array to the register.
    pub read_ns: u64,
    /// From the register to the array.
    pub program_ns: u64,
    pub erase_ns: u64,
    /// Millions of bytes in a second over a channel, at least 1.
    pub channel_mb_s: u64,
}

/// Time of `bytes` at `mb_s` million bytes in a second.
pub(super) fn transfer_ns(bytes: u64, mb_s: u64) -> u64 {
    bytes * 1_000 / mb_s
}

#[derive(Clone, Copy, Default)]
struct Die {
    array_ns: u64,
    register_ns: u64,
    /// The last pages programmed and when that ends: until then their data is
    /// in the buffer too.
    programming: [(u32, u64); 2],
}

pub(super) struct Flash {
    times: FlashTimes,
    page_bytes: u64,
    channels: Vec<Lane>,
    dies: Vec<Die>,
    /// Where the search for an idle die begins, so that equals take turns.
    turn: u32,
}

impl Flash {
    /// Die d hangs on channel d mod `channels`.
    pub(super) fn new(times: FlashTimes, channels: u32, dies: u32, page_bytes: u64) -> Flash {
        Flash {
            times,
            page_bytes,
            channels: (0..channels).map(|_| Lane::default()).collect(),
            dies: vec![Die::default(); dies as usize],
            turn: 0,
        }
    }

    /// Reads a page and brings `bytes` of it over the channel; when they are there.
    pub(super) fn read(&mut self, past_ns: u64, ready_ns: u64, die: u32, bytes: u64) -> u64 {
        let lane = die as usize % self.channels.len();
        let d = &mut self.dies[die as usize];
        let loaded = ready_ns.max(d.array_ns) + self.times.read_ns;
        // The array waits until the register has sent what it holds.
        let in_register = loaded.max(d.register_ns);
        d.array_ns = in_register;
        let length = transfer_ns(bytes, self.times.channel_mb_s);
        d.register_ns = self.channels[lane].reserve(past_ns, in_register, length);
        d.register_ns
    }

    /// When `die` could take a page to program that is there at `ready_ns`: not
    /// before the array is about to be free, so that reads can still go first.
    pub(super) fn program_begin(&self, ready_ns: u64, die: u32) -> u64 {
        let d = &self.dies[die as usize];
        let length = transfer_ns(self.page_bytes, self.times.channel_mb_s);
        ready_ns.max(d.register_ns).max(d.array_ns.saturating_sub(length))
    }

    /// Sends a page to `die` from `begin_ns` on and programs it as physical page
    /// `page`; when that is done.
    pub(super) fn program(&mut self, past_ns: u64, begin_ns: u64, die: u32, page: u32) -> u64 {
        let lane = die as usize % self.channels.len();
        let length = transfer_ns(self.page_bytes, self.times.channel_mb_s);
        let sent = self.channels[lane].reserve(past_ns, begin_ns, length);
        let d = &mut self.dies[die as usize];
        let begin = sent.max(d.array_ns);
        d.register_ns = begin;
        d.array_ns = begin + self.times.program_ns;
        d.programming = [(page, d.array_ns), d.programming[0]];
        d.array_ns
    }

    /// Garbage collection: all that it does goes through array and channel, and
    /// holds up what comes later on this die.
    pub(super) fn collect(&mut self, past_ns: u64, die: u32, work: super::ftl::Work) {
        for _ in 0..work.pages_read {
            let ready = self.dies[die as usize].array_ns;
            self.read(past_ns, ready.max(past_ns), die, self.page_bytes);
        }
        for _ in 0..work.pages_programmed {
            let lane = die as usize % self.channels.len();
            let length = transfer_ns(self.page_bytes, self.times.channel_mb_s);
            let ready = self.dies[die as usize].register_ns.max(past_ns);
            let sent = self.channels[lane].reserve(past_ns, ready, length);
            let d = &mut self.dies[die as usize];
            d.register_ns = sent.max(d.array_ns);
            d.array_ns = d.register_ns + self.times.program_ns;
        }
        let d = &mut self.dies[die as usize];
        d.array_ns += u64::from(work.blocks_erased) * self.times.erase_ns;
    }

    /// Is physical page `page` of `die` still being programmed at `at_ns`?
    pub(super) fn programs(&self, at_ns: u64, die: u32, page: u32) -> bool {
        self.dies[die as usize].programming.iter().any(|&(p, end)| p == page && end > at_ns)
    }

    /// The die whose array is free first; equals take turns. Dies that `skip`
    /// names are left out.
    pub(super) fn idlest(&self, skip: &[u32]) -> Option<u32> {
        let count = self.dies.len() as u32;
        let order = (self.turn..count).chain(0..self.turn);
        order.filter(|die| !skip.contains(die)).min_by_key(|&die| self.dies[die as usize].array_ns)
    }

    /// `die` had its turn.
    pub(super) fn next_turn(&mut self, die: u32) {
        self.turn = (die + 1) % self.dies.len() as u32;
    }
}
