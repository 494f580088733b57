//! Lists, on the command line above all.

use anyhow::{Result, bail};

/// Each item once, in the order of its first.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

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
