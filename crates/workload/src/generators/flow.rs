//! Applications as tables: each thread repeats a list of steps, its flow, and one
//! interpreter makes the system calls of all.

use crate::generators::filebench::{FileSet, Limit};
use crate::guest::app::{App, AppSpec, FileSpec, HandleSpec, Op};
use crate::rng::{Pace, Rng, Zipf, split};
use seekway_core::units::{Instant, Nanos};

/// One step of a flow. A step makes one system call, several, or none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Opens the set's next existing file. If it has none, steps that need an open file
    /// make no call.
    Open,
    /// Creates and opens the set's next absent file.
    Create,
    /// Opens the file that [`Step::Choose`] chose.
    OpenChosen,
    /// Closes the open file.
    Close,
    /// Reads the open file to its end, `call_bytes` at a time.
    ReadWhole,
    /// Writes the open file as a whole, `call_bytes` at a time.
    WriteWhole,
    /// Writes fewer than `append_bytes` behind the end of the open file.
    Append,
    /// Waits until the open file is on the disk.
    Fsync,
    /// Removes the set's next existing file, unless it is open.
    Delete,
    /// Writes fewer than `append_bytes` to the log that all threads share.
    AppendLog,
    /// Reads a block of the region with this number.
    Read(usize),
    /// Writes a block of the region with this number.
    Write(usize),
    /// Reads a block of the region with a chance of `read` %, else writes one: with a chance of
    /// `random` % any one, else the one behind the last.
    Access { region: usize, read: u64, random: u64 },
    /// Waits until this region's file is on the disk.
    Sync(usize),
    /// Draws a record by popularity: goes to its place, and opens its file if another is open.
    Find,
    /// Goes back to the beginning at the end of a stream, and opens the next of this number of
    /// files if it is not zero.
    Rewind(u32),
    /// Reads a block of the stream and stays there.
    ReadHere,
    /// Reads a block of the stream and goes on behind it.
    ReadOn,
    /// Writes a block of the stream and goes on behind it.
    WriteOn,
    /// Waits until the pace that all threads share allows a request.
    Pace,
    /// Computes; no call if zero.
    Compute(Nanos),
    /// Sleeps for this long, at most until the load's end.
    Sleep(Nanos),
    /// Chooses a file of the set by popularity, and forgets all tosses.
    Choose,
    /// Sets this flag with this chance, in percent.
    Toss(u8, u64),
    /// Sets this flag for each n-th block of the region.
    Every(u8, usize, u64),
    /// Skips this number of steps unless the flag is set.
    Unless(u8, usize),
    /// Takes a piece of the application's work; the thread is done if none is left.
    Take,
    /// Posts a request to all gates; waits first while a gate is too far behind.
    Post,
    /// Passes the thread's gate, and wakes the threads that wait for it in [`Step::Post`].
    Arrive,
    /// Waits at the thread's gate until enough requests have been posted.
    Await,
}

/// Chooses among many things by popularity. Popular ones lie anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Popular {
    zipf: Zipf,
    seed: u64,
    count: u64,
}

impl Popular {
    /// Zipf's law with this exponent over `count` things; `seed` spreads the ranks.
    pub(super) fn new(count: u64, exponent: f64, seed: u64) -> Popular {
        Popular { zipf: Zipf::new(count, exponent), seed, count }
    }
    fn draw(&self, rng: &mut Rng) -> u64 {
        split(self.seed, self.zipf.sample(rng)) % self.count
    }
}

/// In which order a region's blocks come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Random,
    Popular(Popular),
    /// One after the other, for all threads together; this one is next.
    Next(u64),
}

/// Blocks of a file, or of several equal ones that take turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// Handle of the first thread, and from each thread's to the next one's.
    pub handle: (u32, u32),
    /// Files with consecutive handles, at least one.
    pub files: u32,
    /// The file that is next.
    pub turn: u32,
    /// Bytes of a block.
    pub block: u64,
    /// Blocks of a file.
    pub blocks: u64,
    pub order: Order,
}

