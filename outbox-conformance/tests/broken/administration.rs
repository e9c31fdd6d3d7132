//! Administrations with one thing broken.

use std::sync::Arc;

use outbox_conformance::{AdministrationHarness, DeadLetter, StoreHarness, WriterTransaction};
use outbox_core::memory::MemoryStore;
use outbox_core::{
    Administration, BlockedHead, DeadLetterFilter, Drift, EventId, EventRecord, EventState,
    NewEvent, Page, Position, Store, StoreError, Writer, async_trait,
};

use crate::bites;
use crate::memory::Memory;

bites! { store,
    a_migration_that_starts_anew: a_second_migration_changes_nothing on broken(How::EmptiesDeadLetters);
    a_check_that_finds_a_hazard: a_second_migration_changes_nothing on broken(How::Drifts);
    a_letter_without_its_reason: a_dead_letter_tells_what_it_was on broken(How::HidesReasons);
    deaths_in_any_order: a_dead_letter_tells_what_it_was on broken(How::ReversesLists);
    a_filter_that_forgets_the_key: a_filter_means_what_meets_every_condition on broken(How::IgnoresKeys);
    a_filter_that_forgets_the_type: a_filter_means_what_meets_every_condition on broken(How::IgnoresTypes);
    a_filter_that_forgets_the_time: a_filter_means_what_meets_every_condition on broken(How::IgnoresTimes);
    a_filter_that_minds_the_case: a_filter_means_what_meets_every_condition on broken(How::MindsCase);
    a_count_of_everything: a_filter_means_what_meets_every_condition on broken(How::CountsAll);
    a_page_that_begins_anew: pages_show_each_dead_letter_once on broken(How::IgnoresAfter);
    a_page_without_an_end: pages_show_each_dead_letter_once on broken(How::IgnoresLimit);
    a_requeue_under_a_new_id:
        a_requeued_dead_letter_keeps_its_id_and_holds_its_aggregate on broken(How::RequeuesACopy);
    a_requeue_that_keeps_the_letter:
        a_requeued_dead_letter_keeps_its_id_and_holds_its_aggregate on broken(How::KeepsLetters);
    a_requeue_at_the_end:
        dead_letters_of_an_aggregate_are_requeued_in_order on broken(How::RequeuesACopy);
    a_requeue_of_everything: requeue_all_takes_the_first_page_of_what_is_meant on broken(How::IgnoresLimit);
    a_requeue_of_other_types: requeue_all_takes_the_first_page_of_what_is_meant on broken(How::IgnoresTypes);
    a_discard_of_two: a_discarded_dead_letter_is_gone_and_no_other on broken(How::DiscardsTheNextToo);
    a_discard_that_keeps: a_discarded_dead_letter_is_gone_and_no_other on broken(How::KeepsLetters);
    a_discard_of_other_types: discard_all_takes_a_page_of_what_is_meant on broken(How::IgnoresTypes);
    a_discard_of_everything: discard_all_takes_a_page_of_what_is_meant on broken(How::IgnoresLimit);
    entries_that_repeat: an_entry_is_never_used_again on broken(How::RepeatsEntries);
    an_unknown_name_refused: what_is_not_there_is_an_answer on broken(How::RefusesUnknown);
    a_head_that_is_not_blocked: what_is_not_there_is_an_answer on broken(How::UnblocksAnything);
    every_waiting_event_a_head: blocked_heads_are_those_that_wait_for_an_operator on broken(How::ListsWaiting);
    heads_on_one_page: blocked_heads_are_those_that_wait_for_an_operator on broken(How::IgnoresLimit);
    an_unblock_that_discards: an_unblocked_head_comes_before_its_aggregate on broken(How::UnblocksByDiscarding);
    a_hold_that_ends: the_hold_of_a_discarded_head_passes_on on broken(How::DiscardsByUnblocking);
    pending_taken_for_scheduled: a_pending_event_is_found_as_pending on broken(How::FindsOthers);
    scheduled_taken_for_pending: a_scheduled_event_is_found_as_scheduled on broken(How::FindsPending);
    retrying_taken_for_pending: an_event_that_failed_is_found_as_retrying on broken(How::FindsPending);
    blocked_taken_for_retrying: a_blocked_head_is_found_as_blocked on broken(How::FindsRetrying);
    the_dead_not_found: an_event_that_was_given_up_is_found_as_dead on broken(How::FindsNoDead);
    an_archive_not_looked_at: a_delivered_event_is_found_in_the_archive on broken(How::Archives);
    a_delivered_event_taken_for_another: a_delivered_event_is_found_in_the_archive on broken(How::FindsOthers);
}

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    EmptiesDeadLetters,
    Drifts,
    HidesReasons,
    ReversesLists,
    IgnoresKeys,
    IgnoresTypes,
    IgnoresTimes,
    MindsCase,
    CountsAll,
    IgnoresAfter,
    IgnoresLimit,
    RequeuesACopy,
    KeepsLetters,
    DiscardsTheNextToo,
    RepeatsEntries,
    RefusesUnknown,
    UnblocksAnything,
    ListsWaiting,
    UnblocksByDiscarding,
    DiscardsByUnblocking,
    FindsOthers,
    FindsPending,
    FindsRetrying,
    FindsNoDead,
    Archives,
}

struct Broken {
    memory: Memory,
    how: How,
}

fn broken(how: How) -> Broken {
    Broken { memory: Memory::new(MemoryStore::new()), how }
}

#[async_trait]
impl StoreHarness for Broken {
    fn store(&self) -> Arc<dyn Store> {
        self.memory.store()
    }

    async fn begin(&self) -> Box<dyn WriterTransaction> {
        StoreHarness::begin(&self.memory).await
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        self.memory.dead().await
    }
}

