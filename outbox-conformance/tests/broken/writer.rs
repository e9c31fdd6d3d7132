//! Writers, and operators' functions, with one thing broken.

use std::sync::Arc;

use outbox_conformance::{DeadLetter, StoreHarness, WriterTransaction};
use outbox_core::memory::MemoryStore;
use outbox_core::{EventId, NewEvent, Store, StoreError, async_trait};

use crate::bites;
use crate::memory::Memory;

bites! { store,
    a_rollback_that_commits: what_is_rolled_back_was_never_there on broken(How::RollsBackNothing);
    a_savepoint_that_keeps_all: a_savepoint_takes_back_its_part_only on broken(How::IgnoresSavepoints);
    a_slice_in_any_order: positions_rise_in_the_order_of_the_slice on broken(How::ReversesSlices);
    an_append_that_refuses_nothing: an_empty_append_does_nothing on broken(How::RefusesEmptySlices);
    an_empty_payload_that_is_null: every_byte_of_a_payload_survives on broken(How::EmptyIsNull);
    a_key_that_is_trimmed: every_byte_of_a_key_survives on broken(How::TrimsKeys);
    headers_in_another_order: every_byte_of_the_headers_survives on broken(How::SortsHeaders);
    names_that_are_folded: names_of_the_longest_kind_survive on broken(How::FoldsNames);
    a_requeue_under_a_new_id: a_requeued_event_keeps_its_id_and_holds_its_aggregate on broken(How::RequeuesACopy);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    RollsBackNothing,
    IgnoresSavepoints,
    ReversesSlices,
    RefusesEmptySlices,
    EmptyIsNull,
    TrimsKeys,
    SortsHeaders,
    FoldsNames,
    RequeuesACopy,
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
        let inner = StoreHarness::begin(&self.memory).await;
        Box::new(Writing { inner, how: self.how, appended: 0 })
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        self.memory.dead().await
    }

    async fn requeue(&self, id: &EventId) -> Option<bool> {
        let dead = self.dead().await.into_iter().find(|letter| letter.id == *id)?;
        let copy = NewEvent::builder(dead.aggregate_type, dead.aggregate_id?, dead.event_type);
        self.memory.table.discard(id);
        let mut transaction = StoreHarness::begin(&self.memory).await;
        transaction.append(&[copy.build().unwrap()]).await.unwrap();
        transaction.commit().await;
        Some(true)
    }
}

struct Writing {
    inner: Box<dyn WriterTransaction>,
    how: How,
    appended: usize,
}

#[async_trait]
impl WriterTransaction for Writing {
    async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        if self.how == How::RefusesEmptySlices && events.is_empty() {
            return Err(StoreError::unavailable("syntax error at end of input"));
        }
        let mut events: Vec<NewEvent> = events.iter().map(|event| self.spoilt(event)).collect();
        self.appended += events.len();
        if self.how == How::ReversesSlices {
            events.reverse();
        }
        self.inner.append(&events).await
    }

    async fn savepoint(&mut self) {
        self.inner.savepoint().await;
    }

    async fn rollback_to_savepoint(&mut self) {
        if self.how != How::IgnoresSavepoints {
            self.inner.rollback_to_savepoint().await;
        }
    }

    async fn commit(self: Box<Self>) {
        self.inner.commit().await;
    }

    async fn rollback(self: Box<Self>) {
        if self.how == How::RollsBackNothing {
            self.inner.commit().await;
        }
    }
}

impl Writing {
    fn spoilt(&self, event: &NewEvent) -> NewEvent {
        let key = event.aggregate_id().unwrap_or_default();
        let (mut key, mut name) = (key.to_owned(), event.aggregate_type().to_owned());
        match self.how {
            How::TrimsKeys => key = key.trim().to_owned(),
            How::FoldsNames => name = name.to_lowercase(),
            _ => {}
        }
        let mut builder = NewEvent::builder(name, key, event.event_type()).id(event.id().clone());
        if event.aggregate_id().is_none() {
            builder = builder.unordered();
        }
        match event.payload() {
            Some([]) if self.how == How::EmptyIsNull => {}
            Some(payload) => builder = builder.payload(payload.to_vec()),
            None => {}
        }
        let mut headers = Vec::new();
        if let Some(json) = event.headers() {
            outbox_core::headers::for_each(json, &mut |name, value| {
                headers.push((name.to_owned(), value.to_owned()));
            })
            .unwrap();
        }
        if self.how == How::SortsHeaders {
            headers.sort();
        }
        let with =
            |builder: outbox_core::NewEventBuilder, (name, value)| builder.header(name, value);
        headers.into_iter().fold(builder, with).build().unwrap()
    }
}
