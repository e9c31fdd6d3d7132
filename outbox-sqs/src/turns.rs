//! Whose turn it is: which messages of a call may be sent now.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use outbox_core::Message;

/// The messages of one call, by queue and by aggregate.
///
/// A message has its turn when the one before it in its aggregate was taken by SQS or refused for good, whichever queues
/// the two go to. So each aggregate has at most one message under way, and nothing is sent behind a failure.
#[derive(Debug)]
pub(crate) struct Turns {
    queues: Vec<QueueTurns>,
    /// The queue of each message.
    queue_of: Vec<usize>,
    /// The message behind each in its aggregate.
    behind: Vec<Option<usize>>,
}

#[derive(Debug)]
struct QueueTurns {
    destination: Arc<str>,
    ready: VecDeque<usize>,
}

impl Turns {
    pub(crate) fn new(messages: &[Message]) -> Self {
        let mut turns = Self {
            queues: Vec::new(),
            queue_of: Vec::with_capacity(messages.len()),
            behind: vec![None; messages.len()],
        };
        let mut by_destination: HashMap<&str, usize> = HashMap::new();
        let mut last_of: HashMap<(&str, &str), usize> = HashMap::new();
        for (index, message) in messages.iter().enumerate() {
            let queue = *by_destination.entry(message.destination()).or_insert_with(|| {
                let destination = message.destination().clone();
                turns.queues.push(QueueTurns { destination, ready: VecDeque::new() });
                turns.queues.len() - 1
            });
            turns.queue_of.push(queue);
            let event = message.event();
            let before = event
                .aggregate_id()
                .and_then(|id| last_of.insert((event.aggregate_type(), id), index));
            match before {
                Some(before) => turns.behind[before] = Some(index),
                None => turns.queues[queue].ready.push_back(index),
            }
        }
        turns
    }

    /// The destination of each queue.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = &Arc<str>> {
        self.queues.iter().map(|queue| &queue.destination)
    }

    /// Messages for this queue whose turn it is.
    pub(crate) fn ready(&self, queue: usize) -> usize {
        self.queues[queue].ready.len()
    }

    /// The next message for this queue.
    pub(crate) fn take(&mut self, queue: usize) -> Option<usize> {
        self.queues[queue].ready.pop_front()
    }

    /// It is this message's turn again, before all others.
    pub(crate) fn put_back(&mut self, message: usize) {
        self.queues[self.queue_of[message]].ready.push_front(message);
    }

    /// The message is done with: the one behind it has its turn.
    pub(crate) fn pass(&mut self, message: usize) {
        if let Some(next) = self.behind[message] {
            self.queues[self.queue_of[next]].ready.push_back(next);
        }
    }

    /// The messages of its aggregate that stand behind this one, and have no turn without it.
    pub(crate) fn behind(&self, message: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.behind[message], |message| self.behind[*message])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::event_message;

    fn all(turns: &mut Turns, queue: usize) -> Vec<usize> {
        std::iter::from_fn(|| turns.take(queue)).collect()
    }

    /// H017, H152
    #[test]
    fn an_aggregate_has_one_message_under_way() {
        let mut turns = Turns::new(&[
            event_message("order", Some("1"), "q"),
            event_message("order", Some("1"), "q"),
            event_message("customer", Some("1"), "q"),
            event_message("order", None, "q"),
            event_message("order", None, "q"),
            event_message("order", Some("1"), "q"),
        ]);
        assert_eq!(all(&mut turns, 0), [0, 2, 3, 4]);
        assert_eq!(turns.behind(0).collect::<Vec<_>>(), [1, 5]);
        turns.pass(0);
        assert_eq!(all(&mut turns, 0), [1]);
    }

    #[test]
    fn an_aggregate_keeps_its_order_over_several_queues() {
        let mut turns = Turns::new(&[
            event_message("order", Some("1"), "q"),
            event_message("order", Some("1"), "r"),
            event_message("order", Some("2"), "r"),
        ]);
        assert_eq!((all(&mut turns, 0), all(&mut turns, 1)), (vec![0], vec![2]));
        turns.pass(0);
        assert_eq!(all(&mut turns, 1), [1]);
    }

    #[test]
    fn what_is_put_back_comes_first() {
        let mut turns =
            Turns::new(&[event_message("order", None, "q"), event_message("order", None, "q")]);
        let first = turns.take(0).unwrap();
        turns.put_back(first);
        assert_eq!(all(&mut turns, 0), [0, 1]);
    }
}
