//! Writers and inboxes that number, or count, with one thing broken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use outbox_conformance::{
    DeadLetter, InboxHarness, InboxTransaction, StoreHarness, WriterTransaction,
};
use outbox_core::memory::MemoryStore;
use outbox_core::{Arrival, EventRow, NewEvent, Store, StoreError, async_trait, headers};

use crate::bites;
use crate::memory::Memory;

mod writers {
    use super::*;

    bites! { store,
        numbers_that_start_anew: numbers_rise_by_one_in_each_aggregate on writer(Writes::StartsAnew);
        numbers_outside_the_transaction: numbers_follow_the_order_of_commits on writer(Writes::DrawsAtOnce);
        numbers_without_a_lock:
            writers_of_the_same_aggregates_do_not_lock_each_other_out on writer(Writes::DrawsAtOnce);
        numbers_that_stay_away: a_rollback_takes_its_numbers_back on writer(Writes::DrawsAtOnce);
        aggregates_that_are_folded: aggregates_are_numbered_bytewise on writer(Writes::Folds);
        numbers_for_everything: unordered_and_scheduled_events_have_no_number on writer(Writes::NumbersAll);
    }
}

mod inboxes {
    use super::*;

    bites! { inbox,
        gaps_that_are_hidden: next_duplicate_and_gap_are_told_apart on inbox(Tells::HidesGaps);
        gaps_that_are_told_once: a_gap_stays_until_it_is_accepted on inbox(Tells::PassesGaps);
        an_accept_that_goes_back: what_was_given_up_is_a_duplicate on inbox(Tells::AcceptsBackwards);
        no_number_taken_for_the_next: an_event_without_a_number_is_told_so on inbox(Tells::CountsUnnumbered);
        arrivals_outside_the_transaction: a_rolled_back_arrival_comes_next_again on inbox(Tells::AtOnce);
        keys_that_are_folded: consumers_and_keys_are_counted_bytewise on inbox(Tells::Folds);
        arrivals_that_never_wait: of_copies_at_the_same_time_one_is_the_next on inbox(Tells::AtCommit);
    }
}

type Counts = Arc<Mutex<BTreeMap<(String, String), u64>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    StartsAnew,
    DrawsAtOnce,
    Folds,
    NumbersAll,
}

struct Writer {
    memory: Memory,
    counts: Counts,
    how: Writes,
}

fn writer(how: Writes) -> Writer {
    Writer { memory: Memory::new(MemoryStore::new()), counts: Counts::default(), how }
}

#[async_trait]
impl StoreHarness for Writer {
    fn store(&self) -> Arc<dyn Store> {
        self.memory.store()
    }

    async fn begin(&self) -> Box<dyn WriterTransaction> {
        StoreHarness::begin(&self.memory).await
    }

    async fn begin_numbered(&self) -> Option<Box<dyn WriterTransaction>> {
        let (table, counts) = (self.memory.table.clone(), Arc::clone(&self.counts));
        Some(Box::new(Writing { table, counts, how: self.how, rows: Vec::new(), savepoint: 0 }))
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        self.memory.dead().await
    }
}

struct Writing {
    table: MemoryStore,
    counts: Counts,
    how: Writes,
    rows: Vec<(NewEvent, Option<u64>)>,
    savepoint: usize,
}

impl Writing {
    fn draw(&self, event: &NewEvent) -> Option<u64> {
        let has_place = event.aggregate_id().is_some() && event.due().is_none();
        if !has_place && self.how != Writes::NumbersAll {
            return None;
        }
        let id = event.aggregate_id().unwrap_or_default();
        let mut key = (event.aggregate_type().to_owned(), id.to_owned());
        if self.how == Writes::Folds {
            key.1 = key.1.to_lowercase();
        }
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(key).or_default();
        *count += 1;
        Some(*count)
    }
}

