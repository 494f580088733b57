//! `seekway-guest tag` in real guests: which process each request came from, as
//! the daemon's journal has it. Processes that each work in a range of their own
//! on the disk; every request in a range has to carry its process's tag.

use crate::world::{PATIENCE, expect, program};
use seekway_live::{Daemon, Guest, GuestImage, GuestSpec, Kernel, LiveError, Result, Shipped};
use seekway_policy::journal::{Entry, entry};
use seekway_policy::request::{Extent, Op, ProcessTag};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

const DISK_BYTES: u64 = 320 << 20;
/// What each job has to itself; it works in the first quarter of it, so that
/// read-ahead beyond its end stays inside.
const RANGE_BYTES: u64 = 32 << 20;
const WORK_BYTES: u64 = RANGE_BYTES / 4;

/// Runs in place of the command that it is given, once it is told to go on: by
/// then it has its tag.
const JOB: &str = "#!/bin/sh\necho $$ >/tmp/job.$1; shift; kill -STOP $$; exec \"$@\"\n";

/// The job whose I/O is a child's.
const CHILD: &str = "child";

/// A name, and the command for a place on the disk.
type Job = (&'static str, fn(u64) -> String);

/// How jobs move their bytes.
const JOBS: [Job; 5] = [
    ("direct", |at| dd(&format!("if=/dev/vda iflag=direct of=/dev/null skip={at}"))),
    // The guest's page cache and its read-ahead.
    ("buffered", |at| dd(&format!("if=/dev/vda of=/dev/null skip={at}"))),
    ("written", |at| dd(&format!("if=/dev/zero of=/dev/vda conv=notrunc,fsync seek={at}"))),
    ("threads", |at| fio(at, "--thread --numjobs=3")),
    // A child has its parent's tag until it is given one of its own.
    (CHILD, |at| format!("sh -c '{}; true'", dd(&format!("if=/dev/vda of=/dev/null skip={at}")))),
];

fn dd(more: &str) -> String {
    // Places are in blocks of 64 KiB.
    format!("dd bs=64k count={} {more}", WORK_BYTES >> 16)
}

fn fio(at: u64, more: &str) -> String {
    format!(
        "fio --name=job --filename=/dev/vda --rw=read --bs=16k --offset={} --size={WORK_BYTES} \
         --minimal {more}",
        at << 16
    )
}

/// The agent as cargo builds it for this test run: with the features that tests of the whole
/// workspace have, or cargo would build its dependencies a second time.
pub fn agent() -> PathBuf {
    let args = ["test", "--quiet", "--no-run", "--workspace", "--test", "agent"];
    let mut build = Command::new(env!("CARGO"));
    build.args(args).args(["--features", "seekway-guestd/bpf"]);
    let built = build.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "seekway-guestd does not build: {said}");
    program().with_file_name("seekway-guest")
}

/// CFQ waits for a process on a disk only.
fn emulated(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Current => "seagate-1tb-7200:k=1",
        _ => "samsung-970-pro:k=1",
    }
}

/// A guest with the agent, on a daemon that keeps a journal.
pub struct Stage {
    pub guest: Guest,
    daemon: Daemon,
    dir: TempDir,
}

impl Stage {
    /// Boot a kernel; its disk lies at sector 0 of the emulated device, so that
    /// the journal's places are the disk's.
    pub fn boot(kernel: Kernel, agent: &Path) -> Result<Stage> {
        let image = GuestImage::prepare_with(kernel)?;
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("tags.img");
        File::create(&disk).and_then(|f| f.set_len(DISK_BYTES)).expect("an image");
        let args = [
            "--emulate".into(),
            emulated(kernel).into(),
            "--journal".into(),
            dir.path().join("journal").display().to_string(),
            "--disk".into(),
            format!("tags={},lba=0", disk.display()),
        ];
        let daemon = Daemon::start(program(), dir.path(), &args)?;
        let shipped = Shipped::new(agent, "seekway-guest", dir.path())?;
        let spec = GuestSpec { extra: shipped.args().into(), ..GuestSpec::new("tags") };
        let mut guest = Guest::start(&image, &spec.disk(daemon.socket("tags")))?;
        guest.wait_ready()?;
        shipped.install(&mut guest)?;
        let script = format!("cat >/usr/bin/job <<'END'\n{JOB}END\nchmod +x /usr/bin/job");
        guest.check(&script, PATIENCE)?;
        Ok(Stage { guest, daemon, dir })
    }

