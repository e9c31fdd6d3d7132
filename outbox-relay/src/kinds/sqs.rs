//! `kind = "sqs"`.

use std::sync::Arc;

use outbox::Publisher;
use outbox::sqs::{BodyEncoding, HeaderOverflow, SqsConfig, SqsPublisher};

use super::{AdapterError, choices, settings};
use crate::config::{Settings, Span};

settings!(Sqs of SqsConfig: ;
    queue_url: String,
    body: Body,
    header_overflow: Overflow,
    require_fifo: bool,
    requests_in_flight: usize,
    max_request_bytes: usize,
    request_timeout: Span,
    connect_timeout: Span,
    delivery_deadline: Span,
);
choices!(Body of BodyEncoding: Text, Base64IfRefused, Base64);
choices!(Overflow of HeaderOverflow: Fold, Refuse);

impl Sqs {
    pub(crate) fn config(self) -> SqsConfig {
        let mut config = SqsConfig::new();
        self.fill(&mut config);
        config
    }
}

pub(super) async fn publisher(settings: Settings) -> Result<Arc<dyn Publisher>, AdapterError> {
    let config = settings.read::<Sqs>()?.config();
    Ok(Arc::new(SqsPublisher::load(&config).await?))
}
