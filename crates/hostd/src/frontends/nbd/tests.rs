//! Tests without a socket: options, requests, replies, memory.

mod memory;

use super::options::{Negotiation, ProtocolError, Security, Step, greeting, option_header};
use super::request::{self, Reply};
use super::request::{Refusal, Request, Verdict, judge};
use super::wire::*;
use super::{Export, Exports};
use crate::images::Limits;
use crate::port::DiskId;
use crate::reactor::tests::{LIMITS, setup};
use crate::reactor::{Handle, spawn};
use std::sync::{Arc, OnceLock};

/// A reactor without disks: exports have one, and nothing here talks to it.
fn reactor() -> Handle {
    static REACTOR: OnceLock<Handle> = OnceLock::new();
    let spawn = || spawn(setup("none")).expect("a reactor starts").0;
    REACTOR.get_or_init(spawn).clone()
}

/// Two disks, "web" and "db".
struct TwoDisks;

impl Exports for TwoDisks {
    fn find(&self, name: &str) -> Option<Export> {
        let disk = DiskId(["web", "db"].iter().position(|n| *n == name)? as u16);
        let (limits, memory) = (Arc::new(|| LIMITS), Arc::default());
        Some(Export { name: name.into(), disk, handle: reactor(), limits, memory })
    }
    fn names(&self) -> Vec<String> {
        vec!["web".into(), "db".into()]
    }
}

fn negotiation(security: Security) -> Negotiation<'static> {
    Negotiation::new(&TwoDisks, security, 3).expect("both flags were offered")
}

