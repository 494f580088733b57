//! Whose mask is whose, on a system in memory.

use super::*;
use crate::migrate::clock;
use crate::migrate::records::Changed;
use crate::state::StateFile;
use crate::system::Linux;
use crate::system::fake::Fake;
use seekway_policy::vcpu::Means;
use std::fs::File;
use tempfile::TempDir;

const WINDOW: (Instant, Nanos) = (Instant::from_nanos(5_000_000), Nanos::from_millis(5));

struct Scene {
    book: Book<Fake>,
    state: StateFile,
    _dir: TempDir,
}

fn set(text: &str) -> VcpuSet {
    text.parse().unwrap()
}

fn vcpu(number: u16) -> VcpuId {
    VcpuId::new(number)
}

impl Scene {
    /// Process 10 runs on vCPU 0 and waits for I/O.
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFile::lock(&dir.path().join("state")).unwrap();
        let empty = Changed { boot: "b".into(), records: Vec::new() };
        let records = Records::begin(&state, &empty).unwrap();
        let fake = Fake::default();
        fake.start(10, 1, "reader");
        let online = fake.online().unwrap();
        let book = Book::new(fake, records, online, Waker::new().unwrap());
        Scene { book, state, _dir: dir }
    }

    fn system(&self) -> &Fake {
        &self.book.system
    }

    fn mask(&self, tid: i32) -> VcpuSet {
        self.system().whole_affinity(tid).unwrap()
    }

    /// Where the policy is told that it may move these to.
    fn allowed(&self, tids: &[i32]) -> Vec<(i32, VcpuSet)> {
        let load = |&tid| ThreadLoad {
            tid,
            pid: tid,
            vcpu: vcpu(0),
            waited: Nanos::from_millis(4),
            ran: Nanos::from_millis(1),
            ios: 20,
            io_time: Nanos::from_millis(4),
        };
        let loads: Vec<ThreadLoad> = tids.iter().map(load).collect();
        let mut tasks = Vec::new();
        assert!(self.book.admit(&loads, WINDOW, &mut tasks));
        tasks.iter().map(|t| (t.task.0 as i32, t.allowed)).collect()
    }

    fn shift(&self, tid: i32, to: u16, within: &str) -> Outcome {
        let task = TaskId(tid as u64);
        let (to, within) = (vcpu(to), set(within));
        self.book.carry_out(&Action::Move { task, to, within, by: Means::Push })
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
    assert_eq!(s.book.carry_out(&Action::Release { task }), Outcome::Done);
    assert_eq!((s.mask(10), s.written()), (set("0-2"), vec![]));
    assert_eq!(s.book.view()[0].moves, 1);
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
    s.book.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0,3"));
    // Without a window between, too.
    s.shift(10, 3, "1-3");
    s.system().taskset(10, set("1-2"));
    s.book.put_all_back().unwrap();
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
    s.book.pages().records = Records::on(File::options().write(true).open("/dev/full").unwrap());
    s.book.pages().tasks.get_mut(&10).unwrap().place = None;
    assert_eq!(s.shift(10, 3, "3"), Outcome::Refused);
    assert_eq!(s.mask(10), set("1-2"));
    assert_eq!(s.book.take_error().unwrap().kind(), io::ErrorKind::StorageFull);
    assert!(s.book.take_error().is_none(), "it is said once");
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
    s.book.put_all_back().unwrap();
    s.book.tidy(WINDOW.0);
    assert_eq!((s.book.view(), s.written()), (vec![], vec![]));
    s.allowed(&[10]);
    assert_eq!(s.book.view()[0].comm, "other");
}

