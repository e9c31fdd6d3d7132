//! The connection to the broker, and the way to end it at once.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties, Error};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls;

/// Ends a connection at once, also one that is being made and one whose broker does not answer: nothing of what lapin
/// still holds can be sent any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plug(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    pulled: bool,
    socket: Option<TcpStream>,
}

impl Plug {
    pub(crate) fn pull(&self) {
        let mut state = self.state();
        state.pulled = true;
        if let Some(socket) = state.socket.take() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Pulls the plug when it is dropped, unless it was told to [`keep`](Guard::keep) the connection.
    pub(crate) fn guard(&self) -> Guard {
        Guard(Some(self.clone()))
    }

    fn put_in(&self, socket: TcpStream) -> io::Result<()> {
        let mut state = self.state();
        if state.pulled {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.socket = Some(socket);
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no panic while it is locked")
    }
}

/// Ends a connection that nobody waits for any more: lapin's thread would go on with it.
#[derive(Debug)]
pub(crate) struct Guard(Option<Plug>);

impl Guard {
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(plug) = &self.0 {
            plug.pull();
        }
    }
}

/// Connects. Does not end before the broker answers or the plug is pulled.
pub(crate) async fn connect(
    uri: AMQPUri,
    tls: Option<&Tls>,
    plug: Plug,
) -> lapin::Result<Connection> {
    let tls = tls.cloned().unwrap_or_default();
    let name = ConnectionProperties::default().with_connection_name("outbox".into());
    let runtime = lapin::runtime::default_runtime()?;
    Connection::connector(
        uri,
        runtime,
        async move |uri, runtime| {
            let connected = async {
                let host = uri.authority.host.clone();
                let address = runtime.to_socket_addrs((host.clone(), uri.authority.port));
                let stream = AsyncTcpStream::connect(&runtime, address).await?;
                if let AsyncTcpStream::Plain(socket) = &stream {
                    let socket = socket.get_ref();
                    socket.set_nodelay(true)?;
                    // A connection that is ended at once also forgets what the kernel has not sent yet.
                    socket.set_zero_linger()?;
                    let same: OwnedFd = socket.as_fd().try_clone_to_owned()?;
                    plug.put_in(same.into())?;
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => stream.into_rustls(&connector(&tls)?, &host).await,
                }
            };
            connected.await.map_err(Error::from)
        },
        name,
    )
    .await
}

/// Who we are, and whom we trust.
fn connector(tls: &Tls) -> io::Result<RustlsConnector> {
    let trusting = trusting(tls)?;
    match (&tls.certificate_pem, &tls.key_pem) {
        (Some(chain), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(not_pem)?;
            trusting.connector_with_single_cert(certificates(chain)?, key)
        }
        _ => trusting.connector_with_no_client_auth(),
    }
}

/// The authorities that are given, and no others; else the system's.
fn trusting(tls: &Tls) -> io::Result<RustlsConnectorConfig> {
    let Some(authorities) = &tls.ca_pem else {
        return RustlsConnectorConfig::new_with_native_certs();
    };
    let authorities = certificates(authorities)?;
    Ok(RustlsConnectorConfig::default().with_parsable_certificates(authorities))
}

fn certificates(pem: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(not_pem)
}

fn not_pem(error: pem::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[test]
    fn authorities_that_are_given_stand_instead_of_the_systems() {
        let tls = Tls::default().with_ca_pem(CERTIFICATE.repeat(2));
        let trusting = format!("{:?}", trusting(&tls).unwrap());
        assert!(trusting.contains("extra_roots: 2, native_certs: 0"), "{trusting}");
    }
}
