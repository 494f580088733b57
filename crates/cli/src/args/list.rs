//! Arguments of `seekway list`.

use super::Format;
use crate::complete;
use clap::Args;

/// List policies, prefetchers, loads, trace formats and devices, or describe one
///
/// The description is Markdown with all parameters; of a device it is the profile as TOML, with the
/// source of every figure.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway list
  seekway list policies
  seekway list cfq
  seekway list loads sysbench
  seekway list devices seagate-1tb-7200 > mine.toml")]
pub struct ListArgs {
    /// `policies`, `prefetchers`, `vcpu` (policies for virtual CPUs), `loads`, `traces` or
    /// `devices`; or the name of an entry [default: the names of all]
    #[arg(value_name = "KIND|NAME", add = complete::entries(&Listed::WORDS))]
    pub what: Option<String>,
    /// Name of an entry of this kind
    #[arg(value_name = "NAME", add = complete::entries(&[]))]
    pub name: Option<String>,
    /// Output format [default: table for a list, markdown or toml for a description]
    #[arg(long, visible_alias = "output", value_enum)]
    pub format: Option<Format>,
}

/// A kind of entries, which are listed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    Policies,
    Prefetchers,
    Vcpu,
    Loads,
    Traces,
    Devices,
}

impl Listed {
    pub const ALL: [Listed; 6] = [
        Listed::Policies,
        Listed::Prefetchers,
        Listed::Vcpu,
        Listed::Loads,
        Listed::Traces,
        Listed::Devices,
    ];
    /// The words of the command line, in the order of `ALL`.
    pub const WORDS: [&str; 6] = ["policies", "prefetchers", "vcpu", "loads", "traces", "devices"];

    pub fn word(self) -> &'static str {
        Listed::WORDS[self as usize]
    }

    /// The kind of this word.
    pub fn of_word(word: &str) -> Option<Listed> {
        Listed::ALL.into_iter().find(|kind| kind.word() == word)
    }
}
