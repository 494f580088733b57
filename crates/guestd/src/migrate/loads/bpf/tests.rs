//! On the running kernel, with real reads. They need the right to load BPF programs, and
//! say so where they have not got it.

use super::*;
use crate::migrate::clock;
use crate::migrate::loads::tests::{OnDisk, PAGE, PAGES, Page, Stop, finds, own_tid, start, watch};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The programs, or `None` with the reason printed where BPF is not permitted.
fn permitted() -> Option<Bpf> {
    match Bpf::open(-1) {
        Ok(bpf) => Some(bpf),
        Err(reason @ (BpfError::Forbidden(_) | BpfError::NoTypes(_) | BpfError::OtherNumbers)) => {
            seekway_testing::skip(reason);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

impl Bpf {
    /// The entries of tasks of this process, with their numbers.
    fn own_entries(&self) -> Vec<(u32, &Entry)> {
        let own = std::process::id();
        let of = |set: &'_ Set| -> Vec<u32> {
            set.tid.iter().map(|tid| tid.load(Ordering::Acquire)).collect()
        };
        let all = self.sets.records().iter().flat_map(|set| of(set).into_iter().zip(&set.entries));
        all.filter(|(tid, entry)| *tid != 0 && entry.pid.load(Ordering::Relaxed) == own).collect()
    }
}

#[test]
fn who_waits_for_a_disk_is_found_and_who_computes_or_sleeps_is_not() {
    let Some(mut bpf) = permitted() else { return };
    finds(&mut bpf, "bpf.tmp", OnDisk::read_until);
    finds(&mut bpf, "bpf-aio.tmp", OnDisk::read_asynchronously_until);
}

/// A child process that ends with the test, even one that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// fio, as its users run it; found by the number of its thread.
#[test]
fn readers_of_three_kinds_are_named_within_windows() {
    let Some(mut bpf) = permitted() else { return };
    let Some(disk) = OnDisk::new("bpf-fio.tmp") else { return };
    for engine in ["psync", "libaio", "io_uring"] {
        let mut fio = Command::new("fio");
        // With several reads under way one can be done whenever it looks: it would never wait.
        fio.args(["--name=job", "--direct=1", "--rw=randread", "--bs=4k", "--iodepth=1"]);
        fio.args(["--thread", "--time_based", "--runtime=60", "--minimal"]);
        fio.arg(format!("--ioengine={engine}")).arg(format!("--size={}", PAGES * PAGE as u64));
        fio.arg(format!("--filename={}", disk.path.display()));
        let Ok(fio) = fio.stdout(Stdio::null()).spawn() else {
            seekway_testing::skip("fio");
            return;
        };
        let fio = Killed(fio);
        let pid = fio.0.id() as i32;
        let is_job = |s: &&ThreadLoad| s.pid == pid && s.tid != pid;
        // A busy host can finish a read before its reader looks: not 200 of them.
        let sums = watch(&mut bpf, |sums| {
            sums.values().find(is_job).is_some_and(|s| s.ios > 200 && s.waited > Nanos::ZERO)
        });
        drop(fio);
        let job = sums.values().find(is_job).unwrap();
        eprintln!("{engine}: {job:?}");
        // How long it runs between its reads depends on the processor.
        assert!(job.io_time >= job.waited.scaled(1, 2), "{engine}: {job:?}");
    }
}

/// The calling thread runs on the first vCPU only, with this policy.
fn on_first_vcpu(policy: libc::c_int) {
    crate::migrate::preemption::thread::settle(VcpuId::new(0)).unwrap();
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter lives through the call, and 0 names the caller.
    assert_eq!(unsafe { libc::sched_setscheduler(0, policy, &raw const none) }, 0);
}

/// A reader that others keep from running once its page is there: the time until it runs
/// is not the disk's.
#[test]
fn who_is_ready_and_does_not_run_does_not_wait() {
    let Some(mut bpf) = permitted() else { return };
    let Some(disk) = OnDisk::new("bpf-ready.tmp") else { return };
    let stop = AtomicBool::new(false);
    let (tids, tid_of): (Sender<i32>, Receiver<i32>) = channel();
    thread::scope(|scope| {
        let end = Stop(&stop);
        start(scope, &tids, || {
            on_first_vcpu(libc::SCHED_OTHER);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let busy = tid_of.recv().unwrap();
        start(scope, &tids, || {
            on_first_vcpu(libc::SCHED_IDLE);
            disk.read_until(&stop);
        });
        let reader = tid_of.recv().unwrap();
        let begin = clock::now();
        let sums = watch(&mut bpf, |sums| sums.get(&reader).is_some_and(|s| s.ios >= 20));
        let elapsed = clock::now().since(begin);
        drop(end);
        eprintln!("{:?} in {elapsed:?}", sums[&reader]);
        // The reader is ready most of the time, and that time must not count as waiting. A wait
        // lies between a read's submission and its end; a quarter of the other time is tolerance.
        let ThreadLoad { waited, io_time, .. } = sums[&reader];
        let most = io_time + elapsed.saturating_sub(io_time).scaled(1, 4);
        assert!(waited <= most, "in {elapsed:?} waited for {:?}", sums[&reader]);
        assert!(!sums.contains_key(&busy));
    });
}

/// Reads that the block layer splits and merges all come to their end.
#[test]
fn what_began_has_ended_when_nothing_is_under_way() {
    let Some(mut bpf) = permitted() else { return };
    let Some(disk) = OnDisk::new("bpf-large.tmp") else { return };
    let mut pages: Vec<Page> = (0..1024).map(|_| Page([0; PAGE])).collect();
    // SAFETY: pages are plain bytes and lie side by side.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<u8>(), pages.len() * PAGE)
    };
    for n in 0..8 {
        let (at, len) = (n * 4 * PAGE as u64, bytes.len() >> (n % 4));
        disk.file.read_exact_at(&mut bytes[..len], at).unwrap();
    }
    disk.file.sync_all().unwrap();
    let mut loads = Vec::new();
    bpf.window(clock::now(), &mut loads).unwrap();
    let own = own_tid();
    let found = loads.iter().find(|load| load.tid == own).expect("this thread read");
    assert!(found.ios >= 8, "{found:?}");
    let entries = bpf.own_entries();
    let entry = entries.iter().find(|(tid, _)| *tid == own as u32).expect("it has an entry").1;
    // The file system may read ahead for itself, which nobody waits for.
    let patience = clock::now() + Nanos::from_secs(600);
    while entry.under_way.load(Ordering::Relaxed) != 0 {
        assert!(clock::now() < patience, "{entry:?}");
        thread::yield_now();
    }
}

/// The table is as large as it is, and who has ended leaves room.
#[test]
fn threads_that_come_and_go_leave_nothing() {
    let Some(mut bpf) = permitted() else { return };
    let Some(disk) = OnDisk::new("bpf-short.tmp") else { return };
    let read = &|n: u64| {
        let mut page = Page([0; PAGE]);
        disk.file.read_exact_at(&mut page.0, n % PAGES * PAGE as u64).unwrap();
        own_tid() as u32
    };
    let mut ended = Vec::new();
    for round in 0..500 {
        thread::scope(|scope| {
            let readers: Vec<_> =
                (0..8).map(|n| scope.spawn(move || read(round * 8 + n))).collect();
            ended.extend(readers.into_iter().map(|reader| reader.join().unwrap()));
        });
    }
    // The last ones may still be on their way out after they were joined.
    let left = bpf.own_entries().iter().filter(|(tid, _)| ended.contains(tid)).count();
    assert!(left <= 8, "{left} entries of threads that have ended");
    let (before, mut loads) = (bpf.before.len(), Vec::new());
    bpf.window(clock::now(), &mut loads).unwrap();
    assert_eq!(bpf.before.len(), before);
}

/// Detached programs cost nothing, and know nothing of what happened meanwhile.
#[test]
fn who_rests_sees_nothing_and_begins_anew() {
    let Some(mut bpf) = permitted() else { return };
    let Some(disk) = OnDisk::new("bpf-rest.tmp") else { return };
    let mut page = Page([0; PAGE]);
    let own = own_tid();
    let mut reads = |bpf: &mut Bpf| {
        let mut loads = Vec::new();
        bpf.window(clock::now(), &mut loads).unwrap();
        (0..20).for_each(|n| disk.file.read_exact_at(&mut page.0, n * PAGE as u64).unwrap());
        bpf.window(clock::now(), &mut loads).unwrap();
        loads.iter().find(|load| load.tid == own).map_or(0, |load| load.ios)
    };
    assert!(reads(&mut bpf) >= 20);
    bpf.rest(true).unwrap();
    assert_eq!(reads(&mut bpf), 0);
    bpf.rest(false).unwrap();
    // Other tests' threads may have entries again already.
    assert!(bpf.own_entries().iter().all(|&(tid, _)| tid != own as u32));
    assert!((20..40).contains(&reads(&mut bpf)));
}
