//! Man pages of a program and its subcommands, from the definitions of its command line; arguments
//! of its command `generate`; and commands that have another name now.
//!
//! `clap_mangen` renders names, descriptions and options. This crate makes the rest: the title with
//! the program's version, a synopsis that does not list every option, and examples as lines that
//! can be copied (it fills and hyphenates them like prose).

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

// No doc comment: it would stand in the place of the commands' own help.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// Name of a shell, for its completion script; or `man`, for the man pages
    #[arg(
        value_name = "SHELL|man",
        value_parser = ["man", "bash", "elvish", "fish", "powershell", "zsh"]
    )]
    pub what: String,
    /// Folder of the man pages; created if missing
    #[arg(required_if_eq("what", "man"))]
    pub dir: Option<PathBuf>,
}

impl GenerateArgs {
    /// The folder for man pages; `None` where a completion script is asked for.
    ///
    /// # Errors
    /// A folder for a script.
    pub fn man_folder(&self) -> Result<Option<&Path>, String> {
        match &self.dir {
            Some(dir) if self.what != "man" => Err(format!(
                "{}: the script for {} goes to standard output: leave the folder out",
                dir.display(),
                self.what
            )),
            dir => Ok(dir.as_deref()),
        }
    }
}

/// The message for somebody who types a command of before. `moved` has the first words of such
/// commands, longer ones before shorter ones, each with the command that took its place.
pub fn moved(arguments: &[OsString], moved: &[(&str, &str)]) -> Option<String> {
    let is_typed = |old: &str| {
        let mut typed = arguments.iter();
        old.split(' ').all(|word| typed.next().is_some_and(|typed| typed == word))
    };
    let (old, new) = moved.iter().find(|(old, _)| is_typed(old))?;
    Some(format!("there is no command `{old}` any more: type `{new}`"))
}

/// Write the pages of a program and of all its subcommands into a folder, `NAME-SUBCOMMAND.1`.
pub fn write_pages(program: Command, dir: &Path) -> io::Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let source = format!("{} {}", program.get_name(), program.get_version().unwrap_or_default());
    write_with_subcommands(&program, program.get_name(), source.trim(), dir)
}

fn write_with_subcommands(
    command: &Command,
    program: &str,
    source: &str,
    dir: &Path,
) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        write_with_subcommands(subcommand, program, source, dir)?;
    }
    let mut text = Vec::new();
    render(command, program, source, &mut text)?;
    std::fs::write(dir.join(format!("{}.1", page_name(command))), text)
}

/// `seekway-ctl-limit`
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn render(command: &Command, program: &str, source: &str, out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone());
    // Left-aligned, and no hyphens: they would break the names of options and files.
    writeln!(out, ".TH \"{}\" \"1\" \"\" \"{source}\" \"Seekway\"", page_name(command))?;
    writeln!(out, ".ad l\n.nh")?;
    man.render_name_section(out)?;
    synopsis(command).to_writer(out)?;
    man.render_description_section(out)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(out)?;
    }
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    if let Some(help) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        after_help(&help.to_string()).to_writer(out)?;
    }
    if page_name(command) != program {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([bold(program), roman("(1)")]);
        roff.to_writer(out)?;
    }
    Ok(())
}

/// The usage as `--help` prints it: `seekway ctl limit [OPTIONS] [DISK] <LIMITS>`.
fn synopsis(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    for (number, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
        if number > 0 {
            roff.control("br", []);
        }
        let line = line.trim();
        match line.strip_prefix(name) {
            Some(rest) => roff.text([bold(name), roman(rest)]),
            None => roff.text([roman(line)]),
        };
    }
    roff
}

/// The paragraphs below the options: examples as they are, and the rest as prose.
fn after_help(help: &str) -> Roff {
    let mut roff = Roff::new();
    let mut noted = false;
    for paragraph in help.split("\n\n") {
        if let Some(examples) = examples(paragraph) {
            roff.control("SH", ["EXAMPLES"]).control("nf", []);
            for line in examples.lines() {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            roff.control("fi", []);
            noted = false;
            continue;
        }
        match noted {
            true => roff.control("PP", []),
            false => roff.control("SH", ["NOTES"]),
        };
        noted = true;
        for line in paragraph.lines() {
            roff.text([roman(line)]);
        }
    }
    roff
}

/// The lines of a paragraph that begins with `Examples:`.
fn examples(paragraph: &str) -> Option<&str> {
    ["Examples:\n", "Example:\n"].iter().find_map(|head| paragraph.strip_prefix(head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn command() -> Command {
        let limit = Command::new("limit")
            .about("Limit a disk")
            .arg(Arg::new("group").long("group").value_name("NAME").help("A group instead"))
            .arg(Arg::new("DISK").required(true))
            .after_help(
                "Examples:\n  prog limit --group a-b 'x.img'\n  prog limit web\n\nIt ends at once.",
            );
        Command::new("prog").version("1.2").about("Does things").subcommand(limit)
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = std::env::temp_dir().join(format!("seekway-man-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        write_pages(command(), &dir).unwrap();
        let main = std::fs::read_to_string(dir.join("prog.1")).unwrap();
        let limit = std::fs::read_to_string(dir.join("prog-limit.1")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(main.starts_with(".TH \"prog\" \"1\" \"\" \"prog 1.2\" \"Seekway\"\n"), "{main}");
        assert!(main.contains("prog\\-limit(1)"), "{main}");
        assert!(!main.contains("SEE ALSO"), "{main}");
        assert!(limit.contains("\\fBprog limit\\fR [OPTIONS] <DISK>"), "{limit}");
        assert!(limit.contains(".SH \"SEE ALSO\"\n\\fBprog\\fR(1)"), "{limit}");
    }

    #[test]
    fn the_first_words_tell_what_took_their_place() {
        let table = [("disk check", "predict DISK"), ("disk", "list disks")];
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            moved(&words, &table)
        };
        assert!(of("disk check --x").is_some_and(|said| said.ends_with("`predict DISK`")));
        assert!(of("disk list").is_some_and(|said| said.ends_with("`list disks`")));
        assert_eq!(of("list disk"), None);
    }

    #[test]
    fn examples_keep_their_lines() {
        let help = "Examples:\n  prog a\n  prog b\n\nMore\nof it.\n\nLast.";
        let made = after_help(help).to_roff();
        let at = |part: &str| made.find(part).unwrap_or_else(|| panic!("no {part} in {made}"));
        assert!(at(".SH EXAMPLES\n.nf\nprog a\nprog b\n.fi") < at(".SH NOTES\nMore\nof it."));
        assert!(at(".SH NOTES") < at(".PP\nLast."));
        assert_eq!(made.matches("NOTES").count(), 1, "{made}");
    }
}
