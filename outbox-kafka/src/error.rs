//! What each error code of librdkafka and of the broker means for a message.

use outbox_core::{Failure, FailureClass, PublishError, PublishErrorKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// What to do with a message that was reported with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A verdict on this message.
    Verdict(FailureClass),
    /// The whole batch of the broker's log was refused for one of its messages, perhaps another one.
    BatchRefused,
    /// The message stays open until its producer is closed: it may have been written.
    Open,
}

/// The one table of codes.
///
/// The producer itself repeats what can be repeated without changing the order (a lost connection, a leader that moves,
/// too few replicas), without end: such codes arrive here only in rare paths, and mean that the destination is not
/// available. A code that is not in the table counts as a failed attempt of the message, so that it ends.
pub(crate) fn meaning(code: Code) -> Meaning {
    use FailureClass::{Permanent, Refused, Transient, Unavailable};
    match code {
        // The producer is being closed, or stands still after a fatal error.
        Code::PurgeQueue
        | Code::PurgeInflight
        | Code::Fatal
        | Code::GaplessGuarantee
        | Code::DestroyBroker
        | Code::Inconsistent
        // A neighbour in the batch was invalid.
        | Code::InvalidDifferentRecord
        // The broker and the producer disagree about the sequence: a new producer starts a new one.
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::InvalidProducerEpoch
        | Code::UnknownProducerId
        | Code::ProducerFenced
        | Code::Fenced => Meaning::Open,

        // Answers of a broker to a batch; which of its messages is meant is not said.
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTimestamp => Meaning::BatchRefused,

        // Only this topic.
        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::TopicAuthorizationFailed
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType
        // The broker met an error of its own at this partition and has no code for it; Kafka's protocol calls it not
        // retriable, so the client gives up at once. No event is given up for it: the next one would fare the same.
        | Code::Unknown
        // Its volume is offline.
        | Code::KafkaStorageError
        | Code::LogDirNotFound => Meaning::Verdict(Refused),

        // The topic's name is against the rules.
        Code::InvalidTopic => Meaning::Verdict(Permanent),

        // The cluster, the network or the login.
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::BrokerDestroy
        | Code::Resolve
        | Code::SSL
        | Code::CriticalSystemResource
        | Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::RequestTimedOut
        | Code::WaitCache
        | Code::Interrupted
        | Code::Retry
        | Code::QueueFull
        | Code::ISRInsufficient
        | Code::UnknownBroker
        | Code::NodeUpdate
        | Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SecurityDisabled
        | Code::ClusterAuthorizationFailed
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::NetworkException
        | Code::NotController
        | Code::StaleControllerEpoch
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::InvalidRequiredAcks
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::ThrottlingQuotaExceeded
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::RebootstrapRequired => Meaning::Verdict(Unavailable),

        _ => Meaning::Verdict(Transient),
    }
}

/// The failure of a message to `topic` that was given the verdict `class` for `code`, with the way out where there is one.
pub(crate) fn failure(class: FailureClass, code: Code, topic: &str) -> Failure {
    let way_out = match code {
        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId => "; create it: topics are not created by use",
        Code::TopicAuthorizationFailed => "; grant this user Write and Describe on it",
        Code::Unknown => "; the broker's log says more",
        Code::PolicyViolation => "; see the topic's policies at the broker",
        Code::UnsupportedCompressionType => "; see the setting compression",
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => {
            "; see the setting max_message_bytes and the topic's max.message.bytes"
        }
        Code::InvalidTimestamp => "; see the topic's message.timestamp.before.max.ms",
        Code::Authentication | Code::SaslAuthenticationFailed => "; see the setting sasl",
        Code::ClusterAuthorizationFailed => "; grant this user IdempotentWrite on the cluster",
        _ => "",
    };
    Failure::new(class, format!("topic {topic}: {code}{way_out}"))
}

/// The code of an error of the crate `rdkafka`; one without a code is about what was given to it.
pub(crate) fn code(error: &KafkaError) -> Code {
    error.rdkafka_error_code().unwrap_or(Code::InvalidArgument)
}

