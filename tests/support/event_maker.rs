//! Random events with contents that are easily damaged: odd white space, escapes, Unicode, large and missing payloads.

use std::sync::Arc;

use fastrand::Rng;
use outbox::{EventId, NewEvent, ReceivedEvent, Router};

use super::checker::{Content, Intent};

/// One event in this many is large.
const LARGE: f64 = 0.005;
const LARGE_BYTES: usize = 60_000;

/// Makes events by a random sequence of its own.
pub(crate) struct EventMaker {
    pub(crate) random: Rng,
    /// Type and id of each.
    aggregates: Arc<[(String, String)]>,
    router: Router,
    /// One event in this many has no payload.
    tombstones: f64,
}

impl EventMaker {
    pub(crate) fn new(
        seed: u64,
        writer: u64,
        aggregates: Arc<[(String, String)]>,
        router: Router,
        tombstones: f64,
    ) -> Self {
        let random = Rng::with_seed(seed.wrapping_add(writer));
        Self { random, aggregates, router, tombstones }
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.random.f64() < share
    }

    /// So many aggregates, each once, in the one order in which all writers lock them.
    pub(crate) fn aggregates(&mut self, count: usize) -> Vec<(String, String)> {
        let all = 0..self.aggregates.len();
        let mut picked = self.random.choose_multiple(all, count);
        picked.sort_unstable();
        picked.into_iter().map(|at| self.aggregates[at].clone()).collect()
    }

    /// The event of this version of the aggregate. It counts as rolled back until its transaction has committed.
    pub(crate) fn event(&mut self, aggregate: &(String, String), version: i64) -> Intent {
        let headers = self.own_headers();
        self.intent(aggregate, version, headers)
    }

    /// As [`event`](Self::event), of the five plain columns only.
    pub(crate) fn plain_event(&mut self, aggregate: &(String, String), version: i64) -> Intent {
        self.intent(aggregate, version, Vec::new())
    }

    fn intent(
        &mut self,
        aggregate: &(String, String),
        version: i64,
        own_headers: Vec<(&'static str, &'static str)>,
    ) -> Intent {
        let id = EventId::generate().to_string();
        let event_type = self.random.choice(["Created.v1", "Paid", "Versandt ü"]).unwrap();
        let wire = [("id", id.as_str()), ("eventType", event_type)].into_iter().chain(own_headers);
        let headers = wire.map(|(name, value)| (name.to_owned(), Some(value.into()))).collect();
        Intent {
            aggregate: aggregate.clone(),
            version,
            committed: false,
            content: Content {
                topic: self.router.destination(&aggregate.0, event_type),
                key: Some(aggregate.1.as_str().into()),
                payload: self.payload(version),
                headers,
            },
            id,
        }
    }

    fn payload(&mut self, version: i64) -> Option<Vec<u8>> {
        if self.chance(self.tombstones) {
            return None;
        }
        let filling = if self.chance(LARGE) { LARGE_BYTES } else { self.random.usize(0..200) };
        let odd = self.random.choice([" ", "\t", "", "  \r\n"]).unwrap();
        Some(
            format!(
                r#"{{"version":{odd}{version},"b":1.10e2,"a":"Größe 😀 \u00e9 \" \\ '","a":null,{odd}"filling":"{}"}}"#,
                "x".repeat(filling)
            )
            .into(),
        )
    }

    fn own_headers(&mut self) -> Vec<(&'static str, &'static str)> {
        // By name: not every broker keeps another order.
        let some = [
            ("empty", ""),
            ("tenant", "Zürich \"west\" \\ 😀"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ];
        some.into_iter().filter(|_| self.random.bool()).collect()
    }
}

/// The event that a writer over the library appends for this intent.
pub(crate) fn new_event(intent: &Intent) -> NewEvent {
    let (kind, id) = intent.aggregate.clone();
    let text = |value: &Option<Vec<u8>>| String::from_utf8(value.clone().unwrap()).unwrap();
    let [_, event_type, own @ ..] = &intent.content.headers[..] else {
        unreachable!("an intent begins with the headers id and eventType")
    };
    let mut event = NewEvent::builder(kind, id, text(&event_type.1))
        .id(EventId::from_text(&intent.id).unwrap());
    if let Some(payload) = intent.content.payload.clone() {
        event = event.payload(payload);
    }
    for (name, value) in own {
        event = event.header(name, text(value));
    }
    event.build().unwrap()
}

/// What a consumer has received, in the form of an intent. Own headers by name: not every broker keeps another order.
pub(crate) fn content_of(event: ReceivedEvent, destination: &str) -> Content {
    let mut own: Vec<_> = event.headers;
    own.sort();
    let wire = [("id", event.id.to_string()), ("eventType", event.event_type.unwrap_or_default())];
    let wire = wire.map(|(name, value)| (name.to_owned(), Some(value.into_bytes())));
    let own = own.into_iter().map(|(name, value)| (name, value.map(Into::into)));
    Content {
        topic: destination.to_owned(),
        key: event.key.map(String::into_bytes),
        payload: event.payload.map(Into::into),
        headers: wire.into_iter().chain(own).collect(),
    }
}
