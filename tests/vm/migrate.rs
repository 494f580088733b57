//! `seekway-guest migrate` in real guests whose vCPUs are taken away: one at a time runs on
//! each of two processors, for 11 ms. Whose a task's affinity is, whatever happens to the
//! task, its owner and the agent; and that nothing is left of it.

use crate::world::{PATIENCE, expect, program};
use seekway_live::turns::{Slices, Turns};
use seekway_live::{
    Daemon, Guest, GuestImage, GuestSpec, Kernel, LiveError, Result, Shipped, vcpus,
};
use seekway_policy::journal::{Entry, entry};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DISK_BYTES: u64 = 256 << 20;
const VCPUS: usize = 4;
/// Moves of a task after which it has been everywhere.
const MANY: u64 = 10;
/// What its owner allows the reader: not all.
const OWN: &str = "0-2";
/// The same, as taskset(1) shows it.
const OWN_MASK: &str = "7";
/// What its owner allows it later.
const OTHER: &str = "1-3";
const OTHER_MASK: &str = "e";

/// Processes that a task starts while it is moved, and the pages that it reads before each.
const HEIRS: usize = 200;
const PAGES: usize = 100;
const PAGE_BYTES: usize = 4096;

/// Functions for the guest's shell.
const LIBRARY: &str = r#"
mask() { taskset -p $1 | sed 's/.*: //'; }
reader() { # NAME CPUS MORE
	name=$1 cpus=$2; shift 2
	(exec taskset -c $cpus fio --name=$name --filename=/dev/vda --direct=1 --ioengine=psync \
		--rw=randread --bs=4k --thread --time_based --runtime=3600 "$@" \
		>/tmp/$name.said 2>&1) &
	echo $! >/tmp/$name
	n=0; until thread $name >/dev/null; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/$name.said; return 1; }; sleep 0.1; done
}
# The thread that has read from the disk. fio also has a helper thread, which reads nothing.
thread() {
	for t in /proc/$(cat /tmp/$1)/task/*; do
		[ ${t##*/} = $(cat /tmp/$1) ] || grep -q '^read_bytes: 0$' $t/io || { echo ${t##*/}; return; }
	done
	return 1
}
# Without BPF: programs that come change the kernel's code, and QEMU 7.2 may run a part of it as
# it was on vCPUs that stand still meanwhile (bpf.rs and ticks.rs try BPF). Without a budget:
# under TCG the agent would be over it, for it takes absences of its vCPU for CPU time of its own.
migrate() {
	rm -f /tmp/agent.log
	(exec seekway-guest migrate --match fio --no-bpf --policy vmigrater:budget=1 "$@" >/tmp/agent.log 2>&1) & echo $! >/tmp/agent
	n=0; until seekway-guest status >/dev/null 2>&1; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/agent.log; return 1; }; sleep 0.1; done
}
# Until this process is no more.
gone() {
	n=0; while kill -0 $1 2>/dev/null; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/agent.log; return 1; }; sleep 0.1; done
}
# A killed agent holds its lock until the kernel has taken down its BPF programs.
restore() {
	n=0; until seekway-guest restore >/tmp/restored 2>&1; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/restored; return 1; }; sleep 0.1; done
}
end_migrate() { kill $(cat /tmp/agent) && gone $(cat /tmp/agent); }
# Where a thread's I/O stands: in the guest, on its way, or nowhere.
stands() {
	for n in 1 2; do
		cat /proc/*/task/$1/stat /proc/*/task/$1/io /sys/block/vda/inflight
		grep -e CPU0 -e virtio /proc/interrupts
		sleep 1
	done
	dmesg | tail -n 5
}
# The masks of all threads that are no kernel's and none of this shell's.
masks() {
	for p in $(pidof fio sha256sum sleep); do
		for t in /proc/$p/task/*; do echo ${t##*/} $(mask ${t##*/}); done; done | sort -n
}
"#;

/// What the agent says.
#[derive(Debug)]
struct Seen {
    /// Its process.
    agent: i64,
    /// How often it has moved the thread.
    moves: u64,
    /// Where the thread's owner lets it run.
    allowed: String,
}

/// A guest with a compute task on each vCPU.
struct Stage {
    guest: Guest,
    queues: Vec<Vec<i32>>,
    daemon: Daemon,
    dir: TempDir,
}

impl Stage {
    fn boot(kernel: Kernel, agent: &Path) -> Result<Stage> {
        let image = GuestImage::prepare_with(kernel)?;
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("migrate.img");
        std::fs::write(&disk, script()).expect("an image");
        File::options().write(true).open(&disk).and_then(|f| f.set_len(DISK_BYTES)).expect("sized");
        let args = [
            "--emulate".into(),
            "intel-x25m-g2:k=1,read_us=5000".into(),
            "--journal".into(),
            dir.path().join("journal").display().to_string(),
            "--disk".into(),
            format!("migrate={},lba=0", disk.display()),
        ];
        let daemon = Daemon::start(program(), dir.path(), &args)?;
        let shipped = Shipped::new(agent, "seekway-guest", dir.path())?;
        let (cpus, extra) = (VCPUS as u32, shipped.args().into());
        let spec = GuestSpec { cpus, extra, ..GuestSpec::new("migrate") };
        let mut guest = Guest::start(&image, &spec.disk(daemon.socket("migrate")))?;
        guest.wait_ready()?;
        shipped.install(&mut guest)?;
        let compute = "for n in 0 1 2 3; do nice -n 19 taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & done";
        let library = format!("cat >/tmp/lib <<'END'\n{LIBRARY}END\n{compute}");
        guest.check(&library, PATIENCE)?;
        let processors = vcpus::processors()?;
        let mut queues = vec![Vec::new(); processors.len().min(2)];
        for (n, tid) in vcpus::threads(&guest)?.into_iter().enumerate() {
            let place = n % queues.len();
            vcpus::pin(tid, processors[place])?;
            queues[place].push(tid);
        }
        Ok(Stage { guest, queues, daemon, dir })
    }

    /// vCPUs are taken away from now on.
    fn take_turns(&self) -> Result<Turns> {
        let (mean, jitter) = (Duration::from_millis(11), Duration::from_micros(300));
        Turns::hold(self.queues.clone(), Slices { mean, jitter, seed: 1 })
    }

    fn run(&mut self, command: &str) -> Result<String> {
        self.guest.check(&format!(". /tmp/lib; {command}"), PATIENCE)
    }

    /// What the agent says of a reader's thread after this command; nothing while there is
    /// no agent.
    fn seen_after(&mut self, command: &str, tid: &str) -> Result<Seen> {
        let status = format!("{command} >/dev/null; seekway-guest status --format json");
        let said = self.guest.run(&status, PATIENCE)?;
        let status: Value = serde_json::from_str(&said.text).unwrap_or_default();
        let tasks = status["tasks"].as_array().map_or(&[][..], Vec::as_slice);
        let task = tasks.iter().find(|task| task["tid"].as_i64() == tid.parse().ok());
        let task = task.cloned().unwrap_or_default();
        Ok(Seen {
            agent: status["pid"].as_i64().unwrap_or(0),
            moves: task["moves"].as_u64().unwrap_or(0),
            allowed: task["allowed"].as_str().unwrap_or_default().to_string(),
        })
    }

    /// Wait until the agent says this of a reader's thread.
    fn until(&mut self, tid: &str, what: &str, holds: impl Fn(&Seen) -> bool) -> Result<Seen> {
        self.until_repeating(":", tid, what, holds)
    }

    /// The same, with this command before each look.
    fn until_repeating(
        &mut self,
        command: &str,
        tid: &str,
        what: &str,
        holds: impl Fn(&Seen) -> bool,
    ) -> Result<Seen> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.seen_after(command, tid)?;
            if holds(&seen) {
                return Ok(seen);
            }
            if Instant::now() > deadline {
                let log =
                    self.run(&format!("seekway-guest status; cat /tmp/agent.log; stands {tid}"))?;
                let daemon = self.daemon.status()?;
                let what = format!("thread {tid} was to be {what}: {seen:?}\n{log}\n{daemon:?}");
                return Err(LiveError::Measured(what));
            }
        }
    }

    /// A reader has this mask.
    fn expect_mask(&mut self, tid: &str, mask: &str) -> Result<()> {
        let found = self.run(&format!("mask {tid}"))?;
        expect(found.trim() == mask, || format!("thread {tid} has {found}, expected {mask}"))
    }
}

