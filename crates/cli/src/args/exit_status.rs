//! The exit statuses of all commands, in `--help` and in the man pages. docs/exit-status.md
//! has the same for all commands together.

use clap::Command;

/// Text of `--help` for commands with the usual exit status.
const USUAL: &str = "Exit status: 0 if it did what was asked, 2 for wrong usage, input or output.";

/// Commands that judge something: status 1.
const JUDGES: [(&str, &str); 2] = [
    (
        "replay",
        "Exit status: 0 if the policy decides the same, 1 if not, 2 for wrong usage or input.",
    ),
    (
        "predict",
        "Exit status: 0 if it did what was asked, 1 if the model misses a figure of \
         --against published, 2 for\nwrong usage or input.",
    ),
];

/// Adds the exit status to all commands that do not say theirs.
pub fn explained(command: Command) -> Command {
    let command = command.mut_subcommands(explained);
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if command.has_subcommands() || help.contains("Exit status") {
        return command;
    }
    let judge = JUDGES.iter().find(|(name, _)| *name == command.get_name());
    let said = match judge {
        Some((_, said)) => said,
        None => USUAL,
    };
    let blank = if help.is_empty() { "" } else { "\n\n" };
    command.after_help(format!("{help}{blank}{said}"))
}
