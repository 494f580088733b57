//! Completions for the shell: disks and devices of the running daemon, and the names and parameters
//! of policies, prefetchers, vCPU policies and devices.
//!
//! The scripts of `seekway generate` call this program with SEEKWAY_COMPLETE set. Nothing here
//! prints an error or waits long: a daemon that does not answer has no candidates.

#[cfg(feature = "daemon")]
pub mod daemon;

use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Shells};
use seekway_core::params::{Kind, ParamSpec};
use seekway_core::registry::{Registry, RegistryEntry};
use seekway_policy::{prefetchers, schedulers};
use seekway_vcpu as vcpu;
use seekway_workload::generators;
use seekway_workload::traces::Format;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

/// The environment variable that asks for candidates; its value is the shell.
const VARIABLE: &str = "SEEKWAY_COMPLETE";

/// Answers a completion script about this command line and ends the process, if one asks.
pub fn answer_shell(command_line: fn() -> clap::Command) {
    if std::env::var_os(VARIABLE).is_some() {
        CompleteEnv::with_factory(command_line).var(VARIABLE).shells(SHELLS).complete();
    }
}

const SHELLS: Shells<'static> = Shells(&[
    &WholeWords,
    &clap_complete::env::Elvish,
    &clap_complete::env::Fish,
    &clap_complete::env::Powershell,
    &clap_complete::env::Zsh,
]);

/// The script for a shell.
///
/// # Errors
/// Those of `out`, and a shell that is none of `SHELLS`.
pub fn write_script(shell: &str, out: &mut dyn Write) -> io::Result<()> {
    let shell = SHELLS.completer(shell).ok_or_else(|| io::Error::other("an unknown shell"))?;
    shell.write_registration(VARIABLE, "seekway", "seekway", "seekway", out)
}

/// Bash, whose words end at `:` and `=`: specifications such as `cfq:quantum=4` have both.
struct WholeWords;

const BASH: &str = r#"_seekway() {
    local line=${COMP_LINE:0:COMP_POINT} words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local current=${words[-1]}
    local IFS=$'\013'
    COMPREPLY=( $(
        _CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX=$(( ${#words[@]} - 1 )) VARIABLE=bash \
            seekway -- "${words[@]}" 2>/dev/null
    ) )
    # Bash replaces only what stands behind the last : or =.
    COMPREPLY=( "${COMPREPLY[@]#"${current%"$2"}"}" )
    [[ ${COMPREPLY-} =~ [=/:,]$ ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -o nosort -F _seekway seekway"#;

impl EnvCompleter for WholeWords {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        _bin: &str,
        _completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        writeln!(out, "{}", BASH.replace("VARIABLE", variable))
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        Bash.write_complete(command, args, folder, out)
    }
}

/// A policy with its parameters, `NAME:key=value,…`.
#[cfg(feature = "daemon")]
pub fn policy() -> ArgValueCompleter {
    spec(&schedulers::REGISTRY, &[])
}

/// Policies with their parameters, separated by commas.
pub fn policies() -> ArgValueCompleter {
    spec(&schedulers::REGISTRY, &["all"])
}

/// A prefetcher with its parameters.
pub fn prefetcher() -> ArgValueCompleter {
    spec(&prefetchers::REGISTRY, &[])
}

/// A policy for vCPUs with its parameters.
pub fn vcpu_policy() -> ArgValueCompleter {
    spec(&vcpu::REGISTRY, &[])
}

/// The words for kinds of what `seekway list` lists, and the names of all that it lists.
pub fn entries(kinds: &'static [&'static str]) -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let kinds = kinds.iter().map(|kind| candidate(kind, ""));
        let named = all(&schedulers::REGISTRY)
            .chain(all(&prefetchers::REGISTRY))
            .chain(all(&vcpu::REGISTRY))
            .chain(all(&generators::REGISTRY))
            .chain(all(Format::registry()));
        let devices = seekway_device::profile::names().map(|name| candidate(name, ""));
        kinds.chain(named).chain(devices).collect()
    })
}

fn all(
    registry: &'static Registry<impl RegistryEntry>,
) -> impl Iterator<Item = CompletionCandidate> {
    registry.iter().map(|entry| candidate(entry.name(), entry.summary()))
}

