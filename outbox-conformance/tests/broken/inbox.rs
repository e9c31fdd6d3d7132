//! Inboxes with one thing broken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use outbox_conformance::{InboxHarness, InboxTransaction};
use outbox_core::{StoreError, async_trait};

use crate::bites;

bites! { inbox,
    an_inbox_without_memory: an_event_is_new_once on broken(How::Forgets);
    a_mark_outside_the_transaction: a_rolled_back_mark_is_forgotten on broken(How::MarksAtOnce);
    a_mark_that_never_waits: a_mark_counts_from_its_commit_on on broken(How::MarksAtOnce);
    ids_that_are_folded: consumers_and_ids_are_compared_bytewise on broken(How::Folds);
    a_mark_at_the_commit: many_tasks_make_one_effect_per_event on broken(How::MarksAtCommit);
    sources_that_are_dropped:
        producers_with_equal_ids_do_not_hide_each_others_events on broken(How::MarksAtOnce);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Forgets,
    MarksAtOnce,
    MarksAtCommit,
    Folds,
}

type Marks = Arc<Mutex<BTreeSet<(String, String)>>>;

struct Broken {
    marks: Marks,
    how: How,
}

fn broken(how: How) -> Broken {
    Broken { marks: Marks::default(), how }
}

struct Marking {
    marks: Marks,
    how: How,
    mine: Vec<(String, String)>,
}

#[async_trait]
impl InboxHarness for Broken {
    async fn begin(&self) -> Box<dyn InboxTransaction> {
        Box::new(Marking { marks: Arc::clone(&self.marks), how: self.how, mine: Vec::new() })
    }
}

#[async_trait]
impl InboxTransaction for Marking {
    async fn first_seen(&mut self, consumer: &str, event_id: &str) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        let mut mark = (consumer.to_owned(), event_id.to_owned());
        if self.how == How::Folds {
            mark.1 = mark.1.to_lowercase();
        }
        match self.how {
            How::Forgets => Ok(true),
            How::MarksAtOnce | How::Folds => Ok(self.marks.lock().unwrap().insert(mark)),
            How::MarksAtCommit => {
                let new = !self.marks.lock().unwrap().contains(&mark);
                self.mine.push(mark);
                Ok(new)
            }
        }
    }

    async fn first_seen_from(
        &mut self,
        _source: &str,
        consumer: &str,
        event_id: &str,
    ) -> Option<Result<bool, StoreError>> {
        Some(self.first_seen(consumer, event_id).await)
    }

    async fn commit(self: Box<Self>) {
        tokio::task::yield_now().await;
        self.marks.lock().unwrap().extend(self.mine);
    }

    async fn rollback(self: Box<Self>) {}
}
