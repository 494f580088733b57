//! Tests of mask ownership, on a system in memory.

use super::*;
use crate::connector::{Fork, ProcessEvent};
use crate::migrate::clock;
use crate::migrate::records::Changed;
use crate::migrate::records::tests::in_folder;
use crate::state::StateFile;
use crate::system::Linux;
use crate::system::fake::Fake;
use seekway_vcpu::{Action, Means, Outcome};
use std::fs::File;
use tempfile::TempDir;

const WINDOW: (Instant, Nanos) = (Instant::from_nanos(5_000_000), Nanos::from_millis(5));

struct Scene {
    tasks: Tasks<Fake>,
    state: StateFile,
    _dir: TempDir,
}

fn set(text: &str) -> VcpuSet {
    text.parse().unwrap()
}

fn vcpu(number: u16) -> VcpuId {
    VcpuId::new(number)
}

fn load(tid: i32) -> ThreadLoad {
    ThreadLoad {
        tid,
        pid: tid,
        vcpu: vcpu(0),
        waited: Nanos::from_millis(4),
        ran: Nanos::from_millis(1),
        ios: 20,
        io_time: Nanos::from_millis(4),
        last: None,
    }
}

impl Scene {
    /// Process 10 runs on vCPU 0 and waits for I/O.
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (state, records) = in_folder(dir.path());
        let fake = Fake::default();
        fake.start(10, 1, "reader");
        let online = fake.online().unwrap();
        let tasks = Tasks::new(fake, records, online, Waker::new().unwrap());
        Scene { tasks, state, _dir: dir }
    }

    fn system(&self) -> &Fake {
        &self.tasks.system
    }

    fn mask(&self, tid: i32) -> VcpuSet {
        self.system().whole_affinity(tid).unwrap()
    }

    /// The masks of these tasks that the policy is told.
    fn allowed(&self, tids: &[i32]) -> Vec<(i32, VcpuSet)> {
        let loads: Vec<ThreadLoad> = tids.iter().copied().map(load).collect();
        let mut tasks = Vec::new();
        assert!(self.tasks.admit(&loads, WINDOW, &mut tasks));
        tasks.iter().map(|t| (t.task.0 as i32, t.allowed)).collect()
    }

    fn shift(&self, tid: i32, to: u16, within: &str) -> Outcome {
        let task = TaskId(tid as u64);
        let (to, within) = (vcpu(to), set(within));
        self.tasks.carry_out(&Action::Move { task, to, within, by: Means::Push })
    }

    fn written(&self) -> Vec<(i32, String)> {
        let changed: Changed = self.state.load().unwrap().unwrap();
        changed.records.iter().map(|r| (r.tid, r.affinity.to_string())).collect()
    }
}

