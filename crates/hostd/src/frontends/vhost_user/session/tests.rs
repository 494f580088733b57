use super::super::account::{PEER_MAX, PEER_RESERVED, TOTAL_QUARTERS};
use super::super::memory::GuestMemory;
use super::super::memory::memory_file;
use super::*;
use crate::images::Kept;
use crate::limits_table::{number, says};
use crate::port::DiskId;
use crate::reactor::Handle;
use crate::reactor::tests::LIMITS;
use crate::waiting::while_waiting;
use std::cell::{Cell, RefCell};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::rc::Rc;
use std::sync::mpsc::TryRecvError;
use std::thread;
use vhost::vhost_user::VhostUserBackendReqHandlerMut;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vmm_sys_util::eventfd::EventFd;

fn eventfd() -> Option<File> {
    // SAFETY: the descriptor is handed over.
    Some(unsafe { File::from_raw_fd(EventFd::new(0).unwrap().into_raw_fd()) })
}

const USER: u64 = 0x7f00_0000_0000;

/// A session of which queue 0 runs in a reactor that the test plays.
fn running(handle: Handle) -> (Session, SyncSender<Closed>) {
    let disk = DiskHandle {
        name: "disk".into(),
        disk: DiskId(0),
        handle,
        limits: Arc::new(|| LIMITS),
        config_changed: Arc::default(),
        image_use: Arc::new(Kept),
        queues: 1,
        serial: "disk".into(),
        guest_memory: None,
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
    }
    close.send(Closed { base: 0, _port: Box::new(()) }).unwrap();
    vmm.join().unwrap();
}

/// The reactor's part of what the test is about: requests keep the memory of their time.
#[test]
fn memory_that_requests_use_is_exchanged_a_few_times_and_then_waited_for() {
    let (handle, mailbox) = Handle::new().unwrap();
    let (mut session, close) = running(handle);
    session.queues[0].size = Some(16);
    session.queues[0].addresses = Some([USER, USER + 0x1000, USER + 0x2000]);
    let (used, waits) = (Rc::<RefCell<Vec<Arc<GuestMemory>>>>::default(), Rc::new(Cell::new(0)));
    let reactor = {
        let (used, waits) = (used.clone(), waits.clone());
        move || match mailbox.try_recv() {
            Ok(Message::ToPort(_, message)) => {
                let message = *message.downcast::<PortMessage>().unwrap();
                let PortMessage::Memory(_, memory, reply) = message else { panic!("another") };
                used.borrow_mut().push(memory);
                reply.send(()).unwrap();
            }
            Ok(_) => panic!("another message"),
            // The oldest requests are done.
            Err(_) => {
                waits.set(waits.get() + 1);
                used.borrow_mut().remove(0);
            }
        }
    };
    while_waiting(Some(Rc::new(reactor)));
    let region = VhostUserMemoryRegion::new(0, 1 << 20, USER, 0);
    for _ in 0..10 {
        session.set_mem_table(&[region], vec![memory_file(1 << 20)], None).unwrap();
        assert!(used.borrow().len() <= RETIRED_MAX + 1);
        assert_eq!(session.account.held(Resource::Mappings), used.borrow().len());
    }
    assert_eq!(waits.get(), 10 - RETIRED_MAX - 1);
    while_waiting(None);
    close.send(Closed { base: 0, _port: Box::new(()) }).unwrap();
}

#[test]
fn more_memory_than_the_disk_allows_is_refused() {
    let (handle, _mailbox) = Handle::new().unwrap();
    let (session, close) = running(handle);
    close.send(Closed { base: 0, _port: Box::new(()) }).unwrap();
    let disk = DiskHandle { guest_memory: Some(2 << 20), ..session.disk.clone() };
    let mut session = Session::new(disk);
    let region = |guest| VhostUserMemoryRegion::new(guest, 1 << 20, USER + guest, 0);
    let mut set = |regions: &[VhostUserMemoryRegion]| {
        let files = regions.iter().map(|_| memory_file(1 << 20)).collect();
        session.set_mem_table(regions, files, None)
    };
    let refused = set(&[region(0), region(1 << 20), region(2 << 20)]).err().unwrap();
    assert!(refused.to_string().contains("guest_memory="), "{refused}");
    set(&[region(0), region(1 << 20)]).unwrap();
}

