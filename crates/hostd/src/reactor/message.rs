//! How other threads reach a reactor.

use crate::port::{Port, PortId};
use std::any::Any;
use std::sync::mpsc;
use vmm_sys_util::eventfd::EventFd;

/// What other threads tell a reactor.
pub enum Message {
    /// Take in a port; it is open when the reply comes.
    OpenPort(Box<dyn Port>, mpsc::SyncSender<PortId>),
    /// Hand something to a port; dropped when the port is gone.
    ToPort(PortId, Box<dyn Any + Send>),
    /// Close a port; nothing happens when it is gone.
    ClosePort(PortId),
}

/// The sending end: cheap to clone. Messages to a reactor that has ended are dropped.
pub struct Handle {
    sender: mpsc::Sender<Message>,
    wake: EventFd,
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        let wake = self.wake.try_clone().expect("an eventfd can be duplicated");
        Handle { sender: self.sender.clone(), wake }
    }
}

impl Handle {
    /// Send a message. False when the reactor has ended.
    pub fn send(&self, message: Message) -> bool {
        // The counter of an eventfd does not overflow in this universe.
        self.sender.send(message).is_ok() && self.wake.write(1).is_ok()
    }

    /// Open a port. `None` when the reactor has ended.
    pub fn open_port(&self, port: Box<dyn Port>) -> Option<PortId> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(Message::OpenPort(port, reply));
        answer.recv().ok()
    }
}
