//! A TCP proxy before a broker: its line can be cut or narrow, its answers delayed or held back, and one message misdirected.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Stands before a broker on this machine. Its threads end with the test's process.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    line: Arc<Line>,
}

#[derive(Debug, Default)]
struct Line {
    server: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cut: bool,
    silent: bool,
    delay: Duration,
    /// On the way to the broker.
    bytes_per_second: Option<u32>,
    /// Bytes after which the line is cut on the way to the broker.
    bytes_left: Option<usize>,
    /// The `message_id` of the message whose routing key becomes one that leads nowhere.
    misdirected: Option<Vec<u8>>,
    connections: Vec<TcpStream>,
}

impl Proxy {
    pub fn before(server: impl Into<String>) -> Self {
        Self::at("127.0.0.1", server)
    }

    /// The same, at this loopback address.
    pub fn at(host: &str, server: impl Into<String>) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let line = Arc::new(Line { server: server.into(), ..Line::default() });
        let accepting = line.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                // A connection that cannot be made is closed again, as by a broker that is down.
                let _ = client.and_then(|client| connect(client, &accepting));
            }
        });
        Self { address, line }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Lets no more than this through to the broker.
    pub fn limit(&self, bytes_per_second: Option<u32>) {
        self.line.state.lock().unwrap().bytes_per_second = bytes_per_second;
    }

    /// Ends all connections and takes no new ones, or takes them again.
    pub fn cut(&self, cut: bool) {
        let mut state = self.line.state.lock().unwrap();
        state.cut = cut;
        if cut {
            state.end_connections();
        }
    }

    /// Ends all connections once this many bytes more have gone to the broker; new ones are taken.
    pub fn cut_after(&self, bytes: usize) {
        self.line.state.lock().unwrap().bytes_left = Some(bytes);
    }

    /// Holds the broker's answers back, or lets them through again.
    pub fn silence(&self, silent: bool) {
        self.line.state.lock().unwrap().silent = silent;
        self.line.changed.notify_all();
    }

    /// Delays the broker's answers.
    pub fn slow(&self, delay: Duration) {
        self.line.state.lock().unwrap().delay = delay;
    }

    /// Changes the routing key of the next message with this id to one that leads nowhere.
    pub fn misdirect(&self, message_id: &str) {
        self.line.state.lock().unwrap().misdirected = Some(message_id.as_bytes().to_vec());
    }
}

impl State {
    fn end_connections(&mut self) {
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn connect(client: TcpStream, line: &Arc<Line>) -> io::Result<()> {
    let mut state = line.state.lock().unwrap();
    if state.cut {
        return Ok(());
    }
    let server = TcpStream::connect(&line.server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        state.connections.push(stream.try_clone()?);
    }
    drop(state);
    let up = (client.try_clone()?, server.try_clone()?, line.clone());
    std::thread::spawn(move || {
        let (mut from, mut to, line) = up;
        let _ = forward(&mut from, &mut to, &line);
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to, line) = (server, client, line.clone());
    std::thread::spawn(move || {
        let _ = answer(&mut from, &mut to, &line);
        let _ = to.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn answer(from: &mut TcpStream, to: &mut TcpStream, line: &Line) -> io::Result<()> {
    let mut buffer = [0; 16_384];
    loop {
        let read = from.read(&mut buffer)?;
        let mut state = line.state.lock().unwrap();
        while state.silent {
            state = line.changed.wait(state).unwrap();
        }
        let delay = state.delay;
        drop(state);
        std::thread::sleep(delay);
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
    }
}

/// Frame by frame, after the eight bytes that begin a connection; what is encrypted goes as it is.
fn forward(from: &mut TcpStream, to: &mut TcpStream, line: &Line) -> io::Result<()> {
    let mut start = [0; 8];
    from.read_exact(&mut start)?;
    to.write_all(&start)?;
    if !start.starts_with(b"AMQP") {
        return io::copy(from, to).map(drop);
    }
    loop {
        let mut frame = read_frame(from)?;
        if is_publish(&frame) {
            let header = read_frame(from)?;
            let mut state = line.state.lock().unwrap();
            let hit = |id: &Vec<u8>| header.windows(id.len()).any(|window| window == id);
            if state.misdirected.as_ref().is_some_and(hit) {
                state.misdirected = None;
                misdirect(&mut frame);
            }
            drop(state);
            frame.extend(header);
        }
        let mut state = line.state.lock().unwrap();
        if !state.takes(frame.len()) {
            return Ok(());
        }
        let limit = state.bytes_per_second;
        drop(state);
        if let Some(limit) = limit {
            std::thread::sleep(
                Duration::from_secs(1).mul_f64(frame.len() as f64 / f64::from(limit)),
            );
        }
        to.write_all(&frame)?;
    }
}

impl State {
    fn takes(&mut self, bytes: usize) -> bool {
        let Some(left) = &mut self.bytes_left else { return true };
        let enough = *left >= bytes;
        *left = left.saturating_sub(bytes);
        if !enough {
            self.bytes_left = None;
            self.end_connections();
        }
        enough
    }
}

/// Type, channel, size, payload, end.
fn read_frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 7];
    from.read_exact(&mut frame)?;
    let size = u32::from_be_bytes(frame[3..7].try_into().unwrap()) as usize;
    frame.resize(7 + size + 1, 0);
    from.read_exact(&mut frame[7..])?;
    Ok(frame)
}

/// A method frame of class 60, method 40.
fn is_publish(frame: &[u8]) -> bool {
    frame[0] == 1 && frame[7..11] == [0, 60, 0, 40]
}

/// Behind the method: two reserved bytes, the exchange and the routing key, each with its length.
fn misdirect(frame: &mut [u8]) {
    let exchange = 13;
    let key = exchange + 1 + usize::from(frame[exchange]);
    let length = usize::from(frame[key]);
    frame[key + 1..=key + length].fill(b'?');
}
