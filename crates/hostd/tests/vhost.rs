//! The vhost-user-blk front end, on a reactor with real images: with a client
//! written by others (crate `virtio-driver`), and with one that does what it
//! should not.

mod common;
#[path = "vhost/driver.rs"]
mod driver;
#[path = "vhost/server.rs"]
mod server;

use common::pattern;
use driver::Driver;
use server::Server;

const MIB: u64 = 1 << 20;

#[test]
fn what_is_written_is_read() {
    let server = Server::start(MIB, 1);
    let mut driver = Driver::connect(&server, 1, 128);
    let data = pattern(1, 64 << 10);
    assert_eq!(driver.write(0, 4096, &data), 0);
    assert_eq!(driver.flush(0), 0);
    assert_eq!(driver.read(0, 4096, data.len()), (0, data.clone()));
    assert_eq!(&server.image()[4096..4096 + data.len()], &data[..]);
    drop(driver);
    server.stop();
}
