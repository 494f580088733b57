//! Where images hold data, asked by a thread of each disk: a file system that is slow to answer
//! holds up nobody but those who ask about the same disk.

use super::message::{Handle, Message};
use crate::images::Image;
use crate::port::PortId;
use crate::sandbox;
use std::ops::Range;
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, JoinHandle};

/// A port's question about data and holes.
pub struct Ask {
    pub port: PortId,
    pub token: u64,
    pub range: Range<u64>,
    /// Runs in the answer at most.
    pub max: usize,
}

/// The thread of one disk, from the first question on. It has the image's file open.
#[derive(Default)]
pub struct StatusThread(Option<(Sender<Ask>, JoinHandle<()>)>);

impl StatusThread {
    /// Ask; `answers` gets [`Message::Runs`]. When no thread can be had, all is data.
    pub fn ask(&mut self, image: &Image, answers: &Handle, ask: Ask) {
        if self.0.is_none() {
            self.0 = start(image, answers);
        }
        let unasked = match &self.0 {
            Some((asks, _)) => asks.send(ask).err().map(|unsent| unsent.0),
            None => Some(ask),
        };
        if let Some(Ask { port, token, range, .. }) = unasked {
            answers.send(Message::Runs(port, token, vec![(range.end - range.start, false)]));
        }
    }
}

fn start(image: &Image, answers: &Handle) -> Option<(Sender<Ask>, JoinHandle<()>)> {
    let allocation = image.allocation().ok()?;
    let (asks, asked) = mpsc::channel::<Ask>();
    let answers = answers.clone();
    let answer = move || {
        sandbox::enter(sandbox::Kind::Helper);
        while let Ok(Ask { port, token, range, max }) = asked.recv() {
            answers.send(Message::Runs(port, token, allocation.runs(range, max)));
        }
    };
    let thread = Builder::new().name("block-status".into()).spawn(answer).ok()?;
    Some((asks, thread))
}

impl Drop for StatusThread {
    /// The image's file is closed then, and its lock gone. Nothing is asked any more: ports wait
    /// for their answers before they end.
    fn drop(&mut self) {
        if let Some((asks, thread)) = self.0.take() {
            drop(asks);
            let _ = thread.join();
        }
    }
}
