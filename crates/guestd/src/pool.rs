//! Which tags are in use, by how many processes, and which comes next.
//!
//! Pure: time is an argument. A freed tag rests for a while before it names another process, so
//! that the host does not take the new process's requests for the old one's.

use seekway_core::request::ProcessTag;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A tag that is carried or rests.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// Number of processes with this tag, including those that inherited it.
    carriers: u32,
    /// The last I/O of any of them that was noticed.
    active: Instant,
    /// The time from which no process carries it.
    resting: Option<Instant>,
}

#[derive(Debug)]
pub struct Pool {
    /// The first tag and the last.
    tags: (u16, u16),
    rest: Duration,
    uses: BTreeMap<u16, Use>,
    /// Tags are given out in turn: one given back is taken last.
    next: u16,
}

impl Pool {
    /// Tags from the first to the last, each resting for `rest` between two processes.
    pub fn new(tags: (u16, u16), rest: Duration) -> Pool {
        Pool { tags, rest, uses: BTreeMap::new(), next: tags.0 }
    }

    /// Gives a process a tag, and tells whether others carry it already: when all are in use, that
    /// of the processes whose last I/O is longest ago.
    pub fn take(&mut self, now: Instant) -> (ProcessTag, bool) {
        let (first, last) = self.tags;
        let in_turn = (self.next..=last).chain(first..self.next);
        let free = in_turn.into_iter().find(|tag| self.is_free(*tag, now));
        let tag = free.unwrap_or_else(|| {
            // Resting ones first: nobody shares them.
            let coldest = self.uses.iter().min_by_key(|(_, u)| (u.carriers > 0, u.active));
            *coldest.expect("no tag is free, so all are in use").0
        });
        self.next = if tag == last { first } else { tag + 1 };
        let shared = self.uses.get(&tag).is_some_and(|u| u.carriers > 0);
        let tag = ProcessTag::new(tag).expect("tags start at one");
        self.carry(tag, now);
        (tag, shared)
    }

    fn is_free(&self, tag: u16, now: Instant) -> bool {
        self.uses.get(&tag).is_none_or(|u| {
            u.resting.is_some_and(|since| now.saturating_duration_since(since) >= self.rest)
        })
    }

    /// One more process carries `tag`.
    pub fn carry(&mut self, tag: ProcessTag, now: Instant) {
        let fresh = Use { carriers: 0, active: now, resting: None };
        let used = self.uses.entry(tag.get()).or_insert(fresh);
        used.carriers += 1;
        used.active = now;
        used.resting = None;
    }

    /// One process less carries it; true when it was the last.
    pub fn drop_carrier(&mut self, tag: ProcessTag, now: Instant) -> bool {
        let used = self.uses.get_mut(&tag.get()).expect("a carried tag is in the table");
        used.carriers -= 1;
        if used.carriers == 0 {
            used.resting = Some(now);
        }
        used.carriers == 0
    }

    /// A process with this tag does I/O.
    pub fn active(&mut self, tag: ProcessTag, now: Instant) {
        if let Some(used) = self.uses.get_mut(&tag.get()) {
            used.active = now;
        }
    }

    /// Is more than half of the tags free? Then processes may have tags before they do I/O.
    pub fn has_plenty(&self) -> bool {
        self.uses.len() < self.size() / 2
    }

    /// The number of tags.
    pub fn size(&self) -> usize {
        let (first, last) = self.tags;
        usize::from(last - first) + 1
    }

    /// Tags that some process carries.
    pub fn carried(&self) -> usize {
        self.uses.values().filter(|u| u.carriers > 0).count()
    }

    /// Frees tags that have rested for long enough.
    pub fn tidy(&mut self, now: Instant) {
        let rest = self.rest;
        self.uses.retain(|_, u| {
            u.resting.is_none_or(|since| now.saturating_duration_since(since) < rest)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(2);

    fn pool() -> (Pool, Instant) {
        (Pool::new((1, 7), REST), Instant::now())
    }

    #[test]
    fn a_tag_rests_before_it_names_another() {
        let (mut pool, t0) = pool();
        let taken: Vec<u16> = (0..7).map(|_| pool.take(t0).0.get()).collect();
        assert_eq!(taken, [1, 2, 3, 4, 5, 6, 7]);
        assert!(pool.drop_carrier(ProcessTag::new(3).unwrap(), t0));
        assert!(pool.drop_carrier(ProcessTag::new(5).unwrap(), t0));
        pool.tidy(t0 + REST / 2);
        pool.active(ProcessTag::new(3).unwrap(), t0 + REST / 2);
        // Under pressure one rests for less rather than being shared.
        let (early, shared) = pool.take(t0 + REST / 2);
        assert_eq!((early.get(), shared), (5, false));
        pool.tidy(t0 + REST);
        assert_eq!(pool.take(t0 + REST).0.get(), 3);
    }

    #[test]
    fn when_all_are_in_use_the_coldest_is_shared() {
        let (mut pool, t0) = pool();
        let tags: Vec<ProcessTag> = (0..7).map(|_| pool.take(t0).0).collect();
        let later = t0 + Duration::from_secs(9);
        for tag in &tags {
            if tag.get() != 6 {
                pool.active(*tag, later);
            }
        }
        let (tag, shared) = pool.take(later);
        assert_eq!((tag.get(), shared), (6, true));
        assert!(!pool.drop_carrier(tag, later), "one still carries it");
        assert!(pool.drop_carrier(tag, later));
        assert_eq!(pool.carried(), 6);
    }

    #[test]
    fn an_inherited_tag_is_in_use_until_the_child_ends() {
        let (mut pool, t0) = pool();
        let (tag, _) = pool.take(t0);
        pool.carry(tag, t0);
        assert!(!pool.drop_carrier(tag, t0));
        assert!(pool.drop_carrier(tag, t0));
    }

    #[test]
    fn plenty_is_half_of_all() {
        let (mut pool, t0) = (Pool::new((8, 1023), REST), Instant::now());
        assert_eq!(pool.size(), 1016);
        for _ in 0..508 {
            assert!(pool.has_plenty());
            pool.take(t0);
        }
        assert!(!pool.has_plenty());
    }
}
