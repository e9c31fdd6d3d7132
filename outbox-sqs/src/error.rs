//! What each error of SQS and of the SDK means for a message.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use outbox_core::{Failure, FailureClass, PublishError};

/// Characters of an answer's own text that go into a reason.
const MAX_TEXT_CHARS: usize = 300;

/// What a request that failed means for its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// None was taken.
    NotTaken(Failure),
    /// None was taken, and only one of them may be at fault: each is to be sent by itself.
    OneOfThem(Failure),
    /// They may have been taken, or still be.
    Unknown(String),
}

/// The one table of codes, without their prefixes. What is unknown counts as a failed attempt of the message, so that it ends.
fn class(code: &str) -> FailureClass {
    use FailureClass::{Permanent, Refused, Transient, Unavailable};
    match code {
        // The message: too large, or against the rules for contents and parameters.
        "InvalidMessageContents"
        | "MessageTooLong"
        | "BatchRequestTooLong"
        | "InvalidAttributeValue"
        | "InvalidAttributeName"
        | "InvalidParameterValue"
        | "InvalidParameterCombination"
        | "MissingParameter"
        | "ValidationError"
        | "ValidationException" => Permanent,

        // Only this queue: missing, not permitted, or its key does not work.
        "QueueDoesNotExist"
        | "NonExistentQueue"
        | "QueueDeletedRecently"
        | "InvalidAddress"
        | "InvalidSecurity"
        | "UnsupportedOperation"
        | "OverLimit"
        | "AccessDenied"
        | "AccessDeniedException"
        | "AuthorizationError"
        | "KMS.AccessDeniedException"
        | "KMS.DisabledException"
        | "KMS.InvalidKeyUsageException"
        | "KMS.InvalidStateException"
        | "KMS.NotFoundException"
        | "KMS.OptInRequired"
        | "KmsAccessDenied"
        | "KmsDisabled"
        | "KmsInvalidKeyUsage"
        | "KmsInvalidState"
        | "KmsNotFound"
        | "KmsOptInRequired" => Refused,

        // Throttled.
        "RequestThrottled"
        | "RequestThrottledException"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "RequestLimitExceeded"
        | "SlowDown"
        | "BandwidthLimitExceeded"
        | "KMS.ThrottlingException"
        | "KmsThrottled"
        // Down.
        | "ServiceUnavailable"
        | "ServiceUnavailableException"
        // The login.
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "InvalidClientTokenId"
        | "InvalidAccessKeyId"
        | "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "UnrecognizedClientException"
        | "IncompleteSignature"
        | "IncompleteSignatureException"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "MissingClientTokenId"
        | "NotAuthorized"
        | "OptInRequired"
        | "RequestExpired"
        | "RequestTimeTooSkewed" => Unavailable,

        _ => Transient,
    }
}

/// What a failed request to `destination` means for its messages.
pub(crate) fn of_request<E>(error: &SdkError<E, HttpResponse>, destination: &str) -> Trouble
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let unavailable = |reason: String| {
        Trouble::NotTaken(Failure::new(FailureClass::Unavailable, format!("sqs: {reason}")))
    };
    let status = error.raw_response().map(|response| response.status().as_u16());
    match (error, error.as_service_error().and_then(ProvideErrorMetadata::code), status) {
        (_, Some(code), Some(status)) => {
            let text = error.as_service_error().and_then(ProvideErrorMetadata::message);
            let failure = failure(class(bare(code)), bare(code), text, destination);
            match failure.class {
                FailureClass::Unavailable | FailureClass::Refused => Trouble::NotTaken(failure),
                _ if status >= 500 => Trouble::Unknown(failure.reason.to_string()),
                _ => Trouble::OneOfThem(failure),
            }
        }
        (_, None, Some(status @ 400..500)) => unavailable(format!(
            "the endpoint answered {status} without a code of SQS: is this the endpoint's URL?"
        )),
        (SdkError::ConstructionFailure(_), ..) => {
            unavailable(format!("the request could not be made: {}", root(error)))
        }
        (SdkError::DispatchFailure(_), ..) if was_never_connected(error) => {
            unavailable(format!("no connection to the endpoint: {}", root(error)))
        }
        (SdkError::DispatchFailure(_), ..) if find::<CredentialsError>(error).is_some() => {
            unavailable("the SDK found no usable credentials".to_owned())
        }
        (SdkError::TimeoutError(_), ..) => {
            Trouble::Unknown("sqs did not answer within request_timeout".to_owned())
        }
        _ => Trouble::Unknown(format!("the answer of sqs was lost: {}", root(error))),
    }
}

/// What a failed question about the queue means for its messages, of which none was sent; `right` permits the question.
pub(crate) fn of_question<E>(
    error: &SdkError<E, HttpResponse>,
    destination: &str,
    right: &str,
) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match of_request(error, destination) {
        Trouble::NotTaken(failure) if failure.class == FailureClass::Refused => {
            let reason = format!("{} (asked by {right})", failure.reason);
            Failure::new(FailureClass::Refused, reason)
        }
        Trouble::NotTaken(failure) => failure,
        Trouble::OneOfThem(failure) => Failure::new(FailureClass::Refused, failure.reason),
        Trouble::Unknown(reason) => Failure::new(FailureClass::Unavailable, reason),
    }
}

