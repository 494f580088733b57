//! A client's guarantees at a crash point. The client logs what it asks for and what it is told in
//! the disk's log; a crash point replays that part of the log.

use crate::SECTORS;
use crate::client::{Kind, Request, Watch};
use crate::layer::{Disk, Event};
use seekway_testing::disk::Model;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A request, and whether its answer promises that it is durable.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Each once, above 0.
    pub number: u64,
    pub kind: Kind,
    pub sectors: Range<usize>,
    pub durable: bool,
}

/// A mark of the client in the disk's log.
#[derive(Clone, Debug)]
pub enum Mark {
    Submitted(Ask),
    Answered(Ask),
    Failed(Ask),
}

/// Logs a vhost-user client's requests and answers.
pub struct Marker {
    pub disk: Arc<Disk<Mark>>,
    pub write_cache: bool,
    /// A flush or a durable write has failed: no later one may go well.
    pub has_lost: bool,
}

impl Marker {
    fn ask(&self, request: &Request) -> Ask {
        let (number, kind, sectors) = (request.number, request.kind, request.sectors.clone());
        // A discard promises nothing of when its blocks are zero.
        let durable = !self.write_cache && kind != Kind::Discard;
        Ask { number, kind, sectors, durable }
    }

    /// Whether the failure of this request means that writes which were told are lost.
    pub fn loses(&self, request: &Request) -> bool {
        let ask = self.ask(request);
        ask.durable && ask.kind != Kind::Read || ask.kind == Kind::Flush
    }
}

impl Watch for Marker {
    fn submitted(&mut self, request: &Request) {
        self.disk.mark(Mark::Submitted(self.ask(request)));
    }

    fn answered(&mut self, request: &Request) {
        self.disk.mark(Mark::Answered(self.ask(request)));
    }

    fn failed(&mut self, request: &Request) {
        self.has_lost |= self.loses(request);
        self.disk.mark(Mark::Failed(self.ask(request)));
    }
}

/// The client's guarantees.
pub struct Promises {
    pub model: Model,
    /// Counts the marks.
    time: u64,
    /// When each flush in flight was asked for.
    flushes: HashMap<u64, u64>,
    /// When the first flush failed.
    failed: Option<u64>,
}

impl Promises {
    /// Derives the guarantees from the marks among these events.
    ///
    /// # Errors
    /// A flush went well after one had failed.
    pub fn by(events: &[Event<Mark>]) -> Result<Promises, String> {
        let model = Model::new(SECTORS);
        let mut promises = Promises { model, time: 0, flushes: HashMap::new(), failed: None };
        for event in events {
            promises.time += 1;
            match event {
                Event::Mark(Mark::Submitted(ask)) => promises.submitted(ask),
                Event::Mark(Mark::Answered(ask)) => promises.answered(ask)?,
                Event::Mark(Mark::Failed(ask)) => promises.failed(ask),
                _ => {}
            }
        }
        Ok(promises)
    }

    fn submitted(&mut self, ask: &Ask) {
        let (number, sectors) = (ask.number, ask.sectors.clone());
        match ask.kind {
            Kind::Read => {}
            Kind::Flush => drop(self.flushes.insert(number, self.time)),
            Kind::Write => self.model.begin(sectors, number, number, self.time),
            Kind::Discard | Kind::WriteZeroes => self.model.begin(sectors, number, 0, self.time),
        }
    }

    fn failed(&mut self, ask: &Ask) {
        match ask.kind {
            Kind::Read => {}
            Kind::Flush => _ = self.failed.get_or_insert(self.time),
            Kind::Write | Kind::Discard | Kind::WriteZeroes => {
                self.model.end(ask.sectors.clone(), ask.number, self.time, false, false);
            }
        }
    }

    fn answered(&mut self, ask: &Ask) -> Result<(), String> {
        match ask.kind {
            Kind::Read => {}
            Kind::Flush => {
                let begun = self.flushes.remove(&ask.number).expect("a flush in flight");
                if self.failed.is_some_and(|failed| begun > failed) {
                    return Err(format!("flush {} goes well after one has failed", ask.number));
                }
                self.model.flushed(begun);
            }
            Kind::Write | Kind::Discard | Kind::WriteZeroes => {
                self.model.end(ask.sectors.clone(), ask.number, self.time, true, ask.durable);
            }
        }
        Ok(())
    }
}