/// The connection's thread does the work that ports leave.
#[test]
fn calls_and_broken_queues_that_ports_leave_reach_the_vmm() {
    let (handle, _mailbox) = Handle::new().unwrap();
    let (mut session, close) = running(handle);
    let events: Vec<EventFd> = (0..2).map(|_| EventFd::new(libc::EFD_NONBLOCK).unwrap()).collect();
    let bells: Vec<Doorbell> = events
        .iter()
        // SAFETY: the copy's descriptor is handed over.
        .map(|e| unsafe { File::from_raw_fd(e.try_clone().unwrap().into_raw_fd()) })
        .map(|file| Doorbell::new(file).unwrap())
        .collect();
    [session.queues[0].call, session.queues[0].err] =
        bells.into_iter().map(Some).collect::<Vec<_>>().try_into().unwrap();
    let rung = || [events[0].read().unwrap_or(0), events[1].read().unwrap_or(0)];
    session.catch_up();
    assert_eq!(rung(), [0, 0]);
    session.notes().leave(0, CALL);
    session.catch_up();
    assert_eq!(rung(), [1, 0]);
    session.rests_until = None;
    session.notes().leave(0, BROKEN);
    session.catch_up();
    assert_eq!(rung(), [0, 1]);
    // While it rests, calls wait.
    let rest = Duration::from_secs(1000);
    session.rests_until = Some(Instant::now() + rest);
    session.notes().leave(0, CALL);
    assert!(session.catch_up().is_some_and(|left| left <= rest));
    assert_eq!(rung(), [0, 0]);
    session.rests_until = None;
    session.catch_up();
    assert_eq!(rung(), [1, 0]);
    close.send(Closed { base: 0, _port: Box::new(()) }).unwrap();
}

#[test]
fn the_eventfds_of_a_queue_are_counted_once() {
    let (handle, _mailbox) = Handle::new().unwrap();
    let (mut session, close) = running(handle);
    close.send(Closed { base: 0, _port: Box::new(()) }).unwrap();
    session.stop(0);
    for _ in 0..3 {
        session.set_vring_kick(0, eventfd()).unwrap();
        session.set_vring_call(0, eventfd()).unwrap();
    }
    assert_eq!(session.account.held(Resource::Descriptors), QUEUE_DESCRIPTORS);
    session.queues.fill_with(Queue::default);
    assert_eq!(session.account.held(Resource::Descriptors), 0);
    let all = usize::from(super::super::QUEUES_MAX);
    assert!(all * QUEUE_DESCRIPTORS <= PEER_MAX[Resource::Descriptors as usize]);
    let mappings = all * QUEUE_MAPPINGS + super::super::memory::REGIONS_MAX;
    assert!(mappings <= PEER_MAX[Resource::Mappings as usize]);
}

#[test]
fn the_table_of_limits_is_that_of_the_code() {
    says("descriptors of a VMM", &number(PEER_MAX[Resource::Descriptors as usize]));
    says("mappings of a VMM", &number(PEER_MAX[Resource::Mappings as usize]));
    let own = "descriptors, and mappings, that a VMM has whatever others hold";
    says(own, &format!("{PEER_RESERVED} each"));
    let all = "descriptors, and mappings, of all VMMs together";
    says(all, &format!("{TOTAL_QUARTERS} quarters of"));
    says("regions of memory", &number(super::super::memory::REGIONS_MAX));
    says(
        "memory of a guest that a VMM has mapped",
        "`guest_memory=` of the disk, or the host's memory",
    );
    says("the log of a migration", &format!("{} MiB", super::super::dirty_log::BYTES_MAX >> 20));
    says("earlier memory that requests still use", &number(RETIRED_MAX));
    says("virtqueues", &number(super::super::QUEUES_MAX.into()));
    let lines = crate::log::PEER_LINES_MAX;
    says("lines in the log about a disk's VMM", &format!("{lines} a minute"));
    says("part of a reactor's time for slow calls", &format!("1 in {}", crate::toll::SHARE));
}
