//! What was changed for steering, as the file has it: a line for each setting.

use crate::procfs;
use crate::state::Stored;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// How the first line begins.
const MAGIC: &str = "seekway-guest interrupts 1";
/// The most bytes of a value: a list of 1024 CPUs has fewer.
const VALUE_BYTES_MAX: usize = 8192;

/// Something of the kernel's that is changed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Setting {
    /// The vCPUs of this interrupt, as a list.
    Interrupt(u32),
    /// `rq_affinity` of this disk: are completions sent on to the vCPU that asked?
    Sends(String),
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Interrupt(irq) => write!(f, "irq {irq}"),
            Setting::Sends(disk) => write!(f, "rq_affinity {disk}"),
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    /// The names are parts of paths that root writes to: nothing but a number, or a disk's name.
    fn from_str(text: &str) -> Result<Setting, String> {
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
        match text.split_once(' ') {
            Some(("irq", irq)) => irq.parse().map(Setting::Interrupt).map_err(|e| e.to_string()),
            Some(("rq_affinity", disk)) if is_name(disk) => Ok(Setting::Sends(disk.into())),
            _ => Err(format!("expected `irq NUMBER` or `rq_affinity DISK`, not {text:?}")),
        }
    }
}

/// What a setting was, and what it was or is about to be set to.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Values {
    original: String,
    set: String,
    next: String,
}

/// All settings that were changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steered {
    /// Interrupts have other numbers after another boot.
    pub boot: String,
    settings: BTreeMap<Setting, Values>,
}

impl Default for Steered {
    fn default() -> Steered {
        Steered { boot: procfs::boot_id(), settings: BTreeMap::new() }
    }
}

impl Steered {
    pub fn len(&self) -> usize {
        self.settings.len()
    }

    pub fn has(&self, setting: &Setting) -> bool {
        self.settings.contains_key(setting)
    }

    pub fn is_set_to(&self, setting: &Setting, value: &str) -> bool {
        self.settings.get(setting).is_some_and(|values| values.next == value)
    }

    /// It is `now`, and is about to be `next`. If it is not what was set, somebody else has set
    /// it: that is its original value from now on.
    pub fn plan(&mut self, setting: &Setting, now: &str, next: &str) {
        let known =
            self.settings.get(setting).filter(|v| [&v.set, &v.next].iter().any(|s| *s == now));
        let original = known.map_or(now, |values| &values.original).to_string();
        let values = Values { original, set: now.into(), next: next.into() };
        self.settings.insert(setting.clone(), values);
    }

    /// Keeps those for which `keep` says so: it is given the original value, and those that were
    /// or may have been set.
    pub fn retain(&mut self, mut keep: impl FnMut(&Setting, &str, [String; 2]) -> bool) {
        self.settings
            .retain(|setting, v| keep(setting, &v.original, [v.set.clone(), v.next.clone()]));
    }
}

impl Stored for Steered {
    fn to_bytes(&self) -> Vec<u8> {
        let lines = self.settings.iter().map(|(setting, Values { original, set, next })| {
            format!("{setting}\t{original}\t{set}\t{next}\n")
        });
        format!("{MAGIC} {}\n{}", self.boot, lines.collect::<String>()).into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Steered, String> {
        let text = str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let mut lines = text.lines();
        let first = lines.next().and_then(|line| line.strip_prefix(MAGIC)?.strip_prefix(' '));
        let boot =
            first.ok_or(format!("its first line does not begin with `{MAGIC}`"))?.to_string();
        let read = |(n, line): (usize, &str)| {
            let wrong = |why: String| format!("line {}: {why}", n + 2);
            let fields: Vec<&str> = line.split('\t').collect();
            let [setting, original, set, next] = fields[..] else {
                return Err(wrong("expected a setting and three values".into()));
            };
            let is_value = |value: &str| {
                let known = |b: u8| b.is_ascii_digit() || b == b',' || b == b'-';
                !value.is_empty() && value.len() <= VALUE_BYTES_MAX && value.bytes().all(known)
            };
            if ![original, set, next].into_iter().all(is_value) {
                return Err(wrong("expected numbers, or lists of CPUs as 0-3,8".into()));
            }
            let [original, set, next] = [original, set, next].map(String::from);
            Ok((setting.parse().map_err(wrong)?, Values { original, set, next }))
        };
        let settings = lines.enumerate().map(read).collect::<Result<_, String>>()?;
        Ok(Steered { boot, settings })
    }
}
