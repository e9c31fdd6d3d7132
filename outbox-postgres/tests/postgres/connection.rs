//! Connections: TLS, poolers, secrets.

use outbox_core::{Store as _, StoreErrorKind};
use outbox_postgres::{PostgresConfig, PostgresStore};

use crate::common::{LEASE, Outbox, delivered, event, everything, sorted, url, worker};

/// The server's certificate is verified against the CA, and a wrong name is refused.
#[tokio::test]
async fn tls_is_verified() {
    let outbox = Outbox::new().await;
    let ca = url("OUTBOX_TEST_POSTGRES_CA");
    let at = |host: &str| {
        let tls = outbox.url.replace("127.0.0.1", host);
        let config = PostgresConfig::new(&format!("{tls}?sslmode=verify-full&sslrootcert={ca}"));
        PostgresStore::new(config.unwrap().pool_size(1))
    };
    at("localhost").claim(&everything(16)).await.unwrap();
    let used = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid)
                 where a.datname = current_database() and s.ssl";
    assert!(outbox.number(used).await > 0);

    let strangers = format!("{}?sslmode=verify-full", outbox.url.replace("127.0.0.1", "localhost"));
    let store = PostgresStore::new(PostgresConfig::new(&strangers).unwrap());
    let error = store.claim(&everything(16)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error:?}");
}

/// H163, B261: no password in an error or its causes.
#[tokio::test]
async fn a_refused_login_does_not_repeat_the_password() {
    let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config).await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    outbox.execute(&format!("create role {role} login password 'right'")).await;
    let wrong = outbox.url.replace("postgres:postgres", &format!("{role}:hunter2"));
    let store = PostgresStore::new(PostgresConfig::new(&wrong).unwrap());
    let error = store.claim(&everything(16)).await.unwrap_err();
    outbox.execute(&format!("drop role {role}")).await;
    let mut text = format!("{error:?} {error} {store:?}");
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text.push_str(&format!("{error:?} {error}"));
        cause = error.source();
    }
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{text}");
}

/// B212, H160: behind a pooler in transaction mode, several workers at once, and no session state is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_is_enough() {
    let outbox = Outbox::bare("OUTBOX_TEST_PGBOUNCER_URL", |config| config.pooled(true)).await;
    outbox.schema().migrate().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..4 {
        let store = outbox.store();
        let lanes: Vec<u16> = (0..16).filter(|lane| lane % 4 == n).collect();
        tasks.push(tokio::spawn(async move {
            let worker = worker(&n.to_string());
            store.join(&worker).await.unwrap();
            for _ in 0..20 {
                store.acquire(&worker, 4).await.unwrap();
                let leases = store.heartbeat(&worker, LEASE).await.unwrap();
                store.claim(&everything(16)).await.unwrap();
                store.probe(0).await.unwrap();
                let verdicts = delivered(&worker, 1, &[]);
                store.settle(&verdicts).await.unwrap();
                store
                    .release(&worker, &leases.lanes.iter().map(|l| l.lane).collect::<Vec<_>>())
                    .await
                    .unwrap();
            }
            store.leave(&worker).await.unwrap();
            lanes.len()
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 4);
    }
    let mut tx = outbox.pool.begin().await.unwrap();
    for setting in ["enable_seqscan", "jit"] {
        let text: String = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("show {setting}")))
            .persistent(false)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert_eq!(text, "on", "{setting} was left behind");
    }
}

/// A server that restarts costs one error, however many connections were idle.
#[tokio::test(flavor = "multi_thread")]
async fn lost_sessions_cost_one_error_at_most() {
    let outbox = Outbox::with(|config| config.pool_size(4)).await;
    let store = outbox.store();
    outbox.append(&[event("a", "1")]).await;
    for _ in 0..3 {
        let request = everything(16);
        let (a, b, c, d) = tokio::join!(
            store.claim(&request),
            store.claim(&request),
            store.claim(&request),
            store.claim(&request)
        );
        assert!([a, b, c, d].iter().all(Result::is_ok));
        outbox
            .execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity
                  where datname = current_database() and application_name = 'outbox'",
            )
            .await;
        let mut failed = 0;
        for _ in 0..8 {
            if let Err(error) = store.claim(&everything(16)).await {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                failed += 1;
            }
        }
        assert!(failed <= 1, "{failed} errors");
    }
    assert_eq!(sorted(&store.claim(&everything(16)).await.unwrap()).len(), 1);
}