    pub fn run(&mut self, command: &str) -> Result<String> {
        self.guest.check(command, PATIENCE)
    }

    /// Until `condition`, a shell command, is true.
    pub fn until(&mut self, condition: &str) -> Result<()> {
        let wait = format!(
            "n=0; until {condition}; do n=$((n+1)); [ $n -lt 200 ] || {{ cat /tmp/agent.log; \
             exit 1; }}; sleep 0.1; done"
        );
        self.run(&wait).map(drop)
    }

    /// Start the agent and wait until it has begun.
    pub fn tag(&mut self, args: &str) -> Result<()> {
        self.run(&format!(
            "rm -f /tmp/agent.log; (exec seekway-guest tag --interval 20ms --verbose \
             --status /tmp/status {args} >/tmp/agent.log 2>&1) & echo $! >/tmp/agent"
        ))?;
        self.until("grep -q ' tags as ' /tmp/agent.log")
    }

    /// Run jobs side by side, from when all have their tags; the tags.
    fn jobs(&mut self, jobs: Vec<(&str, String)>) -> Result<Vec<u16>> {
        self.run("rm -f /tmp/job.*")?;
        for (name, command) in &jobs {
            self.run(&format!("job {name} {command} >/tmp/said.{name} 2>&1 &"))?;
        }
        let mut tags = Vec::new();
        for (name, _) in jobs {
            let of_job = format!("\"\\\"pid\\\": $(cat /tmp/job.{name}),\" /tmp/status");
            self.until(&format!("[ -s /tmp/job.{name} ] && grep -q {of_job}"))?;
            // The process's number, its name, its tag.
            let tag = format!("grep -A2 {of_job} | tr -dc '0-9,' | cut -d, -f3");
            let tag = self.run(&tag)?;
            let wrong = |_| LiveError::Measured(format!("{name} has tag '{tag}'"));
            tags.push(tag.trim().parse::<u16>().map_err(wrong)?);
        }
        self.run("kill -CONT $(cat /tmp/job.*)")?;
        self.until(
            "! (for p in $(cat /tmp/job.*); do kill -0 $p && exit 0; done; exit 1) 2>/dev/null",
        )?;
        Ok(tags)
    }

    /// End it as systemd would; what it said.
    pub fn untag(&mut self) -> Result<String> {
        self.run("kill $(cat /tmp/agent)")?;
        self.until("grep -q 'priorities put back' /tmp/agent.log")?;
        self.until("! kill -0 $(cat /tmp/agent) 2>/dev/null")?;
        self.run("cat /tmp/agent.log")
    }

    /// All threads of the reader have an I/O priority of this class.
    fn expect_reader(&mut self, class: &str) -> Result<()> {
        let each = "for t in /proc/$(cat /tmp/reader)/task/*; do ionice -p ${t##*/}; done";
        let found = self.run(each)?;
        let all = found.lines().count() >= 3 && found.lines().all(|l| l.starts_with(class));
        expect(all, || format!("expected {class}, found:\n{found}"))
    }

    /// End the daemon; its journal.
    fn finish(self) -> Result<String> {
        drop(self.guest);
        self.daemon.stop()?;
        let mut text = String::new();
        for entry in std::fs::read_dir(self.dir.path().join("journal")).expect("a folder") {
            text += &std::fs::read_to_string(entry.expect("listed").path()).expect("text");
        }
        Ok(text)
    }
}

/// How often each tag was seen in each range.
fn seen(journal: &str) -> BTreeMap<(u64, u16), u64> {
    let mut seen = BTreeMap::new();
    for entry in journal.lines().filter_map(entry) {
        if let Entry::Submit(request) = entry
            && matches!(request.op, Op::Read | Op::Write)
        {
            let tag = request.tag.map_or(0, ProcessTag::get);
            *seen.entry((range(request.extent), tag)).or_default() += 1;
        }
    }
    seen
}