#[async_trait]
impl WriterTransaction for Writing {
    async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        if self.how == Writes::StartsAnew {
            self.counts.lock().unwrap().clear();
        }
        for event in events {
            let number = self.draw(event);
            self.rows.push((event.clone(), number));
        }
        Ok(())
    }

    async fn savepoint(&mut self) {
        self.savepoint = self.rows.len();
    }

    async fn rollback_to_savepoint(&mut self) {
        self.rows.truncate(self.savepoint);
    }

    async fn commit(self: Box<Self>) {
        // Who has drawn first is not always first here.
        for _ in 0..self.rows[0].1.unwrap_or(0) % 2 {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        for (event, number) in &self.rows {
            let headers = number.map(|number| headers::with_sequence(event.headers(), number));
            let mut row = EventRow::new(0, 0, event.id().clone());
            row.aggregate_type = event.aggregate_type();
            row.aggregate_id = event.aggregate_id();
            row.event_type = event.event_type();
            row.headers = headers.as_deref();
            row.waiting = event.due().is_some();
            self.table.insert_raw(&row);
        }
    }

    async fn rollback(self: Box<Self>) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    HidesGaps,
    PassesGaps,
    AcceptsBackwards,
    CountsUnnumbered,
    AtOnce,
    Folds,
    AtCommit,
}

struct Inbox {
    counts: Counts,
    how: Tells,
}

fn inbox(how: Tells) -> Inbox {
    Inbox { counts: Counts::default(), how }
}

#[async_trait]
impl InboxHarness for Inbox {
    async fn begin(&self) -> Box<dyn InboxTransaction> {
        let mine = self.counts.lock().unwrap().clone();
        Box::new(Telling { counts: Arc::clone(&self.counts), how: self.how, mine })
    }
}

struct Telling {
    counts: Counts,
    how: Tells,
    mine: BTreeMap<(String, String), u64>,
}

impl Telling {
    /// What was accepted, as this transaction sees it.
    fn last(&mut self, consumer: &str, key: &str) -> (u64, (String, String)) {
        let mut key = (consumer.to_owned(), key.to_owned());
        if self.how == Tells::Folds {
            key.1 = key.1.to_lowercase();
        }
        if self.how == Tells::AtOnce {
            self.mine.clone_from(&self.counts.lock().unwrap());
        }
        (self.mine.get(&key).copied().unwrap_or(0), key)
    }

    fn set(&mut self, key: (String, String), last: u64) {
        if self.how == Tells::AtOnce {
            self.counts.lock().unwrap().insert(key.clone(), last);
        }
        self.mine.insert(key, last);
    }
}

#[async_trait]
impl InboxTransaction for Telling {
    async fn first_seen(&mut self, _consumer: &str, _event_id: &str) -> Result<bool, StoreError> {
        unreachable!("only its numbers are looked at")
    }

    async fn arrival(
        &mut self,
        consumer: &str,
        key: &str,
        sequence: Option<u64>,
    ) -> Option<Result<Arrival, StoreError>> {
        tokio::task::yield_now().await;
        let (last, key) = self.last(consumer, key);
        let got = match sequence {
            None if self.how == Tells::CountsUnnumbered => last + 1,
            None => return Some(Ok(Arrival::Unnumbered)),
            Some(got) => got,
        };
        let mut told = Arrival::of(last, got);
        if matches!(told, Arrival::Gap { .. }) && self.how == Tells::HidesGaps {
            told = Arrival::Next;
        }
        let passes = self.how == Tells::PassesGaps && got > last;
        if told == Arrival::Next || passes {
            self.set(key, got);
        }
        Some(Ok(told))
    }

    async fn accept(&mut self, consumer: &str, key: &str, sequence: u64) -> Result<(), StoreError> {
        let (last, key) = self.last(consumer, key);
        let backwards = self.how == Tells::AcceptsBackwards;
        self.set(key, if backwards { sequence } else { last.max(sequence) });
        Ok(())
    }

    async fn commit(self: Box<Self>) {
        tokio::task::yield_now().await;
        *self.counts.lock().unwrap() = self.mine;
    }

    async fn rollback(self: Box<Self>) {}
}
