//! Inboxes with one thing broken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_conformance::{InboxHarness, InboxTransaction};
use outbox_core::{Purged, StoreError, async_trait};

use crate::bites;

bites! { inbox,
    an_inbox_without_memory: an_event_is_new_once on broken(How::Forgets);
    a_mark_outside_the_transaction: a_rolled_back_mark_is_forgotten on broken(How::MarksAtOnce);
    a_mark_that_never_waits: a_mark_counts_from_its_commit_on on broken(How::MarksAtOnce);
    ids_that_are_folded: consumers_and_ids_are_compared_bytewise on broken(How::Folds);
    a_mark_at_the_commit: many_tasks_make_one_effect_per_event on broken(How::MarksAtCommit);
    sources_that_are_dropped:
        producers_with_equal_ids_do_not_hide_each_others_events on broken(How::MarksAtOnce);
    a_purge_of_everything: a_purge_removes_what_is_older_and_nothing_else on broken(How::PurgesAll);
    a_purge_of_nothing: an_event_that_comes_after_its_mark_was_purged_is_new on broken(How::PurgesNothing);
    a_purge_of_open_marks: a_purge_lets_consumers_mark on broken(How::PurgesAll);
    a_purge_that_always_makes_way: purges_at_the_same_time_remove_each_mark_once on broken(How::PurgesNothing);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Forgets,
    MarksAtOnce,
    MarksAtCommit,
    Folds,
    PurgesAll,
    PurgesNothing,
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

    async fn purge(&self, _older_than: Duration) -> Option<Result<Purged, StoreError>> {
        let mut marks = self.marks.lock().unwrap();
        let count = marks.len() as u64;
        Some(Ok(match self.how {
            How::PurgesAll => {
                marks.clear();
                Purged::new(count, false)
            }
            _ => Purged::new(0, count > 0),
        }))
    }

    async fn age(&self, _by: Duration) {}
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
            How::MarksAtOnce | How::Folds | How::PurgesAll | How::PurgesNothing => {
                Ok(self.marks.lock().unwrap().insert(mark))
            }
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
