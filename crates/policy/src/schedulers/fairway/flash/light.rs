//! Which VMs count as light now, so that others keep the device's queue short for them.
//!
//! A VM is light from its request to some time after that request's end. How long depends on its own
//! pauses: a VM that has come back after a second is expected within two. Linux's BFQ decides by a
//! VM's own think time in the same way whether to wait for it (`bfq_update_io_thinktime`).

use seekway_core::units::{Instant, Nanos};

/// A VM counts as light for at least this time after its last request.
const LEAST: Nanos = Nanos::from_millis(100);
/// Nobody waits for a VM whose pauses are longer: others would be held back for good, for a request
/// that seldom comes.
const PAUSE_MAX: Nanos = Nanos::from_secs(5);
/// A VM is expected for this multiple of its pause.
const TIMES: u64 = 2;

/// The longest pause of a VM between its requests of late. Each later pause takes a quarter off, so
/// that an exception is forgotten. A new VM is expected to come back: if it does not, others have
/// lost a little once.
#[derive(Clone, Copy)]
pub struct Pauses(Nanos);

impl Default for Pauses {
    fn default() -> Self {
        Pauses(PAUSE_MAX.scaled(1, TIMES))
    }
}

impl Pauses {
    /// Hears of the pause between the end of the VM's last request and the next one's arrival.
    pub fn ended(&mut self, pause: Nanos) {
        if pause > LEAST {
            self.0 = pause.max(self.0.scaled(3, 4));
        }
    }

    /// Time within which the VM is expected back after its last request.
    fn patience(self) -> Nanos {
        if self.0 > PAUSE_MAX { LEAST } else { self.0.scaled(TIMES, 1).max(LEAST) }
    }
}

/// A VM, and until when it counts as light.
type Entry = (usize, Instant);

/// Until when each VM counts as light.
#[derive(Default)]
pub struct Lights {
    /// By VM; zero: not at all.
    until: Vec<Instant>,
    /// The two that are light for longest, which tell whether there is one beside any VM.
    longest: [Option<Entry>; 2],
}

impl Lights {
    /// The VM has sent something while it had little outstanding, or such a request is done.
    pub fn note(&mut self, now: Instant, vm: usize, pauses: Pauses) {
        if self.until.len() <= vm {
            self.until.resize(vm + 1, Instant::ZERO);
        }
        let until = now + pauses.patience();
        let is_sooner = until < self.until[vm];
        self.until[vm] = until;
        if is_sooner {
            return self.look();
        }
        let known = self.longest.iter_mut().flatten().find(|(light, _)| *light == vm);
        if let Some(entry) = known {
            entry.1 = until;
        } else if self.longest[1].is_none_or(|(_, at)| at < until) {
            self.longest[1] = Some((vm, until));
        }
        if self.longest[0].map(|(_, at)| at) < self.longest[1].map(|(_, at)| at) {
            self.longest.swap(0, 1);
        }
    }

    /// Is the VM light, as far as is known? It may have been for long.
    pub fn is_noted(&self, vm: usize) -> bool {
        self.until.get(vm).is_some_and(|&until| until > Instant::ZERO)
    }

    /// The VM is not light, or has left.
    pub fn forget(&mut self, vm: usize) {
        if self.is_noted(vm) {
            self.until[vm] = Instant::ZERO;
            if self.longest.iter().flatten().any(|&(light, _)| light == vm) {
                self.look();
            }
        }
    }

    /// Look through all VMs for the two that are light for longest.
    fn look(&mut self) {
        self.longest = [None; 2];
        for (vm, &until) in self.until.iter().enumerate().filter(|(_, at)| **at > Instant::ZERO) {
            let [first, second] = &mut self.longest;
            if first.is_none_or(|(_, at)| at < until) {
                (*second, *first) = (*first, Some((vm, until)));
            } else if second.is_none_or(|(_, at)| at < until) {
                *second = Some((vm, until));
            }
        }
    }

    /// Is a VM other than this one light?
    pub fn has_other(&self, now: Instant, vm: usize) -> bool {
        self.longest.iter().flatten().any(|&(light, until)| light != vm && now <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn pauses(ms: &[u64]) -> Pauses {
        let mut pauses = Pauses::default();
        ms.iter().for_each(|&ms| pauses.ended(Nanos::from_millis(ms)));
        pauses
    }

    #[test]
    fn a_vm_is_expected_for_twice_its_own_pause() {
        let patience_ms = |ms: &[u64]| pauses(ms).patience().get() / 1_000_000;
        assert_eq!(patience_ms(&[]), 5_000, "a VM of which nothing is known");
        assert_eq!(patience_ms(&[1, 50, 100]), 5_000, "pauses that are short anyway");
        assert_eq!(patience_ms(&[1_000; 9]), 2_000);
        assert_eq!(patience_ms(&[101; 20]), 202);
        // The short ones of a burst do not hide the pause before it.
        assert_eq!(patience_ms(&[1_900, 1, 1, 1, 1, 1, 1, 1, 1]), 3_800);
        assert_eq!(patience_ms(&[4_000, 200]), 6_000, "an exception is forgotten bit by bit");
        assert_eq!(patience_ms(&[60_000]), 100, "a VM that is hardly ever there");
    }

    #[test]
    fn the_two_longest_tell_of_all() {
        let mut rng = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: u64| {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            rng % below
        };
        let (mut lights, mut naive) = (Lights::default(), BTreeMap::new());
        for step in 0..20_000 {
            let (now, vm) = (at_ms(step * 20), draw(6) as usize);
            if draw(3) > 0 {
                let pauses = pauses(&[draw(1_500)]);
                lights.note(now, vm, pauses);
                naive.insert(vm, now + pauses.patience());
            } else {
                lights.forget(vm);
                naive.remove(&vm);
            }
            for vm in 0..7 {
                let expected = naive.iter().any(|(&light, &until)| light != vm && now <= until);
                assert_eq!(lights.has_other(now, vm), expected, "step {step}, beside {vm}");
            }
        }
    }
}
