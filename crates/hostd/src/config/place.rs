//! Where sockets are when nobody says.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The control socket's name in the folder of the sockets.
pub const CONTROL_NAME: &str = "control.sock";

/// The folder of the sockets when nobody names one: `/run/seekway` for root, and
/// `$XDG_RUNTIME_DIR/seekway` for an ordinary user.
///
/// # Errors
/// What to do for a user without such a folder.
pub fn default_folder() -> Result<PathBuf, String> {
    folder_of(rustix::process::geteuid().is_root(), std::env::var_os("XDG_RUNTIME_DIR"))
}

fn folder_of(is_root: bool, runtime: Option<OsString>) -> Result<PathBuf, String> {
    if is_root {
        return Ok(PathBuf::from("/run/seekway"));
    }
    // The specification says to ignore a path that is not absolute.
    let runtime = runtime.filter(|folder| Path::new(folder).is_absolute());
    let folder = runtime.map(|folder| Path::new(&folder).join("seekway"));
    folder.ok_or_else(|| {
        "no default folder for sockets: you are not root, and XDG_RUNTIME_DIR names none".into()
    })
}

/// The folder of what outlasts a boot: the service manager's (`StateDirectory=`), or that of the
/// user.
pub fn state_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    state_folder_of(rustix::process::geteuid().is_root(), variable)
}

fn state_folder_of(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    path("STATE_DIRECTORY")
        .or_else(|| is_root.then(|| "/var/lib/seekway".into()))
        .or_else(|| Some(path("XDG_STATE_HOME")?.join("seekway")))
        .or_else(|| Some(path("HOME")?.join(".local/state/seekway")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_where_the_service_manager_or_the_user_has_it() {
        let of = |is_root, set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
            state_folder_of(is_root, value)
        };
        let (home, state) = (("HOME", "/home/u"), ("XDG_STATE_HOME", "/s"));
        let given = ("STATE_DIRECTORY", "/var/lib/other");
        assert_eq!(of(true, &[home, state]), Some("/var/lib/seekway".into()));
        assert_eq!(of(true, &[given, home]), Some("/var/lib/other".into()));
        assert_eq!(of(false, &[home, state]), Some("/s/seekway".into()));
        assert_eq!(of(false, &[home]), Some("/home/u/.local/state/seekway".into()));
        assert_eq!(of(false, &[("HOME", "relative")]), None);
    }

    #[test]
    fn root_and_users_have_folders_of_their_own() {
        let of = |is_root, folder: Option<&str>| folder_of(is_root, folder.map(OsString::from));
        assert_eq!(of(true, Some("/run/user/0")), Ok("/run/seekway".into()));
        assert_eq!(of(false, Some("/run/user/7")), Ok("/run/user/7/seekway".into()));
        for none in [None, Some(""), Some("relative")] {
            assert!(of(false, none).unwrap_err().contains("XDG_RUNTIME_DIR"), "{none:?}");
        }
    }
}
