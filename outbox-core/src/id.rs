//! The identity of an event.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// The identity of an event: what a consumer recognises a duplicate by.
///
/// Text of 1 to 255 bytes without NUL. A UUID in its canonical form (36 characters, lower case) is kept as
/// 16 bytes, so that the common case costs no allocation; any other text is kept as it is. Two ids are equal
/// when their texts are equal byte for byte.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Uuid(Uuid),
    Text(Arc<str>),
}

impl EventId {
    /// The longest id in bytes.
    pub const MAX_BYTES: usize = 255;

    /// A new id: UUID version 7, so that ids of one process rise with time.
    #[must_use]
    pub fn generate() -> Self {
        Self(Repr::Uuid(Uuid::now_v7()))
    }

    /// The id with this text.
    ///
    /// # Errors
    ///
    /// When the text is empty, longer than [`EventId::MAX_BYTES`] or holds a NUL.
    pub fn from_text(text: &str) -> Result<Self, InvalidId> {
        if text.is_empty() || text.len() > Self::MAX_BYTES || text.contains('\0') {
            return Err(InvalidId { length: text.len() });
        }
        Ok(Self(canonical(text).map_or_else(|| Repr::Text(text.into()), Repr::Uuid)))
    }

    /// The id as a UUID, when its text is one in canonical form.
    #[must_use]
    pub fn as_uuid(&self) -> Option<Uuid> {
        match self.0 {
            Repr::Uuid(uuid) => Some(uuid),
            Repr::Text(_) => None,
        }
    }

    /// The id's text; `buffer` is used when the text has to be written out.
    pub fn text<'a>(&'a self, buffer: &'a mut [u8; 36]) -> &'a str {
        match &self.0 {
            Repr::Uuid(uuid) => uuid.hyphenated().encode_lower(buffer),
            Repr::Text(text) => text,
        }
    }
}

fn canonical(text: &str) -> Option<Uuid> {
    if text.len() != 36 || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    // `try_parse_ascii` also takes braces and URNs, but not in 36 bytes.
    Uuid::try_parse(text).ok()
}

impl From<Uuid> for EventId {
    fn from(uuid: Uuid) -> Self {
        Self(Repr::Uuid(uuid))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Uuid(uuid) => uuid.hyphenated().fmt(f),
            Repr::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that cannot be an event's id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event id has 1 to 255 bytes and no NUL, this one has {length} bytes")]
pub struct InvalidId {
    length: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_back_its_text_byte_for_byte() {
        for text in [
            "0198c0de-0000-7000-8000-00000000000a",
            "0198C0DE-0000-7000-8000-00000000000A",
            "0198c0de00007000800000000000000a",
            "{198c0de-0000-7000-8000-00000000000}",
            "42",
            "é",
        ] {
            let id = EventId::from_text(text).unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(id.text(&mut [0; 36]), text);
        }
    }

    #[test]
    fn only_the_canonical_form_is_a_uuid() {
        let lower = "0198c0de-0000-7000-8000-00000000000a";
        assert!(EventId::from_text(lower).unwrap().as_uuid().is_some());
        assert!(EventId::from_text(&lower.to_uppercase()).unwrap().as_uuid().is_none());
    }

    #[test]
    fn empty_long_and_nul_are_refused() {
        assert!(EventId::from_text("").is_err());
        assert!(EventId::from_text(&"x".repeat(256)).is_err());
        assert!(EventId::from_text("a\0b").is_err());
        assert!(EventId::from_text(&"x".repeat(255)).is_ok());
    }
}