/// In one boot.
pub fn in_guest(kernel: Kernel, agent: &Path) -> Result<()> {
    let mut stage = Stage::boot(kernel, agent)?;
    let reader = stage.run(&format!("reader own {OWN} && thread own"))?.trim().to_string();
    let before = stage.run("masks")?;
    let turns = stage.take_turns()?;
    step("its owner's mask is respected", || own_mask(&mut stage, &reader))?;
    step("another mask is adopted", || adopted(&mut stage, &reader))?;
    // Both kernels take the same system calls for this: one of them is enough.
    if kernel == Kernel::Current {
        step("who is killed is put back", || killed(&mut stage, &reader))?;
    }
    step("what a moved task starts is as its owner wants", || forks(&mut stage))?;
    step("a moved task keeps its tag", || tagged(&mut stage, &reader))?;
    drop(turns);
    let after = stage.run("masks")?;
    expect(before == after, || format!("masks were\n{before}are\n{after}"))?;
    stage.run("ls /run/seekway-guest* | grep -v lock$ && exit 1; true")?;
    finish(stage, &reader)
}

fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    run()?;
    eprintln!("{:6.1} s  {name}", started.elapsed().as_secs_f64());
    Ok(())
}

/// Wherever it is moved, it is where it may be; and it is free at the end.
fn own_mask(stage: &mut Stage, reader: &str) -> Result<()> {
    stage.run("migrate")?;
    stage.until(reader, "moved", |seen| seen.moves >= MANY)?;
    let watch = format!("n=0; while [ $n -lt 50 ]; do n=$((n+1)); mask {reader}; done | sort -u");
    let seen = stage.run(&watch)?;
    let masks: BTreeSet<u64> =
        seen.split_whitespace().filter_map(|mask| u64::from_str_radix(mask, 16).ok()).collect();
    let allowed = u64::from_str_radix(OWN_MASK, 16).expect("a mask");
    expect(!masks.is_empty() && masks.iter().all(|mask| mask & !allowed == 0), || {
        format!("allowed {OWN_MASK}, was on {seen}")
    })?;
    stage.run("end_migrate")?;
    stage.expect_mask(reader, OWN_MASK)
}

