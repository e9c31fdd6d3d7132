//! RabbitMQ as a test sees it: a queue, and everything that comes out of it.

use std::time::{Duration, Instant};

use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use outbox::rabbitmq::received;

use super::checker::Arrival;
use super::listener::{Ending, Listener, stamp};

/// How often an empty queue is looked at, and a broker that is down.
const POLL: Duration = Duration::from_millis(5);
/// Time without a broker after which reading has failed: longer than a restart.
const DOWN_LIMIT: Duration = Duration::from_secs(120);

/// Creates a durable queue and reads it from now on, also through restarts of the broker.
pub(crate) async fn listen(url: &str, queue: &str) -> Listener {
    create_queue(url, queue).await;
    let (url, queue) = (url.to_owned(), queue.to_owned());
    Listener::start(|ending| read(url, queue, ending))
}

/// Creates a durable queue.
pub(crate) async fn create_queue(url: &str, queue: &str) {
    let (_connection, channel) = connect(url).await.unwrap();
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
}

/// A connection, which lives as long as its value, and a channel on it.
pub(crate) async fn connect(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

async fn read(url: String, queue: String, ending: Ending) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut heard = Instant::now();
    while let Err(error) = read_on(&url, &queue, &ending, &mut arrivals, &mut heard).await {
        assert!(heard.elapsed() < DOWN_LIMIT, "{queue} cannot be read: {error}");
        tokio::time::sleep(POLL).await;
    }
    arrivals
}

/// One message at a time, so that at most one acknowledgement is lost when the broker goes.
async fn read_on(
    url: &str,
    queue: &str,
    ending: &Ending,
    arrivals: &mut Vec<Arrival>,
    heard: &mut Instant,
) -> lapin::Result<()> {
    let (_connection, channel) = connect(url).await?;
    loop {
        let is_last = ending.is_near();
        let message = channel.basic_get(queue.into(), BasicGetOptions::default()).await?;
        *heard = Instant::now();
        match message {
            Some(message) => {
                stamp(arrivals, received(&message.delivery).unwrap(), queue);
                message.delivery.acker.ack(BasicAckOptions::default()).await?;
            }
            None if is_last => return Ok(()),
            None => tokio::time::sleep(POLL).await,
        }
    }
}