impl Region {
    /// A region of one file.
    pub(super) fn new(handle: (u32, u32), block: u64, blocks: u64, order: Order) -> Region {
        Region { handle, files: 1, turn: 0, block, blocks, order }
    }

    fn handle(&self, thread: usize) -> u32 {
        self.handle.0 + self.handle.1 * thread as u32
    }

    /// Handle, offset and length of the next call.
    fn draw(&mut self, thread: usize, rng: &mut Rng) -> (u32, u64, u32) {
        let handle = self.handle(thread) + self.turn;
        self.turn = (self.turn + 1) % self.files;
        let block = match &mut self.order {
            Order::Random => rng.below(self.blocks),
            Order::Popular(popular) => popular.draw(rng),
            Order::Next(next) => {
                let block = *next;
                *next = (block + 1) % self.blocks;
                block
            }
        };
        (handle, block * self.block, self.block as u32)
    }
}

/// Semaphore at which a thread waits until others have made a number of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    /// Requests that the thread waits for each time.
    pub posts: u64,
    /// Number of posts that may still come before the thread arrives.
    pub ahead: u64,
    /// Times that the thread has arrived.
    pub rounds: u64,
}

/// Where a thread is in its flow.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Thread {
    flow: usize,
    step: usize,
    /// The set's file that is open.
    open: Option<u32>,
    /// Bytes of the present step that are done.
    done: u64,
    /// The set's file that the last call removed.
    removing: Option<u32>,
    /// The set's file that was chosen.
    chosen: u32,
    /// Tosses that came true, one bit each.
    flags: u8,
    /// The stream: its file and the place in it.
    file: u32,
    offset: u64,
}

/// A thread that finds nothing to do in its whole flow looks again after this.
const NOTHING_TO_DO: Nanos = Nanos::from_millis(1);
/// Room of the log of [`Step::AppendLog`]; it starts over when that is full.
pub(super) const LOG_BYTES: u64 = 256 << 20;

/// An application by its flows. The fields that no step of a flow uses may have any value.
#[derive(Clone, Default, Debug)]
pub(super) struct Flows {
    pub spec: AppSpec,
    pub flows: Vec<Vec<Step>>,
    pub threads: Vec<Thread>,
    /// One for each thread, or one for all.
    pub rngs: Vec<Rng>,
    pub limit: Limit,
    pub set: FileSet,
    /// As [`Region::handle`], of the open file and of the stream.
    pub handle: (u32, u32),
    pub call_bytes: u64,
    pub append_bytes: u64,
    pub log_end: u64,
    pub regions: Vec<Region>,
    pub popular: Option<Popular>,
    /// Bytes of a stream's file and of a block of it.
    pub stream: (u64, u64),
    pub pace: Option<Pace>,
    /// Pieces of work that nobody has taken yet.
    pub left: u64,
    /// One for each of the last threads.
    pub gates: Vec<Gate>,
    pub posts: u64,
}

impl Flows {
    /// An application whose `n`-th thread repeats `flows[flow_of(n)]`.
    pub(super) fn new(
        name: &str,
        (files, handles): (Vec<FileSpec>, Vec<HandleSpec>),
        flows: Vec<Vec<Step>>,
        flow_of: Vec<usize>,
        rngs: Vec<Rng>,
    ) -> Flows {
        let thread = |flow| Thread { flow, ..Thread::default() };
        Flows {
            spec: AppSpec { name: name.into(), threads: flow_of.len() as u32, files, handles },
            flows,
            threads: flow_of.into_iter().map(thread).collect(),
            rngs,
            handle: (0, 1),
            ..Flows::default()
        }
    }