/// What its owner sets while it is moved is its mask from then on. Linux cannot change a mask
/// on condition that nobody else has changed it: an agent that has just looked, and whose vCPU
/// is then taken away, overwrites what the owner sets meanwhile. So the owner repeats it.
fn adopted(stage: &mut Stage, reader: &str) -> Result<()> {
    stage.run("migrate")?;
    for mask in [OTHER, OWN, OTHER] {
        let before = stage.seen_after(":", reader)?.moves;
        let taskset = format!("taskset -cp {mask} {reader}");
        let moved_on = |seen: &Seen| seen.allowed == mask && seen.moves > before + 3;
        stage.until_repeating(&taskset, reader, &format!("moved within {mask}"), moved_on)?;
    }
    stage.run("end_migrate")?;
    stage.expect_mask(reader, OTHER_MASK)?;
    stage.run(&format!("taskset -cp {OWN} {reader}")).map(drop)
}

/// By the next start, and by `restore`.
fn killed(stage: &mut Stage, reader: &str) -> Result<()> {
    stage.run("migrate")?;
    let first = stage.until(reader, "moved", |seen| seen.moves >= MANY)?;
    stage.run("killall -9 seekway-guest; gone $(cat /tmp/agent)")?;
    stage.run("migrate")?;
    let again = |seen: &Seen| seen.agent != first.agent && seen.moves >= MANY;
    stage.until(reader, "moved by the next agent", again)?;
    stage.run("killall -9 seekway-guest; restore")?;
    stage.expect_mask(reader, OWN_MASK)
}

