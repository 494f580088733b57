//! What a client was promised by a crash point. The client logs what it asks for and what it is
//! told in the disk's log; a crash point replays that part of the log.

use crate::SECTORS;
use crate::client::{Kind, Request, Watch};
use crate::layer::{Disk, Event};
use crate::model::{Content, Model};
use std::collections::BTreeSet;
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

/// What the client does, in the disk's log.
#[derive(Clone, Debug)]
pub enum Mark {
    Submitted(Ask),
    Answered(Ask),
}

/// Logs what a vhost-user client does.
pub struct Marker {
    pub disk: Arc<Disk<Mark>>,
    pub write_cache: bool,
}

impl Marker {
    fn ask(&self, request: &Request) -> Ask {
        let (number, kind, sectors) = (request.number, request.kind, request.sectors.clone());
        // A discard promises nothing of when its blocks are zero.
        let durable = !self.write_cache && kind != Kind::Discard;
        Ask { number, kind, sectors, durable }
    }
}

impl Watch for Marker {
    fn submitted(&mut self, request: &Request) {
        self.disk.mark(Mark::Submitted(self.ask(request)));
    }

    fn answered(&mut self, request: &Request) {
        self.disk.mark(Mark::Answered(self.ask(request)));
    }
}

/// What the client had been promised.
pub struct Promises {
    pub model: Model,
    /// Acknowledged, and not yet durable.
    acknowledged: BTreeSet<u64>,
    /// What each flush in flight makes durable.
    flushes: Vec<(u64, BTreeSet<u64>)>,
}

impl Promises {
    /// What the marks among these events promise.
    pub fn by(events: &[Event<Mark>]) -> Promises {
        let (acknowledged, flushes) = (BTreeSet::new(), Vec::new());
        let mut promises = Promises { model: Model::new(SECTORS), acknowledged, flushes };
        for event in events {
            match event {
                Event::Mark(Mark::Submitted(ask)) => promises.submitted(ask),
                Event::Mark(Mark::Answered(ask)) => promises.answered(ask),
                _ => {}
            }
        }
        promises
    }

    fn submitted(&mut self, ask: &Ask) {
        let (number, sectors) = (ask.number, ask.sectors.clone());
        match ask.kind {
            Kind::Read => {}
            Kind::Flush => self.flushes.push((number, self.acknowledged.clone())),
            Kind::Write => self.model.submit(number, sectors, Content::Data),
            Kind::Discard | Kind::WriteZeroes => {
                self.model.submit(number, sectors, Content::Zeroes);
            }
        }
    }

    fn answered(&mut self, ask: &Ask) {
        match ask.kind {
            Kind::Read => {}
            Kind::Flush => {
                let place = self.flushes.iter().position(|(n, _)| *n == ask.number);
                let (_, durable) = self.flushes.swap_remove(place.expect("a flush in flight"));
                for write in durable.intersection(&self.acknowledged) {
                    self.model.settle(*write);
                }
                self.acknowledged.retain(|write| !durable.contains(write));
            }
            Kind::Write | Kind::Discard | Kind::WriteZeroes => {
                self.model.acknowledge(ask.number);
                if ask.durable {
                    self.model.settle(ask.number);
                } else {
                    self.acknowledged.insert(ask.number);
                }
            }
        }
    }
}
