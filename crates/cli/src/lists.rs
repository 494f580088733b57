//! Lists on the command line.

use anyhow::{Result, bail};

/// Refuses a list that names the same twice: these runs would have the same name.
pub fn check_distinct<T: PartialEq>(
    flag: &str,
    list: &[T],
    name: impl Fn(&T) -> String,
) -> Result<()> {
    for (n, item) in list.iter().enumerate() {
        if list[..n].contains(item) {
            bail!("{flag}: {} is given twice", name(item));
        }
    }
    Ok(())
}