#[test]
fn what_is_off_line_stays_the_owners() {
    let s = Scene::new();
    s.system().set_offline(&[vcpu(3)]);
    s.book.set_online(set("0-2"));
    s.allowed(&[10]);
    s.shift(10, 1, "1");
    // The one that it was given goes too: the kernel lets it run anywhere.
    s.system().set_offline(&[vcpu(1), vcpu(3)]);
    s.system().taskset(10, set("0-3"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-3"))]);
    s.book.set_online(set("0,2"));
    s.shift(10, 2, "2");
    s.book.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-3"));
}

#[test]
fn what_the_kernel_makes_of_a_mask_whose_vcpu_goes_is_nobodys_wish() {
    let s = Scene::new();
    s.system().taskset(10, set("0-1"));
    s.allowed(&[10]);
    s.shift(10, 1, "1");
    // Nobody has told of it yet.
    s.system().set_offline(&[vcpu(1)]);
    s.system().taskset(10, set("0-3"));
    assert_eq!(s.allowed(&[10]), [(10, set("0-1"))]);
    s.system().set_offline(&[]);
    s.book.put_all_back().unwrap();
    assert_eq!(s.mask(10), set("0-1"));
}

#[test]
fn when_there_are_too_many_the_idle_make_room() {
    let s = Scene::new();
    let later = WINDOW.0 + ROOM_AFTER + Nanos::from_millis(1);
    let load = |tid| ThreadLoad {
        tid,
        pid: tid,
        vcpu: vcpu(0),
        waited: Nanos::ZERO,
        ran: Nanos::ZERO,
        ios: 1,
        io_time: Nanos::ZERO,
    };
    let count = TASKS_MAX as i32 + 2;
    (11..10 + count).for_each(|tid| s.system().start(tid, 1, "x"));
    let all: Vec<ThreadLoad> = (10..10 + count).map(load).collect();
    for some in all.chunks(NEW_MAX) {
        assert!(s.book.admit(some, WINDOW, &mut Vec::new()));
    }
    assert_eq!(s.book.view().len(), TASKS_MAX, "none of them was idle");
    s.shift(10, 1, "1");
    let last = &all[all.len() - 1..];
    s.book.admit(last, (later, WINDOW.1), &mut Vec::new());
    let known: Vec<i32> = s.book.view().iter().map(|t| t.tid).collect();
    assert_eq!((known[0], known.len()), (10, TASKS_MAX), "who was moved stays");
    assert_eq!(known.last(), Some(&last[0].tid));
}

#[test]
fn tasks_that_need_no_attention_are_forgotten() {
    let s = Scene::new();
    s.system().start(11, 1, "x");
    s.allowed(&[10, 11]);
    s.shift(10, 1, "1");
    s.book.tidy(WINDOW.0 + FORGOTTEN_AFTER + Nanos::from_millis(1));
    let known: Vec<i32> = s.book.view().iter().map(|t| t.tid).collect();
    assert_eq!(known, [10], "whose mask is to be put back");
}

#[test]
fn what_a_moved_task_starts_has_its_owners_mask() {
    let s = Scene::new();
    s.allowed(&[10]);
    s.shift(10, 1, "1-2");
    s.system().start(11, 10, "child");
    s.system().start(12, 11, "grandchild");
    s.system().start(13, 10, "child that is seen first when it reads");
    let now = BootTime::now();
    let child = |pid, parent| Child { pid, parent, tid: pid, from: now, to: now };
    s.book.follow(&child(11, 10));
    s.book.follow(&child(12, 11));
    assert_eq!([11, 12].map(|pid| s.mask(pid)), [set("0-3"); 2]);
    // The fake's clock stands still since boot: this one is older than the mask.
    assert_eq!(s.allowed(&[13]), [(13, set("1-2"))]);
    let given = format!("{}@1-2", 0).parse().unwrap();
    s.book.pages().tasks.get_mut(&10).unwrap().given = given;
    s.book.pages().forget(13);
    assert_eq!(s.allowed(&[13]), [(13, set("0-3"))]);
    s.book.put_all_back().unwrap();
    assert_eq!([10, 13].map(|pid| s.mask(pid)), [set("0-3"); 2]);
}

#[test]
#[ignore = "prints figures"]
fn costs_of_a_change_of_a_mask() {
    const CHANGES: u32 = 10_000;
    let online = crate::procfs::online().unwrap();
    if online.len() < 2 {
        return eprintln!("skipped: this needs two CPUs");
    }
    let dir = tempfile::tempdir_in("/run").unwrap();
    let state = StateFile::lock(&dir.path().join("state")).unwrap();
    let empty = Changed { boot: "b".into(), records: Vec::new() };
    let records = Records::begin(&state, &empty).unwrap();
    let book = Book::new(Linux, records, online, Waker::new().unwrap());
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let tid = sleeper.id() as i32;
    let nothing = Nanos::ZERO;
    let vcpus: Vec<VcpuId> = online.iter().collect();
    let vcpu = vcpus[0];
    let (waited, ran, ios, io_time) = (nothing, nothing, 0, nothing);
    let load = ThreadLoad { tid, pid: tid, vcpu, waited, ran, ios, io_time };
    assert!(book.admit(&[load], WINDOW, &mut Vec::new()));
    let began = clock::now();
    for &vcpu in vcpus.iter().cycle().take(CHANGES as usize / 2) {
        let (task, within) = (TaskId(tid as u64), online);
        book.carry_out(&Action::Move { task, to: vcpu, within, by: Means::Push });
    }
    let each = clock::now().since(began).scaled(1, CHANGES.into());
    println!("a change of a mask, with its look and its line: {} ns", each.get());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}