#[test]
fn a_move_stays_within_the_owners_mask_and_is_taken_back() {
    let s = Scene::new();
    s.system().taskset(10, set("0-2"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-2"))]);
    assert_eq!(s.shift(10, 2, "2-3"), Outcome::Done);
    assert_eq!(s.mask(10), set("2"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-2"))], "ours is not its owner's");
    let task = TaskId(10);
    assert_eq!(s.tasks.carry_out(&Action::Release { task }), Outcome::Done);
    assert_eq!((s.mask(10), s.written()), (set("0-2"), vec![]));
    assert_eq!(s.tasks.view()[0].moves, 1);
}

#[test]
fn what_somebody_else_sets_is_the_original_from_then_on() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.shift(10, 1, "1-2");
    s.system().taskset(10, set("0,3"));
    assert_eq!(s.allowed(&[10]), [(10, set("0,3"))]);
    s.shift(10, 3, "1-3");
    assert_eq!(s.mask(10), set("3"));
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0,3"));
    // Without a window between, too.
    s.shift(10, 3, "1-3");
    s.system().taskset(10, set("1-2"));
    s.tasks.put_all_back().unwrap();
    assert_eq!((s.mask(10), s.written()), (set("1-2"), vec![]));
}

#[test]
fn who_cannot_be_moved_is_not_offered() {
    let s = Scene::new();
    for pid in 11..15 {
        s.system().start(pid, 1, "x");
    }
    s.system().kernel(11);
    s.system().deadline(12);
    s.system().taskset(13, set("2"));
    s.system().forbid(14);
    assert_eq!(s.allowed(&[11, 12, 13, 14]), [(14, set("0-3"))]);
    assert_eq!(s.shift(14, 1, "1"), Outcome::Refused);
    assert_eq!(s.allowed(&[14]), [], "once is enough");
    assert_eq!((s.mask(14), s.written()), (set("0-3"), vec![]));
}

#[test]
fn a_change_is_written_down_before_it_is_made_and_not_made_if_it_cannot_be() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.shift(10, 1, "1-2");
    assert_eq!(s.written(), [(10, "0-3 1 1-2".into())], "as it was before the last change");
    s.tasks.table().records = Records::on(File::options().write(true).open("/dev/full").unwrap());
    s.tasks.table().tasks.get_mut(&10).unwrap().place = None;
    assert_eq!(s.shift(10, 3, "3"), Outcome::Refused);
    assert_eq!(s.mask(10), set("1-2"));
    assert_eq!(s.tasks.take_error().unwrap().kind(), io::ErrorKind::StorageFull);
    assert!(s.tasks.take_error().is_none(), "it is said once");
}

#[test]
fn another_thread_of_the_same_number_is_another() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.shift(10, 1, "1");
    s.system().end(10);
    s.system().start(10, 1, "other");
    assert_eq!(s.shift(10, 2, "2"), Outcome::Refused);
    assert_eq!(s.mask(10), set("0-3"));
    s.tasks.put_all_back().unwrap();
    s.tasks.tidy(WINDOW.0);
    assert_eq!((s.tasks.view(), s.written()), (vec![], vec![]));
    s.allowed(&[10]);
    assert_eq!(&*s.tasks.view()[0].comm, "other");
}

#[test]
fn what_is_off_line_stays_the_owners() {
    let s = Scene::new();
    s.system().set_offline(&[vcpu(3)]);
    s.tasks.set_online(set("0-2"));
    s.allowed(&[10]);
    s.shift(10, 1, "1");
    // Its own vCPU goes too: the kernel lets it run anywhere.
    s.system().set_offline(&[vcpu(1), vcpu(3)]);
    s.system().taskset(10, set("0-3"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-3"))]);
    s.tasks.set_online(set("0,2"));
    s.shift(10, 2, "2");
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-3"));
}

#[test]
fn what_the_kernel_makes_of_a_mask_whose_vcpu_goes_is_nobodys_wish() {
    let s = Scene::new();
    s.system().taskset(10, set("0-1"));
    s.allowed(&[10]);
    s.shift(10, 1, "1");
    // The agent does not know yet.
    s.system().set_offline(&[vcpu(1)]);
    s.system().taskset(10, set("0-3"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-1"))]);
    s.system().set_offline(&[]);
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-1"));
}

#[test]
fn when_there_are_too_many_the_idle_make_room() {
    let s = Scene::new();
    let later = WINDOW.0 + ROOM_AFTER + Nanos::from_millis(1);
    let count = TASKS_MAX as i32 + 2;
    (11..10 + count).for_each(|tid| s.system().start(tid, 1, "x"));
    let all: Vec<ThreadLoad> = (10..10 + count).map(load).collect();
    for some in all.chunks(NEW_MAX) {
        assert!(s.tasks.admit(some, WINDOW, &mut Vec::new()));
    }
    assert_eq!(s.tasks.view().len(), TASKS_MAX, "none of them was idle");
    s.shift(10, 1, "1");
    let last = &all[all.len() - 1..];
    s.tasks.admit(last, (later, WINDOW.1), &mut Vec::new());
    let known: Vec<i32> = s.tasks.view().iter().map(|t| t.tid).collect();
    assert_eq!((known[0], known.len()), (10, TASKS_MAX), "who was moved stays");
    assert_eq!(known.last(), Some(&last[0].tid));
}

#[test]
fn tasks_that_need_no_attention_are_forgotten() {
    let s = Scene::new();
    s.system().start(11, 1, "x");
    s.allowed(&[10, 11]);
    s.shift(10, 1, "1");
    s.tasks.tidy(WINDOW.0 + FORGOTTEN_AFTER + Nanos::from_millis(1));
    let known: Vec<i32> = s.tasks.view().iter().map(|t| t.tid).collect();
    assert_eq!(known, [10], "whose mask is to be put back");
}

/// In ticks after boot, as in `/proc`.
fn ticks() -> u64 {
    BootTime::now().0 / 10_000_000
}

fn forked(parent: i32, pid: i32, tid: i32) -> ProcessEvent {
    ProcessEvent::Forked(Fork { parent, pid, tid })
}

impl Scene {
    /// A scene with a task that was moved to vCPU 1 and may run on 1 and 2.
    fn moved() -> Scene {
        let s = Scene::new();
        s.allowed(&[10]);
        assert_eq!(s.shift(10, 1, "1-2"), Outcome::Done);
        s.system().set_clock(ticks());
        s
    }

    fn release(&self, tid: i32) -> Outcome {
        self.tasks.carry_out(&Action::Release { task: TaskId(tid as u64) })
    }
}

#[test]
fn what_a_moved_task_starts_has_its_owners_mask() {
    let s = Scene::moved();
    s.system().start(11, 10, "child");
    s.system().start(12, 11, "grandchild");
    s.system().thread(10, 20);
    s.tasks.follow(&[forked(10, 11, 11), forked(11, 12, 12), forked(1, 10, 20)]);
    assert_eq!([11, 12, 20].map(|tid| s.mask(tid)), [set("0-3"); 3]);
    assert!(s.tasks.has_moved());
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-3"));
}

#[test]
fn a_descendant_that_reads_before_it_is_told_of_is_free_at_once() {
    let s = Scene::moved();
    s.system().start(13, 10, "child that is seen first when it reads");
    assert_eq!(s.mask(13), set("1-2"));
    assert_eq!(s.allowed(&[13]), [(13, set("0-3"))]);
    assert_eq!(s.mask(13), set("0-3"), "nobody would release it: it was never moved");
}

#[test]
fn who_pins_what_it_starts_to_a_mask_that_stood_there_long_ago_means_it() {
    let much_later = || ticks() + 6_000;
    let s = Scene::moved();
    s.release(10);
    s.system().set_clock(much_later());
    s.system().start(11, 10, "taskset -c 1-2");
    s.system().taskset(11, set("1-2"));
    s.tasks.follow(&[forked(10, 11, 11)]);
    assert_eq!(s.mask(11), set("1-2"));
    // And the child of a descendant whose mask was put back.
    let s = Scene::moved();
    s.system().start(11, 10, "descendant");
    s.tasks.follow(&[forked(10, 11, 11)]);
    s.system().set_clock(much_later());
    s.system().start(12, 11, "taskset -c 1-2");
    s.system().taskset(12, set("1-2"));
    s.tasks.follow(&[forked(11, 12, 12)]);
    assert_eq!(s.mask(12), set("1-2"));
}

#[test]
fn a_child_of_a_long_fork_is_known_by_what_stood_when_that_began() {
    let s = Scene::moved();
    s.system().start(11, 10, "child of a large process");
    for (to, within) in [(2, "2-3"), (3, "0,3"), (0, "0-1")].repeat(40) {
        s.shift(10, to, within);
    }
    s.tasks.follow(&[forked(10, 11, 11)]);
    assert_eq!((s.mask(11), s.mask(10)), (set("0-3"), set("0-1")));
}

#[test]
fn what_has_ended_before_it_was_looked_at_may_have_started_others() {
    let s = Scene::moved();
    s.system().start(11, 10, "forks once more and ends");
    s.system().start(12, 11, "daemon");
    s.system().end(11);
    s.tasks.follow(&[forked(10, 11, 11), forked(11, 12, 12)]);
    assert_eq!(s.mask(12), set("0-3"));
}

#[test]
fn orphans_are_found_without_process_events() {
    let s = Scene::moved();
    s.system().start(11, 10, "daemon");
    s.system().start(12, 1, "another with a mask of its own");
    s.system().taskset(12, set("3"));
    s.system().end(10);
    s.system().adopt(11);
    s.tasks.tidy(WINDOW.0);
    assert!(s.tasks.view().is_empty());
    assert_eq!(s.tasks.look_for_inherited_masks().unwrap(), Some(1));
    assert_eq!([11, 12].map(|tid| s.mask(tid)), [set("0-3"), set("3")]);
}

#[test]
fn a_thread_that_runs_another_program_takes_its_mask_to_the_first_threads_number() {
    for told in [true, false] {
        let s = Scene::moved();
        s.release(10);
        s.system().thread(10, 20);
        let load = |tid| ThreadLoad { pid: 10, ..load(tid) };
        s.tasks.admit(&[load(20)], WINDOW, &mut Vec::new());
        assert_eq!(s.shift(20, 3, "0,3"), Outcome::Done);
        s.system().exec_from(10, 20);
        assert_eq!(s.mask(10), set("0,3"));
        s.allowed(&[10]);
        match told {
            true => s.tasks.follow(&[ProcessEvent::Runs(10)]),
            false => assert_eq!(s.tasks.look_for_inherited_masks().unwrap(), Some(1)),
        }
        assert_eq!(s.mask(10), set("0-3"));
        s.tasks.tidy(WINDOW.0);
        s.tasks.put_all_back().unwrap();
        assert_eq!((s.mask(10), s.written()), (set("0-3"), vec![]));
    }
}

#[test]
fn masks_are_forgotten_in_time() {
    let s = Scene::moved();
    s.release(10);
    s.tasks.tidy(WINDOW.0);
    assert!(s.tasks.has_moved());
    for stands in s.tasks.table().tasks.values_mut().map(|task| &mut task.record.history) {
        *stands = "1-2@1".parse().unwrap();
    }
    s.tasks.tidy(WINDOW.0);
    assert!(!s.tasks.has_moved());
}

#[test]
fn a_sleeper_keeps_one_vcpu_until_it_was_seen_there() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.system().sleep(10);
    assert_eq!(s.shift(10, 2, "1-3"), Outcome::Done);
    assert_eq!(s.mask(10), set("2"), "else it would wake on 1");
    assert_eq!(s.written(), [(10, "0-3 2 1-3".into())]);
    s.allowed(&[10]);
    assert_eq!(s.mask(10), set("2"), "it was seen on 0");
    s.system().wake(10);
    assert_eq!(s.system().vcpu(10), Some(vcpu(2)));
    let seen = ThreadLoad { vcpu: vcpu(2), ..load(10) };
    s.tasks.admit(&[seen], WINDOW, &mut Vec::new());
    assert_eq!(s.mask(10), set("1-3"));
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-3"));
    // Its owner's word is not overwritten when it is seen there.
    s.system().sleep(10);
    s.shift(10, 3, "1,3");
    s.system().taskset(10, set("0,3"));
    let seen = ThreadLoad { vcpu: vcpu(3), ..load(10) };
    s.tasks.admit(&[seen], WINDOW, &mut Vec::new());
    assert_eq!(s.mask(10), set("0,3"));
}

#[test]
fn a_mask_that_is_set_between_look_and_change_is_its_owners() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.system().taskset_during_the_next_change(10, set("1,3"));
    assert_eq!(s.shift(10, 2, "2"), Outcome::Refused);
    assert_eq!(s.mask(10), set("1,3"));
    s.system().taskset_during_the_next_change(10, set("0-1,3"));
    assert_eq!(s.shift(10, 1, "1"), Outcome::Done);
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-1,3"));
}

#[test]
fn only_what_changes_a_mask_is_a_move() {
    let s = Scene::new();
    s.system().taskset(10, set("0-1"));
    s.allowed(&[10]);
    assert_eq!(s.shift(10, 3, "2-3"), Outcome::Refused, "its owner does not let it");
    assert_eq!(s.tasks.moves(), 0);
    for _ in 0..2 {
        assert_eq!(s.shift(10, 1, "1"), Outcome::Done);
        assert_eq!(s.tasks.moves(), 1, "it is there");
    }
}

#[test]
fn what_was_seen_while_somebody_had_the_book_is_told_with_the_next() {
    let s = Scene::new();
    let mut tasks = Vec::new();
    let held = s.tasks.table();
    assert!(!s.tasks.admit(&[load(10)], WINDOW, &mut tasks));
    drop(held);
    assert!(s.tasks.admit(&[load(10)], WINDOW, &mut tasks));
    let twice: Vec<(Nanos, u32)> = tasks.iter().map(|t| (t.waited, t.ios)).collect();
    assert_eq!(twice, [(Nanos::from_millis(8), 40)]);
    assert_eq!(s.tasks.view()[0].waited, (Nanos::from_millis(8), Nanos::from_millis(10)));
}

#[test]
fn a_vcpu_that_has_just_gone_is_no_reason_to_leave_a_task_alone() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.system().set_offline(&[vcpu(2)]);
    assert_eq!(s.shift(10, 2, "2"), Outcome::Refused);
    s.tasks.set_online(set("0-1,3"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-3"))]);
    assert_eq!(s.shift(10, 1, "1"), Outcome::Done);
    // Its own vCPU goes and comes back: the kernel has let it run anywhere.
    s.tasks.set_online(set("0,3"));
    s.system().taskset(10, set("0-3"));
    s.tasks.set_online(set("0-3"));
    s.system().taskset(10, set("0-3"));
    s.tasks.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-3"));
}

#[test]
#[ignore = "prints figures"]
fn costs_of_a_change_of_a_mask() {
    const CHANGES: u32 = 10_000;
    let online = crate::procfs::online().unwrap();
    if online.len() < 2 {
        return seekway_testing::skip("a second CPU");
    }
    let dir = tempfile::tempdir_in("/run").unwrap();
    let (_state, records) = in_folder(dir.path());
    let tasks = Tasks::new(Linux, records, online, Waker::new().unwrap());
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let tid = sleeper.id() as i32;
    let vcpus: Vec<VcpuId> = online.iter().collect();
    assert!(tasks.admit(&[load(tid)], WINDOW, &mut Vec::new()));
    let began = clock::now();
    for &vcpu in vcpus.iter().cycle().take(CHANGES as usize / 2) {
        let (task, within) = (TaskId(tid as u64), online);
        tasks.carry_out(&Action::Move { task, to: vcpu, within, by: Means::Push });
    }
    let each = clock::now().since(began).scaled(1, CHANGES.into());
    println!("a change of a mask, with its look and its line: {} ns", each.get());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}
