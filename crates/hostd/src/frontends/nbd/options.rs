//! The negotiation, without its socket: options in, replies out. One value of
//! [`Negotiation`] lives from the greeting to the transmission.

use super::wire::*;
use super::{Export, Exports};
use crate::images::Limits;

/// An export that has as many clients as it may have is not found either.
const NO_EXPORT: &str = "there is no export of this name, or it has no room for another client";

/// Encryption that the connection has or allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// No certificate: plain only.
    Plain,
    /// STARTTLS is there for who wants it.
    Offered,
    /// Nothing but STARTTLS until it has been done.
    Required,
    /// This session is encrypted.
    Active,
}

/// Next step of the handshake after an option.
pub enum Step {
    /// Send the replies, read the next option.
    Continue,
    /// Send the replies, then the TLS handshake begins.
    StartTls,
    /// Send the replies, then hang up.
    Abort,
    /// Send the replies, then serve.
    Transmit(Box<Session>),
}

/// Result of the negotiation.
pub struct Session {
    pub export: Export,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// Block status reports `base:allocation`.
    pub allocation: bool,
}

/// Why a client is cut off without a reply, or after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// Bit set in the client's flags that we did not offer.
    #[error("the client's handshake flags {0:#x} are none that were offered")]
    Flags(u32),
    /// An option began with this number instead of `IHAVEOPT`.
    #[error("an option began with {0:#x}, not with IHAVEOPT")]
    Magic(u64),
    /// The data of an option are longer than [`OPTION_LEN_MAX`].
    #[error("option {option} has {len_bytes} bytes, more than {OPTION_LEN_MAX}")]
    TooLong {
        option: u32,
        /// The length that the client gave.
        len_bytes: u32,
    },
    /// The client sent more than [`OPTIONS_MAX`] options in one negotiation.
    #[error("more than {OPTIONS_MAX} options without an end of the negotiation")]
    TooMany,
    /// `NBD_OPT_EXPORT_NAME` has no reply for errors.
    #[error("the client asked by NBD_OPT_EXPORT_NAME for an export that it cannot have")]
    ExportName,
    /// A client without fixed newstyle that sends more than the export's name.
    #[error("the client does not speak the fixed newstyle protocol and sent option {0}")]
    NotFixed(u32),
}

/// The server's first bytes.
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    bytes[16..].copy_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    bytes
}

/// The header of an option: its number and the length of its data, which is
/// bounded by [`OPTION_LEN_MAX`].
pub fn option_header(bytes: &[u8; 16]) -> Result<(u32, usize), ProtocolError> {
    let mut fields = Fields(bytes);
    let (magic, option, len_bytes) = (fields.u64(), fields.u32(), fields.u32());
    match (magic, option, len_bytes) {
        (Some(IHAVEOPT), Some(option), Some(len_bytes)) => {
            if len_bytes as usize > OPTION_LEN_MAX {
                return Err(ProtocolError::TooLong { option, len_bytes });
            }
            Ok((option, len_bytes as usize))
        }
        (magic, ..) => Err(ProtocolError::Magic(magic.unwrap_or_default())),
    }
}

/// The state of a negotiation.
pub struct Negotiation<'a> {
    exports: &'a dyn Exports,
    security: Security,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was agreed on, as the client named it.
    allocation_of: Option<String>,
    options: usize,
}

impl<'a> Negotiation<'a> {
    /// After the greeting; `client_flags` are the four bytes that answer it.
    pub fn new(
        exports: &'a dyn Exports,
        security: Security,
        client_flags: u32,
    ) -> Result<Self, ProtocolError> {
        let offered = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if client_flags & !offered != 0 {
            return Err(ProtocolError::Flags(client_flags));
        }
        Ok(Negotiation {
            exports,
            security,
            fixed: client_flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0,
            no_zeroes: client_flags & u32::from(FLAG_NO_ZEROES) != 0,
            structured: false,
            allocation_of: None,
            options: 0,
        })
    }

    /// TLS is up: what was agreed on in the clear counts no more ("Option
    /// types: NBD_OPT_STARTTLS").
    pub fn secured(&mut self) {
        self.security = Security::Active;
        self.structured = false;
        self.allocation_of = None;
    }

