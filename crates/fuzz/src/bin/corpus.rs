//! Moves a target's kept inputs to a folder with a file for each, as libFuzzer
//! takes them, and back: `seekway-corpus unpack|pack TARGET FOLDER`. `pack` keeps what is kept, and
//! adds the shortest inputs up to [`TEXT_BYTES_MAX`]. `seekway-corpus list` lists the targets.

use seekway_fuzz::{INPUT_BYTES_MAX, TARGETS, corpus};
use std::{env, fs, io, process};

/// Largest file of kept inputs.
const TEXT_BYTES_MAX: usize = 24 << 10;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["list"] => TARGETS.iter().for_each(|target| println!("{}", target.name)),
        ["unpack", target, folder] => {
            fs::create_dir_all(folder)?;
            for (i, input) in corpus::kept(target).iter().enumerate() {
                fs::write(format!("{folder}/kept-{i:04}"), input)?;
            }
        }
        ["pack", target, folder] => {
            let files = fs::read_dir(folder)?.map(|entry| fs::read(entry?.path()));
            let mut inputs: Vec<Vec<u8>> = files.collect::<io::Result<_>>()?;
            inputs.retain(|input| input.len() <= INPUT_BYTES_MAX);
            inputs.sort_by_key(|input| (input.len(), input.clone()));
            let path = corpus::path(target);
            let mut text = fs::read_to_string(&path).unwrap_or_default();
            let kept = corpus::kept(target);
            inputs.retain(|input| !kept.contains(input));
            for line in inputs.iter().map(|input| corpus::escape(input)) {
                if text.len() + line.len() < TEXT_BYTES_MAX {
                    text += &(line + "\n");
                }
            }
            fs::write(path, text)?;
        }
        _ => {
            eprintln!("usage: seekway-corpus list | unpack TARGET FOLDER | pack TARGET FOLDER");
            process::exit(2);
        }
    }
    Ok(())
}