/// The range that a request begins in.
fn range(extent: Extent) -> u64 {
    extent.start().get() * 512 / RANGE_BYTES
}

/// In one boot. What does not depend on the kernel is tested on one; the released kernel
/// takes no hints.
pub fn in_guest(kernel: Kernel, agent: &Path) -> Result<()> {
    let mut stage = Stage::boot(kernel, agent)?;
    if kernel == Kernel::Released {
        return is_refused(&mut stage);
    }
    if kernel == Kernel::Current {
        let started = Instant::now();
        priorities_are_put_back(&mut stage)?;
        eprintln!("{:6.1} s  priorities are put back", started.elapsed().as_secs_f64());
    }
    if kernel == Kernel::Current {
        run_under_cfq(&mut stage)?;
    }
    let journal = each_request_names_its_process(stage)?;
    if kernel == Kernel::Current { check_cfq(&journal) } else { Ok(()) }
}

/// A kernel that takes no hints: the agent says which kernel is needed, and changes nothing.
fn is_refused(stage: &mut Stage) -> Result<()> {
    let said = stage.run("seekway-guest tag --match job 2>&1; echo exit status $?")?;
    let expected = ["takes no hints in I/O priorities", "Linux 6.5 or later", "exit status 2"];
    expect(expected.iter().all(|words| said.contains(words)), || said.clone())?;
    stage.run("[ ! -e /run/seekway-guest.state ]")?;
    let release = stage.run("uname -r")?;
    eprintln!("          {}: {}", release.trim(), said.lines().next().unwrap_or_default());
    Ok(())
}

/// What CFQ is to tell apart, and what not. It waits longer for a reader than an
/// emulated guest on a busy machine needs.
const CFQ: [&str; 2] = ["cfq:issuer=process,slice_idle=40ms", "cfq:issuer=vm,slice_idle=40ms"];
/// Where its two readers are.
const CFQ_RANGES: [u64; 2] = [8, 9];

/// Two processes read in sequence, one request at a time each.
fn run_under_cfq(stage: &mut Stage) -> Result<()> {
    stage.tag("--match job")?;
    for policy in CFQ {
        stage.daemon.set_policy(policy)?;
        let read = |range: u64| {
            let at = range * (RANGE_BYTES >> 14);
            format!("dd if=/dev/vda of=/dev/null iflag=direct bs=16k count=256 skip={at}")
        };
        let [a, b] = CFQ_RANGES;
        stage.jobs(vec![("first", read(a)), ("second", read(b))])?;
    }
    stage.daemon.set_policy("noop")?;
    stage.untag().map(drop)
}

/// With tags, CFQ serves one process for a slice, and then the other; without,
/// whichever's request is there.
fn check_cfq(journal: &str) -> Result<()> {
    let [mut by_process, mut by_vm] = [0, 0];
    let (mut policy, mut last) = ("", None);
    for entry in journal.lines().filter_map(entry) {
        match entry {
            Entry::Switch(name) => (policy, last) = (name, None),
            Entry::Issue(Op::Read, extent) if CFQ_RANGES.contains(&range(extent)) => {
                let changed = u32::from(last.is_some_and(|last| last != range(extent)));
                last = Some(range(extent));
                by_process += if policy.contains("issuer=process") { changed } else { 0 };
                by_vm += if policy.contains("issuer=vm") { changed } else { 0 };
            }
            _ => {}
        }
    }
    eprintln!("          CFQ changed between two processes {by_process} times, {by_vm} by VM");
    expect(by_process > 0 && by_process * 4 < by_vm, || {
        format!("CFQ by process changed {by_process} times, by VM {by_vm} times")
    })
}

/// Reads a second of each thread: emulated guests that read as fast as they can leave the agent
/// and the shell next to no processor time.
const READS_PER_S: u32 = 20;

