//! Compiles the BPF programs (`bpf/*.bpf.c`) with clang, for the feature `bpf`. Without it
//! nothing is done, and no clang is needed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each is one object, loaded by itself.
const PROGRAMS: [&str; 3] = ["steal", "tick", "waits"];

/// Version 3 of the instructions has the atomic operations that return the old value (Linux 5.12).
/// `-g` for the types of maps and fields (BTF).
const FLAGS: [&str; 7] = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror"];

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in PROGRAMS {
        compile(name, &out);
    }
}

fn compile(name: &str, out: &Path) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let source = format!("bpf/{name}.bpf.c");
    let object = out.join(format!("{name}.bpf.o"));
    let mut command = Command::new(&clang);
    // Nothing of this folder is to be in the object: the same source gives the same bytes.
    command.args(FLAGS).arg("-fdebug-compilation-dir=.").args(["-c", &source, "-o"]).arg(object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not compile crates/guestd/{source}: {status}"),
        Err(e) => panic!(
            "cannot run {clang}, which the feature `bpf` of seekway-guestd needs: {e}. Install \
             it (apt-get install clang, or scripts/install-deps), name another in the variable \
             CLANG, or build without the feature"
        ),
    }
}
