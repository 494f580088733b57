//! What the tracer's text says: who ran where from when to when, and who woke whom.

use std::collections::BTreeMap;
use std::time::Duration;

/// What was recorded. Times are of CLOCK_MONOTONIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// When it began, just before the tracer was turned on.
    pub from: Duration,
    /// When it ended, just after the tracer was turned off.
    pub to: Duration,
    /// In the order of their ends.
    pub runs: Vec<Run>,
    /// In the order of the tracer's lines.
    pub wakes: Vec<Wake>,
}

/// A thread on a processor, without interruption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub tid: i32,
    pub cpu: usize,
    /// The beginning. If the kernel does not report it: when the thread was woken.
    pub from: Duration,
    /// The end: when it left the processor, or the recording ended.
    pub to: Duration,
    /// It would have gone on: somebody else got the processor.
    pub preempted: bool,
}

/// A thread was woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wake {
    /// When its waking began (the event `sched_waking`).
    pub at: Duration,
    /// By this thread; 0 when an interrupt did it, whatever ran then.
    pub by: i32,
    pub woken: i32,
}

/// Parse the file `trace`, which was begun and ended at these times. Switches between
/// threads that are not recorded are not in it.
pub(super) fn parse(text: &str, from: Duration, to: Duration) -> Result<Recording, String> {
    let mut recording = Recording { from, to, runs: Vec::new(), wakes: Vec::new() };
    let mut running: BTreeMap<usize, (i32, Duration)> = BTreeMap::new();
    let mut woken_at: BTreeMap<i32, Duration> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let wrong = || format!("the kernel's tracer says '{line}'");
        let Event { at, cpu, by, what } = Event::parse(line).ok_or_else(wrong)?;
        match what {
            EventKind::Switch { prev, next, preempted } => {
                woken_at.remove(&next);
                let woken = woken_at.remove(&prev);
                let since = match running.insert(cpu, (next, at)) {
                    Some((tid, since)) if tid == prev => Some(since),
                    // Linux 6.18 was seen to leave out the switches from one processor's idle
                    // task; those from other tasks to a recorded thread it reports. So this
                    // thread has run since it was woken.
                    Some((_, since)) => woken.filter(|woken| *woken >= since),
                    // Without a wake-up it has run since the beginning.
                    None => woken.or(Some(from)),
                };
                if let Some(from) = since.filter(|_| prev != 0) {
                    recording.runs.push(Run { tid: prev, cpu, from, to: at, preempted });
                }
            }
            EventKind::Waking { woken } => {
                woken_at.insert(woken, at);
                recording.wakes.push(Wake { at, by, woken });
            }
        }
    }
    let last = running.into_iter().filter(|(_, (tid, _))| *tid != 0);
    let last = last.map(|(cpu, (tid, from))| Run { tid, cpu, from, to, preempted: false });
    recording.runs.extend(last);
    Ok(recording)
}

struct Event {
    at: Duration,
    cpu: usize,
    by: i32,
    what: EventKind,
}

enum EventKind {
    Switch { prev: i32, next: i32, preempted: bool },
    Waking { woken: i32 },
}

impl Event {
    /// `  COMM-TID  [CPU] FLAGS SECONDS.MICROSECONDS: EVENT: FIELDS`, where a name may
    /// have spaces.
    fn parse(line: &str) -> Option<Event> {
        let (head, rest) = line.split_once(": sched_")?;
        let (event, fields) = rest.split_once(": ")?;
        let (task, rest) = head.split_once(" [")?;
        let (_, by) = task.trim_end().rsplit_once('-')?;
        let (cpu, rest) = rest.split_once(']')?;
        let what = match event {
            "switch" => EventKind::Switch {
                prev: number(fields, " prev_pid=")?,
                next: number(fields, " next_pid=")?,
                preempted: value(fields, " prev_state=")?.starts_with('R'),
            },
            "waking" => EventKind::Waking { woken: number(fields, " pid=")? },
            _ => return None,
        };
        let (flags, at) = rest.trim_start().split_once(' ')?;
        // Interrupts off, a switch due, and the context: `.` is a thread's own.
        let by = if flags.chars().nth(2)? == '.' { by.parse().ok()? } else { 0 };
        Some(Event { at: time(at.trim())?, cpu: cpu.parse().ok()?, by, what })
    }
}

