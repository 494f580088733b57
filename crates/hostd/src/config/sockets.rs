//! The sockets of a disk: their owner, group and mode, and their folder.

use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// The mode of a socket when nobody gives one: its owner's alone, and its group's where a group is
/// given.
const MODE_OWNER: u32 = 0o600;
const MODE_GROUP: u32 = 0o660;
/// Longest entry of the user database that is read.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// Owner, group and mode of sockets, and whether there are any for NBD. What is not given is that
/// of all disks, or the daemon's own.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketConfig {
    /// User, by name or number.
    #[serde(rename = "socket_owner", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group, by name or number.
    #[serde(rename = "socket_group", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permissions, 0 to 0o777.
    #[serde(rename = "socket_mode", skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// There is a socket for NBD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd: Option<bool>,
}

impl SocketConfig {
    /// These, and where one is not given `other`'s.
    #[must_use]
    pub fn or(&self, other: &SocketConfig) -> SocketConfig {
        SocketConfig {
            owner: self.owner.clone().or_else(|| other.owner.clone()),
            group: self.group.clone().or_else(|| other.group.clone()),
            mode: self.mode.or(other.mode),
            nbd: self.nbd.or(other.nbd),
        }
    }

    /// Replaces names by numbers, as far as they are known: a confined daemon cannot look names up.
    #[must_use]
    pub fn numbered(&self) -> SocketConfig {
        let number = |name: &Option<String>, id: fn(&str) -> Result<u32, String>| {
            name.as_ref().map(|name| id(name).map_or(name.clone(), |id| id.to_string()))
        };
        SocketConfig {
            owner: number(&self.owner, user_id),
            group: number(&self.group, group_id),
            ..self.clone()
        }
    }

    /// Do the user and the group exist?
    ///
    /// # Errors
    /// The name that this host does not have.
    pub fn check_names(&self) -> Result<(), String> {
        self.owner.as_deref().map(user_id).transpose()?;
        self.group.as_deref().map(group_id).transpose()?;
        Ok(())
    }

    /// Give a socket that was made just now to its owner, and let in who may come in.
    ///
    /// # Errors
    /// An unknown user or group, or what the system says.
    pub fn apply(&self, path: &Path) -> Result<(), String> {
        let uid = self.owner.as_deref().map(user_id).transpose()?;
        let gid = self.group.as_deref().map(group_id).transpose()?;
        if uid.is_some() || gid.is_some() {
            // It is nobody else's until here, and its mode comes last.
            std::os::unix::fs::lchown(path, uid, gid).map_err(|e| {
                format!(
                    "cannot give the socket to {self}: {e}; only root may, or a member of the group"
                )
            })?;
        }
        let mode = self.mode.unwrap_or(if gid.is_some() { MODE_GROUP } else { MODE_OWNER });
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| e.to_string())
    }
}

impl fmt::Display for SocketConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, group) = (self.owner.as_deref(), self.group.as_deref());
        write!(f, "{}:{}", owner.unwrap_or(""), group.unwrap_or(""))
    }
}

/// The name or number of a user or a group.
pub(super) fn account(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains('\0') {
        true => Err(format!("{text}: expected a name or a number")),
        false => Ok(text.to_string()),
    }
}

pub(super) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("{text}: expected permissions in octal, such as 660"))
}

fn user_id(name: &str) -> Result<u32, String> {
    number_of("user", name, libc::getpwnam_r, |entry| entry.pw_uid)
}

fn group_id(name: &str) -> Result<u32, String> {
    number_of("group", name, libc::getgrnam_r, |entry| entry.gr_gid)
}

/// getpwnam(3), getgrnam(3).
type LookUp<E> =
    unsafe extern "C" fn(*const c_char, *mut E, *mut c_char, usize, *mut *mut E) -> c_int;

/// The number of a user or group, as the system's lists have it. A number is its own.
fn number_of<E>(
    kind: &str,
    name: &str,
    look_up: LookUp<E>,
    number: fn(&E) -> u32,
) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let asked = CString::new(name).map_err(|e| e.to_string())?;
    let (mut buffer, mut found) = (vec![0; ENTRY_BYTES_MAX], std::ptr::null_mut());
    let mut entry = MaybeUninit::<E>::uninit();
    let (start, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: all point to what outlives the call, which fills the entry when it finds one.
    let error = unsafe { look_up(asked.as_ptr(), entry.as_mut_ptr(), start, len, &raw mut found) };
    if error == 0 && !found.is_null() {
        // SAFETY: it points to the entry, which is filled.
        return Ok(number(unsafe { &*found }));
    }
    Err(format!(
        "there is no {kind} '{name}'; to a daemon that is confined already, give the number"
    ))
}

// Folders of sockets by default.

/// The control socket's name in the folder of the sockets.
pub const CONTROL_NAME: &str = "control.sock";

/// The folder of the sockets when nobody names one: `/run/seekway` for root, and
/// `$XDG_RUNTIME_DIR/seekway` for an ordinary user.
///
/// # Errors
/// For a user without such a folder: what to do.
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
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    fn config(options: &str) -> SocketConfig {
        super::super::DiskConfig::parse(&format!("a=a.img,{options}")).unwrap().sockets
    }

    #[test]
    fn options_are_read() {
        let given = config("socket_owner=qemu,socket-group=7,socket_mode=0660");
        assert_eq!(given.owner.as_deref(), Some("qemu"));
        assert_eq!((given.group.as_deref(), given.mode), (Some("7"), Some(0o660)));
        assert!(mode("999").is_err() && mode("1777").is_err() && account("").is_err());
        let all = config("socket_owner=root,socket_mode=600");
        assert_eq!(all.numbered().owner.as_deref(), Some("0"));
        assert_eq!(given.numbered().group.as_deref(), Some("7"));
        let disk = config("socket_mode=666");
        assert_eq!(disk.or(&all), config("socket_owner=root,socket_mode=666"));
    }

    #[test]
    fn names_become_numbers() {
        assert_eq!((user_id("root"), group_id("root")), (Ok(0), Ok(0)));
        assert_eq!((user_id("12"), group_id("34")), (Ok(12), Ok(34)));
        assert!(user_id("no such user").unwrap_err().contains("no user 'no such user'"));
        assert!(group_id("no such group").is_err());
    }

    #[test]
    fn sockets_get_group_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.vhost");
        let _socket = UnixListener::bind(&path).unwrap();
        // SAFETY: no preconditions.
        let own = unsafe { libc::getegid() };
        let own_group = config(&format!("socket_group={own}"));
        for (given, mode) in [
            (SocketConfig::default(), 0o600),
            (own_group.clone(), 0o660),
            (config("socket_mode=666").or(&own_group), 0o666),
        ] {
            given.apply(&path).unwrap();
            let about = std::fs::symlink_metadata(&path).unwrap();
            assert_eq!((about.permissions().mode() & 0o777, about.gid()), (mode, own));
        }
        assert!(config("socket_owner=no such user").apply(&path).is_err());
    }

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
