use super::super::memory::memory_file;
use super::*;
use std::io::Read;
use vmm_sys_util::eventfd::EventFd;

const SET_LOG_BASE: u32 = 6;
const SET_VRING_KICK: u32 = 12;

fn message(request: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, FLAGS, body.len() as u32].map(u32::to_ne_bytes).concat();
    [&header[..], body].concat()
}

/// The daemon's side of messages that a VMM sends one after the other, each with its own
/// descriptors.
fn carried(sent: &[(Vec<u8>, &[RawFd])]) -> (UnixStream, Receiver<Channel>) {
    let (vmm, outside) = UnixStream::pair().unwrap();
    let (inside, daemon) = UnixStream::pair().unwrap();
    for (bytes, fds) in sent {
        vmm.send_with_fds(&[&bytes[..]], fds).unwrap();
    }
    drop(vmm);
    let (channels, opened) = mpsc::channel();
    hand_to_daemon(&outside, &inside, &channels);
    (daemon, opened)
}

#[test]
fn each_message_keeps_its_own_descriptors() {
    let (event, memory) = (EventFd::new(0).unwrap(), memory_file(4096));
    let fds = [[event.as_raw_fd()], [memory.as_raw_fd()]];
    let (daemon, _) = carried(&[
        (message(1, b""), &[]),
        (message(SET_VRING_KICK, &[0; 8]), &fds[0]),
        (message(3, b""), &[]),
        (message(SET_LOG_BASE, &[0; 16]), &fds[1]),
    ]);
    let counts = [0, 1, 0, 1];
    for (request, files) in [1, SET_VRING_KICK, 3, SET_LOG_BASE].into_iter().zip(counts) {
        let got = Message::receive(&daemon).unwrap().unwrap();
        assert_eq!(got.bytes[..4], u32::to_ne_bytes(request));
        assert_eq!(got.files.len(), files, "request {request}");
    }
    assert!(Message::receive(&daemon).unwrap().is_none(), "the VMM has hung up");
}

#[test]
fn what_could_keep_the_daemon_waiting_does_not_reach_it() {
    let (event, memory) = (EventFd::new(0).unwrap(), memory_file(4096));
    let (socket, _other) = UnixStream::pair().unwrap();
    let proc = File::open("/proc/self/status").unwrap();
    let null = File::open("/dev/null").unwrap(); // often on a tmpfs, and no file
    let kick = message(SET_VRING_KICK, &[0; 8]);
    let log = message(SET_LOG_BASE, &[0; 16]);
    let channel = message(SET_BACKEND_REQ_FD, b"");
    for (sent, fd, says) in [
        (&kick, socket.as_raw_fd(), "is not an eventfd"),
        (&kick, memory.as_raw_fd(), "is not an eventfd"),
        (&log, event.as_raw_fd(), "neither on tmpfs nor on hugetlbfs"),
        (&log, proc.as_raw_fd(), "neither on tmpfs nor on hugetlbfs"),
        (&log, null.as_raw_fd(), ""),
        (&channel, proc.as_raw_fd(), "is not a socket"),
    ] {
        let (daemon, _) = carried(&[(sent.clone(), &[fd])]);
        let error = peek_channel(&daemon).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert!(Message::receive(&daemon).unwrap().is_none(), "that was all");
    }
}

#[test]
fn descriptors_in_the_middle_and_long_messages_are_refused() {
    let event = EventFd::new(0).unwrap();
    let kick = message(SET_VRING_KICK, &[0; 8]);
    let long = message(SET_VRING_KICK, &[0; BODY_BYTES_MAX + 1]);
    let fds = [event.as_raw_fd()];
    for (sent, says) in [
        (&[(kick[..12].to_vec(), &[][..]), (kick[12..].to_vec(), &fds[..])][..], "middle"),
        (&[(long, &[])], "4096 bytes"),
        (&[(message(REFUSED, b"well"), &[])], "a gate's alone"),
    ] {
        let (daemon, _) = carried(sent);
        let error = peek_channel(&daemon).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

/// Descriptors may wait in the VMM's end of its channel, and would be closed with it.
#[test]
fn the_daemon_gets_no_socket_of_a_vmms() {
    let (theirs, mut heard) = UnixStream::pair().unwrap();
    let fds = [theirs.as_raw_fd()];
    let (daemon, opened) = carried(&[(message(SET_BACKEND_REQ_FD, b""), &fds)]);
    let channel = peek_channel(&daemon).unwrap().unwrap();
    let (got, sent) = (channel.try_clone().unwrap().into(), theirs.try_clone().unwrap().into());
    assert_ne!(target(&got).unwrap(), target(&sent).unwrap());
    let change = message(2, b"");
    (&channel).write_all(&change).unwrap();
    drop((channel, got, daemon, theirs, sent));
    tell_vmm(&opened);
    drop(opened);
    let mut told = Vec::new();
    heard.read_to_end(&mut told).unwrap();
    assert_eq!(told, change);
}

/// Descriptors count for the daemon's user until the daemon takes them.
#[test]
fn few_descriptors_wait_for_the_daemon() {
    let (vmm, outside) = UnixStream::pair().unwrap();
    let (inside, daemon) = UnixStream::pair().unwrap();
    hold_little(&inside).unwrap();
    // A full socket then ends the work below instead of stopping it.
    inside.set_nonblocking(true).unwrap();
    let event = EventFd::new(0).unwrap();
    vmm.set_nonblocking(true).unwrap();
    let kick = message(SET_VRING_KICK, &[0; 8]);
    while vmm.send_with_fds(&[&kick[..]], &[event.as_raw_fd(); 32]).is_ok() {}
    hand_to_daemon(&outside, &inside, &mpsc::channel().0);
    drop(inside);
    let waiting = std::iter::from_fn(|| Message::receive(&daemon).unwrap()).count();
    assert!((1..16).contains(&waiting), "{waiting} messages");
}
