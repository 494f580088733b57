//! The kinds of threads that are confined differently.

/// Purpose of a thread of the daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// The main thread and those that carry out commands of the control socket: they open images,
    /// make sockets and start all other threads.
    Control,
    /// The data path of a device: all that guests and clients send ends up here.
    Reactor,
    /// One connection: the messages of a VMM, NBD's negotiation, TLS, HTTP.
    FrontEnd,
    /// Threads that only wait for something slow: journals, messages, block status, memory.
    Helper,
    /// The thread that makes the rings that call guests, for threads that may make none.
    Rings,
}

impl Kind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Kind; 5] =
        [Kind::Control, Kind::Reactor, Kind::FrontEnd, Kind::Helper, Kind::Rings];

    /// Its name in `ctl status`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Control => "control",
            Kind::Reactor => "reactor",
            Kind::FrontEnd => "front_end",
            Kind::Helper => "helper",
            Kind::Rings => "rings",
        }
    }
}
