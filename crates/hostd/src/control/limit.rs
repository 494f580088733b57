//! The request for other limits, of a disk or of a group.

use crate::config::limits_text;
use seekway_stack::stack::limit::{DiskLimits, GroupName};
use serde::{Deserialize, Serialize};

/// Owner of the limits to change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LimitTarget {
    /// Those of the disk of this name.
    Disk(String),
    /// Those of this group.
    Group(GroupName),
}

/// Other limits for a disk or for a group, instead of all that it has:
/// `{"disk": "db", "limits": "iops=2000,group=tenant1"}` or
/// `{"group": "tenant1", "limits": "bandwidth=300MiB"}`; `none` lifts them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct LimitRequest {
    pub target: LimitTarget,
    /// Limits, and of a disk the group: without one it leaves its group.
    pub limits: DiskLimits,
}

impl LimitRequest {
    /// Limits as text for a disk.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn disk(name: &str, limits: &str) -> Result<LimitRequest, String> {
        let limits = DiskLimits::parse(limits).map_err(|e| e.to_string())?;
        Ok(LimitRequest { target: LimitTarget::Disk(name.into()), limits })
    }

    /// Limits as text for a group.
    ///
    /// # Errors
    /// What is wrong with them, or with the name.
    pub fn group(name: &str, limits: &str) -> Result<LimitRequest, String> {
        let limits = DiskLimits::parse(limits).map_err(|e| e.to_string())?;
        Wire { disk: None, group: Some(name.into()), limits }.try_into()
    }
}

/// The object of the protocol.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(with = "limits_text")]
    limits: DiskLimits,
}

impl TryFrom<Wire> for LimitRequest {
    type Error = String;

    fn try_from(Wire { disk, group, limits }: Wire) -> Result<LimitRequest, String> {
        let target = match (disk, group) {
            (Some(disk), None) => LimitTarget::Disk(disk),
            (None, Some(group)) => {
                limits.clone().of_group().map_err(|e| e.to_string())?;
                LimitTarget::Group(GroupName::new(&group).map_err(|e| e.to_string())?)
            }
            (Some(_), Some(_)) => {
                let text = "disk and group contradict: to put a disk into a group, write it in \
                            limits, as in \"iops=2000,group=tenant1\"";
                return Err(text.into());
            }
            (None, None) => return Err("whose limits? give disk or group".into()),
        };
        Ok(LimitRequest { target, limits })
    }
}

impl From<LimitRequest> for Wire {
    fn from(LimitRequest { target, limits }: LimitRequest) -> Wire {
        match target {
            LimitTarget::Disk(name) => Wire { disk: Some(name), group: None, limits },
            LimitTarget::Group(name) => Wire { disk: None, group: Some(name.to_string()), limits },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_asked_for() {
        for (line, request) in [
            (
                r#"{"disk":"db","limits":"iops=2000,group=tenant1"}"#,
                LimitRequest::disk("db", "iops=2000,group=tenant1"),
            ),
            (r#"{"disk":"db","limits":"none"}"#, LimitRequest::disk("db", "none")),
            (
                r#"{"group":"tenant1","limits":"bandwidth=300MiB"}"#,
                LimitRequest::group("tenant1", "bandwidth=314572800"),
            ),
        ] {
            let request = request.unwrap();
            assert_eq!(serde_json::from_str::<LimitRequest>(line).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, part) in [
            (r#"{"limits":"iops=1"}"#, "give disk or group"),
            (r#"{"disk":"a","group":"b","limits":"iops=1"}"#, "disk and group contradict"),
            (r#"{"disk":"a"}"#, "missing field `limits`"),
            (r#"{"disk":"a","limits":"iops=0"}"#, "leave it out for no limit"),
            (r#"{"disk":"a","limits":""}"#, "write none to lift all"),
            (r#"{"disk":"a","limits":"iops=1,read_iops=1"}"#, "iops and read_iops contradict"),
            (r#"{"group":"a","limits":"iops=1,group=b"}"#, "cannot be in a group"),
            (r#"{"group":"../a","limits":"iops=1"}"#, "cannot be a group's name"),
            (r#"{"disk":"a","limits":"iops=1","c":1}"#, "unknown field `c`"),
        ] {
            let error = serde_json::from_str::<LimitRequest>(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        let error = LimitRequest::disk("db", "ro").unwrap_err();
        assert_eq!(error, "'ro' is not key=value, as in iops=2000");
        assert!(LimitRequest::group("a", "oips=1").unwrap_err().contains("no limit 'oips'"));
    }
}
