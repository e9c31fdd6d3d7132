//! An event's own headers: one flat JSON object.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The header that carries the event's id.
pub const ID: &str = "id";

/// The header that carries the event's type.
pub const EVENT_TYPE: &str = "eventType";

/// Names that the wire format uses itself: the event's id and type.
pub const RESERVED: [&str; 2] = [ID, EVENT_TYPE];

/// The header under which the correlation id travels.
pub const CORRELATION_ID: &str = "correlationId";

/// The header that carries the W3C trace context.
pub const TRACEPARENT: &str = "traceparent";

/// The header that carries the number of a replay, counted from 1: whoever publishes archived events again sets it in the
/// row. Nothing here does so yet.
pub const REPLAY: &str = "outbox-replay";

/// The header that carries the number of the event in its aggregate, counted from 1, where the writer numbers events.
pub const SEQUENCE: &str = "outbox-sequence";

/// The headers of an event, with its number in front.
#[must_use]
pub fn with_sequence(headers: Option<&str>, sequence: u64) -> String {
    let rest = headers.and_then(|json| json.strip_prefix('{')).unwrap_or("}");
    let comma = if rest == "}" { "" } else { "," };
    format!("{{\"{SEQUENCE}\":\"{sequence}\"{comma}{rest}")
}

/// Calls `each` with name and value of every header in `json`, in the order of the text.
///
/// String values are given as they are, numbers, booleans and null as their JSON text.
///
/// # Errors
///
/// When `json` is no flat JSON object, or uses a name in [`RESERVED`].
pub fn for_each(json: &str, each: &mut dyn FnMut(&str, &str)) -> Result<(), InvalidHeaders> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    deserializer
        .deserialize_map(Flat(each))
        .and_then(|()| deserializer.end())
        .map_err(|error| InvalidHeaders(error.to_string()))
}

struct Flat<'a>(&'a mut dyn FnMut(&str, &str));

impl<'de> Visitor<'de> for Flat<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a flat JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        use serde::de::Error;
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            if RESERVED.contains(&&*name) {
                return Err(A::Error::custom(format!("the name {name:?} is reserved")));
            }
            let raw = map.next_value::<&'de RawValue>()?.get();
            match raw.as_bytes().first() {
                Some(b'"') => {
                    let Text(value) = serde_json::from_str(raw).map_err(A::Error::custom)?;
                    (self.0)(&name, &value);
                }
                Some(b'{' | b'[') => {
                    return Err(A::Error::custom(format!("the value of {name:?} is nested")));
                }
                _ => (self.0)(&name, raw),
            }
        }
        Ok(())
    }
}

/// A JSON string, borrowed unless it has escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Headers that are no flat JSON object, or use a reserved name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("headers must be one flat JSON object without the names id and eventType: {0}")]
pub struct InvalidHeaders(String);

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(json: &str) -> Result<Vec<(String, String)>, InvalidHeaders> {
        let mut pairs = Vec::new();
        for_each(json, &mut |name, value| pairs.push((name.to_owned(), value.to_owned())))?;
        Ok(pairs)
    }

    #[test]
    fn strings_come_as_they_are_and_other_scalars_as_json_text() {
        let json = r#"{"a": "x\u00e9\n", "b" : 1.10e2, "c":true,"d":null,"a":""}"#;
        let expected = [("a", "xé\n"), ("b", "1.10e2"), ("c", "true"), ("d", "null"), ("a", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs(json).unwrap(), expected);
    }

    #[test]
    fn a_number_stands_in_front_of_the_other_headers() {
        assert_eq!(with_sequence(None, 7), r#"{"outbox-sequence":"7"}"#);
        let json = with_sequence(Some(r#"{"a":"b"}"#), 8);
        assert_eq!(json, r#"{"outbox-sequence":"8","a":"b"}"#);
    }

    #[test]
    fn nested_values_reserved_names_and_other_json_are_refused() {
        for json in [
            r#"{"a":{}}"#,
            r#"{"a":[1]}"#,
            r#"{"id":"x"}"#,
            r#"{"eventType":"x"}"#,
            "[]",
            "",
            "{} x",
            "null",
        ] {
            assert!(pairs(json).is_err(), "{json}");
        }
    }
}
