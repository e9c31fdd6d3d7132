//! Every metric that the relay emits: names, labels, meaning. `docs/metrics.md` lists the same.
//!
//! Labels come from closed sets (the pipeline's name, an outcome), never from keys or ids.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::{Backlog, Monitor};

/// Events that are pending, counted up to a cap.
pub const PENDING: &str = "outbox_pending";
/// Age of the oldest pending event that is due, in seconds, by the database's clock.
pub const OLDEST_PENDING_AGE: &str = "outbox_oldest_pending_age_seconds";
/// Aggregates that stand still until an operator decides, counted up to a cap.
pub const BLOCKED_AGGREGATES: &str = "outbox_blocked_aggregates";
/// Dead letters, counted up to a cap.
pub const DEAD_LETTERS: &str = "outbox_dead_letters";
/// Size of a table in bytes, by `table`: live, dead, archive, inbox.
pub const TABLE_BYTES: &str = "outbox_table_bytes";
/// Events by `outcome`: delivered, retry, refused, dead, blocked, charged.
pub const ATTEMPTS: &str = "outbox_attempts_total";
/// How long a publish call ran, in seconds.
pub const PUBLISH_DURATION: &str = "outbox_publish_duration_seconds";
/// From writing the row to the broker's confirmation, in seconds, by the database's clock.
pub const CREATED_TO_ACK: &str = "outbox_created_to_ack_seconds";
/// Events of a claim that found some.
pub const CLAIM_BATCH: &str = "outbox_claim_batch_events";
/// Events of a publish call.
pub const PUBLISH_BATCH: &str = "outbox_publish_batch_events";
/// Events of a settle.
pub const SETTLE_BATCH: &str = "outbox_settle_batch_events";
/// Lanes that this worker owns.
pub const LANES_OWNED: &str = "outbox_lanes_owned";
/// Lanes taken or handed over, by `change`: taken, given.
pub const LEASE_CHANGES: &str = "outbox_lease_changes_total";
/// Lanes lost to another worker or to silence of the database.
pub const LEASES_LOST: &str = "outbox_leases_lost_total";
/// Events that only the sweep found.
pub const LATE_ROWS: &str = "outbox_late_rows_total";
/// Named events that were not there when they were settled.
pub const SETTLE_MISSING: &str = "outbox_settle_missing_total";
/// Events whose verdict the database refuses to store.
pub const QUARANTINED: &str = "outbox_quarantined_events";
/// Failed statements, by `statement` and `kind`.
pub const STORE_ERRORS: &str = "outbox_store_errors_total";
/// Events in memory, from claim to settle.
pub const WINDOW_EVENTS: &str = "outbox_window_events";
/// 1 while the destination counts as down, else 0.
pub const DESTINATION_DOWN: &str = "outbox_destination_down";
/// Messages whose deadline has passed without a verdict.
pub const OPEN_MESSAGES: &str = "outbox_open_messages";
/// Restarts of the pipeline after an error or a panic.
pub const RESTARTS: &str = "outbox_pipeline_restarts_total";
/// The publisher's own figures, by `stat`.
pub const PUBLISHER: &str = "outbox_publisher";

/// The handles of one pipeline.
pub(crate) struct Telemetry {
    pipeline: String,
    pub(crate) monitor: Monitor,
    delivered: Counter,
    pub(crate) created_to_ack: Histogram,
    pub(crate) publish_duration: Histogram,
    pub(crate) claim_batch: Histogram,
    pub(crate) publish_batch: Histogram,
    pub(crate) settle_batch: Histogram,
    lanes_owned: Gauge,
    window_events: Gauge,
    destination_down: Gauge,
    open_messages: Gauge,
    pub(crate) quarantined: Gauge,
    pub(crate) leases_lost: Counter,
    pub(crate) late_rows: Counter,
    pub(crate) settle_missing: Counter,
    restarts: Counter,
}

