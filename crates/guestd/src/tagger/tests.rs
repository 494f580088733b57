//! Tests of the tagger on a fake system.

use super::*;
use crate::restore::restore;
use crate::state::State;
use crate::system::fake::Fake;

const TICK: Duration = Duration::from_millis(100);

struct Scene {
    fake: Fake,
    tagger: Tagger,
    now: Instant,
}

fn scene(selection: Selection, eager: bool) -> Scene {
    let fake = Fake::default();
    fake.start(1, 0, "init");
    let tagger = Tagger::new(selection, eager);
    Scene { fake, tagger, now: Instant::now() }
}

impl Scene {
    /// Takes one turn; returns its events.
    fn turn(&mut self) -> Vec<Event> {
        self.now += TICK;
        let changes = self.tagger.scan(&self.fake, self.now).unwrap();
        self.tagger.apply(&self.fake, &changes, self.now);
        self.tagger.take_events()
    }

    fn hear(&mut self, pids: &[i32]) -> Vec<Event> {
        let changes = self.tagger.look_at(&self.fake, pids, self.now);
        self.tagger.apply(&self.fake, &changes, self.now);
        self.tagger.take_events()
    }

    fn tag(&self, tid: i32) -> Option<u16> {
        ioprio::tag(self.fake.priority(tid).unwrap().into()).map(ProcessTag::get)
    }

    fn state(&self) -> State {
        let mut state = State::new("boot".into());
        self.tagger.write_down(&[], &mut state);
        state
    }
}

#[test]
fn who_does_io_is_tagged_with_all_threads_and_nobody_else() {
    let mut s = scene(Selection::default(), false);
    s.fake.start(10, 1, "reader");
    s.fake.thread(10, 11);
    s.fake.start(20, 1, "idle");
    s.fake.moved(20, 4096);
    assert!(s.turn().is_empty(), "what was done before counts for nothing");
    s.fake.moved(10, 4096);
    let comm = "reader".to_string();
    let tagged = Event::Tagged { pid: 10, comm, tag: 8, threads: 2, shared: false };
    assert_eq!(s.turn(), [tagged]);
    assert_eq!([10, 11, 20, 1].map(|tid| s.tag(tid)), [Some(8), Some(8), None, None]);
    // Another thread, made by one that has the tag, and one that has not.
    s.fake.thread(10, 12);
    s.fake.set(12, 0);
    s.fake.moved(10, 4096);
    assert_eq!(s.turn().len(), 1);
    assert_eq!(s.tag(12), Some(8));
    assert!(s.turn().is_empty());
}

#[test]
fn a_child_inherits_until_it_does_io_of_its_own() {
    let mut s = scene(Selection::default(), false);
    s.fake.start(10, 1, "sh");
    s.turn();
    s.fake.moved(10, 1);
    s.turn();
    let of_parent = s.tag(10);
    s.fake.start(11, 10, "sh");
    s.fake.start(12, 10, "sh");
    s.turn();
    assert_eq!((s.tag(11), s.tag(12)), (of_parent, of_parent));
    s.fake.moved(11, 1);
    s.turn();
    assert!(s.tag(11).is_some() && s.tag(11) != of_parent && s.tag(12) == of_parent);
    // The parent's tag is in use while a child that inherited it lives.
    s.fake.end(10);
    s.turn();
    s.now += REST * 2;
    s.turn();
    assert_eq!(s.tagger.pool.carried(), 2);
    s.fake.end(12);
    s.turn();
    assert_eq!(s.tagger.pool.carried(), 1);
}

#[test]
fn what_children_have_moved_is_not_their_parents() {
    let mut s = scene(Selection::default(), false);
    s.fake.start(10, 1, "sh");
    s.fake.moved(10, 1);
    s.turn();
    s.fake.start(11, 10, "cp");
    s.fake.moved(11, 4096);
    assert_eq!(s.turn().len(), 1);
    s.fake.end(11);
    // A process that comes and goes between two looks.
    s.fake.start(12, 10, "cp");
    s.fake.moved(12, 4096);
    s.fake.end(12);
    assert!(matches!(s.turn()[..], [Event::Ended { pid: 11, .. }]));
    s.fake.moved(10, 1);
    assert_eq!(s.turn().len(), 1, "its own bytes count");
}

