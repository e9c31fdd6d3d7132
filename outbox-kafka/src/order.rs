//! The order of an aggregate's messages within one call.

use std::collections::{HashMap, HashSet};

use outbox_core::Message;

/// More aggregate types than this in one call are not looked through one by one.
const MAX_TYPES: usize = 32;

/// What may still be sent of a call.
///
/// The broker keeps the order of one topic's partition. Two things remain: once a message could not be handed over,
/// nothing of its aggregate follows; and where an aggregate's messages go to several topics, only those for the first of
/// them are sent, since one topic may stand still while the other goes on.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// The topic of each aggregate; kept only if one aggregate type goes to several topics.
    topics: Option<HashMap<Aggregate<'a>, &'a str>>,
    stopped: HashSet<Aggregate<'a>>,
    /// Those of which the producer for all has a message, as far as that was noted.
    handed_over: HashSet<Aggregate<'a>>,
}

type Aggregate<'a> = (&'a str, &'a str);

impl<'a> Order<'a> {
    /// The order of these messages.
    pub(crate) fn new(messages: &'a [Message]) -> Self {
        Self {
            topics: splits(messages).then(HashMap::new),
            stopped: HashSet::new(),
            handed_over: HashSet::new(),
        }
    }

    /// Whether `message` may be sent after those before it.
    pub(crate) fn allows(&mut self, message: &'a Message) -> bool {
        if self.topics.is_none() && self.stopped.is_empty() {
            return true;
        }
        let Some(aggregate) = aggregate(message) else { return true };
        if self.stopped.contains(&aggregate) {
            return false;
        }
        if let Some(topics) = &mut self.topics {
            let topic = topics.entry(aggregate).or_insert(message.destination());
            if **topic != **message.destination() {
                self.stopped.insert(aggregate);
                return false;
            }
        }
        true
    }

    /// The producer for all has this message, and may yet fail to deliver it.
    pub(crate) fn handed_over(&mut self, message: &'a Message) {
        self.handed_over.extend(aggregate(message));
    }

    /// Whether another producer would not get ahead of the one for all with `message`.
    pub(crate) fn allows_carefully(&self, message: &Message) -> bool {
        aggregate(message).is_none_or(|aggregate| !self.handed_over.contains(&aggregate))
    }

    /// Nothing of this message's aggregate may follow.
    pub(crate) fn stop(&mut self, message: &'a Message) {
        self.stopped.extend(aggregate(message));
    }
}

/// `None` for an event without order.
fn aggregate(message: &Message) -> Option<Aggregate<'_>> {
    let event = message.event();
    Some((event.aggregate_type(), event.aggregate_id()?))
}

/// Whether events of one aggregate type may go to several topics.
fn splits(messages: &[Message]) -> bool {
    let mut topics: Vec<(&str, &str)> = Vec::new();
    for message in messages {
        let (kind, topic) = (message.event().aggregate_type(), &**message.destination());
        match topics.iter().find(|(known, _)| *known == kind) {
            Some((_, known)) if *known == topic => {}
            Some(_) => return true,
            None if topics.len() == MAX_TYPES => return true,
            None => topics.push((kind, topic)),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::event_message;

    fn allowed(messages: &[Message]) -> Vec<bool> {
        let mut order = Order::new(messages);
        messages.iter().map(|message| order.allows(message)).collect()
    }

    #[test]
    fn an_aggregate_goes_to_one_topic_in_a_call() {
        let messages = [
            event_message("order", Some("1"), "t"),
            event_message("order", Some("1"), "u"),
            event_message("order", Some("2"), "u"),
            event_message("order", Some("1"), "t"),
            event_message("customer", Some("1"), "u"),
            event_message("order", None, "u"),
        ];
        assert_eq!(allowed(&messages), [true, false, true, false, true, true]);
    }

    #[test]
    fn nothing_of_a_stopped_aggregate_follows() {
        let messages = [
            event_message("order", Some("1"), "t"),
            event_message("order", Some("1"), "t"),
            event_message("order", Some("2"), "t"),
        ];
        let mut order = Order::new(&messages);
        order.stop(&messages[0]);
        assert!(!order.allows(&messages[1]));
        assert!(order.allows(&messages[2]));
    }
}
