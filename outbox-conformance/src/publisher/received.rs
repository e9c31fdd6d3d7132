//! That a consumer reads the event which was sent.

use std::sync::Arc;

use fastrand::Rng;
use outbox_core::{EventId, Failure, FailureClass, InvalidMessage, Message, ReceivedEvent};

use super::Faults;
use super::message::Draft;

const EVENTS: usize = 5_000;

/// For an adapter that has a function to read its own messages: whatever is sent, it reads, or the message is refused for good.
///
/// Needs no broker: `carry` encodes a message as the publisher does, and gives what was read from that, or why it is refused.
/// Of `faults` only the limits of the broker count. The events are random ones.
///
/// # Panics
///
/// When another event is read than was sent; it is in the text.
pub fn every_event_is_received_as_it_was_sent(
    faults: &Faults,
    destination: impl Into<Arc<str>>,
    carry: impl Fn(&Message) -> Result<Result<ReceivedEvent, InvalidMessage>, Failure>,
) {
    let (destination, mut random, mut read) = (destination.into(), Rng::new(), 0);
    for _ in 0..EVENTS {
        let draft = draft(&mut random);
        let message = draft.to(&destination);
        match carry(&message) {
            Ok(received) => {
                let received = received.unwrap_or_else(|error| panic!("{draft:?}: {error}"));
                assert_same(received, ReceivedEvent::from(&message), faults, &draft);
                read += 1;
            }
            Err(failure) => assert_eq!(failure.class, FailureClass::Permanent, "{draft:?}"),
        }
    }
    assert!(read > EVENTS / 10, "all but {read} of {EVENTS} events are refused");
}

fn assert_same(
    mut received: ReceivedEvent,
    mut sent: ReceivedEvent,
    faults: &Faults,
    draft: &Draft,
) {
    if !faults.header_order {
        for event in [&mut received, &mut sent] {
            event.headers.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
    }
    if !faults.repeated_headers {
        sent.headers.dedup();
    }
    assert_eq!(received.headers, sent.headers, "headers of {draft:?}");
    assert_eq!(received.payload, sent.payload, "payload of {draft:?}");
    assert_eq!(received, sent, "{draft:?}");
}

fn draft(random: &mut Rng) -> Draft {
    let id = EventId::from_text(&text(random)).ok().filter(|_| random.bool());
    let key = match random.u8(..8) {
        0 => None,
        1 => id.as_ref().map(ToString::to_string),
        _ => Some(text(random)),
    };
    let payload = match random.u8(..8) {
        0 => None,
        1 => Some(Vec::new()),
        2 | 3 => Some((0..random.usize(1..40)).map(|_| random.u8(..)).collect()),
        _ => Some(text(random).into_bytes()),
    };
    let headers = if random.u8(..8) == 0 { 14 } else { random.usize(..4) };
    let headers = (0..headers).map(|_| (header_name(random), text(random)));
    // A broker may have one place for the key and a header that repeats it.
    let headers = headers.filter(|(_, value)| Some(value) != key.as_ref()).collect();
    Draft { id, event_type: Some(text(random)), key, payload, headers }
}

/// Names that a broker or an adapter may take for something of its own, or not take at all.
fn header_name(random: &mut Rng) -> String {
    let known = [
        "a",
        "A",
        "k",
        "aggregateId",
        "correlationId",
        "content-type",
        "traceparent",
        "AWS.x",
        "a..b",
        "outbox-encoding",
        "outbox-headers",
        "outbox-replay",
        "x-death",
    ];
    match random.u8(..4) {
        0 => format!("header-{}", random.u8(..)),
        1 => format!("h{}", text(random)),
        _ => random.choice(known).expect("there are some").to_owned(),
    }
}

/// Usually harmless, else with characters that are damaged easily; without NUL, which no text of an event has.
fn text(random: &mut Rng) -> String {
    let length = if random.u8(..16) == 0 { 130 } else { random.usize(..12) };
    let harmless = random.bool();
    let odd = [
        'a',
        'B',
        '0',
        ' ',
        '\t',
        '\r',
        '\n',
        '"',
        '\'',
        '\\',
        '#',
        '/',
        '{',
        '\u{1}',
        '\u{7f}',
        'ä',
        '\u{308}',
        '\u{2028}',
        '\u{fffe}',
        '\u{ffff}',
        '\u{1f980}',
    ];
    let mut char = || match harmless {
        true => random.alphanumeric(),
        false => random.choice(odd).expect("there are some"),
    };
    let text: String = (0..length).map(|_| char()).collect();
    if random.u8(..16) == 0 { format!("sha256.{text}") } else { text }
}