#[test]
fn who_cannot_take_a_tag_gives_it_back() {
    let mut s = scene(Selection::default(), false);
    (10..18).for_each(|pid| s.fake.start(pid, 1, "x"));
    (10..13).for_each(|pid| s.fake.real_time(pid));
    (13..15).for_each(|pid| s.fake.set(pid, 3 << 13));
    (15..17).for_each(|pid| s.fake.forbid(pid));
    s.turn();
    for _ in 0..3 {
        (10..18).for_each(|pid| s.fake.moved(pid, 1));
        s.turn();
    }
    let status = s.tagger.status();
    let tagged: Vec<(i32, bool)> = status.processes.iter().map(|p| (p.pid, p.shared)).collect();
    assert_eq!((tagged, status.carried), (vec![(17, false)], 1));
    s.fake.set(17, 3 << 13);
    s.fake.moved(17, 1);
    s.turn();
    assert_eq!(s.tagger.status().carried, 0, "ionice took its last thread");
}

#[test]
fn what_changes_between_a_look_and_the_change_is_left_alone() {
    let mut s = scene(Selection::default(), false);
    (10..13).for_each(|pid| s.fake.start(pid, 1, "x"));
    s.turn();
    (10..13).for_each(|pid| s.fake.moved(pid, 1));
    let changes = s.tagger.scan(&s.fake, s.now).unwrap();
    // While the state's file is written: an ionice, and a number's next process.
    s.fake.set(10, 3 << 13);
    s.fake.end(11);
    s.fake.start(11, 1, "y");
    s.tagger.apply(&s.fake, &changes, s.now);
    assert_eq!([10, 11].map(|pid| s.fake.priority(pid).unwrap()), [3 << 13, 0]);
    assert!(s.tag(12).is_some());
    s.tagger.take_events();
    s.fake.moved(10, 1);
    let said = s.turn();
    assert!(matches!(said[..], [Event::Foreign { pid: 10, .. }]), "{said:?}");
    assert_eq!((s.fake.priority(10).unwrap(), s.tagger.status().carried), (3 << 13, 1));
}

#[test]
fn others_priorities_are_left_alone() {
    let mut s = scene(Selection::default(), false);
    for (pid, priority) in [(10, 3 << 13), (20, 2 << 13 | 1), (30, 0), (40, 0)] {
        s.fake.start(pid, 1, "x");
        s.fake.set(pid, priority);
    }
    s.fake.real_time(40);
    s.turn();
    for pid in [10, 20, 30, 40] {
        s.fake.moved(pid, 1);
    }
    let said = s.turn();
    let foreign = said.iter().filter(|e| matches!(e, Event::Foreign { .. })).count();
    let tagged = said.iter().filter(|e| matches!(e, Event::Tagged { .. })).count();
    assert_eq!((foreign, tagged), (2, 1), "{said:?}");
    assert_eq!([10, 20, 40].map(|pid| s.fake.priority(pid).unwrap()), [3 << 13, 2 << 13 | 1, 0]);
    // ionice after the tag: said once, and not changed again.
    s.fake.set(30, 2 << 13 | 7);
    s.fake.moved(30, 1);
    assert!(matches!(s.turn()[..], [Event::Overwritten { pid: 30, .. }]));
    s.fake.moved(30, 1);
    assert!(s.turn().is_empty());
    assert_eq!(s.fake.priority(30).unwrap(), 2 << 13 | 7);
    assert!(s.state().threads.is_empty());
}

#[test]
fn new_processes_are_tagged_before_they_do_io_when_they_are_heard_of() {
    let mut s = scene(Selection::default(), true);
    s.turn();
    s.fake.start(10, 1, "sh");
    assert_eq!(s.hear(&[10, 9999]).len(), 1);
    assert_eq!(s.tag(10), Some(8));
    let mut few = scene(Selection::default(), true);
    few.tagger.pool = Pool::new((8, 9), REST);
    few.turn();
    for pid in [10, 11] {
        few.fake.start(pid, 1, "sh");
    }
    assert_eq!([10, 11].map(|pid| few.hear(&[pid]).len()), [1, 0], "half is for those that do I/O");
}

#[test]
fn a_selection_is_followed_to_children_and_through_exec() {
    let selection = Selection { comms: vec!["fio".into()], pids: vec![20] };
    let mut s = scene(selection, false);
    s.fake.start(10, 1, "sh");
    s.fake.start(20, 1, "db");
    s.fake.start(21, 20, "db");
    assert_eq!(s.turn().len(), 2);
    assert!(s.tag(20).is_some() && s.tag(21).is_some() && s.tag(10).is_none());
    s.fake.moved(10, 1);
    assert!(s.turn().is_empty());
    s.fake.exec(10, "fio");
    assert_eq!(s.turn().len(), 1);
    assert!(s.tag(10).is_some());
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    let mut s = scene(Selection::default(), false);
    s.fake.start(10, 1, "a");
    s.turn();
    s.fake.moved(10, 1);
    s.turn();
    s.fake.end(10);
    s.fake.start(10, 1, "b");
    assert_eq!(s.turn(), [Event::Ended { pid: 10, tag: 8 }]);
    s.fake.moved(10, 1);
    s.turn();
    assert_eq!(s.tag(10), Some(9), "the old tag rests");
}