/// The error of a cluster that does not answer, with the last trouble that a connection had: it says more.
pub(crate) fn no_answer(error: KafkaError, last: Option<&(Code, String)>) -> PublishError {
    use PublishErrorKind::{Misconfigured, Unavailable};
    let (kind, setting) = match last {
        Some((Code::Authentication | Code::SaslAuthenticationFailed, _)) => {
            (Misconfigured, "setting sasl")
        }
        // librdkafka says the same of a certificate that is not trusted and of one for another name.
        Some((Code::SSL, _)) => {
            (Misconfigured, "setting tls, and for which names the broker's certificate is")
        }
        _ => (Unavailable, "settings bootstrap_servers, tls and sasl"),
    };
    let last = last.map(|(code, reason)| format!("; last error: {code}: {reason}"));
    let (code, last) = (code(&error), last.unwrap_or_default());
    let message = format!("kafka does not answer: {code}{last}; see the {setting}");
    PublishError::new(kind, message).with_source(error)
}

/// The error of a client that cannot be made, without the values of its settings: they may be secrets.
pub(crate) fn creation(error: KafkaError) -> PublishError {
    let message = match &error {
        // The error itself repeats the value.
        KafkaError::ClientConfig(_, _, name, _) => {
            return PublishError::misconfigured(format!(
                "librdkafka refuses the setting {name}: no such setting, or its value is not allowed"
            ));
        }
        KafkaError::ClientCreation(reason) => format!("no kafka producer could be made: {reason}"),
        other => format!("no kafka producer could be made: {}", code(other)),
    };
    PublishError::misconfigured(message).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// H045, B164: a missing topic waits and is not given up, since a broker that starts does not know its topics yet.
    #[test]
    fn codes_say_whose_fault_it_is() {
        use FailureClass::{Permanent, Refused, Transient, Unavailable};
        for (code, class) in [
            (Code::UnknownTopicOrPartition, Refused),
            (Code::TopicAuthorizationFailed, Refused),
            (Code::InvalidTopic, Permanent),
            (Code::AllBrokersDown, Unavailable),
            (Code::Authentication, Unavailable),
            (Code::NotEnoughReplicas, Unavailable),
            (Code::ThrottlingQuotaExceeded, Unavailable),
            (Code::Unknown, Refused),
            (Code::InvalidRequest, Transient),
        ] {
            assert_eq!(meaning(code), Meaning::Verdict(class), "{code}");
        }
    }

    #[test]
    fn a_reason_names_the_topic_and_the_way_out() {
        let failure = failure(FailureClass::Refused, Code::UnknownTopic, "orders");
        assert!(failure.reason.contains("topic orders: "), "{}", failure.reason);
        assert!(failure.reason.contains("create it"), "{}", failure.reason);
    }

    #[test]
    fn a_refused_value_is_not_repeated() {
        let error = KafkaError::ClientConfig(
            rdkafka::types::RDKafkaConfRes::RD_KAFKA_CONF_INVALID,
            "hush".into(),
            "sasl.password".into(),
            "hush".into(),
        );
        let text = format!("{:?}", creation(error));
        assert!(text.contains("sasl.password") && !text.contains("hush"), "{text}");
    }

    #[test]
    fn why_there_is_no_answer_says_what_to_do_and_keeps_its_cause() {
        use PublishErrorKind::{Misconfigured, Unavailable};
        for (last, kind) in [
            (None, Unavailable),
            (Some(Code::AllBrokersDown), Unavailable),
            (Some(Code::Authentication), Misconfigured),
            (Some(Code::SSL), Misconfigured),
        ] {
            let last = last.map(|code| (code, "why".to_owned()));
            let error =
                no_answer(KafkaError::MetadataFetch(Code::OperationTimedOut), last.as_ref());
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.source().unwrap().is::<KafkaError>(), "{error}");
        }
    }
}
