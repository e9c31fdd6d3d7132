//! A link to a database server that can be made to swallow everything: no reset, no end of stream, packets just do not arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Passes bytes on between clients and the server, until it is told to swallow them.
pub(crate) struct Link {
    pub(crate) url: String,
    /// Odd while everything is swallowed. A connection that lived through such a time never gets a byte through again.
    weather: Arc<AtomicU64>,
}

impl Link {
    /// A link to the server of this URL.
    pub(crate) async fn open(url: &str) -> Self {
        let (before, rest) = url.split_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{before}@{}/{database}", listener.local_addr().unwrap());
        let weather = Arc::new(AtomicU64::new(0));
        let (of_link, server) = (weather.clone(), server.to_owned());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let (up, down) = (Valve::new(&of_link), Valve::new(&of_link));
                tokio::spawn(async move { up.pass(&mut from_client, &mut to_server).await });
                tokio::spawn(async move { down.pass(&mut from_server, &mut to_client).await });
            }
        });
        Self { url, weather }
    }

    pub(crate) fn swallow(&self) {
        assert_eq!(self.weather.fetch_add(1, Ordering::SeqCst) % 2, 0);
    }

    pub(crate) fn heal(&self) {
        assert_eq!(self.weather.fetch_add(1, Ordering::SeqCst) % 2, 1);
    }
}

/// One direction of one connection.
struct Valve {
    weather: Arc<AtomicU64>,
    born: u64,
}

impl Valve {
    fn new(weather: &Arc<AtomicU64>) -> Self {
        Self { weather: weather.clone(), born: weather.load(Ordering::SeqCst) }
    }

    async fn pass<R, W>(&self, from: &mut R, to: &mut W)
    where
        R: tokio::io::AsyncRead + Unpin,
        W: tokio::io::AsyncWrite + Unpin,
    {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count) = from.read(&mut buffer).await {
            let open =
                self.born.is_multiple_of(2) && self.weather.load(Ordering::SeqCst) == self.born;
            if !open {
                // Neither side hears of the end: both sockets stay open, and nothing comes through.
                std::future::pending::<()>().await;
            }
            if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    }
}
