//! Dies and the channels to them, in time. A die has an array, which does one
//! thing at a time, and a register, so that the transfer of one page overlaps
//! the array's work on the next.

use super::lane::Lane;
use crate::mix::mix;

/// What the flash takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashTimes {
    /// From the array to the register.
    pub read_ns: u64,
    /// From the register to the array; the mean of all programs.
    pub program_ns: u64,
    /// A program takes at most so much more or less than the mean.
    pub program_spread_ns: u64,
    /// Where the sequence of these differences begins.
    pub seed: u64,
    pub erase_ns: u64,
    /// Millions of bytes in a second over a channel, at least 1.
    pub channel_mb_s: u64,
    /// Does a die's register send or take a page while its array works? MQSim (Tavakkol et al.,
    /// FAST 2018) has dies that do one thing at a time.
    pub overlap: bool,
}

impl FlashTimes {
    /// How long program `number` takes. The differences are spread evenly: vendors publish a
    /// typical and a longest time, and no distribution.
    fn program_ns(&self, number: u64) -> u64 {
        let spread_ns = self.program_spread_ns;
        if spread_ns == 0 {
            return self.program_ns;
        }
        let random = u128::from(mix(mix(self.seed).wrapping_add(number)));
        let part = (random * (2 * u128::from(spread_ns) + 1)) >> 64;
        self.program_ns - spread_ns + part as u64
    }
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
    /// Time of a page on a channel.
    page_ns: u64,
    channels: Vec<Lane>,
    dies: Vec<Die>,
    /// Where the search for an idle die begins, so that equals take turns.
    turn: u32,
    /// Programs so far.
    programs: u64,
}

impl Flash {
    /// Die d hangs on channel d mod `channels`.
    pub(super) fn new(times: FlashTimes, channels: u32, dies: u32, page_bytes: u64) -> Flash {
        Flash {
            times,
            page_bytes,
            page_ns: transfer_ns(page_bytes, times.channel_mb_s),
            channels: (0..channels).map(|_| Lane::default()).collect(),
            dies: vec![Die::default(); dies as usize],
            turn: 0,
            programs: 0,
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
        if !self.times.overlap {
            d.array_ns = d.register_ns;
        }
        d.register_ns
    }

    /// When `die` could take a page to program that is there at `ready_ns`: not
    /// before the array is about to be free, so that reads can still go first.
    pub(super) fn program_begin(&self, ready_ns: u64, die: u32) -> u64 {
        let d = &self.dies[die as usize];
        let ahead = if self.times.overlap { self.page_ns } else { 0 };
        ready_ns.max(d.register_ns).max(d.array_ns.saturating_sub(ahead))
    }

    /// Sends a page to `die` from `begin_ns` on and programs it as physical page
    /// `page`; when that is done.
    pub(super) fn program(&mut self, past_ns: u64, begin_ns: u64, die: u32, page: u32) -> u64 {
        let lane = die as usize % self.channels.len();
        let sent = self.channels[lane].reserve(past_ns, begin_ns, self.page_ns);
        let length = self.next_program_ns();
        let d = &mut self.dies[die as usize];
        let begin = sent.max(d.array_ns);
        d.register_ns = begin;
        d.array_ns = begin + length;
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
            let ready = self.register_free_ns(die).max(past_ns);
            let sent = self.channels[lane].reserve(past_ns, ready, self.page_ns);
            let length = self.next_program_ns();
            let d = &mut self.dies[die as usize];
            d.register_ns = sent.max(d.array_ns);
            d.array_ns = d.register_ns + length;
        }
        let d = &mut self.dies[die as usize];
        d.array_ns += u64::from(work.blocks_erased) * self.times.erase_ns;
    }

    fn next_program_ns(&mut self) -> u64 {
        self.programs += 1;
        self.times.program_ns(self.programs)
    }

    /// When `die` can take a page.
    fn register_free_ns(&self, die: u32) -> u64 {
        let d = &self.dies[die as usize];
        if self.times.overlap { d.register_ns } else { d.register_ns.max(d.array_ns) }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn times(seed: u64) -> FlashTimes {
        FlashTimes {
            read_ns: 0,
            program_ns: 600_000,
            program_spread_ns: 200_000,
            seed,
            erase_ns: 0,
            channel_mb_s: 1,
            overlap: true,
        }
    }

    #[test]
    fn program_times_vary_about_their_mean_and_alike_twice() {
        let all: Vec<u64> = (0..20_000).map(|number| times(7).program_ns(number)).collect();
        assert!(all.iter().all(|ns| (400_000..=800_000).contains(ns)));
        let mean = all.iter().sum::<u64>() / all.len() as u64;
        assert!((594_000..=606_000).contains(&mean), "{mean}");
        // Spread evenly: half of them differ by less than half of the most.
        let near = all.iter().filter(|ns| (500_000..=700_000).contains(*ns)).count();
        assert!((9_700..=10_300).contains(&near), "{near}");
        assert_eq!(times(7).program_ns(3), all[3]);
        assert_ne!(times(8).program_ns(3), all[3]);
        let wide = FlashTimes { program_spread_ns: 600_000, ..times(7) };
        assert!((0..1_000).all(|number| wide.program_ns(number) <= 1_200_000));
    }
}