    /// One option with its data; replies are appended to `out`.
    pub fn option(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, ProtocolError> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(ProtocolError::TooMany);
        }
        if option == OPT_EXPORT_NAME {
            return self.export_name(data, out);
        }
        if !self.fixed {
            return Err(ProtocolError::NotFixed(option));
        }
        let reply = Reply { option, out };
        match option {
            OPT_ABORT => {
                reply.ack();
                return Ok(Step::Abort);
            }
            OPT_STARTTLS => return Ok(self.start_tls(data, reply)),
            _ if self.security == Security::Required => {
                reply.error(REP_ERR_TLS_REQD, "send NBD_OPT_STARTTLS first");
            }
            OPT_LIST => self.list(data, reply),
            OPT_INFO | OPT_GO => return Ok(self.info(option, data, reply)),
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply.ack();
            }
            OPT_STRUCTURED_REPLY => reply.error(REP_ERR_INVALID, "the option takes no data"),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.meta_context(option, data, reply),
            _ => reply.error(REP_ERR_UNSUP, "the option is not known here"),
        }
        Ok(Step::Continue)
    }

    fn start_tls(&self, data: &[u8], reply: Reply<'_>) -> Step {
        match self.security {
            _ if !data.is_empty() => reply.error(REP_ERR_INVALID, "the option takes no data"),
            Security::Plain => reply.error(REP_ERR_POLICY, "the server has no certificate"),
            Security::Active => reply.error(REP_ERR_INVALID, "TLS is up already"),
            Security::Offered | Security::Required => {
                reply.ack();
                return Step::StartTls;
            }
        }
        Step::Continue
    }

    fn list(&self, data: &[u8], reply: Reply<'_>) {
        if !data.is_empty() {
            return reply.error(REP_ERR_INVALID, "the option takes no data");
        }
        let Reply { option, out } = reply;
        for name in self.exports.names() {
            let len = (name.len() as u32).to_be_bytes();
            Reply { option, out }.send(REP_SERVER, &[&len, name.as_bytes()]);
        }
        Reply { option, out }.ack();
    }

    /// The way of old clients: no reply for errors, the transmission follows.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Step, ProtocolError> {
        if self.security == Security::Required {
            return Err(ProtocolError::ExportName);
        }
        let name = export_name(data).ok_or(ProtocolError::ExportName)?;
        let export = self.exports.find(name).ok_or(ProtocolError::ExportName)?;
        let limits = (export.limits)();
        out.extend(limits.served_bytes().to_be_bytes());
        out.extend(transmission_flags(&limits, self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Ok(self.transmit(export, name))
    }

    fn transmit(&self, export: Export, name: &str) -> Step {
        let allocation = self.structured && self.allocation_of.as_deref() == Some(name);
        Step::Transmit(Box::new(Session { export, structured: self.structured, allocation }))
    }

    fn info(&self, option: u32, data: &[u8], reply: Reply<'_>) -> Step {
        let Some((name, wanted)) = parse_info(data) else {
            reply.error(REP_ERR_INVALID, "name and information requests do not add up");
            return Step::Continue;
        };
        let Some(export) = self.exports.find(name) else {
            reply.error(REP_ERR_UNKNOWN, NO_EXPORT);
            return Step::Continue;
        };
        let limits = (export.limits)();
        let out = reply.out;
        let mut send = |kind: u16, parts: [&[u8]; 3]| {
            let kind = kind.to_be_bytes();
            let parts = [&kind, parts[0], parts[1], parts[2]];
            Reply { option, out }.send(REP_INFO, &parts);
        };
        let size = limits.served_bytes().to_be_bytes();
        let flags = transmission_flags(&limits, self.structured).to_be_bytes();
        send(INFO_EXPORT, [&size, &flags, &[]]);
        // Sent whether asked for or not: who knows it can do without reading before writing.
        let [least, preferred, most] = block_sizes(&limits).map(u32::to_be_bytes);
        send(INFO_BLOCK_SIZE, [&least, &preferred, &most]);
        if wanted.clone().any(|kind| kind == INFO_NAME) {
            send(INFO_NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wanted.clone().any(|kind| kind == INFO_DESCRIPTION) {
            let text = format!("disk {} of Seekway", export.name);
            send(INFO_DESCRIPTION, [text.as_bytes(), &[], &[]]);
        }
        Reply { option, out }.ack();
        if option == OPT_GO { self.transmit(export, name) } else { Step::Continue }
    }

    fn meta_context(&mut self, option: u32, data: &[u8], reply: Reply<'_>) {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            // A second selection replaces the first, even when it fails.
            self.allocation_of = None;
        }
        if !self.structured {
            return reply.error(REP_ERR_INVALID, "send NBD_OPT_STRUCTURED_REPLY first");
        }
        let Some((name, queries)) = parse_meta(data) else {
            return reply.error(REP_ERR_INVALID, "name and queries do not add up");
        };
        if self.exports.find(name).is_none() {
            return reply.error(REP_ERR_UNKNOWN, NO_EXPORT);
        }
        // For LIST, no query and a bare namespace both mean all that there is.
        let matches = |query: &[u8]| {
            query == BASE_ALLOCATION.as_bytes() || (!set && query == b"base:".as_slice())
        };
        let found = queries.iter().any(|query| matches(query)) || (!set && queries.is_empty());
        let Reply { option, out } = reply;
        if found {
            let id = if set { BASE_ALLOCATION_ID } else { 0 }.to_be_bytes();
            let parts: [&[u8]; 2] = [&id, BASE_ALLOCATION.as_bytes()];
            Reply { option, out }.send(REP_META_CONTEXT, &parts);
            if set {
                self.allocation_of = Some(name.to_owned());
            }
        }
        Reply { option, out }.ack();
    }
}

/// Replies to one option.
struct Reply<'o> {
    option: u32,
    out: &'o mut Vec<u8>,
}