    /// The call that the thread's present step makes next; `None` if the step is done,
    /// or has nothing to do. The thread is then at its next step.
    fn advance(&mut self, now: Instant, n: usize) -> Option<Op> {
        let t = &self.threads[n];
        let (step, count) = (self.flows[t.flow][t.step], self.flows[t.flow].len());
        let (op, steps) = match step {
            Step::ReadWhole | Step::WriteWhole => {
                let op = self.whole(n, matches!(step, Step::WriteWhole));
                (op, usize::from(op.is_none()))
            }
            Step::Unless(flag, steps) => {
                (None, if t.flags & (1 << flag) == 0 { 1 + steps } else { 1 })
            }
            Step::Post | Step::Arrive | Step::Await => self.meet(n, step),
            Step::Find | Step::Rewind(_) | Step::ReadHere | Step::ReadOn | Step::WriteOn => {
                (self.stream(n, step), 1)
            }
            Step::Open
            | Step::Create
            | Step::OpenChosen
            | Step::Close
            | Step::Append
            | Step::Fsync
            | Step::Delete
            | Step::AppendLog => (self.file(n, step), 1),
            _ => (self.call(now, n, step), 1),
        };
        if steps > 0 {
            let t = &mut self.threads[n];
            t.step = (t.step + steps) % count;
            t.done = 0;
        }
        op
    }