/// A shell reads its script from the disk, page by page, and starts processes on the way.
/// While the agent is stopped one is born where the shell is confined; when the agent goes
/// on, it is put where its owner wants it.
fn forks(stage: &mut Stage) -> Result<()> {
    stage.run("migrate --match sh")?;
    let shell = stage.run(&format!(
        "echo 0 >/sys/block/vda/queue/read_ahead_kb; : >/tmp/heirs; \
         (exec taskset -c {OWN} sh </dev/vda >/tmp/forks 2>&1) & echo $!"
    ))?;
    let shell = shell.trim();
    let confined = format!("[ $(mask {shell}) != {OWN_MASK} ]");
    let deadline = Instant::now() + PATIENCE;
    loop {
        stage.until(shell, "moved", |seen| seen.moves >= 1)?;
        let stop = format!("kill -STOP $(cat /tmp/agent); {confined} && echo yes; true");
        if stage.run(&stop)?.contains("yes") {
            break;
        }
        stage.run("kill -CONT $(cat /tmp/agent)")?;
        expect(Instant::now() < deadline, || format!("shell {shell} is never confined"))?;
    }
    let heir = stage.run(
        "had=$(wc -l </tmp/heirs); n=0; until [ $(wc -l </tmp/heirs) -gt $had ]; do n=$((n+1)); \
         [ $n -lt 600 ] || { cat /tmp/forks; exit 1; }; sleep 0.1; done; tail -n 1 /tmp/heirs",
    )?;
    let heir = heir.trim();
    stage.run(&format!("[ $(mask {heir}) != {OWN_MASK} ]"))?;
    stage.run(&format!(
        "kill -CONT $(cat /tmp/agent); n=0; until [ $(mask {heir}) = {OWN_MASK} ]; do \
         n=$((n+1)); [ $n -lt 600 ] || {{ seekway-guest status; exit 1; }}; sleep 0.1; done"
    ))?;
    stage.run("end_migrate; kill $(cat /tmp/heirs); true")?;
    stage.expect_mask(shell, OWN_MASK)?;
    stage
        .run(&format!("kill -9 {shell}; for p in $(pidof sleep); do kill $p; done; true"))
        .map(drop)
}

/// The shell's script: pages of nothing, and now and then a command.
fn script() -> Vec<u8> {
    let mut script = Vec::new();
    for page in 1..=HEIRS * PAGES {
        let command: &[u8] =
            if page % PAGES == 0 { b"sleep 3600 & echo $! >>/tmp/heirs\n" } else { b"" };
        script.extend_from_slice(command);
        script.resize(script.len() + PAGE_BYTES - 1 - command.len(), b'#');
        script.push(b'\n');
    }
    script.extend_from_slice(b"exit\n");
    script
}

/// Beside `tag`.
fn tagged(stage: &mut Stage, reader: &str) -> Result<()> {
    stage.run(
        "(exec seekway-guest tag --interval 20ms --status /tmp/tags >/tmp/tag.log 2>&1) & \
         echo $! >/tmp/tagger; n=0; until grep -q \"\\\"pid\\\": $(cat /tmp/own),\" /tmp/tags; do \
         n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/tag.log; exit 1; }; sleep 0.1; done",
    )?;
    stage.daemon.set_policy("noop:")?;
    stage.run("migrate")?;
    stage.until(reader, "moved", |seen| seen.moves >= MANY)?;
    stage.daemon.set_policy("noop")?;
    stage.run("end_migrate; kill $(cat /tmp/tagger); gone $(cat /tmp/tagger)").map(drop)
}

/// From one change of policy to the other all requests had one tag.
fn finish(stage: Stage, reader: &str) -> Result<()> {
    let Stage { guest, daemon, dir, .. } = stage;
    drop(guest);
    daemon.stop()?;
    let mut tags = BTreeSet::new();
    let (mut within, mut requests) = (false, 0);
    for file in std::fs::read_dir(dir.path().join("journal")).expect("a folder") {
        let text = std::fs::read_to_string(file.expect("listed").path()).expect("text");
        for entry in text.lines().filter_map(entry) {
            match entry {
                Entry::Switch(_) => within = !within,
                Entry::Submit(request) if within => {
                    tags.insert(request.tag);
                    requests += 1;
                }
                _ => {}
            }
        }
    }
    eprintln!("          thread {reader}: {requests} requests with {tags:?}");
    let one = tags.len() == 1 && !tags.contains(&None);
    expect(one && requests > 100, || format!("{requests} requests with {tags:?}"))
}
