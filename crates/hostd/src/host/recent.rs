//! Answers that several share: however many ask, the work is done once a second.

use crate::threads::lock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Age up to which an answer is shared.
const RECENT: Duration = Duration::from_secs(1);

/// The last answer, for those who ask again soon after.
pub struct Recent<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent(Mutex::new(None))
    }
}

impl<T> Recent<T> {
    /// The last answer if it is recent at `now`, else a new one, for which others wait meanwhile.
    pub fn get(&self, now: Instant, ask: impl FnOnce() -> T) -> Arc<T> {
        let mut last = lock(&self.0);
        match &*last {
            Some((at, answer)) if now.saturating_duration_since(*at) < RECENT => answer.clone(),
            _ => last.insert((now, Arc::new(ask()))).1.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapes_share_an_answer_for_a_second() {
        let (recent, asked) = (Recent::default(), std::cell::Cell::new(0));
        let ask = || {
            asked.set(asked.get() + 1);
            asked.get()
        };
        let start = Instant::now();
        for (after_ms, expected) in [(0, 1), (500, 1), (999, 1), (1_000, 2), (1_999, 2), (5_000, 3)]
        {
            let now = start + Duration::from_millis(after_ms);
            assert_eq!(*recent.get(now, ask), expected, "after {after_ms} ms");
        }
    }
}
