//! Which light VMs are active: the last two are enough to know whether there is one besides a VM.

use crate::units::{Instant, Nanos};

/// A VM counts as light for so long after it sent something.
const FOR: Nanos = Nanos::from_millis(100);

/// The two VMs that last sent something while light, and when.
#[derive(Default)]
pub struct Lights([Option<(usize, Instant)>; 2]);

impl Lights {
    /// The VM has sent something, and is light or not.
    pub fn note(&mut self, now: Instant, vm: usize, is_light: bool) {
        let is_it = |entry: &Option<(usize, Instant)>| entry.is_some_and(|(light, _)| light == vm);
        if !is_light {
            self.0.iter_mut().filter(|entry| is_it(entry)).for_each(|entry| *entry = None);
            return;
        }
        if !is_it(&self.0[0]) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((vm, now));
    }

    /// Is a light VM other than this one active?
    pub fn has_other(&self, now: Instant, vm: usize) -> bool {
        self.0.iter().flatten().any(|&(light, at)| light != vm && now.since(at) <= FOR)
    }
}
