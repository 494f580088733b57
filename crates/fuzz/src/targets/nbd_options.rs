//! The negotiation of NBD. For any input: replies are well formed, each option has one final reply,
//! nothing is served before TLS where TLS is required, and agreements in the clear do not count
//! behind it.

use super::input::Input;
use super::served;
use crate::Target;
use seekway_hostd::frontends::nbd::fuzzed::{
    INFO_EXPORT, INFO_NAME, NAME_LEN_MAX, Negotiation, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO,
    OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY,
    OPTION_LEN_MAX, OPTIONS_MAX, REP_ACK, REP_ERR_TLS_REQD, REP_INFO, REP_META_CONTEXT, REP_SERVER,
    REPLY_MAGIC, Security, Step, option_header,
};
use seekway_hostd::frontends::nbd::{Export, Exports};
use seekway_hostd::images::Limits;
use seekway_hostd::port::DiskId;
use seekway_hostd::reactor::Handle;
use std::sync::{Arc, OnceLock};

pub const TARGET: Target = Target {
    name: "nbd_options",
    run,
    heap_bytes_max: 1 << 20,
    test_runs: 180_000,
    words: &[
        b"IHAVEOPT\0\0\0\x01",
        b"IHAVEOPT\0\0\0\x03\0\0\0\0",
        b"IHAVEOPT\0\0\0\x05\0\0\0\0",
        b"IHAVEOPT\0\0\0\x06\0\0\0",
        b"IHAVEOPT\0\0\0\x07\0\0\0\x08\0\0\0\x02db\0\0",
        b"IHAVEOPT\0\0\0\x08\0\0\0\0",
        b"IHAVEOPT\0\0\0\x09\0\0\0",
        b"IHAVEOPT\0\0\0\x0a\0\0\0\x1d\0\0\0\x02db\0\0\0\x01\0\0\0\x0fbase:allocation",
        b"web",
        b"db",
    ],
};

const LIMITS: Limits = Limits {
    capacity_bytes: 1 << 30,
    logical_block_bytes: 512,
    physical_block_bytes: 4096,
    align_bytes: 512,
    memory_align_bytes: 512,
    read_only: false,
    rotational: false,
};

/// A reactor without disks, which an export has to have. Nothing here talks to it.
fn reactor() -> Handle {
    static REACTOR: OnceLock<Handle> = OnceLock::new();
    REACTOR.get_or_init(served::reactor).clone()
}

const NAMES: [&str; 2] = ["web", "db"];

struct TwoDisks;

impl Exports for TwoDisks {
    fn find(&self, name: &str) -> Option<Export> {
        assert!(name.len() <= NAME_LEN_MAX);
        let disk = DiskId(NAMES.iter().position(|n| *n == name)? as u16);
        let (limits, memory) = (Arc::new(|| LIMITS), Arc::default());
        Some(Export { name: name.into(), disk, handle: reactor(), limits, memory })
    }
    fn names(&self) -> Vec<String> {
        NAMES.map(String::from).to_vec()
    }
}

fn run(input: &[u8]) {
    // Not counted in the heap of the first input.
    reactor();
    let mut input = Input(input);
    let mut security = match input.u8() % 3 {
        0 => Security::Plain,
        1 => Security::Offered,
        _ => Security::Required,
    };
    let flags = u32::from_be_bytes(input.take());
    let Ok(mut negotiation) = Negotiation::new(&TwoDisks, security, flags) else {
        assert!(flags & !3 != 0);
        return;
    };
    let (mut structured, mut allocation_of) = (false, None);
    let mut out = Vec::new();
    for count in 1.. {
        if input.is_over() {
            return;
        }
        let Ok((option, len)) = option_header(&input.take()) else { return };
        assert!(len <= OPTION_LEN_MAX);
        let data = input.bytes(len);
        out.clear();
        let Ok(step) = negotiation.option(option, data, &mut out) else {
            assert!(out.is_empty());
            return;
        };
        assert!(count <= OPTIONS_MAX && (flags & 1 != 0 || option == OPT_EXPORT_NAME));
        if option == OPT_EXPORT_NAME {
            assert_eq!(out.len(), if flags & 2 != 0 { 10 } else { 134 });
        } else {
            let kinds = replies(&out, option);
            let is_done = kinds.last() == Some(&REP_ACK);
            if security == Security::Required && option != OPT_STARTTLS && option != OPT_ABORT {
                assert_eq!(kinds, [REP_ERR_TLS_REQD]);
            }
            if option == OPT_STRUCTURED_REPLY {
                structured |= is_done;
            }
            if option == OPT_SET_META_CONTEXT {
                assert!(!is_done || structured);
                let is_agreed = is_done && kinds[0] == REP_META_CONTEXT;
                allocation_of = is_agreed.then(|| data.to_vec());
            }
        }
        match step {
            Step::Continue => {}
            Step::Abort => return assert_eq!(option, OPT_ABORT),
            Step::StartTls => {
                assert!(option == OPT_STARTTLS && security != Security::Plain);
                assert!(security != Security::Active);
                negotiation.secured();
                (security, structured, allocation_of) = (Security::Active, false, None);
            }
            Step::Transmit(session) => {
                assert!(security != Security::Required);
                assert!(option == OPT_GO || option == OPT_EXPORT_NAME);
                assert_eq!(NAMES[usize::from(session.export.disk.0)], session.export.name);
                assert_eq!(session.structured, structured);
                // It was agreed on for this export, whose name is behind its length.
                let name = session.export.name.as_bytes();
                let is_of_this =
                    allocation_of.is_some_and(|data: Vec<u8>| data[4..].starts_with(name));
                assert_eq!(session.allocation, structured && is_of_this);
                return;
            }
        }
    }
}

/// The kinds of the replies to an option; the last one is final, and no other is.
fn replies(mut bytes: &[u8], option: u32) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at(20);
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(header[..8], REPLY_MAGIC.to_be_bytes());
        assert_eq!(number(8), option);
        let (kind, len) = (number(12), number(16) as usize);
        let (data, rest) = rest.split_at(len);
        match kind {
            REP_ACK => assert!(data.is_empty()),
            REP_SERVER => assert_eq!(option, OPT_LIST),
            REP_META_CONTEXT => {
                assert!([OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT].contains(&option));
                assert_eq!(data[4..], *b"base:allocation");
            }
            REP_INFO => match u16::from_be_bytes([data[0], data[1]]) {
                INFO_EXPORT => assert_eq!(data.len(), 12),
                INFO_NAME => assert!(NAMES.iter().any(|name| name.as_bytes() == &data[2..])),
                _ => {}
            },
            error => assert!(error >> 31 == 1 && std::str::from_utf8(data).is_ok()),
        }
        kinds.push(kind);
        bytes = rest;
    }
    let is_final = |kind: &u32| *kind == REP_ACK || kind >> 31 == 1;
    assert_eq!(kinds.iter().position(is_final), Some(kinds.len().wrapping_sub(1)));
    kinds
}