fn value<'a>(fields: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = fields.split_once(key)?;
    rest.split(' ').next()
}

fn number(fields: &str, key: &str) -> Option<i32> {
    value(fields, key)?.parse().ok()
}

/// Parses seconds with six decimals, as `12464.337303`.
fn time(text: &str) -> Option<Duration> {
    let (seconds, fraction) = text.split_once('.')?;
    let micros = Some(fraction).filter(|f| f.len() == 6)?.parse().ok()?;
    Some(Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
       CPU 0/TCG-7       [001] d..2. 10.000100: sched_switch: prev_comm=CPU 0/TCG prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
          <idle>-0       [001] d..2. 10.000200: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=CPU 0/TCG next_pid=7 next_prio=120
       CPU 0/TCG-7       [001] d..5. 10.000300: sched_waking: comm=qemu pid=9 prio=120 target_cpu=000
       CPU 0/TCG-7       [001] dNh5. 10.000400: sched_waking: comm=qemu pid=9 prio=120 target_cpu=000
       CPU 0/TCG-7       [001] d..2. 10.012200: sched_switch: prev_comm=CPU 0/TCG prev_pid=7 prev_prio=120 prev_state=R+ ==> next_comm=CPU 1/TCG next_pid=8 next_prio=120
       CPU 1/TCG-8       [001] d..2. 10.013200: sched_switch: prev_comm=CPU 1/TCG prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=CPU 2/TCG next_pid=9 next_prio=120
";

    /// Microseconds after ten seconds.
    fn at(us: u64) -> Duration {
        Duration::from_micros(10_000_000 + us)
    }

    #[test]
    fn runs_and_wakes_are_read() {
        let recording = parse(TRACE, at(50), at(20_000)).expect("it is the kernel's");
        let run =
            |tid, from, to, preempted| Run { tid, cpu: 1, from: at(from), to: at(to), preempted };
        let runs = [
            run(7, 50, 100, false),
            run(7, 200, 12_200, true),
            run(8, 12_200, 13_200, false),
            run(9, 13_200, 20_000, false),
        ];
        assert_eq!(recording.runs, runs);
        let wake = |us, by| Wake { at: at(us), by, woken: 9 };
        assert_eq!(recording.wakes, [wake(300, 7), wake(400, 0)]);
    }

    #[test]
    fn a_run_whose_beginning_is_left_out_begins_when_it_was_woken() {
        let trace = "\
          me-7       [001] d..2. 10.000100: sched_switch: prev_comm=me prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
          <idle>-0       [001] d.h3. 10.002100: sched_waking: comm=me pid=7 prio=120 target_cpu=001
          me-7       [001] d..2. 10.002200: sched_switch: prev_comm=me prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
          me-8       [001] d..2. 10.002300: sched_switch: prev_comm=me prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=other next_pid=9 next_prio=120
          <idle>-0       [001] d.h3. 10.003100: sched_waking: comm=me pid=7 prio=120 target_cpu=001
          me-7       [001] d..2. 10.003200: sched_switch: prev_comm=me prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
          <idle>-0       [001] d.h3. 10.004100: sched_waking: comm=me pid=7 prio=120 target_cpu=002
          me-7       [002] d..2. 10.004200: sched_switch: prev_comm=me prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/2 next_pid=0 next_prio=120
";
        let recording = parse(trace, at(50), at(20_000)).expect("it is the kernel's");
        let run = |cpu, from, to| Run { tid: 7, cpu, from: at(from), to: at(to), preempted: false };
        // Nobody knows since when thread 8 ran. Thread 9 is not recorded: nor is when it ended.
        let runs = [run(1, 50, 100), run(1, 2100, 2200), run(1, 3100, 3200), run(2, 4100, 4200)];
        assert_eq!(recording.runs, runs);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for wrong in ["nonsense", "a-1 [000] d..2. 1.5: sched_switch: prev_pid=1"] {
            assert!(parse(wrong, at(0), at(1)).is_err(), "{wrong}");
        }
        assert_eq!(parse("# tracer: nop\n", at(0), at(1)).map(|r| r.runs.len()), Ok(0));
    }
}