    /// The call of a step on a region, on the clock, or on what the thread goes by.
    fn call(&mut self, now: Instant, n: usize, step: Step) -> Option<Op> {
        let t = &mut self.threads[n];
        let rng = rng_of(&mut self.rngs, n);
        match step {
            Step::Read(region) | Step::Write(region) => {
                let (handle, offset, len) = self.regions[region].draw(n, rng);
                Some(Op::transfer(matches!(step, Step::Write(_)), handle, offset, len))
            }
            Step::Access { region, read, random } => {
                let region = &mut self.regions[region];
                let write = !rng.percent(read);
                if rng.percent(random) {
                    region.order = Order::Next(rng.below(region.blocks));
                }
                let (handle, offset, len) = region.draw(n, rng);
                Some(Op::transfer(write, handle, offset, len))
            }
            Step::Sync(region) => Some(Op::Fsync { handle: self.regions[region].handle(n) }),
            Step::Pace => {
                let wait = self.pace.as_mut()?.wait(now, rng);
                (wait > Nanos::ZERO).then(|| self.limit.sleep(now, wait))
            }
            Step::Compute(span) => (span > Nanos::ZERO).then_some(Op::Compute(span)),
            Step::Sleep(span) => Some(self.limit.sleep(now, span)),
            Step::Choose => {
                t.flags = 0;
                t.chosen = self.popular?.draw(rng) as u32;
                None
            }
            Step::Toss(flag, percent) => {
                t.flags |= u8::from(rng.percent(percent)) << flag;
                None
            }
            Step::Every(flag, region, every) => {
                let Order::Next(next) = self.regions[region].order else { return None };
                t.flags = u8::from((next + 1).is_multiple_of(every)) << flag;
                None
            }
            Step::Take => match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    None
                }
                None => Some(Op::Done),
            },
            _ => None,
        }
    }

    /// The call of a step on a file of the set, or on the log beside it.
    fn file(&mut self, n: usize, step: Step) -> Option<Op> {
        let handle = self.handle(n);
        let t = &mut self.threads[n];
        let rng = rng_of(&mut self.rngs, n);
        match step {
            Step::Open | Step::Create | Step::OpenChosen => {
                t.open = match step {
                    Step::Open => self.set.open(),
                    Step::Create => self.set.create(),
                    _ => Some(self.set.open_entry(t.chosen)),
                };
                t.open.map(|entry| Op::Open { handle, file: self.set.file(entry) })
            }
            Step::Close => {
                t.open.take().into_iter().for_each(|entry| self.set.close(entry));
                None
            }
            Step::Append => {
                let entry = t.open?;
                let offset = self.set.bytes(entry);
                let len = self.set.write(entry, offset, rng.below(self.append_bytes));
                (len > 0).then_some(Op::Write { handle, offset, len: len as u32 })
            }
            Step::Fsync => t.open.map(|_| Op::Fsync { handle }),
            Step::Delete => {
                t.removing = self.set.remove();
                t.removing.map(|entry| Op::Delete { file: self.set.file(entry) })
            }
            Step::AppendLog => {
                let len = rng.below(self.append_bytes).min(LOG_BYTES);
                if self.log_end + len > LOG_BYTES {
                    self.log_end = 0;
                }
                let (handle, offset) = ((self.threads.len() + n) as u32, self.log_end);
                self.log_end += len;
                (len > 0).then_some(Op::Write { handle, offset, len: len as u32 })
            }
            _ => None,
        }
    }

    /// The next call of a step on the whole open file; `None` at its end, or without one.
    fn whole(&mut self, n: usize, writes: bool) -> Option<Op> {
        let (handle, entry) = (self.handle(n), self.threads[n].open?);
        let offset = self.threads[n].done;
        let end = if writes { self.set.whole(entry) } else { self.set.bytes(entry) };
        let len = self.call_bytes.min(end.saturating_sub(offset));
        if len == 0 {
            return None;
        }
        self.threads[n].done += len;
        if writes {
            self.set.write(entry, offset, len);
        }
        Some(Op::transfer(writes, handle, offset, len as u32))
    }

    /// The call of a step on the thread's stream, if it makes one.
    fn stream(&mut self, n: usize, step: Step) -> Option<Op> {
        let handle = self.handle(n);
        let t = &mut self.threads[n];
        let (bytes, block) = self.stream;
        match step {
            Step::Find => {
                let per_file = bytes / block;
                let at = self.popular?.draw(rng_of(&mut self.rngs, n));
                t.offset = at % per_file * block;
                let file = (at / per_file) as u32;
                let other = std::mem::replace(&mut t.file, file) != file;
                return other.then_some(Op::Open { handle, file });
            }
            Step::Rewind(files) if t.offset >= bytes => {
                t.offset = 0;
                t.file = (t.file + 1).checked_rem(files)?;
                return Some(Op::Open { handle, file: t.file });
            }
            Step::Rewind(_) => return None,
            _ => {}
        }
        let (offset, len) = (t.offset, block.min(bytes - t.offset));
        if !matches!(step, Step::ReadHere) {
            t.offset += len;
        }
        // What is written is the handle behind the one that is read.
        let writes = matches!(step, Step::WriteOn);
        Some(Op::transfer(writes, handle + u32::from(writes), offset, len as u32))
    }

    /// The call of a step at the gates, and by how many steps the thread goes on.
    fn meet(&mut self, n: usize, step: Step) -> (Option<Op>, usize) {
        if matches!(step, Step::Post) {
            if self.gates.iter().any(|g| self.posts >= g.ahead + g.posts * g.rounds) {
                return (Some(Op::Park), 0);
            }
            self.posts += 1;
            let wakes = self.gates.iter().any(|g| self.posts == g.posts * g.rounds);
            return (wakes.then_some(Op::Wake), 1);
        }
        let first = self.threads.len() - self.gates.len();
        let gate = &mut self.gates[n - first];
        if matches!(step, Step::Arrive) {
            gate.rounds += 1;
            return (Some(Op::Wake), 1);
        }
        let waits = self.posts < gate.posts * gate.rounds;
        (waits.then_some(Op::Park), usize::from(!waits))
    }

    /// The handle of a thread's open file or stream.
    fn handle(&self, n: usize) -> u32 {
        self.handle.0 + self.handle.1 * n as u32
    }

    /// The thread's stream begins in this file, at this byte.
    pub(super) fn begin_at(&mut self, thread: usize, file: u32, offset: u64) {
        let thread = &mut self.threads[thread];
        (thread.file, thread.offset) = (file, offset);
    }
}

/// The stream of random numbers of a thread.
fn rng_of(rngs: &mut [Rng], n: usize) -> &mut Rng {
    let count = rngs.len();
    &mut rngs[n % count]
}

impl App for Flows {
    fn spec(&self) -> &AppSpec {
        &self.spec
    }

    fn next(&mut self, now: Instant, thread: u32) -> Op {
        let n = thread as usize;
        if let Some(entry) = self.threads[n].removing.take() {
            self.set.removed(entry);
        }
        if self.limit.is_over(now) {
            return Op::Done;
        }
        for _ in 0..=self.flows[self.threads[n].flow].len() {
            if let Some(op) = self.advance(now, n) {
                self.limit.count(&op);
                return op;
            }
        }
        self.limit.sleep(now, NOTHING_TO_DO)
    }
}