impl Telemetry {
    pub(crate) fn new(pipeline: &str, monitor: Monitor) -> Self {
        let own = || pipeline.to_owned();
        Self {
            delivered: counter!(ATTEMPTS, "pipeline" => own(), "outcome" => "delivered"),
            created_to_ack: histogram!(CREATED_TO_ACK, "pipeline" => own()),
            publish_duration: histogram!(PUBLISH_DURATION, "pipeline" => own()),
            claim_batch: histogram!(CLAIM_BATCH, "pipeline" => own()),
            publish_batch: histogram!(PUBLISH_BATCH, "pipeline" => own()),
            settle_batch: histogram!(SETTLE_BATCH, "pipeline" => own()),
            lanes_owned: gauge!(LANES_OWNED, "pipeline" => own()),
            window_events: gauge!(WINDOW_EVENTS, "pipeline" => own()),
            destination_down: gauge!(DESTINATION_DOWN, "pipeline" => own()),
            open_messages: gauge!(OPEN_MESSAGES, "pipeline" => own()),
            quarantined: gauge!(QUARANTINED, "pipeline" => own()),
            leases_lost: counter!(LEASES_LOST, "pipeline" => own()),
            late_rows: counter!(LATE_ROWS, "pipeline" => own()),
            settle_missing: counter!(SETTLE_MISSING, "pipeline" => own()),
            restarts: counter!(RESTARTS, "pipeline" => own()),
            pipeline: own(),
            monitor,
        }
    }

    pub(crate) fn restarted(&self, reason: &str) {
        self.restarts.increment(1);
        self.monitor.tell(|report| {
            report.restarts += 1;
            report.failure = Some(reason.to_owned());
        });
    }

    pub(crate) fn lanes_owned(&self, lanes: usize) {
        self.lanes_owned.set(lanes as f64);
        self.monitor.tell(|report| report.lanes_owned = lanes as u64);
    }

    pub(crate) fn window_events(&self, events: usize) {
        self.window_events.set(events as f64);
        self.monitor.tell(|report| report.window_events = events as u64);
    }

    pub(crate) fn open_messages(&self, messages: usize) {
        self.open_messages.set(messages as f64);
        self.monitor.tell(|report| report.open_messages = messages as u64);
    }

    pub(crate) fn destination_down(&self, is_down: bool) {
        self.destination_down.set(if is_down { 1.0 } else { 0.0 });
        if !is_down {
            self.monitor.tell(|report| report.destination_down = None);
        }
    }

    pub(crate) fn delivered(&self, events: u64) {
        self.delivered.increment(events);
        self.monitor.tell(|report| report.delivered += events);
    }

    pub(crate) fn attempt(&self, outcome: &'static str) {
        self.monitor.tell(|report| report.failed += u64::from(outcome != "charged"));
        counter!(ATTEMPTS, "pipeline" => self.pipeline.clone(), "outcome" => outcome).increment(1);
    }

    pub(crate) fn lease_changed(&self, change: &'static str) {
        let pipeline = self.pipeline.clone();
        counter!(LEASE_CHANGES, "pipeline" => pipeline, "change" => change).increment(1);
    }

    pub(crate) fn store_error(&self, statement: &'static str, kind: &'static str) {
        let pipeline = self.pipeline.clone();
        counter!(STORE_ERRORS, "pipeline" => pipeline, "statement" => statement, "kind" => kind)
            .increment(1);
    }

    pub(crate) fn backlog(&self, backlog: &Backlog) {
        self.monitor.tell(|report| report.backlog = Some(backlog.clone()));
        let set = |name: &'static str, value: f64| {
            gauge!(name, "pipeline" => self.pipeline.clone()).set(value);
        };
        set(PENDING, backlog.pending as f64);
        set(OLDEST_PENDING_AGE, backlog.oldest.unwrap_or(Duration::ZERO).as_secs_f64());
        set(BLOCKED_AGGREGATES, backlog.blocked as f64);
        set(DEAD_LETTERS, backlog.dead as f64);
        for (table, bytes) in &backlog.table_bytes {
            gauge!(TABLE_BYTES, "pipeline" => self.pipeline.clone(), "table" => *table)
                .set(*bytes as f64);
        }
    }

    fn gauges(&self) -> [&Gauge; 5] {
        [
            &self.lanes_owned,
            &self.window_events,
            &self.destination_down,
            &self.open_messages,
            &self.quarantined,
        ]
    }

    pub(crate) fn publisher(&self, stats: Vec<(&'static str, f64)>) {
        for (stat, value) in stats {
            gauge!(PUBLISHER, "pipeline" => self.pipeline.clone(), "stat" => stat).set(value);
        }
    }
}

/// A relay that has ended owns nothing, and knows nothing of its table any more.
impl Drop for Telemetry {
    fn drop(&mut self) {
        self.gauges().iter().for_each(|gauge| gauge.set(0.0));
        self.backlog(&Backlog::default());
        self.monitor.ended();
    }
}