/// What an entry of `Failed` means for its message. Where the service is at fault, one entry among others is tried again,
/// and all entries of a request are an outage.
pub(crate) fn of_entry(
    entry: &BatchResultErrorEntry,
    all_failed: bool,
    destination: &str,
) -> Failure {
    let code = bare(entry.code());
    let class = match class(code) {
        FailureClass::Permanent if !entry.sender_fault() => FailureClass::Transient,
        FailureClass::Transient if !entry.sender_fault() && all_failed => FailureClass::Unavailable,
        class => class,
    };
    failure(class, code, entry.message(), destination)
}

/// Why [`Publisher::check`](outbox_core::Publisher::check) failed; `None` when SQS answered, if only that listing queues is not
/// permitted.
pub(crate) fn of_check<E>(error: SdkError<E, HttpResponse>) -> Option<PublishError>
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let failure = match of_request(&error, "(any)") {
        Trouble::NotTaken(failure) | Trouble::OneOfThem(failure) => failure,
        Trouble::Unknown(reason) => Failure::new(FailureClass::Unavailable, reason),
    };
    if failure.class != FailureClass::Unavailable {
        return None;
    }
    let way_out = "look at the SDK's region, endpoint URL and credentials";
    let checked = PublishError::unavailable(format!("{}; {way_out}", failure.reason));
    Some(match error {
        // Its text may hold what was signed, a session token among it.
        SdkError::ServiceError(_) | SdkError::ResponseError(_) => checked,
        error => checked.with_source(error),
    })
}

fn failure(class: FailureClass, code: &str, text: Option<&str>, destination: &str) -> Failure {
    let way_out = match code {
        "QueueDoesNotExist" | "NonExistentQueue" => "; create it: queues are not created by use",
        "AccessDenied" | "AccessDeniedException" => {
            "; grant this identity sqs:SendMessage, sqs:GetQueueUrl and sqs:GetQueueAttributes on it"
        }
        "MessageTooLong" | "BatchRequestTooLong" => "; see the queue's MaximumMessageSize",
        _ if code.starts_with("KMS.") || code.starts_with("Kms") => "; see the queue's KMS key",
        _ => "",
    };
    // The text about a login may hold what was signed, a session token among it.
    let text = text.filter(|_| class != FailureClass::Unavailable).unwrap_or_default();
    let text: String = text.chars().take(MAX_TEXT_CHARS).collect();
    let colon = if text.is_empty() { "" } else { ": " };
    Failure::new(class, format!("queue {destination}: {code}{colon}{text}{way_out}"))
}

/// `AWS.SimpleQueueService.NonExistentQueue` and `com.amazonaws.sqs#QueueDoesNotExist` without what stands before the name.
fn bare(code: &str) -> &str {
    let code = code.rsplit_once('#').map_or(code, |(_, code)| code);
    code.strip_prefix("AWS.SimpleQueueService.").unwrap_or(code)
}

fn was_never_connected(error: &(dyn Error + 'static)) -> bool {
    find::<hyper_util::client::legacy::Error>(error)
        .is_some_and(hyper_util::client::legacy::Error::is_connect)
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// The innermost cause: what stands around it only names the SDK's layers.
fn root(error: &(dyn Error + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error: &'a (dyn Error + 'static) = next?;
        next = error.source();
        Some(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(code: &str, sender_fault: bool) -> BatchResultErrorEntry {
        let entry = BatchResultErrorEntry::builder().id("0").code(code).sender_fault(sender_fault);
        entry.message("the text").build().unwrap()
    }

    /// B207, H045
    #[test]
    fn codes_say_whose_fault_it_is() {
        use FailureClass::{Permanent, Refused, Transient, Unavailable};
        for (code, expected) in [
            ("AWS.SimpleQueueService.NonExistentQueue", Refused),
            ("com.amazonaws.sqs#QueueDoesNotExist", Refused),
            ("AccessDenied", Refused),
            ("KMS.DisabledException", Refused),
            ("KMS.ThrottlingException", Unavailable),
            ("RequestThrottled", Unavailable),
            ("ThrottlingException", Unavailable),
            ("ExpiredToken", Unavailable),
            ("SignatureDoesNotMatch", Unavailable),
            ("InvalidMessageContents", Permanent),
            ("AWS.SimpleQueueService.BatchRequestTooLong", Permanent),
            ("SomethingNew", Transient),
        ] {
            assert_eq!(class(bare(code)), expected, "{code}");
        }
    }

    /// B194
    #[test]
    fn an_entry_fails_by_whose_fault_it_is() {
        let class = |code, sender, all| of_entry(&entry(code, sender), all, "q").class;
        assert_eq!(class("InvalidMessageContents", true, false), FailureClass::Permanent);
        assert_eq!(class("InvalidMessageContents", false, false), FailureClass::Transient);
        assert_eq!(class("InternalError", false, false), FailureClass::Transient);
        assert_eq!(class("InternalError", false, true), FailureClass::Unavailable);
        assert_eq!(class("SomethingNew", true, true), FailureClass::Transient);
        assert_eq!(class("RequestThrottled", true, false), FailureClass::Unavailable);
    }

    #[test]
    fn a_reason_names_queue_code_and_way_out_but_nothing_of_a_login() {
        let reason = of_entry(&entry("AccessDenied", true), false, "orders").reason;
        assert_eq!(
            &*reason,
            "queue orders: AccessDenied: the text; grant this identity sqs:SendMessage, \
             sqs:GetQueueUrl and sqs:GetQueueAttributes on it"
        );
        let reason = of_entry(&entry("SignatureDoesNotMatch", true), false, "orders").reason;
        assert!(!reason.contains("the text"), "{reason}");
    }
}