impl Reply<'_> {
    fn send(self, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.out.extend(REPLY_MAGIC.to_be_bytes());
        self.out.extend(self.option.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend((len as u32).to_be_bytes());
        parts.iter().for_each(|part| self.out.extend(*part));
    }
    fn ack(self) {
        self.send(REP_ACK, &[]);
    }
    fn error(self, kind: u32, text: &str) {
        self.send(kind, &[text.as_bytes()]);
    }
}

/// Least, preferred and greatest length of a request, in bytes ("Block size
/// constraints": powers of two, least ≤ preferred ≤ greatest, the size a multiple of the least).
/// The least is that of guests on vhost-user-blk, for the sake of what both write to the disk; a
/// client that does not ask may read and write any bytes.
fn block_sizes(limits: &Limits) -> [u32; 3] {
    let least = limits.least_bytes();
    let preferred = limits.physical_block_bytes.max(4096).max(least);
    [least, preferred.min(REQUEST_LEN_TOLD), REQUEST_LEN_TOLD]
}

/// Features of the transmission. No `SEND_FAST_ZERO`: where a file system cannot zero a range,
/// zeroes are written, and that is not fast.
fn transmission_flags(limits: &Limits, structured: bool) -> u16 {
    let mut flags = TF_HAS_FLAGS | TF_SEND_FLUSH | TF_SEND_FUA | TF_CAN_MULTI_CONN;
    if limits.read_only {
        flags |= TF_READ_ONLY;
    } else {
        flags |= TF_SEND_TRIM | TF_SEND_WRITE_ZEROES;
    }
    if structured {
        flags |= TF_SEND_DF;
    }
    flags
}

fn export_name(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > NAME_LEN_MAX {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// The name and the kinds of information that an INFO or GO asks for.
fn parse_info(data: &[u8]) -> Option<(&str, impl Iterator<Item = u16> + Clone)> {
    let mut fields = Fields(data);
    let name = export_name(fields.counted()?)?;
    let count = usize::from(fields.u16()?);
    if fields.0.len() != count * 2 {
        return None;
    }
    Some((name, fields.0.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))))
}

/// The name and the queries of a LIST_META_CONTEXT or SET_META_CONTEXT.
fn parse_meta(data: &[u8]) -> Option<(&str, Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let name = export_name(fields.counted()?)?;
    let count = fields.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Each takes four bytes at least, so the data's length bounds the loop.
        queries.push(fields.counted()?);
    }
    fields.0.is_empty().then_some((name, queries))
}

/// Reads big-endian fields from the front; `None` where there are too few bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
    /// A string after its length.
    fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }
}
