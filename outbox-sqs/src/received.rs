//! Reading a message that this publisher wrote.

use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use outbox_core::headers::{self, ID};
use outbox_core::{InvalidMessage, ReceivedEvent};

use crate::wire::{AGGREGATE_ID, ENCODING, HEADERS, group};

/// The event that a message carries, from a standard or a FIFO queue.
///
/// The request must ask for all attributes, of both kinds: what it does not ask for, SQS leaves out.
///
/// ```no_run
/// # async fn consume(client: &aws_sdk_sqs::Client, url: &str) -> Result<(), Box<dyn std::error::Error>> {
/// use aws_sdk_sqs::types::MessageSystemAttributeName;
/// use outbox_sqs::received;
///
/// let request = client
///     .receive_message()
///     .queue_url(url)
///     .message_attribute_names("All")
///     .message_system_attribute_names(MessageSystemAttributeName::All);
/// for message in request.send().await?.messages() {
///     let event = received(message)?;
///     // mark event.id in an inbox, and act
///     println!("{:?} of {:?}: {:?}", event.event_type, event.key, event.payload);
/// }
/// # Ok(()) }
/// ```
///
/// A base64 body is decoded, and the headers in `outbox-headers` stand behind the others, which are sorted by name.
///
/// # Errors
///
/// When the message carries no event: the attribute `id` is missing or none, type or key is not UTF-8, or body or
/// `outbox-headers` are not what their attributes say. When the key cannot be known, since the request asked for no system
/// attribute.
pub fn received(message: &Message) -> Result<ReceivedEvent, InvalidMessage> {
    read(message).map_err(|error| {
        error.of(format_args!("message {}", message.message_id().unwrap_or("without MessageId")))
    })
}

fn read(message: &Message) -> Result<ReceivedEvent, InvalidMessage> {
    let attributes = message.message_attributes.as_ref();
    let attribute = |name| attributes.and_then(|attributes| attributes.get(name));
    if attribute(ID).is_none() {
        return Err(InvalidMessage::new(
            "it has no attribute id: the request did not ask for message_attribute_names All, or another program has \
             sent it",
        ));
    }
    let mut own: Vec<(String, Option<Bytes>)> = attributes
        .into_iter()
        .flatten()
        .filter(|(name, _)| ![AGGREGATE_ID, ENCODING, HEADERS].contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), bytes(value)))
        .collect();
    own.sort_by(|(left, _), (right, _)| left.cmp(right));
    if let Some(folded) = attribute(HEADERS) {
        let json = folded.string_value().unwrap_or_default();
        headers::for_each(json, &mut |name, value| {
            own.push((name.to_owned(), Some(Bytes::copy_from_slice(value.as_bytes()))));
        })
        .map_err(|error| InvalidMessage::new(format!("its attribute {HEADERS}: {error}")))?;
    }
    let payload = payload(message.body().unwrap_or_default(), attribute(ENCODING))?;
    let key = attribute(AGGREGATE_ID).and_then(bytes);
    let mut event = ReceivedEvent::new(own, key.as_deref(), Some(payload))?;
    if key.is_none() {
        event.key = key_of_group(message, &event)?;
    }
    Ok(event)
}

fn bytes(value: &MessageAttributeValue) -> Option<Bytes> {
    let text = value.string_value().map(|text| Bytes::copy_from_slice(text.as_bytes()));
    text.or_else(|| value.binary_value().map(|blob| Bytes::copy_from_slice(blob.as_ref())))
}

fn payload(body: &str, encoding: Option<&MessageAttributeValue>) -> Result<Bytes, InvalidMessage> {
    match encoding.map(|encoding| encoding.string_value().unwrap_or_default()) {
        None => Ok(Bytes::copy_from_slice(body.as_bytes())),
        Some("base64") => {
            let decoded = BASE64_STANDARD.decode(body);
            decoded.map(Bytes::from).map_err(|error| {
                InvalidMessage::new(format!("its body is not base64, as {ENCODING} says: {error}"))
            })
        }
        Some(other) => Err(InvalidMessage::new(format!(
            "its attribute {ENCODING} is {other:?}, and this version knows base64 only"
        ))),
    }
}

