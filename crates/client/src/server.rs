//! Starts peers' servers.

use crate::load::Result;
use std::path::Path;

/// Tells whether somebody listens on this socket. Asks the kernel, because a server takes a
/// connection for its one client.
pub fn listening(socket: &Path) -> Result<bool> {
    let text = std::fs::read_to_string("/proc/net/unix")
        .map_err(|error| format!("/proc/net/unix: {error}"))?;
    let Some(name) = socket.to_str() else {
        return Err(format!("{}: a path that is no UTF-8", socket.display()));
    };
    // Num RefCount Protocol Flags Type St Inode Path; 00010000 is __SO_ACCEPTCON.
    Ok(text.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(3);
        fields.next() == Some("00010000") && fields.nth(3) == Some(name)
    }))
}

/// An image as a node of QEMU's storage daemon: by io_uring, past the page cache.
pub fn qemu_file(node: &str, image: &Path) -> String {
    let image = image.display();
    format!("driver=file,node-name={node},filename={image},aio=io_uring,cache.direct=on")
}
