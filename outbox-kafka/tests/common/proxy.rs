//! A TCP proxy whose line can be cut.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Stands before a server on this machine. Its threads end with the test's process.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    line: Arc<Mutex<Line>>,
}

#[derive(Debug, Default)]
struct Line {
    server: Option<String>,
    cut: bool,
    connections: Vec<TcpStream>,
}

impl Proxy {
    /// A proxy that leads nowhere yet.
    pub fn start() -> Self {
        Self::start_at("127.0.0.1")
    }

    /// The same, at this loopback address.
    pub fn start_at(host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let line = Arc::new(Mutex::new(Line::default()));
        let accepting = line.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                // A connection that cannot be made is closed again, as by a server that is down.
                let _ = client.and_then(|client| connect(client, &accepting));
            }
        });
        Self { address, line }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn lead_to(&self, server: String) {
        self.line.lock().unwrap().server = Some(server);
    }

    /// Ends all connections and takes no new ones, or takes them again.
    pub fn cut(&self, cut: bool) {
        let mut line = self.line.lock().unwrap();
        line.cut = cut;
        for connection in line.connections.drain(..).filter(|_| cut) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn connect(client: TcpStream, line: &Mutex<Line>) -> io::Result<()> {
    let mut line = line.lock().unwrap();
    let Some(server) = line.server.as_ref().filter(|_| !line.cut) else { return Ok(()) };
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        line.connections.push(stream.try_clone()?);
    }
    for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
