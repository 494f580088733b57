//! A system in memory, as the kernel would behave where it matters.

use super::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

#[derive(Clone)]
struct Process {
    stat: Stat,
    /// Of its first thread.
    io_bytes: u64,
    /// Of children that have ended.
    io_bytes_of_children: u64,
    threads: BTreeMap<i32, u16>,
    /// When threads other than the first one started.
    starts: BTreeMap<i32, u64>,
    masks: BTreeMap<i32, VcpuSet>,
    /// Where each thread ran last.
    vcpus: BTreeMap<i32, VcpuId>,
    asleep: bool,
    deadline: bool,
    normal: bool,
    forbidden: bool,
    group: Option<String>,
    /// Is gone after the next question.
    vanishing: bool,
}

fn first_of(mask: &VcpuSet) -> VcpuId {
    mask.iter().next().unwrap_or(VcpuId::new(0))
}

impl Process {
    /// Moves tasks that are awake to where they may run.
    fn settle(&mut self) {
        for (tid, vcpu) in &mut self.vcpus {
            let mask = &self.masks[tid];
            if !self.asleep && !mask.contains(*vcpu) {
                *vcpu = first_of(mask);
            }
        }
    }
}

/// Processes by their numbers. It has vCPUs 0 to 3.
#[derive(Default)]
pub struct Fake {
    processes: RefCell<BTreeMap<i32, Process>>,
    clock: Cell<u64>,
    /// vCPUs that a test has taken off line.
    offline: RefCell<Vec<VcpuId>>,
    rival: RefCell<Option<(i32, VcpuSet)>>,
}

impl Fake {
    /// A process that inherits its parent's priority.
    pub fn start(&self, pid: i32, parent: i32, comm: &str) {
        self.clock.set(self.clock.get() + 1);
        let inherited = self.priority(parent).unwrap_or(0);
        let mask = self.whole_affinity(parent).unwrap_or(VcpuSet::first(4));
        let stat = Stat {
            comm: comm.into(),
            waits: false,
            parent,
            kernel: false,
            start: self.clock.get(),
        };
        let process = Process {
            stat,
            io_bytes: 0,
            io_bytes_of_children: 0,
            threads: BTreeMap::from([(pid, inherited)]),
            starts: BTreeMap::new(),
            masks: BTreeMap::from([(pid, mask)]),
            vcpus: BTreeMap::from([(pid, first_of(&mask))]),
            asleep: false,
            deadline: false,
            normal: true,
            forbidden: false,
            group: None,
            vanishing: false,
        };
        self.processes.borrow_mut().insert(pid, process);
    }

    fn change(&self, pid: i32, how: impl FnOnce(&mut Process)) {
        if let Some(process) = self.processes.borrow_mut().get_mut(&pid) {
            how(process);
        }
    }

    /// Ends a process, for which its parent waits.
    pub fn end(&self, pid: i32) {
        let ended = self.processes.borrow_mut().remove(&pid);
        let Some(child) = ended else { return };
        let bytes = child.io_bytes + child.io_bytes_of_children;
        self.change(child.stat.parent, |p| p.io_bytes_of_children += bytes);
    }

    pub fn exec(&self, pid: i32, comm: &str) {
        self.change(pid, |p| p.stat.comm = comm.into());
    }

    pub fn thread(&self, pid: i32, tid: i32) {
        self.clock.set(self.clock.get() + 1);
        self.change(pid, |p| {
            p.starts.insert(tid, self.clock.get());
            let inherited = p.threads.values().next().copied().unwrap_or(0);
            p.threads.insert(tid, inherited);
            p.masks.insert(tid, p.masks[&pid]);
            p.vcpus.insert(tid, p.vcpus[&pid]);
        });
    }

    pub fn moved(&self, pid: i32, bytes: u64) {
        self.change(pid, |p| p.io_bytes += bytes);
    }

    pub fn real_time(&self, pid: i32) {
        self.change(pid, |p| p.normal = false);
    }

    /// Makes it a thread of the kernel.
    pub fn kernel(&self, pid: i32) {
        self.change(pid, |p| p.stat.kernel = true);
    }

    pub fn deadline(&self, pid: i32) {
        self.change(pid, |p| p.deadline = true);
    }

    /// Changes a thread's affinity as another program does. A sleeping thread stays where it is.
    pub fn taskset(&self, tid: i32, mask: VcpuSet) {
        for process in self.processes.borrow_mut().values_mut() {
            process.masks.entry(tid).and_modify(|m| *m = mask);
            process.settle();
        }
    }

    pub fn sleep(&self, pid: i32) {
        self.change(pid, |p| p.asleep = true);
    }

    pub fn wake(&self, pid: i32) {
        self.change(pid, |p| {
            p.asleep = false;
            p.settle();
        });
    }

    /// Sets the ticks after boot at which the next process starts.
    pub fn set_clock(&self, ticks: u64) {
        self.clock.set(ticks - 1);
    }

    /// Makes another program change this thread's mask just before the agent's next change.
    pub fn taskset_during_the_next_change(&self, tid: i32, mask: VcpuSet) {
        *self.rival.borrow_mut() = Some((tid, mask));
    }

