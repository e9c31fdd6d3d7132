//! What AWS documents about a `SendMessageBatch` request and emulators let pass. Each rule names the page of the Amazon SQS
//! documentation that has it.

use std::collections::HashSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

/// An answer that refuses: code and text.
pub type Violation = (&'static str, String);

/// "SendMessageBatch": message and batch have the same limit of 1 MiB.
pub const MAX_BYTES: usize = 1_048_576;

/// Rules for the request; they fail it as a whole.
pub fn check_request(entries: &[Value]) -> Result<(), Violation> {
    // "SendMessageBatch", errors: EmptyBatchRequest.
    if entries.is_empty() {
        return Err(("EmptyBatchRequest", "there is no entry".to_owned()));
    }
    // "SendMessageBatch": up to 10 messages.
    if entries.len() > 10 {
        return Err(("TooManyEntriesInBatchRequest", format!("{} entries", entries.len())));
    }
    let mut ids = HashSet::new();
    for entry in entries {
        let id = entry["Id"].as_str().unwrap_or_default();
        // "SendMessageBatchRequestEntry": up to 80 characters; alphanumeric, hyphens and underscores.
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=80).contains(&id.len()) || !id.bytes().all(allowed) {
            return Err(("InvalidBatchEntryId", format!("{id:?}")));
        }
        // "SendMessageBatchRequestEntry": ids are unique within a request.
        if !ids.insert(id) {
            return Err(("BatchEntryIdsNotDistinct", format!("{id:?}")));
        }
    }
    // "SendMessageBatch": the sum of the lengths of all messages. Attributes count: see `size`.
    let total: usize = entries.iter().map(size).sum();
    if total > MAX_BYTES {
        return Err(("BatchRequestTooLong", format!("{total} bytes")));
    }
    Ok(())
}

/// Rules for one message; they fail only its entry.
pub fn check_entry(entry: &Value, fifo: bool, max_bytes: usize) -> Result<(), Violation> {
    let invalid = |text: String| Err(("InvalidParameterValue", text));
    let body = entry["MessageBody"].as_str().unwrap_or_default();
    // "SendMessage": the minimum size is one character.
    if body.is_empty() {
        return Err(("MissingParameter", "the body is empty".to_owned()));
    }
    // "SendMessage": #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.
    if !is_text(body) {
        return Err(("InvalidMessageContents", "characters outside the allowed set".to_owned()));
    }
    // "SetQueueAttributes": MaximumMessageSize, from 1,024 bytes to 1 MiB.
    if size(entry) > max_bytes {
        return invalid(format!("the message has {} bytes, {max_bytes} are allowed", size(entry)));
    }
    let none = Map::new();
    let attributes = entry["MessageAttributes"].as_object().unwrap_or(&none);
    // "Amazon SQS message metadata": up to 10 attributes.
    if attributes.len() > 10 {
        return invalid(format!("{} attributes", attributes.len()));
    }
    for (name, attribute) in attributes {
        check_attribute(name, attribute)?;
    }
    let group = entry["MessageGroupId"].as_str();
    let deduplication_id = entry["MessageDeduplicationId"].as_str();
    // "SendMessageBatchRequestEntry": up to 128 alphanumeric characters and punctuation.
    for token in [group, deduplication_id].into_iter().flatten() {
        if !(1..=128).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return invalid(format!("the id {token:?}"));
        }
    }
    // "SendMessage": a FIFO queue needs a group, and a deduplication id unless it is content-based; the latter is for FIFO
    // queues only.
    match (fifo, group, deduplication_id) {
        (true, None, _) => Err(("MissingParameter", "MessageGroupId".to_owned())),
        (true, _, None) => invalid("the queue should have MessageDeduplicationId".to_owned()),
        (false, _, Some(_)) => invalid("MessageDeduplicationId on a standard queue".to_owned()),
        _ => Ok(()),
    }
}

/// "Amazon SQS message metadata", components of an attribute.
fn check_attribute(name: &str, attribute: &Value) -> Result<(), Violation> {
    let invalid =
        |text: &str| Err(("InvalidParameterValue", format!("attribute {name:?}: {text}")));
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !(1..=256).contains(&name.len()) || !name.bytes().all(allowed) {
        return invalid("1 to 256 of A-Z a-z 0-9 _ - .");
    }
    let lower = name.to_ascii_lowercase();
    if lower.starts_with("aws.") || lower.starts_with("amazon.") {
        return invalid("the prefix is reserved");
    }
    if name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        return invalid("periods at the start, at the end or in sequence");
    }
    // Name, type and value must not be empty; a text has the characters of a body.
    match (attribute["DataType"].as_str(), attribute_value(attribute)) {
        (Some("String"), Some(value)) if !value.is_empty() => {
            let text = attribute["StringValue"].as_str().unwrap_or_default();
            if is_text(text) { Ok(()) } else { invalid("characters outside the allowed set") }
        }
        (Some("Binary"), Some(value)) if !value.is_empty() => Ok(()),
        _ => invalid("an empty value, or a type that nobody sends here"),
    }
}

/// "MessageAttributeValue": name, type and value are part of the message's size.
fn size(entry: &Value) -> usize {
    let body = entry["MessageBody"].as_str().map_or(0, str::len);
    let attributes = entry["MessageAttributes"].as_object().into_iter().flatten();
    let of_attribute = |(name, attribute): (&String, &Value)| {
        let kind = attribute["DataType"].as_str().map_or(0, str::len);
        name.len() + kind + attribute_value(attribute).map_or(0, |value| value.len())
    };
    body + attributes.map(of_attribute).sum::<usize>()
}

pub fn attribute_value(attribute: &Value) -> Option<Vec<u8>> {
    if let Some(text) = attribute["StringValue"].as_str() {
        return Some(text.as_bytes().to_vec());
    }
    BASE64_STANDARD.decode(attribute["BinaryValue"].as_str()?).ok()
}

fn is_text(text: &str) -> bool {
    let allowed = |char| {
        matches!(char,
            '\u{9}' | '\u{a}' | '\u{d}' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}'
            | '\u{10000}'..='\u{10ffff}')
    };
    text.chars().all(allowed)
}
