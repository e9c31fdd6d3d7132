//! Amazon SQS as a test sees it: a FIFO queue, and everything that comes out of it.

use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{
    BehaviorVersion, Credentials, Region, SharedCredentialsProvider, StalledStreamProtectionConfig,
};
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageSystemAttributeName, QueueAttributeName,
};
use outbox::sqs::{SdkConfig, received};

use super::checker::Arrival;
use super::listener::{Ending, Listener, stamp};

/// How often an empty queue is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The SDK for this server, which takes any login.
pub(crate) fn sdk(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "tests");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        // A reader waits for a frozen server: a message in an answer that nobody takes would be hidden for a while.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .build()
}

/// Creates a FIFO queue and reads it from now on.
pub(crate) async fn listen(endpoint: &str, queue: &str) -> Listener {
    let client = Client::new(&sdk(endpoint));
    let create =
        client.create_queue().queue_name(queue).attributes(QueueAttributeName::FifoQueue, "true");
    let url = create.send().await.unwrap().queue_url.unwrap();
    let queue = queue.to_owned();
    Listener::start(|ending| read(client, url, queue, ending))
}

async fn read(client: Client, url: String, queue: String, ending: Ending) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    loop {
        let is_last = ending.is_near();
        let receive = client
            .receive_message()
            .queue_url(&url)
            .max_number_of_messages(10)
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::All);
        let messages = receive.send().await.unwrap().messages.unwrap_or_default();
        for message in &messages {
            stamp(&mut arrivals, received(message).unwrap(), &queue);
        }
        if !messages.is_empty() {
            delete(&client, &url, &messages).await;
        } else if is_last {
            return arrivals;
        } else {
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn delete(client: &Client, url: &str, messages: &[Message]) {
    let entry = |(at, message): (usize, &Message)| {
        let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string());
        entry.receipt_handle(message.receipt_handle().unwrap()).build().unwrap()
    };
    let entries = messages.iter().enumerate().map(entry).collect();
    let delete = client.delete_message_batch().queue_url(url).set_entries(Some(entries));
    assert!(delete.send().await.unwrap().failed().is_empty());
}
