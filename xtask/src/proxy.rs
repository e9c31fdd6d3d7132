//! A TCP proxy before a server, whose line a test can make bad: cut, silent, slow, narrow, or dead without a word.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Reads from a client what goes to the server in one piece; nothing at the end of the stream. One for each connection.
pub type Pieces = Box<dyn FnMut(&mut TcpStream) -> io::Result<Vec<u8>> + Send>;

/// Stands before a server on this machine. Its threads end with the test's process.
///
/// All methods panic when the test cannot go on.
pub struct Proxy {
    address: String,
    line: Arc<Line>,
}

struct Line {
    state: Mutex<State>,
    changed: Condvar,
    pieces: Box<dyn Fn() -> Pieces + Send + Sync>,
}

#[derive(Default)]
struct State {
    server: Option<String>,
    connections: Vec<TcpStream>,
    cut: bool,
    /// Bytes after which the line is cut on the way to the server.
    bytes_left: Option<usize>,
    silent: bool,
    delay: Duration,
    /// On the way to the server.
    bytes_per_second: Option<u32>,
    /// Odd while everything is swallowed.
    weather: u64,
}

impl Proxy {
    /// A proxy before the server of this URL: `scheme://user:password@host:port/…`. [`through`](Self::through) gives the
    /// URL that leads by way of it.
    #[track_caller]
    pub fn before_url(url: &str) -> Self {
        Self::before(authority(url))
    }

    /// A proxy before the server at this address, `host:port`.
    #[track_caller]
    pub fn before(server: impl Into<String>) -> Self {
        let proxy = Self::start();
        proxy.lead_to(server);
        proxy
    }

    /// A proxy that leads nowhere yet.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_at("127.0.0.1")
    }

    /// The same, at this loopback address.
    #[track_caller]
    pub fn start_at(host: &str) -> Self {
        Self::start_with(host, || Box::new(read_some))
    }

    /// The same, for a protocol that is to be seen message by message: what `pieces` makes reads them.
    #[track_caller]
    pub fn start_with(host: &str, pieces: impl Fn() -> Pieces + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("a free port");
        let address = listener.local_addr().expect("the port is bound").to_string();
        let (state, changed) = (Mutex::default(), Condvar::new());
        let line = Arc::new(Line { state, changed, pieces: Box::new(pieces) });
        let accepting = line.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                // A connection that cannot be made is closed again, as by a server that is down.
                let _ = client.and_then(|client| accepting.connect(client));
            }
        });
        Self { address, line }
    }

    /// Leads new connections to this address, `host:port`.
    pub fn lead_to(&self, server: impl Into<String>) {
        self.line.state().server = Some(server.into());
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// This URL by way of the proxy.
    pub fn through(&self, url: &str) -> String {
        url.replacen(authority(url), &self.address, 1)
    }

    /// Ends all connections and takes no new ones, or takes them again.
    pub fn cut(&self, cut: bool) {
        let mut state = self.line.state();
        state.cut = cut;
        if cut {
            state.end_connections();
        }
    }

    /// Ends all connections before more than this many bytes have gone to the server; new ones are taken.
    pub fn cut_after(&self, bytes: usize) {
        self.line.state().bytes_left = Some(bytes);
    }

    /// Holds the server's answers back, or lets them through again.
    pub fn silence(&self, silent: bool) {
        self.line.state().silent = silent;
        self.line.changed.notify_all();
    }

    /// Delays the server's answers.
    pub fn slow(&self, delay: Duration) {
        self.line.state().delay = delay;
    }

    /// Lets no more than this through to the server.
    pub fn limit(&self, bytes_per_second: Option<u32>) {
        self.line.state().bytes_per_second = bytes_per_second;
    }

    /// Swallows everything: no reset, no end of stream, packets just do not arrive. A connection that lives through it
    /// never gets a byte through again.
    pub fn swallow(&self) {
        self.change_weather(0);
    }

    /// Swallows nothing of new connections.
    pub fn heal(&self) {
        self.change_weather(1);
    }

    #[track_caller]
    fn change_weather(&self, from: u64) {
        let mut state = self.line.state();
        assert_eq!(state.weather % 2, from, "swallow and heal come in turn");
        state.weather += 1;
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the line is locked")
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let mut state = self.state();
        let Some(server) = state.server.as_ref().filter(|_| !state.cut) else { return Ok(()) };
        let server = TcpStream::connect(server)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            state.connections.push(stream.try_clone()?);
        }
        let born = state.weather;
        drop(state);
        let (line, mut from, mut to) = (self.clone(), client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            let _ = line.forward(&mut from, &mut to, born);
            let _ = to.shutdown(Shutdown::Both);
        });
        let (line, mut from, mut to) = (self.clone(), server, client);
        thread::spawn(move || {
            let _ = line.answer(&mut from, &mut to, born);
            let _ = to.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    fn forward(&self, from: &mut TcpStream, to: &mut TcpStream, born: u64) -> io::Result<()> {
        let mut read = (self.pieces)();
        loop {
            let piece = read(from)?;
            let mut state = self.state_unless_swallowed(born);
            if piece.is_empty() || !state.takes(piece.len()) {
                return Ok(());
            }
            let limit = state.bytes_per_second;
            drop(state);
            if let Some(limit) = limit {
                thread::sleep(Duration::from_secs_f64(piece.len() as f64 / f64::from(limit)));
            }
            to.write_all(&piece)?;
        }
    }

    fn answer(&self, from: &mut TcpStream, to: &mut TcpStream, born: u64) -> io::Result<()> {
        loop {
            let piece = read_some(from)?;
            let mut state = self.state_unless_swallowed(born);
            while state.silent {
                state = self.changed.wait(state).expect("no panic while the line is locked");
            }
            let delay = state.delay;
            drop(state);
            thread::sleep(delay);
            if piece.is_empty() {
                return Ok(());
            }
            to.write_all(&piece)?;
        }
    }

    /// Does not return when this connection is swallowed: both sockets stay open, and neither side hears of an end.
    fn state_unless_swallowed(&self, born: u64) -> MutexGuard<'_, State> {
        let state = self.state();
        if state.weather == born && born.is_multiple_of(2) {
            return state;
        }
        drop(state);
        loop {
            thread::park();
        }
    }
}

impl State {
    fn end_connections(&mut self) {
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

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

/// What has come.
pub fn read_some(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 16 << 10];
    let read = from.read(&mut buffer)?;
    buffer.truncate(read);
    Ok(buffer)
}

/// `host:port` of a URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split(['/', '?']).next().unwrap_or_default();
    place.rsplit_once('@').map_or(place, |(_, place)| place)
}