/// Names of the modelled devices, or a file.
pub fn profiles() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let all = seekway_device::profile::names();
        let typed_text = typed.to_str().unwrap_or_default();
        let names = all.into_iter().filter(|name| name.starts_with(typed_text));
        let mut candidates: Vec<_> = names.map(|name| candidate(name, "")).collect();
        if candidates.is_empty() {
            candidates = PathCompleter::file().complete(typed);
        }
        candidates
    })
}

fn candidate(name: &str, help: &str) -> CompletionCandidate {
    let help = (!help.is_empty()).then(|| help.lines().next().unwrap_or_default().to_string());
    CompletionCandidate::new(name).help(help.map(Into::into))
}

/// Completes `NAME:key=value,…` of a registry, and where several are allowed the next one.
fn spec<E: RegistryEntry + Sync>(
    registry: &'static Registry<E>,
    words: &'static [&'static str],
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        of_spec(registry, words, typed.to_str().unwrap_or_default())
    })
}

fn of_spec(
    registry: &'static Registry<impl RegistryEntry>,
    words: &[&str],
    typed: &str,
) -> Vec<CompletionCandidate> {
    // What is complete stays as it is; the last part is what is being typed.
    let cut = typed.rfind([',', ':', '=']).map_or(0, |at| at + 1);
    let (before, part) = typed.split_at(cut);
    let starts = |text: &str| text.starts_with(part);
    // The last name with a colon; commas before it end other specifications.
    let name = before.rsplit_once(':').map(|(name, _)| name.rsplit(',').next().unwrap_or(name));
    let params = name.and_then(|name| registry.find(name).ok()).map_or(&[][..], |e| e.params());
    let full = |text: &str, help: &str| candidate(&format!("{before}{text}"), help);
    let keys = params.iter().filter(|spec| starts(spec.key));
    let keys = keys.map(|spec| full(&format!("{}=", spec.key), spec.help));
    let entries = registry.iter().filter(|entry| starts(entry.name()));
    let names = entries.map(|entry| full(entry.name(), entry.summary()));
    match before.chars().next_back() {
        None => {
            let words = words.iter().filter(|word| starts(word)).map(|word| full(word, ""));
            names.chain(words).collect()
        }
        Some(':') => keys.collect(),
        Some(',') if words.contains(&"all") => keys.chain(names).collect(),
        Some(',') => keys.collect(),
        _ => {
            let key = before.trim_end_matches('=').rsplit([',', ':']).next().unwrap_or_default();
            let spec = params.iter().find(|spec| spec.key == key);
            let values = spec.map_or(Vec::new(), values);
            values.into_iter().filter(|value| starts(value)).map(|value| full(value, "")).collect()
        }
    }
}

/// Values of a parameter: all words, and the default of a number.
fn values(spec: &ParamSpec) -> Vec<&'static str> {
    match spec.kind {
        Kind::Flag => vec!["true", "false"],
        Kind::Choice(words) => words.to_vec(),
        Kind::DurationOr(word) | Kind::NumberOr(_, _, word) if word != spec.default => {
            vec![spec.default, word]
        }
        _ => vec![spec.default],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(completer: ArgValueCompleter, typed: &str) -> Vec<String> {
        let found = completer.complete(OsStr::new(typed));
        found.iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn specifications_are_completed_part_by_part() {
        assert_eq!(completed(policy(), "fairw"), ["fairway"]);
        assert!(completed(policy(), "").len() == schedulers::REGISTRY.len());
        assert_eq!(completed(policy(), "cfq:slice_i"), ["cfq:slice_idle="]);
        assert_eq!(completed(policy(), "cfq:quantum=4,slice_i"), ["cfq:quantum=4,slice_idle="]);
        let flags = completed(policy(), "cfq:low_latency=");
        assert_eq!(flags, ["cfq:low_latency=true", "cfq:low_latency=false"]);
        assert_eq!(completed(policy(), "cfq:slice_idle="), ["cfq:slice_idle=8ms"]);
        assert_eq!(completed(prefetcher(), "no"), ["none"]);
        assert_eq!(completed(policies(), "noop,fairw"), ["noop,fairway"]);
        assert!(completed(policy(), "none:such=").is_empty());
        assert!(completed(policy(), "\u{fc}:,=").is_empty());
    }

    #[test]
    fn every_shell_has_a_script() {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let mut script = Vec::new();
            write_script(shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("seekway"), "{shell}: {script}");
        }
    }
}
