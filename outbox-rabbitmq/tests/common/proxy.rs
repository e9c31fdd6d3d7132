//! The proxy before a broker, which knows the frames of AMQP: one message can be misdirected.

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use xtask::proxy::read_some;

/// Pieces are frames, after the eight bytes that begin a connection; what is encrypted goes as it comes.
#[derive(Debug)]
pub struct Proxy {
    line: xtask::proxy::Proxy,
    /// The `message_id` of the message whose routing key becomes one that leads nowhere.
    misdirected: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Deref for Proxy {
    type Target = xtask::proxy::Proxy;

    fn deref(&self) -> &Self::Target {
        &self.line
    }
}

impl Proxy {
    pub fn before(server: impl Into<String>) -> Self {
        Self::at("127.0.0.1", server)
    }

    /// The same, at this loopback address.
    pub fn at(host: &str, server: impl Into<String>) -> Self {
        let misdirected = Arc::new(Mutex::new(None));
        let ids = misdirected.clone();
        let line = xtask::proxy::Proxy::start_with(host, move || {
            let (ids, mut protocol) = (ids.clone(), None);
            Box::new(move |from| match protocol {
                None => {
                    let start = read_exactly(from, 8)?;
                    protocol = Some(start.starts_with(b"AMQP"));
                    Ok(start)
                }
                Some(true) => read_message(from, &ids),
                Some(false) => read_some(from),
            })
        });
        line.lead_to(server);
        Self { line, misdirected }
    }

    /// Changes the routing key of the next message with this id to one that leads nowhere.
    pub fn misdirect(&self, message_id: &str) {
        *self.misdirected.lock().unwrap() = Some(message_id.as_bytes().to_vec());
    }
}

/// A frame; a message's first two frames together.
fn read_message(from: &mut TcpStream, misdirected: &Mutex<Option<Vec<u8>>>) -> io::Result<Vec<u8>> {
    let mut frame = read_frame(from)?;
    if is_publish(&frame) {
        let header = read_frame(from)?;
        let hit = |id: &mut Vec<u8>| header.windows(id.len()).any(|window| window == id);
        if misdirected.lock().unwrap().take_if(hit).is_some() {
            misdirect(&mut frame);
        }
        frame.extend(header);
    }
    Ok(frame)
}

/// Type, channel, size, payload, end.
fn read_frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = read_exactly(from, 7)?;
    let size = u32::from_be_bytes(frame[3..7].try_into().unwrap()) as usize;
    frame.extend(read_exactly(from, size + 1)?);
    Ok(frame)
}

fn read_exactly(from: &mut TcpStream, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    from.read_exact(&mut buffer)?;
    Ok(buffer)
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