/// The replies to an option: kinds and data.
fn replies(mut bytes: &[u8], option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at(20);
        assert_eq!(header[..8], REPLY_MAGIC.to_be_bytes());
        assert_eq!(header[8..12], option.to_be_bytes());
        let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
        let len = u32::from_be_bytes(header[16..20].try_into().unwrap()) as usize;
        all.push((kind, rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    all
}

fn ask(negotiation: &mut Negotiation<'_>, option: u32, data: &[u8]) -> (Step, Vec<(u32, Vec<u8>)>) {
    let mut out = Vec::new();
    let step = negotiation.option(option, data, &mut out).expect("the client stays");
    (step, replies(&out, option))
}

fn go(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn greets_with_fixed_newstyle() {
    assert_eq!(&greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn go_tells_size_flags_and_block_sizes() {
    let mut negotiation = negotiation(Security::Plain);
    assert_eq!(kinds(&ask(&mut negotiation, OPT_STRUCTURED_REPLY, &[]).1), [REP_ACK]);
    let (step, replies) = ask(&mut negotiation, OPT_GO, &go("db", &[INFO_NAME]));
    assert_eq!(kinds(&replies), [REP_INFO, REP_INFO, REP_INFO, REP_ACK]);
    let flags = TF_HAS_FLAGS
        | TF_SEND_FLUSH
        | TF_SEND_FUA
        | TF_SEND_TRIM
        | TF_SEND_WRITE_ZEROES
        | TF_SEND_DF
        | TF_CAN_MULTI_CONN;
    let mut export = vec![0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
    export.extend(flags.to_be_bytes());
    assert_eq!(replies[0].1, export);
    assert_eq!(replies[1].1, [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(replies[2].1, *b"\x00\x01db");
    let Step::Transmit(session) = step else { panic!("GO begins the transmission") };
    assert_eq!(session.export.disk, DiskId(1));
    assert!(session.structured && !session.allocation);
}

#[test]
fn info_and_unknown_names_leave_the_negotiation_open() {
    let mut negotiation = negotiation(Security::Plain);
    let (step, replies) = ask(&mut negotiation, OPT_INFO, &go("web", &[]));
    assert!(matches!(step, Step::Continue));
    assert_eq!(kinds(&replies), [REP_INFO, REP_INFO, REP_ACK]);
    let (step, replies) = ask(&mut negotiation, OPT_GO, &go("nobody", &[]));
    assert!(matches!(step, Step::Continue));
    assert_eq!(kinds(&replies), [REP_ERR_UNKNOWN]);
    let (_, replies) = ask(&mut negotiation, OPT_GO, &go("web", &[])[..6]);
    assert_eq!(kinds(&replies), [REP_ERR_INVALID]);
    let (_, replies) = ask(&mut negotiation, OPT_LIST, &[]);
    assert_eq!(kinds(&replies), [REP_SERVER, REP_SERVER, REP_ACK]);
    assert_eq!(replies[0].1, *b"\x00\x00\x00\x03web");
    assert_eq!(kinds(&ask(&mut negotiation, 77, &[1, 2]).1), [REP_ERR_UNSUP]);
    assert!(matches!(ask(&mut negotiation, OPT_ABORT, &[]).0, Step::Abort));
}

#[test]
fn contexts_belong_to_their_export() {
    let mut n = negotiation(Security::Plain);
    let wanted = meta("web", &["base:allocation"]);
    assert_eq!(kinds(&ask(&mut n, OPT_SET_META_CONTEXT, &wanted).1), [REP_ERR_INVALID]);
    ask(&mut n, OPT_STRUCTURED_REPLY, &[]);
    for all in [&[][..], &["base:"]] {
        let (_, replies) = ask(&mut n, OPT_LIST_META_CONTEXT, &meta("web", all));
        assert_eq!(replies[0].1, *b"\x00\x00\x00\x00base:allocation");
    }
    let unknown = meta("web", &["qemu:dirty-bitmap:b", "base:"]);
    assert_eq!(kinds(&ask(&mut n, OPT_SET_META_CONTEXT, &unknown).1), [REP_ACK]);
    let set = [REP_META_CONTEXT, REP_ACK];
    assert_eq!(kinds(&ask(&mut n, OPT_SET_META_CONTEXT, &wanted).1), set);
    let Step::Transmit(other) = ask(&mut n, OPT_GO, &go("db", &[])).0 else { panic!("GO") };
    assert!(!other.allocation, "the context was agreed on for another export");
    let Step::Transmit(same) = ask(&mut n, OPT_GO, &go("web", &[])).0 else { panic!("GO") };
    assert!(same.allocation);
}

#[test]
fn required_tls_comes_first_and_starts_afresh() {
    let mut n = negotiation(Security::Required);
    for option in [OPT_LIST, OPT_GO, OPT_INFO, OPT_STRUCTURED_REPLY, OPT_SET_META_CONTEXT, 99] {
        assert_eq!(kinds(&ask(&mut n, option, &[]).1), [REP_ERR_TLS_REQD], "{option}");
    }
    let refused = n.option(OPT_EXPORT_NAME, b"web", &mut Vec::new());
    assert!(matches!(refused, Err(ProtocolError::ExportName)));
    assert!(matches!(ask(&mut n, OPT_STARTTLS, &[]).0, Step::StartTls));
    n.secured();
    assert_eq!(kinds(&ask(&mut n, OPT_STARTTLS, &[]).1), [REP_ERR_INVALID]);
    assert!(matches!(ask(&mut n, OPT_GO, &go("web", &[])).0, Step::Transmit(_)));

    let mut plain = negotiation(Security::Plain);
    assert_eq!(kinds(&ask(&mut plain, OPT_STARTTLS, &[]).1), [REP_ERR_POLICY]);
    let mut offered = negotiation(Security::Offered);
    ask(&mut offered, OPT_STRUCTURED_REPLY, &[]);
    ask(&mut offered, OPT_STARTTLS, &[]);
    offered.secured();
    let Step::Transmit(session) = ask(&mut offered, OPT_GO, &go("web", &[])).0 else {
        panic!("GO")
    };
    assert!(!session.structured, "agreed on in the clear");
}

#[test]
fn old_clients_get_size_flags_and_zeroes() {
    for (client_flags, len) in [(0, 134), (1, 134), (2, 10), (3, 10)] {
        let mut n = Negotiation::new(&TwoDisks, Security::Plain, client_flags).unwrap();
        let mut out = Vec::new();
        let step = n.option(OPT_EXPORT_NAME, b"web", &mut out);
        assert!(matches!(step, Ok(Step::Transmit(_))));
        assert_eq!(out.len(), len);
    }
    let mut n = Negotiation::new(&TwoDisks, Security::Plain, 0).unwrap();
    assert!(matches!(n.option(OPT_LIST, &[], &mut Vec::new()), Err(ProtocolError::NotFixed(3))));
    assert!(Negotiation::new(&TwoDisks, Security::Plain, 4).is_err());
}

#[test]
fn endless_negotiations_end() {
    let mut n = negotiation(Security::Plain);
    for _ in 0..OPTIONS_MAX {
        ask(&mut n, OPT_LIST, &[]);
    }
    assert!(matches!(n.option(OPT_LIST, &[], &mut Vec::new()), Err(ProtocolError::TooMany)));
    let mut header = *b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff";
    assert!(matches!(option_header(&header), Err(ProtocolError::TooLong { option: 3, .. })));
    header[12..].copy_from_slice(&[0, 0, 0, 9]);
    assert_eq!(option_header(&header), Ok((3, 9)));
    header[0] = b'X';
    assert!(matches!(option_header(&header), Err(ProtocolError::Magic(_))));
}

fn request(command: u16, flags: u16, offset_bytes: u64, len_bytes: u32) -> Request {
    Request { flags, command, cookie: 7, offset_bytes, len_bytes }
}

#[test]
fn requests_are_judged() {
    let judged = |r: &Request, limits: &Limits| match judge(r, limits, true, true) {
        Verdict::Refuse(refusal) => Err(refusal.error),
        verdict => Ok(verdict),
    };
    let end = LIMITS.capacity_bytes;
    let cases = [
        (request(CMD_READ, 0, 0, 0), NbdError::Inval),
        (request(CMD_READ, 0, end - 1, 2), NbdError::Inval),
        (request(CMD_READ, 0, end, 512), NbdError::Inval),
        (request(CMD_READ, 0, u64::MAX - 511, 1024), NbdError::Inval),
        (request(CMD_READ, 0, 0, REQUEST_LEN_MAX + 512), NbdError::Overflow),
        (request(CMD_READ, CMD_FLAG_REQ_ONE, 0, 512), NbdError::Inval),
        (request(CMD_WRITE, 0, end - 512, 1024), NbdError::NoSpc),
        (request(CMD_WRITE, CMD_FLAG_NO_HOLE, 0, 512), NbdError::Inval),
        (request(CMD_WRITE_ZEROES, 0, end, 512), NbdError::NoSpc),
        (request(CMD_WRITE_ZEROES, 1 << 4, 0, 512), NbdError::Inval),
        (request(CMD_TRIM, 0, end, 512), NbdError::Inval),
        (request(CMD_BLOCK_STATUS, 0, 0, 0), NbdError::Inval),
        (request(CMD_FLUSH, 0, 512, 0), NbdError::Inval),
        (request(5, 0, 0, 512), NbdError::Inval),
        (request(999, 0, 0, 512), NbdError::Inval),
    ];
    for (case, error) in cases {
        assert_eq!(judged(&case, &LIMITS), Err(error), "{case:?}");
    }
    // Any bytes, and those of the sector in which the image ends.
    let odd = Limits { capacity_bytes: 1000, align_bytes: 1, ..LIMITS };
    for (offset, len) in [(0, 1), (1, 1), (511, 2), (999, 25), (0, 1024)] {
        for command in [CMD_READ, CMD_WRITE, CMD_WRITE_ZEROES, CMD_TRIM, CMD_BLOCK_STATUS] {
            let case = request(command, 0, offset, len);
            assert!(judged(&case, &odd).is_ok(), "{case:?}");
        }
    }
    assert_eq!(judged(&request(CMD_READ, 0, 1023, 2), &odd), Err(NbdError::Inval));
    let read_only = Limits { read_only: true, ..LIMITS };
    for command in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
        let case = request(command, 0, 0, 512);
        assert_eq!(judged(&case, &read_only), Err(NbdError::Perm), "{case:?}");
    }
    let long = request(CMD_WRITE, 0, 0, REQUEST_LEN_MAX + 512);
    assert_eq!(judged(&long, &LIMITS), Ok(Verdict::HangUp));
    assert_eq!(judged(&request(CMD_DISC, 9, 9, 9), &LIMITS), Ok(Verdict::Disconnect));
    // Without structured replies there is no DF, without a context no status.
    let frag = request(CMD_READ, CMD_FLAG_DF, 0, 512);
    assert!(matches!(judge(&frag, &LIMITS, true, true), Verdict::Carry(_)));
    assert!(matches!(judge(&frag, &LIMITS, false, false), Verdict::Refuse(_)));
    let status = request(CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE, 0, 512);
    assert_eq!(judge(&status, &LIMITS, true, true), Verdict::BlockStatus { one: true });
    assert!(matches!(judge(&status, &LIMITS, true, false), Verdict::Refuse(_)));
    let zeroes = request(CMD_WRITE_ZEROES, CMD_FLAG_FUA | CMD_FLAG_NO_HOLE, 0, !511);
    let Verdict::Refuse(refusal) = judge(&zeroes, &LIMITS, true, true) else { panic!("too long") };
    assert_eq!(refusal.error, NbdError::NoSpc);
    let zeroes = Request { len_bytes: 1 << 30, ..zeroes };
    let Verdict::Carry(action) = judge(&zeroes, &LIMITS, true, true) else { panic!("it fits") };
    assert!(action.fua && !action.unmap);
}

#[test]
fn replies_have_the_right_bytes() {
    let header = |reply, chunked| {
        let mut out = Vec::new();
        request::header(&mut out, 0x0102_0304_0506_0708, reply, chunked);
        out
    };
    assert_eq!(
        header(Reply::Done, false),
        b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08"
    );
    let data = Reply::Data { offset_bytes: 0x200, len_bytes: 0x1000 };
    assert_eq!(header(data, false), header(Reply::Done, false));
    assert_eq!(
        header(data, true),
        b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x10\x08\0\0\0\0\0\0\x02\0"
    );
    let failed = Reply::Failed(Refusal::new(NbdError::NoSpc, "full"));
    assert_eq!(header(failed, false)[..8], *b"\x67\x44\x66\x98\0\0\0\x1c");
    assert_eq!(header(failed, true)[4..8], [0, 1, 0x80, 1]);
    assert_eq!(header(failed, true)[16..], *b"\0\0\0\x0a\0\0\0\x1c\0\x04full");
    let extents = Reply::Extents { len_bytes: 16 };
    assert_eq!(header(extents, true)[16..], [0, 0, 0, 20, 0, 0, 0, 1]);
}

#[test]
fn extents_never_call_data_zero() {
    const HOLE: u32 = STATE_HOLE | STATE_ZERO;
    let check = |runs: &[(u64, bool)], len, align, one, expected: &[(u32, u32)]| {
        assert_eq!(request::extents(runs, len, align, one), expected, "{runs:?} of {len}");
    };
    check(&[(4096, false), (4096, true)], 8192, 512, false, &[(4096, 0), (4096, HOLE)]);
    check(&[(4096, false), (4096, true)], 8192, 512, true, &[(4096, 0)]);
    check(&[], 8192, 512, false, &[(8192, 0)]);
    check(&[(4096, true), (4096, true)], 8192, 512, false, &[(8192, HOLE)]);
    // More than was asked for.
    check(&[(1 << 40, true)], 8192, 512, false, &[(8192, HOLE)]);
    // Borders within a block.
    check(&[(100, false), (8092, true)], 8192, 4096, false, &[(4096, 0), (4096, HOLE)]);
    check(&[(5000, true), (3192, false)], 8192, 4096, false, &[(4096, HOLE), (4096, 0)]);
    check(&[(100, true), (8092, false)], 8192, 4096, false, &[(8192, 0)]);
}
