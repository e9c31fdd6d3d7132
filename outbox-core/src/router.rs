//! Where an event goes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Names an event's destination (topic, exchange, queue): a pure function of its aggregate type and event type.
///
/// A template is text with the fields `{aggregate_type}` and `{event_type}`; `{{` and `}}` stand for braces. An override for
/// the event type wins over one for the aggregate type, and that over the default, `outbox.event.{aggregate_type}`, which is
/// what Debezium's EventRouter uses.
///
/// ```
/// # use outbox_core::Router;
/// let router = Router::default()
///     .aggregate("invoice", "billing.{event_type}")?
///     .event("OrderCreated.v1", "orders.legacy")?;
/// assert_eq!(router.destination("order", "OrderCreated.v2"), "outbox.event.order");
/// assert_eq!(router.destination("order", "OrderCreated.v1"), "orders.legacy");
/// assert_eq!(router.destination("invoice", "Paid"), "billing.Paid");
/// # Ok::<(), outbox_core::InvalidTemplate>(())
/// ```
#[derive(Clone, Debug)]
pub struct Router {
    default: Template,
    by_aggregate: BTreeMap<String, Template>,
    by_event: BTreeMap<String, Template>,
}

impl Default for Router {
    fn default() -> Self {
        Self::new("outbox.event.{aggregate_type}").expect("the default template is valid")
    }
}

impl Router {
    /// A router with this default template.
    ///
    /// # Errors
    ///
    /// When the template is empty, names an unknown field, or a brace stands alone.
    pub fn new(template: &str) -> Result<Self, InvalidTemplate> {
        Ok(Self {
            default: Template::parse(template)?,
            by_aggregate: BTreeMap::new(),
            by_event: BTreeMap::new(),
        })
    }

    /// Sends events about `aggregate_type` by a template of their own.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn aggregate(
        mut self,
        aggregate_type: &str,
        template: &str,
    ) -> Result<Self, InvalidTemplate> {
        self.by_aggregate.insert(aggregate_type.to_owned(), Template::parse(template)?);
        Ok(self)
    }

    /// Sends events of `event_type` by a template of their own.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn event(mut self, event_type: &str, template: &str) -> Result<Self, InvalidTemplate> {
        self.by_event.insert(event_type.to_owned(), Template::parse(template)?);
        Ok(self)
    }

    /// The destination of an event of these types.
    #[must_use]
    pub fn destination(&self, aggregate_type: &str, event_type: &str) -> String {
        self.by_event
            .get(event_type)
            .or_else(|| self.by_aggregate.get(aggregate_type))
            .unwrap_or(&self.default)
            .fill(aggregate_type, event_type)
    }
}

#[derive(Clone, Debug)]
struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    AggregateType,
    EventType,
}

impl Template {
    fn parse(template: &str) -> Result<Self, InvalidTemplate> {
        let invalid = |reason: String| InvalidTemplate { template: template.to_owned(), reason };
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                text.push_str(&rest[..1]);
                rest = &rest[2..];
                continue;
            }
            let field = rest.strip_prefix('{').and_then(|field| field.split_once('}'));
            let Some((field, after)) = field else {
                return Err(invalid("a brace stands alone: write {{ or }} for one".to_owned()));
            };
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(match field {
                "aggregate_type" => Part::AggregateType,
                "event_type" => Part::EventType,
                _ => {
                    let known = "{aggregate_type} and {event_type}";
                    return Err(invalid(format!("{{{field}}} is no field: there are {known}")));
                }
            });
            rest = after;
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        if parts.is_empty() {
            return Err(invalid("it is empty".to_owned()));
        }
        Ok(Self(parts))
    }

    fn fill(&self, aggregate_type: &str, event_type: &str) -> String {
        let mut filled = String::new();
        for part in &self.0 {
            let text = match part {
                Part::Text(text) => text,
                Part::AggregateType => aggregate_type,
                Part::EventType => event_type,
            };
            let _ = filled.write_str(text);
        }
        filled
    }
}

/// A template that cannot name a destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route template {template:?}: {reason}")]
pub struct InvalidTemplate {
    template: String,
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_text_fields_and_doubled_braces() {
        let router = Router::new("{{{event_type}}}-{aggregate_type}").unwrap();
        assert_eq!(router.destination("a", "b"), "{b}-a");
    }

    #[test]
    fn names_are_used_as_they_are() {
        let router = Router::default();
        assert_eq!(router.destination("Orders.V1 ä", "x"), "outbox.event.Orders.V1 ä");
        assert_eq!(router.destination("", "x"), "outbox.event.");
        assert_eq!(router.destination("{event_type}", "x"), "outbox.event.{event_type}");
    }

    #[test]
    fn unknown_fields_and_lonely_braces_are_refused() {
        for template in ["", "{", "}", "a{id}", "{aggregate_type", "a}b"] {
            assert!(Router::new(template).is_err(), "{template}");
        }
    }
}
