//! A link that dies without a word: no reset, no end of stream, packets just do not arrive any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox_core::{Store as _, StoreErrorKind};
use outbox_postgres::{PostgresConfig, PostgresStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{Outbox, event, everything};

const CALLERS: usize = 4;
/// The time-out of a statement and what the client waits beyond it, and that again for callers that waited for a place.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
const HEALED_WITHIN: Duration = Duration::from_secs(30);

/// Every caller gets its answer although no packet comes any more, and once new connections get through, all of the
/// pool's places can be used again. Covers B211.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_swallows_everything_costs_no_connection_for_good() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1")]).await;
    let link = Link::open(&outbox.url).await;
    let config = PostgresConfig::from_url(&link.url).unwrap();
    let config = config.with_pool_size(2).with_statement_timeout(Duration::from_secs(1));
    let store = Arc::new(PostgresStore::new(&config).unwrap());
    for result in claims(&store).await {
        assert_eq!(result, Ok(1), "the link is good");
    }

    link.swallow();
    let swallowed = Instant::now();
    let answers = tokio::time::timeout(ANSWERED_WITHIN, claims(&store));
    for result in answers.await.expect("every caller gets an answer") {
        assert_eq!(result, Err(StoreErrorKind::Unavailable));
    }
    link.heal();
    let healed = Instant::now();
    while claims(&store).await != [Ok(1); CALLERS] {
        assert!(healed.elapsed() < HEALED_WITHIN, "the pool does not recover");
    }
    println!("swallowed for {:?}, well {:?} later", healed - swallowed, healed.elapsed());
}

/// What some callers get that claim at the same time.
async fn claims(store: &Arc<PostgresStore>) -> Vec<Result<usize, StoreErrorKind>> {
    let claim = |store: Arc<PostgresStore>| async move {
        let claimed = store.claim(&everything(16)).await;
        claimed.map(|claimed| claimed.events.len()).map_err(|error| error.kind())
    };
    let tasks: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(claim(store.clone()))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// Passes bytes on between clients and the server, until it is told to swallow them.
struct Link {
    url: String,
    /// Odd while everything is swallowed. A connection that lived through such a time never gets a byte through again.
    weather: Arc<AtomicU64>,
}

impl Link {
    async fn open(url: &str) -> Self {
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

    fn swallow(&self) {
        assert_eq!(self.weather.fetch_add(1, Ordering::SeqCst) % 2, 0);
    }

    fn heal(&self) {
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