    /// A thread runs another program: the first one's number is its own from now on.
    pub fn exec_from(&self, pid: i32, tid: i32) {
        self.change(pid, |p| {
            let (mask, vcpu) = (p.masks[&tid], p.vcpus[&tid]);
            p.threads.retain(|other, _| *other == pid);
            p.masks = BTreeMap::from([(pid, mask)]);
            p.vcpus = BTreeMap::from([(pid, vcpu)]);
        });
    }

    /// The process that started it has ended.
    pub fn adopt(&self, pid: i32) {
        self.change(pid, |p| p.stat.parent = 1);
    }

    pub fn set_offline(&self, vcpus: &[VcpuId]) {
        *self.offline.borrow_mut() = vcpus.to_vec();
    }

    pub fn forbid(&self, pid: i32) {
        self.change(pid, |p| p.forbidden = true);
    }

    pub fn allow(&self, pid: i32) {
        self.change(pid, |p| p.forbidden = false);
    }

    pub fn group(&self, pid: i32, class: &str) {
        self.change(pid, |p| p.group = Some(class.into()));
    }

    pub fn vanish_soon(&self, pid: i32) {
        self.change(pid, |p| p.vanishing = true);
    }

    /// Sets a thread's priority as another program does.
    pub fn set(&self, tid: i32, priority: u16) {
        for process in self.processes.borrow_mut().values_mut() {
            process.threads.entry(tid).and_modify(|p| *p = priority);
        }
    }

    fn of<T>(&self, tid: i32, what: impl FnOnce(&Process) -> T) -> io::Result<T> {
        let mut processes = self.processes.borrow_mut();
        let found = processes.iter().find(|(_, p)| p.threads.contains_key(&tid));
        let Some((&pid, process)) = found else {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        };
        let answer = what(process);
        if process.vanishing {
            processes.remove(&pid);
        }
        Ok(answer)
    }
}

impl System for Fake {
    fn processes(&self) -> io::Result<Vec<i32>> {
        Ok(self.processes.borrow().keys().copied().collect())
    }
    fn stat(&self, id: i32) -> Option<Stat> {
        let start = |p: &Process| p.starts.get(&id).copied().unwrap_or(p.stat.start);
        self.of(id, |p| Stat { start: start(p), ..p.stat.clone() }).ok()
    }
    fn io_bytes(&self, pid: i32) -> io::Result<u64> {
        self.of(pid, |p| p.io_bytes + p.io_bytes_of_children)
    }
    fn thread_io_bytes(&self, pid: i32, tid: i32) -> io::Result<u64> {
        self.of(tid, |p| if tid == pid { p.io_bytes } else { 0 })
    }
    fn threads(&self, pid: i32) -> Vec<i32> {
        self.of(pid, |p| p.threads.keys().copied().collect()).unwrap_or_default()
    }
    fn priority(&self, tid: i32) -> io::Result<u16> {
        self.of(tid, |p| p.threads[&tid])
    }
    fn set_priority(&self, tid: i32, priority: u16) -> io::Result<()> {
        if self.of(tid, |p| p.forbidden)? {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        self.set(tid, priority);
        Ok(())
    }
    fn schedules_normally(&self, tid: i32) -> io::Result<bool> {
        self.of(tid, |p| p.normal)
    }
    fn io_class(&self, pid: i32) -> Option<(String, String)> {
        let class = self.of(pid, |p| p.group.clone()).ok()??;
        Some((format!("/{class}"), class))
    }
    fn watch(&self, tid: i32) -> Option<Watched> {
        self.stat(tid).map(|stat| Watched { tid, start: stat.start, name: None })
    }
    fn lives(&self, watched: &Watched) -> bool {
        self.stat(watched.tid).is_some_and(|stat| stat.start == watched.start)
    }
    fn affinity(&self, tid: i32) -> io::Result<VcpuSet> {
        let shown = self.of(tid, |p| p.masks[&tid])?.and(&self.online()?);
        if let Some((tid, mask)) = self.rival.borrow_mut().take_if(|(rival, _)| *rival == tid) {
            self.taskset(tid, mask);
        }
        Ok(shown)
    }
    fn whole_affinity(&self, tid: i32) -> Option<VcpuSet> {
        self.of(tid, |p| p.masks[&tid]).ok()
    }
    fn set_affinity(&self, tid: i32, vcpus: &VcpuSet) -> io::Result<()> {
        if self.of(tid, |p| p.forbidden)? {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        if vcpus.and(&self.online()?).is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.taskset(tid, *vcpus);
        Ok(())
    }
    fn vcpu(&self, tid: i32) -> Option<VcpuId> {
        self.of(tid, |p| p.vcpus[&tid]).ok()
    }
    fn online(&self) -> io::Result<VcpuSet> {
        let mut online = VcpuSet::first(4);
        self.offline.borrow().iter().for_each(|vcpu| online.remove(*vcpu));
        Ok(online)
    }
    fn has_deadline(&self, tid: i32) -> io::Result<bool> {
        self.of(tid, |p| p.deadline)
    }
}
