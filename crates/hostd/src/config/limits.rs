//! Rate limits as they are asked for: options of a disk, groups of disks, and
//! their text in the control protocol. What they mean is in
//! [`seekway_stack::stack::limit`].

use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits, parse_group};
use serde::{Deserialize, Deserializer, Serializer, de};

/// Most groups that one daemon has.
pub const GROUPS_MAX: usize = 1024;

/// A group of disks that share limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// The name by which disks join it.
    pub name: GroupName,
    /// Limits of all its disks together.
    pub limits: Limits,
}

impl GroupConfig {
    /// Parse `NAME:bandwidth=300MiB[,…]`.
    ///
    /// # Errors
    /// What is wrong and what there is.
    pub fn parse(text: &str) -> Result<GroupConfig, String> {
        let (name, limits) = parse_group(text).map_err(|e| e.to_string())?;
        Ok(GroupConfig { name, limits })
    }

    /// In place of a group whose limits are wrong: its disks are not told that it is not there.
    pub(super) fn without_limits(name: GroupName) -> GroupConfig {
        GroupConfig { name, limits: Limits::default() }
    }
}

/// A disk's limits as text in JSON: `"limits": "iops=2000,group=tenant1"`.
pub(crate) mod text {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(limits: &DiskLimits, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(limits)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DiskLimits, D::Error> {
        let text = String::deserialize(from)?;
        DiskLimits::parse(&text).map_err(de::Error::custom)
    }
}
