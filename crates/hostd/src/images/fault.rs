//! Failures to inject, for tests: `eio`, `enospc`, `short`, `again`, by
//! operation and range.

/// Which requests fail, and how.
#[derive(Clone, Debug)]
pub struct Fault {}

/// What to do to one I/O instead of, or to, the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Injected {
    /// Complete with this errno without touching the image.
    Errno(i32),
    /// Do only this many bytes of it.
    Short(u32),
}

impl Fault {
    /// Parse `KIND[:key=value,…]`.
    pub fn parse(_text: &str) -> Result<Fault, String> {
        todo!()
    }
    /// What to do to this I/O (bytes in the image).
    pub fn inject(
        &mut self,
        _op: seekway_policy::request::Op,
        _offset: u64,
        _len: u64,
    ) -> Option<Injected> {
        todo!()
    }
}