#[test]
fn when_all_tags_are_in_use_they_are_shared() {
    let mut s = scene(Selection::default(), false);
    s.tagger.pool = Pool::new((8, 14), REST);
    s.turn();
    let mut said = Vec::new();
    for pid in 10..20 {
        s.fake.start(pid, 1, "x");
        s.fake.moved(pid, 1);
        said.extend(s.turn());
    }
    let shared = said.iter().filter(|e| matches!(e, Event::Tagged { shared: true, .. })).count();
    assert_eq!((shared, s.tagger.status().carried), (3, 7));
    assert!((10..20).all(|pid| s.tag(pid).is_some()));
}

#[test]
fn all_is_put_back_also_what_was_inherited_since() {
    let mut s = scene(Selection::default(), false);
    s.fake.start(10, 1, "a");
    s.fake.start(20, 1, "b");
    s.fake.start(30, 1, "c");
    s.fake.set(30, 2 << 13 | 1);
    s.turn();
    // PID 1 among them: all others come from it.
    for pid in [1, 10, 20, 30] {
        s.fake.moved(pid, 1);
    }
    s.turn();
    let state = s.state();
    // After the state was written: a child, a grandchild, a thread, and an ionice.
    s.fake.start(11, 10, "a");
    s.fake.start(12, 11, "a");
    s.fake.thread(10, 13);
    s.fake.set(20, 3 << 13);
    // Another process has taken a number that the state knows.
    s.fake.end(20);
    s.fake.start(20, 1, "d");
    s.fake.set(20, state.threads[2].set ^ 7);
    let event = restore(&s.fake, &state).unwrap().event;
    let expected = Event::Restored { threads: 2, inherited: 3, changed: 0, failed: 0 };
    assert_eq!(event, expected);
    assert_eq!([10, 11, 12, 13].map(|tid| s.fake.priority(tid).unwrap()), [0; 4]);
    assert_eq!(s.fake.priority(30).unwrap(), 2 << 13 | 1);
    assert_eq!(s.fake.priority(20).unwrap(), state.threads[2].set ^ 7);
}

#[test]
fn what_is_refused_is_said_once() {
    let mut s = scene(Selection::default(), false);
    s.fake.start(10, 1, "root's");
    s.turn();
    s.fake.forbid(10);
    for round in 0..3 {
        s.fake.moved(10, 1);
        assert_eq!(s.turn().len(), usize::from(round == 0));
    }
}

#[test]
fn a_group_that_replaces_tags_is_said_once() {
    let mut s = scene(Selection::default(), false);
    for (pid, class) in [(10, "idle"), (20, "restrict-to-be"), (30, "idle")] {
        s.fake.start(pid, 1, "x");
        s.fake.group(pid, class);
    }
    s.turn();
    for pid in [10, 20, 30] {
        s.fake.moved(pid, 1);
    }
    let groups = s.turn().into_iter().filter(|e| matches!(e, Event::Group { .. })).count();
    assert_eq!(groups, 1);
}

#[test]
fn processes_that_come_and_go_while_they_are_looked_at_do_no_harm() {
    let mut s = scene(Selection::default(), true);
    s.turn();
    let mut state = 7u32;
    for _ in 0..3000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (pid, what) = (10 + (state >> 8 & 15) as i32, state >> 20 & 7);
        match what {
            0 | 1 => s.fake.end(pid),
            2 | 3 => s.fake.start(pid, 1 + (state >> 12 & 15) as i32, "x"),
            4 => s.fake.moved(pid, 1),
            5 => s.fake.thread(pid, 100 + (state >> 16 & 63) as i32),
            6 => s.fake.vanish_soon(pid),
            _ => drop(s.hear(&[pid])),
        }
        if state >> 28 == 0 {
            s.turn();
        }
    }
    let live = s.fake.processes().unwrap().len();
    s.turn();
    assert!(s.tagger.processes.len() <= live, "nobody is kept that has ended");
}
