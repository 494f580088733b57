//! Whether the daemon is confined.

/// Whether the daemon gives up what it does not need.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Sandbox {
    #[default]
    On,
    /// The daemon keeps all its rights; meant for debugging.
    Off,
}

impl Sandbox {
    pub(super) fn parse(text: &str) -> Result<Sandbox, String> {
        match text {
            "on" | "true" => Ok(Sandbox::On),
            "off" | "false" => Ok(Sandbox::Off),
            _ => Err(format!("{text}: expected on or off")),
        }
    }
}
