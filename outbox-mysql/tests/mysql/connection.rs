//! TLS, passwords, and connections that cannot be had.

use std::time::Duration;

use outbox_core::{Store as _, StoreErrorKind, Worker};
use outbox_mysql::{MySqlConfig, MySqlStore, PayloadType};

use super::{both, everything, pipeline};
use crate::common::{Harness, MYSQL, shared};

/// The certificate of the shared servers' authority.
fn authority() -> String {
    std::env::var("OUTBOX_TEST_POSTGRES_CA").expect("cargo xtask test sets OUTBOX_TEST_POSTGRES_CA")
}

fn store(outbox: &Harness, password: &str, parameters: &str) -> MySqlStore {
    let server = shared(MYSQL);
    let address = server.rsplit_once('@').unwrap().1.rsplit_once('/').unwrap().0.to_owned();
    let url = format!("mysql://{}:{password}@{address}/{}?{parameters}", outbox.user, outbox.name);
    MySqlStore::new(&MySqlConfig::from_url(&url).unwrap()).unwrap()
}

/// H198: with the server's certificate verified; a password that the server has not cached yet.
#[tokio::test]
async fn a_verified_connection_works_with_caching_sha2_password() {
    let outbox = Harness::new(&shared(MYSQL), PayloadType::LongText).await;
    outbox
        .execute(&format!("alter user {}@'127.0.0.1' identified by 'new' require ssl", outbox.user))
        .await;
    let verified = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={}", authority());
    let worker = Worker::new(pipeline(), "tls");
    assert_eq!(store(&outbox, "new", &verified).join(&worker).await.unwrap(), 16);
}

/// H163, H198: what is wrong is said, and the password is not.
#[tokio::test]
async fn a_refused_connection_names_the_way_out_and_no_secret() {
    let outbox = Harness::new(&shared(MYSQL), PayloadType::LongText).await;
    outbox
        .execute(&format!("alter user {}@'127.0.0.1' identified by 'hunter2'", outbox.user))
        .await;
    for (password, parameters, named) in [
        ("hunter3", "ssl-mode=REQUIRED", "password"),
        ("hunter2", "ssl-mode=VERIFY_CA", "ssl-ca"),
        ("hunter2", "ssl-mode=DISABLED", "TLS"),
    ] {
        let error = store(&outbox, password, parameters)
            .join(&Worker::new(pipeline(), "w"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error} {error:?}");
        assert!(error.to_string().contains(named), "{error}");
        assert!(!format!("{error:?} {error}").contains("hunter"), "{error:?}");
    }
}

/// A connection that cannot be had names the place and the reason, and never the password. H163
#[tokio::test]
async fn no_connection_names_place_and_reason() {
    for outbox in both().await {
        let nobody = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent_place = silent.local_addr().unwrap().to_string();
        let server = outbox.url.split(['@', '/']).nth(3).unwrap();
        for (place, named) in [
            (format!("{nobody}/shop"), vec!["onnection refused", "host and port"]),
            (format!("{silent_place}/shop"), vec!["does not answer", "host and port"]),
            (format!("{server}/{}", outbox.name), vec!["refuses the user"]),
        ] {
            let url = format!("mysql://{}:hunter2@{place}", outbox.user);
            let config =
                MySqlConfig::from_url(&url).unwrap().with_connect_timeout(Duration::from_secs(1));
            let store = MySqlStore::new(&config).unwrap();
            let text = chain(&store.claim(&everything(16)).await.unwrap_err());
            for named in named.into_iter().chain([place.as_str()]) {
                assert!(text.contains(named), "{named}: {text}");
            }
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

/// As the relay logs it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