/// The key of a message without the attribute `aggregateId`: the group, unless it is the one that stands for no key.
fn key_of_group(
    message: &Message,
    event: &ReceivedEvent,
) -> Result<Option<String>, InvalidMessage> {
    let attributes = message.attributes.as_ref().filter(|attributes| !attributes.is_empty());
    let attributes = attributes.ok_or_else(|| {
        InvalidMessage::new(
            "its key is unknown: the request did not ask for message_system_attribute_names All",
        )
    })?;
    let key = attributes.get(&MessageSystemAttributeName::MessageGroupId);
    Ok(key.filter(|key| **key != group(&event.id.to_string())).cloned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use aws_sdk_sqs::types::builders::MessageBuilder;
    use outbox_conformance::publisher::{Faults, every_event_is_received_as_it_was_sent};

    use super::*;
    use crate::queue::Queue;
    use crate::{BodyEncoding, SqsConfig, wire};

    /// What SQS gives back for an entry.
    fn message(sent: &aws_sdk_sqs::types::SendMessageBatchRequestEntry) -> Message {
        let mut system =
            HashMap::from([(MessageSystemAttributeName::SentTimestamp, "0".to_owned())]);
        if let Some(group) = sent.message_group_id() {
            system.insert(MessageSystemAttributeName::MessageGroupId, group.to_owned());
        }
        let attributes = sent.message_attributes().cloned();
        let built = Message::builder().body(sent.message_body());
        built.set_message_attributes(attributes).set_attributes(Some(system)).build()
    }

    #[test]
    fn what_is_sent_is_received() {
        let faults = Faults::default().without_header_order();
        for fifo in [true, false] {
            let queue = Queue { url: "u".to_owned(), fifo, max_message_bytes: 1 << 20 };
            for body in [BodyEncoding::Text, BodyEncoding::Base64IfRefused, BodyEncoding::Base64] {
                let config = SqsConfig::new().with_body(body);
                every_event_is_received_as_it_was_sent(&faults, "q", |sent| {
                    let entry = wire::entry(sent, 0, &queue, &config)?.entry;
                    Ok(received(&message(&entry)))
                });
            }
        }
    }

    fn of(attributes: &[(&str, &str)]) -> MessageBuilder {
        let attribute = |(name, value): &(&str, &str)| {
            let value = MessageAttributeValue::builder().data_type("String").string_value(*value);
            ((*name).to_owned(), value.build().unwrap())
        };
        let attributes = attributes.iter().map(attribute).collect();
        Message::builder().message_id("m").body("x").set_message_attributes(Some(attributes))
    }

    #[test]
    fn what_the_request_did_not_ask_for_is_named() {
        let error = |message: MessageBuilder| received(&message.build()).unwrap_err().to_string();
        let text = error(of(&[]));
        assert!(text.starts_with("message m cannot be read"), "{text}");
        assert!(text.contains("message_attribute_names All"), "{text}");
        let text = error(of(&[("id", "1")]));
        assert!(text.contains("message_system_attribute_names All"), "{text}");
        assert!(received(&of(&[("id", "1"), ("aggregateId", "a")]).build()).is_ok());
    }

    #[test]
    fn a_body_or_headers_that_are_not_what_they_are_said_to_be_are_named() {
        let error = |name, value| {
            let message = of(&[("id", "1"), ("aggregateId", "a"), (name, value)]).build();
            received(&message).unwrap_err().to_string()
        };
        assert!(error(ENCODING, "base64").contains("not base64"));
        assert!(error(ENCODING, "gzip").contains("gzip"));
        assert!(error(HEADERS, "[]").contains(HEADERS));
    }
}