impl AdministrationHarness for Broken {
    fn administration(&self) -> Arc<dyn Administration> {
        Arc::new(Spoilt { table: self.memory.table.clone(), how: self.how })
    }

    fn archives(&self) -> bool {
        self.how == How::Archives
    }
}

#[derive(Debug)]
struct Spoilt {
    table: MemoryStore,
    how: How,
}

impl Spoilt {
    fn is(&self, how: How) -> bool {
        self.how == how
    }

    fn table(&self) -> &dyn Administration {
        &self.table
    }

    fn spoil(&self, filter: &DeadLetterFilter, page: Page) -> (DeadLetterFilter, Page) {
        let (mut filter, mut page) = (filter.clone(), page);
        match self.how {
            How::IgnoresKeys => filter.aggregate_id = None,
            How::IgnoresTypes => filter.aggregate_type = None,
            How::IgnoresTimes => (filter.since, filter.until) = (None, None),
            How::MindsCase => filter.text = filter.text.map(|text| text.replace("BROKER", "x")),
            How::IgnoresAfter => page.after = 0,
            How::IgnoresLimit => page.limit = u32::MAX,
            _ => {}
        }
        (filter, page)
    }

    async fn everything(&self) -> Vec<outbox_core::DeadLetter> {
        let all = self.table().dead_letters(&DeadLetterFilter::default(), Page::default()).await;
        all.unwrap()
    }

    /// The dead letter that the broken function is told of.
    async fn letter(&self, entry: i64) -> Option<outbox_core::DeadLetter> {
        self.everything().await.into_iter().find(|letter| self.entry(letter.entry) == entry)
    }

    fn entry(&self, entry: i64) -> i64 {
        if self.is(How::RepeatsEntries) { 1 } else { entry }
    }
}

#[async_trait]
impl Administration for Spoilt {
    fn schema(&self) -> String {
        self.table.schema()
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        if self.is(How::EmptiesDeadLetters) {
            self.discard_all(&DeadLetterFilter::default(), Page::default()).await?;
        }
        Ok(())
    }

    async fn check(&self) -> Result<Vec<Drift>, StoreError> {
        let drift = self.is(How::Drifts).then(|| Drift::missing("outbox"));
        Ok(drift.into_iter().collect())
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page,
    ) -> Result<Vec<outbox_core::DeadLetter>, StoreError> {
        let (filter, page) = self.spoil(filter, page);
        let mut letters = self.table().dead_letters(&filter, page).await?;
        for letter in &mut letters {
            letter.entry = self.entry(letter.entry);
            if self.is(How::HidesReasons) {
                letter.reason.clear();
            }
        }
        if self.is(How::ReversesLists) {
            letters.reverse();
        }
        Ok(letters)
    }

    async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        if self.is(How::CountsAll) {
            return Ok(self.everything().await.len() as u64);
        }
        let (filter, _) = self.spoil(filter, Page::default());
        self.table().count_dead_letters(&filter).await
    }

    async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        let Some(letter) = self.letter(entry).await else {
            return match self.how {
                How::RefusesUnknown => Err(StoreError::misconfigured("no such dead letter")),
                _ => Ok(false),
            };
        };
        match self.how {
            How::RequeuesACopy => {
                let key = letter.aggregate_id.clone().unwrap();
                let copy = NewEvent::builder(letter.aggregate_type, key, letter.event_type);
                let mut transaction = self.table.begin();
                self.table.append(&mut transaction, &[copy.build().unwrap()]).await?;
                transaction.commit();
                self.table().discard(entry).await
            }
            How::KeepsLetters => Ok(true),
            _ => self.table().requeue(letter.entry).await,
        }
    }

    async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        if self.is(How::KeepsLetters) {
            return Ok(self.letter(entry).await.is_some());
        }
        if self.is(How::DiscardsTheNextToo) {
            self.table().discard(entry + 1).await?;
        }
        self.table().discard(entry).await
    }

    async fn blocked_heads(&self, page: Page) -> Result<Vec<BlockedHead>, StoreError> {
        let (_, page) = self.spoil(&DeadLetterFilter::default(), page);
        if self.is(How::ListsWaiting) {
            let pending = self.table.pending().into_iter().filter(outbox_core::Event::is_waiting);
            let head =
                |event: outbox_core::Event| BlockedHead::new(event.position(), event.id().clone());
            return Ok(pending.map(head).collect());
        }
        self.table().blocked_heads(page).await
    }

    async fn unblock(&self, position: Position) -> Result<bool, StoreError> {
        match self.how {
            How::UnblocksAnything => Ok(true),
            How::UnblocksByDiscarding => self.table().discard_blocked(position).await,
            _ => self.table().unblock(position).await,
        }
    }

    async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError> {
        match self.how {
            How::DiscardsByUnblocking => self.table().unblock(position).await,
            _ => self.table().discard_blocked(position).await,
        }
    }

    async fn find(&self, id: &EventId) -> Result<Vec<EventRecord>, StoreError> {
        let mut records = self.table().find(id).await?;
        let due_at = self.table.now();
        for record in &mut records {
            record.state = match (self.how, &record.state) {
                (How::FindsOthers, EventState::Pending) => EventState::Scheduled { due_at },
                (How::FindsPending, _) => EventState::Pending,
                (How::FindsRetrying, EventState::Blocked { reason }) => {
                    EventState::Retrying { due_at, reason: reason.clone() }
                }
                (_, state) => state.clone(),
            };
        }
        if self.is(How::FindsNoDead) {
            records.retain(|record| record.state.as_str() != "dead");
        }
        Ok(records)
    }
}
