//! Loopback ports: fixed ones for the shared servers, reserved ones for private servers.

use std::fs::File;
use std::net::TcpListener;

use super::folders;
use crate::Result;

pub(crate) const POSTGRES_15: u16 = 25_415;
pub(crate) const POSTGRES_18: u16 = 25_418;
pub(crate) const PGBOUNCER: u16 = 25_432;
pub(crate) const MYSQL: u16 = 25_306;
pub(crate) const MARIADB: u16 = 25_310;
pub(crate) const KAFKA: u16 = 29_092;
pub(crate) const KAFKA_CONTROLLER: u16 = 29_093;
pub(crate) const ELASTICMQ: u16 = 29_324;
pub(crate) const RABBITMQ: u16 = 29_672;
pub(crate) const RABBITMQ_DISTRIBUTION: u16 = 29_673;
pub(crate) const RABBITMQ_NAMES: u16 = 29_674;

/// Below the range the kernel takes for outgoing connections, so that a stopped server finds its port free again.
const PRIVATE: std::ops::Range<u16> = 21_000..25_000;

/// A port that no other private server of this machine takes while this value lives.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    _lock: File,
}

impl ReservedPort {
    pub(crate) fn any() -> Result<Self> {
        let folder = folders::servers().join("ports");
        folders::create(&folder)?;
        for port in PRIVATE {
            let lock = File::create(folder.join(port.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Ok(Self { port, _lock: lock });
            }
        }
        Err(format!("no free loopback port in {PRIVATE:?}").into())
    }

    pub(crate) fn number(&self) -> u16 {
        self.port
    }
}

/// An error that names the port when another program listens there.
pub(crate) fn check_free(port: u16) -> Result<()> {
    match TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("port {port} on 127.0.0.1 is taken by another program: {e}").into()),
    }
}