/// A reader with three threads is tagged, and is as it was before after each
/// way in which the agent can end; who has a priority of his own keeps it.
fn priorities_are_put_back(stage: &mut Stage) -> Result<()> {
    let offset = 7 * RANGE_BYTES;
    stage.run(&format!(
        "(exec fio --name=long --filename=/dev/vda --direct=1 --thread --numjobs=3 --rw=randread \
         --rate_iops={READS_PER_S} --offset={offset} --size={WORK_BYTES} --time_based \
         --runtime=3600 >/dev/null 2>&1) & echo $! >/tmp/reader; \
         (exec ionice -c 2 -n 1 fio --name=own --filename=/dev/vda --direct=1 --thread \
         --rw=randread --rate_iops={READS_PER_S} --offset={offset} --size={WORK_BYTES} \
         --time_based --runtime=3600 >/dev/null 2>&1) & echo $! >/tmp/own"
    ))?;
    let tagged = "tag [0-9]*: .* (fio), [3-9] threads";

    // Each start after a SIGKILL restores first, and then tags anew.
    for start in ["first", "second"] {
        stage.tag("")?;
        stage.until(&format!("grep -q '{tagged}' /tmp/agent.log"))?;
        stage.expect_reader("best-effort")?;
        let restored = stage.run("grep -c 'priorities put back' /tmp/agent.log; true")?;
        expect((restored.trim() == "0") == (start == "first"), || format!("{start}: {restored}"))?;
        stage.run("killall -9 seekway-guest")?;
        stage.until("! kill -0 $(cat /tmp/agent) 2>/dev/null")?;
    }
    stage.expect_reader("best-effort")?;
    let said = stage.run("seekway-guest restore; seekway-guest restore")?;
    expect(said.contains("put back: ") && said.contains("nothing to put back"), || said.clone())?;
    stage.expect_reader("none")?;

    stage.tag("")?;
    stage.until(&format!("grep -q '{tagged}' /tmp/agent.log"))?;
    stage.expect_reader("best-effort")?;
    let said = stage.untag()?;
    stage.expect_reader("none")?;
    expect(said.contains("has best-effort, prio 1, left alone"), || said.clone())?;
    let own = stage.run("ionice -p $(cat /tmp/own)")?;
    expect(own.contains("best-effort: prio 1"), || own.clone())?;
    stage.run("killall fio; while pidof fio >/dev/null; do sleep 0.1; done")?;
    stage.run("[ ! -e /run/seekway-guest.state ]").map(drop)
}

/// Every request of every job carries that job's tag, and no other job's.
fn each_request_names_its_process(mut stage: Stage) -> Result<String> {
    let started = Instant::now();
    let release = stage.run("uname -r")?;
    // From 5 s after the first dirty page on, the kernel's flusher would write a part of what is
    // still dirty, and its requests are nobody's.
    stage.run("echo 360000 >/proc/sys/vm/dirty_writeback_centisecs")?;
    stage.tag("--match job")?;
    let jobs = (1..).zip(JOBS).map(|(n, (name, command))| (name, command(n * (RANGE_BYTES >> 16))));
    let tags: BTreeMap<u64, u16> = (1..).zip(stage.jobs(jobs.collect())?).collect();
    let said = stage.untag()? + &stage.run("tail -n 3 /tmp/said.* | cut -c -80")?;
    let journal = stage.finish()?;
    let seen = seen(&journal);
    let distinct: std::collections::BTreeSet<&u16> = tags.values().collect();
    expect(distinct.len() == JOBS.len(), || format!("tags are shared: {tags:?}\n{said}"))?;
    for (n, (name, _)) in (1..).zip(JOBS) {
        let of_range = seen.iter().filter(|((range, _), _)| *range == n);
        let (found, requests): (Vec<u16>, Vec<u64>) = of_range.map(|((_, t), r)| (*t, *r)).unzip();
        let right = match name {
            CHILD => !found.iter().any(|t| *t == 0 || (*t != tags[&n] && distinct.contains(t))),
            _ => found == [tags[&n]],
        };
        expect(right && requests.iter().sum::<u64>() >= 16, || {
            format!("{name} has tag {}, its requests {found:?} of {seen:?}\n{said}", tags[&n])
        })?;
    }
    let requests: u64 = seen.values().sum();
    eprintln!(
        "{:6.1} s  {}: {} of {requests} requests, {}",
        started.elapsed().as_secs_f64(),
        release.trim(),
        said.lines().find(|l| l.contains(" tags as ")).unwrap_or_default(),
        tags.iter()
            .map(|(n, tag)| format!("{} {tag}", JOBS[*n as usize - 1].0))
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(journal)
}
