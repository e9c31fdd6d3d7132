//! Encrypted connections.

use outbox_rabbitmq::Tls;
use tokio::task::block_in_place;

use crate::Turn;
use crate::common::proxy::Proxy;
use crate::common::{
    Broker, CONFIRMED, UNAVAILABLE, address, classes, failure, messages, publish, publisher,
    random, through, to_queues,
};

fn trusting(broker: &Turn) -> Tls {
    Tls::default().with_ca_pem(std::fs::read_to_string(broker.ca_certificate()).unwrap())
}

async fn tls_needs_an_authority_that_is_trusted(broker: Turn) {
    let own = Broker::connect(&broker.url()).await;
    let queue = random("tls");
    own.queue(&queue, &[]).await;
    let config = to_queues(&broker.tls_url());
    let trusted = publisher(&config.clone().with_tls(trusting(&broker)));
    assert_eq!(classes(&publish(&trusted, messages(&queue, 3)).await), [CONFIRMED; 3]);
    assert_eq!(own.take(&queue).await.len(), 3);
    let verdicts = publish(&publisher(&config), messages(&queue, 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE]);
    let reason = &failure(&verdicts[0]).reason;
    assert!(reason.contains("certificate"), "{reason}");
    let plain = through(&broker.url(), &address(&broker.tls_url()));
    let verdicts = publish(&publisher(&to_queues(&plain)), messages(&queue, 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE], "plain text to the port for TLS");
}

/// The certificate is for localhost and 127.0.0.1, and the broker is called otherwise.
async fn a_certificate_for_another_name_is_refused(broker: Turn) {
    let url = broker.tls_url();
    let proxy = Proxy::at("127.0.0.2", address(&url));
    let config = to_queues(&through(&url, &proxy.address())).with_tls(trusting(&broker));
    let verdicts = publish(&publisher(&config), messages("q", 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE]);
    let reason = &failure(&verdicts[0]).reason;
    assert!(reason.contains("not valid for name"), "{reason}");
}

async fn the_broker_sees_the_certificate_of_the_client(broker: Turn) {
    let own = Broker::connect(&broker.url()).await;
    let queue = random("identity");
    own.queue(&queue, &[]).await;
    let (certificate, key) = block_in_place(|| broker.client_identity());
    let tls = trusting(&broker).with_identity_pem(certificate, key);
    let publisher = publisher(&to_queues(&broker.tls_url()).with_tls(tls));
    let verdicts = publish(&publisher, messages(&queue, 1)).await;
    assert_eq!(classes(&verdicts), [CONFIRMED], "{verdicts:?}");
    let subjects = block_in_place(|| broker.ctl(&["list_connections", "peer_cert_subject"]));
    assert!(subjects.contains("CN=outbox test client"), "{subjects}");
}

crate::on_both! {
    tls_needs_an_authority_that_is_trusted,
    a_certificate_for_another_name_is_refused,
    the_broker_sees_the_certificate_of_the_client,
}
