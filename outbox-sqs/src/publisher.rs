//! The publisher: runs each call in a task of its own, so that verdicts come also when nobody waits for the call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::tls;
use outbox_core::{Batch, KeyOrder, PublishError, Publisher};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::SqsConfig;
use crate::call::{Call, Shared};
use crate::error;
use crate::queue::Queues;

/// Amazon SQS as a [`Publisher`].
///
/// # Verdicts
///
/// - *Confirmed*: SQS has listed the message as successful.
/// - `Permanent`: the message is too large (with its attributes), has no payload, or has characters that SQS refuses and no
///   setting encodes; or SQS found its contents invalid.
/// - `Refused`: the queue is missing, not permitted, cannot be named so, or its KMS key does not work. Messages of the call
///   for the same queue are refused with it.
/// - `Unavailable`: throttled, no connection, a login that does not work, or the service failed with all messages of a request.
///   What was not sent yet of the call is given back with it.
/// - `Transient`: the service failed with some messages of a request and took others, or gave a code that says nothing of
///   the above. A request that fails as a whole, for one of its messages perhaps, is sent again message by message first.
/// - `Unsent`: one before it in its aggregate was not taken, or is open.
///
/// A message stays open when its request was not answered (time, a lost connection, a code of 500 and above), or when the answer
/// does not name it: it may have been taken. The SDK's own retries are off.
///
/// # Order
///
/// [`KeyOrder::Prefix`]: of each aggregate one message is under way, and the next follows when SQS has taken it. A FIFO
/// queue then delivers a key's messages in this order; a standard queue promises no order to anybody
/// ([`SqsConfig::require_fifo`] refuses it).
///
/// # Duplicates
///
/// A FIFO queue takes a message that is sent again within five minutes once: its deduplication id is the event's id, and
/// the number of the replay when it was replayed. Sent again later, and on a standard queue, it comes twice with the same `id`.
///
/// Needs a tokio runtime with its timer.
#[derive(Debug)]
pub struct SqsPublisher {
    shared: Arc<Shared>,
    calls: Mutex<JoinSet<()>>,
}

impl SqsPublisher {
    /// A publisher with region, endpoint and credentials (of a role to be assumed, too) from the SDK's own chain: environment,
    /// profile files, web identity, container and instance. Connects when it has something to send: [`Publisher::check`]
    /// says whether it can.
    ///
    /// # Errors
    ///
    /// When a setting is refused, or the chain names no region.
    pub async fn load(config: &SqsConfig) -> Result<Self, PublishError> {
        let sdk = aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(http_client());
        Self::new(&sdk.load().await, config)
    }

    /// As [`load`](Self::load), with an SDK configuration of your own. Its retries and timeouts are not used.
    ///
    /// # Errors
    ///
    /// When a setting is refused, or `sdk` names no region.
    pub fn new(sdk: &SdkConfig, config: &SqsConfig) -> Result<Self, PublishError> {
        config.check()?;
        if sdk.region().is_none() {
            return Err(PublishError::misconfigured(
                "sqs: no region is known; set AWS_REGION, or region in the profile or the SDK's configuration",
            ));
        }
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(config.connect_timeout)
            .operation_timeout(config.request_timeout);
        let mut client = aws_sdk_sqs::config::Builder::from(sdk)
            .behavior_version(BehaviorVersion::v2026_01_12())
            // A retry behind the publisher's back would send a message after its verdict, and out of order.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts.build())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if sdk.http_client().is_none() {
            client = client.http_client(http_client());
        }
        Ok(Self {
            shared: Arc::new(Shared {
                client: Client::from_conf(client.build()),
                config: config.clone(),
                queues: Queues::default(),
                permits: Arc::new(Semaphore::new(config.requests_in_flight)),
                sent_messages: AtomicU64::new(0),
                sent_requests: AtomicU64::new(0),
            }),
            calls: Mutex::default(),
        })
    }

    fn calls(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.calls.lock().expect("no panic while the calls are locked")
    }
}

#[async_trait]
impl Publisher for SqsPublisher {
    async fn publish(&self, batch: Batch) {
        // Dropped with this future: the call then sends nothing new.
        let (_here, caller) = oneshot::channel();
        let (over, is_over) = oneshot::channel::<()>();
        let call = Call::new(self.shared.clone(), batch);
        {
            let mut calls = self.calls();
            while calls.try_join_next().is_some() {}
            calls.spawn(async move {
                call.run(caller).await;
                drop(over);
            });
        }
        let _ = tokio::time::timeout(self.shared.config.delivery_deadline, is_over).await;
    }

    async fn abandon(&self) {
        let mut calls = std::mem::take(&mut *self.calls());
        // A call that ends closes the connections of its requests.
        calls.shutdown().await;
    }

    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }

    fn stats(&self) -> Vec<(&'static str, f64)> {
        let Shared { config, permits, sent_messages, sent_requests, .. } = &*self.shared;
        let in_flight = config.requests_in_flight - permits.available_permits();
        vec![
            ("sent_messages", sent_messages.load(Ordering::Relaxed) as f64),
            ("sent_requests", sent_requests.load(Ordering::Relaxed) as f64),
            ("requests_in_flight", in_flight as f64),
        ]
    }

    async fn check(&self) -> Result<(), PublishError> {
        let answer = self.shared.client.list_queues().max_results(1).send().await;
        answer.err().and_then(error::of_check).map_or(Ok(()), Err)
    }
}

/// TLS by rustls with ring, and the system's certificates.
fn http_client() -> SharedHttpClient {
    let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    aws_smithy_http_client::Builder::new().tls_provider(tls).build_https()
}
