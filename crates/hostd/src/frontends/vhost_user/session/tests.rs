use super::*;
use crate::images::{Kept, Limits};
use crate::port::DiskId;
use crate::reactor::Handle;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::mpsc::TryRecvError;
use std::thread;
use vhost::vhost_user::VhostUserBackendReqHandlerMut;
use vmm_sys_util::eventfd::EventFd;

fn eventfd() -> Option<File> {
    // SAFETY: the descriptor is handed over.
    Some(unsafe { File::from_raw_fd(EventFd::new(0).unwrap().into_raw_fd()) })
}

/// A session of which queue 0 runs in a reactor that the test plays.
fn running(handle: Handle) -> (Session, SyncSender<u16>) {
    let limits = Limits {
        capacity_bytes: 1 << 20,
        logical_block_bytes: 512,
        physical_block_bytes: 512,
        align_bytes: 512,
        memory_align_bytes: 512,
        read_only: false,
        rotational: false,
    };
    let disk = DiskHandle {
        name: "disk".into(),
        disk: DiskId(0),
        handle,
        limits: Arc::new(move || limits),
        config_changed: Arc::default(),
        image_use: Arc::new(Kept),
        queues: 1,
    };
    let mut session = Session::new(disk);
    let (close, closed) = mpsc::sync_channel(1);
    let port = PortId { index: 0, generation: 1 };
    session.queues[0].running = Some(Running { port, closed });
    (session, close)
}

#[test]
fn messages_of_a_vmm_wait_for_the_reactor_one_by_one() {
    let (handle, mailbox) = Handle::new().unwrap();
    let (mut session, close) = running(handle);
    let vmm = thread::spawn(move || {
        for _ in 0..3 {
            session.set_vring_call(0, eventfd()).unwrap();
            session.set_vring_err(0, eventfd()).unwrap();
        }
    });
    let next = || match mailbox.recv().unwrap() {
        Message::ToPort(_, message) => *message.downcast::<PortMessage>().unwrap(),
        _ => panic!("another message"),
    };
    for _ in 0..3 {
        let PortMessage::Call(Some(_), reply) = next() else { panic!("another message") };
        assert!(matches!(mailbox.try_recv(), Err(TryRecvError::Empty)));
        reply.send(None).unwrap();
        let PortMessage::Err(Some(_), reply) = next() else { panic!("another message") };
        assert!(matches!(mailbox.try_recv(), Err(TryRecvError::Empty)));
        reply.send(()).unwrap();
    }
    close.send(0).unwrap();
    vmm.join().unwrap();
}
