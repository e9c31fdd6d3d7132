//! The table of one pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox::{Exhausted, Limits, Pipeline, RetryPolicies, RetryPolicy, Router, Timing, TypeFilter};
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::settings::{self, File, Settings};
use super::{ConfigError, Secret};

/// One pipeline: from a source through a router to a publisher.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PipelineConfig {
    /// The pipeline's name and the aggregate types that it relays.
    pub pipeline: Pipeline,
    /// Where its events are.
    pub source: Settings,
    /// Where they go.
    pub publisher: Settings,
    /// Which destination each event has.
    pub router: Router,
    /// How often a failed event is tried again.
    pub retry: RetryPolicies,
    /// How much is kept in memory and in flight.
    pub limits: Limits,
    /// Every duration of the relay.
    pub timing: Timing,
    /// The table of the file with its variables filled in. Two files that agree in it agree in this pipeline.
    text: Secret,
}

impl PipelineConfig {
    /// Reads the table of a pipeline, the file's `index`th from 0.
    pub(super) fn read(
        file: &Arc<File>,
        index: usize,
        table: Spanned<DeValue<'_>>,
    ) -> Result<Self, ConfigError> {
        let place = table.span();
        let DeValue::Table(mut table) = table.into_inner() else {
            return Err(
                file.at(place, "pipeline is a list of tables: begin each one with [[pipeline]]")
            );
        };
        let text = Secret(settings::text(&table));
        let mut adapter = |key: &'static str| match table.remove(key) {
            Some(value) => Settings::new(file, index, key, &value),
            None => Err(file.at(place.clone(), format!("this pipeline has no [pipeline.{key}]"))),
        };
        let (source, publisher) = (adapter("source")?, adapter("publisher")?);
        let body: Body = file.read(Spanned::new(place.clone(), DeValue::Table(table)))?;
        let wrong =
            |reason: String| file.at(place.clone(), format!("pipeline {}: {reason}", body.name));
        let types = match (body.types, body.except_types) {
            (None, None) => TypeFilter::All,
            (Some(types), None) => TypeFilter::Only(types.into_iter().collect()),
            (None, Some(types)) => TypeFilter::Except(types.into_iter().collect()),
            (Some(_), Some(_)) => {
                return Err(wrong("give either types or except_types".to_owned()));
            }
        };
        let (limits, timing) = (body.limits.settings(), body.timing.settings());
        limits.check().and_then(|()| timing.check()).map_err(wrong)?;
        Ok(Self {
            pipeline: Pipeline::with_types(&body.name, types)
                .map_err(|error| wrong(error.to_string()))?,
            source,
            publisher,
            router: body.routing.router().map_err(|error| wrong(error.to_string()))?,
            retry: body.retry.policies(),
            limits,
            timing,
            text,
        })
    }

    /// Whether nothing that this pipeline goes by differs.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// A pipeline without its adapters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    name: String,
    types: Option<Vec<String>>,
    except_types: Option<Vec<String>>,
    #[serde(default)]
    routing: Routing,
    #[serde(default)]
    retry: Retry,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    timing: TimingTable,
}

/// Templates of destinations, with the fields `{aggregate_type}` and `{event_type}`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Routing {
    default: Option<String>,
    aggregates: BTreeMap<String, String>,
    events: BTreeMap<String, String>,
}

impl Routing {
    fn router(&self) -> Result<Router, outbox::InvalidTemplate> {
        let mut router = match &self.default {
            Some(template) => Router::new(template)?,
            None => Router::default(),
        };
        for (aggregate_type, template) in &self.aggregates {
            router = router.aggregate(aggregate_type, template)?;
        }
        for (event_type, template) in &self.events {
            router = router.event(event_type, template)?;
        }
        Ok(router)
    }
}

/// One policy for all, and exceptions.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Retry {
    base: Option<Span>,
    max: Option<Span>,
    jitter: Option<f64>,
    max_attempts: Option<u32>,
    exhausted: Option<Ending>,
    events: BTreeMap<String, Exception>,
    destinations: BTreeMap<String, Exception>,
}

/// What is not given is as in the policy for all.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Exception {
    base: Option<Span>,
    max: Option<Span>,
    jitter: Option<f64>,
    max_attempts: Option<u32>,
    exhausted: Option<Ending>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ending {
    DeadLetter,
    Hold,
}

impl Retry {
    pub(super) fn policies(&self) -> RetryPolicies {
        let Self { base, max, jitter, max_attempts, exhausted, .. } = *self;
        let all = Exception { base, max, jitter, max_attempts, exhausted };
        let all = all.policy(RetryPolicy::default());
        let policies =
            self.events.iter().fold(RetryPolicies::new(all), |policies, (name, retry)| {
                policies.event_type(name, retry.policy(all))
            });
        self.destinations
            .iter()
            .fold(policies, |policies, (name, retry)| policies.destination(name, retry.policy(all)))
    }
}

impl Exception {
    fn policy(self, all: RetryPolicy) -> RetryPolicy {
        all.with_delays(
            self.base.map_or(all.base, Duration::from),
            self.max.map_or(all.max, Duration::from),
        )
        .with_jitter(self.jitter.unwrap_or(all.jitter))
        .with_max_attempts(self.max_attempts.unwrap_or(all.max_attempts))
        .with_exhausted(match self.exhausted {
            Some(Ending::DeadLetter) => Exhausted::DeadLetter,
            Some(Ending::Hold) => Exhausted::Hold,
            None => all.exhausted,
        })
    }
}

/// A table whose keys are fields of one of the relay's settings, each with the field's default.
macro_rules! table {
    ($table:ident of $settings:ident, $value:ty: $($field:ident)+) => {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $table {
            $($field: Option<$value>,)+
        }

        impl $table {
            pub(super) fn settings(self) -> $settings {
                let mut settings = $settings::default();
                $(if let Some(value) = self.$field {
                    settings.$field = value.into();
                })+
                settings
            }
        }
    };
}

table!(LimitsTable of Limits, usize:
    window_events window_bytes claim_events claim_bytes call_events call_bytes calls settle_events);
table!(TimingTable of Timing, Span:
    poll_min poll_max lease heartbeat publish_deadline statement_deadline shutdown_deadline settle_gap probe sweep
    outage_base outage_max backlog);

/// A duration as people write it: `250ms`, `1m 30s`.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Span(#[serde(with = "humantime_serde")] Duration);

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}
