//! The busdriver delay: how long the policy waits, after a completion, for a
//! new arrival rather than go where the plan says (algorithms.md, section 3.3).

use crate::units::{Instant, Nanos};

/// When to wait, and for how long.
pub struct Busdriver {
    /// The paper's form: always as long; `None` decides by what it is worth.
    fixed: Option<Nanos>,
    /// When the last command completed, if nothing was dispatched since but hits.
    completed: Option<Instant>,
}

impl Busdriver {
    pub fn new(fixed: Option<Nanos>) -> Self {
        Busdriver { fixed, completed: None }
    }

    /// A command is done.
    pub fn completed(&mut self, now: Instant) {
        self.completed = Some(now);
    }

    /// Until when to wait, when the plan's next is not where the head is.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        let until = self.completed? + self.fixed?;
        (now < until).then_some(until)
    }
}
