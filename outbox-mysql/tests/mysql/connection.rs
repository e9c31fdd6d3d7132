//! TLS, passwords, and connections that end.

use outbox_core::{Store as _, StoreErrorKind, Worker};
use outbox_mysql::{MySqlConfig, MySqlStore, PayloadType};

use super::pipeline;
use crate::common::{Harness, MYSQL, shared};

/// The certificate of the shared servers' authority.
fn authority() -> String {
    std::env::var("OUTBOX_TEST_POSTGRES_CA").expect("cargo xtask test sets OUTBOX_TEST_POSTGRES_CA")
}

fn store(outbox: &Harness, password: &str, parameters: &str) -> MySqlStore {
    let server = shared(MYSQL);
    let address = server.rsplit_once('@').unwrap().1.rsplit_once('/').unwrap().0.to_owned();
    let url = format!("mysql://{}:{password}@{address}/{}?{parameters}", outbox.user, outbox.name);
    MySqlStore::new(MySqlConfig::new(&url).unwrap())
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
