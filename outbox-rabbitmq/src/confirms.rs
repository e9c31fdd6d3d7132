//! Which message a confirm and a return are about.

use std::collections::HashMap;

use lapin::message::BasicReturnMessage;
use outbox_core::{Batch, Message};

/// A message that was sent: its place in its call.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) batch: Batch,
    pub(crate) index: usize,
}

impl Letter {
    pub(crate) fn message(&self) -> &Message {
        &self.batch.messages()[self.index]
    }
}

/// The confirmed messages of one channel that are not known yet to have been routed.
///
/// The broker returns an unroutable message *before* it confirms it. lapin queues what was returned, and hands the oldest of
/// it out with whichever confirm comes next; so a return may be found with another message's confirm. It is matched
/// by its `message_id`, and a message counts as delivered only when no return of it can be on its way:
///
/// - A confirm *without* a return says that nothing was queued then: the message's own return, if there is one, is with
///   a confirm that came earlier. All of those have been taken in after one more look at all open messages.
/// - A confirm *with another message's* return says nothing. It is held until all open messages of the channel are
///   confirmed: then everything that was returned has been handed out.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    /// Taken in by the current look.
    fresh: Vec<Letter>,
    /// Taken in by the look before.
    looked: Vec<Letter>,
    held: Vec<Letter>,
    /// What was returned, by `message_id`: the broker's text.
    returned: HashMap<String, String>,
}

impl Confirms {
    /// The broker has confirmed `letter`; with the confirm came this return.
    pub(crate) fn take_in(&mut self, letter: Letter, returned: Option<BasicReturnMessage>) {
        let Some(returned) = returned else { return self.fresh.push(letter) };
        let id = self.take_in_return(&returned);
        let own = id == letter.message().id().to_string();
        if own { self.fresh.push(letter) } else { self.held.push(letter) }
    }

    /// A return that came with a refusal; returns the `message_id`.
    pub(crate) fn take_in_return(&mut self, returned: &BasicReturnMessage) -> String {
        let id = returned.delivery.properties.message_id().as_ref().map(ToString::to_string);
        let id = id.unwrap_or_default();
        let text = format!("{} {}", returned.reply_code, returned.reply_text);
        self.returned.insert(id.clone(), text);
        id
    }

    /// Ends a look at all open messages of the channel. Returns what is decided by it: each with the broker's text if it
    /// was returned. `none_open` says that all have been taken in.
    pub(crate) fn end_look(&mut self, none_open: bool) -> Vec<(Letter, Option<String>)> {
        let mut decided = std::mem::replace(&mut self.looked, std::mem::take(&mut self.fresh));
        if none_open {
            decided.append(&mut self.looked);
            decided.append(&mut self.held);
        }
        let decide = |letter: Letter| {
            let returned = self.returned.remove(&letter.message().id().to_string());
            (letter, returned)
        };
        decided.into_iter().map(decide).collect()
    }

    /// Whether another look would decide something.
    pub(crate) fn wants_a_look(&self) -> bool {
        !self.looked.is_empty() || !self.fresh.is_empty()
    }

    /// Whether something can be decided only when all open messages are confirmed.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// What cannot be decided any more: the channel is gone.
    pub(crate) fn give_up(&mut self) -> Vec<Letter> {
        let mut open = std::mem::take(&mut self.held);
        open.append(&mut self.fresh);
        open.append(&mut self.looked);
        self.returned.clear();
        open
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::message::Delivery;

    use super::*;
    use crate::wire::tests::message;

    fn letters(count: usize) -> Vec<Letter> {
        let batch = Batch::new((0..count).map(|_| message()).collect());
        (0..count).map(|index| Letter { batch: batch.clone(), index }).collect()
    }

    fn returned(letter: &Letter) -> Option<BasicReturnMessage> {
        let id = letter.message().id().to_string();
        let mut delivery = Delivery::mock(0, "".into(), "".into(), false, Vec::new());
        delivery.properties = BasicProperties::default().with_message_id(id.into());
        Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() })
    }

    fn decided(confirms: &mut Confirms, none_open: bool) -> Vec<(usize, bool)> {
        let decided = confirms.end_look(none_open);
        decided.iter().map(|(letter, returned)| (letter.index, returned.is_some())).collect()
    }

    /// B176, H141: the return of a message is found with the confirm of another that came before, and is seen after.
    #[test]
    fn a_plain_confirm_waits_for_one_more_look() {
        let letters = letters(2);
        let mut confirms = Confirms::default();
        confirms.take_in(letters[0].clone(), None);
        assert_eq!(decided(&mut confirms, false), []);
        assert!(confirms.wants_a_look());
        confirms.take_in(letters[1].clone(), returned(&letters[0]));
        assert_eq!(decided(&mut confirms, false), [(0, true)]);
    }

    /// B176
    #[test]
    fn a_confirm_with_anothers_return_waits_for_all() {
        let letters = letters(3);
        let mut confirms = Confirms::default();
        confirms.take_in(letters[0].clone(), returned(&letters[1]));
        assert!(confirms.holds());
        assert_eq!(decided(&mut confirms, false), []);
        assert_eq!(decided(&mut confirms, false), []);
        confirms.take_in(letters[1].clone(), returned(&letters[0]));
        confirms.take_in(letters[2].clone(), None);
        let mut all = decided(&mut confirms, true);
        all.sort_unstable();
        assert_eq!(all, [(0, true), (1, true), (2, false)]);
        assert!(!confirms.holds() && !confirms.wants_a_look());
    }

    #[test]
    fn a_channel_that_is_gone_decides_nothing_more() {
        let letters = letters(2);
        let mut confirms = Confirms::default();
        confirms.take_in(letters[0].clone(), None);
        confirms.take_in(letters[1].clone(), returned(&letters[0]));
        assert_eq!(confirms.give_up().len(), 2);
        assert_eq!(decided(&mut confirms, true), []);
    }
}
