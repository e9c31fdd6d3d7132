//! Queues: how a destination names one, and what is known of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use outbox_core::{Failure, FailureClass};
use tokio::sync::Semaphore;

use crate::SqsConfig;
use crate::config::SQS_MAX_BYTES;
use crate::error;

/// The longest name of a queue in characters, with `.fifo`.
const MAX_NAME_CHARS: usize = 80;
const FIFO_SUFFIX: &str = ".fifo";
/// What is known of a queue is asked for again after this time: its limits may be changed while a relay runs.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// A queue that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) url: String,
    pub(crate) fifo: bool,
    /// The queue's own `MaximumMessageSize`.
    pub(crate) max_message_bytes: usize,
}

/// The queues that were found, by destination.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<Known>);

type Known = HashMap<Arc<str>, (Instant, Arc<Queue>)>;

impl Queues {
    /// The queue of this destination: from memory, else from SQS, for which it takes a permit. A failure is `Refused` or `Unavailable`: nothing was sent.
    pub(crate) async fn find(
        &self,
        client: &Client,
        config: &SqsConfig,
        permits: &Semaphore,
        destination: &Arc<str>,
    ) -> Result<Arc<Queue>, Failure> {
        if let Some((since, queue)) = self.known().get(destination)
            && since.elapsed() < KNOWN_FOR
        {
            return Ok(queue.clone());
        }
        let _permit = permits.acquire().await.expect("the semaphore is never closed");
        let queue = Arc::new(look_up(client, config, destination).await?);
        if config.require_fifo && !queue.fifo {
            return Err(refused(
                destination,
                "is a standard queue, and the setting require_fifo is on",
            ));
        }
        self.known().insert(destination.clone(), (Instant::now(), queue.clone()));
        Ok(queue)
    }

    /// What was known of it may be wrong: it is looked up again.
    pub(crate) fn forget(&self, destination: &str) {
        self.known().remove(destination);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic while the queues are locked")
    }
}

async fn look_up(client: &Client, config: &SqsConfig, destination: &str) -> Result<Queue, Failure> {
    let url = match Address::parse(destination)? {
        Address::Url(url) => url.to_owned(),
        Address::Name(name) => match &config.queue_url {
            Some(template) => template.replace("{name}", name),
            None => ask_url(client, destination, name, None).await?,
        },
        Address::Arn { region, account, name } => {
            let own = client.config().region().map(AsRef::as_ref);
            if own != Some(region) {
                let reason = format!("lies in another region than the publisher's, {own:?}");
                return Err(refused(destination, &reason));
            }
            ask_url(client, destination, name, Some(account)).await?
        }
    };
    // `FifoQueue` by itself is an unknown attribute to a standard queue, so all are asked for.
    let answer =
        client.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::All);
    let answer = answer
        .send()
        .await
        .map_err(|error| error::of_question(&error, destination, "sqs:GetQueueAttributes"))?;
    let attribute = |name| answer.attributes().and_then(|all| all.get(&name)).map(String::as_str);
    let max_message_bytes = attribute(QueueAttributeName::MaximumMessageSize);
    Ok(Queue {
        fifo: attribute(QueueAttributeName::FifoQueue) == Some("true")
            || url.ends_with(FIFO_SUFFIX),
        max_message_bytes: max_message_bytes
            .and_then(|size| size.parse().ok())
            .unwrap_or(SQS_MAX_BYTES),
        url,
    })
}

async fn ask_url(
    client: &Client,
    destination: &str,
    name: &str,
    account: Option<&str>,
) -> Result<String, Failure> {
    let question = client
        .get_queue_url()
        .queue_name(name)
        .set_queue_owner_aws_account_id(account.map(ToOwned::to_owned));
    let answer = question.send().await;
    let answer =
        answer.map_err(|error| error::of_question(&error, destination, "sqs:GetQueueUrl"))?;
    answer.queue_url.ok_or_else(|| refused(destination, "has no URL in the answer of SQS"))
}

/// How a destination names its queue.
#[derive(Debug, PartialEq, Eq)]
enum Address<'a> {
    Url(&'a str),
    Arn { region: &'a str, account: &'a str, name: &'a str },
    Name(&'a str),
}

impl<'a> Address<'a> {
    /// A name that no queue can have is refused, not given up: it is the route's fault, and all its events would be lost.
    fn parse(destination: &'a str) -> Result<Self, Failure> {
        if destination.starts_with("https://") || destination.starts_with("http://") {
            return Ok(Self::Url(destination));
        }
        if destination.starts_with("arn:") {
            let parts: Vec<&str> = destination.split(':').collect();
            let [_, _, "sqs", region, account, name] = parts[..] else {
                let reason = "is no ARN of a queue: arn:aws:sqs:REGION:ACCOUNT:NAME";
                return Err(refused(destination, reason));
            };
            return Ok(Self::Arn { region, account, name });
        }
        let stem = destination.strip_suffix(FIFO_SUFFIX).unwrap_or(destination);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if stem.is_empty() || destination.len() > MAX_NAME_CHARS || !stem.bytes().all(allowed) {
            let reason = "can be no queue: a name has 1 to 80 of a-z A-Z 0-9 - _ (and .fifo at its end); \
                          give the relay a route such as outbox-event-{aggregate_type}";
            return Err(refused(destination, reason));
        }
        Ok(Self::Name(destination))
    }
}

fn refused(destination: &str, reason: &str) -> Failure {
    Failure::new(FailureClass::Refused, format!("queue {destination} {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_a_url_an_arn_or_a_name() {
        let url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo";
        assert_eq!(Address::parse(url), Ok(Address::Url(url)));
        let arn = "arn:aws-cn:sqs:cn-north-1:123456789012:orders";
        let account = "123456789012";
        assert_eq!(
            Address::parse(arn),
            Ok(Address::Arn { region: "cn-north-1", account, name: "orders" })
        );
        for name in ["orders", "Orders_1-x.fifo", &"x".repeat(80)] {
            assert_eq!(Address::parse(name), Ok(Address::Name(name)));
        }
    }

    /// H140
    #[test]
    fn names_that_no_queue_can_have_are_refused_with_the_way_out() {
        for name in [
            "",
            ".fifo",
            "outbox.event.order",
            "a b",
            "ä",
            "a/b",
            &"x".repeat(81),
            "arn:aws:sns:eu-central-1:1:topic",
        ] {
            let failure = Address::parse(name).unwrap_err();
            assert_eq!(failure.class, FailureClass::Refused, "{name}");
            assert!(failure.reason.contains(name), "{}", failure.reason);
        }
    }
}
