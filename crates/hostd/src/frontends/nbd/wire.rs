//! The protocol's numbers, under the protocol's names, and our limits. All
//! integers on the wire are big-endian.

/// "NBDMAGIC", the server's first eight bytes.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT", before every option and, from the server, after `NBDMAGIC`.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option.
pub const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before every request of the transmission.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Flags of the handshake, the server's and the client's alike.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// No 124 zeroes after the reply to `OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Options: choose an export and begin its transmission, with no reply for errors.
pub const OPT_EXPORT_NAME: u32 = 1;
/// End the negotiation; the server acknowledges and hangs up.
pub const OPT_ABORT: u32 = 2;
/// Names of the exports.
pub const OPT_LIST: u32 = 3;
/// Begin TLS; what was agreed on before counts no more.
pub const OPT_STARTTLS: u32 = 5;
/// Describe an export without beginning its transmission.
pub const OPT_INFO: u32 = 6;
/// Describe an export and begin its transmission.
pub const OPT_GO: u32 = 7;
/// Ask for structured replies, which come in chunks.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Which metadata contexts there are.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Chooses the metadata contexts that block status reports.
pub const OPT_SET_META_CONTEXT: u32 = 10;

/// Replies to options: the last one to an option that succeeds.
pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
/// One piece of information on an export.
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
/// The option is not known.
pub const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
/// The option is not allowed here.
pub const REP_ERR_POLICY: u32 = 1 << 31 | 2;
/// The option's data make no sense.
pub const REP_ERR_INVALID: u32 = 1 << 31 | 3;
/// The option is refused as long as there is no TLS.
pub const REP_ERR_TLS_REQD: u32 = 1 << 31 | 5;
/// There is no such export.
pub const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;

/// Pieces of information on an export: size and flags.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
/// A text for humans, sent only when the client asks for it.
pub const INFO_DESCRIPTION: u16 = 2;
/// Least, preferred and greatest length of a request.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of the transmission; this one is always set.
pub const TF_HAS_FLAGS: u16 = 1 << 0;
/// Writes, trims and write-zeroes are refused.
pub const TF_READ_ONLY: u16 = 1 << 1;
/// There is a flush.
pub const TF_SEND_FLUSH: u16 = 1 << 2;
/// There is forced unit access.
pub const TF_SEND_FUA: u16 = 1 << 3;
/// There is a trim.
pub const TF_SEND_TRIM: u16 = 1 << 5;
/// There is a write-zeroes.
pub const TF_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// A read can be asked for in one chunk.
pub const TF_SEND_DF: u16 = 1 << 7;
/// A flush covers the completed writes of all connections.
pub const TF_CAN_MULTI_CONN: u16 = 1 << 8;

/// Commands: the reply brings the data of the range.
pub const CMD_READ: u16 = 0;
/// Followed by its data.
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
/// Completed writes become durable.
pub const CMD_FLUSH: u16 = 3;
/// The contents are no longer needed.
pub const CMD_TRIM: u16 = 4;
/// The range reads as zeroes afterwards.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Where data and holes are.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Flags of commands: durable before the reply.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Write-zeroes keeps the space allocated.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// A read in one chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// One extent is enough.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;

/// Structured replies: the last chunk of its reply.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;
/// Types of chunks: data and where they belong.
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// Extents of one metadata context.
pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// An error and a text.
pub const REPLY_TYPE_ERROR: u16 = 1 << 15 | 1;

/// States of an extent in `base:allocation`: not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// The extent reads as zeroes, as every hole does here.
pub const STATE_ZERO: u32 = 1 << 1;

/// The one metadata context that there is.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number on the wire.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Longest name of an export ("Values: Strings").
pub const NAME_LEN_MAX: usize = 4096;
/// Longest data of an option; a client that says more is cut off. Room for a
/// name and for more queries than there are contexts.
pub const OPTION_LEN_MAX: usize = 16 << 10;
/// Options in one negotiation; more is a client that does not mean to begin.
pub const OPTIONS_MAX: usize = 256;
/// Longest read or write.
pub const REQUEST_LEN_MAX: u32 = 64 << 20;
/// The longest that clients are told of, which is what those that do not ask may assume ("Block size
/// constraints"). Some assume more.
pub const REQUEST_LEN_TOLD: u32 = 32 << 20;

/// Error numbers of replies. The protocol fixes them to Linux's values
/// ("Values: Error values").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum NbdError {
    /// EPERM: the disk is read-only, or the system denies access.
    Perm = 1,
    Io = 5,
    /// Out of memory or of room for more requests.
    NoMem = 12,
    /// The request makes no sense.
    Inval = 22,
    /// No space left, or behind the end.
    NoSpc = 28,
    /// EOVERFLOW: a read or write of more than [`REQUEST_LEN_MAX`] bytes.
    Overflow = 75,
    /// EOPNOTSUPP: the system does not support the operation.
    NotSup = 95,
    Shutdown = 108,
}

impl NbdError {
    /// Error of the protocol for an errno of ours; an errno without a number in the protocol is an
    /// I/O error.
    pub fn from_errno(errno: i32) -> NbdError {
        match errno {
            libc::EPERM | libc::EACCES | libc::EROFS => NbdError::Perm,
            libc::ENOMEM | libc::EBUSY => NbdError::NoMem,
            libc::EINVAL => NbdError::Inval,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => NbdError::NoSpc,
            libc::EOVERFLOW => NbdError::Overflow,
            libc::EOPNOTSUPP => NbdError::NotSup,
            libc::ESHUTDOWN | libc::ECANCELED => NbdError::Shutdown,
            _ => NbdError::Io,
        }
    }
}
