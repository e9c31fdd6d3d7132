//! What each answer of the broker means for a message.

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error, ErrorKind};
use outbox_core::{Failure, FailureClass, PublishError, PublishErrorKind};

use crate::config::Unroutable;

/// How the broker, or the way to it, answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer<'a> {
    /// `basic.return`: no queue took the message.
    Returned(Unroutable),
    /// `basic.nack`: a queue took it not, since it is full and rejects, or failed.
    Nacked,
    /// The channel on which this message was alone was closed.
    ChannelClosed(&'a Error),
    /// The connection could not be made, or ended.
    NoConnection,
    /// `connection.blocked`: memory or disk run short.
    Blocked,
}

/// The one table.
///
/// What is unknown counts as a failed attempt of the message, so that it ends.
pub(crate) fn class(answer: Answer<'_>) -> FailureClass {
    use FailureClass::{Permanent, Refused, Transient, Unavailable};
    match answer {
        Answer::Returned(Unroutable::Refused) | Answer::Nacked => Refused,
        Answer::Returned(Unroutable::Permanent) => Permanent,
        Answer::NoConnection | Answer::Blocked => Unavailable,
        Answer::ChannelClosed(error) => match soft(error) {
            // The exchange is missing, not permitted or internal, or its queue belongs to another connection.
            Some(
                AMQPSoftError::NOTFOUND
                | AMQPSoftError::ACCESSREFUSED
                | AMQPSoftError::RESOURCELOCKED
                | AMQPSoftError::NOCONSUMERS,
            ) => Refused,
            // Larger than the broker's max_message_size.
            Some(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE) => Permanent,
            // Not an answer to a publish.
            Some(AMQPSoftError::NOROUTE) | None => Transient,
        },
    }
}

/// The failure of a message to `destination`, with the way out where there is one; `text` is the broker's.
pub(crate) fn failure(answer: Answer<'_>, destination: &str, text: &str) -> Failure {
    let reason = match answer {
        Answer::Returned(_) => format!(
            "no queue takes what goes to {destination}: rabbitmq returned it with {text}; bind a queue to it"
        ),
        Answer::Nacked => format!(
            "rabbitmq did not take a message to {destination}: a queue behind it is full and rejects, or failed"
        ),
        Answer::ChannelClosed(error) => {
            let way_out = match soft(error) {
                Some(AMQPSoftError::NOTFOUND) => "; declare it, or see the setting exchanges",
                Some(AMQPSoftError::ACCESSREFUSED) => "; grant this user write on it",
                Some(AMQPSoftError::PRECONDITIONFAILED) => {
                    "; see the setting max_message_bytes and the broker's max_message_size"
                }
                _ => "",
            };
            format!("rabbitmq refused a message to {destination}: {}{way_out}", describe(error))
        }
        Answer::NoConnection => format!("no connection to rabbitmq: {text}"),
        Answer::Blocked => "rabbitmq blocks its publishers: it is short of memory or disk; see \
             `rabbitmqctl status` for its alarms"
            .to_owned(),
    };
    Failure::new(class(answer), reason)
}

/// The exchange is missing, or this user may not write to it.
pub(crate) fn is_about_the_exchange(error: &Error) -> bool {
    let soft = soft(error);
    matches!(soft, Some(AMQPSoftError::NOTFOUND | AMQPSoftError::ACCESSREFUSED))
}

/// The broker closed a channel and nothing else.
pub(crate) fn is_of_a_channel(error: &Error) -> bool {
    soft(error).is_some() || matches!(error.kind(), ErrorKind::InvalidChannelState(..))
}

/// Why no connection could be made, or none that can be used: with the setting to look at.
pub(crate) fn connecting(error: &Error) -> PublishError {
    use PublishErrorKind::{Misconfigured, Unavailable};
    let (kind, setting) = match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => (
                Misconfigured,
                "; see user and password in the setting url, and the user's rights in the virtual host",
            ),
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => (
                Misconfigured,
                "; what is there was declared otherwise: see the settings exchanges and queues",
            ),
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED | AMQPHardError::INVALIDPATH) => {
                (Misconfigured, "; see the virtual host in the setting url")
            }
            _ => (Unavailable, ""),
        },
        _ => (Unavailable, "; see the setting url"),
    };
    let message = format!("no connection to rabbitmq: {}{setting}", describe(error));
    PublishError::new(kind, message).with_source(error.clone())
}

/// The broker's own text, or the client's.
pub(crate) fn describe(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    }
}

fn soft(error: &Error) -> Option<AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.clone()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use lapin::protocol::AMQPError;

    use super::*;

    fn closed(code: AMQPSoftError) -> Error {
        ErrorKind::ProtocolError(AMQPError::new(code.into(), "NOT_FOUND - no exchange 'x'".into()))
            .into()
    }

    /// H045, B179, B188, B189
    #[test]
    fn answers_say_whose_fault_it_is() {
        use FailureClass::{Permanent, Refused, Transient, Unavailable};
        let broken = Error::from(ErrorKind::FutureCompleted);
        for (answer, expected) in [
            (Answer::Returned(Unroutable::Refused), Refused),
            (Answer::Returned(Unroutable::Permanent), Permanent),
            (Answer::Nacked, Refused),
            (Answer::NoConnection, Unavailable),
            (Answer::Blocked, Unavailable),
            (Answer::ChannelClosed(&closed(AMQPSoftError::NOTFOUND)), Refused),
            (Answer::ChannelClosed(&closed(AMQPSoftError::ACCESSREFUSED)), Refused),
            (Answer::ChannelClosed(&closed(AMQPSoftError::PRECONDITIONFAILED)), Permanent),
            (Answer::ChannelClosed(&broken), Transient),
        ] {
            assert_eq!(class(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn why_there_is_no_connection_says_what_to_do_and_keeps_its_cause() {
        use PublishErrorKind::{Misconfigured, Unavailable};
        for (error, kind) in [
            (closed(AMQPSoftError::ACCESSREFUSED), Misconfigured),
            (closed(AMQPSoftError::PRECONDITIONFAILED), Misconfigured),
            (Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)), Unavailable),
        ] {
            let error = connecting(&error);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.source().unwrap().is::<Error>(), "{error}");
        }
    }

    #[test]
    fn a_reason_names_the_destination_and_the_way_out() {
        let error = closed(AMQPSoftError::NOTFOUND);
        let reason = failure(Answer::ChannelClosed(&error), "orders", "").reason;
        assert!(reason.contains("orders") && reason.contains("declare it"), "{reason}");
        let reason =
            failure(Answer::Returned(Unroutable::Refused), "orders", "312 NO_ROUTE").reason;
        assert!(reason.contains("NO_ROUTE") && reason.contains("bind a queue"), "{reason}");
    }
}
